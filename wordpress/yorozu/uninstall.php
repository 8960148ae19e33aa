<?php
defined( 'WP_UNINSTALL_PLUGIN' ) || exit;

$yorozu_clean = function () {
	foreach ( array( 'yorozu_cart_fragments', 'yorozu_cookies', 'yorozu_history', 'yorozu_log', 'yorozu_pending', 'yorozu_server', 'yorozu_settings' ) as $option ) {
		delete_option( $option );
	}
	wp_clear_scheduled_hook( 'yorozu_hour' );
	wp_clear_scheduled_hook( 'yorozu_retry' );
};
if ( ! is_multisite() ) {
	$yorozu_clean();
	return;
}
foreach ( get_sites( array( 'fields' => 'ids', 'number' => 0 ) ) as $yorozu_site ) {
	switch_to_blog( $yorozu_site );
	$yorozu_clean();
	restore_current_blog();
}
