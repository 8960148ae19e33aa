//! `proxy_pass`: the mapping from an exchange to HTTP/1 and back, and the module's own directives.

mod codec;
mod request;
mod rewrite;
pub mod tls;

pub use request::add_x_forwarded_for;

use super::Handler;
use super::gateway::{self, Call, Framing, Protocol};
use crate::config::block::{Block, LocationName};
use crate::config::compiled::LocationConf;
use crate::config::directive::*;
use crate::config::env::{Env, Upstream};
use crate::config::template::Template;
use crate::config::types::word_enum;
use crate::connection::body::Content;
use crate::exchange::Exchange;
use crate::exchange::request::Method;
use crate::logging::error::{self, Level};
use bytes::Bytes;
use codec::{Asked, HttpCodec};
use request::Fields;
use rewrite::{CookieRules, Rule};
use std::rc::Rc;
use std::sync::Arc;

/// The shared directives under this protocol's prefix.
pub struct Family;

impl gateway::Family for Family {
    const PREFIX: &'static str = "proxy";
    const TEMP_PATH: &'static str = "proxy_temp";
    fn draft(block: &mut Block) -> &mut gateway::Draft {
        &mut block.proxy.gateway
    }
}

/// Fields of the upstream's answer that are its own; others are made here.
pub const HIDDEN: [&[u8]; 3] = [b"date", b"server", b"x-pad"];

/// `proxy_http_version`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HttpVersion {
    V10,
    V11,
}

impl Setting for HttpVersion {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match args.word(0) {
            b"1.0" => Ok(Self::V10),
            b"1.1" => Ok(Self::V11),
            b"2" => Err(ValueError::new(
                "\"proxy_http_version 2\" is not supported, it must be \"1.0\" or \"1.1\"",
            )),
            other => Err(args.invalid_value_must_be(other, "\"1.0\" or \"1.1\"")),
        }
    }
}

word_enum! {
    /// The scheme of a URL.
    Scheme {
        /// Plain.
        Http = "http",
        /// Over TLS.
        Https = "https",
    }
}

impl Scheme {
    const fn text(self) -> &'static str {
        match self {
            Self::Http => "http://",
            Self::Https => "https://",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// `proxy_set_header name value`
#[derive(Clone, Debug)]
pub struct SetHeader {
    pub name: Bytes,
    pub value: Template,
}

impl Setting for SetHeader {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let value = Template::compile(args.word(1), args.env)?;
        Ok(Self { name: args.words[0].clone(), value })
    }
}

/// What the macro declares is public where other modules need it.
#[allow(unreachable_pub)]
mod own {
    use super::rewrite::{CookieFlags, Redirects, Rules};
    use super::{HttpVersion, SetHeader};
    use crate::config::directive::*;
    use crate::config::template::Template;

    settings! {
        in proxy;
        /// Whether a HEAD is sent on as GET, so that the page can be stored.
        proxy_cache_convert_head: bool = "on", ONE, HTTP_SERVER_LOCATION;
        /// Changes the domain of the upstream's cookies.
        proxy_cookie_domain: Rules = none, ONE_OR_TWO, HTTP_SERVER_LOCATION;
        /// Sets or takes away secure, httponly and samesite of the upstream's cookies.
        proxy_cookie_flags: CookieFlags = none, ONE_TO_FOUR, HTTP_SERVER_LOCATION;
        /// Changes the path of the upstream's cookies.
        proxy_cookie_path: Rules = none, ONE_OR_TWO, HTTP_SERVER_LOCATION;
        /// HTTP's version towards the upstream; 1.1 keeps connections open.
        proxy_http_version: HttpVersion = "1.1", ONE, HTTP_SERVER_LOCATION;
        /// Method sent in place of the client's.
        proxy_method: Option<Template> = none, ONE, HTTP_SERVER_LOCATION;
        /// Whether fields behind the upstream's body are passed on.
        proxy_pass_trailers: bool = "off", ONE, HTTP_SERVER_LOCATION;
        /// Changes Location and Refresh of the upstream's answer.
        proxy_redirect: Redirects = "default", ONE_OR_TWO, HTTP_SERVER_LOCATION;
        /// Body sent in place of the client's.
        proxy_set_body: Option<Template> = none, ONE, HTTP_SERVER_LOCATION;
        /// A field of the request to the upstream; an empty value takes it away.
        proxy_set_header: Vec<SetHeader> = none, TWO, HTTP_SERVER_LOCATION;
    }
}

/// What one block says about the proxy.
#[derive(Clone, Default)]
pub struct Draft {
    own: own::Draft,
    pub gateway: gateway::Draft,
}

/// The proxy's settings in one location.
#[derive(Clone)]
pub struct Conf {
    own: own::Conf,
    pub tls: tls::Conf,
    pub gateway: gateway::Conf,
    /// What `proxy_set_header` and its defaults say.
    pub fields: Fields,
    /// What `proxy_redirect` says, its default included.
    pub redirects: Vec<Rule>,
}

impl std::ops::Deref for Draft {
    type Target = own::Draft;
    fn deref(&self) -> &own::Draft {
        &self.own
    }
}

impl std::ops::DerefMut for Draft {
    fn deref_mut(&mut self) -> &mut own::Draft {
        &mut self.own
    }
}

impl std::ops::Deref for Conf {
    type Target = own::Conf;
    fn deref(&self) -> &own::Conf {
        &self.own
    }
}

impl Draft {
    /// Takes over what the enclosing block says where this one is silent.
    pub fn inherit(&mut self, outer: &Self) {
        self.own.inherit(&outer.own);
        self.gateway.inherit(&outer.gateway);
    }
}

impl Conf {
    /// Applies the defaults; `handler` and `location` are what the block's `proxy_redirect default`
    /// is about.
    pub fn compile(
        draft: &Draft,
        tls: &tls::Draft,
        env: &Env,
        handler: &Handler,
        location: &Bytes,
    ) -> Result<Self, ValueError> {
        let own = own::Conf::compile(&draft.own, env)?;
        let host = Template::compile(b"$proxy_host", env)?;
        let fields = Fields::new(&own.proxy_set_header, host);
        let mut redirects = own.proxy_redirect.rules.clone();
        if let Handler::Gateway(Protocol::Proxy(pass)) = handler {
            if own.proxy_redirect.has_default {
                redirects.extend(pass.default_redirect(location));
            }
        }
        Ok(Self {
            tls: tls::Conf::compile(tls, env, handler)?,
            gateway: gateway::Conf::compile::<Family>(&draft.gateway, env)?,
            fields,
            redirects,
            own,
        })
    }
}

/// Every row of the module.
pub fn rows() -> Vec<Directive> {
    let mut rows = gateway::rows::<Family>();
    rows.extend_from_slice(own::DIRECTIVES);
    rows.extend_from_slice(tls::DIRECTIVES);
    rows.extend_from_slice(OTHERS);
    rows
}

/// Rows that are no plain settings.
const OTHERS: &[Directive] = &[
    Directive::row(
        "proxy_cache_path",
        HTTP,
        Arity::TWO_OR_MORE,
        Action::Set(crate::cache::directives::cache_path),
        "Folder, name and bounds of a cache zone; `memory=` bounds its memory tier.",
    ),
    Directive::row(
        "proxy_pass",
        LOCATION | LOCATION_IF | LIMIT_EXCEPT,
        Arity::ONE,
        Action::Set(pass),
        "URL of the HTTP upstream; a path in it takes the place of the location's prefix.",
    ),
    Directive::row(
        "proxy_headers_hash_bucket_size",
        HTTP_SERVER_LOCATION,
        Arity::ONE,
        Action::Ignored("hash tables size themselves"),
        "Bucket of the hash of fields.",
    ),
    Directive::row(
        "proxy_headers_hash_max_size",
        HTTP_SERVER_LOCATION,
        Arity::ONE,
        Action::Ignored("hash tables size themselves"),
        "Size of the hash of fields.",
    ),
];

fn pass(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    if block.handler.is_some() {
        return Err(args.duplicate());
    }
    let url = Template::compile(args.word(0), args.env)?;
    let pass = match url.as_literal() {
        None => Pass::Spelled { url, target: gateway::Target::new(Template::default(), 80) },
        Some(text) => {
            let destination = Destination::parse(&text, false)
                .ok_or_else(|| ValueError::new("invalid URL prefix"))?;
            let takes_uri =
                matches!(block.name, LocationName::Exact(_) | LocationName::Prefix { .. });
            if !takes_uri && !destination.uri.is_empty() {
                return Err(ValueError::new(
                    "\"proxy_pass\" cannot have URI part in location given by regular expression, or inside named location, or inside \"if\" statement, or inside \"limit_except\" block",
                ));
            }
            let address = Template::literal(destination.address.clone());
            let target = gateway::Target::new(address, destination.scheme.port());
            Pass::Fixed { url: text, destination, target }
        }
    };
    block.handler = Some(Handler::Gateway(Protocol::Proxy(Arc::new(pass))));
    Ok(())
}

/// A URL as `proxy_pass` names it.
#[derive(Clone, Debug)]
pub struct Destination {
    pub scheme: Scheme,
    /// `host:port`, `unix:path`, or a group's name: as written.
    pub address: Bytes,
    /// `$proxy_host`: the address, without the scheme's own port.
    pub host: Bytes,
    /// `$proxy_port`
    pub port: Bytes,
    /// The path and query; empty for none.
    pub uri: Bytes,
    /// Did variables spell it?
    pub is_spelled: bool,
}

impl Destination {
    /// Reads `http://host[:port][/path]` or `http://unix:path[:/path]`.
    fn parse(url: &Bytes, is_spelled: bool) -> Option<Self> {
        let has = |prefix: &str| {
            url.get(..prefix.len()).is_some_and(|p| p.eq_ignore_ascii_case(prefix.as_bytes()))
        };
        let scheme = [Scheme::Http, Scheme::Https].into_iter().find(|scheme| has(scheme.text()))?;
        let rest = url.slice(scheme.text().len()..);
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
}

/// What `proxy_pass` says.
#[derive(Debug)]
pub enum Pass {
    /// A URL without variables.
    Fixed { url: Bytes, destination: Destination, target: gateway::Target },
    /// One that variables spell.
    Spelled { url: Template, target: gateway::Target },
}

impl Pass {
    /// The group, if it is known beforehand.
    pub fn target(&self) -> Option<&gateway::Target> {
        match self {
            Self::Fixed { target, .. } => Some(target),
            Self::Spelled { .. } => None,
        }
    }

    /// The scheme, if it is known beforehand.
    pub fn scheme(&self) -> Option<Scheme> {
        match self {
            Self::Fixed { destination, .. } => Some(destination.scheme),
            Self::Spelled { .. } => None,
        }
    }

    /// `proxy_redirect default`
    fn default_redirect(&self, location: &Bytes) -> Option<Rule> {
        let Self::Fixed { url, destination, .. } = self else { return None };
        if destination.uri.is_empty() {
            let with_slash = [&url[..], b"/"].concat();
            return Some(Rule::literal(with_slash.into(), Bytes::from_static(b"/")));
        }
        Some(Rule::literal(url.clone(), location.clone()))
    }

    /// Where this exchange goes; known to the exchange from here on (`$proxy_host`).
    ///
    /// # Errors
    /// The status the client gets: what the variables spell is no URL.
    pub fn settle(&self, exchange: &mut Exchange) -> Result<Rc<Destination>, u16> {
        let destination = match self {
            Self::Fixed { destination, .. } => destination.clone(),
            Self::Spelled { url, .. } => {
                let url = url.value(exchange);
                match Destination::parse(&url, true) {
                    Some(destination) => destination,
                    None => {
                        let url = String::from_utf8_lossy(&url);
                        let text = format!("invalid URL prefix in \"{url}\"");
                        error::request(exchange, Level::Error, &text);
                        return Err(500);
                    }
                }
            }
        };
        let destination = Rc::new(destination);
        exchange.pass.proxy = Some(Rc::clone(&destination));
        Ok(destination)
    }

    /// The group for this exchange.
    ///
    /// # Errors
    /// The status the client gets.
    pub async fn upstream(&self, exchange: &mut Exchange) -> Result<Arc<Upstream>, u16> {
        let destination = self.destination(exchange)?;
        match self {
            Self::Fixed { target, .. } => target.upstream(exchange).await,
            Self::Spelled { target, .. } => {
                let address = &destination.address;
                target.spelled(exchange, address, destination.scheme.port()).await
            }
        }
    }

    /// As settled before, or now.
    fn destination(&self, exchange: &mut Exchange) -> Result<Rc<Destination>, u16> {
        match &exchange.pass.proxy {
            Some(destination) => Ok(Rc::clone(destination)),
            None => self.settle(exchange),
        }
    }

    /// What HTTP makes of an exchange with this content.
    ///
    /// # Errors
    /// The status the client gets.
    pub fn call(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        content: Content,
    ) -> Result<Call, u16> {
        let destination = self.destination(exchange)?;
        let conf = &location.proxy;
        let made = request::make(exchange, location, &destination, content);
        let is_head = exchange.request.method == Method::Head
            && conf.proxy_method.is_none()
            && !request::is_converted_head(exchange, conf);
        let asked = Asked {
            head_bytes_max: conf.gateway.buffer_size.bytes(),
            is_head_request: is_head,
            may_upgrade: exchange.request.field(b"upgrade").is_some(),
        };
        let tls = match destination.scheme {
            Scheme::Http => None,
            Scheme::Https => Some(tls::options(exchange, &conf.tls)?),
        };
        Ok(Call {
            request: made.bytes.into(),
            framing: match made.content {
                Content::Live { length: None } => Framing::Chunked,
                _ => Framing::Plain,
            },
            content: made.content,
            validates: made.validates,
            codec: Box::new(move || Box::new(HttpCodec::new(asked))),
            catch_stderr: Vec::new(),
            is_pipelined: false,
            // A certificate that variables name is one request's.
            may_keep: tls.is_none() || !conf.tls.is_spelled(),
            tls,
            scheme: destination.scheme.text(),
            uri: made.uri,
        })
    }

    /// The key of a stored page where `proxy_cache_key` says nothing.
    pub fn default_key(&self, exchange: &mut Exchange, location: &LocationConf, key: &mut Vec<u8>) {
        let Ok(destination) = self.destination(exchange) else { return };
        key.extend_from_slice(destination.scheme.text().as_bytes());
        key.extend_from_slice(&destination.host);
        key.extend_from_slice(&request::uri(exchange, location, &destination));
    }
}

/// Appends what of a request decides, beside its own bytes, what becomes of it: where it goes, and how fields of its answer
/// are rewritten.
pub fn append_decided(exchange: &mut Exchange, conf: &Conf, out: &mut Vec<u8>) {
    if let Some(destination) = &exchange.pass.proxy {
        out.extend_from_slice(&destination.address);
        out.extend_from_slice(destination.scheme.text().as_bytes());
    }
    let cookies = [&conf.proxy_cookie_domain, &conf.proxy_cookie_path];
    let of_cookies = cookies.into_iter().flat_map(|rules| &rules.0);
    conf.redirects.iter().chain(of_cookies).for_each(|rule| rule.append(exchange, out));
}

/// A field of the upstream's answer as the client shall see it; `None` if it stays as it is.
pub fn rewritten(exchange: &mut Exchange, conf: &Conf, name: &[u8], value: &[u8]) -> Option<Bytes> {
    if name.eq_ignore_ascii_case(b"location") {
        rewrite::location(&conf.redirects, exchange, value)
    } else if name.eq_ignore_ascii_case(b"refresh") {
        rewrite::refresh(&conf.redirects, exchange, value)
    } else if name.eq_ignore_ascii_case(b"set-cookie") {
        let rules = CookieRules {
            domain: &conf.proxy_cookie_domain,
            path: &conf.proxy_cookie_path,
            flags: &conf.proxy_cookie_flags,
        };
        rewrite::cookie(rules, exchange, value)
    } else {
        None
    }
}

/// Where `proxy_pass` goes in the exchange's location, settled or known beforehand.
fn known(exchange: &Exchange) -> Option<&Destination> {
    if let Some(destination) = &exchange.pass.proxy {
        return Some(destination);
    }
    match &exchange.conf.location(exchange.location).handler {
        Handler::Gateway(Protocol::Proxy(pass)) => match &**pass {
            Pass::Fixed { destination, .. } => Some(destination),
            Pass::Spelled { .. } => None,
        },
        _ => None,
    }
}

/// `$proxy_host`
pub fn proxy_host(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    known(exchange).is_some_and(|destination| {
        out.extend_from_slice(&destination.host);
        true
    })
}

/// `$proxy_port`
pub fn proxy_port(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    known(exchange).is_some_and(|destination| {
        out.extend_from_slice(&destination.port);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let parse = |url: &'static str| {
            let found = Destination::parse(&Bytes::from_static(url.as_bytes()), false)?;
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
}
