<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** The step of the settings page that finds the server: the line for its configuration, and an address and a token that are tried before they are kept. */
final class Connect {
	const GROUP = 'yorozu_connect';
	/** The transient with a token that was offered, until it is used. */
	const OFFERED = 'yorozu_offered_token';

	public static function settings(): void {
		register_setting( self::GROUP, Client::OPTION, array( 'type' => 'array', 'sanitize_callback' => array( self::class, 'sanitize' ) ) );
	}

	/**
	 * Keeps an address and a token that the server takes; else what there was.
	 *
	 * @param mixed $given What the form sent.
	 */
	public static function sanitize( $given ): array {
		$given = is_array( $given ) ? $given : array();
		$kept  = array( 'url' => esc_url_raw( trim( (string) ( $given['url'] ?? '' ) ), array( 'http', 'https' ) ), 'token' => trim( (string) ( $given['token'] ?? '' ) ) );
		$old   = (array) get_option( Client::OPTION, array() );
		if ( '' !== $kept['url'] && '' === $kept['token'] ) {
			$kept['token'] = (string) ( $old['token'] ?? '' );
		}
		if ( $kept === $old || '' === $kept['url'] && '' === $kept['token'] ) {
			return $kept;
		}
		if ( ! preg_match( '~^[\x21-\x7e]{16,}$~', $kept['token'] ) ) {
			self::refuse( __( 'A token has at least 16 letters, digits and signs, and no spaces.', 'yorozu' ) );
			return $old;
		}
		try {
			Client::check( $kept['url'], $kept['token'] );
		} catch ( \RuntimeException $problem ) {
			self::refuse( $problem->getMessage() );
			return $old;
		}
		delete_transient( self::OFFERED );
		// What was stored until now may be old.
		Queue::all( 'connected' );
		return $kept;
	}

	private static function refuse( string $why ): void {
		/* translators: %s: what went wrong */
		add_settings_error( Client::OPTION, 'refused', sprintf( __( 'Not connected: %s', 'yorozu' ), $why ) );
	}

	private static function offered(): string {
		$token = get_transient( self::OFFERED );
		if ( ! is_string( $token ) ) {
			$token = wp_generate_password( 32, false );
			set_transient( self::OFFERED, $token, WEEK_IN_SECONDS );
		}
		return $token;
	}

	/** Where the server is most likely to be: on this machine, at the port that this request came to. */
	private static function likely_url(): string {
		$port = absint( $_SERVER['SERVER_PORT'] ?? 80 );
		return ( is_ssl() ? 'https' : 'http' ) . '://127.0.0.1' . ( in_array( $port, array( 80, 443 ), true ) ? '' : ":$port" ) . '/.purge';
	}

	public static function show(): void {
		if ( Client::is_told() ) {
			return;
		}
		$is_connected = Client::is_configured();
		$kept         = (array) get_option( Client::OPTION, array() );
		printf( '<details id="yorozu-connect"%s><summary><strong>%s</strong></summary>', $is_connected ? '' : ' open', esc_html__( 'Connect to the web server', 'yorozu' ) );
		if ( ! $is_connected ) {
			printf(
				'<ol><li><p>%s</p><p><code id="yorozu-line" style="overflow-wrap:anywhere">location = /.purge { cache_purge_api token=%s; }</code></p></li><li><p>%s</p></li></ol>',
				esc_html__( 'Have this line put into the "server" block of this site in the web server\'s configuration, and the server reload it. Whoever knows the token may purge the pages of this site.', 'yorozu' ),
				esc_html( self::offered() ),
				esc_html__( 'Then connect. Where the server is another machine, its address takes the place of 127.0.0.1.', 'yorozu' )
			);
		}
		echo '<form method="post" action="options.php">';
		settings_fields( self::GROUP );
		printf(
			'<table class="form-table" role="presentation"><tr><th scope="row"><label for="yorozu-url">%s</label></th><td><input type="url" id="yorozu-url" name="%s[url]" value="%s" class="regular-text code"></td></tr>',
			esc_html__( 'Address', 'yorozu' ),
			esc_attr( Client::OPTION ),
			esc_attr( $kept['url'] ?? '' ?: self::likely_url() )
		);
		printf(
			'<tr><th scope="row"><label for="yorozu-token">%s</label></th><td><input type="password" id="yorozu-token" name="%s[token]" placeholder="%s" value="%s" class="regular-text code" autocomplete="off"></td></tr></table>',
			esc_html__( 'Token', 'yorozu' ),
			esc_attr( Client::OPTION ),
			esc_attr( $is_connected ? __( 'as it is', 'yorozu' ) : '' ),
			// One that is kept stays where it is.
			esc_attr( $is_connected ? '' : self::offered() )
		);
		submit_button( $is_connected ? __( 'Try, and save', 'yorozu' ) : __( 'Connect', 'yorozu' ), $is_connected ? 'secondary' : 'primary', 'yorozu-connect-submit' );
		echo '</form></details>';
	}
}
