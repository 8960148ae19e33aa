<?php
/**
 * Plugin Name:       Yorozu page cache
 * Description:       Keeps yorozu's page cache right: tags each page with what is on it, purges exactly what a change touches.
 * Version:           0.2.0
 * Requires at least: 5.9
 * Requires PHP:      7.4
 * Author:            The authors of yorozu
 * License:           GPL-2.0-or-later
 * License URI:       https://www.gnu.org/licenses/gpl-2.0.html
 * Text Domain:       yorozu
 * Domain Path:       /languages
 *
 * Under Settings, Page cache, or in wp-config.php, what `cache_purge_api token=…` of the server says:
 *
 *     define( 'YOROZU_URL', 'http://127.0.0.1/.purge' );
 *     define( 'YOROZU_TOKEN', '…' );
 *
 * Without that purges go as a field of PHP's own answer, `X-Accel-Purge`, where its head is not out yet.
 */

namespace Yorozu;

defined( 'ABSPATH' ) || exit;

const VERSION = '0.2.0';

// Each when it is needed: a page needs few.
const CLASSES = array( 'Admin', 'Client', 'Command', 'Comment_Changes', 'Connect', 'Cookies', 'Health', 'History', 'Lists', 'Live', 'Other_Cache', 'Page', 'Personal', 'Post_Changes', 'Queue', 'Reasons', 'Settings', 'Settings_Page', 'Shoppers', 'Site_Changes', 'Sites', 'Tags', 'Term_Changes', 'Used', 'User_Changes', 'Viewed' );
spl_autoload_register(
	function ( $name ) {
		$begin = __NAMESPACE__ . '\\';
		$class = 0 === strpos( $name, $begin ) ? substr( $name, strlen( $begin ) ) : '';
		if ( in_array( $class, CLASSES, true ) ) {
			require __DIR__ . '/includes/class-' . strtolower( strtr( $class, '_', '-' ) ) . '.php';
		}
	}
);

if ( Page::is_asked_for() ) {
	Page::register();
	Personal::register();
	Shoppers::register();
	Tags::register();
	Used::register();
	// Site Health asks by the REST API.
	add_action( 'rest_api_init', array( Health::class, 'register' ) );
} else {
	Health::register();
	History::register();
	Admin::register();
	Settings_Page::register();
	add_action( 'init', array( Client::class, 'remember' ) );
}
Post_Changes::register();
Comment_Changes::register();
Term_Changes::register();
Used::register_changes();
User_Changes::register();
Site_Changes::register();
Cookies::register();
Queue::register();
add_action( 'admin_bar_menu', array( Admin::class, 'bar' ), 100 );

// Its texts are for those who are logged in.
add_action(
	'init',
	function () {
		if ( is_admin() || is_user_logged_in() ) {
			load_plugin_textdomain( 'yorozu', false, dirname( plugin_basename( __FILE__ ) ) . '/languages' );
		}
	}
);

// Pages stored until now have no tags.
register_activation_hook(
	__FILE__,
	function ( $is_of_network = false ) {
		foreach ( $is_of_network ? Sites::all() : array( get_current_blog_id() ) as $site ) {
			Queue::url( 'activated', get_home_url( $site, '/' ) . '*', true, $site );
		}
	}
);

// This very request's response says so.
register_deactivation_hook( __FILE__, array( Cookies::class, 'forget' ) );

if ( defined( 'WP_CLI' ) && \WP_CLI ) {
	\WP_CLI::add_command( 'yorozu', Command::class );
}
