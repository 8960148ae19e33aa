<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** What a query of posts depends on. */
final class Lists {
	/** @return string[] Tags of the lists that the query's answer depends on. */
	public static function tags( \WP_Query $query ): array {
		if ( $query->is_comment_feed() && ! $query->is_singular() ) {
			return array( 'comments' );
		}
		$tags = self::narrowest( $query );
		if ( self::is_by_stickiness( $query ) ) {
			$tags[] = 'sticky-all';
		}
		if ( '' !== (string) $query->get( 's' ) ) {
			$tags[] = 'search';
		}
		$order = $query->get( 'orderby' );
		$order = is_array( $order ) ? array_keys( $order ) : preg_split( '/[\s,]+/', (string) $order );
		foreach ( $order as $by ) {
			$by = str_replace( array( 'post_', 'name' ), array( '', 'title' ), (string) $by );
			$by = array( 'title' => 'bytitle', 'modified' => 'bymodified', 'comment_count' => 'bycomments' )[ $by ] ?? null;
			foreach ( $by ? self::queried_types( $query ) : array() as $type ) {
				$tags[] = "$by-$type";
			}
		}
		return $tags;
	}

	/** @return string[] Of all that narrows the list, what narrows it most. */
	private static function narrowest( \WP_Query $query ): array {
		$ids = array_filter( array_map( 'intval', (array) $query->get( 'post__in' ) ) );
		if ( $ids ) {
			// Products on sale, featured ones, those that sell best: they are named, and others may come.
			$more = in_array( 'product', self::queried_types( $query ), true ) ? array( 'list-product' ) : array();
			return array_merge( $more, array_map( fn( $id ) => "link-$id", $ids ) );
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
		if ( self::is_by_name( $query ) && ( $query->is_main_query() || self::is_seen( $query ) ) ) {
			// There is one or none, which is seen when it has been looked for.
			return array();
		}
		return array_map( fn( $type ) => "list-$type", self::queried_types( $query ) );
	}

	/** @return string[] */
	private static function queried_types( \WP_Query $query ): array {
		$types = array_filter( (array) $query->get( 'post_type' ) );
		if ( ! $types && $query->is_tax ) {
			$types = array( 'any' );
		}
		if ( in_array( 'any', $types, true ) || $query->is_search() && ! $types ) {
			$types = get_post_types( array( 'exclude_from_search' => false ) );
		}
		return $types ? array_values( $types ) : array( 'post' );
	}

	/** Whether it puts sticky posts first, or takes only them, or none of them. */
	private static function is_by_stickiness( \WP_Query $query ): bool {
		if ( $query->is_home && ! $query->get( 'ignore_sticky_posts' ) && (int) $query->get( 'paged' ) <= 1 ) {
			return true;
		}
		$in  = array_map( 'intval', (array) $query->get( 'post__in' ) );
		$out = array_map( 'intval', (array) $query->get( 'post__not_in' ) );
		if ( ! $in && ! $out ) {
			return false;
		}
		// None is written as a post 0.
		$sticky = array_map( 'intval', (array) get_option( 'sticky_posts' ) ) ?: array( 0 );
		return ! array_diff( $sticky, $in ) || ! array_diff( $sticky, $out );
	}

	/** Whether what it finds is passed on to filters. */
	private static function is_seen( \WP_Query $query ): bool {
		return ! $query->get( 'suppress_filters' ) && ! in_array( $query->get( 'fields' ), array( 'ids', 'id=>parent' ), true );
	}

	public static function is_by_name( \WP_Query $query ): bool {
		return '' !== (string) $query->get( 'name' ) || '' !== (string) $query->get( 'pagename' );
	}

	/** @return int[] The terms of which each listed post must have one; none if it is not as simple. */
	private static function queried_terms( \WP_Query $query ): array {
		$found = array();
		$asked = isset( $query->tax_query->queries ) ? $query->tax_query->queries : array();
		// Any one clause that all listed posts meet will do.
		$clause = 'OR' === ( $asked['relation'] ?? 'AND' ) ? null : ( $asked[0] ?? null );
		if ( ! is_array( $clause ) || empty( $clause['taxonomy'] ) || 'IN' !== ( $clause['operator'] ?? 'IN' ) || 'wp_theme' === $clause['taxonomy'] ) {
			// With a theme's templates all pages change.
			return array();
		}
		foreach ( (array) $clause['terms'] as $value ) {
			$term = self::term( (string) ( $clause['field'] ?? 'term_id' ), $value, $clause['taxonomy'] );
			if ( ! $term ) {
				return array();
			}
			$found[] = $term;
		}
		return $found;
	}

	/** The number of a term, which may be looked up in the database; 0: there is none. */
	private static function term( string $field, $value, $taxonomy ): int {
		static $known = array();
		$key          = wp_json_encode( array( get_current_blog_id(), $field, $value, $taxonomy ) );
		if ( ! isset( $known[ $key ] ) ) {
			$term          = get_term_by( 'id' === $field ? 'term_id' : $field, $value, $taxonomy );
			$known[ $key ] = $term ? (int) $term->term_id : 0;
		}
		return $known[ $key ];
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
}
