<?php
/* Written by stack/run at each start; your own changes are kept. */
define( 'DB_NAME', 'wordpress' );
define( 'DB_USER', 'wordpress' );
define( 'DB_PASSWORD', '@PASSWORD@' );
define( 'DB_HOST', 'localhost:@SOCKET@' );
define( 'DB_CHARSET', 'utf8mb4' );
define( 'DB_COLLATE', '' );

define( 'WP_REDIS_SOCKET', '@REDIS@' );
define( 'WP_CACHE_KEY_SALT', 'wordpress' );

define( 'YOROZU_URL', '@ADDRESS@/.purge' );
define( 'YOROZU_TOKEN', '@TOKEN@' );

// Each address that make run prints is a whole site: links stay with the one a visitor came by.
$yorozu_is_secure = '' !== '@TLS_PORT@' && isset( $_SERVER['HTTPS'] ) && 'on' === $_SERVER['HTTPS'];
define( 'WP_HOME', $yorozu_is_secure ? 'https://127.0.0.1:@TLS_PORT@' : '@ADDRESS@' );
define( 'WP_SITEURL', WP_HOME );
define( 'WP_HTTP_BLOCK_EXTERNAL', true );
define( 'AUTOMATIC_UPDATER_DISABLED', true );
define( 'FS_METHOD', 'direct' );
define( 'WP_DEBUG', false );

require __DIR__ . '/wp-keys.php';
$table_prefix = 'wp_';

if ( ! defined( 'ABSPATH' ) ) {
	define( 'ABSPATH', __DIR__ . '/' );
}
require_once ABSPATH . 'wp-settings.php';
