//! Which location a path belongs to.

use crate::testing::config;
use yorozu_kernel::find_config::{self, Found};

fn chosen(locations: &str, uri: &str) -> String {
    let config = config(&format!("http {{ server {{ {locations} }} }}"));
    let mut exchange = crate::testing::exchange(config, "GET / HTTP/1.0\r\n\r\n");
    exchange.uri = uri.as_bytes().to_vec();
    match find_config::location(&mut exchange).unwrap() {
        Found::Server => "server".to_owned(),
        Found::LacksSlash(_) => "slash".to_owned(),
        Found::Location(id) => {
            String::from_utf8_lossy(&exchange.conf.location(id).name).into_owned()
        }
    }
}

#[test]
fn locations_are_chosen_as_nginx_documents() {
    // The example of nginx's documentation of `location`.
    let set = "location = / {} location / {} location /documents/ {}
               location ^~ /images/ {} location ~* \\.(gif|jpg)$ {}";
    for (uri, name) in [
        ("/", "/"),
        ("/index.html", "/"),
        ("/documents/document.html", "/documents/"),
        ("/images/1.gif", "/images/"),
        ("/documents/1.JPG", "\\.(gif|jpg)$"),
    ] {
        assert_eq!(chosen(set, uri), name, "{uri}");
    }
}

#[test]
fn what_is_remembered_sets_the_groups_again() {
    let config = config("http { server { location ~ ^/(a|b)/(.*)$ { } location ~ ^/c { } } }");
    let mut exchange = crate::testing::exchange(config, "GET / HTTP/1.0\r\n\r\n");
    for _ in 0..2 {
        for (uri, second) in [("/a/one", Some("one")), ("/b/two", Some("two")), ("/c", None)] {
            exchange.uri = uri.as_bytes().to_vec();
            assert!(matches!(find_config::location(&mut exchange), Ok(Found::Location(_))));
            assert_eq!(exchange.captures.get(2), second.map(str::as_bytes), "{uri}");
        }
    }
}

#[test]
fn nested_locations_are_searched_before_outer_regexes_are() {
    let set = "location /a/ { location /a/b/ {} location ~ x$ {} } location ~ y$ {}";
    for (uri, name) in
        [("/a/1", "/a/"), ("/a/b/1", "/a/b/"), ("/a/b/x", "x$"), ("/a/b/y", "y$"), ("/c", "server")]
    {
        assert_eq!(chosen(set, uri), name, "{uri}");
    }
}
