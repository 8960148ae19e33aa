//! `upstream` blocks: groups of peers.

use crate::config::block::Block;
use crate::config::compiled::ListenAddress;
use crate::config::directive::*;
use crate::config::env::{Env, Upstream};
use crate::config::listen::{address, resolve};
use crate::config::load::Loader;
use std::sync::Arc;
use std::time::Duration;
use yorozu_conf::{ConfError, Directive as Line, value};
use yorozu_upstream::{Group, PeerAddress, PeerOptions, PoolLimits};

/// These are read by [`open`]; their rows make them known and give them their place.
const READ_WITH_BLOCK: Action = Action::Set(|_, args| Err(args.invalid_value()));

pub const DIRECTIVES: &[Directive] = &[
    Directive::row("upstream", HTTP, Arity::ONE, Action::Open(open), "Names a group of peers."),
    // These are read by `open`; the rows make them known and give them their place.
    Directive::row("server", UPSTREAM, Arity::ONE_OR_MORE, READ_WITH_BLOCK, "A peer of the group."),
    Directive::row(
        "keepalive",
        UPSTREAM,
        Arity::ONE_OR_TWO,
        READ_WITH_BLOCK,
        "Idle connections each worker keeps.",
    ),
    Directive::row(
        "keepalive_requests",
        UPSTREAM,
        Arity::ONE,
        READ_WITH_BLOCK,
        "Requests per kept connection.",
    ),
    Directive::row(
        "keepalive_time",
        UPSTREAM,
        Arity::ONE,
        READ_WITH_BLOCK,
        "Life of a kept connection.",
    ),
    Directive::row(
        "keepalive_timeout",
        UPSTREAM,
        Arity::ONE,
        READ_WITH_BLOCK,
        "How long an idle connection is kept.",
    ),
    Directive::row(
        "zone",
        UPSTREAM,
        Arity::ONE_OR_TWO,
        READ_WITH_BLOCK,
        "Shared state; threads share it always.",
    ),
    Directive::row(
        "ip_hash",
        UPSTREAM,
        Arity::NONE,
        Action::Refused("only round robin is there yet"),
        "Chooses peers by client address.",
    ),
    Directive::row(
        "hash",
        UPSTREAM,
        Arity::ONE_OR_TWO,
        Action::Refused("only round robin is there yet"),
        "Chooses peers by a key.",
    ),
    Directive::row(
        "least_conn",
        UPSTREAM,
        Arity::NONE,
        Action::Refused("only round robin is there yet"),
        "Chooses the least busy peer.",
    ),
    Directive::row(
        "random",
        UPSTREAM,
        Arity::UP_TO_TWO,
        Action::Refused("only round robin is there yet"),
        "Chooses peers at random.",
    ),
];

fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let name = String::from_utf8_lossy(&line.args[0]).into_owned();
    let mut limits = PoolLimits {
        idle_max: 0,
        idle_timeout: Duration::from_secs(60),
        requests_max: 1000,
        age_max: Duration::from_secs(3600),
    };
    let mut peers = Vec::new();
    let mut keepalive = false;
    for row in line.block.iter().flatten() {
        let at = |error: ValueError| error.at(&row.at);
        check_row(row)?;
        let args = Args { name: &row.name_text(), words: &row.args, env: loader.env };
        match &row.name[..] {
            b"server" => peers.extend(server(&args).map_err(at)?),
            b"keepalive" => {
                let idle = value::number(args.word(0)).filter(|idle| *idle > 0);
                let idle = idle.and_then(|idle| usize::try_from(idle).ok());
                limits.idle_max = idle.ok_or_else(|| {
                    at(ValueError(format!(
                        "invalid value \"{}\" in \"keepalive\" directive",
                        args.text(0)
                    )))
                })?;
                keepalive = true;
            }
            b"keepalive_requests" => limits.requests_max = u64::from_args(&args).map_err(at)?,
            b"keepalive_time" => limits.age_max = Duration::from_args(&args).map_err(at)?,
            b"keepalive_timeout" => limits.idle_timeout = Duration::from_args(&args).map_err(at)?,
            b"zone" => {}
            _ => {
                return Err(at(ValueError(format!(
                    "\"{}\" is not supported: only round robin is there yet",
                    args.name
                ))));
            }
        }
    }
    if peers.is_empty() {
        return Err(ValueError("no servers are inside upstream".to_owned()).at(&line.at));
    }
    let upstream = Upstream {
        group: Arc::new(Group::new(name.clone(), peers)),
        keepalive: keepalive.then_some(limits),
    };
    if loader.env.upstreams.borrow_mut().insert(name.clone(), upstream).is_some() {
        return Err(ValueError(format!("duplicate upstream \"{name}\"")).at(&line.at));
    }
    Ok(())
}

fn check_row(row: &Line) -> Result<(), ConfError> {
    let name = row.name_text();
    let at = row.at.clone();
    let rows = crate::config::registry::rows(&name);
    if rows.is_empty() {
        return Err(crate::config::load::unknown(name, &at));
    }
    let Some(known) = rows.iter().find(|known| known.contexts & UPSTREAM != 0) else {
        return Err(ConfError::NotAllowedHere { name, at });
    };
    if row.block.is_some() {
        return Err(ConfError::NotTerminated { name, at });
    }
    if !known.arity.admits(row.args.len()) {
        return Err(ConfError::ArgumentCount { name, at });
    }
    Ok(())
}

/// `server address [parameters]`; one peer per address the name has.
fn server(args: &Args<'_>) -> Result<Vec<PeerOptions>, ValueError> {
    let addresses = peer_addresses(&args.text(0), 80)?;
    let mut template = PeerOptions::new(addresses[0].clone());
    for word in &args.words[1..] {
        let text = String::from_utf8_lossy(word).into_owned();
        let number = |digits: &str| {
            value::number(digits.as_bytes())
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| args.invalid_parameter(word))
        };
        match text.split_once('=').unwrap_or((&text, "")) {
            ("weight", weight) => {
                template.weight = number(weight)?;
                if template.weight == 0 {
                    return Err(args.invalid_parameter(word));
                }
            }
            ("max_fails", count) => template.max_fails = number(count)?,
            ("max_conns", count) => template.max_conns = number(count)? as usize,
            ("fail_timeout", time) => {
                template.fail_timeout =
                    value::time(time.as_bytes()).ok_or_else(|| args.invalid_parameter(word))?;
            }
            ("backup", "") => template.backup = true,
            ("down", "") => template.down = true,
            _ => return Err(args.invalid_parameter(word)),
        }
    }
    Ok(addresses.into_iter().map(|address| PeerOptions { address, ..template.clone() }).collect())
}

/// Addresses of a peer as written in `server` or `*_pass`.
pub fn peer_addresses(text: &str, default_port: u16) -> Result<Vec<PeerAddress>, ValueError> {
    if text.starts_with("unix:") {
        let path = text.trim_end_matches(':');
        let found = address(path, default_port)
            .map_err(|_| ValueError(format!("invalid Unix socket \"{text}\"")))?;
        return Ok(found.into_iter().map(peer_address).collect());
    }
    let found = resolve(text, default_port)
        .map_err(|why| ValueError(format!("{why} in upstream \"{text}\"")))?;
    Ok(found.into_iter().map(PeerAddress::Tcp).collect())
}

fn peer_address(address: ListenAddress) -> PeerAddress {
    match address {
        ListenAddress::Unix(path) => PeerAddress::Unix(path),
        ListenAddress::Tcp(address) => PeerAddress::Tcp(address),
    }
}

/// The group a `*_pass` names: an `upstream` block, or one made of the address itself.
pub fn named(env: &Env, text: &str, default_port: u16) -> Result<Upstream, ValueError> {
    if let Some(upstream) = env.upstreams.borrow().get(text) {
        return Ok(upstream.clone());
    }
    let peers = peer_addresses(text, default_port)?.into_iter().map(PeerOptions::new).collect();
    let upstream =
        Upstream { group: Arc::new(Group::new(text.to_owned(), peers)), keepalive: None };
    Ok(upstream)
}
