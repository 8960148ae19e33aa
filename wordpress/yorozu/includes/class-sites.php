<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** The sites of a network; without one, the site. */
final class Sites {
	/** Those of a network that are purged one by one. */
	const MAX = 500;

	/** @return int[] */
	public static function all(): array {
		return is_multisite() ? array_map( 'intval', get_sites( array( 'fields' => 'ids', 'number' => self::MAX ) ) ) : array( get_current_blog_id() );
	}

	/** @return int[] Those that may name the user. */
	public static function of_user( int $id ): array {
		$sites = is_multisite() ? array_keys( get_blogs_of_user( $id ) ) : array();
		return array_unique( array_merge( array( get_current_blog_id() ), array_map( 'intval', $sites ) ) );
	}

	/**
	 * What a function returns on a site.
	 *
	 * @return mixed
	 */
	public static function on( int $site, callable $ask ) {
		if ( get_current_blog_id() === $site ) {
			return $ask();
		}
		switch_to_blog( $site );
		try {
			return $ask();
		} finally {
			restore_current_blog();
		}
	}

	/** Where the site begins: `/`, or `/shop/` of a network in folders. */
	public static function path(): string {
		return trailingslashit( (string) wp_parse_url( home_url( '/' ), PHP_URL_PATH ) );
	}

	/** Whether a path is the site's, and no other one's of the network; only the first site has all others below it. */
	public static function has( string $path ): bool {
		return ! is_multisite() || 0 === strpos( $path, self::path() );
	}
}
