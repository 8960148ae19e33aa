//! `set_real_ip_from`: takes the client's address from what a trusted proxy says.

use bytes::Bytes;
use std::net::IpAddr;
use std::rc::Rc;
use yorozu_http::field;
use yorozu_kernel::base::texts;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::network::Network;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::{Exchange, Remote, forwarded};

/// The module.
pub const MODULE: Module =
    Module::new("http_realip", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// `set_real_ip_from`: every address a name stands for.
#[derive(Clone, Debug)]
pub struct Trusted(Vec<Network>);

impl Setting for Trusted {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let text = args.text(0);
        let network = Network::written(&text, args.env);
        if let Some(network) = network.filter(|network| *network != Network::All) {
            return Ok(Self(vec![network]));
        }
        let found = texts::host(&text, 0);
        let found: Vec<Network> = found.iter().map(|address| address.ip().into()).collect();
        if found.is_empty() {
            return Err(ValueError(format!("host not found in set_real_ip_from \"{text}\"")));
        }
        Ok(Self(found))
    }
}

/// `real_ip_header`
#[derive(Clone, Debug)]
pub enum RealIpHeader {
    ProxyProtocol,
    /// A field, in lower case.
    Field(Bytes),
}

impl Setting for RealIpHeader {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(match args.word(0) {
            b"proxy_protocol" => Self::ProxyProtocol,
            name => Self::Field(name.to_ascii_lowercase().into()),
        })
    }
}

/// `real_ip_scheme`: a field, in lower case.
#[derive(Clone, Debug)]
pub struct SchemeHeader(Bytes);

impl Setting for SchemeHeader {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let name = args.word(0);
        match field::is_token(name) {
            true => Ok(Self(name.to_ascii_lowercase().into())),
            false => {
                let name = args.text(0);
                Err(ValueError(format!(
                    "invalid header name \"{name}\", expected one like \"X-Forwarded-Proto\""
                )))
            }
        }
    }
}

impl SchemeHeader {
    /// What headers say of schemes.
    const WORDS: [(&[u8], &[u8]); 6] = [
        (b"https", b"https"),
        (b"on", b"https"),
        (b"1", b"https"),
        (b"http", b"http"),
        (b"off", b"http"),
        (b"0", b"http"),
    ];

    /// The scheme by the proxy that the request came from, which speaks last. Whatever its clients said before it is taken
    /// away.
    fn take(&self, exchange: &mut Exchange) -> Option<&'static [u8]> {
        let request = &mut exchange.request;
        let last = request.values(&self.0).last().and_then(|line| field::list(line).last())?;
        let mut known = Self::WORDS.into_iter();
        let (word, scheme) = known.find(|(word, _)| last.eq_ignore_ascii_case(word))?;
        request.retain_fields(|name| !field::is_alike(name, &self.0));
        if let Some(name) = field::Name::new(&self.0) {
            request.add_field(name, &field::Value::new(word));
        }
        Some(scheme)
    }
}

settings! {
    /// Where the client's address is taken from: a header, or `proxy_protocol`.
    real_ip_header: RealIpHeader = "X-Real-IP", ONE, HTTP_SERVER_LOCATION;
    /// Header with the scheme that the client used to reach a trusted proxy, such as `X-Forwarded-Proto`: `https`, `on` or `1`, and `http`, `off` or `0`.
    real_ip_scheme: Option<SchemeHeader> = none, ONE, HTTP_SERVER_LOCATION;
    /// Whether addresses are skipped as long as they are trusted.
    real_ip_recursive: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Trusted proxies.
    set_real_ip_from: Vec<Trusted> = none, ONE, HTTP_SERVER_LOCATION;
}

impl Conf {
    /// Whether some proxy is trusted.
    pub fn is_on(&self) -> bool {
        !self.set_real_ip_from.is_empty()
    }

    /// The header in which a trusted proxy says the scheme.
    pub fn scheme_header(&self) -> Option<&[u8]> {
        self.real_ip_scheme.as_ref().map(|header| &header.0[..])
    }
}

/// Puts the client's own address in the place of the proxy's, once per request.
pub fn apply(exchange: &mut Exchange, conf: &Conf) {
    if !Rc::ptr_eq(&exchange.remote, &exchange.client.remote) {
        return;
    }
    let networks = || conf.set_real_ip_from.iter().flat_map(|trusted| trusted.0.iter());
    let is_trusted = |ip: Option<IpAddr>| networks().any(|network| network.matches(ip));
    if !is_trusted(exchange.remote.ip()) {
        return;
    }
    let found = match &conf.real_ip_header {
        RealIpHeader::ProxyProtocol => {
            exchange.client.proxied.get().and_then(|header| header.source)
        }
        RealIpHeader::Field(name) => {
            forwarded::named(exchange, name, conf.real_ip_recursive, |ip| is_trusted(Some(ip)))
        }
    };
    let scheme = conf.real_ip_scheme.as_ref().and_then(|header| header.take(exchange));
    if found.is_some() || scheme.is_some() {
        let remote = Remote::of(found.or(exchange.remote.address));
        exchange.remote = Rc::new(Remote { scheme, ..remote });
    }
}
