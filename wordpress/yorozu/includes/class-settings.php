<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** What the settings page can change; the option `yorozu_settings`. */
final class Settings {
	const DEFAULTS = array(
		'is_on' => 1,
		'urls'  => '',
	);

	private static function all(): array {
		$set = get_option( 'yorozu_settings' );
		return array_merge( self::DEFAULTS, is_array( $set ) ? $set : array() );
	}

	/** Whether the cache is purged when something changes. */
	public static function is_on(): bool {
		return (bool) self::all()['is_on'];
	}

	/** @return string[] Paths to purge with every change; `*` at the end matches any ending. */
	public static function extra_urls(): array {
		$lines = preg_split( '/\s+/', self::all()['urls'], -1, PREG_SPLIT_NO_EMPTY );
		return array_values( array_filter( $lines, array( self::class, 'is_path' ) ) );
	}

	/** Whether it is a path of this site; after `//` a host begins, and the server refuses all that is purged with another one. */
	private static function is_path( string $line ): bool {
		return (bool) preg_match( '~^/(?!/)~', $line ) && Sites::has( $line );
	}

	/** @param mixed $given What the form sent. */
	public static function sanitize( $given ): array {
		$given = is_array( $given ) ? $given : array();
		$urls  = preg_split( '/\s+/', (string) ( $given['urls'] ?? '' ), -1, PREG_SPLIT_NO_EMPTY );
		$wrong = array_filter( $urls, fn( $url ) => ! self::is_path( $url ) );
		if ( $wrong ) {
			$text = sprintf(
				/* translators: 1: what was written, 2: where the site begins, such as / */
				__( 'Left out: %1$s - expected paths of this site, like %2$sshop/ or %2$sshop/*', 'yorozu' ),
				esc_html( implode( ' ', $wrong ) ),
				esc_html( Sites::path() )
			);
			add_settings_error( 'yorozu_settings', 'urls', $text );
		}
		return array(
			'is_on' => empty( $given['is_on'] ) ? 0 : 1,
			'urls'  => implode( "\n", array_map( 'esc_url_raw', array_diff( $urls, $wrong ) ) ),
		);
	}
}
