<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** Turns what changes of terms into the tags of the pages that show or list them. */
final class Term_Changes {
	/** @var array<int, array> Terms before they change. */
	private static $before = array();
	/** @var array<int, int> Numbers of posts before they are counted again. */
	private static $counts = array();

	public static function register(): void {
		add_action( 'created_term', array( self::class, 'created' ), 10, 3 );
		add_action( 'edit_terms', array( self::class, 'remember' ), 10, 2 );
		add_action( 'edited_term', array( self::class, 'edited' ), 10, 3 );
		add_action( 'pre_delete_term', array( self::class, 'remember' ), 10, 2 );
		add_action( 'delete_term', array( self::class, 'deleted' ), 10, 3 );
		add_action( 'edit_term_taxonomy', array( self::class, 'remember_count' ) );
		add_action( 'edited_term_taxonomy', array( self::class, 'counted' ), 10, 2 );
	}

	private static function state( int $id, string $taxonomy ): array {
		$term  = get_term( $id, $taxonomy );
		$below = get_term_children( $id, $taxonomy );
		$state = array(
			'name'        => $term->name ?? '',
			'slug'        => $term->slug ?? '',
			'description' => $term->description ?? '',
			'above'       => get_ancestors( $id, $taxonomy, 'taxonomy' ),
			'urls'        => array(),
		);
		foreach ( array_merge( array( $id ), is_array( $below ) ? $below : array() ) as $one ) {
			$url                   = get_term_link( (int) $one, $taxonomy );
			$state['urls'][ $one ] = is_string( $url ) ? $url : '';
		}
		return $state;
	}

	public static function remember( $id, $taxonomy ): void {
		if ( is_taxonomy_viewable( $taxonomy ) ) {
			self::$before[ $id ] = self::state( (int) $id, $taxonomy );
		}
	}

	/** There are no posts in it yet: lists that leave out empty ones stay as they are. */
	public static function created( $id, $tt_id, $taxonomy ): void {
		if ( is_taxonomy_viewable( $taxonomy ) ) {
			Queue::tags( "$taxonomy $id created", array( "allterms-$taxonomy" ) );
			Queue::tags( "$taxonomy $id created", array( '404' ), true );
		}
	}

	public static function edited( $id, $tt_id, $taxonomy ): void {
		if ( ! is_taxonomy_viewable( $taxonomy ) || ! isset( self::$before[ $id ] ) ) {
			return;
		}
		clean_term_cache( $id, $taxonomy );
		$was    = self::$before[ $id ];
		$is     = self::state( (int) $id, $taxonomy );
		$reason = "$taxonomy $id edited";
		if ( $was['name'] !== $is['name'] ) {
			Queue::tags( $reason, array( "termlink-$id", "terms-$taxonomy" ) );
		}
		if ( $was['description'] !== $is['description'] ) {
			Queue::tags( $reason, array( "termtext-$id" ) );
		}
		if ( $was['above'] !== $is['above'] ) {
			// The lists of those above it have its posts, too.
			$lists = array_map( fn( $one ) => "term-$one", array_merge( $was['above'], $is['above'] ) );
			Queue::tags( $reason, array_merge( $lists, array( "termlink-$id", "terms-$taxonomy", "termids-$taxonomy" ) ) );
		}
		if ( $was['slug'] !== $is['slug'] || $was['urls'] !== $is['urls'] ) {
			self::addresses_changed( $reason, $taxonomy, array_keys( $was['urls'] + $is['urls'] ) );
		}
		unset( self::$before[ $id ] );
	}

	public static function deleted( $id, $tt_id, $taxonomy ): void {
		if ( is_taxonomy_viewable( $taxonomy ) ) {
			$reason = "$taxonomy $id deleted";
			// Those below it move up.
			self::addresses_changed( $reason, $taxonomy, array_keys( self::$before[ $id ]['urls'] ?? array( $id => '' ) ) );
			Queue::tags( $reason, array( "termids-$taxonomy", 'sitemap' ), true );
			unset( self::$before[ $id ] );
		}
	}

	/** @param int[] $ids Terms whose addresses are others now. */
	private static function addresses_changed( string $reason, string $taxonomy, array $ids ): void {
		if ( false !== strpos( (string) get_option( 'permalink_structure' ), "%$taxonomy%" ) ) {
			// They are part of those of posts.
			Queue::all( $reason );
			return;
		}
		foreach ( $ids as $id ) {
			Queue::tags( $reason, array( "term-$id", "termlink-$id", "termslug-$id", "termtext-$id" ), true );
		}
		Queue::tags( $reason, array( '404', "terms-$taxonomy", "sitemapterms-$taxonomy" ), true );
	}

	private static function count_of( $tt_id ): int {
		global $wpdb;
		return (int) $wpdb->get_var( $wpdb->prepare( "SELECT count FROM $wpdb->term_taxonomy WHERE term_taxonomy_id = %d", $tt_id ) );
	}

	public static function remember_count( $tt_id ): void {
		self::$counts[ $tt_id ] = self::count_of( $tt_id );
	}

	/** Lists of terms show how many posts each has, and often none that has none. */
	public static function counted( $tt_id, $taxonomy ): void {
		$name = $taxonomy instanceof \WP_Taxonomy ? $taxonomy->name : (string) $taxonomy;
		$was  = self::$counts[ $tt_id ] ?? null;
		$is   = self::count_of( $tt_id );
		if ( $was === $is || ! is_taxonomy_viewable( $name ) ) {
			return;
		}
		Queue::tags( "posts of $name counted", array( "terms-$name" ) );
		if ( ! $was || ! $is ) {
			Queue::tags( "posts of $name counted", array( "termids-$name", "sitemapterms-$name", 'sitemap' ), ! $is );
		}
	}
}
