<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** Turns what changes of users into the tags of the pages that name them or list what they wrote. */
final class User_Changes {
	/** What pages show of a user: fields, and meta. */
	const FIELDS = array( 'display_name', 'user_nicename', 'user_url', 'user_email' );
	const META   = array( 'description', 'first_name', 'last_name', 'nickname' );

	public static function register(): void {
		add_action( 'profile_update', array( self::class, 'edited' ), 10, 2 );
		foreach ( array( 'added', 'updated', 'deleted' ) as $change ) {
			add_action( "{$change}_user_meta", array( self::class, 'meta_changed' ), 10, 3 );
		}
		foreach ( array( 'user_register', 'add_user_to_blog', 'set_user_role', 'add_user_role', 'remove_user_role' ) as $hook ) {
			add_action( $hook, array( self::class, 'listed' ) );
		}
		add_action( 'delete_user', array( self::class, 'leaving' ), 10, 2 );
		add_action( 'remove_user_from_blog', array( self::class, 'leaving_site' ), 10, 3 );
	}

	public static function edited( $id, $old ): void {
		$new     = get_userdata( $id );
		$changed = array_filter( self::FIELDS, fn( $field ) => $new && $new->$field !== $old->$field );
		if ( ! $changed ) {
			return;
		}
		$is_hard = in_array( 'user_nicename', $changed, true );
		$tags    = array( "authorlink-$id", 'users' );
		$more    = $is_hard ? array( "author-$id", 'sitemapusers', '404' ) : array();
		foreach ( Sites::of_user( (int) $id ) as $site ) {
			if ( $is_hard && false !== strpos( (string) Sites::on( $site, fn() => get_option( 'permalink_structure' ) ), '%author%' ) ) {
				Queue::all( "user $id edited", $site );
			} else {
				Queue::tags( "user $id edited", array_merge( $tags, $more ), $is_hard, $site );
			}
		}
	}

	public static function meta_changed( $meta_id, $id, $name ): void {
		/**
		 * Filters the user meta that pages show.
		 *
		 * @param string[] $names
		 */
		if ( in_array( $name, apply_filters( 'yorozu_user_meta', self::META ), true ) ) {
			foreach ( Sites::of_user( (int) $id ) as $site ) {
				Queue::tags( "user $id's $name", array( "authorlink-$id", 'users' ), false, $site );
			}
		}
	}

	public static function listed( $id ): void {
		Queue::tags( "user $id", array( 'users' ) );
	}

	/** @param int|null $heir The user who gets the posts; null: they are deleted one by one. */
	public static function leaving( $id, $heir = null ): void {
		$reason = "user $id deleted";
		Queue::tags( $reason, array( "author-$id", "authorlink-$id", 'users', 'sitemapusers', 'sitemap' ), true );
		if ( ! $heir ) {
			return;
		}
		global $wpdb;
		$posts = $wpdb->get_col( $wpdb->prepare( "SELECT ID FROM $wpdb->posts WHERE post_author = %d AND post_status IN ('publish', 'inherit') AND post_type <> 'revision' LIMIT %d", $id, Queue::TAGS_MAX + 1 ) );
		Queue::tags( $reason, array_merge( array( "author-$heir" ), array_map( fn( $post ) => "meta-$post", $posts ) ) );
	}

	public static function leaving_site( $id, $site = 0, $heir = null ): void {
		self::leaving( $id, $heir );
	}

	/**
	 * Lists of authors have those with posts.
	 *
	 * @return string[] Tags of such lists if this may be the author's first post, or was the last.
	 */
	public static function of_authors_posts( int $id ): array {
		global $wpdb;
		$types = Post_Changes::types_of_sitemaps();
		$in    = implode( ',', array_fill( 0, count( $types ), '%s' ) );
		$sql   = "SELECT COUNT(*) FROM (SELECT 1 FROM $wpdb->posts WHERE post_author = %d AND post_status = 'publish' AND post_type IN ($in) LIMIT 2) found";
		$count = $types ? (int) $wpdb->get_var( $wpdb->prepare( $sql, array_merge( array( $id ), $types ) ) ) : 0; // phpcs:ignore WordPress.DB.PreparedSQL -- placeholders.
		return $count < 2 ? array( 'users', 'sitemapusers', 'sitemap' ) : array();
	}
}
