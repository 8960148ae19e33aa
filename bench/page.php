<?php
/* A page of exactly 16,059 bytes, the size that the published measurements were made with. */
header( 'Content-Type: text/html; charset=UTF-8' );
$words = explode( ' ', 'ten thousand requests a second from a page that was made once and kept for everybody who asks' );
$page  = "<!DOCTYPE html>\n<html><head><title>bench</title></head><body>\n";
for ( $line = 0; strlen( $page ) < 15900; $line++ ) {
	$page .= '<p id="p' . $line . '">' . $words[ $line % 17 ] . ' ' . $words[ ( $line * 7 ) % 17 ] . ' ' . md5( $line ) . "</p>\n";
}
$end = "</body></html>\n";
echo substr( $page, 0, 16059 - strlen( $end ) ) . str_repeat( ' ', max( 0, 16059 - strlen( $end ) - strlen( $page ) ) ) . $end;
