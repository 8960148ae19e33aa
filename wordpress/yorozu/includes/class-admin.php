<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** The entries of the admin bar, and the settings page. */
final class Admin {
	const PAGE = 'yorozu';

	public static function register(): void {
		add_action( 'admin_bar_menu', array( self::class, 'bar' ), 100 );
		add_action( 'admin_post_yorozu_purge', array( self::class, 'purge' ) );
		add_action( 'admin_menu', array( self::class, 'menu' ) );
		add_action( 'admin_init', array( self::class, 'settings' ) );
		add_action( 'admin_notices', array( self::class, 'notice' ) );
		add_filter( 'plugin_action_links_yorozu/yorozu.php', array( self::class, 'links' ) );
	}

	/** Who may purge. */
	private static function may_purge(): bool {
		/**
		 * Filters the capability that purging needs.
		 *
		 * @param string $capability
		 */
		return current_user_can( apply_filters( 'yorozu_capability', 'manage_options' ) );
	}

	/** Address of the settings page. */
	public static function url(): string {
		return admin_url( 'options-general.php?page=' . self::PAGE );
	}

	/** @param \WP_Admin_Bar $bar */
	public static function bar( $bar ): void {
		if ( ! self::may_purge() ) {
			return;
		}
		$bar->add_node(
			array(
				'id'    => 'yorozu',
				'title' => esc_html__( 'Page cache', 'yorozu' ),
				'href'  => current_user_can( 'manage_options' ) ? self::url() : false,
			)
		);
		if ( ! is_admin() ) {
			$path = esc_url_raw( wp_unslash( $_SERVER['REQUEST_URI'] ?? '/' ) );
			self::node( $bar, 'page', __( 'Purge this page', 'yorozu' ), $path );
		}
		self::node( $bar, 'all', __( 'Purge all pages', 'yorozu' ), '' );
	}

	private static function node( $bar, string $what, string $title, string $path ): void {
		$bar->add_node(
			array(
				'parent' => 'yorozu',
				'id'     => "yorozu-$what",
				'title'  => esc_html( $title ),
				'href'   => self::purge_url( $what, $path ),
			)
		);
	}

	private static function purge_url( string $what, string $path ): string {
		$arguments = array(
			'action' => 'yorozu_purge',
			'what'   => $what,
			'path'   => rawurlencode( $path ),
		);
		return wp_nonce_url( add_query_arg( $arguments, admin_url( 'admin-post.php' ) ), 'yorozu_purge' );
	}

	/** A click on one of them. */
	public static function purge(): void {
		if ( ! self::may_purge() ) {
			wp_die( esc_html__( 'You are not allowed to purge the page cache.', 'yorozu' ), '', array( 'response' => 403 ) );
		}
		check_admin_referer( 'yorozu_purge' );
		$path = isset( $_GET['path'] ) ? esc_url_raw( wp_unslash( $_GET['path'] ) ) : '';
		if ( isset( $_GET['what'] ) && 'page' === $_GET['what'] && '' !== $path && '/' === $path[0] ) {
			Queue::url( 'by hand', $path );
			$back = self::home_origin() . $path;
		} else {
			Queue::all( 'by hand' );
			$back = wp_get_referer();
			$back = $back ? $back : self::url();
		}
		$count = Queue::flush( true );
		$back  = remove_query_arg( array( 'yorozu_purged' ), $back );
		if ( 0 === strpos( $back, admin_url() ) ) {
			$back = add_query_arg( 'yorozu_purged', null === $count ? 'failed' : $count, $back );
		}
		wp_safe_redirect( $back );
		exit;
	}

	/** `http://host:port`, to which a path of a request can be joined. */
	private static function home_origin(): string {
		return preg_replace( '~^(https?://[^/]+).*~', '$1', home_url() );
	}

	public static function notice(): void {
		// phpcs:ignore WordPress.Security.NonceVerification.Recommended -- a number to be shown.
		$purged = isset( $_GET['yorozu_purged'] ) ? sanitize_key( $_GET['yorozu_purged'] ) : '';
		if ( '' === $purged || ! self::may_purge() ) {
			return;
		}
		$is_done = is_numeric( $purged );
		$text    = $is_done
			/* translators: %d: number of stored pages */
			? sprintf( _n( 'Page cache: %d stored page purged.', 'Page cache: %d stored pages purged.', (int) $purged, 'yorozu' ), (int) $purged )
			: __( 'Page cache: nothing could be purged; the log in the settings says why.', 'yorozu' );
		printf( '<div class="notice notice-%s is-dismissible"><p>%s</p></div>', $is_done ? 'success' : 'error', esc_html( $text ) );
	}

	public static function links( $links ) {
		$url = self::url();
		array_unshift( $links, sprintf( '<a href="%s">%s</a>', esc_url( $url ), esc_html__( 'Settings', 'yorozu' ) ) );
		return $links;
	}

	// --- the settings page ---------------------------------------------------------------------

	public static function menu(): void {
		$title = __( 'Page cache', 'yorozu' );
		add_options_page( $title, $title, 'manage_options', self::PAGE, array( self::class, 'page' ) );
	}

	public static function settings(): void {
		$sanitize = array( 'sanitize_callback' => array( Settings::class, 'sanitize' ), 'default' => Settings::DEFAULTS );
		register_setting( 'yorozu', 'yorozu_settings', $sanitize );
	}

	public static function page(): void {
		if ( ! current_user_can( 'manage_options' ) ) {
			return;
		}
		echo '<div class="wrap"><h1>' . esc_html__( 'Page cache', 'yorozu' ) . '</h1>';
		self::figures();
		printf(
			'<p><a class="button button-primary" href="%s">%s</a></p>',
			esc_url( self::purge_url( 'all', '' ) ),
			esc_html__( 'Purge all pages', 'yorozu' )
		);
		self::form();
		self::log();
		echo '</div>';
	}

	private static function figures(): void {
		try {
			$zones = Client::figures();
		} catch ( \RuntimeException $problem ) {
			$text = Client::is_configured() || ! Client::is_behind_server()
				? $problem->getMessage()
				: __( 'No figures without YOROZU_URL and YOROZU_TOKEN in wp-config.php; purges go with the answers of PHP.', 'yorozu' );
			printf( '<div class="notice notice-warning inline"><p>%s</p></div>', esc_html( $text ) );
			return;
		}
		$heads = array( __( 'Zone', 'yorozu' ), __( 'Pages in memory', 'yorozu' ), __( 'Memory', 'yorozu' ), __( 'Pages on disk', 'yorozu' ), __( 'Disk', 'yorozu' ) );
		$rows  = array();
		foreach ( $zones as $name => $zone ) {
			$rows[] = array(
				$name,
				number_format_i18n( $zone['memory']['pages'] ),
				self::share( $zone['memory']['bytes'], $zone['memory']['bytes_max'] ),
				/* translators: 1: number of pages, 2: most pages */
				sprintf( __( '%1$s of %2$s', 'yorozu' ), number_format_i18n( $zone['disk']['pages'] ), number_format_i18n( $zone['disk']['pages_max'] ) ),
				self::share( $zone['disk']['bytes'], $zone['disk']['bytes_max'] ),
			);
		}
		self::table( 'yorozu-figures', $heads, $rows );
	}

	private static function share( $bytes, $max ): string {
		$bytes = size_format( max( 1, $bytes ) );
		/* translators: 1: bytes, 2: most bytes */
		return $max ? sprintf( __( '%1$s of %2$s', 'yorozu' ), $bytes, size_format( $max ) ) : $bytes;
	}

	private static function form(): void {
		echo '<form method="post" action="options.php">';
		settings_fields( 'yorozu' );
		echo '<table class="form-table" role="presentation">';
		printf(
			'<tr><th>%s</th><td><label><input type="checkbox" name="yorozu_settings[is_on]" value="1" %s> %s</label></td></tr>',
			esc_html__( 'Purge', 'yorozu' ),
			checked( Settings::is_on(), true, false ),
			esc_html__( 'Purge what a change touches', 'yorozu' )
		);
		printf(
			'<tr><th><label for="yorozu-urls">%s</label></th><td><textarea id="yorozu-urls" name="yorozu_settings[urls]" rows="4" cols="50" class="code">%s</textarea><p class="description">%s</p></td></tr>',
			esc_html__( 'Purge with every change', 'yorozu' ),
			esc_textarea( implode( "\n", Settings::extra_urls() ) ),
			esc_html__( 'Paths, one a line; * at the end stands for whatever follows.', 'yorozu' )
		);
		echo '</table>';
		submit_button();
		echo '</form>';
	}

	private static function log(): void {
		$log = get_option( 'yorozu_log' );
		if ( ! is_array( $log ) || ! $log ) {
			return;
		}
		echo '<h2>' . esc_html__( 'Purges', 'yorozu' ) . '</h2>';
		$heads = array( __( 'When', 'yorozu' ), __( 'Who', 'yorozu' ), __( 'Why', 'yorozu' ), __( 'Tags and pages', 'yorozu' ), __( 'Result', 'yorozu' ) );
		$rows  = array();
		foreach ( array_slice( $log, 0, 50 ) as $line ) {
			$user   = $line['user'] ? get_userdata( $line['user'] ) : null;
			$rows[] = array( wp_date( 'Y-m-d H:i:s', $line['time'] ), $user ? $user->user_login : '-', $line['reason'], $line['count'], $line['result'] );
		}
		self::table( 'yorozu-log', $heads, $rows );
	}

	/** @param string[] $heads */
	private static function table( string $id, array $heads, array $rows ): void {
		printf( '<table class="widefat striped" id="%s"><thead><tr>', esc_attr( $id ) );
		foreach ( $heads as $head ) {
			echo '<th>' . esc_html( $head ) . '</th>';
		}
		echo '</tr></thead><tbody>';
		foreach ( $rows as $row ) {
			echo '<tr>';
			foreach ( $row as $cell ) {
				echo '<td>' . esc_html( (string) $cell ) . '</td>';
			}
			echo '</tr>';
		}
		echo '</tbody></table>';
	}
}
