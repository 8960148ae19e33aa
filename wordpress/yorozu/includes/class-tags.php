<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * Tags the page that is being made with what is on it, for the server to purge it by.
 *
 * | tag | the page |
 * | --- | --- |
 * | `site` | is one of this site |
 * | `post-7` | shows the post: its text, an excerpt |
 * | `link-7` | names the post: its title, a link to it |
 * | `term-3`, `author-1`, `date-2026-11` | lists posts of the term, the author, the day, month or year |
 * | `list-post` | lists posts of the type, narrowed by none of these |
 * | `archives-post` | lists the days, months or years in which there are posts |
 * | `adjacent-7` | shows which posts come before and after the post |
 * | `termlink-3`, `authorlink-1` | names the term, the author |
 * | `terms-category` | lists the terms of the taxonomy |
 * | `comments-7`, `comments` | shows the post's comments or their number; comments of any post |
 * | `menu-2` | shows the menu |
 * | `404`, `feed`, `sitemap`, `sitemap-post` | is that |
 *
 * Where the tags of a page would be too long, those of the longest kind become one: `link-all`.
 */
final class Tags {
	/** Bytes of the field; web servers bound an answer's head to 4 or 8 KB. */
	const BYTES_MAX = 2500;
	/** Seconds for which a form with a nonce is to be of use when its page is served for the last time. */
	const NONCE_MARGIN = HOUR_IN_SECONDS;

	/** @var array<string, true> */
	private static $tags = array();
	/** @var int|null Seconds for which the nonces on the page are valid. */
	private static $nonce_seconds = null;

	public static function register(): void {
		$method = $_SERVER['REQUEST_METHOD'] ?? '';
		if ( is_admin() || wp_doing_cron() || ! in_array( $method, array( 'GET', 'HEAD' ), true ) ) {
			return;
		}
		add_action( 'init', array( self::class, 'start' ), PHP_INT_MIN );
		add_action( 'wp', array( self::class, 'of_request' ) );
		add_filter( 'posts_pre_query', array( self::class, 'of_query' ), PHP_INT_MAX, 2 );
		add_action( 'the_post', array( self::class, 'of_post' ) );
		foreach ( array( 'post_link', 'page_link', 'post_type_link', 'attachment_link', 'the_title' ) as $filter ) {
			add_filter( $filter, array( self::class, 'of_link' ), PHP_INT_MAX, 2 );
		}
		add_filter( 'term_link', array( self::class, 'of_term_link' ), PHP_INT_MAX, 2 );
		add_filter( 'get_the_terms', array( self::class, 'of_posts_terms' ), PHP_INT_MAX );
		add_filter( 'author_link', array( self::class, 'of_author_link' ), PHP_INT_MAX, 2 );
		add_filter( 'get_the_author_display_name', array( self::class, 'of_author_link' ), PHP_INT_MAX, 2 );
		add_filter( 'the_author', array( self::class, 'of_author' ), PHP_INT_MAX );
		add_filter( 'get_terms', array( self::class, 'of_terms' ), PHP_INT_MAX, 3 );
		add_filter( 'get_pages', array( self::class, 'of_pages' ), PHP_INT_MAX, 2 );
		add_filter( 'get_comments_number', array( self::class, 'of_comments' ), PHP_INT_MAX, 2 );
		add_action( 'pre_get_comments', array( self::class, 'of_comment_query' ) );
		add_filter( 'get_next_post_where', array( self::class, 'of_adjacent' ), PHP_INT_MAX, 5 );
		add_filter( 'get_previous_post_where', array( self::class, 'of_adjacent' ), PHP_INT_MAX, 5 );
		add_filter( 'getarchives_where', array( self::class, 'of_archives' ), PHP_INT_MAX, 2 );
		add_filter( 'get_calendar', array( self::class, 'of_calendar' ) );
		add_filter( 'wp_get_nav_menu_items', array( self::class, 'of_menu' ), PHP_INT_MAX, 2 );
		add_filter( 'render_block', array( self::class, 'of_block' ), PHP_INT_MAX, 2 );
		add_filter( 'wp_get_attachment_image_src', array( self::class, 'of_image' ), PHP_INT_MAX, 2 );
		add_filter( 'wp_sitemaps_posts_query_args', array( self::class, 'of_sitemap' ), 10, 2 );
		add_filter( 'nonce_life', array( self::class, 'of_nonce' ), PHP_INT_MAX );
	}

	/** Tags the page that is being made. */
	public static function add( string ...$tags ): void {
		foreach ( $tags as $tag ) {
			self::$tags[ $tag ] = true;
		}
	}

	/** The page is kept back until all that is on it is known: its tags stand in its head. */
	public static function start(): void {
		self::add( 'site' );
		// Not to be flushed half-way, for the head would go out with it.
		ob_start( array( self::class, 'finish' ), 0, PHP_OUTPUT_HANDLER_CLEANABLE | PHP_OUTPUT_HANDLER_REMOVABLE );
	}

	/** The end of the page; its text is left as it is. */
	public static function finish( string $text, int $phase ): string {
		if ( ( $phase & PHP_OUTPUT_HANDLER_FINAL ) && ! headers_sent() ) {
			if ( self::is_vetoed() ) {
				header( 'X-Accel-Expires: 0' );
			} elseif ( null !== self::$nonce_seconds ) {
				header( 'X-Accel-Expires-Max: ' . max( 0, self::$nonce_seconds - self::NONCE_MARGIN ) );
			}
			header( 'Surrogate-Key: ' . implode( ' ', self::for_page() ) );
		}
		return $text;
	}

	private static function is_vetoed(): bool {
		$is_vetoed = defined( 'DONOTCACHEPAGE' ) && \DONOTCACHEPAGE;
		// What a password opens is for whoever knows it; a cookie tells them apart, which the server may not look at.
		$post = is_singular() ? get_queried_object() : null;
		if ( $post instanceof \WP_Post && '' !== $post->post_password ) {
			$is_vetoed = true;
		}
		/**
		 * Filters whether the page must not be stored.
		 *
		 * @param bool $is_vetoed
		 */
		return (bool) apply_filters( 'yorozu_is_vetoed', $is_vetoed );
	}

	/** What stands before each tag: a network's sites may share a host. */
	private static function prefix(): string {
		return is_multisite() ? 'b' . get_current_blog_id() . '-' : '';
	}

	/** @return string[] Tags for the head of the page. */
	private static function for_page(): array {
		/**
		 * Filters the tags of the page.
		 *
		 * @param string[] $tags Without the prefix of a site of a network.
		 */
		$tags = apply_filters( 'yorozu_page_tags', array_map( 'strval', array_keys( self::$tags ) ) );
		while ( strlen( implode( ' ', $tags ) ) > self::BYTES_MAX ) {
			$kinds = array_count_values( array_map( array( self::class, 'kind' ), $tags ) );
			unset( $kinds[''] );
			arsort( $kinds );
			$kind = (string) key( $kinds );
			if ( ! $kinds || 1 === current( $kinds ) ) {
				break;
			}
			$rest = array_filter( $tags, fn( $tag ) => self::kind( $tag ) !== $kind );
			$tags = array_merge( array_values( $rest ), array( "$kind-all" ) );
		}
		return array_map( fn( $tag ) => self::prefix() . $tag, $tags );
	}

	/** `link` of `link-7`; empty for tags that stand alone. */
	private static function kind( string $tag ): string {
		return (string) substr( $tag, 0, (int) strpos( $tag, '-' ) );
	}

	/**
	 * The tags by which the server is asked to purge: with those that stand for many of a kind.
	 *
	 * @param string[] $tags
	 * @return string[]
	 */
	public static function for_purge( array $tags ): array {
		$found = array();
		foreach ( $tags as $tag ) {
			$tag            = (string) $tag;
			$kind           = self::kind( $tag );
			$found[ $tag ]  = true;
			if ( '' !== $kind ) {
				$found[ "$kind-all" ] = true;
			}
		}
		return array_map( fn( $tag ) => self::prefix() . $tag, array_map( 'strval', array_keys( $found ) ) );
	}

	/** Of the main query, when it is known what was asked for. */
	public static function of_request(): void {
		// A feed of what is not there is empty, not missing.
		if ( is_404() || ! $GLOBALS['wp_query']->posts && self::is_by_name( $GLOBALS['wp_query'] ) ) {
			self::add( '404' );
		}
		if ( is_feed() ) {
			self::add( 'feed' );
		}
		if ( in_array( get_query_var( 'sitemap' ), array( 'index', 'users' ), true ) ) {
			self::add( 'sitemap' );
		}
		if ( is_singular() ) {
			self::add( 'post-' . get_queried_object_id() );
			if ( is_feed() ) {
				self::add( 'comments-' . get_queried_object_id() );
			}
		}
	}

	/**
	 * A query of posts, the filters of which may be suppressed.
	 *
	 * @param mixed     $posts Passed on.
	 * @param \WP_Query $query
	 * @return mixed
	 */
	public static function of_query( $posts, $query ) {
		self::add( ...self::lists( $query ) );
		return $posts;
	}

	/** @return string[] Tags of the lists that the query's answer depends on. */
	private static function lists( \WP_Query $query ): array {
		if ( $query->is_comment_feed() && ! $query->is_singular() ) {
			return array( 'comments' );
		}
		$ids = array_filter( array_map( 'intval', (array) $query->get( 'post__in' ) ) );
		if ( $ids ) {
			return array_map( fn( $id ) => "link-$id", $ids );
		}
		$id = (int) $query->get( 'p' ) ?: (int) $query->get( 'page_id' ) ?: (int) $query->get( 'attachment_id' );
		if ( $id ) {
			return array( "link-$id" );
		}
		$terms = self::queried_terms( $query );
		if ( $terms ) {
			return array_map( fn( $term ) => "term-$term", $terms );
		}
		$author = self::queried_author( $query );
		if ( $author ) {
			return array( "author-$author" );
		}
		$year = (int) $query->get( 'year' );
		if ( $year ) {
			$month = (int) $query->get( 'monthnum' );
			$day   = (int) $query->get( 'day' );
			return array( sprintf( 'date-%04d', $year ) . ( $month ? sprintf( '-%02d', $month ) . ( $day ? sprintf( '-%02d', $day ) : '' ) : '' ) );
		}
		if ( $query->is_main_query() && self::is_by_name( $query ) ) {
			// There is one or none, which is seen when it has been looked for.
			return array();
		}
		$types = array_filter( (array) $query->get( 'post_type' ) );
		if ( ! $types && $query->is_tax ) {
			$types = array( 'any' );
		}
		if ( in_array( 'any', $types, true ) || $query->is_search() && ! $types ) {
			$types = get_post_types( array( 'exclude_from_search' => false ) );
		}
		return array_map( fn( $type ) => "list-$type", $types ? array_values( $types ) : array( 'post' ) );
	}

	private static function is_by_name( \WP_Query $query ): bool {
		return '' !== (string) $query->get( 'name' ) || '' !== (string) $query->get( 'pagename' );
	}

	/** @return int[] The terms of which each listed post must have one; none if it is not as simple. */
	private static function queried_terms( \WP_Query $query ): array {
		$found = array();
		$asked = isset( $query->tax_query->queries ) ? $query->tax_query->queries : array();
		// Any one clause that all listed posts meet will do.
		$clause = 'OR' === ( $asked['relation'] ?? 'AND' ) ? null : ( $asked[0] ?? null );
		if ( ! is_array( $clause ) || empty( $clause['taxonomy'] ) || 'IN' !== ( $clause['operator'] ?? 'IN' ) ) {
			return array();
		}
		foreach ( (array) $clause['terms'] as $value ) {
			$field = $clause['field'] ?? 'term_id';
			$term  = get_term_by( 'id' === $field ? 'term_id' : $field, $value, $clause['taxonomy'] );
			if ( ! $term ) {
				return array();
			}
			$found[] = (int) $term->term_id;
		}
		return $found;
	}

	private static function queried_author( \WP_Query $query ): int {
		$author = $query->get( 'author' );
		if ( is_numeric( $author ) ) {
			return max( 0, (int) $author );
		}
		$name = $query->get( 'author_name' );
		$user = is_string( $name ) && '' !== $name ? get_user_by( 'slug', sanitize_title_for_query( $name ) ) : null;
		return $user ? (int) $user->ID : 0;
	}

	/** @param \WP_Post $post */
	public static function of_post( $post ): void {
		self::add( "post-$post->ID" );
	}

	/**
	 * @param string       $text Passed on.
	 * @param \WP_Post|int $post
	 */
	public static function of_link( $text, $post = 0 ) {
		$id = $post instanceof \WP_Post ? $post->ID : (int) $post;
		if ( $id > 0 ) {
			self::add( "link-$id" );
		}
		return $text;
	}

	/** @param \WP_Term $term */
	public static function of_term_link( $link, $term ) {
		self::add( "termlink-$term->term_id" );
		return $link;
	}

	/** @param \WP_Term[]|mixed $terms */
	public static function of_posts_terms( $terms ) {
		foreach ( is_array( $terms ) ? $terms : array() as $term ) {
			self::add( "termlink-$term->term_id" );
		}
		return $terms;
	}

	public static function of_author_link( $text, $id = 0 ) {
		if ( $id ) {
			self::add( 'authorlink-' . (int) $id );
		}
		return $text;
	}

	/** The author of the post in the loop. */
	public static function of_author( $name ) {
		global $authordata;
		return self::of_author_link( $name, $authordata->ID ?? 0 );
	}

	/** Lists of terms; not those of a post, nor a look at one by its name. */
	public static function of_terms( $terms, $taxonomies, $args = array() ) {
		foreach ( array( 'object_ids', 'slug', 'name', 'include', 'term_taxonomy_id' ) as $narrow ) {
			if ( ! empty( $args[ $narrow ] ) ) {
				return $terms;
			}
		}
		foreach ( (array) $taxonomies as $taxonomy ) {
			self::add( "terms-$taxonomy" );
		}
		return $terms;
	}

	public static function of_pages( $pages, $args = array() ) {
		self::add( 'list-' . ( $args['post_type'] ?? 'page' ) );
		return $pages;
	}

	public static function of_comments( $count, $post_id = 0 ) {
		self::add( 'comments-' . (int) $post_id );
		return $count;
	}

	/** @param \WP_Comment_Query $query */
	public static function of_comment_query( $query ): void {
		$post = (int) ( $query->query_vars['post_id'] ?? 0 );
		self::add( $post ? "comments-$post" : 'comments' );
	}

	public static function of_adjacent( $where, $in_same_term = false, $excluded = '', $taxonomy = '', $post = null ) {
		if ( $post instanceof \WP_Post ) {
			self::add( "adjacent-$post->ID" );
			if ( $in_same_term ) {
				$terms = wp_get_object_terms( $post->ID, $taxonomy, array( 'fields' => 'ids' ) );
				self::add( ...array_map( fn( $term ) => "term-$term", is_array( $terms ) ? $terms : array() ) );
			}
		}
		return $where;
	}

	public static function of_archives( $where, $args = array() ) {
		self::add( 'archives-' . ( $args['post_type'] ?? 'post' ) );
		return $where;
	}

	public static function of_calendar( $text ) {
		self::add( 'archives-post' );
		return $text;
	}

	/** @param \WP_Term $menu */
	public static function of_menu( $items, $menu ) {
		if ( isset( $menu->term_id ) ) {
			self::add( "menu-$menu->term_id" );
		}
		return $items;
	}

	/** Blocks that show a post which no query names: synced patterns, navigation. */
	public static function of_block( $text, $block = array() ) {
		if ( ! empty( $block['attrs']['ref'] ) ) {
			self::add( 'post-' . (int) $block['attrs']['ref'] );
		}
		return $text;
	}

	public static function of_image( $image, $id = 0 ) {
		if ( $id ) {
			self::add( 'post-' . (int) $id );
		}
		return $image;
	}

	public static function of_sitemap( $args, $type = 'post' ) {
		self::add( "sitemap-$type" );
		return $args;
	}

	/** A page with a nonce is of no use for longer than it. */
	public static function of_nonce( $seconds ) {
		// Valid in the half-life in which it was made, and the one after (wp_verify_nonce()).
		$half = max( 1, (int) ( $seconds / 2 ) );
		$left = (int) ( ceil( time() / $half ) + 1 ) * $half - time();
		if ( null === self::$nonce_seconds || $left < self::$nonce_seconds ) {
			self::$nonce_seconds = $left;
		}
		return $seconds;
	}
}
