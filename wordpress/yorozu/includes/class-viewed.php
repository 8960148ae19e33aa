<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * WooCommerce's list of the products that a visitor has viewed, as a fragment: PHP would set a cookie with each product, so that none
 * could be stored, and print the list into the page. Here a script does both, and asks for the list alone.
 */
final class Viewed {
	const COOKIE = 'woocommerce_recently_viewed';
	/** What WooCommerce keeps at most. */
	const PRODUCTS_MAX = 15;
	const ACTION       = 'yorozu_viewed';
	/** Where the list goes in a template. */
	const MARK = '<!--viewed-->';

	/** @var bool Is there a list on the page? */
	private static $is_shown = false;

	public static function register(): void {
		if ( isset( $_GET['wc-ajax'] ) ) { // phpcs:ignore WordPress.Security.NonceVerification -- nothing is changed.
			add_action( 'wc_ajax_' . self::ACTION, array( self::class, 'fragment' ) );
			return;
		}
		add_filter( 'widget_display_callback', array( self::class, 'of_widget' ), PHP_INT_MAX, 3 );
		add_action( 'template_redirect', array( self::class, 'leave_to_script' ), 19 );
		add_action( 'wp_footer', array( self::class, 'script' ), PHP_INT_MAX );
	}

	public static function leave_to_script(): void {
		remove_action( 'template_redirect', 'wc_track_product_view', 20 );
	}

	/**
	 * A template in place of the widget; false: nothing else is shown.
	 *
	 * @param array|false $instance
	 * @param \WP_Widget  $widget
	 */
	public static function of_widget( $instance, $widget, $args = array() ) {
		if ( ! is_array( $instance ) || ! is_a( $widget, 'WC_Widget_Recently_Viewed' ) ) {
			return $instance;
		}
		self::$is_shown = true;
		$args          += array_fill_keys( array( 'before_widget', 'after_widget', 'before_title', 'after_title' ), '' );
		$url            = add_query_arg( array( 'wc-ajax' => self::ACTION, 'number' => absint( $instance['number'] ?? 0 ) ), home_url( '/' ) );
		$title          = apply_filters( 'widget_title', $instance['title'] ?? $widget->settings['title']['std'] ?? '', $instance, $widget->id_base ); // phpcs:ignore WordPress.NamingConventions.PrefixAllGlobals -- WordPress's.
		printf( '<template class="yorozu-viewed" data-url="%s">', esc_url( $url ) );
		echo wp_kses_post( $args['before_widget'] . ( '' === $title ? '' : $args['before_title'] . $title . $args['after_title'] ) ) . self::MARK . wp_kses_post( $args['after_widget'] ) . '</template>'; // phpcs:ignore WordPress.Security.EscapeOutput -- the mark is a constant.
		return false;
	}

	/** The list alone, for the visitor that the cookie is of. */
	public static function fragment(): void {
		$number = absint( $_GET['number'] ?? 0 ) ?: 10; // phpcs:ignore WordPress.Security.NonceVerification -- nothing is changed.
		the_widget( 'WC_Widget_Recently_Viewed', array( 'title' => '', 'number' => min( self::PRODUCTS_MAX, $number ) ), array_fill_keys( array( 'before_widget', 'after_widget', 'before_title', 'after_title' ), '' ) );
		exit;
	}

	/** Asks for the lists, then notes the product of this page, as WooCommerce does it. */
	public static function script(): void {
		$is_product = is_singular( 'product' ) && is_active_widget( false, false, 'woocommerce_recently_viewed_products', true );
		if ( ! $is_product && ! self::$is_shown ) {
			return;
		}
		$script = sprintf(
			'( function( name, id, most ) {
	const cookie = document.cookie.split( "; " ).find( one => one.startsWith( name + "=" ) );
	for ( const list of cookie ? document.querySelectorAll( "template.yorozu-viewed" ) : [] ) {
		fetch( list.dataset.url ).then( answer => answer.ok ? answer.text() : "" ).then( text => {
			if ( text.trim() ) list.outerHTML = list.innerHTML.replace( "%s", () => text );
		} );
	}
	const seen = cookie ? decodeURIComponent( cookie.slice( name.length + 1 ) ).split( "|" ).filter( one => Number( one ) && Number( one ) !== id ) : [];
	if ( id ) document.cookie = name + "=" + encodeURIComponent( [ ...seen, id ].slice( -most ).join( "|" ) ) + "; path=%s";
} )( "%s", %d, %d );',
			self::MARK,
			esc_js( COOKIEPATH ?: '/' ),
			self::COOKIE,
			$is_product ? get_queried_object_id() : 0,
			self::PRODUCTS_MAX
		);
		wp_print_inline_script_tag( $script );
	}
}
