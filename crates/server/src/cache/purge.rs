//! `*_cache_purge`: requests that remove stored pages, in the syntax of nginx's commercial version and of the
//! third-party module.
//!
//! | written | who purges | answer |
//! | --- | --- | --- |
//! | `ZONE KEY` in a location | every request to it | 200 and the key, 412 if nothing was stored |
//! | `METHOD [purge_all] [from all \| ADDRESS ...]` | requests with this method (`on`: PURGE), for their own URL | the same |
//! | `$flag ...` | requests for which a flag is neither empty nor 0, for their own URL | 204, 404 if nothing was stored |
//!
//! A `*` at the end of the key stands for whatever follows. All variants and methods of a key go. Where
//! neither `from` nor `allow` and `deny` of the location say who may purge, this machine may.

use super::key;
use super::report::Report;
use crate::config::directive::*;
use crate::config::network::Network;
use crate::config::template::Template;
use crate::exchange::Exchange;
use crate::exchange::response::Response;
use crate::handlers::Outcome;
use crate::handlers::gateway::Conf;
use crate::logging::error::{self, Level};
use bytes::Bytes;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_cache::{Depth, Key, Purge, Zone};

/// `*_cache_purge`
#[derive(Clone, Debug, Default)]
pub enum PurgeRule {
    #[default]
    Off,
    /// `ZONE KEY`
    Key { zone: String, key: Template },
    /// `METHOD …`
    Method { method: Bytes, takes_all: bool, from: Option<From> },
    /// `$flag …`
    Flags(Vec<Template>),
}

/// `from`: who may purge.
#[derive(Clone, Debug)]
pub enum From {
    All,
    Networks(Vec<Network>),
}

impl PurgeRule {
    /// The zone it names by itself.
    pub fn zone(&self) -> Option<&str> {
        match self {
            Self::Key { zone, .. } => Some(zone),
            _ => None,
        }
    }
}

impl Setting for PurgeRule {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let first = args.word(0);
        if first.starts_with(b"$") {
            let flags = args.words.iter().map(|word| Template::compile(word, args.env));
            return flags.collect::<Result<_, _>>().map(Self::Flags);
        }
        if first == b"off" && args.words.len() == 1 {
            return Ok(Self::Off);
        }
        if args.words.len() == 2 && !matches!(args.word(1), b"from" | b"purge_all") {
            let key = Template::compile(args.word(1), args.env)?;
            return Ok(Self::Key { zone: args.text(0), key });
        }
        let is_token =
            first.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
        if !is_token {
            return Err(args.invalid_parameter(first));
        }
        let method = match first {
            b"on" => Bytes::from_static(b"PURGE"),
            method => Bytes::copy_from_slice(method),
        };
        let mut rest = &args.words[1..];
        let takes_all = rest.first().is_some_and(|word| &word[..] == b"purge_all");
        rest = &rest[usize::from(takes_all)..];
        let from = match rest {
            [] => None,
            [word, all] if &word[..] == b"from" && &all[..] == b"all" => Some(From::All),
            [word, addresses @ ..] if &word[..] == b"from" && !addresses.is_empty() => {
                let network = |word: &Bytes| {
                    Network::parse(&String::from_utf8_lossy(word))
                        .ok_or_else(|| args.invalid_parameter(word))
                };
                Some(From::Networks(addresses.iter().map(network).collect::<Result<_, _>>()?))
            }
            [other, ..] => return Err(args.invalid_parameter(other)),
        };
        Ok(Self::Method { method, takes_all, from })
    }
}

/// The settings of the gateway by whose rule the request is a purge.
fn rule<'a>(
    exchange: &mut Exchange,
    location: &'a crate::config::compiled::LocationConf,
) -> Option<&'a Conf> {
    // A location of its own for purges has no gateway: both families are asked.
    let own = location.gateway();
    let families = [own, &location.fastcgi.gateway, &location.proxy.gateway];
    families.into_iter().find(|conf| match &conf.cache_purge {
        PurgeRule::Off => false,
        PurgeRule::Key { .. } => true,
        PurgeRule::Method { method, .. } => {
            std::ptr::eq(*conf, own) && exchange.request.method_text() == method
        }
        PurgeRule::Flags(flags) => {
            std::ptr::eq(*conf, own) && flags.iter().any(|flag| flag.is_true(exchange))
        }
    })
}

/// Is the request a purge?
pub fn is_asked(exchange: &mut Exchange) -> bool {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let is_off = |conf: &Conf| matches!(conf.cache_purge, PurgeRule::Off);
    if is_off(&location.fastcgi.gateway) && is_off(&location.proxy.gateway) {
        return false;
    }
    rule(exchange, location).is_some()
}

/// Purges what the request asks for.
pub async fn run(exchange: &mut Exchange) -> Outcome {
    let config = Rc::clone(&exchange.conf);
    let location = config.location(exchange.location);
    let Some(conf) = rule(exchange, location) else { return Outcome::Status(500) };
    if !is_allowed(exchange, &conf.cache_purge, location.access.is_set()) {
        let text =
            "purge refused: only this machine may, unless \"allow\" or \"from\" names the client";
        error::request(exchange, Level::Error, text);
        return Outcome::Status(403);
    }
    let zone = match conf.cache_purge.zone() {
        Some(name) => config.zones.get(name).cloned(),
        None => match key::zone(exchange, conf) {
            Ok(zone) => zone,
            Err(status) => return Outcome::Status(status),
        },
    };
    let Some(zone) = zone else { return Outcome::Status(404) };
    let (purges, shown) = purges(exchange, conf);
    let count = match purge(&zone, purges, Depth::Hard).await {
        Ok(counts) => counts.iter().sum(),
        Err(problem) => {
            error::request(exchange, Level::Crit, &problem);
            return Outcome::Status(500);
        }
    };
    exchange.cache_report = Report::default();
    match (&conf.cache_purge, count) {
        (PurgeRule::Flags(_), 0) => Outcome::Status(404),
        (PurgeRule::Flags(_), _) => Outcome::Respond(Box::new(Response::new(204))),
        (_, 0) => Outcome::Status(412),
        (_, count) => {
            let text = format!("purged {count}: {shown}\n");
            Outcome::Respond(Box::new(Response::with_body(
                200,
                Bytes::from_static(b"text/plain"),
                text,
            )))
        }
    }
}

fn is_allowed(exchange: &Exchange, rule: &PurgeRule, has_rules: bool) -> bool {
    let ip = exchange.remote.ip();
    match rule {
        PurgeRule::Method { from: Some(From::All), .. } => true,
        PurgeRule::Method { from: Some(From::Networks(networks)), .. } => {
            networks.iter().any(|network| network.matches(ip))
        }
        _ if has_rules => true,
        _ => {
            let own = exchange.client.local.map(|address| address.ip());
            ip.is_none_or(|ip| ip.is_loopback() || Some(ip) == own)
        }
    }
}

/// What the request's key means, for GET and HEAD; and the key as text.
fn purges(exchange: &mut Exchange, conf: &Conf) -> (Vec<Purge>, String) {
    if let PurgeRule::Method { takes_all: true, .. } = conf.cache_purge {
        return (vec![Purge::All], "everything".to_owned());
    }
    let (mut found, mut shown) = (Vec::new(), String::new());
    for method in [&b"GET"[..], b"HEAD"] {
        let key = match &conf.cache_purge {
            PurgeRule::Key { key: template, .. } => key::as_method(exchange, method, |exchange| {
                let mut out = Vec::with_capacity(128);
                template.append(exchange, &mut out);
                Key::primary(out.into())
            }),
            _ => key::with_method(exchange, conf, method),
        };
        let meant = of_key(&key);
        if !found.contains(&meant) {
            if shown.is_empty() {
                let _ = write!(shown, "{}", String::from_utf8_lossy(key.as_bytes()));
            }
            found.push(meant);
        }
    }
    (found, shown)
}

/// A page, or with `*` at its end every key that begins so.
pub fn of_key(key: &Key) -> Purge {
    match key.as_bytes().strip_suffix(b"*") {
        Some(prefix) => Purge::Prefix(Bytes::copy_from_slice(prefix)),
        None => Purge::Page(key.clone()),
    }
}

/// Purges, all at once, on a thread that may block; how many stored responses each met.
///
/// # Errors
/// A line for the log: a file could not be removed.
pub async fn purge(
    zone: &Arc<Zone>,
    purges: Vec<Purge>,
    depth: Depth,
) -> Result<Vec<usize>, String> {
    let zone = Arc::clone(zone);
    match tokio::task::spawn_blocking(move || zone.purge(&purges, depth)).await {
        Ok(Ok(counts)) => Ok(counts),
        Ok(Err(problem)) => Err(problem.to_string()),
        Err(_) => Err("the purge was interrupted".to_owned()),
    }
}

/// A tag of one host's pages, as the cache has it; of all hosts' without a host.
pub fn tag(host: &[u8], tag: &[u8]) -> Bytes {
    [host, b"\0", tag].concat().into()
}

/// Fields by which answers are tagged; they are not sent on.
pub const TAG_FIELDS: [&[u8]; 3] = [b"surrogate-key", b"cache-tag", b"xkey"];

/// Most bytes of one answer's tags together, and most tags; chosen above what WordPress plugins bound
/// themselves to (32,512 bytes). What is beyond is not tagged, so it is not stored either.
const TAGS_BYTES_MAX: usize = 64 * 1024;
const TAGS_MAX: usize = 4096;

/// The tags of an answer for `host`, parted by spaces or commas; `None` if there are too many.
pub fn tags<'a>(host: &[u8], lines: impl Iterator<Item = &'a [u8]>) -> Option<Vec<Bytes>> {
    let (mut found, mut seen, mut bytes) = (Vec::new(), HashSet::new(), 0);
    for line in lines {
        for word in line.split(|byte| matches!(byte, b' ' | b',' | b'\t')) {
            if word.is_empty() {
                continue;
            }
            bytes += word.len();
            let tag = tag(host, word);
            if seen.insert(tag.clone()) {
                found.push(tag);
            }
            if bytes > TAGS_BYTES_MAX || found.len() > TAGS_MAX {
                return None;
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(words: &str) -> Result<PurgeRule, String> {
        let text = format!(
            "http {{ fastcgi_cache_path c keys_zone=z:1m; server {{ location / {{ fastcgi_cache_purge {words}; }} }} }}"
        );
        let config = crate::testing::try_config(&text)?;
        let location = config.locations.iter().find(|location| &location.name[..] == b"/").unwrap();
        Ok(location.fastcgi.gateway.cache_purge.clone())
    }

    #[test]
    fn every_syntax_is_read() {
        assert!(matches!(rule("off"), Ok(PurgeRule::Off)));
        assert!(matches!(rule("z $host$1*"), Ok(PurgeRule::Key { zone, .. }) if zone == "z"));
        assert!(matches!(rule("$http_x $arg_y"), Ok(PurgeRule::Flags(flags)) if flags.len() == 2));
        let method = |words| match rule(words) {
            Ok(PurgeRule::Method { method, takes_all, from }) => {
                (method, takes_all, from.is_some())
            }
            other => panic!("{words}: {other:?}"),
        };
        assert_eq!(method("PURGE from 127.0.0.1 10.0.0.0/8"), (Bytes::from("PURGE"), false, true));
        assert_eq!(method("on"), (Bytes::from("PURGE"), false, false));
        assert_eq!(method("BAN purge_all from all"), (Bytes::from("BAN"), true, true));
        assert!(rule("PURGE from nowhere").is_err());
        assert!(rule("PURGE to 127.0.0.1 x").is_err());
        assert!(rule("none $uri").unwrap_err().contains("zone \"none\" is unknown"));
    }

    #[test]
    fn tags_are_parted_by_spaces_and_commas_and_belong_to_a_host() {
        let lines = [&b"post-1 home,post-1"[..], b"a, b"];
        let found = tags(b"h", lines.into_iter()).unwrap();
        let wanted: Vec<Bytes> =
            [&b"post-1"[..], b"home", b"a", b"b"].map(|t| tag(b"h", t)).to_vec();
        assert_eq!(found, wanted);
        let huge = vec![b'x'; TAGS_BYTES_MAX + 1];
        assert_eq!(tags(b"h", std::iter::once(&huge[..])), None);
    }
}
