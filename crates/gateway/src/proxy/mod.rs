//! `proxy_pass`: the mapping from an exchange to HTTP and back, and the module's own directives.

mod codec;
pub mod destination;
pub mod directives;
pub mod request;
mod rewrite;

pub use request::add_x_forwarded_for;

use super::pass::{self, Shared};
use super::protocol::call::{Call, Talk};
use super::protocol::codec::{Asked, Reader};
use super::protocol::family::{Family, Spoken};
use super::protocol::target::Target;
use super::protocol::{Protocol, SetTo, spoken_by, tls};
use crate::cache::settings;
use crate::upstream::Upstream;
use bytes::Bytes;
use codec::HttpCodec;
use destination::{Destination, Going, Scheme};
use request::{Fields, Rules};
use rewrite::{CookieRules, Rule};
use std::rc::Rc;
use std::sync::Arc;
use yorozu_http::field;
use yorozu_kernel::config::block::{Block, LocationName};
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::place::{ModuleConf, Place, place};
use yorozu_kernel::config::settings::{Compiling, ModuleDraft, Varies, silent};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::hash_size;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::exchange::variables::{Row, Variable};
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
    V2,
}

impl Setting for HttpVersion {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match args.word(0) {
            b"1.0" => Ok(Self::V10),
            b"1.1" => Ok(Self::V11),
            b"2" => Ok(Self::V2),
            other => Err(args.invalid_value_must_be(other, "\"1.0\", \"1.1\" or \"2\"")),
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

impl Conf {
    fn rules(&self) -> Rules<'_> {
        Rules {
            family: &FAMILY,
            fields: &self.fields,
            version: self.proxy_http_version,
            method: self.proxy_method.as_ref(),
            body: self.proxy_set_body.as_ref(),
            converts_head: self.proxy_cache_convert_head,
        }
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
        let pass = spoken_by::<Pass>(&**at.handler);
        // Rendered here, where it is the same for each request.
        let host = match pass {
            Some(Pass(Going::Fixed { destination, .. })) => {
                Template::literal(destination.host.clone())
            }
            _ => Template::compile(b"$proxy_host", at.env)?,
        };
        let fields = Fields::new(&own.proxy_set_header, &host, &[]);
        let redirects = own.proxy_redirect.rules(|| pass?.default_redirect(&at.name.path()));
        Ok(Conf { fields, redirects, own })
    }

    /// `proxy_redirect default` and the default of `Host` are about the location and its handler.
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
    rows.extend(directives::DIRECTIVES.iter().cloned().map(|row| match &*row.name {
        "proxy_redirect" => Directive { action: Action::Set(redirect), ..row },
        _ => row,
    }));
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
        Action::Ignored("hash tables size themselves", hash_size),
        "Bucket size of the hash of headers.",
    ),
    Directive::row(
        "proxy_headers_hash_max_size",
        HTTP_SERVER_LOCATION,
        Arity::ONE,
        Action::Ignored("hash tables size themselves", hash_size),
        "Size of the hash of headers.",
    ),
];

fn pass(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let going = Going::from_args(args, Destination::of_url)?;
    if let Going::Fixed { destination, .. } = &going {
        let takes_uri = matches!(block.name, LocationName::Exact(_) | LocationName::Prefix { .. });
        if !takes_uri && !destination.uri.is_empty() {
            return Err(ValueError::new(
                "\"proxy_pass\" cannot have URI part in location given by regular expression, or inside named location, or inside \"if\" statement, or inside \"limit_except\" block",
            ));
        }
    }
    pass::handle_by(block, Pass(going), args)
}

/// `proxy_redirect`, of which `default` is about the `proxy_pass` before it.
fn redirect(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    block.drafts.of::<directives::Draft>().proxy_redirect.set(args)?;
    if args.words.len() > 1 || args.word(0) != b"default" {
        return Ok(());
    }
    let handler = block.handler.as_ref();
    match handler.and_then(|handler| spoken_by::<Pass>(&**handler)) {
        Some(Pass(Going::Fixed { .. })) => Ok(()),
        Some(Pass(Going::Spelled { .. })) => Err(ValueError::new(
            "\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables",
        )),
        None => Err(ValueError::new(
            "\"proxy_redirect default\" should be placed after the \"proxy_pass\" directive",
        )),
    }
}

/// What `proxy_pass` says.
#[derive(Debug)]
pub struct Pass(Going);

impl Pass {
    /// `proxy_redirect default`
    fn default_redirect(&self, location: &Bytes) -> Option<Rule> {
        let Going::Fixed { url, destination, .. } = &self.0 else { return None };
        if destination.uri.is_empty() {
            let with_slash = [&url[..], b"/"].concat();
            return Some(Rule::literal(with_slash.into(), Bytes::from_static(b"/")));
        }
        Some(Rule::literal(url.clone(), location.clone()))
    }
}

impl Spoken for Pass {
    fn family() -> &'static Family {
        &FAMILY
    }
}

impl Protocol for Pass {
    fn target(&self) -> Option<&Target> {
        self.0.target()
    }

    fn upstream<'a>(&'a self, exchange: &'a mut Exchange) -> Later<'a, Result<Arc<Upstream>, u16>> {
        self.0.upstream(exchange)
    }

    fn scheme(&self) -> &'static str {
        self.0.known_scheme().unwrap_or(Scheme::Http).text()
    }

    fn judges_conditions(&self) -> bool {
        true
    }

    /// The cache key may name where it goes.
    fn resolve(&self, exchange: &mut Exchange) -> Result<(), u16> {
        match self.0 {
            Going::Fixed { .. } => Ok(()),
            Going::Spelled { .. } => self.0.resolved(exchange).map(drop),
        }
    }

    fn may_keep(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().proxy_http_version != HttpVersion::V10
    }

    fn has_sessions(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().proxy_http_version == HttpVersion::V2
    }

    fn may_use_tls(&self) -> bool {
        self.0.known_scheme() != Some(Scheme::Http)
    }

    fn tls(&self, location: &LocationConf) -> Option<TlsOptions> {
        let conf = tls::of::<Self>(location);
        let options = self.0.tls(conf)?;
        Some(if self.has_sessions(location) { conf.for_h2(options) } else { options })
    }

    fn takes_chunked(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().proxy_http_version != HttpVersion::V10
    }

    fn replaces_content(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().proxy_set_body.is_some()
    }

    fn each_set(
        &self,
        location: &LocationConf,
        name: &[u8],
        each: &mut dyn FnMut(SetTo<'_>),
    ) -> bool {
        let is_set = location.of::<Conf>().fields.each_set(name, each);
        is_set || !pass::conf(location, &FAMILY).pass_request_headers
    }

    fn passes_trailers(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().proxy_pass_trailers
    }

    fn hidden(&self) -> &'static [&'static [u8]] {
        &HIDDEN
    }

    fn rewritten(&self, exchange: &mut Exchange, name: &[u8], value: &[u8]) -> Option<Bytes> {
        let is = |known: &[u8]| field::is_same(known, name);
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
        let Ok(destination) = self.0.destination(exchange) else { return };
        key.extend_from_slice(destination.scheme.text().as_bytes());
        key.extend_from_slice(&destination.host);
        request::append_uri(exchange, location, &destination, key);
    }

    fn call(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        content: Content,
    ) -> Result<Call, u16> {
        let destination = self.0.destination(exchange)?;
        let rules = location.of::<Conf>().rules();
        let tls = destination.scheme.is_encrypted().then(|| tls::of::<Self>(location));
        let made = request::make(exchange, location, rules, &destination, content);
        let speech = match rules.version {
            HttpVersion::V10 | HttpVersion::V11 => {
                let asked = Asked {
                    head_bytes_max: pass::head_bytes_max(location, &FAMILY),
                    is_head_request: made.is_head_request,
                    may_upgrade: exchange.request.field(b"upgrade").is_some(),
                };
                Talk::Apart(Reader { asked, make: |asked| Box::new(HttpCodec::new(asked)) })
            }
            HttpVersion::V2 => made.session(exchange, rules, destination.scheme),
        };
        made.call(exchange, tls, &destination, speech)
    }
}

/// Where the exchange's location goes, resolved or known beforehand.
fn known(exchange: &Exchange) -> Option<&Destination> {
    let Pass(going) = spoken_by::<Pass>(&*exchange.conf.location(exchange.location).handler)?;
    if let Some(destination) = exchange.pass.of::<Arc<Destination>>() {
        return Some(destination);
    }
    match going {
        Going::Fixed { destination, .. } => Some(destination),
        Going::Spelled { .. } => None,
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
