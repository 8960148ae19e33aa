<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * Keeps pages from being stored that are for one visitor: one that is logged in, has given a post's password, has a cart.
 * The server's configuration lets such visitors past the cache by their cookies; this holds also where it does not.
 */
final class Personal {
	/** How the names of cookies begin by which pages differ; packaging/cookies.py writes them. */
	const COOKIES = array(
		'wordpress_logged_in_',
		'wordpress_sec_',
		'wp-postpass_',
		'yorozu_own',
		'comment_author_',
		'woocommerce_items_in_cart',
		'woocommerce_cart_hash',
		'woocommerce_recently_viewed',
		'wp_woocommerce_session_',
		'edd_items_in_cart',
		'edd_session_',
		'edd_wp_session',
		'edd_saved_cart',
		'edd_cart_token',
	);
	/** Routes of WooCommerce's REST API that are a visitor's own. */
	const SHOP_ROUTES = '~^/wc/store(/v\d+)?/(batch|cart|checkout|order)~';

	/** Routes of the REST API whose answers are the same for everyone; of others, those that say so themselves. */
	const SHARED_ROUTES = '~^/($|(wp/v2|oembed/1\.0|wc/store)(/|$))~';

	/** Functions of shops that say that the page is about a visitor's cart, order or account, whatever its address. */
	const SHOP_PAGES = array(
		'is_cart', 'is_checkout', 'is_account_page',
		'edd_is_checkout', 'edd_is_success_page', 'edd_is_failed_transaction_page', 'edd_is_purchase_history_page',
	);
	/** Shortcodes that show such things on any page. */
	const SHOP_SHORTCODES = array(
		'woocommerce_cart', 'woocommerce_checkout', 'woocommerce_my_account', 'woocommerce_order_tracking',
		'download_checkout', 'edd_receipt', 'purchase_history', 'download_history', 'edd_profile_editor',
	);
	/** Blocks that do. */
	const SHOP_BLOCKS = '~^(woocommerce/(cart|checkout|order-confirmation-.*)|edd/(checkout|receipt|confirmation|order-history|user-downloads))$~';

	/** @var string[] Names of the cookies that came; others may be added or taken away for the rest of the request. */
	private static $came = array();

	public static function register(): void {
		self::$came = array_map( 'strval', array_keys( $_COOKIE ) );
		if ( isset( $_GET['wc-ajax'] ) || isset( $_SERVER['HTTP_CART_TOKEN'] ) ) { // phpcs:ignore WordPress.Security.NonceVerification -- nothing is changed.
			Page::veto();
		}
		add_filter( 'post_password_required', array( self::class, 'of_password' ), PHP_INT_MAX, 2 );
		add_action( 'the_post', array( self::class, 'of_post' ) );
		add_filter( 'the_password_form', array( self::class, 'of_form' ), PHP_INT_MAX );
		add_action( 'wp', array( self::class, 'of_request' ) );
		foreach ( array( 'woocommerce_set_cart_cookies', 'woocommerce_add_to_cart', 'woocommerce_cart_loaded_from_session' ) as $hook ) {
			add_action( $hook, array( self::class, 'of_cart' ) );
		}
		add_filter( 'do_shortcode_tag', array( self::class, 'of_shortcode' ), PHP_INT_MAX, 2 );
		add_filter( 'render_block', array( self::class, 'of_block' ), PHP_INT_MAX, 2 );
		add_filter( 'rest_pre_dispatch', array( self::class, 'of_route' ), PHP_INT_MAX, 3 );
		add_filter( 'rest_post_dispatch', array( self::class, 'of_answer' ), PHP_INT_MAX, 3 );
		// Polylang: the language is chosen by the address, and what a browser or a cookie says chooses where the front page redirects to,
		// which Polylang then keeps from being stored.
		add_filter( 'pll_is_cache_active', '__return_true' );
	}

	/** Whether the cookie of this name distinguishes its visitor from others. */
	public static function is_personal( string $cookie ): bool {
		$names = defined( 'LOGGED_IN_COOKIE' ) ? array( LOGGED_IN_COOKIE ) : array();
		/**
		 * Filters how the names of the cookies begin with which no page is stored.
		 *
		 * @param string[] $names
		 */
		foreach ( apply_filters( 'yorozu_personal_cookies', array_merge( self::COOKIES, $names ) ) as $name ) {
			if ( 0 === strpos( $cookie, $name ) ) {
				return true;
			}
		}
		return false;
	}

	/** Whether a cookie came that distinguishes this visitor from others. */
	private static function is_known_visitor(): bool {
		$came = array_unique( array_merge( self::$came, array_map( 'strval', array_keys( $_COOKIE ) ) ) );
		return array_intersect( $came, Cookies::names() ) || array_filter( $came, array( self::class, 'is_personal' ) );
	}

	/** Whether the page is for this visitor alone; asked when it is whole. */
	public static function is_page(): bool {
		if ( self::is_known_visitor() ) {
			return true;
		}
		// Applications have other ways to say who they are.
		if ( isset( $GLOBALS['current_user']->ID ) && $GLOBALS['current_user']->ID > 0 ) {
			return true;
		}
		foreach ( array( 'WOOCOMMERCE_CART', 'WOOCOMMERCE_CHECKOUT' ) as $constant ) {
			if ( defined( $constant ) && constant( $constant ) ) {
				return true;
			}
		}
		return self::has_prices_by_address();
	}

	/** Whether WooCommerce takes a visitor's country, and with it taxes and prices, from the address that the visitor comes from. */
	public static function has_prices_by_address(): bool {
		return class_exists( 'WooCommerce', false ) && 'geolocation' === get_option( 'woocommerce_default_customer_address' );
	}

	/** What a password opens is for those who know it. */
	private static function of_protected( $post ): void {
		if ( $post instanceof \WP_Post && '' !== (string) $post->post_password ) {
			Page::veto();
		}
	}

	/** Code that prints a post's text asks this first: lists, feeds, blocks, the REST API, embeds. */
	public static function of_password( $is_required, $post = null ) {
		self::of_protected( $post );
		return $is_required;
	}

	public static function of_post( $post ): void {
		self::of_protected( $post );
	}

	public static function of_form( $form ) {
		Page::veto();
		return $form;
	}

	public static function of_request(): void {
		if ( is_singular() ) {
			self::of_protected( get_queried_object() );
		}
		foreach ( self::SHOP_PAGES as $is_shop_page ) {
			if ( function_exists( $is_shop_page ) && $is_shop_page() ) {
				Page::veto();
			}
		}
	}

	public static function of_shortcode( $text, $name ) {
		if ( in_array( $name, self::SHOP_SHORTCODES, true ) ) {
			Page::veto();
		}
		return $text;
	}

	/** @param array $block */
	public static function of_block( $text, $block ) {
		$name = (string) ( $block['blockName'] ?? '' );
		if ( 0 !== strncmp( $name, 'core/', 5 ) && preg_match( self::SHOP_BLOCKS, $name ) ) {
			Page::veto();
		}
		return $text;
	}

	/** @param mixed $is_set False: an empty cart's cookies are taken away. */
	public static function of_cart( $is_set = true ): void {
		$cart = is_object( $is_set ) && method_exists( $is_set, 'is_empty' ) ? $is_set : null;
		if ( ! $cart || ! $cart->is_empty() ) {
			Page::veto();
		}
	}

	/**
	 * @param mixed            $answer  Passed on.
	 * @param \WP_REST_Server  $server
	 * @param \WP_REST_Request $request
	 */
	public static function of_route( $answer, $server, $request ) {
		if ( preg_match( self::SHOP_ROUTES, $request->get_route() ) ) {
			Page::veto();
		}
		return $answer;
	}

	/**
	 * @param \WP_HTTP_Response $answer  Passed on.
	 * @param \WP_REST_Server   $server
	 * @param \WP_REST_Request  $request
	 */
	public static function of_answer( $answer, $server, $request ) {
		$control = array_change_key_case( $answer->get_headers() )['cache-control'] ?? '';
		/**
		 * Filters whether a route's answers are the same for everyone.
		 *
		 * @param bool   $is_shared
		 * @param string $route
		 */
		$is_shared = apply_filters( 'yorozu_is_route_shared', 1 === preg_match( self::SHARED_ROUTES, $request->get_route() ), $request->get_route() );
		if ( ! $is_shared && ! preg_match( '~\bpublic\b|max-?age=[1-9]~i', (string) $control ) ) {
			Page::veto();
		}
		return $answer;
	}
}
