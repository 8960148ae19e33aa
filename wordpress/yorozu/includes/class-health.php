<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** What Tools, Site Health says of the page cache. */
final class Health {
	public static function register(): void {
		add_filter( 'site_status_page_cache_supported_cache_headers', array( self::class, 'headers' ) );
		add_filter( 'site_status_tests', array( self::class, 'tests' ) );
	}

	/**
	 * The fields of an answer by which WordPress finds a page cache.
	 *
	 * @param array $fields Names, each with a function that says whether a value shows one.
	 */
	public static function headers( $fields ) {
		// `Age: 0` of a page that has just been stored is the sign of a cache as well as any other.
		$fields['age']     = fn( $value ) => is_numeric( $value );
		$fields['x-cache'] = fn( $value ) => in_array( strtoupper( $value ), array( 'HIT', 'MISS', 'EXPIRED', 'STALE', 'UPDATING', 'REVALIDATED' ), true );
		return $fields;
	}

	public static function tests( $tests ) {
		$tests['direct']['yorozu'] = array(
			'label' => __( 'Page cache of yorozu', 'yorozu' ),
			'test'  => array( self::class, 'test' ),
		);
		return $tests;
	}

	public static function test(): array {
		list( $status, $label, $text ) = self::state();
		return array(
			'label'       => $label,
			'status'      => $status,
			'badge'       => array( 'label' => __( 'Performance', 'yorozu' ), 'color' => 'blue' ),
			'description' => '<p>' . esc_html( $text ) . '</p>',
			'actions'     => sprintf( '<p><a href="%s">%s</a></p>', esc_url( Admin::url() ), esc_html__( 'Page cache settings', 'yorozu' ) ),
			'test'        => 'yorozu',
		);
	}

	/** @return string[] Status, title, text. */
	public static function state(): array {
		if ( Other_Cache::is_active() ) {
			return array( 'critical', __( 'A second page cache is active', 'yorozu' ), self::about_other_cache() );
		}
		if ( ! Settings::is_on() ) {
			return array( 'recommended', __( 'Changes do not reach stored pages', 'yorozu' ), __( 'Purging is switched off in the settings: visitors see the old pages until these expire.', 'yorozu' ) );
		}
		if ( ! Client::is_configured() ) {
			return Client::is_behind_server()
				? array( 'recommended', __( 'The page cache is only purged by PHP\'s own answers', 'yorozu' ), __( 'Set YOROZU_URL and YOROZU_TOKEN in wp-config.php, so that changes by WP-CLI and cron reach stored pages, too.', 'yorozu' ) )
				: array( 'recommended', __( 'The web server is not yorozu', 'yorozu' ), __( 'The plugin yorozu does nothing here.', 'yorozu' ) );
		}
		try {
			Client::figures();
		} catch ( \RuntimeException $problem ) {
			return array( 'critical', __( 'The page cache cannot be purged', 'yorozu' ), $problem->getMessage() );
		}
		return array( 'good', __( 'The page cache is purged when something changes', 'yorozu' ), __( 'The web server answers, and stored pages are purged when what is on them changes.', 'yorozu' ) );
	}

	public static function about_other_cache(): string {
		$text = __( 'Another plugin has put a page cache into wp-content/advanced-cache.php. yorozu stores pages already: as long as both are there, every change purges all pages.', 'yorozu' );
		return Other_Cache::is_known()
			? $text . ' ' . __( 'Deactivate the other page cache.', 'yorozu' )
			: $text . ' ' . __( 'How to clear that cache is not known here, so visitors may see old pages. Deactivate it.', 'yorozu' );
	}
}
