<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * The page that is being made. It is held back until it is whole: its tags, and whether it may be stored, stand in its
 * head. What goes out before that is not stored, however it came to it: the head says so from the start and is only
 * taken back at the end.
 */
final class Page {
	/** Bytes of a page that are held back; a longer one flows, and is not stored. */
	const HELD_BYTES_MAX = 4 * MB_IN_BYTES;
	/** Of PHP's own buffer, which has this size from the start: one of megabytes would be mapped and unmapped with each page. */
	const BUFFER_BYTES = 128 * KB_IN_BYTES;
	/** Seconds for which a form with a nonce is to be of use when its page is served for the last time. */
	const NONCE_MARGIN = HOUR_IN_SECONDS;
	/** Seconds for which it is remembered that there is no page: robots try many addresses, and each runs PHP. */
	const MISSING_SECONDS = MINUTE_IN_SECONDS;
	/** The longest that the page may be stored, a field of yorozu's alone. */
	const BOUND = 'X-Accel-Expires-Max';

	/** @var bool Must the page not be stored? */
	private static $is_vetoed = false;
	/** @var bool Was DONOTCACHEPAGE defined here, for another cache? */
	private static $is_kept_from_others = false;
	/** @var string|null What did not fit into PHP's buffer; null: the page flows. */
	private static $held = '';
	/** @var int|null Seconds for which the nonces on the page are valid. */
	private static $nonce_seconds = null;

	/** Whether this request's answer may be stored. */
	public static function is_asked_for(): bool {
		$method = $_SERVER['REQUEST_METHOD'] ?? ''; // phpcs:ignore WordPress.Security.ValidatedSanitizedInput -- it is compared.
		return ! is_admin() && ! wp_doing_cron() && in_array( $method, array( 'GET', 'HEAD' ), true );
	}

	public static function register(): void {
		if ( ! headers_sent() ) {
			header( self::BOUND . ': 0' );
		}
		add_action( 'init', array( self::class, 'start' ), PHP_INT_MIN );
		// Before WordPress ends its output buffers at 1.
		add_action( 'shutdown', array( self::class, 'complete' ), 0 );
		add_filter( 'nonce_life', array( self::class, 'of_nonce' ), PHP_INT_MAX );
	}

	/** Keeps the page from being stored. */
	public static function veto(): void {
		self::$is_vetoed = true;
	}

	public static function start(): void {
		// In the place of PHP's own buffer: a flush of the one is not to be held back by the other.
		$is_first = array( 'default output handler' ) === ob_list_handlers();
		$text     = $is_first ? (string) ob_get_clean() : '';
		ob_start( array( self::class, 'pass' ), self::BUFFER_BYTES );
		echo $text; // phpcs:ignore WordPress.Security.EscapeOutput -- it has been printed already.
	}

	/**
	 * The buffer is full, or it is flushed, dropped or ended.
	 *
	 * @return string|false What is sent; false: all that comes, as it is.
	 */
	public static function pass( string $text, int $phase ) {
		if ( $phase & PHP_OUTPUT_HANDLER_CLEAN ) {
			self::$held = '';
			return '';
		}
		if ( null === self::$held ) {
			return false;
		}
		$text = self::$held . $text;
		if ( ! ( $phase & ( PHP_OUTPUT_HANDLER_FLUSH | PHP_OUTPUT_HANDLER_FINAL ) ) && strlen( $text ) < self::HELD_BYTES_MAX ) {
			self::$held = $text;
			return '';
		}
		self::$held = null;
		// Others may have added to the page when WordPress ended their buffers.
		if ( ( $phase & PHP_OUTPUT_HANDLER_FINAL ) && did_action( 'shutdown' ) ) {
			self::complete();
			self::keep_from_others();
		}
		return $text;
	}

	/** The page is whole: its head says what it is. */
	public static function complete(): void {
		if ( headers_sent() ) {
			return;
		}
		$bound = self::bound();
		header_remove( self::BOUND );
		header_remove( Shoppers::FIELD );
		$is_vetoed = self::is_vetoed();
		if ( $is_vetoed ) {
			header( 'X-Accel-Expires: 0' );
		} elseif ( null !== $bound ) {
			header( self::BOUND . ": $bound" );
		}
		if ( ! $is_vetoed && Shoppers::is_page_shared() ) {
			header( Shoppers::FIELD . ': yes' );
		}
		if ( ! $is_vetoed && 404 === http_response_code() && did_action( 'wp' ) && is_404() ) {
			// WordPress forbids to store it (nocache_headers()), because a page may be published there: then it is purged.
			header( 'X-Accel-Expires: ' . min( self::MISSING_SECONDS, $bound ?? self::MISSING_SECONDS ) );
			Tags::add( Queue::MISSING );
		} elseif ( ! $is_vetoed && null !== Client::seconds() && in_array( http_response_code(), array( 200, 301 ), true ) && ! self::has_lifetime() ) {
			header( 'X-Accel-Expires: ' . min( Client::seconds(), $bound ?? Client::seconds() ) );
		}
		header( 'Surrogate-Key: ' . implode( ' ', Tags::for_page() ) );
	}

	/** Whether the page says by itself how long it may be stored. */
	private static function has_lifetime(): bool {
		foreach ( headers_list() as $line ) {
			if ( in_array( strtolower( strstr( $line, ':', true ) ), array( 'cache-control', 'expires', 'x-accel-expires' ), true ) ) {
				return true;
			}
		}
		return false;
	}

	/** Seconds for which the page may be stored, by its nonces and by what others have said. */
	private static function bound(): ?int {
		$bounds = null === self::$nonce_seconds ? array() : array( max( 0, self::$nonce_seconds - self::NONCE_MARGIN ) );
		foreach ( headers_list() as $line ) {
			list( $name, $value ) = explode( ':', $line, 2 );
			if ( 0 === strcasecmp( $name, self::BOUND ) && (int) $value > 0 ) {
				$bounds[] = (int) $value;
			}
		}
		return $bounds ? min( $bounds ) : null;
	}

	private static function is_vetoed(): bool {
		$is_vetoed = self::$is_vetoed || Personal::is_page();
		if ( defined( 'DONOTCACHEPAGE' ) && \DONOTCACHEPAGE && ! self::$is_kept_from_others ) {
			$is_vetoed = true;
		}
		/**
		 * Filters whether the page must not be stored.
		 *
		 * @param bool $is_vetoed
		 */
		return (bool) apply_filters( 'yorozu_is_vetoed', $is_vetoed );
	}

	/** A page from another cache's file would come without tags. */
	private static function keep_from_others(): void {
		if ( Client::is_configured() && Other_Cache::is_active() && ! defined( 'DONOTCACHEPAGE' ) ) {
			define( 'DONOTCACHEPAGE', true );
			self::$is_kept_from_others = true;
		}
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
