<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** The part of the settings page that says how well the cache does, and why WordPress was asked. */
final class Live {
	/** What no owner of a site has to look at: visitors who are logged in, forms, and wp-admin. */
	const USUAL = array( 'bypass', 'method', 'uncached' );
	/** Misses that are shown. */
	const MISSES = 15;

	/** @param array $answer What the server said of itself. */
	public static function show( array $answer ): void {
		if ( ! isset( $answer['live']['answers'] ) ) {
			return;
		}
		History::note( $answer );
		$day = History::day( $answer );
		self::figures( $day['today'] );
		self::chart( $day['hours'] );
		self::misses( $answer['live']['misses'] ?? array() );
	}

	private static function figures( array $today ): void {
		$able = $today['hits'] + $today['others'] - $today['unstorable'];
		$all  = $today['hits'] + $today['others'] + $today['passed'];
		echo '<h2>' . esc_html__( 'Today', 'yorozu' ) . '</h2><div style="display:flex;flex-wrap:wrap;gap:1em 3em">';
		self::figure(
			'yorozu-ratio',
			__( 'Hit rate, cacheable pages', 'yorozu' ),
			self::percent( $today['hits'], $able ),
			/* translators: 1: number of pages answered from the cache, 2: number of pages that can be, 3: those of visitors with a page of their own, 4: those that must not be stored */
			sprintf( __( '%1$s of %2$s. Not counted: %3$s for visitors who are logged in, have a cart or sent a form, and %4$s that must not be stored.', 'yorozu' ), ...array_map( 'number_format_i18n', array( $today['hits'], $able, $today['passed'], $today['unstorable'] ) ) )
		);
		self::figure(
			'yorozu-ratio-all',
			__( 'Hit rate, all pages', 'yorozu' ),
			self::percent( $today['hits'], $all ),
			/* translators: 1: number of pages answered from the cache, 2: number of all pages */
			sprintf( __( '%1$s of %2$s requested pages.', 'yorozu' ), number_format_i18n( $today['hits'] ), number_format_i18n( $all ) )
		);
		self::figure( 'yorozu-saved', __( 'PHP time saved', 'yorozu' ), self::duration( $today['saved'] / 1000 ), __( 'PHP time that these pages would have cost without the cache.', 'yorozu' ) );
		echo '</div>';
	}

	private static function percent( int $part, int $all ): string {
		/* translators: %s: a number; the sign after it is %% */
		return $all > 0 ? sprintf( __( '%s %%', 'yorozu' ), number_format_i18n( 100 * $part / $all, 1 ) ) : '–';
	}

	private static function figure( string $id, string $name, string $value, string $note ): void {
		printf(
			'<div id="%s" style="max-width:24em"><div>%s</div><div style="font-size:2em;line-height:1.4">%s</div><div class="description">%s</div></div>',
			esc_attr( $id ),
			esc_html( $name ),
			esc_html( $value ),
			esc_html( $note )
		);
	}

	private static function duration( float $seconds ): string {
		if ( $seconds < 60 ) {
			/* translators: %s: seconds */
			return sprintf( __( '%s s', 'yorozu' ), number_format_i18n( $seconds, 1 ) );
		}
		if ( $seconds < HOUR_IN_SECONDS ) {
			/* translators: 1: minutes, 2: seconds */
			return sprintf( __( '%1$d min %2$d s', 'yorozu' ), intdiv( (int) $seconds, 60 ), (int) $seconds % 60 );
		}
		/* translators: 1: hours, 2: minutes */
		return sprintf( __( '%1$d h %2$d min', 'yorozu' ), intdiv( (int) $seconds, HOUR_IN_SECONDS ), intdiv( (int) $seconds % HOUR_IN_SECONDS, 60 ) );
	}

	/** Bars of 24 hours: hits, and above them the rest. */
	private static function chart( array $hours ): void {
		$most = max( 1, max( array_map( fn( $hour ) => $hour['hits'] + $hour['others'], $hours ) ) );
		$all  = array_sum( array_column( $hours, 'hits' ) ) + array_sum( array_column( $hours, 'others' ) );
		/* translators: 1: number of pages from the cache, 2: number of all pages */
		$label = sprintf( __( 'The last 24 hours: %1$s of %2$s pages came from the cache', 'yorozu' ), number_format_i18n( array_sum( array_column( $hours, 'hits' ) ) ), number_format_i18n( $all ) );
		printf( '<figure style="margin:1em 0;max-width:48em"><svg id="yorozu-chart" role="img" aria-label="%s" viewBox="0 0 480 110" width="100%%">', esc_attr( $label ) );
		foreach ( $hours as $number => $hour ) {
			$hits   = 90 * $hour['hits'] / $most;
			$others = 90 * $hour['others'] / $most;
			/* translators: 1: hour of the day, 2: pages from the cache, 3: other pages */
			$title = sprintf( __( '%1$s: %2$s from the cache, %3$s generated', 'yorozu' ), wp_date( 'H:00', $hour['time'] ), number_format_i18n( $hour['hits'] ), number_format_i18n( $hour['others'] ) );
			printf(
				'<g><title>%s</title><rect x="%d" y="0" width="18" height="90" fill="transparent"/><rect x="%d" y="%.1f" width="16" height="%.1f" fill="#007a5a"/><rect x="%d" y="%.1f" width="16" height="%.1f" fill="#b26200"/></g>',
				esc_html( $title ),
				20 * (int) $number,
				20 * (int) $number + 2,
				(float) ( 90 - $hits ),
				(float) $hits,
				20 * (int) $number + 2,
				(float) ( 90 - $hits - $others ),
				(float) $others
			);
			if ( 0 === $number % 4 ) {
				printf( '<text x="%d" y="105" font-size="10" fill="#50575e">%s</text>', 20 * (int) $number, esc_html( wp_date( 'H:00', $hour['time'] ) ) );
			}
		}
		printf(
			'</svg><figcaption class="description"><span style="color:#007a5a">&#9632;</span> %s &nbsp; <span style="color:#b26200">&#9632;</span> %s</figcaption></figure>',
			esc_html__( 'from the cache', 'yorozu' ),
			esc_html__( 'generated by WordPress', 'yorozu' )
		);
		$rows = array_map( fn( $hour ) => array( wp_date( 'H:00', $hour['time'] ), number_format_i18n( $hour['hits'] ), number_format_i18n( $hour['others'] ) ), $hours );
		printf( '<details><summary>%s</summary>', esc_html__( 'The same as a table', 'yorozu' ) );
		Settings_Page::table( 'yorozu-hours', __( 'The last 24 hours', 'yorozu' ), array( __( 'Hour', 'yorozu' ), __( 'From the cache', 'yorozu' ), __( 'Generated by WordPress', 'yorozu' ) ), $rows );
		echo '</details>';
	}

	private static function misses( array $misses ): void {
		$misses = array_filter( $misses, fn( $miss ) => ! in_array( $miss['reason'], self::USUAL, true ) && Sites::has( (string) $miss['path'] ) );
		usort( $misses, fn( $a, $b ) => $b['last'] <=> $a['last'] );
		$heads = array( __( 'When', 'yorozu' ), __( 'Page', 'yorozu' ), __( 'Took', 'yorozu' ), __( 'Why it missed the cache', 'yorozu' ), __( 'What to do', 'yorozu' ) );
		$rows  = array();
		foreach ( array_slice( $misses, 0, self::MISSES ) as $miss ) {
			list( $what, $advice ) = Reasons::words( (string) $miss['reason'], (string) ( $miss['header'] ?? '' ) );
			/* translators: %s: milliseconds */
			$took = sprintf( __( '%s ms', 'yorozu' ), number_format_i18n( $miss['micros'] / 1000 / max( 1, $miss['requests'] ) ) );
			if ( $miss['requests'] > 1 ) {
				/* translators: 1: how long, 2: how often */
				$took = sprintf( __( '%1$s, %2$s times', 'yorozu' ), $took, number_format_i18n( $miss['requests'] ) );
			}
			$rows[] = array( wp_date( 'H:i:s', intdiv( (int) $miss['last'], 1000 ) ), $miss['path'], $took, $what, $advice );
		}
		if ( ! $rows ) {
			echo '<p id="yorozu-misses">' . esc_html__( 'No cache misses in the last few minutes, except for logged-in visitors.', 'yorozu' ) . '</p>';
			return;
		}
		Settings_Page::table( 'yorozu-misses', __( 'Recent cache misses, except for logged-in visitors', 'yorozu' ), $heads, $rows );
	}
}
