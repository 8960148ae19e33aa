<?php
/* Made by stack/run at the first start; yours from then on. What depends on the machine is in wp-site.php, written at each start. */
require __DIR__ . '/wp-site.php';
define( 'DB_NAME', 'wordpress' );
define( 'DB_USER', 'wordpress' );
define( 'DB_CHARSET', 'utf8mb4' );
define( 'DB_COLLATE', '' );

define( 'WP_CACHE_KEY_SALT', 'wordpress' );

// Each address that make run prints is a whole site: links stay with the one a visitor came by.
$site_is_secure = isset( $_SERVER['HTTPS'] ) && 'on' === $_SERVER['HTTPS'];
define( 'WP_HOME', $site_is_secure ? 'https://127.0.0.1:' . $_SERVER['SERVER_PORT'] : SITE_ADDRESS );
define( 'WP_SITEURL', WP_HOME );
define( 'WP_HTTP_BLOCK_EXTERNAL', true );
define( 'AUTOMATIC_UPDATER_DISABLED', true );
define( 'FS_METHOD', 'direct' );
define( 'WP_DEBUG', false );

$table_prefix = 'wp_';

if ( ! defined( 'ABSPATH' ) ) {
	define( 'ABSPATH', __DIR__ . '/' );
}
require_once ABSPATH . 'wp-settings.php';
