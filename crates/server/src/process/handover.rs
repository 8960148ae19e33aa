//! Listening sockets that another process opened: systemd, or the server before this one.
//!
//! SIGUSR2 starts the program again, with the sockets, beside the running one; which of the two goes on is then said
//! by signals to each, as with nginx. Both ways hand the sockets over as systemd does: from descriptor 3 on, their
//! number in `LISTEN_FDS`.

use super::given;
use super::sockets::{Sockets, copies};
use command_fds::{CommandFdExt as _, FdMapping};
use listenfd::ListenFd;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Child, Command};
use std::sync::OnceLock;
use yorozu_connection::listen::Listener;
use yorozu_kernel::config::servers::ListenAddress;

/// Says, as nginx's, that the server before this one handed its sockets over; `3;4;`.
pub(super) const MARK: &str = "NGINX";
/// What says which sockets were handed over (sd_listen_fds(3)).
pub(super) const LISTEN_VARIABLES: [&str; 3] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];
/// sd_listen_fds(3): the first descriptor.
const FIRST: usize = 3;

/// The server before this one, if it started this process.
static PREDECESSOR: OnceLock<nix::unistd::Pid> = OnceLock::new();

/// Whether the server that this process shall replace started it.
pub fn is_upgrade() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Whether the server before this one still runs.
pub(super) fn has_predecessor() -> bool {
    PREDECESSOR.get().is_some_and(|predecessor| nix::unistd::getppid() == *predecessor)
}

/// Sockets that were handed over and not claimed yet.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    sockets: Sockets,
    /// Leads to the server before this one, for datagrams of its connections.
    pub(super) link: Option<UnixDatagram>,
    /// Addresses at which this server may still have sockets, of connections that outlive their `listen`.
    pub(super) draining: Vec<ListenAddress>,
}

impl Inherited {
    /// Takes them out of the environment.
    pub(super) fn take() -> Self {
        if is_upgrade() {
            let _ = PREDECESSOR.set(nix::unistd::getppid());
        }
        let mut given = ListenFd::from_env();
        let mut link = None;
        let sockets = (0..given.len()).filter_map(|index| {
            if let Ok(Some(listener)) = given.take_tcp_listener(index) {
                return of_tcp(listener).ok();
            }
            if let Ok(Some(socket)) = given.take_udp_socket(index) {
                return of_udp(socket).ok();
            }
            if let Ok(Some(socket)) = given.take_unix_datagram(index) {
                link = Some(socket).filter(|_| is_upgrade());
                return None;
            }
            given.take_unix_listener(index).ok().flatten().and_then(|it| of_unix(it).ok())
        });
        let sockets = sockets.collect();
        Self { sockets, link, draining: Vec::new() }
    }

    /// With those that a server process without a master had.
    pub(super) fn join(mut self, others: Sockets) -> Self {
        self.sockets.extend(others);
        self
    }

    /// Those that listen at `address`.
    pub(super) fn claim(&mut self, address: &ListenAddress) -> Vec<Listener> {
        let all = std::mem::take(&mut self.sockets).into_iter();
        let (claimed, others): (Vec<_>, Vec<_>) = all.partition(|(at, _)| at == address);
        self.sockets = others;
        claimed.into_iter().map(|(_, listener)| listener).collect()
    }
}

fn of_tcp(listener: TcpListener) -> io::Result<(ListenAddress, Listener)> {
    listener.set_nonblocking(true)?;
    Ok((ListenAddress::Tcp(listener.local_addr()?), Listener::Tcp(listener)))
}

fn of_udp(socket: UdpSocket) -> io::Result<(ListenAddress, Listener)> {
    socket.set_nonblocking(true)?;
    Ok((ListenAddress::Udp(socket.local_addr()?), Listener::Udp(socket)))
}

fn of_unix(listener: UnixListener) -> io::Result<(ListenAddress, Listener)> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let path = address.as_pathname().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((ListenAddress::Unix(path.to_owned()), Listener::Unix(listener)))
}

/// A listening socket, of whatever family.
///
/// # Errors
/// It is none, or has no address.
pub(super) fn of_descriptor(socket: OwnedFd) -> io::Result<(ListenAddress, Listener)> {
    let known = socket2::SockRef::from(&socket);
    match (known.domain()?, known.r#type()?) {
        (socket2::Domain::UNIX, _) => of_unix(socket.into()),
        (_, socket2::Type::DGRAM) => of_udp(socket.into()),
        _ => of_tcp(socket.into()),
    }
}

/// Starts the program again with copies of `sockets`; with the end of a link that what it hands back comes over, if there
/// are connections that need it.
///
/// # Errors
/// It cannot be started.
pub(super) fn start(
    sockets: &[(ListenAddress, Listener)],
) -> io::Result<(Child, Option<UnixDatagram>)> {
    let mut command = Command::new(program()?);
    let mut mappings = Vec::with_capacity(sockets.len());
    let mut mark = String::new();
    for (place, parent_fd) in copies(sockets).map_err(io::Error::other)?.into_iter().enumerate() {
        let place = FIRST + place;
        let child_fd = i32::try_from(place).map_err(io::Error::other)?;
        mappings.push(FdMapping { parent_fd, child_fd });
        mark.push_str(&format!("{place};"));
    }
    let mut link = None;
    if sockets.iter().any(|(address, _)| matches!(address, ListenAddress::Udp(_))) {
        let (ours, theirs) = UnixDatagram::pair()?;
        link = Some(ours);
        let child_fd = i32::try_from(FIRST + mappings.len()).map_err(io::Error::other)?;
        mappings.push(FdMapping { parent_fd: theirs.into(), child_fd });
    }
    given::hand_file(&mut command);
    command
        .args(std::env::args_os().skip(1))
        .env(MARK, mark)
        .env("LISTEN_FDS", mappings.len().to_string())
        .env_remove("LISTEN_PID")
        .fd_mappings(mappings)
        .map_err(io::Error::other)?;
    Ok((command.spawn()?, link))
}

/// The program as it was called: the file may be another one by now, which is the point.
fn program() -> io::Result<std::path::PathBuf> {
    let name = std::env::args_os().next().ok_or(io::ErrorKind::NotFound)?;
    let path = std::path::Path::new(&name);
    if path.components().count() > 1 {
        return Ok(path.to_owned());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(path));
    found.into_iter().find(|path| path.is_file()).ok_or_else(|| io::ErrorKind::NotFound.into())
}
