<?php
namespace Yorozu;

defined( 'ABSPATH' ) || exit;

/** Why the web server asked WordPress for a page, and why pages were purged, in words for the owner of a site. */
final class Reasons {
	/**
	 * @param string $name A word of the server, as `Cache-Status` and the server's log have it.
	 * @param string $in   The header or the cookie that it lay in, if one is known.
	 * @return string[] What happened, and what to do about it.
	 */
	public static function words( string $name, string $in = '' ): array {
		$words = self::of_requests()[ $name ] ?? self::of_pages()[ $name ] ?? array( $name, '' );
		if ( '' !== $in ) {
			/* translators: 1: what happened, 2: name of a header or a cookie */
			$words[0] = sprintf( __( '%1$s: "%2$s"', 'yorozu' ), $words[0], $in );
		}
		return $words;
	}

	/** A reason of the list of purges, which is kept as it is in the server's words. */
	public static function of_purge( string $reason ): string {
		$known = array(
			'activated'                   => __( 'the plugin activated', 'yorozu' ),
			'again'                       => __( 'tried again', 'yorozu' ),
			'another site'                => __( 'another site of the network', 'yorozu' ),
			'automatic_updates_complete'  => __( 'automatic updates', 'yorozu' ),
			'by hand'                     => __( 'by hand', 'yorozu' ),
			'connected'                   => __( 'connected to the web server', 'yorozu' ),
			'customize_save_after'        => __( 'the customizer saved', 'yorozu' ),
			'a file edited'               => __( 'a file edited', 'yorozu' ),
			'permalink_structure_changed' => __( 'permalinks changed', 'yorozu' ),
			'sticky posts'                => __( 'sticky posts', 'yorozu' ),
			'switch_theme'                => __( 'theme switched', 'yorozu' ),
		);
		$done  = array(
			/* translators: %s: what was approved, such as: comment 7 */
			'approved'    => __( '%s approved', 'yorozu' ),
			/* translators: %s: what was counted, such as: posts of category */
			'counted'     => __( '%s counted', 'yorozu' ),
			/* translators: %s: what was created, such as: category 7 */
			'created'     => __( '%s created', 'yorozu' ),
			/* translators: %s: what was deleted, such as: post 7 */
			'deleted'     => __( '%s deleted', 'yorozu' ),
			/* translators: %s: what was edited, such as: post 7 */
			'edited'      => __( '%s edited', 'yorozu' ),
			/* translators: %s: what was published, such as: post 7 */
			'published'   => __( '%s published', 'yorozu' ),
			/* translators: %s: what was unpublished, such as: post 7 */
			'unpublished' => __( '%s unpublished', 'yorozu' ),
		);
		$space = (int) strrpos( $reason, ' ' );
		$verb  = $done[ ltrim( substr( $reason, $space ) ) ] ?? null;
		return $known[ $reason ] ?? ( $verb ? sprintf( $verb, substr( $reason, 0, $space ) ) : $reason );
	}

	/** What came of a purge. */
	public static function result( string $result ): string {
		if ( preg_match( '~^purged (\d+) in ([\d.]+) ms$~', $result, $found ) ) {
			/* translators: 1: number of stored pages, 2: milliseconds */
			return sprintf( _n( '%1$s page purged in %2$s ms', '%1$s pages purged in %2$s ms', (int) $found[1], 'yorozu' ), number_format_i18n( (int) $found[1] ), number_format_i18n( (float) $found[2], 1 ) );
		}
		return 'sent with the answer' === $result ? __( 'sent with the response', 'yorozu' ) : $result;
	}

	/** What lay in the request, or in what was stored. */
	private static function of_requests(): array {
		return array(
			'uri-miss'      => array( __( 'The first visit', 'yorozu' ), __( 'Nothing to do: the page was not stored yet, or was purged after a change. The next visitor gets the stored page.', 'yorozu' ) ),
			'vary-miss'     => array( __( 'The first visit of its kind', 'yorozu' ), __( 'The page is stored once for each kind of visitor (Vary). If there are many kinds, ask the developer of the theme or plugin what they are for.', 'yorozu' ) ),
			'stale'         => array( __( 'The stored page had expired', 'yorozu' ), __( 'It was generated again. If this happens often to a page that seldom changes, let the server keep pages longer.', 'yorozu' ) ),
			'bypass'        => array( __( 'Logged in, or has a cart', 'yorozu' ), __( 'Visitors who are logged in or have left a comment, and shoppers with a cart, get their own pages. Nothing to do.', 'yorozu' ) ),
			'method'        => array( __( 'A form was sent', 'yorozu' ), __( 'Responses to forms are never stored. Nothing to do.', 'yorozu' ) ),
			'uncached'      => array( __( 'Never stored here', 'yorozu' ), __( 'The server stores no pages at this address, such as wp-admin. Nothing to do.', 'yorozu' ) ),
			'authorization' => array( __( 'Requested with a password', 'yorozu' ), __( 'Pages requested with a name and password are not stored. Nothing to do.', 'yorozu' ) ),
			'body'          => array( __( 'An unusual request', 'yorozu' ), __( 'A program, not a browser. Nothing to do.', 'yorozu' ) ),
			'head'          => array( __( 'Only the headers were requested', 'yorozu' ), __( 'A program that checks whether the page exists. Nothing to do.', 'yorozu' ) ),
			'partial-miss'  => array( __( 'Only a part was requested', 'yorozu' ), __( 'Nothing to do.', 'yorozu' ) ),
			'partial'       => array( __( 'Only a part was requested', 'yorozu' ), __( 'Nothing to do.', 'yorozu' ) ),
			'range-offset'  => array( __( 'Only a part was requested', 'yorozu' ), __( 'Nothing to do.', 'yorozu' ) ),
			'min-uses'      => array( __( 'Not visited often enough', 'yorozu' ), __( 'The server stores a page after some visits (min_uses). Nothing to do.', 'yorozu' ) ),
			'unknown-header' => array( __( 'An unknown header', 'yorozu' ), __( 'The page was generated without it, and the next visitor gets that one. If a proxy in front of the server adds it to every request, name it in cache_ignore_headers.', 'yorozu' ) ),
			'split'         => array( __( 'A part of a page, or another one', 'yorozu' ), __( 'The request selected it by its headers. It is stored from the second such request on. Nothing to do.', 'yorozu' ) ),
			'lock-timeout'  => array( __( 'The page is very slow', 'yorozu' ), __( 'Another visitor was waiting for the same page. Find out what makes it slow.', 'yorozu' ) ),
		);
	}

	/** What lay in the page. */
	private static function of_pages(): array {
		$says = __( 'A plugin or the theme forbids storing it. This is right for carts, accounts and forms; for other pages, deactivate plugins one by one to find the cause.', 'yorozu' );
		return array(
			'redirected'      => array( __( 'The page was generated after a check', 'yorozu' ), __( 'WordPress checked the visitor and had the server send the page (X-Accel-Redirect), or the visitor was refused and got the page for that. It is not stored, so that each visitor is checked. Nothing to do.', 'yorozu' ) ),
			'set-cookie'      => array( __( 'The page sets a cookie', 'yorozu' ), __( 'A plugin sets a cookie for every visitor, often with session_start(). Deactivate plugins one by one until the page is stored, and ask the developer of the one you find.', 'yorozu' ) ),
			'no-store'        => array( __( 'The page must not be stored', 'yorozu' ), $says ),
			'no-cache'        => array( __( 'The page must not be stored', 'yorozu' ), $says ),
			'private'         => array( __( 'The page is for one visitor', 'yorozu' ), $says ),
			'x-accel-expires' => array( __( 'The page must not be stored', 'yorozu' ), $says ),
			'forbidden'       => array( __( 'A rule of the server forbids it', 'yorozu' ), __( 'The configuration of the server says that such pages are not stored. Ask whoever runs it if that is not what you want.', 'yorozu' ) ),
			'vary'            => array( __( 'The page differs for every request', 'yorozu' ), __( 'Something sends Vary: *. Deactivate plugins one by one to find it.', 'yorozu' ) ),
			'no-lifetime'     => array( __( 'No cache lifetime set', 'yorozu' ), __( 'Usually an error or a redirect. If it is a page, ask whoever runs the server.', 'yorozu' ) ),
			'expired'         => array( __( 'The page had expired already', 'yorozu' ), __( 'A plugin sends a date that has passed (Expires). Deactivate plugins one by one to find it.', 'yorozu' ) ),
			'loop'            => array( __( 'The page redirects to itself', 'yorozu' ), __( 'Check both addresses of the site under Settings, General: often one has http and the other https.', 'yorozu' ) ),
			'tags'            => array( __( 'Too much on the page', 'yorozu' ), __( 'It shows more posts than the server keeps track of. Show fewer.', 'yorozu' ) ),
			'cookie'          => array( __( 'The visitor has a cookie of the site', 'yorozu' ), __( 'A plugin or the theme has set it, so the page may be for this visitor. If no page differs by it, say so with the filter yorozu_is_cookie_harmless.', 'yorozu' ) ),
			'permission'      => array( __( 'The page depends on who may see it', 'yorozu' ), __( 'The server asks whether the visitor may see the page, and tells WordPress who it is (auth_request). It is not stored, so that no other visitor gets it. Nothing to do.', 'yorozu' ) ),
			'undecided'       => array( __( 'The server could not evaluate a rule', 'yorozu' ), __( 'The visitor got an error. Ask whoever runs the server to look at its error log.', 'yorozu' ) ),
			'dry-run'         => array( __( 'The page cache is in a dry run', 'yorozu' ), __( 'The page would have come from the page cache, which is not switched on yet. Ask whoever runs the server.', 'yorozu' ) ),
		);
	}
}
