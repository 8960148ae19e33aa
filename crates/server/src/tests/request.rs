//! Requests as they are read from a head.

use crate::testing::request;

#[test]
fn known_fields_are_found_again_when_others_are_taken_away() {
    let mut request = request("GET / HTTP/1.1\r\nA: 1\r\nHost: h:81\r\nB: 2\r\nRange: r\r\n\r\n");
    request.retain_fields(|name| name != b"A" && name != b"B");
    assert_eq!(request.fields.len(), 2);
    assert_eq!(request.authority(), b"h:81");
    assert_eq!(request.known(request.known.range), Some(&b"r"[..]));
    request.retain_fields(|name| name != b"Host");
    assert_eq!(request.authority(), b"");
    assert_eq!(request.known(request.known.range), Some(&b"r"[..]));
}

#[test]
fn an_authority_becomes_the_host_that_server_names_are_compared_with() {
    let table = [("h:81", "h"), ("H.", "h"), ("[::1]:81", "[::1]"), ("h:", "h"), ("h", "h")];
    for (host, wanted) in table {
        let mut request = request(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        request.normalize_authority();
        assert_eq!((request.authority(), &request.port[..]), (wanted.as_bytes(), &b""[..]));
    }
}

#[test]
fn the_target_s_authority_takes_the_place_of_host() {
    // RFC 9112, section 3.2.2.
    for fields in ["Host: other:1\r\n", ""] {
        let request = request(&format!("GET http://h:81/ HTTP/1.0\r\n{fields}\r\n"));
        assert_eq!(request.authority(), b"h:81");
        assert_eq!(request.field(b"host"), Some(&b"h:81"[..]));
        assert_eq!((&request.host[..], &request.port[..]), (&b"h"[..], &b"81"[..]));
    }
}
