<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** Collects what a request changes, and purges it in one go when the request ends. */
final class Queue {
	/** More tags than this mean the whole site: an import, a bulk edit. */
	const TAGS_MAX = 300;
	const LOG_MAX  = 100;
	/** The option with purges that wait to be sent again; more of them than this mean the whole site. */
	const PENDING     = 'yorozu_pending';
	const PENDING_MAX = 20;
	/** How often it is tried to change what other processes change at the same time. */
	const TRIES = 20;
	/** The tag of pages that say that there is none: any change may make one there. */
	const MISSING = 'missing';

	/** The tag of pages of a network's first site that show something of others. */
	const ABROAD = 'abroad';

	/**
	 * @var array<int, array> What was noted on each site of a network: `tags` and `urls`, true: hard, and `reasons`, for the log.
	 * A request may switch to other sites.
	 */
	private static $noted = array();
	/** @var array<string, bool> What this request's answer asks for, true: hard. */
	private static $answered = array();

	public static function register(): void {
		// Before WordPress ends its output buffers at 1: a field of the answer can still be set.
		add_action( 'shutdown', array( self::class, 'flush' ), 0 );
		// For what others do at shutdown.
		add_action( 'shutdown', array( self::class, 'flush' ), PHP_INT_MAX );
		add_action( 'yorozu_retry', array( self::class, 'retry' ) );
		if ( wp_doing_cron() ) {
			// WP-Cron itself may do nothing for a minute: while a request that it sent to itself has not come, say.
			add_action( 'init', array( self::class, 'retry' ) );
		}
		if ( ! Client::is_configured() && Client::is_behind_server() && ! Page::is_asked_for() ) {
			add_action( 'init', array( self::class, 'hold_back' ), PHP_INT_MIN );
		}
	}

	/** Purges that go with the answer stand in its head, which the block editor's long answers would have sent before. */
	public static function hold_back(): void {
		ob_start( null, Page::HELD_BYTES_MAX );
	}

	/**
	 * Notes tags to purge.
	 *
	 * @param string   $reason  What happened.
	 * @param string[] $tags    Tags of this site, without its prefix.
	 * @param bool     $is_hard Gone at once; else pages are served once more while they are refreshed.
	 * @param int|null $site    Of a network, if it is not the current one.
	 */
	public static function tags( string $reason, array $tags, bool $is_hard = false, ?int $site = null ): void {
		self::note( $site, $reason, 'tags', $tags, $is_hard );
	}

	/** Notes a page to purge; `*` at its end means all that begin so. */
	public static function url( string $reason, string $url, bool $is_hard = true, ?int $site = null ): void {
		$parts = wp_parse_url( $url );
		if ( ! $parts ) {
			return;
		}
		// What begins with `//` names a host, for the server.
		$path = '/' . ltrim( $parts['path'] ?? '', '/' ) . ( isset( $parts['query'] ) ? '?' . $parts['query'] : '' );
		self::note( $site, $reason, 'urls', array( $path ), $is_hard );
	}

	/** Notes the whole site. */
	public static function all( string $reason, ?int $site = null ): void {
		self::tags( $reason, array( 'site' ), true, $site );
	}

	/** @param string[] $names */
	private static function note( ?int $site, string $reason, string $what, array $names, bool $is_hard ): void {
		$site  = $site ?? get_current_blog_id();
		$noted = self::$noted[ $site ] ?? array( 'tags' => array(), 'urls' => array(), 'reasons' => array() );

		$noted['reasons'][ $reason ] = true;
		foreach ( $names as $name ) {
			$noted[ $what ][ $name ] = $is_hard || ! empty( $noted[ $what ][ $name ] );
		}
		self::$noted[ $site ] = $noted;
	}

	/**
	 * Purges what was noted.
	 *
	 * @param mixed $by_hand True: whatever the settings say.
	 * @return int|null How many stored responses were purged; null: unknown, or nothing could be purged.
	 */
	public static function flush( $by_hand = false ): ?int {
		$all         = array_filter( self::$noted, fn( $noted ) => $noted['tags'] || $noted['urls'] );
		self::$noted = array();
		$count       = 0;
		foreach ( self::with_first_site( $all ) as $site => $noted ) {
			// One that was deleted has no settings any more.
			if ( is_multisite() && ! get_site( $site ) ) {
				continue;
			}
			$purged = Sites::on( $site, fn() => self::flush_site( $noted, true === $by_hand ) );
			$count  = null === $count || null === $purged ? null : $count + $purged;
		}
		return $count;
	}

	/** The first site of a network may show posts of all others. */
	private static function with_first_site( array $all ): array {
		$first = is_multisite() ? get_main_site_id() : 0;
		if ( $all && $first && array_diff( array_keys( $all ), array( $first ) ) ) {
			self::$noted = $all;
			self::tags( 'another site', array( self::ABROAD ), false, $first );
			$all         = self::$noted;
			self::$noted = array();
		}
		return $all;
	}

	/** @param array $noted What was noted on the current site. */
	private static function flush_site( array $noted, bool $is_by_hand ): ?int {
		if ( ! $is_by_hand && ! Settings::is_on() ) {
			return null;
		}
		/**
		 * Filters the tags to purge: names, true for hard.
		 *
		 * @param array $tags Tags without the prefix of a site of a network.
		 */
		$tags = apply_filters( 'yorozu_purge_tags', $noted['tags'] );
		if ( count( $tags ) > self::TAGS_MAX || ! empty( $tags['site'] ) ) {
			$tags = array( 'site' => true );
		}
		$urls = $noted['urls'];
		foreach ( Settings::extra_urls() as $url ) {
			$urls[ $url ] = $urls[ $url ] ?? true;
		}
		if ( Other_Cache::is_active() ) {
			// First, so that nothing is refilled from it; then all pages, for those from its files have no tags.
			Other_Cache::clear();
			$urls[ wp_parse_url( home_url( '/' ), PHP_URL_PATH ) . '*' ] = true;
		}
		$count = count( $tags ) + count( $urls );
		if ( empty( $tags['site'] ) ) {
			// At once, unless all purges of the answer share one depth.
			$tags[ self::MISSING ] = Client::is_configured();
		}
		return self::send( self::batches( $tags, $urls ), array_keys( $noted['reasons'] ), $count )[0];
	}

	/** What could not be purged is tried again by WP-Cron, and whenever that is asked for. */
	public static function retry(): void {
		$pending = self::pending( $raw );
		// It waits on until it is done; what came meanwhile, too.
		if ( $pending && self::send( $pending, array( 'again' ), count( $pending ) )[1] ) {
			self::change_pending( fn( $now ) => array_values( array_filter( $now, fn( $batch ) => ! in_array( $batch, $pending, true ) ) ) );
		}
	}

	/**
	 * What waits, as the database has it: a cache of options may say what was, when several processes look after them.
	 *
	 * @param string|null $raw Is set to what stands there; null: nothing.
	 */
	private static function pending( ?string &$raw = null ): array {
		global $wpdb;
		$raw     = $wpdb->get_var( $wpdb->prepare( "SELECT option_value FROM $wpdb->options WHERE option_name = %s", self::PENDING ) );
		$pending = maybe_unserialize( (string) $raw );
		return is_array( $pending ) ? $pending : array();
	}

	/** Changes what waits, also where other processes do. */
	private static function change_pending( callable $change ): void {
		global $wpdb;
		for ( $try = 0; $try < self::TRIES; $try++ ) {
			$new = maybe_serialize( $change( self::pending( $raw ) ) );
			if ( $new === $raw ) {
				return;
			}
			$is_changed = null === $raw
				? $wpdb->query( $wpdb->prepare( "INSERT IGNORE INTO $wpdb->options (option_name, option_value, autoload) VALUES (%s, %s, 'no')", self::PENDING, $new ) )
				: $wpdb->query( $wpdb->prepare( "UPDATE $wpdb->options SET option_value = %s WHERE option_name = %s AND option_value = %s", $new, self::PENDING, $raw ) );
			if ( $is_changed ) {
				wp_cache_delete( self::PENDING, 'options' );
				wp_cache_delete( 'notoptions', 'options' );
				return;
			}
		}
	}

	/**
	 * @param array<string, bool> $tags
	 * @param array<string, bool> $urls
	 */
	private static function batches( array $tags, array $urls ): array {
		$batches = array();
		foreach ( array( true, false ) as $is_hard ) {
			$batch = array(
				'tags' => Tags::for_purge( array_keys( $tags, $is_hard, true ) ),
				'urls' => array_map( 'strval', array_keys( $urls, $is_hard, true ) ),
				'soft' => ! $is_hard,
			);
			if ( $batch['tags'] || $batch['urls'] ) {
				$batches[] = $batch;
			}
		}
		return $batches;
	}

	/** @return array How many stored responses were purged, if that is known, and whether it need not be sent again. */
	private static function send( array $batches, array $reasons, int $count ): array {
		$begun   = microtime( true );
		$purged  = null;
		$is_done = true;
		try {
			if ( Client::is_configured() ) {
				$purged = Client::purge( $batches );
				$result = sprintf( 'purged %d in %.1f ms', $purged, ( microtime( true ) - $begun ) * 1000 );
			} elseif ( Client::is_behind_server() && ! headers_sent() && self::is_of_this_host() ) {
				self::by_answer( $batches );
				$result = 'sent with the answer';
			} elseif ( Client::is_behind_server() ) {
				$result = 'not purged: the answer had begun, or is of another host; connect to the server under Settings, Page cache';
			} else {
				// No yorozu here: there is nothing to keep right.
				return array( null, true );
			}
		} catch ( \RuntimeException $problem ) {
			$is_done = false;
			$result  = $problem->getMessage();
			// What is refused once is refused again; when the token is right, or whatever it was, all pages are purged instead.
			$is_refused = $problem->getCode() >= 400 && $problem->getCode() < 500;
			self::keep( $is_refused ? self::batches( array( 'site' => true ), array() ) : $batches );
		}
		self::log( $reasons, $count, $result );
		return array( $purged, $is_done );
	}

	/** Without an address the server takes purges from the answer's own head. */
	private static function by_answer( array $batches ): void {
		foreach ( $batches as $batch ) {
			foreach ( $batch['tags'] as $tag ) {
				self::answered( "tag=$tag", ! $batch['soft'] );
			}
			foreach ( $batch['urls'] as $url ) {
				self::answered( 'url=' . str_replace( ',', '%2C', $url ), ! $batch['soft'] );
			}
		}
		$items = array_keys( self::$answered );
		// One depth for all of a head: what must go at once decides.
		if ( ! array_filter( self::$answered ) ) {
			$items[] = 'soft';
		}
		header( 'X-Accel-Purge: ' . implode( ', ', $items ) );
	}

	/** Adds to what an earlier flush of this request, or another site of the network, asks for. */
	private static function answered( string $item, bool $is_hard ): void {
		self::$answered[ $item ] = $is_hard || ! empty( self::$answered[ $item ] );
	}

	/** Whether the current site's pages are of the host of this request, the only one that an answer may purge. */
	private static function is_of_this_host(): bool {
		$first = $GLOBALS['_wp_switched_stack'][0] ?? get_current_blog_id();
		$host  = fn( $site ) => wp_parse_url( get_home_url( $site ), PHP_URL_HOST );
		return ! is_multisite() || $host( $first ) === $host( get_current_blog_id() );
	}

	private static function keep( array $batches ): void {
		$site = self::batches( array( 'site' => true ), array() );
		self::change_pending(
			function ( $pending ) use ( $batches, $site ) {
				$all = array_unique( array_merge( $pending, $batches ), SORT_REGULAR );
				return $batches === $site || count( $all ) > self::PENDING_MAX ? $site : array_values( $all );
			}
		);
		if ( ! wp_next_scheduled( 'yorozu_retry' ) ) {
			wp_schedule_single_event( time() + MINUTE_IN_SECONDS, 'yorozu_retry' );
		}
	}

	private static function log( array $reasons, int $count, string $result ): void {
		$log = get_option( 'yorozu_log' );
		$log = is_array( $log ) ? $log : array();
		array_unshift(
			$log,
			array(
				'time'   => time(),
				'user'   => get_current_user_id(),
				'reason' => implode( ', ', array_slice( $reasons, 0, 5 ) ),
				'count'  => $count,
				'result' => $result,
			)
		);
		update_option( 'yorozu_log', array_slice( $log, 0, self::LOG_MAX ), false );
	}
}
