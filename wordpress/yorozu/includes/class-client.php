<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

// phpcs:disable WordPress.Security.EscapeOutput.ExceptionNotEscaped -- escaped where they are shown.

/** Asks the server: one request, as fast as it goes, and no more than a line about it when there is no answer. */
final class Client {
	/** Seconds to wait for a connection, and for the answer: a post is not saved later than that. */
	const CONNECT_SECONDS = 0.5;
	const ANSWER_SECONDS  = 3;

	/** The option with `url` and `token`, where wp-config.php does not say them. */
	const OPTION = 'yorozu_server';

	/** Whether wp-config.php says where to ask, or the server that started PHP. */
	public static function is_told(): bool {
		return null !== self::told();
	}

	/** @return string[]|null `url` and `token`, as wp-config.php or the server that started PHP (`yorozu serve`) says them. */
	private static function told(): ?array {
		if ( defined( 'YOROZU_URL' ) && defined( 'YOROZU_TOKEN' ) ) {
			return array( 'url' => (string) \YOROZU_URL, 'token' => (string) \YOROZU_TOKEN );
		}
		$told = array( 'url' => (string) getenv( 'YOROZU_URL' ), 'token' => (string) getenv( 'YOROZU_TOKEN' ) );
		return in_array( '', $told, true ) ? null : $told;
	}

	/** Keeps what the server says for WP-CLI and cron, which it does not start. */
	public static function remember(): void {
		$told = self::told();
		if ( null !== $told && ! defined( 'YOROZU_URL' ) && get_option( self::OPTION ) !== $told ) {
			update_option( self::OPTION, $told );
		}
	}

	/** Seconds that a page may be kept which is purged when it changes, if wp-config.php or the server that started PHP says so. */
	public static function seconds(): ?int {
		$seconds = (int) ( defined( 'YOROZU_SECONDS' ) ? \YOROZU_SECONDS : getenv( 'YOROZU_SECONDS' ) );
		return $seconds > 0 && self::is_configured() ? $seconds : null;
	}

	/** Whether there is an address to ask at. */
	public static function is_configured(): bool {
		return '' !== self::address()['url'];
	}

	/** @return string[] `url` and `token`; empty where there are none. */
	private static function address(): array {
		$kept = self::told() ?? get_option( self::OPTION );
		return ( is_array( $kept ) ? $kept : array() ) + array( 'url' => '', 'token' => '' );
	}

	/** Whether the server handed this request to PHP. */
	public static function is_behind_server(): bool {
		return isset( $_SERVER['SERVER_SOFTWARE'] ) && 0 === strpos( $_SERVER['SERVER_SOFTWARE'], 'yorozu' ); // phpcs:ignore WordPress.Security.ValidatedSanitizedInput -- it is compared.
	}

	/** Whether the site is served by yorozu, as far as is known. By SERVER_SOFTWARE alone it is not: a configuration taken over from nginx may still say `nginx`. */
	public static function is_served(): bool {
		return self::is_configured() || self::is_behind_server();
	}

	/**
	 * Purges.
	 *
	 * @param array $batches Each with `tags` and `urls`, lists of strings, and `soft`.
	 * @return int Stored responses that were purged.
	 * @throws \RuntimeException There is no answer, or a refusal; the message is for the log, the code the status.
	 */
	public static function purge( array $batches ): int {
		$counts = array_column( self::ask( 'POST', wp_json_encode( $batches ) ), 'purged' );
		return array_sum( $counts );
	}

	/**
	 * How full the zones are.
	 *
	 * @return array Zones by name, each with `memory` and `disk`.
	 * @throws \RuntimeException There is no answer, or a refusal.
	 */
	public static function figures(): array {
		return self::zones( self::answer() );
	}

	/**
	 * What the server says of itself: `zones`, and `live`, what it counted and why it asked WordPress.
	 *
	 * @throws \RuntimeException There is no answer, or a refusal.
	 */
	public static function answer(): array {
		return self::ask( 'GET', '' );
	}

	/**
	 * Tries an address and a token.
	 *
	 * @throws \RuntimeException There is no answer, or a refusal.
	 */
	public static function check( string $url, string $token ): void {
		self::ask( 'GET', '', array( 'url' => $url, 'token' => $token ) );
	}

	/** The zones of an answer. */
	public static function zones( array $answer ): array {
		return isset( $answer['zones'] ) && is_array( $answer['zones'] ) ? $answer['zones'] : array();
	}

	/** @param string[]|null $address `url` and `token`, if not those that are set. */
	private static function ask( string $method, string $content, ?array $address = null ): array {
		$address = $address ?? self::address();
		if ( '' === $address['url'] ) {
			throw new \RuntimeException( 'no address and token of the server are set, neither under Settings, Page cache nor as YOROZU_URL and YOROZU_TOKEN in wp-config.php' );
		}
		$url = wp_parse_url( $address['url'] );
		if ( empty( $url['host'] ) || ! in_array( $url['scheme'] ?? '', array( 'http', 'https' ), true ) ) {
			throw new \RuntimeException( "\"{$address['url']}\" is no URL; expected one like http://127.0.0.1/.purge" );
		}
		$is_tls = 'https' === $url['scheme'];
		$port   = $url['port'] ?? ( $is_tls ? 443 : 80 );
		$context = stream_context_create( array( 'ssl' => self::tls( $url['host'] ) ) );
		$socket_address = ( $is_tls ? 'ssl://' : 'tcp://' ) . $url['host'] . ':' . $port;
		// phpcs:ignore WordPress.PHP.NoSilencedErrors -- what it would print is in $problem.
		$socket = @stream_socket_client( $socket_address, $number, $problem, self::CONNECT_SECONDS, STREAM_CLIENT_CONNECT, $context );
		if ( ! $socket ) {
			throw new \RuntimeException( "no connection to $socket_address ($problem)" );
		}
		stream_set_timeout( $socket, self::ANSWER_SECONDS );
		$request = "$method " . ( $url['path'] ?? '/' ) . " HTTP/1.0\r\nHost: " . self::authority() . "\r\n"
			. 'Authorization: Bearer ' . $address['token'] . "\r\nContent-Length: " . strlen( $content ) . "\r\n\r\n";
		// phpcs:disable WordPress.WP.AlternativeFunctions -- a connection, no file.
		fwrite( $socket, $request . $content );
		$answer = (string) stream_get_contents( $socket );
		$is_late = stream_get_meta_data( $socket )['timed_out'];
		fclose( $socket );
		// phpcs:enable WordPress.WP.AlternativeFunctions
		return self::read( $answer, $is_late, $address['url'] );
	}

	/**
	 * The server on this machine may be asked by an address that its certificate does not name; the token is not
	 * given to any other that cannot show one.
	 */
	private static function tls( string $host ): array {
		$address     = trim( $host, '[]' );
		$is_address  = false !== filter_var( $address, FILTER_VALIDATE_IP );
		$is_loopback = 'localhost' === strtolower( $address ) || $is_address && preg_match( '/^(127\.|(0*:)*:?0*1$)/', $address );
		return array(
			'verify_peer'      => ! $is_loopback,
			'verify_peer_name' => ! $is_loopback,
			'peer_name'        => $is_address || $is_loopback ? self::host() : $host,
		);
	}

	private static function read( string $answer, bool $is_late, string $url ): array {
		$parts = explode( "\r\n\r\n", $answer, 2 );
		$line  = strtok( $parts[0], "\r\n" );
		$body  = trim( $parts[1] ?? '' );
		if ( $is_late || ! preg_match( '~^HTTP/1\.\d (\d{3})~', (string) $line, $found ) ) {
			throw new \RuntimeException( "no answer from $url" );
		}
		$value = json_decode( $body, true );
		if ( '200' !== $found[1] || ! is_array( $value ) ) {
			$said = self::refusal( $found[1], $parts[0], $body );
			throw new \RuntimeException( "status {$found[1]} from $url: $said", (int) $found[1] );
		}
		return $value;
	}

	/** Why it is not the answer of `cache_purge_api`. */
	private static function refusal( string $status, string $head, string $body ): string {
		if ( preg_match( '/^location: *(\S+)/mi', $head, $found ) ) {
			return "it leads to $found[1]; the address itself is needed, such as https://127.0.0.1/.purge";
		}
		// A page, of an error or of the site, is that of a place without it.
		$is_page = '' === $body || '<' === $body[0];
		return '200' === $status || $is_page || strlen( $body ) >= 200 ? 'the server has no "cache_purge_api" there' : $body;
	}

	/** The site's host, whose pages are meant. */
	private static function host(): string {
		return (string) wp_parse_url( home_url(), PHP_URL_HOST );
	}

	private static function authority(): string {
		$port = wp_parse_url( home_url(), PHP_URL_PORT );
		return self::host() . ( $port ? ":$port" : '' );
	}
}
