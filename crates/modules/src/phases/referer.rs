//! `valid_referers`: from where images and the like may be asked for.

use bytes::Bytes;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::hosts::{Hosts, is_name_or_wildcard};
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::regex::{Regex, Undecided};
use yorozu_kernel::config::servers::ServerName;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::variables::{Row, Variable, put};

/// The module.
pub const MODULE: Module = Module::new("http_referer", || DIRECTIVES.to_vec())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[(
    "invalid_referer",
    Variable::Builtin(|ex, out| {
        is_invalid(ex).is_ok_and(|is| put(out, if is { b"1" } else { b"" }))
    }),
)];

/// `valid_referers none | blocked | server_names | string ...`
#[derive(Clone, Debug, Default)]
pub struct Valid {
    none: bool,
    blocked: bool,
    server_names: bool,
    /// Hosts, each with the path that must follow it.
    hosts: Hosts<Bytes>,
    regexes: Vec<Regex>,
}

impl Adds for Valid {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            match &word[..] {
                b"none" => self.none = true,
                b"blocked" => self.blocked = true,
                b"server_names" => self.server_names = true,
                b"" => return Err(ValueError::new("invalid referer \"\"")),
                b"~" => return Err(ValueError::new("empty regex in \"~\"")),
                [b'~', pattern @ ..] => {
                    self.regexes.push(Regex::compile(pattern, true, args.env)?);
                }
                text => self.add_host(text)?,
            }
        }
        Ok(())
    }
}

impl Valid {
    fn add_host(&mut self, text: &[u8]) -> Result<(), ValueError> {
        let at = text.iter().position(|byte| *byte == b'/').unwrap_or(text.len());
        let (host, path) = text.split_at(at);
        let host = String::from_utf8_lossy(host).to_ascii_lowercase();
        if !is_name_or_wildcard(&host) {
            return Err(ValueError(format!("invalid hostname or wildcard \"{host}\"")));
        }
        if !self.hosts.add(&host, Bytes::copy_from_slice(path)) {
            return Err(ValueError(format!("conflicting parameter \"{host}\"")));
        }
        Ok(())
    }
}

settings! {
    inherit = Draft::inherit, check = check;
    /// Values of `Referer` for which `$invalid_referer` is empty.
    valid_referers: Option<Valid> = none, ONE_OR_MORE, SERVER | LOCATION;
}

/// As nginx: there must be a host beside `none` and `blocked`.
fn check(conf: &Conf, _: &Env) -> Result<(), ValueError> {
    let is_without_host = |valid: &Valid| {
        (valid.none || valid.blocked) && !valid.server_names && valid.hosts.has_no_name()
    };
    if conf.valid_referers.as_ref().is_some_and(is_without_host) {
        return Err(ValueError::new(
            "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive without any valid referer",
        ));
    }
    Ok(())
}

/// What nginx compares of a host; longer ones are none of a list.
const HOST_BYTES_MAX: usize = 256;

/// `$invalid_referer`: whether the request's `Referer` is none of the valid ones.
///
/// # Errors
/// It cannot be told; the exchange is in doubt.
///
/// # Source
/// nginx, `ngx_http_referer_module`.
pub fn is_invalid(exchange: &Exchange) -> Result<bool, Undecided> {
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    let Some(valid) = &conf.valid_referers else { return Ok(false) };
    let Some(referer) = exchange.request.field(b"referer") else { return Ok(!valid.none) };
    let Some(rest) = without_scheme(referer) else { return Ok(!valid.blocked) };
    let at = rest.iter().position(|byte| b"/:".contains(byte)).unwrap_or(rest.len());
    let (host, behind) = rest.split_at(at);
    if host.len() > HOST_BYTES_MAX {
        return Ok(true);
    }
    let host = host.to_ascii_lowercase();
    let names = &exchange.conf.server(exchange.server).names;
    let is_named = valid.server_names && names.iter().any(|name| is_text(name, &host));
    // A path that is not there refuses a host that is listed, whatever regular expressions say.
    if let Some(start) = valid.hosts.find(&host) {
        let path_at = behind.iter().position(|byte| *byte == b'/').unwrap_or(behind.len());
        return Ok(!(is_named || behind[path_at..].starts_with(start)));
    }
    if is_named {
        return Ok(false);
    }
    let names = names.iter().filter(|_| valid.server_names).filter_map(|name| match name {
        ServerName::Regex(regex, _) => Some((regex, &host[..])),
        ServerName::Text(_) => None,
    });
    // Regular expressions begin behind the scheme.
    for (regex, subject) in names.chain(valid.regexes.iter().map(|regex| (regex, rest))) {
        if regex.is_match_for(subject, exchange)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What follows `http://` or `https://`; `None` for what is no URL of a page.
fn without_scheme(referer: &[u8]) -> Option<&[u8]> {
    // As nginx: a shorter one holds no host.
    if referer.len() < b"http://i.ru".len() {
        return None;
    }
    let behind = |scheme: &[u8]| {
        let (start, rest) = referer.split_at(scheme.len());
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    behind(b"http://").or_else(|| behind(b"https://"))
}

/// Whether a name, with a wildcard at one end, matches the host.
fn is_text(name: &ServerName, host: &[u8]) -> bool {
    let ServerName::Text(name) = name else { return false };
    let mut one = Hosts::default();
    one.add(&name.to_ascii_lowercase(), ());
    name.as_bytes() == host || one.find(host).is_some()
}
