//! `upstream` blocks: groups of peers, how one is chosen, how their connections are kept.

pub mod counters;
pub mod resolve;
pub mod sticky;
pub mod zones;

use resolve::{Means, Name, Names};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use sticky::Sticky;
use yorozu_conf::{ConfError, Directive as Line, value};
use yorozu_kernel::base::address::{ip, resolve_peer as resolve_now};
use yorozu_kernel::base::tally::Tally;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::listen::address;
use yorozu_kernel::config::loader::Loader;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::servers::ListenAddress;
use yorozu_kernel::config::shared::{Collected, Shared, SharedType};
use yorozu_kernel::config::template::Template;
use yorozu_upstream::{
    Balance, Group, LeastTime, Loads, PeerAddress, PeerOptions, PoolLimits, Resolver,
};

/// The module.
pub const MODULE: Module = Module::new("http_upstream", || DIRECTIVES.to_vec())
    .sharing(&[SharedType::of::<Upstreams>(), SharedType::of::<sticky::Zones>()])
    .showing(counters::report, counters::SECTIONS);

/// `upstream` blocks, and groups made of addresses written in `*_pass`, by what [`Upstreams::key`] makes of their names.
#[derive(Debug, Default)]
pub struct Upstreams {
    groups: BTreeMap<String, Arc<Upstream>>,
    /// `resolve_later`
    resolves_later: bool,
}

impl Upstreams {
    /// As nginx: names are the same in any case. Paths of sockets are not.
    fn key(name: &str) -> Cow<'_, str> {
        match name.starts_with("unix:") || !name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Borrowed(name),
            false => Cow::Owned(name.to_ascii_lowercase()),
        }
    }

    /// The group of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.groups.get(&*Self::key(name))
    }

    /// Adds a group; the one that had its name.
    fn insert(&mut self, upstream: Arc<Upstream>) -> Option<Arc<Upstream>> {
        self.groups.insert(Self::key(&upstream.group.name).into_owned(), upstream)
    }

    /// All groups.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.groups.values()
    }
}

impl Shared for Upstreams {
    fn place() -> &'static Place {
        place!()
    }
}

/// A group of peers with what its block says around it.
#[derive(Debug)]
pub struct Upstream {
    pub group: Arc<Group>,
    /// Whether it is written as an `upstream` block.
    pub is_block: bool,
    /// Where its requests are counted.
    pub tally: &'static Tally,
    /// How idle connections are kept, if they are.
    pub keepalive: Option<Keepalive>,
    /// The key of `hash`.
    pub hash_key: Option<Template>,
    /// What binds clients to peers.
    pub sticky: Option<Arc<Sticky>>,
    /// Servers whose names are resolved while the server runs.
    pub names: Option<resolve::Names>,
}

impl Upstream {
    /// A group that is written nowhere: the address of a `*_pass`.
    pub fn implicit(name: String, peers: Peers, tally: &'static Tally) -> Arc<Self> {
        let Peers { peers, later } = peers;
        let group = Arc::new(Group::new(name, peers, Balance::RoundRobin, &Arc::default()));
        let names = later.map(|name| Names { names: vec![name], resolver: OnceLock::new() });
        Arc::new(Self {
            group,
            is_block: false,
            tally,
            keepalive: None,
            hash_key: None,
            sticky: None,
            names,
        })
    }
}

/// `keepalive` and its relatives.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    pub limits: PoolLimits,
    /// Whether a connection is kept for the location that opened it.
    pub is_local: bool,
    /// Connections to each peer that are open before a request needs them.
    pub ready: usize,
}

/// Idle connections each worker keeps where the block says nothing; nginx since 1.29.7.
const KEEPALIVE_DEFAULT: usize = 32;
/// Connections per peer that `keepalive_ready` may ask for.
const READY_MAX: u64 = 1024;

/// These are read by [`open`]; their rows make them known and give them their place.
const READ_WITH_BLOCK: Action = Action::Set(|_, args| Err(args.invalid_value()));

const fn row(name: &'static str, arity: Arity, doc: &'static str) -> Directive {
    Directive::row(name, UPSTREAM, arity, READ_WITH_BLOCK, doc)
}

pub const DIRECTIVES: &[Directive] = &[
    Directive::row("upstream", HTTP, Arity::ONE, Action::Open(open), "Names a group of peers."),
    Directive::row(
        "resolve_later",
        HTTP,
        Arity::ONE,
        Action::Set(resolve_later),
        "Whether the server starts even if the name of an upstream cannot be resolved: it is looked up again every five seconds, and requests to it get 502 until then. Must come before `upstream`.",
    ),
    row(
        "server",
        Arity::ONE_OR_MORE,
        "A peer of the group: weight=, max_fails=, fail_timeout=, max_conns=, backup, down, drain, resolve, service=, route=.",
    ),
    row("ip_hash", Arity::NONE, "Chooses peers by the client's network."),
    row(
        "hash",
        Arity::ONE_OR_TWO,
        "Chooses peers by a key. consistent: on nginx's ring; ketama: on the ring of libmemcached and PHP's Memcached (OPT_LIBKETAMA_COMPATIBLE).",
    ),
    row("least_conn", Arity::NONE, "Chooses the least busy peer."),
    row(
        "least_time",
        Arity::ONE_OR_TWO,
        "Chooses the peer that is expected to answer first, by the average time to the head or to the last byte; inflight: also by how long unanswered requests have waited.",
    ),
    row("random", Arity::UP_TO_TWO, "Chooses peers at random; two: the less busy of two."),
    row(
        "sticky",
        Arity::TWO_OR_MORE,
        "Binds clients to peers: by a cookie (cookie name, expires=, domain=, path=, httponly, secure, samesite=), a variable (route $variable …), or a learned session (learn create= lookup= zone=, timeout=, header).",
    ),
    row("keepalive", Arity::ONE_OR_TWO, "Idle connections each worker keeps; 32 local if unset."),
    row(
        "keepalive_ready",
        Arity::ONE,
        "Connections to each peer that every worker opens before a request needs them, TLS handshake included; not in nginx.",
    ),
    row("keepalive_requests", Arity::ONE, "Requests per kept connection."),
    row("keepalive_time", Arity::ONE, "Maximum lifetime of a kept connection."),
    row("keepalive_timeout", Arity::ONE, "How long an idle connection is kept."),
    row("zone", Arity::ONE_OR_TWO, "Shared state; threads always share it."),
    row("resolver", Arity::ONE_OR_MORE, "Name servers for servers with resolve."),
    row("resolver_timeout", Arity::ONE, "Time to wait for a name server's response."),
];

/// An `upstream` block while it is read.
struct Draft {
    limits: PoolLimits,
    is_local: bool,
    ready: usize,
    balance: Option<Balance>,
    hash_key: Option<Template>,
    sticky: Option<Arc<Sticky>>,
    peers: Vec<PeerOptions>,
    names: Vec<Name>,
    has_keepalive: bool,
    has_zone: bool,
    resolver: Option<Resolver>,
    resolver_timeout: Option<Duration>,
}

impl Default for Draft {
    fn default() -> Self {
        let limits = PoolLimits {
            idle_max: KEEPALIVE_DEFAULT,
            idle_timeout: Duration::from_secs(60),
            requests_max: 1000,
            age_max: Duration::from_secs(3600),
        };
        Self {
            limits,
            is_local: true,
            ready: 0,
            balance: None,
            hash_key: None,
            sticky: None,
            peers: Vec::new(),
            names: Vec::new(),
            has_keepalive: false,
            has_zone: false,
            resolver: None,
            resolver_timeout: None,
        }
    }
}

fn resolve_later(_: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let mut upstreams = args.env.shared::<Upstreams>();
    if upstreams.iter().next().is_some() {
        let expected = "must stand before the first \"upstream\"";
        return Err(ValueError(format!("\"{}\" {expected}", args.name)));
    }
    upstreams.resolves_later = bool::from_args(args)?;
    Ok(())
}

fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let name = String::from_utf8_lossy(&line.args[0]).into_owned();
    let mut draft = Draft::default();
    for row in line.block.iter().flatten() {
        loader.row(UPSTREAM, row)?;
        let args = Args { name: &row.name_text(), words: &row.args, env: loader.env };
        draft.read(&args).map_err(|error| error.at(&row.at))?;
    }
    let upstream = draft.finish(&name, &loader.env.loads).map_err(|error| error.at(&line.at))?;
    let known = loader.env.shared::<Upstreams>().insert(Arc::new(upstream));
    if known.is_some() {
        return Err(ValueError(format!("duplicate upstream \"{name}\"")).at(&line.at));
    }
    Ok(())
}

/// Checks what only all blocks together show, and gives those without a `resolver` that of `http`.
///
/// # Errors
/// A zone has no size, or a name to resolve no resolver.
pub fn check(env: &Env, of_http: Option<&(Resolver, Duration)>) -> Result<(), ValueError> {
    zones::check(env)?;
    resolve::check(&env.shared::<Upstreams>(), of_http)
}

impl Draft {
    fn read(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        match args.name {
            "server" => self.server(args)?,
            "keepalive" => self.keepalive(args)?,
            "keepalive_ready" => {
                let ready = u64::from_args(args)?;
                self.ready =
                    usize::try_from(ready).ok().filter(|_| ready <= READY_MAX).ok_or_else(
                        || ValueError(format!("\"keepalive_ready\" must be at most {READY_MAX}")),
                    )?;
            }
            "keepalive_requests" => self.limits.requests_max = u64::from_args(args)?,
            "keepalive_time" => self.limits.age_max = Duration::from_args(args)?,
            "keepalive_timeout" => self.limits.idle_timeout = Duration::from_args(args)?,
            "zone" => {
                self.has_zone = true;
                zones::read(args)?;
            }
            "sticky" => {
                if self.sticky.replace(Arc::new(Sticky::read(args)?)).is_some() {
                    return Err(args.duplicate());
                }
            }
            "resolver" => self.resolver = Some(Resolver::from_args(args)?),
            "resolver_timeout" => self.resolver_timeout = Some(Duration::from_args(args)?),
            _ => self.balance(args)?,
        }
        Ok(())
    }

    fn keepalive(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        if std::mem::replace(&mut self.has_keepalive, true) {
            return Err(args.duplicate());
        }
        let idle = value::number(args.word(0)).and_then(|idle| usize::try_from(idle).ok());
        self.limits.idle_max = idle.ok_or_else(|| {
            ValueError(format!("invalid value \"{}\" in \"keepalive\" directive", args.text(0)))
        })?;
        self.is_local = match args.word(1) {
            b"" => false,
            b"local" => true,
            other => return Err(args.invalid_parameter(other)),
        };
        Ok(())
    }

    fn balance(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let balance = match (args.name, args.word(0), args.word(1)) {
            ("ip_hash", ..) => Balance::IpHash,
            ("least_conn", ..) => Balance::LeastConn,
            ("least_time", to @ (b"header" | b"last_byte"), b"" | b"inflight") => {
                let with_inflight = args.word(1) == b"inflight";
                Balance::LeastTime(LeastTime { to_last_byte: to == b"last_byte", with_inflight })
            }
            ("least_time", b"header" | b"last_byte", other) => {
                return Err(args.invalid_parameter(other));
            }
            ("hash", _, b"") => Balance::Hash,
            ("hash", _, b"consistent") => Balance::Consistent,
            ("hash", _, b"ketama") => Balance::Ketama,
            ("random", b"", _) => Balance::Random { two: false },
            ("random", b"two", b"" | b"least_conn") => Balance::Random { two: true },
            ("random", b"two", other) | ("hash", _, other) | (_, other, _) => {
                return Err(args.invalid_parameter(other));
            }
        };
        if args.name == "hash" {
            self.hash_key = Some(Template::compile(args.word(0), args.env)?);
        }
        if self.balance.replace(balance).is_some() {
            args.env.warn("load balancing method redefined");
        }
        Ok(())
    }

    /// `server address [parameters]`; one peer per address the name has.
    fn server(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let server = args.text(0);
        // Any address: each peer gets its own.
        let mut template = PeerOptions::new(PeerAddress::Unix("".into()));
        template.server.clone_from(&server);
        let mut is_resolved_later = false;
        let mut service = None;
        for word in &args.words[1..] {
            let text = String::from_utf8_lossy(word).into_owned();
            if text == "resolve" {
                is_resolved_later = true;
            } else if let Some(name) = text.strip_prefix("service=") {
                if name.is_empty() {
                    return Err(ValueError::new("service is empty"));
                }
                service = Some(name.to_owned());
            } else {
                self.parameter(&mut template, args, word, &text)?;
            }
        }
        if let Some(service) = service {
            return self.service(&server, &service, template, is_resolved_later);
        }
        let literal = literal_address(&server, 80);
        if !is_resolved_later || literal.is_some() {
            let later = args.env.shared::<Upstreams>().resolves_later;
            let Peers { peers, later } = Peers::found(&server, 80, &server, &template, later)?;
            self.peers.extend(peers);
            self.names.extend(later);
            return Ok(());
        }
        let (host, port) = host_and_port(&server, 80)
            .ok_or_else(|| ValueError(format!("invalid host in upstream \"{server}\"")))?;
        let means = Means::Addresses(port);
        self.names.push(Name { host: host.to_owned(), means, template, turn: Arc::default() });
        Ok(())
    }

    /// `server name service=name resolve`
    fn service(
        &mut self,
        host: &str,
        service: &str,
        mut template: PeerOptions,
        is_resolved_later: bool,
    ) -> Result<(), ValueError> {
        let refused = |why: &str| Err(ValueError(format!("service upstream \"{host}\" {why}")));
        if !is_resolved_later {
            return refused("requires \"resolve\" parameter");
        }
        if literal_address(host, 80).is_some() {
            return refused("requires domain name");
        }
        if host.contains(':') {
            return refused("may not have port");
        }
        let means = Means::service(service, host);
        if let Means::Service { records, .. } = &means {
            // Several services of a name are servers of their own.
            template.server.clone_from(records);
        }
        self.names.push(Name { host: host.to_owned(), means, template, turn: Arc::default() });
        Ok(())
    }

    fn parameter(
        &self,
        peer: &mut PeerOptions,
        args: &Args<'_>,
        word: &[u8],
        text: &str,
    ) -> Result<(), ValueError> {
        let number = |digits: &str| {
            value::number(digits.as_bytes())
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| args.invalid_parameter(word))
        };
        match text.split_once('=').unwrap_or((text, "")) {
            ("weight", weight) => {
                peer.weight = number(weight)?;
                if peer.weight == 0 {
                    return Err(args.invalid_parameter(word));
                }
            }
            ("max_fails", count) => peer.max_fails = number(count)?,
            ("max_conns", count) => peer.max_conns = number(count)? as usize,
            ("fail_timeout", time) => {
                peer.fail_timeout =
                    value::time(time.as_bytes()).ok_or_else(|| args.invalid_parameter(word))?;
            }
            ("backup", "") if !self.balance.is_none_or(Balance::admits_backup) => {
                return Err(ValueError::new(
                    "balancing method does not support parameter \"backup\"",
                ));
            }
            ("backup", "") => peer.backup = true,
            ("down", "") => peer.down = true,
            ("drain", "") => peer.drain = true,
            ("route", route) if !route.is_empty() => {
                if route.len() > sticky::ROUTE_BYTES_MAX {
                    return Err(ValueError(format!(
                        "\"route\" is longer than {} bytes",
                        sticky::ROUTE_BYTES_MAX
                    )));
                }
                peer.route = Some(route.to_owned());
            }
            _ => return Err(args.invalid_parameter(word)),
        }
        Ok(())
    }

    fn finish(self, name: &str, loads: &Arc<Loads>) -> Result<Upstream, ValueError> {
        if self.peers.is_empty() && self.names.is_empty() {
            return Err(ValueError::new("no servers are inside upstream"));
        }
        let mut all = self.peers.iter().chain(self.names.iter().map(|name| &name.template));
        if all.all(|peer| peer.backup) {
            return Err(ValueError(format!("no servers in upstream \"{name}\"")));
        }
        let is_asked_again = |name: &Name| !matches!(name.means, Means::System(_));
        if self.names.iter().any(is_asked_again) && !self.has_zone {
            return Err(ValueError(format!(
                "resolving names at run time requires upstream \"{name}\" in http to be in shared memory"
            )));
        }
        let wanted = self.ready * (self.peers.len() + self.names.len());
        if wanted > self.limits.idle_max {
            return Err(ValueError(format!(
                "\"keepalive_ready\" asks for {wanted} connections, \"keepalive\" allows {}",
                self.limits.idle_max
            )));
        }
        let keepalive =
            Keepalive { limits: self.limits, is_local: self.is_local, ready: self.ready };
        let own = self
            .resolver
            .map(|resolver| (resolver, self.resolver_timeout.unwrap_or(Duration::from_secs(30))));
        let names = (!self.names.is_empty()).then(|| Names {
            names: self.names,
            resolver: own.map_or_else(OnceLock::new, OnceLock::from),
        });
        let balance = self.balance.unwrap_or_default();
        Ok(Upstream {
            group: Arc::new(Group::new(name.to_owned(), self.peers, balance, loads)),
            is_block: true,
            tally: counters::of(name),
            keepalive: (self.limits.idle_max > 0).then_some(keepalive),
            hash_key: self.hash_key,
            sticky: self.sticky,
            names,
        })
    }
}

/// `address:port`, `address` or `unix:path`, where no name has to be looked up.
pub fn literal_address(text: &str, default_port: u16) -> Option<PeerAddress> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Some(PeerAddress::Unix(path.trim_end_matches(':').into()));
    }
    let (host, port) = host_and_port(text, default_port)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let address = ip(bare.as_bytes())?;
    Some(PeerAddress::Tcp(SocketAddr::new(address, port)))
}

/// Host and port of `host[:port]`; `None` for a port that is none, or without a host.
pub fn host_and_port(text: &str, default_port: u16) -> Option<(&str, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (text, default_port),
    };
    (!host.is_empty() && port > 0).then_some((host, port))
}

/// What an address stands for.
#[derive(Debug, Default)]
pub struct Peers {
    pub peers: Vec<PeerOptions>,
    /// A name that has no address yet.
    later: Option<Name>,
}

impl From<Vec<PeerOptions>> for Peers {
    fn from(peers: Vec<PeerOptions>) -> Self {
        Self { peers, later: None }
    }
}

impl Peers {
    /// The peers of an address as [`peer_addresses`] finds them, each as `template`; with `later`, also a name that is not
    /// there yet.
    fn found(
        text: &str,
        default_port: u16,
        shown: &str,
        template: &PeerOptions,
        later: bool,
    ) -> Result<Self, ValueError> {
        let found = peer_addresses(text, default_port, shown);
        let name = host_and_port(text, default_port).filter(|_| later && found.is_err());
        match name.filter(|_| literal_address(text, default_port).is_none()) {
            Some((host, port)) => {
                let template = PeerOptions { server: text.to_owned(), ..template.clone() };
                let (host, means) = (host.to_owned(), Means::System(port));
                let name = Name { host, means, template, turn: Arc::default() };
                Ok(Self { peers: Vec::new(), later: Some(name) })
            }
            None => {
                let peer = |address| PeerOptions { address, ..template.clone() };
                Ok(found?.into_iter().map(peer).collect::<Vec<_>>().into())
            }
        }
    }
}

/// Addresses of a peer as written in `server` or `*_pass`; errors name it as `shown`.
fn peer_addresses(
    text: &str,
    default_port: u16,
    shown: &str,
) -> Result<Vec<PeerAddress>, ValueError> {
    if text.starts_with("unix:") {
        let path = text.trim_end_matches(':');
        let found = address(path, default_port)
            .map_err(|_| ValueError(format!("invalid Unix socket \"{text}\"")))?;
        return Ok(found.into_iter().map(peer_address).collect());
    }
    let found = resolve_now(text, default_port)
        .map_err(|why| ValueError(format!("{why} in upstream \"{shown}\"")))?;
    Ok(found.into_iter().map(PeerAddress::Tcp).collect())
}

fn peer_address(address: ListenAddress) -> PeerAddress {
    match address {
        ListenAddress::Unix(path) => PeerAddress::Unix(path),
        ListenAddress::Tcp(address) | ListenAddress::Udp(address) => PeerAddress::Tcp(address),
    }
}

/// The group a `*_pass` names: an `upstream` block, or one made of the address itself.
pub fn named(
    shared: &Collected,
    text: &str,
    default_port: u16,
) -> Result<Arc<Upstream>, ValueError> {
    if let Some(upstream) = shared.of::<Upstreams>().get(text) {
        return Ok(Arc::clone(upstream));
    }
    let is_socket = text.starts_with("unix:");
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    if !is_socket && shared.of::<Upstreams>().get(host).is_some_and(|upstream| upstream.is_block) {
        return Err(ValueError(format!("upstream \"{host}\" may not have port {port}")));
    }
    let has_port = is_socket || (!port.is_empty() && !port.ends_with(']'));
    if default_port == 0 && !has_port {
        return Err(ValueError(format!("no port in upstream \"{text}\"")));
    }
    // As nginx: the host alone.
    let shown = host_and_port(text, default_port).map_or(text, |(host, _)| host);
    let template = PeerOptions::new(PeerAddress::Unix("".into()));
    let later = shared.of::<Upstreams>().resolves_later;
    let peers = Peers::found(text, default_port, shown, &template, later)?;
    let upstream = Upstream::implicit(text.to_owned(), peers, counters::of(text));
    // As nginx: an address with variables that spells the same needs no name server.
    shared.of::<Upstreams>().insert(Arc::clone(&upstream));
    Ok(upstream)
}
