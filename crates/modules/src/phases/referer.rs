//! `valid_referers`: from where images and the like may be asked for.

use bytes::Bytes;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::hosts::Hosts;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::regex::Regex;
use yorozu_kernel::config::servers::ServerName;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::variables::{Row, Variable, put};

/// The module.
pub const MODULE: Module = Module::new("http_referer", || DIRECTIVES.to_vec())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] =
    &[("invalid_referer", Variable::Builtin(|ex, out| is_invalid(ex) && put(out, b"1")))];

/// `valid_referers none | blocked | server_names | string ...`
#[derive(Clone, Debug, Default)]
pub struct Valid {
    none: bool,
    blocked: bool,
    server_names: bool,
    /// Hosts, each with the path that must follow it.
    hosts: Vec<(Bytes, Bytes)>,
    regexes: Vec<Regex>,
}

impl Setting for Valid {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut valid = Self::default();
        valid.again(args)?;
        Ok(valid)
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            match &word[..] {
                b"none" => self.none = true,
                b"blocked" => self.blocked = true,
                b"server_names" => self.server_names = true,
                [b'~', pattern @ ..] if !pattern.is_empty() => {
                    self.regexes.push(Regex::compile(pattern, true, args.env)?);
                }
                text => {
                    let text = text.to_ascii_lowercase();
                    let text = text.strip_prefix(b"http://").unwrap_or(&text);
                    let at = text.iter().position(|byte| *byte == b'/').unwrap_or(text.len());
                    let (host, path) = text.split_at(at);
                    let host = Bytes::copy_from_slice(host);
                    self.hosts.push((host, Bytes::copy_from_slice(path)));
                }
            }
        }
        Ok(())
    }
}

settings! {
    /// Values of `Referer` for which `$invalid_referer` is empty.
    valid_referers: Option<Valid> = none, ONE_OR_MORE, SERVER | LOCATION;
}

/// `$invalid_referer`: whether the request's `Referer` is none of the valid ones.
///
/// # Source
/// nginx, `ngx_http_referer_module`.
pub fn is_invalid(exchange: &Exchange) -> bool {
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    let Some(valid) = &conf.valid_referers else { return false };
    let Some(referer) = exchange.request.field(b"referer") else { return !valid.none };
    let lower = referer.to_ascii_lowercase();
    let rest = [&b"http://"[..], b"https://"].iter().find_map(|start| lower.strip_prefix(*start));
    let Some(rest) = rest else { return !valid.blocked };
    let at = rest.iter().position(|byte| b"/:?".contains(byte)).unwrap_or(rest.len());
    let (host, behind) = rest.split_at(at);
    let path_at = behind.iter().position(|byte| *byte == b'/').unwrap_or(behind.len());
    let path = &behind[path_at..];
    let is_listed = valid
        .hosts
        .iter()
        .any(|(name, start)| (start.is_empty() || path.starts_with(start)) && is_host(name, host));
    let is_named = || {
        let names = &exchange.conf.server(exchange.server).names;
        valid.server_names && names.iter().any(|name| is_server(name, host))
    };
    // Regular expressions begin behind the scheme.
    let matches = || valid.regexes.iter().any(|regex| regex.is_match(rest));
    !(is_listed || is_named() || matches())
}

fn is_server(name: &ServerName, host: &[u8]) -> bool {
    match name {
        ServerName::Text(name) => is_host(name.to_ascii_lowercase().as_bytes(), host),
        ServerName::Regex(regex, _) => regex.is_match(host),
    }
}

/// Whether a name, with a wildcard at one end, matches the host.
fn is_host(name: &[u8], host: &[u8]) -> bool {
    let mut one = Hosts::default();
    one.add(&String::from_utf8_lossy(name), ());
    name == host || one.find(host).is_some()
}
