//! `listen` and `server_name`: sockets, and which server answers for which name on each.

use super::block::Block;
use super::directive::{Args, ValueError};
use super::env::Env;
use super::regex::Regex;
use crate::base::address::resolve;
use crate::config::hosts::{Hosts, is_name_or_wildcard};
use crate::config::servers::*;
use std::net::Ipv4Addr;
use yorozu_conf::{ConfError, Position, value};

/// `listen address[:port] [parameters]`
pub fn listen(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let addresses = address(&args.text(0), 80)?;
    let mut options = ListenOptions::default();
    let (mut is_default, mut is_tls, mut http2, mut is_proxied) = (false, false, false, false);
    let mut is_quic = false;
    for word in &args.words[1..] {
        let text = String::from_utf8_lossy(word);
        let (name, argument) = text.split_once('=').map_or((&*text, None), |(n, a)| (n, Some(a)));
        match (name, argument) {
            ("default" | "default_server", None) => is_default = true,
            ("ssl", None) => is_tls = true,
            ("http2", None) => http2 = true,
            ("proxy_protocol", None) => is_proxied = true,
            ("quic", None) => is_quic = true,
            _ => parameter(name, argument, &mut options)
                .map_err(|error| error.unwrap_or_else(|| args.invalid_parameter(word)))?,
        }
    }
    if is_quic {
        fits_quic(args, &addresses)?;
    }
    for address in addresses {
        let address = match address {
            ListenAddress::Tcp(address) if is_quic => ListenAddress::Udp(address),
            other => other,
        };
        let is_tls = is_tls || is_quic;
        if block.listens.iter().any(|listen| listen.address == address) {
            return Err(ValueError(format!("a duplicate listen {address}")));
        }
        block.listens.push(Listen { address, options, is_default, is_tls, http2, is_proxied });
    }
    Ok(())
}

/// Refuses what does not go with `quic`, in nginx's words.
fn fits_quic(args: &Args<'_>, addresses: &[ListenAddress]) -> Result<(), ValueError> {
    const OTHERS: [&str; 9] = [
        "fastopen",
        "backlog",
        "accept_filter",
        "deferred",
        "ssl",
        "http2",
        "so_keepalive",
        "proxy_protocol",
        "multipath",
    ];
    let is_written = |name: &&str| {
        let mut names = args.words[1..].iter().map(|word| word.split(|byte| *byte == b'=').next());
        names.any(|word| word == Some(name.as_bytes()))
    };
    if let Some(other) = OTHERS.iter().find(|name| is_written(name)) {
        let text =
            format!("\"listen\" directive \"{other}\" parameter is incompatible with \"quic\"");
        return Err(ValueError(text));
    }
    match addresses.iter().find(|address| matches!(address, ListenAddress::Unix(_))) {
        Some(unix) => Err(ValueError(format!("\"quic\" needs an IP address, not \"{unix}\""))),
        None => Ok(()),
    }
}

/// `Err(None)`: unknown or malformed.
fn parameter(
    name: &str,
    argument: Option<&str>,
    options: &mut ListenOptions,
) -> Result<(), Option<ValueError>> {
    let bytes = || {
        let size = value::size(argument?.as_bytes())?;
        usize::try_from(size).ok()
    };
    match (name, argument) {
        ("bind" | "reuseport" | "multipath", None) => {}
        ("accept_filter", Some(_)) => {}
        ("fastopen", Some(number)) => {
            let refused = || Some(ValueError(format!("invalid fastopen \"fastopen={number}\"")));
            value::number(number.as_bytes()).ok_or_else(refused)?;
        }
        ("deferred", None) => options.deferred = true,
        ("control", None) => options.is_control = true,
        ("backlog", Some(number)) => {
            let backlog = number.parse().ok().filter(|backlog| *backlog > 0);
            options.backlog = Some(backlog.ok_or(None)?);
        }
        ("rcvbuf", Some(_)) => options.receive_bytes = Some(bytes().ok_or(None)?),
        ("sndbuf", Some(_)) => options.send_bytes = Some(bytes().ok_or(None)?),
        ("ipv6only", Some(switch)) => {
            options.ipv6only = Some(value::switch(switch.as_bytes()).ok_or(None)?);
        }
        ("so_keepalive", Some(text)) => {
            let refused = || Some(ValueError(format!("invalid so_keepalive value: \"{text}\"")));
            let switch = value::switch(text.as_bytes()).map(|is_on| match is_on {
                true => Probes::Usual,
                false => Probes::Off,
            });
            options.keepalive = Some(switch.or_else(|| probes(text)).ok_or_else(refused)?);
        }
        _ => return Err(None),
    }
    options.is_set = true;
    Ok(())
}

/// `idle:interval:count`, of which something is said and each can be left out; 0 says nothing.
fn probes(text: &str) -> Option<Probes> {
    let mut parts = text.splitn(3, ':');
    let mut take = |read: fn(&[u8]) -> Option<u64>| match parts.next().unwrap_or_default() {
        "" => Some(None),
        part => read(part.as_bytes()).map(|said| (said > 0).then_some(said)),
    };
    let time = |part: &[u8]| value::time(part).map(|time| time.as_secs());
    let (idle, interval, count) = (take(time)?, take(time)?, take(value::number)?);
    let is_said = idle.or(interval).or(count).is_some();
    let count = count.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    is_said.then_some(Probes::Timed { idle, interval, count })
}

/// Every address a text names: `80`, `*:80`, `host`, `host:80`, `[::]:80`, `unix:/path`.
pub fn address(text: &str, default_port: u16) -> Result<Vec<ListenAddress>, ValueError> {
    let broken = |why: &str| ValueError(format!("{why} in \"{text}\" of the \"listen\" directive"));
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() {
            return Err(broken("no path in the unix domain socket"));
        }
        return Ok(vec![ListenAddress::Unix(path.into())]);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        let port = text.parse::<u16>().ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| broken("invalid port"))?;
        return Ok(vec![ListenAddress::Tcp((Ipv4Addr::UNSPECIFIED, port).into())]);
    }
    if let Some((host, first, last)) = port_range(text) {
        if first == 0 || first > last {
            return Err(broken("invalid port range"));
        }
        let mut addresses = Vec::new();
        for port in first..=last {
            addresses.extend(resolve(host, port).map_err(broken)?);
        }
        return Ok(addresses.into_iter().map(ListenAddress::Tcp).collect());
    }
    let addresses = resolve(text, default_port).map_err(broken)?;
    Ok(addresses.into_iter().map(ListenAddress::Tcp).collect())
}

/// The host, `*` for none, and the ports of `[host:]first-last`.
fn port_range(text: &str) -> Option<(&str, u16, u16)> {
    let (host, ports) = text.rsplit_once(':').unwrap_or(("*", text));
    let (first, last) = ports.split_once('-')?;
    Some((host, first.parse().ok()?, last.parse().ok()?))
}

/// `server_name name …`
pub fn server_name(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    for word in args.words {
        let name = String::from_utf8_lossy(word).into_owned();
        if name.contains('/') && !name.starts_with('~') {
            args.env.warn_here(&format!("server name \"{name}\" has suspicious symbols"));
        }
        let server_name = if let Some(pattern) = name.strip_prefix('~') {
            if pattern.is_empty() {
                return Err(ValueError(format!("empty regex in server name \"{name}\"")));
            }
            // As nginx: upper case in the pattern makes no sense, so case is ignored.
            ServerName::Regex(Regex::compile(pattern.as_bytes(), true, args.env)?, name)
        } else if name == "$hostname" {
            let host = nix::unistd::gethostname().unwrap_or_default();
            ServerName::Text(host.to_string_lossy().to_lowercase())
        } else {
            let is_nothing = name == "." || name == "*.";
            if is_nothing || name.starts_with('*') && !name.starts_with("*.") {
                return Err(ValueError(format!("server name \"{name}\" is invalid")));
            }
            if !is_name_or_wildcard(&name) {
                return Err(ValueError(format!("invalid server name or wildcard \"{name}\"")));
            }
            ServerName::Text(name.to_ascii_lowercase())
        };
        block.server_names.push(server_name);
    }
    Ok(())
}

/// A server without `listen` listens on port 80, or 8000 when not started as root.
pub fn default_listen(server: &mut Block, _env: &Env) {
    if server.listens.is_empty() {
        let port = if nix::unistd::geteuid().is_root() { 80 } else { 8000 };
        let address = ListenAddress::Tcp((Ipv4Addr::UNSPECIFIED, port).into());
        server.listens.push(Listen {
            address,
            options: ListenOptions::default(),
            is_default: false,
            is_tls: false,
            http2: false,
            is_proxied: false,
        });
    }
}

/// Groups the listens of all servers by address.
pub fn sockets(
    listens: &[(Listen, ServerId, Position)],
    servers: &[ServerConf],
    env: &Env,
) -> Result<Vec<Socket>, ConfError> {
    let mut sockets: Vec<(Socket, bool)> = Vec::new();
    for (listen, server, at) in listens {
        let found = sockets.iter_mut().find(|(socket, _)| socket.address == listen.address);
        let (socket, has_default) = match found {
            Some(found) => found,
            None => {
                let socket = Socket {
                    address: listen.address.clone(),
                    options: ListenOptions::default(),
                    default_server: *server,
                    is_tls: false,
                    http2: false,
                    is_proxied: false,
                    hosts: Hosts::default(),
                    has_field_rules: false,
                };
                sockets.push((socket, false));
                sockets.last_mut().expect("just pushed")
            }
        };
        let duplicate = |what: &str| ValueError(format!("{what} for {}", listen.address)).at(at);
        if listen.is_default {
            if *has_default {
                return Err(duplicate("a duplicate default server"));
            }
            (socket.default_server, *has_default) = (*server, true);
        }
        if listen.options.is_set {
            if socket.options.is_set && socket.options != listen.options {
                return Err(duplicate("duplicate listen options"));
            }
            socket.options = listen.options;
        }
        socket.is_tls |= listen.is_tls;
        socket.http2 |= listen.http2;
        socket.is_proxied |= listen.is_proxied;
        add_names(socket, *server, servers, env);
    }
    for (socket, _) in &mut sockets {
        socket.hosts.simplify(&socket.default_server);
    }
    Ok(sockets.into_iter().map(|(socket, _)| socket).collect())
}

/// Notes where servers of one socket differ in which names of fields they take; `rules` are a server's.
pub fn compare_field_rules(
    sockets: &mut [Socket],
    listens: &[(Listen, ServerId, Position)],
    rules: impl Fn(ServerId) -> (bool, bool),
) {
    for socket in sockets {
        let default = rules(socket.default_server);
        let mut behind = listens.iter().filter(|(listen, ..)| listen.address == socket.address);
        socket.has_field_rules = behind.any(|(_, id, _)| rules(*id) != default);
    }
}

/// What a server has to say in a handshake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shown {
    pub has_certificate: bool,
    pub rejects: bool,
    /// Whether it speaks TLS 1.3.
    pub has_tls13: bool,
}

/// Sees to it that there is a certificate behind every socket with TLS, and TLS 1.3 behind every one with QUIC; `shown`
/// says what a server has.
///
/// # Errors
/// As nginx's.
pub fn check_certificates(
    sockets: &[Socket],
    listens: &[(Listen, ServerId, Position)],
    shown: impl Fn(ServerId) -> Shown,
) -> Result<(), ConfError> {
    for socket in sockets.iter().filter(|socket| socket.is_tls) {
        let is_quic = matches!(socket.address, ListenAddress::Udp(_));
        let word = if is_quic { "quic" } else { "ssl" };
        let default = shown(socket.default_server);
        if default.has_certificate {
            if is_quic && !default.has_tls13 {
                let of_it = |(listen, id, _): &&(Listen, ServerId, Position)| {
                    listen.address == socket.address && *id == socket.default_server
                };
                let at = listens.iter().find(of_it).map(|(.., at)| at).expect("a line made it");
                let text =
                    "\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... quic\" directive";
                return Err(ValueError::new(text).at(at));
            }
            continue;
        }
        // A default server that rejects handshakes has no certificate for the others: they need their own.
        let behind = listens.iter().filter(|(listen, ..)| listen.address == socket.address);
        let lacking =
            behind.filter(|(_, id, _)| !shown(*id).has_certificate && !shown(*id).rejects);
        if let Some((.., at)) = lacking.into_iter().next() {
            return Err(ValueError(format!(
                "no \"ssl_certificate\" is defined for the \"listen ... {word}\" directive"
            ))
            .at(at));
        }
    }
    Ok(())
}

fn add_names(socket: &mut Socket, id: ServerId, servers: &[ServerConf], env: &Env) {
    // nginx's default: a server without names is that of requests without `Host`.
    let nameless = [ServerName::Text(String::new())];
    let names = match &servers[id.0 as usize].names[..] {
        [] => &nameless,
        names => names,
    };
    for name in names {
        match name {
            ServerName::Regex(regex, _) => socket.hosts.add_regex(regex.clone(), id),
            ServerName::Text(text) => {
                if !socket.hosts.add(text, id) {
                    env.warn(format!(
                        "conflicting server name \"{text}\" on {}, ignored",
                        socket.address
                    ));
                }
            }
        }
    }
}
