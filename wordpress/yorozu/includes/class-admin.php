<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** The entries of the admin bar and of lists of posts, and what they do. */
final class Admin {
	const PAGE = 'yorozu';

	public static function register(): void {
		add_action( 'admin_post_yorozu_purge', array( self::class, 'purge' ) );
		add_action( 'admin_notices', array( self::class, 'notice' ) );
		add_action( 'admin_notices', array( self::class, 'warning' ) );
		add_filter( 'post_row_actions', array( self::class, 'row' ), 10, 2 );
		add_filter( 'page_row_actions', array( self::class, 'row' ), 10, 2 );
		add_filter( 'plugin_action_links_yorozu/yorozu.php', array( self::class, 'links' ) );
	}

	/** Whether the current user may purge. */
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
				// On the site itself there is no other place to say what a click has done.
				'title' => esc_html( is_admin() ? __( 'Page cache', 'yorozu' ) : self::said() ?? __( 'Page cache', 'yorozu' ) ),
				'href'  => current_user_can( 'manage_options' ) ? self::url() : false,
			)
		);
		if ( ! is_admin() ) {
			$path = esc_url_raw( wp_unslash( $_SERVER['REQUEST_URI'] ?? '/' ) );
			self::node( $bar, 'page', __( 'Purge this page', 'yorozu' ), $path );
		}
		self::node( $bar, 'all', __( 'Purge all pages', 'yorozu' ), '', array( 'onclick' => self::question() ) );
	}

	private static function node( $bar, string $what, string $title, string $path, array $meta = array() ): void {
		$bar->add_node(
			array(
				'parent' => 'yorozu',
				'id'     => "yorozu-$what",
				'title'  => esc_html( $title ),
				'href'   => self::purge_url( $what, $path ),
				'meta'   => $meta,
			)
		);
	}

	/** A script that asks before all pages go. */
	public static function question(): string {
		$text = __( 'Purge all stored pages of this site? The next visit to each page will be slower, because WordPress generates it again.', 'yorozu' );
		return 'return confirm(' . wp_json_encode( $text ) . ')';
	}

	/** "Purge" below a post's title in the lists of posts and pages. */
	public static function row( $actions, $post ) {
		if ( self::may_purge() && Post_Changes::is_shown( $post ) ) {
			$parts = wp_parse_url( (string) get_permalink( $post ) );
			$path  = ( $parts['path'] ?? '/' ) . ( isset( $parts['query'] ) ? '?' . $parts['query'] : '' );

			$actions['yorozu'] = sprintf(
				'<a href="%s" aria-label="%s">%s</a>',
				esc_url( self::purge_url( 'page', $path ) ),
				/* translators: %s: title of a post */
				esc_attr( sprintf( __( 'Purge the stored page of "%s"', 'yorozu' ), get_the_title( $post ) ) ),
				esc_html__( 'Purge', 'yorozu' )
			);
		}
		return $actions;
	}

	public static function purge_url( string $what, string $path ): string {
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
		$what = sanitize_key( $_GET['what'] ?? '' );
		if ( 'page' === $what && preg_match( '~^/(?!/)~', $path ) && Sites::has( $path ) ) {
			Queue::url( 'by hand', $path );
			$back = self::home_origin() . $path;
		} elseif ( 'all' === $what ) {
			Queue::all( 'by hand' );
			$back = self::url();
		} else {
			/* translators: 1: what was to be purged, 2: where the site begins, such as / */
			$text = sprintf( __( 'There is no page of this site at "%1$s"; expected a path like %2$sshop/. Nothing was purged.', 'yorozu' ), $path, Sites::path() );
			wp_die( esc_html( $text ), '', array( 'response' => 400, 'back_link' => true ) );
		}
		$count = Queue::flush( true );
		set_transient( self::key(), null === $count ? 'failed' : (string) $count, MINUTE_IN_SECONDS );
		wp_safe_redirect( wp_get_referer() ?: $back );
		exit;
	}

	/** `http://host:port`, to which a path of a request can be joined. */
	private static function home_origin(): string {
		return preg_replace( '~^(https?://[^/]+).*~', '$1', home_url() );
	}

	/** Where the result of the user's last click waits to be shown. */
	private static function key(): string {
		return 'yorozu_purged_' . get_current_user_id();
	}

	/** What the last click has done, once. */
	private static function said(): ?string {
		$purged = get_transient( self::key() );
		if ( false === $purged ) {
			return null;
		}
		delete_transient( self::key() );
		return is_numeric( $purged )
			/* translators: %d: number of stored pages */
			? sprintf( _n( 'Page cache: %d stored page purged.', 'Page cache: %d stored pages purged.', (int) $purged, 'yorozu' ), (int) $purged )
			: __( 'Page cache: nothing could be purged. The list of purges in the settings says why.', 'yorozu' );
	}

	public static function notice(): void {
		$is_failed = 'failed' === get_transient( self::key() );
		$text      = self::may_purge() ? self::said() : null;
		if ( null !== $text ) {
			printf( '<div class="notice notice-%s is-dismissible"><p>%s</p></div>', $is_failed ? 'error' : 'success', esc_html( $text ) );
		}
	}

	/** Where plugins are looked after: that there is a second page cache. */
	public static function warning(): void {
		$screens = array( 'dashboard', 'plugins', 'settings_page_' . self::PAGE );
		if ( self::may_purge() && in_array( get_current_screen()->id ?? '', $screens, true ) && Other_Cache::is_active() ) {
			printf( '<div class="notice notice-error"><p>%s</p></div>', esc_html( Health::about_other_cache() ) );
		}
	}

	public static function links( $links ) {
		$url = self::url();
		array_unshift( $links, sprintf( '<a href="%s">%s</a>', esc_url( $url ), esc_html__( 'Settings', 'yorozu' ) ) );
		return $links;
	}
}
