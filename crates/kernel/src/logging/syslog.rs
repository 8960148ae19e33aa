//! Logs over the syslog protocol.
//!
//! # Source
//! RFC 3164, section 4; the parameters are nginx's (`syslog:server=…,facility=…,severity=…,tag=…,nohostname`).

use super::clock;
use super::level::Level;
use crate::base::counters::COUNTERS;
use std::io;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv",
    "ftp", "ntp", "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4",
    "local5", "local6", "local7",
];
const SEVERITIES: [&str; 8] =
    ["emerg", "alert", "crit", "error", "warn", "notice", "info", "debug"];

#[derive(Debug)]
enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram, PathBuf),
}

/// A syslog server as one log writes to it.
#[derive(Debug)]
pub struct Syslog {
    socket: Socket,
    facility: usize,
    severity: usize,
    tag: String,
    has_hostname: bool,
    hostname: String,
}

impl Syslog {
    /// Reads what follows `syslog:`.
    ///
    /// # Errors
    /// What is wrong with it, or why no socket can be had.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut server, mut facility, mut severity) = (None, 23, 6);
        let (mut tag, mut has_hostname) = ("nginx".to_owned(), true);
        let mut said = Vec::new();
        for parameter in text.split(',') {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if name != "nohostname" && said.contains(&name) {
                return Err(format!("duplicate syslog \"{name}\""));
            }
            said.push(name);
            let find = |list: &[&str], what: &str| {
                let found = list.iter().position(|name| *name == value);
                found.ok_or_else(|| format!("unknown syslog {what} \"{value}\""))
            };
            match name {
                "server" => server = Some(value),
                "facility" => facility = find(&FACILITIES, "facility")?,
                "severity" => severity = find(&SEVERITIES, "severity")?,
                "tag" => {
                    let is_plain = value.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                    if value.len() > 32 || !is_plain {
                        return Err(format!(
                            "syslog \"tag\" only allows alphanumeric characters and underscore, got \"{value}\""
                        ));
                    }
                    value.clone_into(&mut tag);
                }
                "nohostname" => has_hostname = false,
                _ => return Err(format!("unknown syslog parameter \"{parameter}\"")),
            }
        }
        let server = server.ok_or("no syslog server specified")?;
        let socket =
            open(server).map_err(|error| format!("syslog server \"{server}\": {error}"))?;
        let hostname =
            nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { socket, facility, severity, tag, has_hostname, hostname })
    }

    /// Sends one message; a server that does not take it is not worth waiting for.
    pub fn send(&self, level: Option<Level>, message: &[u8]) {
        let severity = level.map_or(self.severity, |level| level as usize);
        let mut text = format!("<{}>{} ", self.facility * 8 + severity, clock::now().syslog);
        if self.has_hostname {
            text.push_str(&self.hostname);
            text.push(' ');
        }
        text.push_str(&self.tag);
        text.push_str(": ");
        let mut datagram = text.into_bytes();
        datagram.extend_from_slice(message.trim_ascii_end());
        let sent = match &self.socket {
            Socket::Udp(socket) => socket.send(&datagram),
            Socket::Unix(socket, path) => socket.send_to(&datagram, path),
        };
        if sent.is_err() {
            COUNTERS.log_lines_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn open(server: &str) -> io::Result<Socket> {
    if let Some(path) = server.strip_prefix("unix:") {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        return Ok(Socket::Unix(socket, path.into()));
    }
    let addresses = crate::base::address::resolve(server, 514).map_err(io::Error::other)?;
    let address = addresses.first().copied().ok_or(io::ErrorKind::NotFound)?;
    let socket = UdpSocket::bind(if address.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" })?;
    socket.set_nonblocking(true)?;
    socket.connect(address)?;
    Ok(Socket::Udp(socket))
}
