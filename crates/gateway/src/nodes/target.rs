//! Where Redis is: the URL of `cache_purge_bus`, and connections by it.
//!
//! | written | what it means |
//! | --- | --- |
//! | `redis://USER:PASS@HOST:PORT/DB` | one server; `rediss://` over TLS, verified |
//! | `unix:/PATH` | one server on this machine |
//! | `redis+cluster://A:PORT,B:PORT` | a cluster, any of whose servers says which one has the key; `rediss+cluster://` |
//! | `redis+sentinel://A:PORT,B:PORT/NAME/DB` | the master NAME, as the sentinels say; `rediss+sentinel://` |

use super::link::Link;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::fmt;
use std::io;
use std::net::ToSocketAddrs as _;
use std::path::PathBuf;
use std::sync::Arc;
use yorozu_http::uri::unescape;
use yorozu_kernel::logging::error::os_error;
use yorozu_upstream::{Connection, PeerAddress, SocketOptions, Tls, TlsOptions};
use yorozu_wire::redis::Reply;

/// Servers of a cluster that are asked one after the other for the one that has a key; chosen.
const MOVES_MAX: usize = 5;
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// A server by name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Host {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(name, port) if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self::Tcp(name, port) => write!(f, "{name}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// How the servers belong together.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Single,
    Cluster,
    /// With the master's name.
    Sentinel(String),
}

/// Where Redis is, and who asks it.
#[derive(Clone)]
pub(super) struct Target {
    pub kind: Kind,
    pub hosts: Vec<Host>,
    pub is_tls: bool,
    pub user: Vec<u8>,
    pub password: Vec<u8>,
    pub database: u32,
    /// With `is_tls`, once files are read.
    pub tls: Option<Arc<ClientConfig>>,
}

/// Without the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// Passwords are compared, connections by the same words are the same.
impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        let own = (&self.kind, &self.hosts, self.is_tls, &self.user, &self.password);
        let others = (&other.kind, &other.hosts, other.is_tls, &other.user, &other.password);
        own == others && self.database == other.database
    }
}

impl Target {
    /// Reads a URL; also what stands behind its `?`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(url: &str) -> Result<(Self, Vec<String>), String> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let parameters = query.split('&').filter(|word| !word.is_empty()).map(str::to_owned);
        let mut target = Self {
            kind: Kind::Single,
            hosts: Vec::new(),
            is_tls: false,
            user: Vec::new(),
            password: Vec::new(),
            database: 0,
            tls: None,
        };
        match place.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => target.hosts.push(Host::Unix(path.into())),
            Some(_) => return Err("expected unix:/PATH".to_owned()),
            None => target.read(place)?,
        }
        Ok((target, parameters.collect()))
    }

    fn read(&mut self, place: &str) -> Result<(), String> {
        let (scheme, rest) = place.split_once("://").unwrap_or((place, ""));
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        self.is_tls = match base {
            "redis" => false,
            "rediss" => true,
            _ => return Err(UNKNOWN.to_owned()),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = credentials.split_once(':').unwrap_or(("", credentials));
        self.user = unescape(user.as_bytes());
        self.password = unescape(password.as_bytes());
        let (master, database) = match kind {
            "sentinel" => path.split_once('/').unwrap_or((path, "")),
            _ => ("", path),
        };
        self.kind = match kind {
            "" => Kind::Single,
            "cluster" => Kind::Cluster,
            "sentinel" if master.is_empty() => {
                return Err("expected redis+sentinel://HOSTS/MASTER".to_owned());
            }
            "sentinel" => Kind::Sentinel(master.to_owned()),
            _ => return Err(UNKNOWN.to_owned()),
        };
        if !database.is_empty() {
            let number = database.parse();
            self.database = number.map_err(|_| format!("invalid database \"{database}\""))?;
        }
        let port = if kind == "sentinel" { SENTINEL_PORT } else { PORT };
        for host in hosts.split(',') {
            self.hosts.push(host_of(host, port)?);
        }
        match kind {
            "" if self.hosts.len() > 1 => Err(
                "several hosts are a cluster or sentinels: redis+cluster:// or redis+sentinel://"
                    .to_owned(),
            ),
            "cluster" if self.database > 0 => Err("a cluster has one database, 0".to_owned()),
            _ => Ok(()),
        }
    }

    /// The first server, for messages.
    pub(super) fn shown(&self) -> String {
        self.hosts.first().map(Host::to_string).unwrap_or_default()
    }

    /// Connects to the server that has `key` and may write it; the caller bounds the time.
    ///
    /// # Errors
    /// Why not, with the place.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it opened.
    pub(super) async fn connect(&self, key: &[u8]) -> Result<Link, String> {
        let mut problem = String::new();
        for host in &self.hosts {
            let found = match &self.kind {
                Kind::Single => self.single(host, key).await,
                Kind::Cluster => self.in_cluster(host, key).await,
                Kind::Sentinel(name) => self.by_sentinel(host, name).await,
            };
            match found {
                Ok(link) => return Ok(link),
                Err(why) => problem = why,
            }
        }
        Err(problem)
    }

    /// Connects to a server that speaks another protocol, and needs no words first.
    ///
    /// # Errors
    /// As [`Target::connect`].
    ///
    /// # Cancel safety
    /// As [`Target::connect`].
    pub(super) async fn plain(host: &Host) -> Result<Link, String> {
        opened(host).await.map(Link::new)
    }

    async fn single(&self, host: &Host, key: &[u8]) -> Result<Link, String> {
        let mut link = self.open(host).await?;
        // What is in front of it may take connections while it is away.
        link.expect(&[b"EXISTS", key], host).await?;
        Ok(link)
    }

    async fn in_cluster(&self, host: &Host, key: &[u8]) -> Result<Link, String> {
        let mut host = host.clone();
        for _ in 0..MOVES_MAX {
            let mut link = self.open(&host).await?;
            match link.ask(&[b"EXISTS", key]).await? {
                Reply::Error(line) => match moved(&line, &host) {
                    Some(other) => host = other,
                    None => return Err(format!("{host}: {line}")),
                },
                _ => return Ok(link),
            }
        }
        Err(format!("{host}: the cluster says again and again that another server has the key"))
    }

    async fn by_sentinel(&self, host: &Host, name: &str) -> Result<Link, String> {
        let mut sentinel = Link::new(self.connection(host).await?);
        let words: [&[u8]; 3] = [b"SENTINEL", b"get-master-addr-by-name", name.as_bytes()];
        let reply = sentinel.ask(&words).await?;
        let master = reply.list().and_then(|items| {
            let [address, port] = items else { return None };
            let text = |item: &Reply| Some(std::str::from_utf8(item.text()?).ok()?.to_owned());
            Some(Host::Tcp(text(address)?, text(port)?.parse().ok()?))
        });
        let master = master.ok_or_else(|| format!("{host}: no master \"{name}\" is known"))?;
        let mut link = self.open(&master).await?;
        // A sentinel that was cut off may name the one of before.
        let role = link.ask(&[b"ROLE"]).await?;
        let is_master = role.list().and_then(|items| items.first()?.text()) == Some(b"master");
        if is_master { Ok(link) } else { Err(format!("{master} is no master")) }
    }

    /// Connects to a server and says who asks.
    async fn open(&self, host: &Host) -> Result<Link, String> {
        let mut link = Link::new(self.connection(host).await?);
        if !self.password.is_empty() {
            let mut words: Vec<&[u8]> = vec![b"AUTH"];
            if !self.user.is_empty() {
                words.push(&self.user);
            }
            words.push(&self.password);
            link.expect(&words, host).await?;
        }
        if self.database > 0 {
            let database = self.database.to_string();
            link.expect(&[b"SELECT", database.as_bytes()], host).await?;
        }
        Ok(link)
    }

    async fn connection(&self, host: &Host) -> Result<Connection, String> {
        self.encrypted(opened(host).await?, host).await
    }

    async fn encrypted(&self, connection: Connection, host: &Host) -> Result<Connection, String> {
        let (Some(config), Host::Tcp(name, _)) = (&self.tls, host) else { return Ok(connection) };
        let name = ServerName::try_from(name.clone());
        let name = name.map_err(|_| format!("\"{host}\" is no name of a server"))?;
        let options = TlsOptions { config: Arc::clone(config), name };
        let tls = Tls::handshake(connection, &options).await;
        let tls = tls.map_err(|problem| match yorozu_tls::verifier::Disbelief::of(&problem) {
            Some(why) => format!("{host}: {why}"),
            None => failed(&format!("{host}: SSL_do_handshake()"), &problem),
        })?;
        Ok(Connection::Tls(Box::new(tls)))
    }
}

const UNKNOWN: &str = "expected redis://, rediss://, redis+cluster://, redis+sentinel:// or unix:";

fn failed(what: &str, problem: &io::Error) -> String {
    format!("{what} failed ({})", os_error(problem))
}

/// A connection to the first address of the host that answers.
async fn opened(host: &Host) -> Result<Connection, String> {
    let mut problem = format!("{host} could not be resolved");
    for address in addresses(host).await? {
        match Connection::open(&address, SocketOptions::default()).await {
            Ok(connection) => return Ok(connection),
            Err(why) => problem = failed(&format!("connect() to {address}"), &why),
        }
    }
    Err(problem)
}

pub(super) fn host_of(text: &str, port: u16) -> Result<Host, String> {
    let invalid = || format!("invalid host \"{text}\"");
    let (name, rest) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((name, rest)) => (name, rest),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(digits) => digits.parse().map_err(|_| invalid())?,
        None if rest.is_empty() => port,
        None => return Err(invalid()),
    };
    if name.is_empty() { Err(invalid()) } else { Ok(Host::Tcp(name.to_owned(), port)) }
}

/// Where `MOVED SLOT HOST:PORT` leads; without a host it is the one that says so.
fn moved(line: &str, from: &Host) -> Option<Host> {
    let address = line.strip_prefix("MOVED ")?.split(' ').nth(1)?;
    let (name, port) = address.rsplit_once(':')?;
    let name = match (name, from) {
        ("", Host::Tcp(own, _)) => own,
        _ => name,
    };
    Some(Host::Tcp(name.to_owned(), port.parse().ok()?))
}

async fn addresses(host: &Host) -> Result<Vec<PeerAddress>, String> {
    let (name, port) = match host {
        Host::Unix(path) => return Ok(vec![PeerAddress::Unix(path.clone())]),
        Host::Tcp(name, port) => (name.clone(), *port),
    };
    // Names are looked up by the system, on a thread that may wait.
    let look = move || (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
    let found = match tokio::task::spawn_blocking(look).await {
        Ok(found) => {
            found.map_err(|problem| failed(&format!("{host}: getaddrinfo()"), &problem))?
        }
        Err(_) => return Err(format!("{host} could not be resolved")),
    };
    Ok(found.into_iter().map(PeerAddress::Tcp).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let (target, parameters) =
            Target::parse("redis://me:p%40ss@[::1]:7000/3?stream=a&wait=1s").unwrap();
        assert_eq!(target.hosts, [Host::Tcp("::1".to_owned(), 7000)]);
        assert_eq!((&target.user[..], &target.password[..]), (&b"me"[..], &b"p@ss"[..]));
        assert_eq!((target.database, target.is_tls, target.kind), (3, false, Kind::Single));
        assert_eq!(parameters, ["stream=a", "wait=1s"]);
        let (target, _) = Target::parse("rediss+sentinel://:word@a,b:1/web/2").unwrap();
        assert_eq!(target.hosts.len(), 2);
        assert_eq!(target.hosts[0], Host::Tcp("a".to_owned(), SENTINEL_PORT));
        assert_eq!((target.kind, target.database), (Kind::Sentinel("web".to_owned()), 2));
        assert_eq!((target.is_tls, &target.password[..]), (true, &b"word"[..]));
        assert_eq!(Target::parse("unix:/a").unwrap().0.hosts, [Host::Unix("/a".into())]);
    }

    #[test]
    fn what_is_none_is_refused() {
        for url in [
            "memcached://a",
            "redis://",
            "redis://a:x",
            "redis://a/b",
            "redis://a,b",
            "redis+cluster://a/1",
            "redis+sentinel://a",
            "redis+other://a",
            "unix:a",
            "a:6379",
        ] {
            assert!(Target::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_cluster_says_where_a_key_is() {
        let from = Host::Tcp("a".to_owned(), 1);
        let to = |name: &str| Some(Host::Tcp(name.to_owned(), 7001));
        assert_eq!(moved("MOVED 12 10.0.0.2:7001", &from), to("10.0.0.2"));
        assert_eq!(moved("MOVED 12 ::1:7001", &from), to("::1"));
        assert_eq!(moved("MOVED 12 :7001", &from), to("a"));
        assert_eq!(moved("ASK 12 b:7001", &from), None);
    }
}
