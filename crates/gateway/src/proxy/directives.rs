//! The directives of `proxy_pass` that are the module's own.

use super::rewrite::{CookieFlags, Domains, Redirects, Rules};
use super::{HttpVersion, SetHeader};
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::template::Template;

settings! {
    written;
    /// Whether a HEAD is sent on as GET, so that the page can be stored.
    proxy_cache_convert_head: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// Changes the domain of the upstream's cookies.
    proxy_cookie_domain: Domains = none, ONE_OR_TWO, HTTP_SERVER_LOCATION;
    /// Sets or removes secure, httponly and samesite on the upstream's cookies.
    proxy_cookie_flags: CookieFlags = none, ONE_TO_FOUR, HTTP_SERVER_LOCATION;
    /// Changes the path of the upstream's cookies.
    proxy_cookie_path: Rules = none, ONE_OR_TWO, HTTP_SERVER_LOCATION;
    /// HTTP version used with the upstream; 1.1 keeps connections open.
    proxy_http_version: HttpVersion = "1.1", ONE, HTTP_SERVER_LOCATION;
    /// Method sent in place of the client's.
    proxy_method: Option<Template> = none, ONE, HTTP_SERVER_LOCATION;
    /// Whether trailers after the upstream's body are passed on.
    proxy_pass_trailers: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Changes Location and Refresh in the upstream's response.
    proxy_redirect: Redirects = "default", ONE_OR_TWO, HTTP_SERVER_LOCATION;
    /// Body sent in place of the client's.
    proxy_set_body: Option<Template> = none, ONE, HTTP_SERVER_LOCATION;
    /// A header of the request to the upstream; an empty value removes it.
    proxy_set_header: Vec<SetHeader> = none, TWO, HTTP_SERVER_LOCATION;
}
