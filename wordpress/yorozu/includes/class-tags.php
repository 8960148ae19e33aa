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
 * | `meta-7` | shows the post's author, its last change, its picture |
 * | `link-7` | names the post: its title, a link to it |
 * | `sticky-7`, `sticky-all` | shows that the post is sticky; puts sticky posts first |
 * | `term-3`, `author-1`, `date-2026-11` | lists posts of the term, the author, the day, month or year |
 * | `list-post` | lists posts of the type, narrowed by none of these |
 * | `bytitle-post`, `bycomments-post`, `bymodified-post` | lists posts of the type in that order |
 * | `search` | lists posts in which words are found |
 * | `archives-post` | lists the days, months or years in which there are posts |
 * | `adjacent-7` | shows which posts come before and after the post |
 * | `termlink-3`, `termslug-3`, `termtext-3` | shows the term's name or a link to it, its slug, its description |
 * | `terms-category`, `termids-category` | lists the terms of the taxonomy; their numbers alone |
 * | `allterms-category` | does so with terms that no post has |
 * | `authorlink-1`, `users` | names the author; lists users |
 * | `comments-7`, `comments` | shows the post's comments; comments of any post |
 * | `commentcount-7` | shows how many comments the post has |
 * | `discussion`, `calendar` | has comments or a form for them, a calendar |
 * | `menu-2` | shows the menu |
 * | `used-7`, `termmeta-3` | reads the post or its meta by its number (`Used`); meta of the term |
 * | `404`, `feed`, `lastmodified` | is that; says when any post was last changed |
 * | `abroad` | shows something of another site of the network |
 * | `sitemap`, `sitemap-post`, `sitemapterms-category`, `sitemapusers` | is the index of the sitemaps; one of them |
 *
 * Where the tags of a page would be too long, those of the longest kind become one: `link-all`.
 */
final class Tags {
	/** Bytes of the field; web servers bound an answer's head to 4 or 8 KB. */
	const BYTES_MAX = 2500;
	/** What a sitemap needs no tag for: it lists addresses, and those change its own tag. */
	const NOT_OF_SITEMAPS = array( 'used', 'termmeta', 'list', 'link', 'termlink', 'authorlink', 'terms', 'termids', 'allterms', 'users', 'post', 'sticky', 'bymodified' );
	/** Sitemaps of plugins, which ask the database themselves: they list any type, and say when each page was last changed. */
	const OTHER_SITEMAPS = '~sitemap[^/]*\.(xml|txt|kml|gz)$~i';
	/** Fields of the author that pages print. */
	const AUTHOR_FIELDS = array( 'ID', 'display_name', 'description', 'first_name', 'last_name', 'nickname', 'user_email', 'user_nicename', 'user_url' );

	/** @var array<string, true> */
	private static $tags = array();
	/** @var bool Are the classes of a post being made, of which terms' names are no part? */
	private static $is_in_classes = false;
	/** @var array<int, int> How often it was asked whether a post is sticky, other than for its classes. */
	private static $asked_sticky = array();
	/** @var bool Is it one of WordPress's own sitemaps? */
	private static $is_sitemap = false;
	/** @var int The site that makes the page; it may look into others of its network. */
	private static $site = 0;

	public static function register(): void {
		self::$site = get_current_blog_id();
		self::add( 'site' );
		add_action( 'wp', array( self::class, 'of_request' ) );
		self::register_posts();
		self::register_terms();
		self::register_users();
		add_filter( 'get_comments_number', array( self::class, 'of_comments' ), PHP_INT_MAX, 2 );
		add_action( 'pre_get_comments', array( self::class, 'of_comment_query' ) );
		add_filter( 'comments_template', array( self::class, 'of_discussion' ) );
		add_filter( 'comments_open', array( self::class, 'of_discussion' ) );
		add_filter( 'wp_get_nav_menu_items', array( self::class, 'of_menu' ), PHP_INT_MAX, 2 );
		add_filter( 'render_block', array( self::class, 'of_block' ), PHP_INT_MAX, 2 );
		add_filter( 'get_feed_build_date', array( self::class, 'of_build_date' ) );
		add_filter( 'wp_sitemaps_posts_query_args', array( self::class, 'of_post_sitemap' ), 10, 2 );
		add_filter( 'wp_sitemaps_taxonomies_query_args', array( self::class, 'of_term_sitemap' ), 10, 2 );
		add_filter( 'wp_sitemaps_users_query_args', array( self::class, 'of_user_sitemap' ) );
	}

	private static function register_posts(): void {
		add_filter( 'posts_pre_query', array( self::class, 'of_query' ), PHP_INT_MAX, 2 );
		add_filter( 'the_posts', array( self::class, 'of_found' ), PHP_INT_MAX, 2 );
		add_action( 'the_post', array( self::class, 'of_post' ) );
		foreach ( array( 'post_link', 'page_link', 'post_type_link', 'attachment_link', 'the_title', 'single_post_title' ) as $filter ) {
			add_filter( $filter, array( self::class, 'of_link' ), PHP_INT_MAX, 2 );
		}
		foreach ( array( 'get_the_modified_date', 'get_the_modified_time', 'get_post_modified_time' ) as $filter ) {
			add_filter( $filter, array( self::class, 'of_change' ), PHP_INT_MAX );
		}
		add_filter( 'oembed_response_data', array( self::class, 'of_embed' ), PHP_INT_MAX, 2 );
		add_filter( 'is_sticky', array( self::class, 'of_stickiness' ), PHP_INT_MAX, 2 );
		add_filter( 'post_class_taxonomies', array( self::class, 'classes_begin' ), PHP_INT_MAX );
		add_filter( 'post_class', array( self::class, 'classes_end' ), PHP_INT_MIN, 3 );
		add_filter( 'get_pages', array( self::class, 'of_pages' ), PHP_INT_MAX, 2 );
		add_filter( 'get_next_post_where', array( self::class, 'of_adjacent' ), PHP_INT_MAX, 5 );
		add_filter( 'get_previous_post_where', array( self::class, 'of_adjacent' ), PHP_INT_MAX, 5 );
		add_filter( 'getarchives_where', array( self::class, 'of_archives' ), PHP_INT_MAX, 2 );
		add_filter( 'get_calendar', array( self::class, 'of_calendar' ) );
		add_filter( 'wp_get_attachment_image_src', array( self::class, 'of_image' ), PHP_INT_MAX, 2 );
		add_filter( 'woocommerce_shortcode_products_query', array( self::class, 'of_products' ) );
	}

	private static function register_terms(): void {
		add_filter( 'term_link', array( self::class, 'of_term_link' ), PHP_INT_MAX, 2 );
		add_filter( 'get_the_terms', array( self::class, 'of_posts_terms' ), PHP_INT_MAX );
		add_filter( 'terms_pre_query', array( self::class, 'of_terms' ), PHP_INT_MAX, 2 );
		add_filter( 'list_cats', array( self::class, 'of_listed_term' ), PHP_INT_MAX, 2 );
		foreach ( array( 'term_description', 'category_description' ) as $filter ) {
			add_filter( $filter, array( self::class, 'of_term_text' ), PHP_INT_MAX, 2 );
		}
		add_action( 'rest_api_init', array( self::class, 'register_rest' ) );
	}

	private static function register_users(): void {
		add_filter( 'author_link', array( self::class, 'of_author' ), PHP_INT_MAX, 2 );
		foreach ( self::AUTHOR_FIELDS as $field ) {
			add_filter( "get_the_author_$field", array( self::class, 'of_author' ), PHP_INT_MAX, 2 );
		}
		add_filter( 'the_author', array( self::class, 'of_author_in_loop' ), PHP_INT_MAX );
		add_filter( 'get_avatar', array( self::class, 'of_avatar' ), PHP_INT_MAX, 2 );
		add_filter( 'users_pre_query', array( self::class, 'of_users' ), PHP_INT_MAX, 2 );
		add_filter( 'wp_list_authors_args', array( self::class, 'of_author_list' ) );
	}

	/** Tags the page that is being made. */
	public static function add( string ...$tags ): void {
		// What another site of the network shows has numbers of its own.
		foreach ( get_current_blog_id() === self::$site ? $tags : array( Queue::ABROAD ) as $tag ) {
			self::$tags[ $tag ] = true;
		}
	}

	/** What stands before each tag: a network's sites may share a host. */
	private static function prefix( int $site ): string {
		return is_multisite() ? "b$site-" : '';
	}

	/** @return string[] Tags for the head of the page. */
	public static function for_page(): array {
		self::add( ...array_map( fn( $id ) => "sticky-$id", array_keys( array_filter( self::$asked_sticky ) ) ) );
		if ( preg_match( self::OTHER_SITEMAPS, (string) wp_parse_url( $_SERVER['REQUEST_URI'] ?? '', PHP_URL_PATH ) ) && ! self::$is_sitemap ) { // phpcs:ignore WordPress.Security.ValidatedSanitizedInput -- it is compared.
			self::add( 'sitemap', 'sitemap-all', 'sitemapterms-all', 'sitemapusers', 'lastmodified' );
		}
		/**
		 * Filters the tags of the page.
		 *
		 * @param string[] $tags Without the prefix of a site of a network.
		 */
		$tags = apply_filters( 'yorozu_page_tags', self::of_what_is_printed( array_map( 'strval', array_keys( self::$tags ) ) ) );
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
		return array_map( fn( $tag ) => self::prefix( self::$site ) . $tag, $tags );
	}

	/**
	 * Some answers print less than was looked at.
	 *
	 * @param string[] $tags
	 * @return string[]
	 */
	private static function of_what_is_printed( array $tags ): array {
		$tags = Used::without_shown( $tags );
		if ( self::$is_sitemap ) {
			return array_filter( $tags, fn( $tag ) => ! in_array( self::kind( $tag ) ?: $tag, self::NOT_OF_SITEMAPS, true ) );
		}
		if ( in_array( http_response_code(), array( 301, 302, 303, 307, 308 ), true ) ) {
			// A redirect prints nothing but an address.
			$tags = array_filter( $tags, fn( $tag ) => ! in_array( self::kind( $tag ), array( 'meta', 'used', 'termmeta' ), true ) );
			return array_unique( preg_replace( '/^post-/', 'link-', $tags ) );
		}
		return $tags;
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
		return array_map( fn( $tag ) => self::prefix( get_current_blog_id() ) . $tag, array_map( 'strval', array_keys( $found ) ) );
	}

	/** Of the main query, when it is known what was asked for. */
	public static function of_request(): void {
		// A feed of what is not there is empty, not missing.
		if ( is_404() || ! $GLOBALS['wp_query']->posts && Lists::is_by_name( $GLOBALS['wp_query'] ) ) {
			self::add( '404' );
		}
		if ( is_feed() ) {
			self::add( 'feed' );
		}
		$queried = get_queried_object();
		if ( $queried instanceof \WP_Post ) {
			// Itself, or the page that stands for the list of posts.
			self::add( "post-$queried->ID", "meta-$queried->ID" );
			if ( is_feed() ) {
				self::add( "comments-$queried->ID" );
			}
		} elseif ( $queried instanceof \WP_Term ) {
			self::add( "termlink-$queried->term_id", "termtext-$queried->term_id" );
		} elseif ( $queried instanceof \WP_User ) {
			self::add( "authorlink-$queried->ID" );
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
		self::add( ...Lists::tags( $query ) );
		return $posts;
	}

	/**
	 * Posts without a page, which the query that finds them prints; one that was looked for by its name.
	 *
	 * @param \WP_Post[] $posts Passed on.
	 * @param \WP_Query  $query
	 */
	public static function of_found( $posts, $query ) {
		if ( Lists::is_by_name( $query ) ) {
			self::add( ...( $posts ? array_map( fn( $post ) => "link-$post->ID", $posts ) : array( '404' ) ) );
		}
		foreach ( is_array( $posts ) ? $posts : array() as $post ) {
			if ( $post instanceof \WP_Post && in_array( $post->post_type, Post_Changes::OF_SOME_PAGES, true ) ) {
				self::add( "post-$post->ID" );
			}
		}
		return $posts;
	}

	/** A list of products, which WooCommerce has kept since the last query. */
	public static function of_products( $query ) {
		self::add( 'list-product' );
		return $query;
	}

	/** @param \WP_Post $post */
	public static function of_post( $post ): void {
		self::add( "post-$post->ID" );
		if ( defined( 'REST_REQUEST' ) && REST_REQUEST ) {
			self::add( "meta-$post->ID", "sticky-$post->ID" );
		}
	}

	/** The post in the loop says when it was changed. */
	public static function of_change( $text ) {
		$post = $GLOBALS['post'] ?? null;
		if ( $post instanceof \WP_Post ) {
			self::add( "meta-$post->ID" );
		}
		return $text;
	}

	/** @param \WP_Post $post */
	public static function of_embed( $data, $post ) {
		self::add( "meta-$post->ID" );
		return $data;
	}

	public static function of_stickiness( $is_sticky, $id = 0 ) {
		self::$asked_sticky[ $id ] = ( self::$asked_sticky[ $id ] ?? 0 ) + 1;
		return $is_sticky;
	}

	public static function classes_begin( $taxonomies ) {
		self::$is_in_classes = true;
		return $taxonomies;
	}

	/** They say that a post is sticky on the first page of posts alone, whose query says so, too. */
	public static function classes_end( $classes, $class = '', $id = 0 ) {
		self::$is_in_classes       = false;
		self::$asked_sticky[ $id ] = max( 0, ( self::$asked_sticky[ $id ] ?? 0 ) - 1 );
		return $classes;
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
		$kind = self::$is_in_classes ? 'termslug' : 'termlink';
		foreach ( is_array( $terms ) ? $terms : array() as $term ) {
			self::add( "$kind-$term->term_id" );
		}
		return $terms;
	}

	/** Its description is the link's title in some lists. */
	public static function of_listed_term( $name, $term = null ) {
		if ( $term instanceof \WP_Term ) {
			self::add( "termlink-$term->term_id", "termtext-$term->term_id" );
		}
		return $name;
	}

	public static function of_term_text( $text, $term = 0 ) {
		$id = $term instanceof \WP_Term ? $term->term_id : (int) $term;
		if ( $id > 0 ) {
			self::add( "termtext-$id" );
		}
		return $text;
	}

	/** The REST API gives out terms as they are. */
	public static function register_rest(): void {
		foreach ( get_taxonomies( array( 'show_in_rest' => true ) ) as $taxonomy ) {
			add_filter( "rest_prepare_$taxonomy", array( self::class, 'of_rest_term' ), PHP_INT_MAX, 2 );
		}
	}

	/** @param \WP_Term $term */
	public static function of_rest_term( $answer, $term ) {
		self::add( "termtext-$term->term_id" );
		return $answer;
	}

	/** @param int $id */
	public static function of_author( $text, $id = 0 ) {
		$post = $GLOBALS['post'] ?? null;
		if ( $id ) {
			self::add( 'authorlink-' . (int) $id );
		}
		if ( $post instanceof \WP_Post && (int) $post->post_author === (int) $id ) {
			self::add( "meta-$post->ID" );
		}
		return $text;
	}

	public static function of_author_in_loop( $name ) {
		global $authordata;
		return self::of_author( $name, $authordata->ID ?? 0 );
	}

	/** @param mixed $whose A user, a number of one, a comment, an address. */
	public static function of_avatar( $image, $whose = null ) {
		$id = $whose instanceof \WP_User ? $whose->ID : ( is_numeric( $whose ) ? $whose : 0 );
		return self::of_author( $image, $id );
	}

	/** @param \WP_User_Query $query */
	public static function of_users( $users, $query ) {
		foreach ( array( 'include', 'login', 'login__in', 'nicename', 'nicename__in' ) as $narrow ) {
			if ( ! empty( $query->query_vars[ $narrow ] ) ) {
				return $users;
			}
		}
		self::add( 'users' );
		return $users;
	}

	/** It says how many posts each author has, and leaves out those without any. */
	public static function of_author_list( $args ) {
		self::add( 'list-post' );
		return $args;
	}

	/**
	 * Lists of terms; not those of a post, nor a look at one by its name.
	 *
	 * @param \WP_Term_Query $query
	 */
	public static function of_terms( $terms, $query ) {
		$asked = $query->query_vars;
		foreach ( array( 'object_ids', 'slug', 'name', 'include', 'term_taxonomy_id' ) as $narrow ) {
			if ( ! empty( $asked[ $narrow ] ) ) {
				return $terms;
			}
		}
		$is_by_numbers = in_array( $asked['fields'], array( 'count', 'ids', 'id=>parent', 'tt_ids' ), true ) && empty( $asked['number'] );
		$taxonomies    = array_filter( (array) ( $asked['taxonomy'] ?? array() ) ) ?: get_taxonomies();
		foreach ( array_filter( $taxonomies, 'is_taxonomy_viewable' ) as $taxonomy ) {
			self::add( ( $is_by_numbers ? 'termids-' : 'terms-' ) . $taxonomy );
			if ( empty( $asked['hide_empty'] ) ) {
				self::add( "allterms-$taxonomy" );
			}
		}
		return $terms;
	}

	public static function of_pages( $pages, $args = array() ) {
		$type = $args['post_type'] ?? 'page';
		self::add( "list-$type", "bytitle-$type" );
		return $pages;
	}

	public static function of_comments( $count, $post_id = 0 ) {
		self::add( 'commentcount-' . (int) $post_id );
		return $count;
	}

	/** @param \WP_Comment_Query $query */
	public static function of_comment_query( $query ): void {
		$post = (int) ( $query->query_vars['post_id'] ?? 0 );
		self::add( $post ? "comments-$post" : 'comments', 'discussion' );
	}

	public static function of_discussion( $passed_on ) {
		self::add( 'discussion' );
		return $passed_on;
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
		self::add( 'archives-' . ( $args['post_type'] ?? 'post' ), 'calendar' );
		return $where;
	}

	public static function of_calendar( $text ) {
		self::add( 'archives-post', 'calendar' );
		return $text;
	}

	/** @param \WP_Term $menu */
	public static function of_menu( $items, $menu ) {
		if ( isset( $menu->term_id ) ) {
			self::add( "menu-$menu->term_id" );
		}
		return $items;
	}

	/** Blocks that show a post which no query names: synced patterns, navigation and its links. */
	public static function of_block( $text, $block = array() ) {
		$attributes = $block['attrs'] ?? array();
		if ( ! empty( $attributes['ref'] ) ) {
			self::add( 'post-' . (int) $attributes['ref'] );
		}
		if ( ! empty( $attributes['id'] ) && 0 === strpos( (string) ( $block['blockName'] ?? '' ), 'core/navigation-' ) ) {
			$kind = 'taxonomy' === ( $attributes['kind'] ?? '' ) ? 'termlink' : 'link';
			self::add( "$kind-" . (int) $attributes['id'] );
		}
		return $text;
	}

	public static function of_image( $image, $id = 0 ) {
		if ( $id ) {
			self::add( 'post-' . (int) $id );
		}
		return $image;
	}

	/** When those on it were changed, or any post if there are none. */
	public static function of_build_date( $date ) {
		$posts = $GLOBALS['wp_query']->posts ?? array();
		foreach ( $posts as $post ) {
			if ( $post instanceof \WP_Post ) {
				self::add( "meta-$post->ID" );
			}
		}
		if ( ! $posts ) {
			self::add( 'lastmodified' );
		}
		return $date;
	}

	public static function of_post_sitemap( $args, $type = 'post' ) {
		self::of_sitemap( "sitemap-$type" );
		return $args;
	}

	public static function of_term_sitemap( $args, $taxonomy = '' ) {
		self::of_sitemap( "sitemapterms-$taxonomy" );
		return $args;
	}

	public static function of_user_sitemap( $args ) {
		self::of_sitemap( 'sitemapusers' );
		return $args;
	}

	/** The index looks whether there is anything in each, and at nothing else of it. */
	private static function of_sitemap( string $tag ): void {
		$asked = get_query_var( 'sitemap' );
		self::$is_sitemap = self::$is_sitemap || '' !== (string) $asked;
		self::add( 'index' === $asked ? 'sitemap' : $tag );
	}
}
