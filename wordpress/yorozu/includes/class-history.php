<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/**
 * What the server counted, hour by hour: its counters begin again with it, and a day's figures need yesterday's last. In the
 * option `yorozu_history`, which no visitor's request reads.
 */
final class History {
	const OPTION = 'yorozu_history';
	/** Seconds between two points, and for how long they are kept: at most some hundred. */
	const APART = 900;
	const KEPT  = 26 * HOUR_IN_SECONDS;

	public static function register(): void {
		add_action( 'yorozu_hour', array( self::class, 'hour' ) );
		add_action( 'admin_init', array( self::class, 'schedule' ) );
		register_deactivation_hook( dirname( __DIR__ ) . '/yorozu.php', array( self::class, 'stop' ) );
	}

	public static function schedule(): void {
		if ( Client::is_configured() && ! wp_next_scheduled( 'yorozu_hour' ) ) {
			wp_schedule_event( time(), 'hourly', 'yorozu_hour' );
		}
	}

	/** @param bool $is_of_network Whether the plugin is deactivated on all sites of a network. */
	public static function stop( $is_of_network = false ): void {
		foreach ( $is_of_network ? Sites::all() : array( get_current_blog_id() ) as $site ) {
			Sites::on( $site, fn() => wp_clear_scheduled_hook( 'yorozu_hour' ) );
		}
	}

	/** Once an hour. */
	public static function hour(): void {
		try {
			self::note( Client::answer() );
		} catch ( \RuntimeException $problem ) {
			// The next hour has its figures, too.
			return;
		}
	}

	/** Keeps what the server has counted so far. */
	public static function note( array $answer ): void {
		$point = self::point( $answer );
		$past  = self::past();
		$last  = end( $past );
		if ( $point && ( ! $last || $point['time'] - $last['time'] >= self::APART ) ) {
			$past[] = $point;
			update_option( self::OPTION, $past, false );
		}
	}

	/**
	 * The last 24 hours, the oldest first, and today, which began at midnight of the site's time zone.
	 *
	 * @return array `hours`: each with `time`, `hits`, `others`, `unstorable` (of the others), `passed` (by a rule) and `saved` (milliseconds); `today`: the same.
	 */
	public static function day( array $answer ): array {
		$point  = self::point( $answer );
		$points = $point ? array_merge( self::past(), array( $point ) ) : self::past();
		$now    = time();
		$hour   = $now - $now % HOUR_IN_SECONDS;
		$none   = array( 'hits' => 0, 'others' => 0, 'passed' => 0, 'unstorable' => 0, 'saved' => 0 );
		$hours  = array();
		for ( $at = $hour - 23 * HOUR_IN_SECONDS; $at <= $hour; $at += HOUR_IN_SECONDS ) {
			$hours[ $at ] = array( 'time' => $at ) + $none;
		}
		$today    = $none;
		$midnight = ( new \DateTimeImmutable( 'today', wp_timezone() ) )->getTimestamp();
		$before   = null;
		foreach ( $points as $point ) {
			$at = $point['time'] - $point['time'] % HOUR_IN_SECONDS;
			foreach ( $none as $name => $zero ) {
				$more = self::more( $before, $point, $name );
				if ( isset( $hours[ $at ] ) ) {
					$hours[ $at ][ $name ] += $more;
				}
				$today[ $name ] += $point['time'] >= $midnight ? $more : 0;
			}
			$before = $point;
		}
		return array( 'hours' => array_values( $hours ), 'today' => $today );
	}

	/** What came between two points; another process began at nothing. */
	private static function more( ?array $before, array $point, string $name ): int {
		$is_same = $before && $before['begun'] === $point['begun'];
		// What was counted before the first point is of no hour, unless the server itself is younger.
		if ( ! $before && $point['time'] - $point['begun'] / 1000 > HOUR_IN_SECONDS ) {
			return 0;
		}
		// Earlier versions kept less.
		return max( 0, ( $point[ $name ] ?? 0 ) - ( $is_same ? $before[ $name ] ?? $point[ $name ] ?? 0 : 0 ) );
	}

	private static function past(): array {
		$past  = get_option( self::OPTION );
		$after = time() - self::KEPT;
		return is_array( $past ) ? array_values( array_filter( $past, fn( $point ) => $point['time'] > $after ) ) : array();
	}

	/** What the server has counted so far; none of one that does not count. */
	private static function point( array $answer ): ?array {
		if ( ! isset( $answer['live']['answers'] ) ) {
			return null;
		}
		$live = $answer['live'];
		$hits = self::hits( $live['answers'] );
		$past = (int) ( $live['answers']['BYPASS'] ?? 0 );
		return array(
			'time'       => time(),
			'begun'      => (int) $live['begun'],
			'hits'       => $hits,
			'others'     => array_sum( $live['answers'] ) - $hits - $past,
			'passed'     => $past,
			'unstorable' => (int) ( $live['unstorable'] ?? 0 ),
			'saved'      => (int) $live['saved_ms'],
		);
	}

	/** Answers that needed no PHP. */
	public static function hits( array $answers ): int {
		return array_sum( array_intersect_key( $answers, array_flip( array( 'HIT', 'STALE', 'UPDATING' ) ) ) );
	}
}
