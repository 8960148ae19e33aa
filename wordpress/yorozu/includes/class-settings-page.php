<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** Settings, Page cache: what is stored, what can be set, what was purged. */
final class Settings_Page {
	/** Purges on a page of their list. */
	const LINES = 20;

	public static function register(): void {
		add_action( 'admin_menu', array( self::class, 'menu' ) );
		add_action( 'admin_init', array( self::class, 'settings' ) );
	}

	public static function menu(): void {
		$title = __( 'Page cache', 'yorozu' );
		$page  = add_options_page( $title, $title, 'manage_options', Admin::PAGE, array( self::class, 'page' ) );
		add_action( "load-$page", array( self::class, 'help' ) );
	}

	public static function help(): void {
		$tabs = array(
			'what'    => array(
				__( 'What it does', 'yorozu' ),
				__( 'The web server stores the pages of this site, so that WordPress does not have to generate each page for each visitor.', 'yorozu' ),
				__( 'When something changes, the stored pages that show it are purged. Deleted pages disappear immediately; edited pages are rebuilt in the background, and one visitor may see the old version.', 'yorozu' ),
				__( 'Purge pages by hand only after a change that WordPress does not know about, such as a theme file edited on the server.', 'yorozu' ),
			),
			'figures' => array(
				__( 'Figures', 'yorozu' ),
				__( 'Hit rate, all pages: the share of all requested pages that came from the cache. Pages of logged-in visitors, forms and carts count as well, although they cannot come from it.', 'yorozu' ),
				__( 'Hit rate, cacheable pages: the same without these, and without pages that must not be stored. It says how well the cache does what it can. The server\'s console shows both for all of its sites.', 'yorozu' ),
				__( 'Time saved: the PHP time that pages from the cache would have cost.', 'yorozu' ),
			),
			'wrong'   => array(
				__( 'If something looks wrong', 'yorozu' ),
				__( 'The line at the top is green when pages come from the cache and changes purge them; otherwise it says what to do.', 'yorozu' ),
				__( 'If a page is out of date, look for the change under "Recent purges". If it is not there, WordPress does not know about it: purge all pages.', 'yorozu' ),
				__( 'If a page never comes from the cache, the list of cache misses says why, and what helps.', 'yorozu' ),
			),
		);
		foreach ( $tabs as $id => $texts ) {
			get_current_screen()->add_help_tab(
				array(
					'id'      => "yorozu-$id",
					'title'   => array_shift( $texts ),
					'content' => '<p>' . implode( '</p><p>', array_map( 'esc_html', $texts ) ) . '</p>',
				)
			);
		}
	}

	public static function settings(): void {
		$sanitize = array( 'sanitize_callback' => array( Settings::class, 'sanitize' ), 'default' => Settings::DEFAULTS );
		register_setting( 'yorozu', 'yorozu_settings', $sanitize );
		Connect::settings();
	}

	public static function page(): void {
		if ( ! current_user_can( 'manage_options' ) ) {
			return;
		}
		echo '<div class="wrap"><h1>' . esc_html__( 'Page cache', 'yorozu' ) . '</h1>';
		self::state();
		Connect::show();
		self::figures();
		printf(
			'<p><a class="button" id="yorozu-purge-all" href="%s" onclick="%s">%s</a></p>',
			esc_url( Admin::purge_url( 'all', '' ) ),
			esc_attr( Admin::question() ),
			esc_html__( 'Purge all pages', 'yorozu' )
		);
		self::form();
		self::log();
		echo '</div>';
	}

	/** One line, green or red, with what to do next. */
	private static function state(): void {
		list( $status, $label, $text ) = Health::whole();
		list( $kind, $sign )           = array(
			'good'        => array( 'success', 'yes-alt' ),
			'recommended' => array( 'warning', 'info' ),
			'critical'    => array( 'error', 'warning' ),
		)[ $status ];
		printf(
			'<div id="yorozu-state" class="notice notice-%s inline"><p><span class="dashicons dashicons-%s" aria-hidden="true"></span> <strong>%s.</strong> %s</p></div>',
			esc_attr( $kind ),
			esc_attr( $sign ),
			esc_html( $label ),
			esc_html( $text )
		);
	}

	private static function figures(): void {
		try {
			$answer = Client::answer();
		} catch ( \RuntimeException $problem ) {
			// The line above says what is wrong.
			return;
		}
		Live::show( $answer );
		$zones = Client::zones( $answer );
		$heads = array( __( 'Name', 'yorozu' ), __( 'Pages in memory', 'yorozu' ), __( 'Memory used', 'yorozu' ), __( 'Pages on disk', 'yorozu' ), __( 'Disk used', 'yorozu' ) );
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
		self::table( 'yorozu-figures', __( 'How much is stored', 'yorozu' ), $heads, $rows );
	}

	private static function share( $bytes, $max ): string {
		$bytes = size_format( (int) $bytes );
		/* translators: 1: bytes, 2: most bytes */
		return $max ? sprintf( __( '%1$s of %2$s', 'yorozu' ), $bytes, size_format( $max ) ) : $bytes;
	}

	private static function form(): void {
		echo '<form method="post" action="options.php">';
		settings_fields( 'yorozu' );
		echo '<table class="form-table" role="presentation">';
		printf(
			'<tr><th scope="row">%s</th><td><label><input type="checkbox" name="yorozu_settings[is_on]" value="1" %s> %s</label></td></tr>',
			esc_html__( 'Changes', 'yorozu' ),
			checked( Settings::is_on(), true, false ),
			esc_html__( 'When something changes, purge the stored pages that show it', 'yorozu' )
		);
		printf(
			'<tr><th scope="row"><label for="yorozu-urls">%s</label></th><td><textarea id="yorozu-urls" name="yorozu_settings[urls]" rows="4" cols="50" class="code large-text" aria-describedby="yorozu-urls-help">%s</textarea><p class="description" id="yorozu-urls-help">%s</p></td></tr>',
			esc_html__( 'Pages to purge with every change', 'yorozu' ),
			esc_textarea( implode( "\n", Settings::extra_urls() ) ),
			esc_html__( 'One path on each line, such as /prices/; a * at its end matches any ending.', 'yorozu' )
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
		$heads = array( __( 'When', 'yorozu' ), __( 'Who', 'yorozu' ), __( 'Why', 'yorozu' ), __( 'Tags and pages', 'yorozu' ), __( 'Result', 'yorozu' ) );
		$pages = (int) ceil( count( $log ) / self::LINES );
		$page  = min( $pages, max( 1, absint( $_GET['purges'] ?? 1 ) ) ); // phpcs:ignore WordPress.Security.NonceVerification -- nothing is changed.
		$rows  = array();
		foreach ( array_slice( $log, self::LINES * ( $page - 1 ), self::LINES ) as $line ) {
			$user   = $line['user'] ? get_userdata( $line['user'] ) : null;
			$rows[] = array( self::time( $line['time'] ), $user ? $user->user_login : '-', self::reason( $line['reason'] ), number_format_i18n( $line['count'] ), Reasons::result( $line['result'] ) );
		}
		self::table( 'yorozu-log', __( 'Recent purges', 'yorozu' ), $heads, $rows );
		$links = paginate_links( array( 'base' => add_query_arg( 'purges', '%#%', Admin::url() ) . '#yorozu-log', 'format' => '', 'total' => $pages, 'current' => $page ) );
		if ( $links ) {
			printf( '<nav class="tablenav" aria-label="%s" style="height:auto"><div class="tablenav-pages" style="float:none">%s</div></nav>', esc_attr__( 'Pages of the list of purges', 'yorozu' ), wp_kses_post( $links ) );
		}
	}

	public static function time( int $time ): string {
		/* translators: date and time of a list, for the function date() of PHP */
		return wp_date( __( 'Y-m-d H:i:s', 'yorozu' ), $time );
	}

	/** With the titles of posts, as far as they are there still. */
	private static function reason( string $reason ): string {
		$named = function ( $found ) {
			$post = get_post( (int) $found[2] );
			return $post && $post->post_type === $found[1] && '' !== $post->post_title ? "$found[0] ($post->post_title)" : $found[0];
		};
		return preg_replace_callback( '/\b([a-z_]+) (\d+)\b/', $named, implode( ', ', array_map( array( Reasons::class, 'of_purge' ), explode( ', ', $reason ) ) ) );
	}

	/** @param string[] $heads */
	public static function table( string $id, string $caption, array $heads, array $rows ): void {
		printf( '<div style="overflow-x:auto"><table class="widefat striped" id="%s"><caption style="text-align:left;padding:1em 0"><strong>%s</strong></caption><thead><tr>', esc_attr( $id ), esc_html( $caption ) );
		foreach ( $heads as $head ) {
			echo '<th scope="col">' . esc_html( $head ) . '</th>';
		}
		echo '</tr></thead><tbody>';
		foreach ( $rows as $row ) {
			echo '<tr>';
			foreach ( $row as $cell ) {
				echo '<td>' . esc_html( (string) $cell ) . '</td>';
			}
			echo '</tr>';
		}
		echo '</tbody></table></div>';
	}
}
