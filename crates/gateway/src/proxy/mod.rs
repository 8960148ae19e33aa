//! `proxy_pass`: the mapping from an exchange to HTTP/1 and back, and the module's own directives.

mod codec;
pub mod directives;
mod request;
mod rewrite;

pub use request::add_x_forwarded_for;

use super::pass::{self, Shared};
use super::protocol::call::{Call, Framing};
use super::protocol::codec::{Asked, Reader};
use super::protocol::family::{Family, Spoken};
use super::protocol::target::Target;
use super::protocol::{Protocol, spoken_by, tls};
use crate::cache::settings;
use crate::upstream::Upstream;
use bytes::Bytes;
use codec::HttpCodec;
use request::Fields;
use rewrite::{CookieRules, Rule};
use std::rc::Rc;
use std::sync::Arc;
use yorozu_kernel::config::block::{Block, LocationName};
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::place::{ModuleConf, Place, place};
use yorozu_kernel::config::settings::{Compiling, ModuleDraft, Varies, silent};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::word_enum;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::variables::{Row, Variable};
use yorozu_kernel::logging::error::{self, Level};
use yorozu_upstream::TlsOptions;

/// The module.
pub const MODULE: Module = Module::new("http_proxy", rows)
    .with(&[
        silent::<directives::Draft>,
        silent::<tls::Shared<Pass>>,
        silent::<settings::Shared<Pass>>,
        silent::<Shared<Pass>>,
    ])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[
    ("proxy_add_x_forwarded_for", Variable::Builtin(add_x_forwarded_for)),
    ("proxy_host", Variable::Builtin(proxy_host)),
    ("proxy_port", Variable::Builtin(proxy_port)),
];

/// What its directives have in common with others'.
pub static FAMILY: Family = Family::new("proxy", "proxy_temp").with_default_key();

/// Fields of the upstream's answer that are its own; others are made here.
const HIDDEN: [&[u8]; 3] = [b"date", b"server", b"x-pad"];

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

/// The proxy's settings in one location.
#[derive(Clone)]
pub struct Conf {
    own: directives::Conf,
    /// What `proxy_set_header` and its defaults say.
    pub fields: Fields,
    /// What `proxy_redirect` says, its default included.
    pub redirects: Vec<Rule>,
}

impl std::ops::Deref for Conf {
    type Target = directives::Conf;
    fn deref(&self) -> &directives::Conf {
        &self.own
    }
}

impl ModuleDraft for directives::Draft {
    type Conf = Conf;

    fn place() -> &'static Place {
        place!()
    }

    fn inherit(&mut self, outer: &Self) {
        Self::inherit(self, outer);
    }

    fn compile(&self, at: &Compiling<'_>) -> Result<Conf, ValueError> {
        let own = directives::Conf::compile(self, at.env)?;
        let host = Template::compile(b"$proxy_host", at.env)?;
        let fields = Fields::new(&own.proxy_set_header, &host);
        let mut redirects = own.proxy_redirect.rules.clone();
        if let Some(pass) = spoken_by::<Pass>(&**at.handler) {
            if own.proxy_redirect.has_default {
                redirects.extend(pass.default_redirect(&at.name.path()));
            }
        }
        Ok(Conf { fields, redirects, own })
    }

    /// `proxy_redirect default` is about the location and its handler.
    fn varies(&self, at: &Compiling<'_>) -> Varies {
        match spoken_by::<Pass>(&**at.handler) {
            Some(_) => Varies::ByLocation,
            None => Varies::With(false),
        }
    }
}

impl ModuleConf for Conf {
    fn place() -> &'static Place {
        directives::Draft::place()
    }
}

/// Every row of the module.
pub fn rows() -> Vec<Directive> {
    let mut rows = pass::rows_of::<Pass>();
    rows.extend(tls::rows::<Pass>());
    rows.extend_from_slice(directives::DIRECTIVES);
    rows.extend_from_slice(OTHERS);
    rows
}

/// Rows that are no plain settings.
const OTHERS: &[Directive] = &[
    Directive::row(
        "proxy_pass",
        LOCATION | LOCATION_IF | LIMIT_EXCEPT,
        Arity::ONE,
        Action::Set(pass),
        "URL of the HTTP upstream; a path in it replaces the location's prefix.",
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
    let url = Template::compile(args.word(0), args.env)?;
    let pass = match url.as_literal() {
        None => Pass::Spelled { url, target: Target::new(Template::default(), 80) },
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
            let target = Target::new(address, destination.scheme.port());
            Pass::Fixed { url: text, destination: Arc::new(destination), target }
        }
    };
    pass::handle_by(block, pass, args)
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
    /// Whether variables spelled it.
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
    Fixed { url: Bytes, destination: Arc<Destination>, target: Target },
    /// One that variables spell.
    Spelled { url: Template, target: Target },
}

impl Pass {
    /// The scheme, if it is known beforehand.
    fn known_scheme(&self) -> Option<Scheme> {
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

    /// Where this exchange goes; what variables spell is known to the exchange from here on (`$proxy_host`).
    ///
    /// # Errors
    /// The status the client gets: what the variables spell is no URL.
    fn resolved(&self, exchange: &mut Exchange) -> Result<Arc<Destination>, u16> {
        let url = match self {
            Self::Fixed { destination, .. } => return Ok(Arc::clone(destination)),
            Self::Spelled { url, .. } => url.value(exchange),
        };
        let Some(destination) = Destination::parse(&url, true) else {
            let url = String::from_utf8_lossy(&url);
            let text = format!("invalid URL prefix in \"{url}\"");
            error::request(exchange, Level::Error, &text);
            return Err(500);
        };
        let destination = Arc::new(destination);
        exchange.pass.put_for_shadows(Arc::clone(&destination));
        Ok(destination)
    }

    /// As resolved before, or now.
    fn destination(&self, exchange: &mut Exchange) -> Result<Arc<Destination>, u16> {
        match known(exchange) {
            Some(destination) => Ok(Arc::clone(destination)),
            None => self.resolved(exchange),
        }
    }
}

impl Spoken for Pass {
    fn family() -> &'static Family {
        &FAMILY
    }
}

impl Protocol for Pass {
    fn target(&self) -> Option<&Target> {
        match self {
            Self::Fixed { target, .. } => Some(target),
            Self::Spelled { .. } => None,
        }
    }

    fn upstream<'a>(&'a self, exchange: &'a mut Exchange) -> Later<'a, Result<Arc<Upstream>, u16>> {
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

    fn scheme(&self) -> &'static str {
        self.known_scheme().unwrap_or(Scheme::Http).text()
    }

    /// The cache key may name where it goes.
    fn resolve(&self, exchange: &mut Exchange) -> Result<(), u16> {
        self.resolved(exchange).map(drop)
    }

    fn may_keep(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().proxy_http_version == HttpVersion::V11
    }

    fn may_use_tls(&self) -> bool {
        self.known_scheme() != Some(Scheme::Http)
    }

    fn tls(&self, location: &LocationConf) -> Option<TlsOptions> {
        match self {
            Self::Fixed { destination, .. } => {
                tls::fixed_options(tls::of::<Self>(location), &destination.host)
            }
            Self::Spelled { .. } => None,
        }
    }

    fn takes_chunked(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().proxy_http_version == HttpVersion::V11
    }

    fn replaces_content(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().proxy_set_body.is_some()
    }

    fn passes_trailers(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().proxy_pass_trailers
    }

    fn hidden(&self) -> &'static [&'static [u8]] {
        &HIDDEN
    }

    fn rewritten(&self, exchange: &mut Exchange, name: &[u8], value: &[u8]) -> Option<Bytes> {
        let is = |known: &[u8]| known.eq_ignore_ascii_case(name);
        let (is_location, is_refresh, is_cookie) =
            (is(b"location"), is(b"refresh"), is(b"set-cookie"));
        // Of most fields nothing has to be known.
        if !(is_location || is_refresh || is_cookie) {
            return None;
        }
        let config = Rc::clone(&exchange.conf);
        let conf = config.location(exchange.location).of::<Conf>();
        if is_location {
            return rewrite::location(&conf.redirects, exchange, value);
        }
        if is_refresh {
            return rewrite::refresh(&conf.redirects, exchange, value);
        }
        let rules = CookieRules {
            domain: &conf.proxy_cookie_domain,
            path: &conf.proxy_cookie_path,
            flags: &conf.proxy_cookie_flags,
        };
        rewrite::cookie(rules, exchange, value)
    }

    fn asks_head_as_get(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().proxy_cache_convert_head
    }

    fn default_key(&self, exchange: &mut Exchange, location: &LocationConf, key: &mut Vec<u8>) {
        let Ok(destination) = self.destination(exchange) else { return };
        key.extend_from_slice(destination.scheme.text().as_bytes());
        key.extend_from_slice(&destination.host);
        request::append_uri(exchange, location, &destination, key);
    }

    fn append_decided(&self, exchange: &mut Exchange, location: &LocationConf, out: &mut Vec<u8>) {
        let conf = location.of::<Conf>();
        if let Some(destination) = known(exchange) {
            out.extend_from_slice(&destination.address);
            out.extend_from_slice(destination.scheme.text().as_bytes());
        }
        let of_cookies = conf.proxy_cookie_domain.0.iter().chain(&conf.proxy_cookie_path.0);
        conf.redirects.iter().chain(of_cookies).for_each(|rule| rule.append(exchange, out));
    }

    fn call(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        content: Content,
    ) -> Result<Call, u16> {
        let destination = self.destination(exchange)?;
        let conf = location.of::<Conf>();
        let made = request::make(exchange, location, &destination, content);
        let is_head = exchange.request.method == Method::Head
            && conf.proxy_method.is_none()
            && !request::is_converted_head(exchange, conf);
        let asked = Asked {
            head_bytes_max: pass::conf(location, &FAMILY).buffer_size.bytes(),
            is_head_request: is_head,
            may_upgrade: exchange.request.field(b"upgrade").is_some(),
        };
        let tls = match destination.scheme {
            Scheme::Http => None,
            Scheme::Https => {
                Some(tls::options(exchange, tls::of::<Self>(location), &destination.host)?)
            }
        };
        Ok(Call {
            request: made.bytes.into(),
            framing: match made.content {
                Content::Live { length: None } => Framing::CHUNKED,
                _ => Framing::PLAIN,
            },
            content: made.content,
            validates: made.validates,
            reader: Reader { asked, make: |asked| Box::new(HttpCodec::new(asked)) },
            catch_stderr: Vec::new(),
            line: None,
            // A certificate that variables name is one request's.
            may_keep: tls.is_none() || !tls::of::<Self>(location).is_spelled(),
            tls,
            scheme: destination.scheme.text(),
            uri: made.uri,
        })
    }
}

/// Where `proxy_pass` goes in the exchange's location, resolved or known beforehand.
fn known(exchange: &Exchange) -> Option<&Arc<Destination>> {
    match spoken_by(&*exchange.conf.location(exchange.location).handler)? {
        Pass::Fixed { destination, .. } => Some(destination),
        Pass::Spelled { .. } => exchange.pass.of(),
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
