<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * Turns what changes into the tags of the pages that change with it.
 *
 * A post is looked at before and after: an edit of its text touches the pages that show it; another title or
 * address also those that name it; coming and going also the lists it is in. Who goes is gone at once (hard), what
 * is edited may answer once more while it is made anew (soft).
 */
final class Changes {
	/** Post types that are part of every page. */
	const OF_ALL_PAGES = array( 'wp_template', 'wp_template_part', 'wp_global_styles', 'custom_css' );
	/** Post types without pages of their own, shown in others' pages. */
	const OF_SOME_PAGES = array( 'wp_block', 'wp_navigation' );
	/** Meta that pages show. */
	const META = array( '_thumbnail_id', '_wp_page_template', '_wp_attachment_image_alt', '_wp_attachment_metadata' );
	/** Options that any page may show. */
	const OPTIONS = array(
		'active_plugins', 'avatar_default', 'avatar_rating', 'blog_public', 'blogdescription', 'blogname',
		'category_base', 'close_comments_days_old', 'close_comments_for_old_posts', 'comment_order', 'comment_registration',
		'comments_per_page', 'date_format', 'default_comments_page', 'gmt_offset', 'home', 'link_manager_enabled',
		'page_comments', 'page_for_posts', 'page_on_front', 'permalink_structure', 'posts_per_page', 'posts_per_rss',
		'require_name_email', 'rss_use_excerpt', 'show_avatars', 'show_on_front', 'sidebars_widgets', 'site_icon',
		'siteurl', 'start_of_week', 'stylesheet', 'tag_base', 'template', 'thread_comments', 'thread_comments_depth',
		'time_format', 'timezone_string', 'use_smilies', 'WPLANG',
	);

	/** @var array<int, array> States of posts before they change. */
	private static $before = array();

	public static function register(): void {
		self::register_posts();
		self::register_comments();
		self::register_terms();
		self::register_site();
		self::register_woocommerce();
	}

	// --- posts ---------------------------------------------------------------------------------

	private static function register_posts(): void {
		foreach ( array( 'pre_post_update', 'wp_trash_post', 'untrash_post', 'before_delete_post', 'delete_attachment', 'edit_attachment' ) as $hook ) {
			add_action( $hook, array( self::class, 'remember' ), PHP_INT_MIN );
		}
		add_action( 'transition_post_status', array( self::class, 'status_changed' ), 10, 3 );
		add_action( 'wp_after_insert_post', array( self::class, 'post_saved' ), PHP_INT_MAX );
		add_action( 'deleted_post', array( self::class, 'post_deleted' ), PHP_INT_MAX, 2 );
		add_action( 'attachment_updated', array( self::class, 'post_saved' ), PHP_INT_MAX );
		add_action( 'set_object_terms', array( self::class, 'terms_set' ), 10, 6 );
		foreach ( array( 'added', 'updated', 'deleted' ) as $change ) {
			add_action( "{$change}_post_meta", array( self::class, 'meta_changed' ), 10, 3 );
		}
		add_action( 'post_stuck', array( self::class, 'stickiness_changed' ) );
		add_action( 'post_unstuck', array( self::class, 'stickiness_changed' ) );
	}

	/** Notes what a post is before it changes; the first word counts. */
	public static function remember( $id ): void {
		$post = get_post( $id );
		if ( $post && ! isset( self::$before[ $post->ID ] ) ) {
			self::$before[ $post->ID ] = self::state( $post );
		}
	}

	/** For those who change a status without saying so before: a scheduled post that is due. */
	public static function status_changed( $new, $old, $post ): void {
		if ( $new !== $old && ! isset( self::$before[ $post->ID ] ) ) {
			$was              = clone $post;
			$was->post_status = $old;
			self::$before[ $post->ID ] = self::state( $was );
		}
	}

	public static function post_saved( $id ): void {
		$post = get_post( $id );
		if ( ! $post || wp_is_post_revision( $post ) || wp_is_post_autosave( $post ) ) {
			return;
		}
		$is = self::state( $post );
		self::changed( self::$before[ $post->ID ] ?? null, $is );
		self::$before[ $post->ID ] = $is;
	}

	public static function post_deleted( $id, $post = null ): void {
		if ( isset( self::$before[ $id ] ) ) {
			$gone = array( 'is_shown' => false ) + self::$before[ $id ];
			self::changed( self::$before[ $id ], $gone );
			unset( self::$before[ $id ] );
		}
	}

	/** All of a post that pages other than its own show or are made by. */
	private static function state( \WP_Post $post ): array {
		$state = array(
			'id'       => (int) $post->ID,
			'type'     => $post->post_type,
			'is_shown' => self::is_shown( $post ),
			'title'    => $post->post_title,
			// What others are put into order by.
			'order'    => array( $post->post_title, $post->post_parent, $post->menu_order ),
			'comments' => (int) $post->comment_count,
			'password' => $post->post_password,
			'author'   => (int) $post->post_author,
			'date'     => $post->post_date,
			'terms'    => array(),
			'url'      => '',
		);
		if ( $state['is_shown'] ) {
			$state['url']   = (string) get_permalink( $post );
			$state['terms'] = self::terms_of( $post );
		}
		return $state;
	}

	private static function is_shown( \WP_Post $post ): bool {
		if ( in_array( $post->post_type, array_merge( self::OF_ALL_PAGES, self::OF_SOME_PAGES ), true ) ) {
			return 'publish' === $post->post_status;
		}
		if ( in_array( $post->post_type, array( 'nav_menu_item', 'customize_changeset', 'revision' ), true ) ) {
			// Menus and the customizer have hooks of their own.
			return false;
		}
		$status = 'attachment' === $post->post_type ? get_post_status( $post ) : $post->post_status;
		return is_post_type_viewable( $post->post_type ) && is_post_status_viewable( $status );
	}

	/** @return int[] Terms, and those above them: their lists have the post, too. */
	private static function terms_of( \WP_Post $post ): array {
		$found = array();
		foreach ( get_object_taxonomies( $post->post_type ) as $taxonomy ) {
			$terms = get_the_terms( $post->ID, $taxonomy );
			foreach ( is_array( $terms ) ? $terms : array() as $term ) {
				$found[ $term->term_id ] = (int) $term->term_id;
				foreach ( get_ancestors( $term->term_id, $taxonomy, 'taxonomy' ) as $above ) {
					$found[ $above ] = (int) $above;
				}
			}
		}
		return array_values( $found );
	}

	private static function changed( ?array $was, array $is ): void {
		$was_shown = $was && $was['is_shown'];
		if ( ! $was_shown && ! $is['is_shown'] ) {
			return;
		}
		$name = "{$is['type']} {$is['id']}";
		if ( in_array( $is['type'], self::OF_ALL_PAGES, true ) ) {
			Queue::all( $name );
			return;
		}
		if ( $was_shown && $is['is_shown'] ) {
			self::edited( $name, $was, $is );
			return;
		}
		// It comes or goes.
		$reason = $name . ( $is['is_shown'] ? ' published' : ' unpublished' );
		$state  = $is['is_shown'] ? $is : $was;
		Queue::tags( $reason, self::with_post( $state ), ! $is['is_shown'] );
		Queue::tags( $reason, self::lists( $state ), ! $is['is_shown'] );
		// Until now its address, and those below it, had no page.
		Queue::tags( $reason, array( '404' ), true );
	}

	private static function edited( string $name, array $was, array $is ): void {
		$reason  = "$name edited";
		$is_hard = $was['url'] !== $is['url'] || $was['password'] !== $is['password'];
		Queue::tags( $reason, array( "post-{$is['id']}" ), $is_hard );
		if ( version_compare( $GLOBALS['wp_version'], '6.5', '>=' ) ) {
			// Sitemaps say when each page was last changed.
			Queue::tags( $reason, array( "sitemap-{$is['type']}" ) );
		}
		if ( $was['title'] !== $is['title'] || $is_hard ) {
			Queue::tags( $reason, array( "link-{$is['id']}" ), $is_hard );
		}
		$moved = $was['order'] !== $is['order'] ? array( "list-{$is['type']}" ) : array();
		foreach ( array( array( $was, $is ), array( $is, $was ) ) as list( $one, $other ) ) {
			foreach ( array_diff( $one['terms'], $other['terms'] ) as $term ) {
				$moved[] = "term-$term";
			}
			if ( $was['author'] !== $is['author'] ) {
				$moved[] = "author-{$one['author']}";
			}
			if ( $was['date'] !== $is['date'] ) {
				array_push( $moved, ...self::lists( $one ) );
			}
		}
		if ( $moved ) {
			Queue::tags( $reason, $moved, false );
		}
		if ( $was['url'] !== $is['url'] ) {
			Queue::tags( $reason, array( '404' ), true );
		}
	}

	/** @return string[] Pages that show or name a post. */
	private static function with_post( array $state ): array {
		$tags = array( "post-{$state['id']}", "link-{$state['id']}", "comments-{$state['id']}" );
		return $state['comments'] ? array_merge( $tags, array( 'comments' ) ) : $tags;
	}

	/** @return string[] The lists a post is in, and its neighbours. */
	private static function lists( array $state ): array {
		$time = strtotime( $state['date'] . ' UTC' );
		$tags = array(
			"list-{$state['type']}",
			"archives-{$state['type']}",
			"author-{$state['author']}",
			gmdate( '\d\a\t\e-Y', $time ),
			gmdate( '\d\a\t\e-Y-m', $time ),
			gmdate( '\d\a\t\e-Y-m-d', $time ),
			'sitemap',
			"sitemap-{$state['type']}",
		);
		foreach ( $state['terms'] as $term ) {
			$tags[] = "term-$term";
		}
		foreach ( self::neighbours( $state ) as $id ) {
			$tags[] = "adjacent-$id";
		}
		return $tags;
	}

	/** @return int[] The posts before and after; several where they have the same date. */
	private static function neighbours( array $state ): array {
		global $wpdb;
		$found = array();
		foreach ( array( '<' => 'MAX', '>' => 'MIN' ) as $side => $nearest ) {
			$of_type = "post_type = %s AND post_status = 'publish'";
			// phpcs:disable WordPress.DB.PreparedSQL -- what is put in stands above.
			$sql = "SELECT ID FROM $wpdb->posts WHERE $of_type AND post_date = ("
				. "SELECT $nearest(post_date) FROM $wpdb->posts WHERE $of_type AND post_date $side %s) LIMIT 100";
			array_push( $found, ...$wpdb->get_col( $wpdb->prepare( $sql, $state['type'], $state['type'], $state['date'] ) ) );
			// phpcs:enable
		}
		return array_map( 'intval', $found );
	}

	public static function terms_set( $id, $terms, $tt_ids, $taxonomy, $append, $old_tt_ids ): void {
		$post    = get_post( $id );
		$changed = array_merge( array_diff( $tt_ids, $old_tt_ids ), array_diff( $old_tt_ids, $tt_ids ) );
		if ( ! $changed || ! $post || ! self::is_shown( $post ) ) {
			return;
		}
		$tags = array( "post-$post->ID" );
		foreach ( $changed as $tt_id ) {
			$term = get_term_by( 'term_taxonomy_id', $tt_id, $taxonomy );
			if ( $term ) {
				$above = get_ancestors( $term->term_id, $taxonomy, 'taxonomy' );
				foreach ( array_merge( array( $term->term_id ), $above ) as $one ) {
					$tags[] = "term-$one";
				}
			}
		}
		Queue::tags( "$post->post_type $post->ID's $taxonomy", $tags );
	}

	public static function meta_changed( $meta_id, $post_id, $name ): void {
		/**
		 * Filters the post meta that pages show.
		 *
		 * @param string[] $names
		 */
		$names = apply_filters( 'yorozu_post_meta', self::META );
		$post  = in_array( $name, $names, true ) ? get_post( $post_id ) : null;
		if ( $post && self::is_shown( $post ) ) {
			Queue::tags( "$post->post_type $post_id's $name", array( "post-$post_id" ) );
		}
	}

	public static function stickiness_changed( $id ): void {
		Queue::tags( "post $id's place", array( 'list-post', "post-$id" ) );
	}

	// --- comments ------------------------------------------------------------------------------

	private static function register_comments(): void {
		add_action( 'wp_insert_comment', array( self::class, 'comment_made' ), 10, 2 );
		add_action( 'edit_comment', array( self::class, 'comment_edited' ) );
		add_action( 'transition_comment_status', array( self::class, 'comment_moved' ), 10, 3 );
		add_action( 'delete_comment', array( self::class, 'comment_deleted' ), 10, 2 );
		add_action( 'wp_update_comment_count', array( self::class, 'comments_counted' ), 10, 3 );
	}

	public static function comment_made( $id, $comment ): void {
		self::comment( $comment, 'made', false );
	}

	public static function comment_edited( $id ): void {
		self::comment( get_comment( $id ), 'edited', false );
	}

	public static function comment_moved( $new, $old, $comment ): void {
		if ( 'approved' === $new || 'approved' === $old ) {
			self::of_comment( $comment, $new, 'approved' === $old );
		}
	}

	public static function comment_deleted( $id, $comment ): void {
		self::comment( $comment, 'deleted', true );
	}

	public static function comments_counted( $post_id, $new, $old ): void {
		if ( (int) $new !== (int) $old ) {
			Queue::tags( "comments of $post_id", array( "comments-$post_id" ) );
		}
	}

	private static function comment( $comment, string $what, bool $is_hard ): void {
		if ( $comment && '1' === (string) $comment->comment_approved ) {
			self::of_comment( $comment, $what, $is_hard );
		}
	}

	private static function of_comment( $comment, string $what, bool $is_hard ): void {
		$tags = array( "comments-$comment->comment_post_ID", 'comments' );
		Queue::tags( "comment $comment->comment_ID $what", $tags, $is_hard );
	}

	// --- terms, users --------------------------------------------------------------------------

	private static function register_terms(): void {
		add_action( 'created_term', array( self::class, 'term_created' ), 10, 3 );
		add_action( 'edit_terms', array( self::class, 'remember_term' ), 10, 2 );
		add_action( 'edited_term', array( self::class, 'term_edited' ), 10, 3 );
		add_action( 'delete_term', array( self::class, 'term_deleted' ), 10, 3 );
		add_action( 'edit_term_taxonomy', array( self::class, 'remember_count' ) );
		add_action( 'edited_term_taxonomy', array( self::class, 'term_counted' ), 10, 2 );
		add_action( 'profile_update', array( self::class, 'user_edited' ), 10, 2 );
		add_action( 'deleted_user', array( self::class, 'user_deleted' ) );
	}

	/** @var array<int, string> Addresses of terms before they change. */
	private static $term_urls = array();

	public static function remember_term( $id, $taxonomy ): void {
		$url = get_term_link( (int) $id, $taxonomy );
		self::$term_urls[ $id ] = is_string( $url ) ? $url : '';
	}

	private static function is_public( string $taxonomy ): bool {
		return is_taxonomy_viewable( $taxonomy );
	}

	public static function term_created( $id, $tt_id, $taxonomy ): void {
		if ( self::is_public( $taxonomy ) ) {
			Queue::tags( "$taxonomy $id created", array( "terms-$taxonomy", 'sitemap' ) );
			Queue::tags( "$taxonomy $id created", array( '404' ), true );
		}
	}

	public static function term_edited( $id, $tt_id, $taxonomy ): void {
		if ( ! self::is_public( $taxonomy ) ) {
			return;
		}
		clean_term_cache( $id, $taxonomy );
		$url     = get_term_link( (int) $id, $taxonomy );
		$is_hard = isset( self::$term_urls[ $id ] ) && $url !== self::$term_urls[ $id ];
		$tags    = array( "term-$id", "termlink-$id", "terms-$taxonomy", 'sitemap' );
		Queue::tags( "$taxonomy $id edited", $is_hard ? array_merge( $tags, array( '404' ) ) : $tags, $is_hard );
	}

	public static function term_deleted( $id, $tt_id, $taxonomy ): void {
		if ( self::is_public( $taxonomy ) ) {
			Queue::tags( "$taxonomy $id deleted", array( "term-$id", "termlink-$id", "terms-$taxonomy", 'sitemap' ), true );
		}
	}

	/** @var array<int, int> Numbers of posts before they are counted again. */
	private static $counts = array();

	private static function count_of( $tt_id ): int {
		global $wpdb;
		return (int) $wpdb->get_var( $wpdb->prepare( "SELECT count FROM $wpdb->term_taxonomy WHERE term_taxonomy_id = %d", $tt_id ) );
	}

	public static function remember_count( $tt_id ): void {
		self::$counts[ $tt_id ] = self::count_of( $tt_id );
	}

	/** Lists of terms show how many posts each has, and often none that has none. */
	public static function term_counted( $tt_id, $taxonomy ): void {
		$name = $taxonomy instanceof \WP_Taxonomy ? $taxonomy->name : (string) $taxonomy;
		$is_changed = ( self::$counts[ $tt_id ] ?? null ) !== self::count_of( $tt_id );
		if ( $is_changed && self::is_public( $name ) ) {
			Queue::tags( "posts of $name counted", array( "terms-$name" ) );
		}
	}

	public static function user_edited( $id, $old ): void {
		$new = get_userdata( $id );
		foreach ( array( 'display_name', 'user_nicename', 'user_url', 'user_email', 'description' ) as $field ) {
			if ( $new && $new->$field !== $old->$field ) {
				Queue::tags( "user $id edited", array( "author-$id", "authorlink-$id" ), 'user_nicename' === $field );
			}
		}
	}

	public static function user_deleted( $id ): void {
		Queue::tags( "user $id deleted", array( "author-$id", "authorlink-$id" ), true );
	}

	// --- the whole site ------------------------------------------------------------------------

	private static function register_site(): void {
		foreach ( array( 'wp_update_nav_menu', 'wp_update_nav_menu_item', 'wp_delete_nav_menu' ) as $hook ) {
			add_action( $hook, array( self::class, 'menu_changed' ) );
		}
		foreach ( array( 'switch_theme', 'customize_save_after', 'upgrader_process_complete', 'automatic_updates_complete', 'add_link', 'edit_link', 'delete_link', 'permalink_structure_changed' ) as $hook ) {
			add_action( $hook, array( self::class, 'site_changed' ) );
		}
		add_action( 'updated_option', array( self::class, 'option_changed' ) );
		add_action( 'added_option', array( self::class, 'option_changed' ) );
		add_action( 'deleted_option', array( self::class, 'option_changed' ) );
	}

	public static function menu_changed( $menu ): void {
		$id = $menu instanceof \WP_Term ? $menu->term_id : (int) $menu;
		Queue::tags( "menu $id", array( "menu-$id" ) );
	}

	public static function site_changed(): void {
		Queue::all( current_action() );
	}

	public static function option_changed( $name ): void {
		$is_shown = in_array( $name, self::OPTIONS, true )
			|| 0 === strpos( $name, 'widget_' ) || 0 === strpos( $name, 'theme_mods_' );
		/**
		 * Filters whether pages show the option.
		 *
		 * @param bool   $is_shown
		 * @param string $name
		 */
		if ( apply_filters( 'yorozu_is_option_shown', $is_shown, $name ) ) {
			Queue::all( "option $name" );
		}
	}

	// --- WooCommerce, where it is --------------------------------------------------------------

	private static function register_woocommerce(): void {
		foreach ( array( 'woocommerce_product_set_stock', 'woocommerce_variation_set_stock', 'woocommerce_product_set_stock_status', 'woocommerce_variation_set_stock_status', 'woocommerce_update_product', 'woocommerce_update_product_variation', 'wc_product_start_scheduled_sale', 'wc_product_end_scheduled_sale' ) as $hook ) {
			add_action( $hook, array( self::class, 'product_changed' ) );
		}
		foreach ( array( 'wc_after_products_starting_sales', 'wc_after_products_ending_sales' ) as $hook ) {
			add_action( $hook, array( self::class, 'products_changed' ) );
		}
	}

	/** @param int|object $product A WC_Product, or its number. */
	public static function product_changed( $product ): void {
		$id     = is_object( $product ) ? (int) $product->get_id() : (int) $product;
		$parent = (int) wp_get_post_parent_id( $id );
		$tags   = array( "post-$id" );
		if ( $parent ) {
			$tags[] = "post-$parent";
		}
		Queue::tags( "product $id", $tags );
	}

	/** @param int[] $ids */
	public static function products_changed( $ids ): void {
		array_map( array( self::class, 'product_changed' ), (array) $ids );
	}
}
