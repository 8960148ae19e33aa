<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** Turns what changes of the site's frame - menus, widgets, options, plugins - into the tags of the pages it is part of. */
final class Site_Changes {
	/** Options that any page may show. */
	const OPTIONS = array(
		'active_plugins', 'avatar_default', 'avatar_rating', 'blog_charset', 'blog_public', 'blogdescription', 'blogname',
		'category_base', 'date_format', 'gmt_offset', 'home', 'html_type', 'large_size_h', 'large_size_w',
		'link_manager_enabled', 'medium_large_size_h', 'medium_large_size_w', 'medium_size_h', 'medium_size_w',
		'page_for_posts', 'page_on_front', 'permalink_structure', 'posts_per_page', 'show_avatars', 'show_on_front',
		'sidebars_widgets', 'site_icon', 'site_logo', 'siteurl', 'stylesheet', 'tag_base', 'template', 'thumbnail_size_h',
		'thumbnail_size_w', 'time_format', 'timezone_string', 'upload_path', 'upload_url_path', 'use_smilies',
		'users_can_register', 'wp_page_for_privacy_policy', 'WPLANG',
	);
	/** Options of WooCommerce by which prices, products or what any page of the shop shows are others. */
	const OPTIONS_OF_SHOP = array(
		'calc_taxes', 'catalog_columns', 'catalog_rows', 'category_archive_display', 'coming_soon', 'currency', 'currency_pos',
		'default_catalog_orderby', 'default_country', 'default_customer_address', 'demo_store', 'demo_store_notice', 'dimension_unit',
		'enable_review_rating', 'enable_reviews', 'hide_out_of_stock_items', 'manage_stock', 'permalinks', 'placeholder_image',
		'price_decimal_sep', 'price_display_suffix', 'price_num_decimals', 'price_thousand_sep', 'prices_include_tax', 'shop_page_display',
		'shop_page_id', 'stock_format', 'store_pages_only', 'tax_based_on', 'tax_display_cart', 'tax_display_shop',
		'tax_round_at_subtotal', 'weight_unit',
	);
	/** Screens of settings most of which no page shows; those that pages show are among the options above. */
	const SCREENS_OF_WORDPRESS = array( 'general', 'writing', 'reading', 'discussion', 'media', 'privacy' );
	/** Hooks after which any page may be another: of WordPress; of WooCommerce; of plugins that delete styles and scripts that pages link to. */
	const HOOKS_OF_ALL = array(
		'switch_theme', 'customize_save_after', 'automatic_updates_complete', 'add_link', 'edit_link', 'delete_link',
		'permalink_structure_changed',
		'woocommerce_tax_rate_added', 'woocommerce_tax_rate_updated', 'woocommerce_tax_rate_deleted',
		'elementor/core/files/clear_cache', 'litespeed_purged_all', 'litespeed_purged_all_cssjs', 'autoptimize_action_cachepurged',
	);
	/** Hooks after which another answer is given for all of a network's site: that it is suspended, or that it is back. */
	const HOOKS_OF_SITE = array( 'archive_blog', 'unarchive_blog', 'make_spam_blog', 'make_ham_blog', 'make_delete_blog', 'make_undelete_blog' );
	/** Options that some pages show, with the tag of those. */
	const OPTIONS_OF_SOME = array(
		'close_comments_days_old'      => 'discussion',
		'close_comments_for_old_posts' => 'discussion',
		'comment_order'                => 'discussion',
		'comment_registration'         => 'discussion',
		'comments_per_page'            => 'discussion',
		'default_comments_page'        => 'discussion',
		'page_comments'                => 'discussion',
		'posts_per_rss'                => 'feed',
		'require_name_email'           => 'discussion',
		'rss_use_excerpt'              => 'feed',
		'show_comments_cookies_opt_in' => 'discussion',
		'start_of_week'                => 'calendar',
		'thread_comments'              => 'discussion',
		'thread_comments_depth'        => 'discussion',
	);

	public static function register(): void {
		foreach ( array( 'wp_update_nav_menu', 'wp_update_nav_menu_item', 'wp_delete_nav_menu' ) as $hook ) {
			add_action( $hook, array( self::class, 'menu_changed' ) );
		}
		foreach ( array( 'save_post_nav_menu_item', 'before_delete_post', 'wp_trash_post' ) as $hook ) {
			add_action( $hook, array( self::class, 'item_changed' ) );
		}
		foreach ( array( 'updated_post_meta', 'deleted_post_meta' ) as $hook ) {
			add_action( $hook, array( self::class, 'item_meta_changed' ), 10, 3 );
		}
		foreach ( self::HOOKS_OF_ALL as $hook ) {
			add_action( $hook, array( self::class, 'site_changed' ) );
		}
		foreach ( self::HOOKS_OF_SITE as $hook ) {
			add_action( $hook, array( self::class, 'site_switched' ) );
		}
		// While it has its tables, which say what its address is.
		add_action( 'wp_uninitialize_site', array( self::class, 'site_going' ), PHP_INT_MIN );
		foreach ( array( 'add', 'update' ) as $change ) {
			add_action( "{$change}_site_option_active_sitewide_plugins", array( self::class, 'network_changed' ) );
		}
		// Without a hook of its own: what asks for it, by a script and without.
		foreach ( array( 'wp_ajax_edit-theme-plugin-file', 'load-theme-editor.php', 'load-plugin-editor.php' ) as $hook ) {
			add_action( $hook, array( self::class, 'file_edited' ), 0 );
		}
		add_action( 'upgrader_process_complete', array( self::class, 'upgraded' ), 10, 2 );
		add_action( 'updated_option', array( self::class, 'option_changed' ), 10, 3 );
		add_action( 'added_option', array( self::class, 'option_added' ), 10, 2 );
		add_action( 'deleted_option', array( self::class, 'option_changed' ) );
		self::register_woocommerce();
	}

	public static function menu_changed( $menu ): void {
		$id = $menu instanceof \WP_Term ? $menu->term_id : (int) $menu;
		Queue::tags( "menu $id", array( "menu-$id" ) );
	}

	/** However it came to it: the screen of menus, the REST API, a plugin. */
	public static function item_changed( $id ): void {
		$menus = 'nav_menu_item' === get_post_type( $id ) ? wp_get_object_terms( $id, 'nav_menu' ) : array();
		foreach ( is_array( $menus ) ? $menus : array() as $menu ) {
			self::menu_changed( $menu );
		}
	}

	public static function item_meta_changed( $meta_id, $id, $name ): void {
		if ( 0 === strpos( $name, '_menu_item_' ) ) {
			self::item_changed( $id );
		}
	}

	public static function site_changed(): void {
		Queue::all( current_action() );
	}

	/** @param int $site */
	public static function site_switched( $site ): void {
		Queue::all( current_action(), (int) $site );
	}

	/** @param \WP_Site $site */
	public static function site_going( $site ): void {
		Queue::all( current_action(), (int) $site->id );
		Queue::flush();
	}

	/** A file is about to be edited in wp-admin, by one who may. */
	public static function file_edited(): void {
		if ( 'POST' === ( $_SERVER['REQUEST_METHOD'] ?? '' ) && ( current_user_can( 'edit_themes' ) || current_user_can( 'edit_plugins' ) ) ) { // phpcs:ignore WordPress.Security.ValidatedSanitizedInput -- it is compared.
			foreach ( Sites::all() as $site ) {
				Queue::all( 'a file edited', $site );
			}
		}
	}

	public static function network_changed(): void {
		foreach ( Sites::all() as $site ) {
			Queue::all( current_action(), $site );
		}
	}

	/** What is not active is on no page. */
	public static function upgraded( $upgrader, $what = array() ): void {
		$names = array();
		foreach ( array( 'plugin', 'plugins', 'theme', 'themes' ) as $kind ) {
			array_push( $names, ...array_values( (array) ( $what[ $kind ] ?? array() ) ) );
		}
		$is_of_parts = in_array( $what['type'] ?? '', array( 'plugin', 'theme' ), true );
		$is_new      = 'install' === ( $what['action'] ?? '' ) && ! $names;
		foreach ( Sites::all() as $site ) {
			if ( ! $is_of_parts || ! $is_new && ( ! $names || array_intersect( $names, Sites::on( $site, array( self::class, 'used' ) ) ) ) ) {
				Queue::all( current_action(), $site );
			}
		}
	}

	/** @return string[] Plugins and themes that are active on the current site. */
	public static function used(): array {
		$used = array_merge( (array) get_option( 'active_plugins' ), array( get_stylesheet(), get_template() ) );
		return is_multisite() ? array_merge( $used, array_keys( (array) get_site_option( 'active_sitewide_plugins' ) ) ) : $used;
	}

	public static function option_added( $name, $value ): void {
		self::option_changed( $name, null, $value );
	}

	public static function option_changed( $name, $old = null, $new = null ): void {
		if ( 'sticky_posts' === $name ) {
			$old = array_map( 'intval', (array) $old );
			$new = array_map( 'intval', (array) $new );
			$ids = array_merge( array_diff( $old, $new ), array_diff( $new, $old ) );
			Queue::tags( 'sticky posts', array_map( fn( $id ) => "sticky-$id", array_filter( $ids ) ) );
			return;
		}
		/**
		 * Filters whether pages show the option.
		 *
		 * @param bool   $is_shown
		 * @param string $name
		 */
		if ( apply_filters( 'yorozu_is_option_shown', self::is_shown( $name, $old, $new ), $name ) ) {
			Queue::all( "option $name" );
		} elseif ( isset( self::OPTIONS_OF_SOME[ $name ] ) ) {
			Queue::tags( "option $name", array( self::OPTIONS_OF_SOME[ $name ] ), true );
		}
	}

	private static function is_shown( string $name, $old, $new ): bool {
		if ( 'sidebars_widgets' === $name ) {
			return self::in_sidebars( $old ) !== self::in_sidebars( $new );
		}
		if ( 'active_plugins' === $name ) {
			// Some plugins put themselves first.
			return array_diff( (array) $old, (array) $new ) || array_diff( (array) $new, (array) $old );
		}
		if ( 0 === strpos( $name, 'widget_' ) ) {
			return self::is_widget_shown( substr( $name, 7 ), $old, $new );
		}
		if ( 0 === strpos( $name, 'theme_mods_' ) ) {
			return get_option( 'stylesheet' ) === substr( $name, 11 );
		}
		if ( 0 === strpos( $name, 'woocommerce_' ) ) {
			return in_array( substr( $name, 12 ), self::OPTIONS_OF_SHOP, true );
		}
		return in_array( $name, self::OPTIONS, true ) || self::is_of_settings_screen( $name );
	}

	/** Whether it is saved by a plugin's or theme's own screen of settings. */
	private static function is_of_settings_screen( string $name ): bool {
		// phpcs:ignore WordPress.Security.NonceVerification, WordPress.Security.ValidatedSanitizedInput -- it is compared; WordPress has verified it, or saves nothing.
		$group = 'options.php' === ( $GLOBALS['pagenow'] ?? '' ) ? (string) ( $_POST['option_page'] ?? '' ) : '';
		$own   = $GLOBALS['new_allowed_options'][ $group ] ?? array();
		return ! in_array( $group, self::SCREENS_OF_WORDPRESS, true ) && in_array( $name, $own, true );
	}

	/** @return array<string, string[]> Widgets by sidebar, without those that are put by. */
	private static function in_sidebars( $sidebars ): array {
		$is_used = fn( $name ) => 'wp_inactive_widgets' !== $name && 0 !== strpos( $name, 'orphaned_widgets' );
		return array_filter( array_filter( is_array( $sidebars ) ? $sidebars : array(), 'is_array' ), $is_used, ARRAY_FILTER_USE_KEY );
	}

	/** Whether a widget of the kind that changes is in a sidebar. */
	private static function is_widget_shown( string $kind, $old, $new ): bool {
		if ( ! is_array( $new ) || ! isset( $new['_multiwidget'] ) && ! isset( $old['_multiwidget'] ) ) {
			return true;
		}
		$old   = is_array( $old ) ? $old : array();
		$shown = array_merge( array(), ...array_values( self::in_sidebars( get_option( 'sidebars_widgets' ) ) ) );
		foreach ( array_keys( $old + $new ) as $number ) {
			if ( ( $old[ $number ] ?? null ) !== ( $new[ $number ] ?? null ) && in_array( "$kind-$number", $shown, true ) ) {
				return true;
			}
		}
		return false;
	}

	// --- WooCommerce, where it is --------------------------------------------------------------

	/** Properties of a product by which it is in lists, or has its place there. */
	const LISTED_BY = array(
		'catalog_visibility', 'date_on_sale_from', 'date_on_sale_to', 'featured', 'price', 'regular_price', 'sale_price', 'stock_status',
	);

	private static function register_woocommerce(): void {
		foreach ( array( 'woocommerce_product_set_stock', 'woocommerce_variation_set_stock', 'woocommerce_product_set_stock_status', 'woocommerce_variation_set_stock_status', 'woocommerce_update_product', 'woocommerce_update_product_variation', 'wc_product_start_scheduled_sale', 'wc_product_end_scheduled_sale' ) as $hook ) {
			add_action( $hook, array( self::class, 'product_changed' ) );
		}
		foreach ( array( 'product', 'product_variation' ) as $kind ) {
			add_action( "woocommerce_before_{$kind}_object_save", array( self::class, 'product_saving' ) );
		}
		foreach ( array( 'product', 'variation' ) as $kind ) {
			add_action( "woocommerce_{$kind}_set_stock_status", array( self::class, 'lists_changed' ) );
		}
		// Sorted by hand.
		add_action( 'woocommerce_after_product_ordering', array( self::class, 'lists_changed' ) );
		foreach ( array( 'wc_after_products_starting_sales', 'wc_after_products_ending_sales' ) as $hook ) {
			add_action( $hook, array( self::class, 'products_changed' ) );
		}
	}

	/** @param int|object $product A WC_Product, or its number. */
	public static function product_changed( $product ): void {
		$id     = is_object( $product ) ? (int) $product->get_id() : (int) $product;
		$parent = (int) wp_get_post_parent_id( $id );
		$tags   = array( "post-$id", "used-$id" );
		if ( $parent ) {
			array_push( $tags, "post-$parent", "used-$parent" );
		}
		Queue::tags( "product $id", $tags );
	}

	/** @param int[] $ids */
	public static function products_changed( $ids ): void {
		array_map( array( self::class, 'product_changed' ), (array) $ids );
		array_map( array( self::class, 'lists_changed' ), (array) $ids );
	}

	/** @param object $product A WC_Product, with what is about to be saved. */
	public static function product_saving( $product ): void {
		if ( $product->get_id() && array_intersect( self::LISTED_BY, array_keys( (array) $product->get_changes() ) ) ) {
			self::lists_changed( $product->get_id() );
		}
	}

	/**
	 * A product comes to lists that do not show it, leaves some, or changes its place there.
	 *
	 * @param int $id Of a product, or of one of its variations.
	 */
	public static function lists_changed( $id ): void {
		$post = get_post( wp_get_post_parent_id( (int) $id ) ?: (int) $id );
		if ( $post && Post_Changes::is_shown( $post ) ) {
			$terms = array_map( fn( $term ) => "term-$term", Post_Changes::terms_of( $post ) );
			Queue::tags( "product $post->ID's place in lists", array_merge( array( "list-$post->post_type" ), $terms ) );
		}
	}
}
