<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** Looks after the page cache. */
final class Command {
	/**
	 * Purges pages.
	 *
	 * ## OPTIONS
	 *
	 * [<url>...]
	 * : Addresses or paths of pages; * at the end matches any ending.
	 *
	 * [--tag=<tags>]
	 * : Tags, parted by commas: post-7, term-3, list-post.
	 *
	 * [--all]
	 * : All pages of this site.
	 *
	 * [--soft]
	 * : Pages are served once more while they are refreshed.
	 *
	 * ## EXAMPLES
	 *
	 *     wp yorozu purge /shop/*
	 *     wp yorozu purge --tag=post-7,list-post --soft
	 *
	 * @param string[] $urls
	 */
	public function purge( $urls, $options ) {
		$is_hard = empty( $options['soft'] );
		$tags    = array_filter( array_map( 'trim', explode( ',', (string) ( $options['tag'] ?? '' ) ) ) );
		if ( ! empty( $options['all'] ) ) {
			$tags[] = 'site';
		}
		if ( ! $tags && ! $urls ) {
			\WP_CLI::error( 'Nothing to purge: expected a URL, --tag or --all.' );
		}
		Queue::tags( 'WP-CLI', $tags, $is_hard );
		foreach ( $urls as $url ) {
			Queue::url( 'WP-CLI', $url, $is_hard );
		}
		$count = Queue::flush( true );
		if ( null === $count ) {
			\WP_CLI::error( 'Nothing could be purged: ' . self::last_result() );
		}
		\WP_CLI::success( "$count stored pages purged." );
	}

	/** Says how full the cache is. */
	public function status() {
		try {
			$zones = Client::figures();
		} catch ( \RuntimeException $problem ) {
			\WP_CLI::error( $problem->getMessage() );
		}
		foreach ( $zones as $name => $zone ) {
			\WP_CLI::log(
				sprintf(
					'%s: %d pages in memory, %s; %d on disk, %s',
					$name,
					$zone['memory']['pages'],
					size_format( (int) $zone['memory']['bytes'] ),
					$zone['disk']['pages'],
					size_format( (int) $zone['disk']['bytes'] )
				)
			);
		}
	}

	/** Shows the last purges. */
	public function log() {
		$log = get_option( 'yorozu_log' );
		foreach ( is_array( $log ) ? $log : array() as $line ) {
			\WP_CLI::log( wp_date( 'Y-m-d H:i:s', $line['time'] ) . " {$line['reason']} ({$line['count']}): {$line['result']}" );
		}
	}

	private static function last_result(): string {
		$log = get_option( 'yorozu_log' );
		return is_array( $log ) && $log ? $log[0]['result'] : 'yorozu is not set up here';
	}
}
