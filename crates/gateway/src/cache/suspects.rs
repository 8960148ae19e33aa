//! Fields that applications and their frameworks take a host, a scheme, a path, a method or a user from, and the values with
//! which they say nothing but what the request says by itself.

use std::cmp::Ordering;
use yorozu_http::field;
use yorozu_kernel::exchange::Exchange;

/// What a field says, and so with which value it is harmless. "To the letter": applications compare and copy values as they
/// are, and one of another spelling is another page to them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Says {
    /// Nothing of what a page is made of, though other fields of its family do.
    Nothing,
    /// The host, with the port if the request names one.
    Host,
    /// The name of the proxy before this server.
    ProxysName,
    /// The scheme as a word.
    Scheme,
    /// That the scheme is https. Over http there is no word that all applications take for a "no".
    Switch,
    Port,
    /// As Cloudflare has the scheme.
    Visitor,
    /// RFC 6454, section 7.
    Origin,
    /// RFC 7239.
    Forwarded,
    /// What a proxy before this server knows; else as [`Says::Anything`].
    OfProxy,
    /// A path, a method, a user, a part of the page, or how it is to be made: nothing that the request says by itself.
    Anything,
}

/// By name, in order.
const FIELDS: &[(&str, Says)] = &[
    ("api-key", Says::Anything),
    ("apikey", Says::Anything),
    ("base-url", Says::Anything),
    ("cart-token", Says::Anything),
    ("cf-visitor", Says::Visitor),
    ("cloudfront-forwarded-proto", Says::Scheme),
    ("datastar-request", Says::Anything),
    ("disguised-host", Says::Host),
    ("fastly-ssl", Says::Switch),
    ("forwarded", Says::Forwarded),
    ("front-end-https", Says::Switch),
    ("http-url", Says::Anything),
    ("next-action", Says::Anything),
    ("next-url", Says::Anything),
    ("origin", Says::Origin),
    ("path-info", Says::Anything),
    ("proxy-authorization", Says::Anything),
    ("proxy-host", Says::Host),
    ("proxy-url", Says::Anything),
    ("remote-user", Says::Anything),
    ("request-uri", Says::Anything),
    ("rsc", Says::Anything),
    ("script-name", Says::Anything),
    ("surrogate-capability", Says::Anything),
    ("turbo-frame", Says::Anything),
    ("was-default-hostname", Says::Host),
    ("woocommerce-session", Says::Anything),
    ("x-access-token", Says::Anything),
    ("x-api-key", Says::Anything),
    ("x-arr-ssl", Says::OfProxy),
    ("x-att-deviceid", Says::Anything),
    ("x-auth-token", Says::Anything),
    ("x-auth-user", Says::Anything),
    ("x-auth-username", Says::Anything),
    ("x-authenticated-user", Says::Anything),
    ("x-authenticated-userid", Says::Anything),
    ("x-authorization", Says::Anything),
    ("x-backend-host", Says::Host),
    ("x-barba", Says::Anything),
    ("x-client-cert", Says::Anything),
    ("x-client-dn", Says::Anything),
    ("x-envoy-original-host", Says::Host),
    ("x-envoy-original-path", Says::Anything),
    ("x-forward-host", Says::Host),
    ("x-forwarded", Says::Anything),
    ("x-forwarded-by", Says::Nothing),
    ("x-forwarded-for", Says::Nothing),
    ("x-forwarded-host", Says::Host),
    ("x-forwarded-https", Says::Switch),
    ("x-forwarded-port", Says::Port),
    ("x-forwarded-prefix", Says::Anything),
    ("x-forwarded-proto", Says::Scheme),
    ("x-forwarded-protocol", Says::Scheme),
    ("x-forwarded-scheme", Says::Scheme),
    ("x-forwarded-server", Says::ProxysName),
    ("x-forwarded-ssl", Says::Switch),
    ("x-goog-iap-jwt-assertion", Says::Anything),
    ("x-host", Says::Host),
    ("x-host-override", Says::Host),
    ("x-http-destinationurl", Says::Anything),
    ("x-http-host-override", Says::Host),
    ("x-http-method", Says::Anything),
    ("x-http-method-override", Says::Anything),
    ("x-https", Says::Switch),
    ("x-inertia", Says::Anything),
    ("x-jwt-assertion", Says::Anything),
    ("x-livewire", Says::Anything),
    ("x-matched-path", Says::Anything),
    ("x-method-override", Says::Anything),
    ("x-ms-original-url", Says::Anything),
    ("x-msisdn", Says::Anything),
    ("x-nokia-msisdn", Says::Anything),
    ("x-now-route-matches", Says::Anything),
    ("x-original-forwarded-for", Says::Nothing),
    ("x-original-host", Says::Host),
    ("x-path-info", Says::Anything),
    ("x-pjax", Says::Anything),
    ("x-proxy-host", Says::Host),
    ("x-proxy-url", Says::Anything),
    ("x-real-host", Says::Host),
    ("x-remote-group", Says::Anything),
    ("x-remote-user", Says::Anything),
    ("x-replaced-path", Says::Anything),
    ("x-request-uri", Says::Anything),
    ("x-scheme", Says::Scheme),
    ("x-script-name", Says::Anything),
    ("x-sendfile-type", Says::Anything),
    ("x-session-token", Says::Anything),
    ("x-switch-user", Says::Anything),
    ("x-url-scheme", Says::Scheme),
    ("x-user", Says::Anything),
    ("x-user-id", Says::Anything),
    ("x-username", Says::Anything),
    ("x-waws-unencoded-url", Says::Anything),
];

/// What others of a family say, by how their names begin.
const FAMILIES: &[(&str, Says)] = &[
    ("cf-access-", Says::Anything),
    ("hx-", Says::Anything),
    ("next-router-", Says::Anything),
    ("ssl-client-", Says::Anything),
    ("tailscale-user-", Says::Anything),
    ("x-accel-", Says::Anything),
    ("x-alpine-", Says::Anything),
    ("x-amzn-oidc-", Says::Anything),
    ("x-astro-", Says::Anything),
    ("x-auth-request-", Says::Anything),
    ("x-consumer-", Says::Anything),
    ("x-forwarded-", Says::OfProxy),
    ("x-goog-authenticated-user-", Says::Anything),
    ("x-inertia-", Says::Anything),
    ("x-invoke-", Says::Anything),
    ("x-middleware-", Says::Anything),
    ("x-ms-client-principal", Says::Anything),
    ("x-nextjs-", Says::Anything),
    ("x-nuxt-", Says::Anything),
    ("x-original-", Says::Anything),
    ("x-prerender-", Says::Anything),
    ("x-rewrite-", Says::Anything),
    ("x-ssl-client-", Says::Anything),
    ("x-sveltekit-", Says::Anything),
    ("x-up-", Says::Anything),
    ("x-webauth-", Says::Anything),
];

/// By the byte that names begin with: a bit for each length of those in [`FIELDS`]. Hardly any field has to be looked for.
const LENGTHS: [u64; 256] = {
    let (mut lengths, mut at) = ([0; 256], 0);
    while at < FIELDS.len() {
        let name = FIELDS[at].0.as_bytes();
        lengths[name[0] as usize] |= 1 << name.len();
        at += 1;
    }
    lengths
};

/// The bytes that those of [`FAMILIES`] begin with.
const BEGINS: [bool; 256] = {
    let (mut begins, mut at) = ([false; 256], 0);
    while at < FAMILIES.len() {
        begins[FAMILIES[at].0.as_bytes()[0] as usize] = true;
        at += 1;
    }
    begins
};

/// Names are compared as those do that take `_` for `-`.
fn compare(known: &str, name: &[u8]) -> Ordering {
    known.bytes().cmp(name.iter().map(|byte| field::plain(*byte)))
}

/// What a field of this name says, if an application may believe it.
fn says(name: &[u8]) -> Says {
    let Some(first) = name.first() else { return Says::Nothing };
    let first = usize::from(field::plain(*first));
    if name.len() < 64 && (LENGTHS[first] >> name.len()) & 1 != 0 {
        if let Ok(at) = FIELDS.binary_search_by(|(known, _)| compare(known, name)) {
            return FIELDS[at].1;
        }
    }
    if !BEGINS[first] {
        return Says::Nothing;
    }
    let is_of = |start: &str| {
        let begins = name.get(..start.len());
        begins.is_some_and(|begins| compare(start, begins) == Ordering::Equal)
    };
    let family = FAMILIES.iter().find(|(start, _)| is_of(start));
    family.map_or(Says::Nothing, |(_, says)| *says)
}

/// The URL that a request came for, as it says so itself.
pub(super) struct Own<'e> {
    scheme: &'static [u8],
    host: &'e [u8],
    /// The host with the port that is named, if that is the one of the connection.
    authority: Option<&'e [u8]>,
    /// The port that is named, or the scheme's.
    port: &'e [u8],
}

impl<'e> Own<'e> {
    pub(super) fn of(exchange: &'e Exchange) -> Self {
        let request = &exchange.request;
        let scheme = exchange.client.scheme();
        let default_port = if scheme == b"https" { 443 } else { 80 };
        let proxied = exchange.client.proxied.get();
        // Ours, and that of a proxy that says so with the PROXY protocol.
        let connected = [
            exchange.client.local.map(|address| address.port()),
            proxied.and_then(|header| header.destination).map(|address| address.port()),
            Some(default_port),
        ];
        let text = request.authority();
        let is_written_plainly = match text.strip_prefix(&request.host[..]) {
            _ if request.host.is_empty() => false,
            Some([]) => true,
            Some([b':', digits @ ..]) => {
                let port = std::str::from_utf8(digits).ok().and_then(|port| port.parse().ok());
                digits == &request.port[..] && port.is_some() && connected.contains(&port)
            }
            _ => false,
        };
        Self {
            scheme,
            host: &request.host,
            authority: is_written_plainly.then_some(text),
            port: match &request.port[..] {
                [] if default_port == 443 => b"443",
                [] => b"80",
                port => port,
            },
        }
    }

    /// Whether the authority is the host, with no port or with the one that was connected to.
    pub(super) fn is_written_plainly(&self) -> bool {
        self.authority.is_some()
    }

    /// Whether a value is the host as others get pages for it.
    fn is_host(&self, value: &[u8]) -> bool {
        value == self.authority.unwrap_or(self.host)
    }

    /// Whether a field says nothing of the URL, or exactly what is so.
    pub(super) fn agrees(&self, exchange: &Exchange, name: &[u8], value: &[u8]) -> bool {
        let says = says(name);
        // How the client came to a proxy that is believed, that proxy knows; not for which host.
        let is_proxys_matter = matches!(
            says,
            Says::ProxysName
                | Says::Scheme
                | Says::Switch
                | Says::Port
                | Says::Visitor
                | Says::OfProxy
        );
        if is_proxys_matter && (exchange.conf.engine.is_from_trusted_proxy)(exchange) {
            return true;
        }
        match says {
            Says::Nothing => true,
            Says::Host | Says::ProxysName => self.is_host(value),
            Says::Scheme => value == self.scheme,
            Says::Switch => self.scheme == b"https" && matches!(value, b"on" | b"1"),
            Says::Port => value == self.port,
            Says::Visitor => value == [&b"{\"scheme\":\""[..], self.scheme, b"\"}"].concat(),
            Says::Origin => {
                let rest = value.strip_prefix(self.scheme);
                let authority = rest.and_then(|rest| rest.strip_prefix(b"://"));
                authority.is_some_and(|authority| self.is_host(authority))
            }
            Says::Forwarded => self.agrees_forwarded(value),
            Says::OfProxy | Says::Anything => false,
        }
    }

    /// Whether the hosts and schemes of `Forwarded` are the request's.
    fn agrees_forwarded(&self, value: &[u8]) -> bool {
        value.split(|byte| matches!(byte, b',' | b';')).all(|pair| {
            let pair = pair.trim_ascii();
            let Some(at) = pair.iter().position(|byte| *byte == b'=') else {
                // In quotes there may be anything.
                return pair.is_empty();
            };
            let (name, value) = (&pair[..at], pair[at + 1..].trim_ascii());
            let value = value.strip_prefix(b"\"").unwrap_or(value);
            let value = value.strip_suffix(b"\"").unwrap_or(value);
            match name.trim_ascii().to_ascii_lowercase().as_slice() {
                b"host" => self.is_host(value),
                b"proto" => value == self.scheme,
                b"for" | b"by" => true,
                _ => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_in_order_and_spelled_as_they_are_compared() {
        for table in [FIELDS, FAMILIES] {
            assert!(table.is_sorted_by(|one, other| one.0 < other.0));
            for (name, _) in table {
                assert!(name.bytes().all(|byte| field::plain(byte) == byte), "{name}");
            }
        }
        for (name, says_it) in FIELDS {
            assert_eq!(says(name.as_bytes()), *says_it, "{name}");
            let disguised = name.to_ascii_uppercase().replace('-', "_");
            assert_eq!(says(disguised.as_bytes()), *says_it, "{disguised}");
        }
    }

    #[test]
    fn families_are_found_by_how_they_begin() {
        let table = [
            ("X-Forwarded-Uri", Says::OfProxy),
            ("X_ORIGINAL_URL", Says::Anything),
            ("x-middleware-subrequest", Says::Anything),
            ("Next-Router-State-Tree", Says::Anything),
            ("x-nextjs-data", Says::Anything),
            ("HX-Request", Says::Anything),
            ("X-Up-Subno", Says::Anything),
            ("X-Forwarded-For", Says::Nothing),
            ("X-Forward", Says::Nothing),
            ("X-Requested-With", Says::Nothing),
            ("Accept", Says::Nothing),
            ("User-Agent", Says::Nothing),
            ("", Says::Nothing),
        ];
        for (name, expected) in table {
            assert_eq!(says(name.as_bytes()), expected, "{name}");
        }
    }
}
