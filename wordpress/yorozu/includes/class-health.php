<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** What Tools, Site Health says of the page cache. */
final class Health {
	/** Cookies of the site's own that the front page is asked for with. */
	const COOKIES_MAX = 8;
	/** Seconds to wait for the front page. */
	const SECONDS = 5;

	public static function register(): void {
		add_filter( 'site_status_page_cache_supported_cache_headers', array( self::class, 'headers' ) );
		add_filter( 'site_status_tests', array( self::class, 'tests' ) );
		add_action( 'wp_ajax_health-check-yorozu-works', array( self::class, 'answer_works' ) );
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
		// Behind another web server there is no page cache of ours that could work.
		if ( Client::is_served() ) {
			$tests['async']['yorozu_works'] = array(
				'label'             => __( 'The page cache works', 'yorozu' ),
				'test'              => 'yorozu_works',
				'async_direct_test' => array( self::class, 'works' ),
			);
		}
		return $tests;
	}

	/** @return string[] Status, title, text: of a site that another server answers for. */
	private static function elsewhere(): array {
		return array( 'recommended', __( 'The web server is not yorozu', 'yorozu' ), __( 'The plugin yorozu does nothing here.', 'yorozu' ) );
	}

	/** As Site Health asks for it from the browser. */
	public static function answer_works(): void {
		check_ajax_referer( 'health-check-site-status' );
		if ( ! current_user_can( 'view_site_health_checks' ) ) {
			wp_send_json_error();
		}
		wp_send_json_success( self::works() );
	}

	/** Whether the front page comes from the cache, when it is asked for a second time. */
	public static function works(): array {
		list( $status, $label, $text ) = Client::is_served() ? self::front_page() : self::elsewhere();
		return self::result( 'yorozu_works', $status, $label, $text );
	}

	/** @return string[] Status, title, text. */
	private static function front_page(): array {
		$url = home_url( '/' );
		// As a visitor who has not been here: without cookies.
		$ask    = fn() => wp_remote_get( $url, array( 'timeout' => self::SECONDS, 'cookies' => array(), 'redirection' => 5, 'sslverify' => false ) );
		$first  = $ask();
		$answer = is_wp_error( $first ) ? $first : $ask();
		if ( is_wp_error( $answer ) ) {
			return array( 'recommended', __( 'Could not check the page cache', 'yorozu' ), $answer->get_error_message() );
		}
		$code = (int) wp_remote_retrieve_response_code( $answer );
		if ( 200 !== $code ) {
			/* translators: %d: HTTP status, such as 404 */
			return array( 'recommended', __( 'The front page returned an error', 'yorozu' ), sprintf( __( 'Requested without cookies, it returns status %d. This says nothing about the page cache.', 'yorozu' ), $code ) );
		}
		if ( self::is_hit( $answer ) ) {
			return self::cookies( $url ) ?? array( 'good', __( 'The page cache works', 'yorozu' ), __( 'The front page came from the cache when it was requested a second time.', 'yorozu' ) );
		}
		return array( 'critical', __( 'The page cache does not work', 'yorozu' ), __( 'The front page was requested twice, and WordPress had to generate it both times.', 'yorozu' ) . ' ' . self::why() );
	}

	/** @param array|\WP_Error $answer */
	private static function is_hit( $answer ): bool {
		$cache = strtoupper( (string) wp_remote_retrieve_header( $answer, 'x-cache' ) );
		return '' === $cache ? '' !== (string) wp_remote_retrieve_header( $answer, 'age' ) : in_array( $cache, array( 'HIT', 'STALE', 'UPDATING' ), true );
	}

	/** @return string[]|null Status, title, text: of a cookie of the site's own, whose visitors get pages generated for others. */
	private static function cookies( string $url ): ?array {
		foreach ( array_slice( Cookies::names(), 0, self::COOKIES_MAX ) as $name ) {
			$answer = wp_remote_get( $url, array( 'timeout' => self::SECONDS, 'headers' => array( 'Cookie' => "$name=1" ), 'sslverify' => false ) );
			if ( self::is_hit( $answer ) ) {
				/* translators: %s: name of a cookie */
				$label = sprintf( __( 'Visitors with the cookie "%s" get pages generated for others', 'yorozu' ), $name );
				/* translators: %s: a line of the web server's configuration */
				$text = sprintf( __( 'The site sets this cookie, so that pages may differ by it, and the web server does not know it. Add this line to visitor.conf: %s If no page differs by it, say so with the filter yorozu_is_cookie_harmless.', 'yorozu' ), '"~(^|;)\s*' . preg_quote( $name, '~' ) . '=" 1;' );
				return array( 'critical', $label, $text );
			}
		}
		return null;
	}

	/** What the server says of the front page. */
	private static function why(): string {
		try {
			$misses = Client::answer()['live']['misses'] ?? array();
		} catch ( \RuntimeException $problem ) {
			return $problem->getMessage();
		}
		$path = (string) wp_parse_url( home_url( '/' ), PHP_URL_PATH );
		foreach ( $misses as $miss ) {
			if ( $miss['path'] === $path ) {
				return implode( '. ', Reasons::words( (string) $miss['reason'], (string) ( $miss['header'] ?? '' ) ) );
			}
		}
		return __( 'The server does not say why.', 'yorozu' );
	}

	private static function result( string $test, string $status, string $label, string $text ): array {
		return array(
			'label'       => $label,
			'status'      => $status,
			'badge'       => array( 'label' => __( 'Performance', 'yorozu' ), 'color' => 'blue' ),
			'description' => '<p>' . esc_html( $text ) . '</p>',
			'actions'     => sprintf( '<p><a href="%s">%s</a></p>', esc_url( Admin::url() ), esc_html__( 'Page cache settings', 'yorozu' ) ),
			'test'        => $test,
		);
	}

	public static function test(): array {
		list( $status, $label, $text ) = self::state();
		return self::result( 'yorozu', $status, $label, $text );
	}

	/** @return string[] Status, title, text: of purges, and of pages. */
	public static function whole(): array {
		$purges = self::state();
		if ( 'good' !== $purges[0] ) {
			return $purges;
		}
		$pages = self::front_page();
		return 'good' === $pages[0]
			? array( 'good', __( 'The page cache works', 'yorozu' ), __( 'Pages come from it, and are purged when what is on them changes.', 'yorozu' ) )
			: $pages;
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
				? array( 'recommended', __( 'The page cache is only purged by PHP\'s own responses', 'yorozu' ), __( 'Connect to the web server under Settings, Page cache, so that changes by WP-CLI and cron reach stored pages, too.', 'yorozu' ) )
				: self::elsewhere();
		}
		try {
			Client::figures();
		} catch ( \RuntimeException $problem ) {
			return array( 'critical', __( 'The page cache cannot be purged', 'yorozu' ), $problem->getMessage() );
		}
		if ( Personal::has_prices_by_address() ) {
			return array( 'recommended', __( 'WooCommerce keeps every page from being stored', 'yorozu' ), __( 'WooCommerce takes the country of each visitor from the address, so that prices may be others for everyone, and no page is stored. Under WooCommerce, Settings, General, choose "Geolocate (with page caching support)" or the shop\'s country as the default customer location.', 'yorozu' ) );
		}
		return array( 'good', __( 'The page cache is purged when something changes', 'yorozu' ), __( 'The web server answers, and stored pages are purged when what is on them changes.', 'yorozu' ) );
	}

	public static function about_other_cache(): string {
		$text = __( 'Another plugin has put a page cache into wp-content/advanced-cache.php. yorozu already stores pages: while both are active, every change purges all pages.', 'yorozu' );
		return Other_Cache::is_known()
			? $text . ' ' . __( 'Deactivate the other page cache.', 'yorozu' )
			: $text . ' ' . __( 'This plugin does not know how to clear that cache, so visitors may see old pages. Deactivate it.', 'yorozu' );
	}
}
