<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * Another page cache in this WordPress. Its drop-in, advanced-cache.php, answers before any plugin is there: a page
 * refilled from its files has no tags, so that no purge by tag would reach it. While there is one, pages are kept from
 * it where it heeds DONOTCACHEPAGE, and each purge clears it and takes all of the site's pages.
 */
final class Other_Cache {
	/** Functions and actions by which those in use clear themselves. */
	const FUNCTIONS = array(
		'wp_cache_clear_cache', 'w3tc_flush_all', 'rocket_clean_domain', 'wpfc_clear_all_cache', 'sc_cache_flush',
		'wpo_cache_flush', 'sg_cachepress_purge_cache',
	);
	const ACTIONS = array(
		'cache_enabler_clear_complete_cache', 'litespeed_purge_all', 'breeze_clear_all_cache', 'cachify_flush_cache',
		'wphb_clear_page_cache',
	);

	public static function is_active(): bool {
		$is_active = defined( 'WP_CACHE' ) && \WP_CACHE && file_exists( WP_CONTENT_DIR . '/advanced-cache.php' )
			&& Client::is_served();
		/**
		 * Filters whether another page cache answers before plugins are there.
		 *
		 * @param bool $is_active
		 */
		return (bool) apply_filters( 'yorozu_is_other_cache', $is_active );
	}

	/** Whether it is known how to clear it. */
	public static function is_known(): bool {
		return array_filter( self::FUNCTIONS, 'function_exists' ) || array_filter( self::ACTIONS, 'has_action' )
			|| has_action( 'yorozu_clear_other_cache' );
	}

	public static function clear(): void {
		foreach ( array_filter( self::FUNCTIONS, 'function_exists' ) as $function ) {
			$function();
		}
		foreach ( self::ACTIONS as $action ) {
			do_action( $action );
		}
		/** For a cache that is not known here. */
		do_action( 'yorozu_clear_other_cache' );
	}
}
