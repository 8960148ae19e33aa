<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** Turns what changes of comments into the tags of the pages that show them. */
final class Comment_Changes {
	public static function register(): void {
		add_action( 'wp_insert_comment', array( self::class, 'made' ), 10, 2 );
		add_action( 'edit_comment', array( self::class, 'edited' ) );
		add_action( 'transition_comment_status', array( self::class, 'moved' ), 10, 3 );
		add_action( 'delete_comment', array( self::class, 'deleted' ), 10, 2 );
		add_action( 'wp_update_comment_count', array( self::class, 'counted' ), 10, 3 );
	}

	public static function made( $id, $comment ): void {
		self::of_shown( $comment, 'made', false );
	}

	public static function edited( $id ): void {
		self::of_shown( get_comment( $id ), 'edited', false );
	}

	public static function moved( $new, $old, $comment ): void {
		if ( 'approved' === $new || 'approved' === $old ) {
			self::of( $comment, $new, 'approved' === $old );
		}
	}

	public static function deleted( $id, $comment ): void {
		self::of_shown( $comment, 'deleted', true );
	}

	public static function counted( $post_id, $new, $old ): void {
		if ( (int) $new !== (int) $old ) {
			Queue::tags( "comments of $post_id", array( "commentcount-$post_id", 'bycomments-' . get_post_type( $post_id ) ) );
		}
	}

	private static function of_shown( $comment, string $what, bool $is_hard ): void {
		if ( $comment && '1' === (string) $comment->comment_approved ) {
			self::of( $comment, $what, $is_hard );
		}
	}

	private static function of( $comment, string $what, bool $is_hard ): void {
		$post = (int) $comment->comment_post_ID;
		// Comments behind a password are not stored: the page of before must not stay.
		$is_hard = $is_hard || '' !== (string) get_post_field( 'post_password', $post, 'raw' );
		$tags = $is_hard ? array( "comments-$post", "commentcount-$post", 'comments' ) : array( "comments-$post", 'comments' );
		Queue::tags( "comment $comment->comment_ID $what", $tags, $is_hard );
	}
}
