<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * Which of WooCommerce's pages are the same for shoppers, too, whatever is in their carts: those that print nothing of a visitor but
 * what a script fills in later (the cart's fragments, blocks). The server is told with each page, and then gives it to shoppers as
 * well. A shopper of whom there is more than a cart, a notice or taxes by an address, has a cookie by which no page is shared.
 */
final class Shoppers {
	/** What tells the server that a page is also for shoppers. */
	const FIELD = 'X-Accel-Shared';
	/** The cookie of shoppers who share no pages. */
	const COOKIE = 'yorozu_own';
	/** The option with the ways by which the cart's fragments read it; what is printed by the same is replaced. */
	const OPTION = 'yorozu_cart_fragments';
	/** Filters through which the cart and the customer are read, each with the names that follow. */
	const READS = array(
		'woocommerce_get_cart_'     => array( 'contents' ),
		// Asked whether a product is in it.
		'woocommerce_cart_'         => array( 'id' ),
		'woocommerce_cart_get_'     => array(
			'subtotal', 'subtotal_tax', 'discount_total', 'discount_tax', 'shipping_total', 'shipping_tax', 'shipping_taxes', 'total', 'total_tax',
			'cart_contents_total', 'cart_contents_tax', 'cart_contents_taxes', 'fee_total', 'fee_tax', 'fee_taxes', 'taxes',
		),
		'woocommerce_customer_get_' => array(
			'first_name', 'last_name', 'display_name', 'email', 'billing_first_name', 'billing_last_name', 'billing_company', 'billing_email',
			'billing_phone', 'billing_address_1', 'shipping_first_name', 'shipping_last_name', 'shipping_address_1',
		),
	);
	/** Filters through which it is read where the customer is; WooCommerce itself does so for taxes, which are looked at for each visitor. */
	const PLACES = array( 'country', 'state', 'postcode', 'city' );
	/** Files of WooCommerce through which the reader reads. */
	const BETWEEN = '~^includes/(abstracts/|class-wc-(cart|customer|session|tax)|wc-[a-z-]*functions\.php)~';
	/** Files of WooCommerce whose readers print what a script fills in. */
	const FILLED_IN = '~^src/(Blocks|StoreApi)/~';
	/** What a session has of a cart and its checkout, or what is looked at by itself. */
	const IN_SESSION = '~^(cart|cart_totals|cart_fees|applied_coupons|coupon_discount(_tax)?_totals|removed_cart_contents|customer|wc_notices|shipping_for_package_\d+|previous_shipping_methods|chosen_shipping_methods|shipping_method_counts|chosen_payment_method|order_awaiting_payment|store_api_(draft_order|customer_note)|refresh_totals|reload_checkout)$~';
	/** How many calls lie between the cart and its reader, at most; chosen, as most lie within ten. */
	const CALLS_MAX = 24;

	/** @var bool Is the page being printed? */
	private static $is_printing = false;
	/** @var bool Does the page show something of its visitor, or hold what only that can use? */
	private static $is_own = false;
	/** @var array<string, true> The ways by which the page was given what no script is known to correct. */
	private static $readers = array();
	/** @var array<string, true>|null While the fragments are made: the ways by which they read the cart. */
	private static $found = null;

	public static function register(): void {
		add_action( 'woocommerce_loaded', array( self::class, 'watch' ) );
	}

	public static function watch(): void {
		foreach ( self::READS as $begin => $ends ) {
			foreach ( $ends as $end ) {
				add_filter( $begin . $end, array( self::class, 'of_read' ) );
			}
		}
		foreach ( self::PLACES as $end ) {
			add_filter( "woocommerce_customer_get_billing_$end", array( self::class, 'of_place' ) );
			add_filter( "woocommerce_customer_get_shipping_$end", array( self::class, 'of_place' ) );
		}
		add_filter( 'nonce_user_logged_out', array( self::class, 'of_nonce' ), PHP_INT_MAX, 2 );
		Viewed::register();
		add_action( 'template_redirect', array( self::class, 'begin' ), PHP_INT_MAX );
		// Before the page is complete, and its buffer may not be used any more.
		add_action( 'shutdown', array( self::class, 'look_for_fragments' ), -1 );
	}

	public static function begin(): void {
		self::$is_printing = true;
	}

	/** Something of the visitor is read. */
	public static function of_read( $value ) {
		if ( null !== self::$found ) {
			self::note_fragment();
			return $value;
		}
		$reader = self::$is_own ? '' : self::reader( self::calls( self::CALLS_MAX ) );
		// Before the page is printed WooCommerce looks after its cookies.
		if ( '' === $reader || self::$is_printing && ! preg_match( self::FILLED_IN, $reader ) ) {
			self::$readers[ self::way( self::calls() ) ] = true;
		}
		return $value;
	}

	public static function of_place( $value ) {
		if ( ! self::$is_own && null === self::$found && '' === self::reader( self::calls( self::CALLS_MAX ) ) ) {
			self::$readers[ self::way( self::calls() ) ] = true;
		}
		return $value;
	}

	/** Notes the way from the function that a fragment's callback calls; a callback that reads the cart itself prints for the script alone. */
	private static function note_fragment(): void {
		$calls = self::calls();
		$made  = array_search( 'look_for_fragments', array_column( $calls, 'function' ), true );
		// The callback, WP_Hook::apply_filters() and apply_filters().
		$calls = array_slice( $calls, 0, $made - 3 );
		// A page calls it from elsewhere.
		unset( $calls[ count( $calls ) - 1 ]['file'] );
		if ( ! preg_match( self::BETWEEN, self::reader( $calls ) ) ) {
			self::$found[ self::way( $calls ) ] = true;
		}
	}

	/** @return array[] The calls that led here, the innermost first. */
	private static function calls( int $most = 0 ): array {
		return debug_backtrace( DEBUG_BACKTRACE_IGNORE_ARGS, $most ); // phpcs:ignore WordPress.PHP.DevelopmentFunctions -- who reads decides.
	}

	/** The file of WooCommerce in which the cart is read; '' for another's. */
	private static function reader( array $calls ): string {
		$shop = WC()->plugin_path() . '/';
		$last = '';
		foreach ( $calls as $call ) {
			$file = $call['file'] ?? __FILE__;
			if ( 0 === strpos( $file, ABSPATH . WPINC ) || 0 === strpos( $file, __DIR__ ) ) {
				continue;
			}
			if ( dirname( $file ) . '/' === ABSPATH ) {
				// WordPress itself called WooCommerce.
				return $last;
			}
			$last = 0 === strpos( $file, $shop ) ? substr( $file, strlen( $shop ) ) : '';
			if ( ! preg_match( self::BETWEEN, $last ) ) {
				return $last;
			}
		}
		return count( $calls ) < self::CALLS_MAX ? $last : '';
	}

	/** Calls as `function@file` and a space each, the innermost first: one begins as another if it went the same way at last. */
	private static function way( array $calls ): string {
		$steps = array();
		foreach ( $calls as $call ) {
			if ( self::class !== ( $call['class'] ?? '' ) ) {
				$steps[] = ( $call['class'] ?? '' ) . ':' . $call['function'] . '@' . ( $call['file'] ?? '' );
			}
		}
		return implode( ' ', $steps );
	}

	/** WooCommerce's own are good for one session alone. */
	public static function of_nonce( $user, $action = '' ) {
		if ( self::$is_printing && null === self::$found && 0 === strpos( (string) $action, 'woocommerce' ) ) {
			self::$is_own = true;
		}
		return $user;
	}

	/** Learns by which ways the cart's fragments read it, where the page read it by others than are known. */
	public static function look_for_fragments(): void {
		self::$is_printing = false;

		$theme = md5( get_stylesheet() . WC()->version . implode( (array) get_option( 'active_plugins' ) ) );
		$known = (array) get_option( self::OPTION, array() );
		if ( ! self::others( $known ) || $theme === ( $known['of'] ?? '' ) || self::$is_own ) {
			return;
		}
		self::$found = array();
		ob_start();
		try {
			apply_filters( 'woocommerce_add_to_cart_fragments', array() ); // phpcs:ignore WordPress.NamingConventions.PrefixAllGlobals -- WooCommerce's.
		} finally {
			ob_end_clean();
			update_option( self::OPTION, array( 'of' => $theme, 'ways' => array_keys( self::$found ) ), true );
			self::$found = null;
		}
	}

	/** @return string[] The ways to what no fragment replaces. */
	private static function others( array $known ): array {
		$is_other = function ( $way ) use ( $known ) {
			foreach ( $known['ways'] ?? array() as $replaced ) {
				if ( 0 === strpos( $way, $replaced ) ) {
					return false;
				}
			}
			return true;
		};
		return array_filter( array_keys( self::$readers ), $is_other );
	}

	/** Whether the page is also for shoppers; asked when it is whole. */
	public static function is_page_shared(): bool {
		$is_shared = class_exists( 'WooCommerce', false ) && ! self::$is_own && ! self::others( (array) get_option( self::OPTION, array() ) )
			&& ( ! self::$readers || wp_script_is( 'wc-cart-fragments', 'done' ) );
		/**
		 * Filters whether the page is the same for visitors with a cart.
		 *
		 * @param bool $is_shared
		 */
		return (bool) apply_filters( 'yorozu_is_page_shared', $is_shared );
	}

	/** Gives who has more than a cart the cookie, and takes it back. */
	public static function mark(): void {
		$has_cookie = isset( $_COOKIE[ self::COOKIE ] );
		if ( headers_sent() || ! function_exists( 'WC' ) || ! isset( WC()->session ) || ( ! $has_cookie && ! WC()->session->has_session() ) || is_user_logged_in() ) {
			return;
		}
		$is_own = self::has_more_than_cart();
		if ( $is_own !== $has_cookie ) {
			setcookie( self::COOKIE, $is_own ? '1' : '', $is_own ? 0 : 1, COOKIEPATH ?: '/', (string) COOKIE_DOMAIN, is_ssl(), true );
		}
	}

	private static function has_more_than_cart(): bool {
		$session = WC()->session;
		if ( ! $session instanceof \WC_Session ) {
			return true;
		}
		$kept = \Closure::bind( fn() => array_keys( array_filter( (array) $this->_data ) ), $session, \WC_Session::class )();
		if ( preg_grep( self::IN_SESSION, $kept, PREG_GREP_INVERT ) || $session->get( 'wc_notices' ) ) {
			return true;
		}
		return WC()->customer && wc_tax_enabled() && ( WC()->customer->get_is_vat_exempt() || self::has_other_taxes() );
	}

	/** Whether prices are others than a stranger's, by the address that the customer has given. */
	private static function has_other_taxes(): bool {
		if ( 'base' === get_option( 'woocommerce_tax_based_on' ) ) {
			return false;
		}
		$default = wc_get_customer_default_location();
		$places  = array( WC()->customer->get_taxable_address(), array( $default['country'], $default['state'], '', '' ) );
		foreach ( array( '', ...\WC_Tax::get_tax_class_slugs() ) as $class ) {
			$rates = array();
			foreach ( $places as list( $country, $state, $postcode, $city ) ) {
				$rates[] = \WC_Tax::find_rates( array( 'country' => $country, 'state' => $state, 'postcode' => $postcode, 'city' => $city, 'tax_class' => $class ) );
			}
			if ( $rates[0] != $rates[1] ) { // phpcs:ignore Universal.Operators.StrictComparisons -- in whatever order.
				return true;
			}
		}
		return false;
	}
}
