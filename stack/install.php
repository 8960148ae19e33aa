<?php
/**
 * Installs WordPress into its empty database: admin, pretty permalinks, a few posts.
 * Run once by stack/run: php install.php FOLDER, the admin's password in YOROZU_ADMIN.
 */
define( 'WP_INSTALLING', true );
$_SERVER['HTTP_HOST'] = '127.0.0.1';
require $argv[1] . '/wp-load.php';
require ABSPATH . 'wp-admin/includes/upgrade.php';

$result = wp_install( 'Ten thousand', 'admin', 'admin@example.invalid', true, '', getenv( 'YOROZU_ADMIN' ) );
if ( empty( $result['user_id'] ) ) {
	fwrite( STDERR, "wp_install() made no user\n" );
	exit( 1 );
}

global $wp_rewrite;
$wp_rewrite->set_permalink_structure( '/%postname%/' );
$wp_rewrite->flush_rules( false );
// Debian's newest; with another WordPress its own stays.
if ( wp_get_theme( 'twentytwentythree' )->exists() ) {
	switch_theme( 'twentytwentythree' );
}
update_option( 'comment_previously_approved', 0 );
update_option( 'comment_moderation', 0 );

$texts = array(
	'The first thousand' => 'A page that was made once does not have to be made again.',
	'A quiet machine'    => 'Two cores are plenty when most answers are already known.',
	'What the cache saw' => 'Look at the X-Cache field of this page, then load it again.',
);
foreach ( $texts as $title => $text ) {
	wp_insert_post(
		array(
			'post_title'   => $title,
			'post_content' => str_repeat( "<!-- wp:paragraph -->\n<p>$text</p>\n<!-- /wp:paragraph -->\n", 5 ),
			'post_status'  => 'publish',
			'post_author'  => $result['user_id'],
		),
		true
	);
}
echo "installed\n";
