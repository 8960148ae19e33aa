<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * Content that a page reads by its number, outside of any query: forms, templates, products, meta of any post or term. The page has a
 * tag for it from where it is read, and whoever writes it purges that.
 */
final class Used {
	/** Meta that other tags stand for, that no page shows, or that is written when a page is made. */
	const OTHER_META = '~^_(edit_l|encloseme$|menu_item_|oembed_|pingme$|wp_attach|wp_old_|wp_page_template$|wp_trash_)~';
	/** Types of posts that have tags of their own, or are read by nothing. */
	const OTHER_TYPES = array( 'nav_menu_item', 'revision', 'customize_changeset', 'oembed_cache', 'user_request' );
	/** Names of what says a number in a shortcode or a block: `id`, `form_id`, `formId`. */
	const NUMBERS = '~(^|[a-z_-])(id|ID|Id)$~';

	public static function register(): void {
		add_filter( 'get_post_metadata', array( self::class, 'of_post_meta' ), PHP_INT_MAX, 3 );
		add_filter( 'get_term_metadata', array( self::class, 'of_term_meta' ), PHP_INT_MAX, 2 );
		add_filter( 'do_shortcode_tag', array( self::class, 'of_shortcode' ), PHP_INT_MAX, 3 );
		add_filter( 'render_block', array( self::class, 'of_block' ), PHP_INT_MAX, 2 );
	}

	/** Who writes a term's meta; a post's is written with what else is of it (Post_Changes). */
	public static function register_changes(): void {
		foreach ( array( 'added', 'updated', 'deleted' ) as $change ) {
			add_action( "{$change}_term_meta", array( self::class, 'term_meta_changed' ), 10, 2 );
		}
	}

	/**
	 * @param mixed  $value Passed on.
	 * @param int    $id
	 * @param string $name  Empty: all meta of the post.
	 */
	public static function of_post_meta( $value, $id, $name = '' ) {
		if ( $id && ! preg_match( self::OTHER_META, (string) $name ) ) {
			Tags::add( "used-$id" );
		}
		return $value;
	}

	public static function of_term_meta( $value, $id ) {
		Tags::add( "termmeta-$id" );
		return $value;
	}

	/** @param array|string $attributes */
	public static function of_shortcode( $text, $name, $attributes = array() ) {
		self::of_numbers( (array) $attributes );
		return $text;
	}

	public static function of_block( $text, $block = array() ) {
		if ( ! empty( $block['attrs'] ) ) {
			self::of_numbers( $block['attrs'] );
		}
		return $text;
	}

	private static function of_numbers( array $attributes ): void {
		foreach ( $attributes as $name => $value ) {
			if ( is_scalar( $value ) && ctype_digit( (string) $value ) && preg_match( self::NUMBERS, (string) $name ) ) {
				Tags::add( 'used-' . (int) $value );
			}
		}
	}

	/** Whether posts of the type have no page of their own, and others may read them: forms, templates. */
	public static function is_type( string $type ): bool {
		return ! is_post_type_viewable( $type ) && ! in_array( $type, self::OTHER_TYPES, true );
	}

	/**
	 * Whether what is written now is an edit. What visitors bring about is none: counters of views are meta, and each view would make
	 * pages again.
	 */
	public static function is_edit(): bool {
		return ! Page::is_asked_for() && ( 'cli' === PHP_SAPI || wp_doing_cron() || current_user_can( 'edit_posts' ) );
	}

	public static function term_meta_changed( $meta_id, $id ): void {
		if ( self::is_edit() ) {
			Queue::tags( "meta of term $id", array( "termmeta-$id" ) );
		}
	}

	/**
	 * The tags that are of use on a page: a post that is shown is purged with all that is of it.
	 *
	 * @param string[] $tags
	 * @return string[]
	 */
	public static function without_shown( array $tags ): array {
		$has = array_flip( $tags );
		return array_filter(
			$tags,
			function ( $tag ) use ( $has ) {
				if ( 0 !== strpos( $tag, 'used-' ) ) {
					return true;
				}
				$id = (int) substr( $tag, 5 );
				return ! isset( $has[ "post-$id" ] ) && ! in_array( get_post_type( $id ), self::OTHER_TYPES, true );
			}
		);
	}
}
