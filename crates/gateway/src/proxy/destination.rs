//! Where `proxy_pass` and `grpc_pass` go: a URL known beforehand, or one that variables spell.

use crate::protocol::target::Target;
use crate::protocol::tls;
use crate::upstream::Upstream;
use bytes::Bytes;
use std::ops::Deref;
use std::sync::Arc;
use yorozu_kernel::config::directive::{Args, ValueError};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_upstream::TlsOptions;

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheme {
    Grpc,
    Grpcs,
    Http,
    Https,
}

impl Scheme {
    pub const fn text(self) -> &'static str {
        match self {
            Self::Grpc => "grpc://",
            Self::Grpcs => "grpcs://",
            Self::Http => "http://",
            Self::Https => "https://",
        }
    }

    /// The port of an address without one; 0 for none.
    const fn port(self) -> u16 {
        match self {
            Self::Grpc | Self::Grpcs => 0,
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    pub const fn is_encrypted(self) -> bool {
        matches!(self, Self::Grpcs | Self::Https)
    }

    /// As requests name it.
    pub const fn of_requests(self) -> &'static [u8] {
        if self.is_encrypted() { b"https" } else { b"http" }
    }
}

/// What stands behind one of these schemes, if it is one of them.
fn behind(url: &Bytes, schemes: [Scheme; 2]) -> Option<(Scheme, Bytes)> {
    let has = |scheme: &Scheme| {
        let text = scheme.text().as_bytes();
        url.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text))
    };
    let scheme = schemes.into_iter().find(has)?;
    Some((scheme, url.slice(scheme.text().len()..)))
}

/// A URL as a directive names it.
#[derive(Clone, Debug)]
pub struct Destination {
    pub scheme: Scheme,
    /// `host:port`, `unix:path`, or a group's name: as written.
    pub address: Bytes,
    /// `$proxy_host`: the address; of `proxy_pass` without the scheme's own port.
    pub host: Bytes,
    /// `$proxy_port`
    pub port: Bytes,
    /// The path and query; empty for none.
    pub uri: Bytes,
    /// Whether variables spelled it.
    pub is_spelled: bool,
}

impl Destination {
    /// Reads `http://host[:port][/path]` or `http://unix:path[:/path]`.
    pub fn of_url(url: &Bytes, is_spelled: bool) -> Option<Self> {
        let (scheme, rest) = behind(url, [Scheme::Http, Scheme::Https])?;
        if rest.starts_with(b"unix:") {
            let end = memchr::memchr(b':', &rest[5..]).map_or(rest.len(), |at| at + 5);
            let uri = rest.slice((end + 1).min(rest.len())..);
            return Some(Self {
                scheme,
                address: rest.slice(..end),
                host: Bytes::from_static(b"localhost"),
                port: Bytes::new(),
                uri,
                is_spelled,
            });
        }
        let end = rest.iter().position(|byte| b"/?".contains(byte)).unwrap_or(rest.len());
        let address = rest.slice(..end);
        if address.is_empty() {
            return None;
        }
        let mut uri = rest.slice(end..);
        if uri.starts_with(b"?") {
            uri = [b"/", &uri[..]].concat().into();
        }
        let default = scheme.port().to_string();
        let split = address.iter().rposition(|byte| *byte == b':');
        let split = split.filter(|at| !address.ends_with(b"]") && *at > 0);
        let (host, port) = match split {
            Some(at) if address[at + 1..] != *default.as_bytes() => {
                (address.clone(), address.slice(at + 1..))
            }
            Some(at) => (address.slice(..at), default.into()),
            None => (address.clone(), default.into()),
        };
        Some(Self { scheme, address, host, port, uri, is_spelled })
    }

    /// Reads `[grpc://|grpcs://]address`.
    pub fn of_grpc(url: &Bytes, is_spelled: bool) -> Option<Self> {
        let (scheme, address) = behind(url, [Scheme::Grpc, Scheme::Grpcs])
            .unwrap_or_else(|| (Scheme::Grpc, url.clone()));
        let host = match address.starts_with(b"unix:") {
            true => Bytes::from_static(b"localhost"),
            false => address.clone(),
        };
        let (port, uri) = (Bytes::new(), Bytes::new());
        Some(Self { scheme, address, host, port, uri, is_spelled })
    }
}

/// Reads a URL; `true` if variables spelled it.
type Read = fn(&Bytes, bool) -> Option<Destination>;

/// What a directive says.
#[derive(Debug)]
pub enum Going {
    /// A URL without variables.
    Fixed { url: Bytes, destination: Arc<Destination>, target: Target },
    /// One that variables spell.
    Spelled { url: Template, target: Target, read: Read },
}

/// Where an exchange goes: the configuration's, or its own.
pub enum Resolved<'a> {
    Fixed(&'a Destination),
    Spelled(Arc<Destination>),
}

impl Deref for Resolved<'_> {
    type Target = Destination;

    fn deref(&self) -> &Destination {
        match self {
            Self::Fixed(destination) => destination,
            Self::Spelled(destination) => destination,
        }
    }
}

impl Going {
    /// # Errors
    /// It is no such URL.
    pub fn from_args(args: &Args<'_>, read: Read) -> Result<Self, ValueError> {
        let url = Template::compile(args.word(0), args.env)?;
        let Some(text) = url.as_literal() else {
            return Ok(Self::Spelled { url, target: Target::new(Template::default(), 80), read });
        };
        let destination =
            read(&text, false).ok_or_else(|| ValueError::new("invalid URL prefix"))?;
        let address = Template::literal(destination.address.clone());
        let target = Target::new(address, destination.scheme.port());
        Ok(Self::Fixed { url: text, destination: Arc::new(destination), target })
    }

    pub fn target(&self) -> Option<&Target> {
        match self {
            Self::Fixed { target, .. } => Some(target),
            Self::Spelled { .. } => None,
        }
    }

    /// The scheme, if it is known beforehand.
    pub fn known_scheme(&self) -> Option<Scheme> {
        match self {
            Self::Fixed { destination, .. } => Some(destination.scheme),
            Self::Spelled { .. } => None,
        }
    }

    /// How connections are encrypted, where no variable decides.
    pub fn tls(&self, conf: &tls::Conf) -> Option<TlsOptions> {
        match self {
            Self::Fixed { destination, .. } if destination.scheme.is_encrypted() => {
                tls::fixed_options(conf, &destination.host)
            }
            _ => None,
        }
    }

    /// Where this exchange goes; what variables spell is known to the exchange from here on (`$proxy_host`).
    ///
    /// # Errors
    /// The status the client gets: what the variables spell is no URL.
    pub fn resolved(&self, exchange: &mut Exchange) -> Result<Arc<Destination>, u16> {
        let (url, read) = match self {
            Self::Fixed { destination, .. } => return Ok(Arc::clone(destination)),
            Self::Spelled { url, read, .. } => (url.value(exchange), read),
        };
        let Some(destination) = read(&url, true) else {
            let url = error::verbatim(&url);
            let text = format!("invalid URL prefix in \"{url}\"");
            error::request(exchange, Level::Error, &text);
            return Err(500);
        };
        let destination = Arc::new(destination);
        exchange.pass.put_for_shadows(Arc::clone(&destination));
        Ok(destination)
    }

    /// As resolved before, or now.
    ///
    /// # Errors
    /// As [`Going::resolved`].
    pub fn destination(&self, exchange: &mut Exchange) -> Result<Resolved<'_>, u16> {
        match (exchange.pass.of::<Arc<Destination>>(), self) {
            (Some(destination), _) => Ok(Resolved::Spelled(Arc::clone(destination))),
            (None, Self::Fixed { destination, .. }) => Ok(Resolved::Fixed(destination)),
            (None, Self::Spelled { .. }) => self.resolved(exchange).map(Resolved::Spelled),
        }
    }

    /// The group for this exchange.
    pub fn upstream<'a>(
        &'a self,
        exchange: &'a mut Exchange,
    ) -> Later<'a, Result<Arc<Upstream>, u16>> {
        Box::pin(async {
            let destination = self.destination(exchange)?;
            match self {
                Self::Fixed { target, .. } => target.upstream(exchange).await,
                Self::Spelled { target, .. } => {
                    let address = &destination.address;
                    target.spelled(exchange, address, destination.scheme.port()).await
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let parse = |url: &'static str| {
            let found = Destination::of_url(&Bytes::from_static(url.as_bytes()), false)?;
            let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
            Some((text(&found.address), text(&found.host), text(&found.port), text(&found.uri)))
        };
        let some =
            |a: &str, h: &str, p: &str, u: &str| Some((a.into(), h.into(), p.into(), u.into()));
        assert_eq!(parse("http://a/b?c"), some("a", "a", "80", "/b?c"));
        assert_eq!(parse("http://a:80"), some("a:80", "a", "80", ""));
        assert_eq!(parse("https://a:80/"), some("a:80", "a:80", "80", "/"));
        assert_eq!(parse("HTTPS://a"), some("a", "a", "443", ""));
        assert_eq!(parse("http://[::1]:81/x"), some("[::1]:81", "[::1]:81", "81", "/x"));
        assert_eq!(parse("http://unix:/a.sock:/x"), some("unix:/a.sock", "localhost", "", "/x"));
        assert_eq!(parse("http://unix:/a.sock"), some("unix:/a.sock", "localhost", "", ""));
        assert_eq!(parse("http://a?b"), some("a", "a", "80", "/?b"));
        assert_eq!(parse("ftp://a"), None);
        assert_eq!(parse("http://"), None);
    }

    #[test]
    fn grpc_has_addresses_with_a_scheme_or_without() {
        for (text, scheme, address, host) in [
            ("a:1", Scheme::Grpc, "a:1", "a:1"),
            ("grpc://a:80", Scheme::Grpc, "a:80", "a:80"),
            ("GRPCS://unix:/a.sock", Scheme::Grpcs, "unix:/a.sock", "localhost"),
        ] {
            let found = Destination::of_grpc(&Bytes::from_static(text.as_bytes()), false).unwrap();
            assert_eq!((found.scheme, &found.address[..]), (scheme, address.as_bytes()));
            assert_eq!(found.host, host);
        }
    }
}
