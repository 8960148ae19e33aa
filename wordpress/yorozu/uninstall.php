<?php
defined( 'WP_UNINSTALL_PLUGIN' ) || exit;

foreach ( array( 'yorozu_history', 'yorozu_log', 'yorozu_pending', 'yorozu_settings' ) as $yorozu_option ) {
	delete_option( $yorozu_option );
}
wp_clear_scheduled_hook( 'yorozu_hour' );
