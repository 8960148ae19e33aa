<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * Cookies that the site itself sets, which no table knows: a plugin's cart, age check, prices by country. Their names are learned from
 * what PHP sets, and the server is told: who has one takes no page that was made for others. No page that is made for such a visitor
 * is stored, also where the server has not heard of it.
 */
final class Cookies {
	/** The option with the names. */
	const OPTION = 'yorozu_cookies';
	/** Names that are remembered; chosen: sites set one or two. */
	const NAMES_MAX = 32;
	/** Cookies by which no page differs, or how their names begin; packaging/cookies.py writes them. */
	const HARMLESS = array(
		'wordpress_test_cookie',
		'wp-settings-*',
		'woocommerce_geo_hash',
		'sbjs_*',
		'pll_language',
		'wp-wpml_current_language*',
		'trp_language',
		'_ga*',
		'_gid',
		'_gcl*',
		'_fbp',
		'_hj*',
		'_clck',
		'_clsk',
		'pys*',
		'rl_*',
		'mp_*',
		'ajs_*',
		'tk_*',
		'hubspotutk',
		'intercom-*',
		'wisepops*',
		'kndctr_*',
		'__stripe_*',
		'__cf_bm',
		'cf_clearance',
		'AWSALB*',
		'OptanonConsent',
		'cookieyes-consent',
		'CookieConsent',
		'cmplz_*',
		'cookielawinfo-*',
		'viewed_cookie_policy',
		'cookie_notice_*',
		'wp_consent_*',
		'borlabs-cookie*',
		'moove_gdpr_popup',
		'euconsent*',
		'affwp_*',
		'mailpoet_*',
		'wfvt_*',
	);

	/** What tells the server: `X-Accel-Cookies: NAME, -NAME`. */
	const FIELD = 'X-Accel-Cookies';

	/** @var bool Is WordPress over? */
	private static $is_told = false;

	public static function register(): void {
		header_register_callback( array( self::class, 'tell' ) );
		// A head without content is sent when WordPress is gone.
		add_action( 'shutdown', array( self::class, 'tell' ), PHP_INT_MAX );
		// What plugins tell WP Super Cache.
		add_action( 'wpsc_add_cookie', array( self::class, 'note' ) );
		// Who set it may be gone; who sets it again is noticed.
		foreach ( array( 'deactivated_plugin', 'switch_theme' ) as $hook ) {
			add_action( $hook, array( self::class, 'forget' ) );
		}
	}

	/** The head is about to be sent, whatever it is of; or has been, and set more than was told. */
	public static function tell(): void {
		if ( self::$is_told ) {
			return;
		}
		self::$is_told = (bool) did_action( 'shutdown' );
		Shoppers::mark();
		self::learn();
		$told = array();
		foreach ( self::learned() as $name => $is_set ) {
			$told[] = ( $is_set && ! self::is_harmless( (string) $name ) ? '' : '-' ) . $name;
		}
		if ( $told && Client::is_served() && ! headers_sent() ) {
			header( self::FIELD . ': ' . implode( ', ', $told ) );
		}
	}

	/** Looks at what the request has set. */
	public static function learn(): void {
		// Editors' own are of wp-admin alone.
		if ( is_admin() && ! wp_doing_ajax() || 'wp-login.php' === ( $GLOBALS['pagenow'] ?? '' ) ) {
			return;
		}
		foreach ( headers_list() as $line ) {
			if ( preg_match( '~^set-cookie:\s*([^=;\s]+)=[^;]+(.*)~i', $line, $found ) && ! preg_match( '~;\s*max-age=(0|-)~i', $found[2] ) ) {
				self::note( $found[1] );
			}
		}
	}

	/**
	 * Remembers a name.
	 *
	 * @param mixed $name
	 */
	public static function note( $name ): void {
		$name    = self::plain( is_string( $name ) ? $name : '' );
		$learned = self::learned();
		if ( ! preg_match( '~^\w[\w%:|@!-]{0,63}$~', $name ) || ! empty( $learned[ $name ] ) || Personal::is_personal( $name ) || self::is_harmless( $name ) ) {
			return;
		}
		if ( ! isset( $learned[ $name ] ) && count( $learned ) >= self::NAMES_MAX ) {
			$learned = array_filter( $learned );
		}
		if ( count( $learned ) < self::NAMES_MAX ) {
			update_option( self::OPTION, array( $name => 1 ) + $learned, true );
		}
	}

	/** Takes all names back: who sets one again is noticed. */
	public static function forget(): void {
		if ( self::learned() ) {
			update_option( self::OPTION, array_map( '__return_zero', self::learned() ), true );
		}
	}

	/** As PHP gives it to those who read it. */
	private static function plain( string $name ): string {
		return strtr( $name, '. [', '___' );
	}

	/** @return array<string, int> Names, each with 1, or 0 where it was forgotten. */
	private static function learned(): array {
		return array_filter( (array) get_option( self::OPTION, array() ), 'is_int' );
	}

	/** @return string[] Those by which pages may differ. */
	public static function names(): array {
		$names = array_map( 'strval', array_keys( array_filter( self::learned() ) ) );
		return array_values( array_filter( $names, fn( $name ) => ! self::is_harmless( $name ) ) );
	}

	private static function is_harmless( string $name ): bool {
		$is_harmless = false;
		foreach ( self::HARMLESS as $one ) {
			$is_harmless = $is_harmless || ( '*' === substr( $one, -1 ) ? 0 === strpos( $name, substr( $one, 0, -1 ) ) : $name === $one );
		}
		/**
		 * Filters whether all visitors share pages whatever this cookie says.
		 *
		 * @param bool   $is_harmless
		 * @param string $name
		 */
		return (bool) apply_filters( 'yorozu_is_cookie_harmless', $is_harmless, $name );
	}
}
