//! Where a site listens, and who is there already.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// The port that is tried first.
const PORT: u16 = 8080;
/// How many are tried after it.
const PORTS: u16 = 20;
/// How far behind the site's port that of HTTPS is: 8443 is the one of 8080.
const SECURE: u16 = 363;

/// Addresses as `listen` has them: the first of each is for a person's eyes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Listens {
    pub(super) plain: Vec<String>,
    /// With TLS.
    pub(super) secure: Vec<String>,
}

impl Listens {
    /// For a site with names of its own, for all the world.
    pub(super) fn of_world() -> Self {
        let has_v6 = TcpListener::bind("[::]:0").is_ok();
        let both = |port: u16| {
            let mut listens = vec![port.to_string()];
            listens.extend(has_v6.then(|| format!("[::]:{port}")));
            listens
        };
        Self { plain: both(80), secure: both(443) }
    }

    /// For this machine alone: the port that was asked for, else the first that is free, if it is needed now.
    ///
    /// # Errors
    /// The port is taken, and by whom.
    pub(super) fn of_machine(
        port: Option<u16>,
        has_tls: bool,
        is_now: bool,
    ) -> Result<Self, String> {
        let free = |first, is_asked| if is_now { free(first, is_asked) } else { Ok(first) };
        let plain = free(port.unwrap_or(PORT), port.is_some())?;
        let secure = if has_tls {
            let first = plain.checked_add(SECURE).unwrap_or(plain - SECURE);
            loopback(free(first, false)?)
        } else {
            Vec::new()
        };
        Ok(Self { plain: loopback(plain), secure })
    }

    /// As the configuration of a folder has it.
    pub(super) fn of_folder(folder: &Path) -> Self {
        let text = fs::read_to_string(folder.join("nginx.conf")).unwrap_or_default();
        let mut found = Self::default();
        for rest in text.lines().filter_map(|line| line.trim().strip_prefix("listen ")) {
            let mut words = rest.split([' ', ';']).filter(|word| !word.is_empty());
            let (Some(address), rest) = (words.next(), words.collect::<Vec<_>>()) else { continue };
            match (rest.contains(&"quic"), rest.contains(&"ssl")) {
                (true, _) => {}
                (_, true) => found.secure.push(address.to_owned()),
                _ => found.plain.push(address.to_owned()),
            }
        }
        found
    }

    /// Whether other machines reach none of them.
    pub(super) fn are_local(&self) -> bool {
        let mut all = self.plain.iter().chain(&self.secure);
        all.all(|listen| reached(listen).is_some_and(|it| it.ip().is_loopback()) && !is_any(listen))
    }

    /// An address that answers when the site does; none for a socket of a file.
    pub(super) fn probe(&self) -> Option<SocketAddr> {
        reached(self.plain.first().or(self.secure.first())?)
    }

    /// Where this machine reaches the site itself, and not what leads to HTTPS.
    pub(super) fn own_url(&self, leads_to_https: bool) -> Option<String> {
        let plain = self.plain.first().filter(|_| !leads_to_https).map(|it| ("http", it));
        let (scheme, listen) = plain.or(self.secure.first().map(|it| ("https", it)))?;
        Some(format!("{scheme}://{}", reached(listen)?))
    }

    /// What a person opens.
    pub(super) fn url(&self, names: &[String]) -> String {
        let (scheme, usual, listens) = match self.secure.is_empty() {
            true => ("http", 80, &self.plain),
            false => ("https", 443, &self.secure),
        };
        let Some(address) = listens.first().and_then(|first| reached(first)) else {
            return listens.first().cloned().unwrap_or_default();
        };
        let host = match names.first() {
            Some(name) => name.clone(),
            None if address.ip().is_loopback() => "localhost".to_owned(),
            None => address.ip().to_string(),
        };
        match address.port() {
            port if port == usual => format!("{scheme}://{host}/"),
            port => format!("{scheme}://{host}:{port}/"),
        }
    }
}

fn is_free(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port)))
}

/// A port that is free: the first, or one behind it where that was not asked for.
fn free(first: u16, is_asked: bool) -> Result<u16, String> {
    match is_free(first) {
        Ok(_) => Ok(first),
        Err(why) if why.kind() == ErrorKind::AddrInUse => {
            let who = holder(first).unwrap_or_else(|| "another program".to_owned());
            let mut others = first + 1..=first.saturating_add(PORTS);
            let other = others.find(|port| !is_asked && is_free(*port).is_ok());
            let other = other.ok_or_else(|| format!("port {first} is taken by {who}"))?;
            say!("yorozu: [notice] port {first} is taken by {who}: port {other} is used");
            Ok(other)
        }
        Err(why) => Err(format!("port {first} cannot be used: {why}")),
    }
}

/// A port of this machine, over IPv6 as well where there is that.
fn loopback(port: u16) -> Vec<String> {
    let mut listens = vec![format!("127.0.0.1:{port}")];
    let has_v6 = TcpListener::bind(format!("[::1]:{port}")).is_ok();
    listens.extend(has_v6.then(|| format!("[::1]:{port}")));
    listens
}

/// Whether a `listen` is for all addresses of the machine.
fn is_any(listen: &str) -> bool {
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
        || !host.contains(['.', ':'])
}

/// Where a `listen` is reached from this machine.
fn reached(listen: &str) -> Option<SocketAddr> {
    let (host, port) = match listen.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
        Some((host, port)) => (host, port.parse().ok()?),
        None => match listen.parse::<u16>() {
            Ok(port) => ("*", port),
            Err(_) => (listen, 80),
        },
    };
    match host.trim_matches(['[', ']']) {
        "*" | "0.0.0.0" | "::" | "localhost" => Some(SocketAddr::from(([127, 0, 0, 1], port))),
        host => Some(SocketAddr::new(host.parse().ok()?, port)),
    }
}

/// Who has a port of this machine: a program's name and process.
pub(super) fn holder(port: u16) -> Option<String> {
    let socket_of = |text: String| {
        let wanted = format!(":{port:04X}");
        text.lines().skip(1).find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let is_it = fields.get(1)?.ends_with(&wanted) && fields.get(3) == Some(&"0A");
            is_it.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]"))).flatten()
        })
    };
    let socket = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .find_map(|file| fs::read_to_string(file).ok().and_then(socket_of))?;
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let has_it = |process: &PathBuf| {
        let links = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        links
            .filter_map(|link| fs::read_link(link.path()).ok())
            .any(|to| to.as_os_str() == &*socket)
    };
    let mut holders = processes
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok())
        })
        .filter(has_it);
    let process = holders.next()?;
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    Some(format!("{} (process {})", name.trim(), process.file_name()?.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_those_that_a_person_opens() {
        let names = ["shop.test".to_owned()];
        for (plain, secure, names, url) in [
            ("127.0.0.1:8080", "", &[][..], "http://localhost:8080/"),
            ("80", "", &[], "http://localhost/"),
            ("0.0.0.0:81", "", &[], "http://localhost:81/"),
            ("[::]:8080", "", &[], "http://localhost:8080/"),
            ("192.0.2.1:8080", "", &[], "http://192.0.2.1:8080/"),
            ("80", "443", &names, "https://shop.test/"),
            ("127.0.0.1:8080", "127.0.0.1:8443", &[], "https://localhost:8443/"),
        ] {
            let of = |text: &str| text.split_whitespace().map(str::to_owned).collect();
            let listens = Listens { plain: of(plain), secure: of(secure) };
            assert_eq!(listens.url(names), url);
        }
    }
}
