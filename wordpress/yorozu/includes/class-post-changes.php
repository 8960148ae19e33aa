<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * Turns what changes of a post into the tags of the pages that change with it.
 *
 * A post is looked at before and after: an edit of its text touches the pages that show it; another title or
 * address also those that name it; coming and going also the lists it is in. What goes is gone at once (hard), what
 * is edited may be served once more while it is refreshed (soft).
 */
final class Post_Changes {
	/** Post types that are part of every page. */
	const OF_ALL_PAGES = array( 'wp_template', 'wp_template_part', 'wp_global_styles', 'custom_css' );
	/** Post types without pages, shown in other pages. */
	const OF_SOME_PAGES = array( 'wp_block', 'wp_navigation' );
	/** Meta that pages show. */
	const META = array( '_thumbnail_id', '_wp_page_template', '_wp_attachment_image_alt', '_wp_attachment_metadata' );
	/** What of a post's row is compared where it was written without a word. */
	const FIELDS = array(
		'post_status', 'post_title', 'post_content', 'post_excerpt', 'post_name', 'post_parent', 'menu_order', 'post_password',
		'post_author', 'post_date', 'post_modified', 'comment_status', 'ping_status',
	);
	/** Pages below a page, whose addresses change with it; more mean the whole site. */
	const BELOW_MAX = 100;

	/** @var array<string, array> States of posts before they change. */
	private static $before = array();
	/** @var array<string, true> Posts of which other meta was written. */
	private static $with_meta = array();
	/** @var int[] Posts that lose their meta together. */
	private static $losing_meta = array();

	public static function register(): void {
		foreach ( array( 'pre_post_update', 'wp_trash_post', 'untrash_post', 'before_delete_post', 'delete_attachment', 'edit_attachment' ) as $hook ) {
			add_action( $hook, array( self::class, 'remember' ), PHP_INT_MIN );
		}
		add_action( 'transition_post_status', array( self::class, 'status_changed' ), 10, 3 );
		add_action( 'wp_after_insert_post', array( self::class, 'saved' ), PHP_INT_MAX );
		add_action( 'deleted_post', array( self::class, 'deleted' ), PHP_INT_MAX );
		add_action( 'attachment_updated', array( self::class, 'saved' ), PHP_INT_MAX );
		add_action( 'clean_post_cache', array( self::class, 'written' ), 10, 2 );
		add_action( 'set_object_terms', array( self::class, 'terms_set' ), 10, 6 );
		add_action( 'deleted_term_relationships', array( self::class, 'terms_removed' ), 10, 3 );
		add_action( 'delete_post_meta', array( self::class, 'remember_meta' ), 10, 3 );
		foreach ( array( 'added', 'updated', 'deleted' ) as $change ) {
			add_action( "{$change}_post_meta", array( self::class, 'meta_changed' ), 10, 3 );
		}
	}

	/** A post of a site: those of a network count their own from 1. */
	private static function key( $id ): string {
		return get_current_blog_id() . '-' . (int) $id;
	}

	/** Notes what a post is before it changes; the first word counts. */
	public static function remember( $id ): void {
		$post = get_post( $id );
		if ( $post && ! isset( self::$before[ self::key( $post->ID ) ] ) ) {
			self::$before[ self::key( $post->ID ) ] = self::state( $post );
		}
	}

	/** For those who change a status without saying so before: a scheduled post that is due. */
	public static function status_changed( $new, $old, $post ): void {
		if ( $new !== $old && ! isset( self::$before[ self::key( $post->ID ) ] ) ) {
			$was              = clone $post;
			$was->post_status = $old;
			if ( '' === (string) $old ) {
				// bbPress, which has written it itself, does not say which status it had: the one that makes a difference.
				$is               = clone $post;
				$is->post_status  = $new;
				$was->post_status = self::is_shown( $is ) ? 'draft' : 'publish';
				self::changed( self::state( $was ), self::state( $is ) );
				return;
			}
			self::$before[ self::key( $post->ID ) ] = self::state( $was );
		}
	}

	/**
	 * For those who write to the table of posts themselves, and then only have the post read again: bbPress, orders of products.
	 *
	 * @param int      $id
	 * @param \WP_Post $was As it was read before that.
	 */
	public static function written( $id, $was = null ): void {
		if ( ! $was instanceof \WP_Post || isset( self::$before[ self::key( $id ) ] ) || 'revision' === $was->post_type ) {
			return;
		}
		$is     = get_post( $id );
		$fields = array_flip( self::FIELDS );
		$row    = fn( \WP_Post $post ) => array_map( 'strval', array_intersect_key( get_object_vars( $post ), $fields ) );
		if ( $is && $row( $was ) !== $row( $is ) ) {
			self::changed( self::state( $was ), self::state( $is ) );
		}
	}

	public static function saved( $id ): void {
		$post = get_post( $id );
		if ( ! $post || wp_is_post_revision( $post ) || wp_is_post_autosave( $post ) ) {
			return;
		}
		$is = self::state( $post );
		self::changed( self::$before[ self::key( $post->ID ) ] ?? null, $is );
		self::$before[ self::key( $post->ID ) ] = $is;
	}

	public static function deleted( $id ): void {
		if ( isset( self::$before[ self::key( $id ) ] ) ) {
			$gone = array( 'is_shown' => false ) + self::$before[ self::key( $id ) ];
			if ( Used::is_type( $gone['type'] ) ) {
				Queue::tags( "{$gone['type']} $id deleted", array( "used-$id" ), true );
			}
			self::changed( self::$before[ self::key( $id ) ], $gone );
			unset( self::$before[ self::key( $id ) ] );
		}
	}

	/** All of a post that pages other than its own show or are made by. */
	private static function state( \WP_Post $post ): array {
		$state = array(
			'id'       => (int) $post->ID,
			'type'     => $post->post_type,
			'is_shown' => self::is_shown( $post ),
			'title'    => $post->post_title,
			'text'     => md5( $post->post_content . "\n" . $post->post_excerpt ),
			// What others are put into order by.
			'order'    => array( (int) $post->post_parent, (int) $post->menu_order ),
			'talk'     => array( $post->comment_status, $post->ping_status ),
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

	public static function is_shown( \WP_Post $post ): bool {
		if ( in_array( $post->post_type, array_merge( self::OF_ALL_PAGES, self::OF_SOME_PAGES ), true ) ) {
			return 'publish' === $post->post_status;
		}
		if ( in_array( $post->post_type, array( 'nav_menu_item', 'customize_changeset', 'revision' ), true ) ) {
			// Menus and the customizer have their own hooks.
			return false;
		}
		$status = 'attachment' === $post->post_type ? get_post_status( $post ) : $post->post_status;
		return is_post_type_viewable( $post->post_type ) && is_post_status_viewable( $status );
	}

	/** @return int[] Terms, and those above them: their lists have the post, too. */
	public static function terms_of( \WP_Post $post ): array {
		$found = array();
		// All taxonomies by one query.
		update_object_term_cache( $post->ID, $post->post_type );
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
		$name = "{$is['type']} {$is['id']}";
		if ( ! $was_shown && ! $is['is_shown'] ) {
			// A form, a template: without a page of its own.
			if ( $was && Used::is_type( $is['type'] ) ) {
				Queue::tags( "$name edited", array( "used-{$is['id']}" ) );
			}
			return;
		}
		if ( in_array( $is['type'], self::OF_ALL_PAGES, true ) ) {
			Queue::all( $name );
			return;
		}
		if ( $was_shown && $is['is_shown'] ) {
			self::edited( $name, $was, $is );
			return;
		}
		// It comes or goes.
		$reason  = $name . ( $is['is_shown'] ? ' published' : ' unpublished' );
		$state   = $is['is_shown'] ? $is : $was;
		// Lists with a text behind a password are not stored: their pages of before must not stay.
		$is_hard = ! $is['is_shown'] || '' !== $is['password'];
		Queue::tags( $reason, self::with_post( $state ), $is_hard );
		Queue::tags( $reason, self::lists( $state ), $is_hard );
		// Until now its address, and those below it, had no page.
		Queue::tags( $reason, array( '404' ), true );
		self::those_below( $reason, $state );
	}

	private static function edited( string $name, array $was, array $is ): void {
		$reason    = "$name edited";
		$differs   = fn( $what ) => $was[ $what ] !== $is[ $what ];
		$is_hard   = $differs( 'url' ) || $differs( 'password' );
		$is_opened = ( '' === $was['password'] ) !== ( '' === $is['password'] );
		$tags      = array( "meta-{$is['id']}", "bymodified-{$is['type']}", 'lastmodified' );
		// The author is not printed everywhere, unlike what a save may have changed besides.
		$is_same = ! $is_hard && ! array_filter( array( 'title', 'text', 'order', 'talk', 'date', 'terms' ), $differs );
		if ( ! $is_same || ! $differs( 'author' ) || isset( self::$with_meta[ self::key( $is['id'] ) ] ) ) {
			$tags[] = "post-{$is['id']}";
		}
		if ( $differs( 'title' ) || $is_hard ) {
			array_push( $tags, "link-{$is['id']}", "bytitle-{$is['type']}" );
		}
		if ( $is_opened ) {
			array_push( $tags, "comments-{$is['id']}", 'comments' );
		}
		Queue::tags( $reason, $tags, $is_hard );
		if ( $differs( 'title' ) || $differs( 'text' ) || $is_opened ) {
			Queue::tags( $reason, array( 'search' ), $is_opened );
		}
		if ( self::is_change_in_sitemaps() ) {
			Queue::tags( $reason, array( "sitemap-{$is['type']}", 'sitemap-page' ), $is_hard );
		}
		if ( $differs( 'url' ) ) {
			Queue::tags( $reason, array( '404', "sitemap-{$is['type']}" ), true );
			self::those_below( $reason, $is );
		}
		self::moved( $reason, $was, $is );
	}

	/** The lists it leaves and comes to, and those in which it gets another place. */
	private static function moved( string $reason, array $was, array $is ): void {
		$tags = $was['order'] !== $is['order'] ? array( "list-{$is['type']}" ) : array();
		foreach ( array( array( $was, $is ), array( $is, $was ) ) as list( $one, $other ) ) {
			foreach ( array_diff( $one['terms'], $other['terms'] ) as $term ) {
				$tags[] = "term-$term";
			}
			if ( $was['author'] !== $is['author'] ) {
				$tags[] = "author-{$one['author']}";
				array_push( $tags, ...User_Changes::of_authors_posts( $one['author'] ) );
			}
		}
		if ( $was['date'] !== $is['date'] ) {
			// What it leaves may be there no more.
			Queue::tags( $reason, array_diff( self::days( $was ), self::days( $is ) ), true );
			array_push( $tags, ...array_diff( self::days( $is ), self::days( $was ) ) );
			array_push( $tags, ...self::passed( $was, $is ) );
			if ( substr( $was['date'], 0, 10 ) !== substr( $is['date'], 0, 10 ) ) {
				$tags[] = "archives-{$is['type']}";
			}
		}
		if ( $tags ) {
			Queue::tags( $reason, $tags );
		}
	}

	/** @return string[] Where other posts lie between the two dates: lists in that order. */
	private static function passed( array $was, array $is ): array {
		if ( ! self::is_between( $was, $is ) ) {
			return array();
		}
		$tags = array_intersect( self::days( $was ), self::days( $is ) );
		$tags = array_merge( $tags, self::neighbours( $was ), self::neighbours( $is ), array( "list-{$is['type']}" ) );
		if ( self::is_between( $was, $is, '', array( 'post_author = %d', $is['author'] ) ) ) {
			$tags[] = "author-{$is['author']}";
		}
		global $wpdb;
		$join = "JOIN $wpdb->term_relationships r ON r.object_id = ID JOIN $wpdb->term_taxonomy t ON t.term_taxonomy_id = r.term_taxonomy_id";
		foreach ( $is['terms'] as $id ) {
			$term  = get_term( $id );
			$below = $term instanceof \WP_Term ? get_term_children( $id, $term->taxonomy ) : array();
			$terms = array_map( 'intval', array_merge( array( $id ), is_array( $below ) ? $below : array() ) );
			if ( self::is_between( $was, $is, $join, array( 't.term_id IN (' . implode( ',', $terms ) . ')' ) ) ) {
				$tags[] = "term-$id";
			}
		}
		return $tags;
	}

	/** @param array $where A condition, and what stands in it for `%d`. */
	private static function is_between( array $was, array $is, string $join = '', array $where = array( '1' ) ): bool {
		global $wpdb;
		$types  = array_values( array_filter( get_post_types(), 'is_post_type_viewable' ) );
		$dates  = array( $was['date'], $is['date'] );
		$values = array_merge( $types, array( $is['id'], min( $dates ), max( $dates ) ), array_slice( $where, 1 ) );
		$sql    = "SELECT 1 FROM $wpdb->posts $join WHERE post_type IN (" . implode( ',', array_fill( 0, count( $types ), '%s' ) ) . ')'
			. " AND post_status = 'publish' AND ID <> %d AND post_date BETWEEN %s AND %s AND {$where[0]} LIMIT 1";
		// phpcs:ignore WordPress.DB.PreparedSQL -- what is put in stands above.
		return (bool) $wpdb->get_var( $wpdb->prepare( $sql, $values ) );
	}

	/** @return string[] Pages that show or name a post. */
	private static function with_post( array $state ): array {
		$id   = $state['id'];
		$tags = array( "post-$id", "meta-$id", "link-$id", "used-$id", "comments-$id", "commentcount-$id" );
		return $state['comments'] ? array_merge( $tags, array( 'comments' ) ) : $tags;
	}

	/** @return string[] Archives of the days it belongs to. */
	private static function days( array $state ): array {
		$date = substr( $state['date'], 0, 10 );
		return array( 'date-' . substr( $date, 0, 4 ), 'date-' . substr( $date, 0, 7 ), "date-$date" );
	}

	/** @return string[] The lists a post is in, and its neighbours. */
	private static function lists( array $state ): array {
		$type = $state['type'];
		$tags = array( "list-$type", "archives-$type", "author-{$state['author']}", 'lastmodified' );
		foreach ( $state['terms'] as $term ) {
			$tags[] = "term-$term";
		}
		if ( in_array( $type, self::types_of_sitemaps(), true ) ) {
			$tags[] = "sitemap-$type";
			if ( self::is_change_in_sitemaps() ) {
				$tags[] = 'sitemap-page';
			}
			// One more or less than fills its sitemaps: there is one sitemap more or less.
			if ( ( wp_count_posts( $type )->publish ?? 0 ) % max( 1, wp_sitemaps_get_max_urls( 'post' ) ) < 2 ) {
				$tags[] = 'sitemap';
			}
			array_push( $tags, ...User_Changes::of_authors_posts( $state['author'] ) );
		}
		return array_merge( $tags, self::days( $state ), self::neighbours( $state ) );
	}

	/** Whether sitemaps say when each page was last changed, and that of pages also when the newest post was. */
	private static function is_change_in_sitemaps(): bool {
		return version_compare( $GLOBALS['wp_version'], '6.5', '>=' ) || has_filter( 'wp_sitemaps_posts_entry' );
	}

	/** @return string[] Those that sitemaps list, and whose authors they list. */
	public static function types_of_sitemaps(): array {
		$types = array_filter( get_post_types( array( 'public' => true ) ), 'is_post_type_viewable' );
		return array_values( array_diff( $types, array( 'attachment' ) ) );
	}

	/** @return string[] Of the posts before and after; several where they have the same date. */
	private static function neighbours( array $state ): array {
		global $wpdb;
		$found = array();
		foreach ( array( '<' => 'MAX', '>' => 'MIN' ) as $side => $nearest ) {
			$of_type = "post_type = %s AND post_status = 'publish'";
			// phpcs:disable WordPress.DB.PreparedSQL -- what is put in stands above.
			$sql = "SELECT ID FROM $wpdb->posts WHERE $of_type AND post_date = ("
				. "SELECT $nearest(post_date) FROM $wpdb->posts WHERE $of_type AND post_date $side %s AND ID <> %d) LIMIT 100";
			array_push( $found, ...$wpdb->get_col( $wpdb->prepare( $sql, $state['type'], $state['type'], $state['date'], $state['id'] ) ) );
			// phpcs:enable WordPress.DB.PreparedSQL
		}
		return array_map( fn( $id ) => "adjacent-$id", $found );
	}

	/** Pages and attachments below it: its name is part of their addresses. */
	private static function those_below( string $reason, array $state ): void {
		global $wpdb;
		$above = array( $state['id'] );
		$found = array();
		while ( $above && count( $found ) <= self::BELOW_MAX ) {
			$ids = implode( ',', array_map( 'intval', $above ) );
			// phpcs:disable WordPress.DB.PreparedSQL -- numbers.
			$above = $wpdb->get_col(
				"SELECT ID FROM $wpdb->posts WHERE post_parent IN ($ids) AND post_status IN ('publish', 'inherit')"
				. " AND post_type NOT IN ('revision', 'nav_menu_item') LIMIT 200"
			);
			// phpcs:enable WordPress.DB.PreparedSQL
			$above = array_diff( $above, $found );
			array_push( $found, ...$above );
		}
		if ( count( $found ) > self::BELOW_MAX ) {
			Queue::all( $reason );
			return;
		}
		foreach ( $found as $id ) {
			Queue::tags( $reason, array( "post-$id", "link-$id" ), true );
		}
	}

	public static function terms_set( $id, $terms, $tt_ids, $taxonomy, $append, $old_tt_ids ): void {
		self::terms_changed( $id, array_merge( array_diff( $tt_ids, $old_tt_ids ), array_diff( $old_tt_ids, $tt_ids ) ), $taxonomy );
	}

	public static function terms_removed( $id, $tt_ids, $taxonomy ): void {
		self::terms_changed( $id, $tt_ids, $taxonomy );
	}

	private static function terms_changed( $id, array $tt_ids, string $taxonomy ): void {
		$post = get_post( $id );
		if ( ! $tt_ids || ! $post || ! self::is_shown( $post ) ) {
			return;
		}
		$is_in_url = false !== strpos( (string) get_option( 'permalink_structure' ), "%$taxonomy%" );
		$tags      = $is_in_url ? array( "post-$post->ID", "link-$post->ID" ) : array( "post-$post->ID" );
		foreach ( $tt_ids as $tt_id ) {
			$term = get_term_by( 'term_taxonomy_id', $tt_id, $taxonomy );
			if ( $term ) {
				$above = get_ancestors( $term->term_id, $taxonomy, 'taxonomy' );
				foreach ( array_merge( array( $term->term_id ), $above ) as $one ) {
					$tags[] = "term-$one";
				}
			}
		}
		Queue::tags( "$post->post_type $post->ID's $taxonomy", $tags, $is_in_url );
	}

	/** A picture that is deleted is taken from all posts at once, which are not named. */
	public static function remember_meta( $meta_ids, $post_id, $name ): void {
		if ( $post_id || ! self::is_meta_shown( $name ) || ! $meta_ids ) {
			return;
		}
		global $wpdb;
		$ids = implode( ',', array_map( 'intval', $meta_ids ) );
		// phpcs:ignore WordPress.DB.PreparedSQL -- numbers.
		self::$losing_meta = $wpdb->get_col( "SELECT post_id FROM $wpdb->postmeta WHERE meta_id IN ($ids)" );
	}

	public static function meta_changed( $meta_id, $post_id, $name ): void {
		$posts             = $post_id ? array( $post_id ) : self::$losing_meta;
		self::$losing_meta = array();
		foreach ( $posts as $id ) {
			$post = get_post( $id );
			if ( ! $post || in_array( $post->post_type, Used::OTHER_TYPES, true ) ) {
				continue;
			}
			$is_shown = self::is_shown( $post );
			if ( $is_shown && self::is_meta_shown( $name ) ) {
				Queue::tags( "$post->post_type $id's $name", array( "post-$id", "meta-$id", "used-$id" ) );
			} elseif ( preg_match( Used::OTHER_META, $name ) ) {
				continue;
			} elseif ( Used::is_edit() ) {
				Queue::tags( "meta of $post->post_type $id", $is_shown ? array( "post-$id", "used-$id" ) : array( "used-$id" ) );
			} elseif ( $is_shown ) {
				self::with_meta( $post );
			}
		}
	}

	/** A save that writes meta may change what its pages show, though its text is the same. */
	private static function with_meta( \WP_Post $post ): void {
		self::$with_meta[ self::key( $post->ID ) ] = true;
		if ( isset( self::$before[ self::key( $post->ID ) ] ) ) {
			Queue::tags( "$post->post_type $post->ID edited", array( "post-$post->ID" ) );
		}
	}

	private static function is_meta_shown( string $name ): bool {
		/**
		 * Filters the post meta that pages show.
		 *
		 * @param string[] $names
		 */
		return in_array( $name, apply_filters( 'yorozu_post_meta', self::META ), true );
	}
}
