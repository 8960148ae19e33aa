//! Listening sockets: bound once, one per worker over TCP and UDP, shared by all over Unix sockets.

#![expect(
    clippy::disallowed_methods,
    reason = "sockets are opened before workers serve, and closed after"
)]

use nix::errno::Errno;
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{AccessFlags, access};
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;
use yorozu_kernel::base::limits;
use yorozu_kernel::config::servers::{ListenAddress, ListenOptions, Probes};

/// One worker's end of a listening socket.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Udp(UdpSocket),
    Unix(UnixListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Listener {
    /// Another handle on the same socket.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(listener.try_clone()?),
            Self::Udp(socket) => Self::Udp(socket.try_clone()?),
            Self::Unix(listener) => Self::Unix(listener.try_clone()?),
        })
    }
}

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{call} to {address} failed ({})", yorozu_kernel::logging::error::os_error(.source))]
pub struct ListenError {
    call: &'static str,
    address: String,
    source: io::Error,
}

/// Checks that the address is free, without SO_REUSEPORT, with which a second server could bind beside the
/// first unnoticed.
///
/// # Errors
/// It is taken, or not ours.
pub fn check(address: &ListenAddress, options: &ListenOptions) -> Result<(), ListenError> {
    let failed = |source| ListenError { call: "bind()", address: address.to_string(), source };
    match address {
        ListenAddress::Tcp(address) => tcp(*address, options, false).map(drop).map_err(failed),
        ListenAddress::Udp(address) => udp(*address, options, false).map(drop).map_err(failed),
        ListenAddress::Unix(_) => Ok(()),
    }
}

/// The same for a configuration that is only tested: an address may be in use, and no file is made.
///
/// # Errors
/// It is not ours, or needs rights we do not have.
pub fn look(address: &ListenAddress, options: &ListenOptions) -> Result<(), ListenError> {
    let looked = match address {
        ListenAddress::Unix(path) if path.symlink_metadata().is_err() => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let rights = AccessFlags::W_OK | AccessFlags::X_OK;
            access(folder.unwrap_or(Path::new(".")), rights).map_err(|errno| ListenError {
                call: "bind()",
                address: address.to_string(),
                source: errno.into(),
            })
        }
        _ => check(address, options),
    };
    looked.or_else(|problem| match problem.source.raw_os_error() {
        Some(number) if number == Errno::EADDRINUSE as i32 => Ok(()),
        _ => Err(problem),
    })
}

/// Opens a socket for `count` workers.
///
/// # Errors
/// The address is taken, not ours, or needs rights we do not have.
pub fn bind(
    address: &ListenAddress,
    options: &ListenOptions,
    count: usize,
) -> Result<Vec<Listener>, ListenError> {
    let failed = |call| {
        let address = address.to_string();
        move |source| ListenError { call, address, source }
    };
    match address {
        ListenAddress::Unix(path) => {
            let listener = unix(path, options)
                .or_else(|error| {
                    // A killed process leaves a socket on which nothing listens.
                    let is_socket = std::fs::symlink_metadata(path)
                        .is_ok_and(|found| found.file_type().is_socket());
                    let is_dead = error.raw_os_error() == Some(Errno::EADDRINUSE as i32)
                        && is_socket
                        && std::os::unix::net::UnixStream::connect(path)
                            .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
                    if !is_dead {
                        return Err(error);
                    }
                    std::fs::remove_file(path)?;
                    unix(path, options)
                })
                .map_err(failed("bind()"))?;
            if !options.is_control {
                // As nginx: any user may connect; the folder's permissions protect it.
                let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666));
            }
            let clones = (0..count).map(|_| listener.try_clone().map(Listener::Unix));
            clones.collect::<Result<_, _>>().map_err(failed("dup()"))
        }
        ListenAddress::Tcp(address) => {
            let sockets = (0..count).map(|_| tcp(*address, options, true).map(Listener::Tcp));
            sockets.collect::<Result<_, _>>().map_err(failed("bind()"))
        }
        ListenAddress::Udp(address) => {
            let sockets = (0..count).map(|_| udp(*address, options, true).map(Listener::Udp));
            sockets.collect::<Result<_, _>>().map_err(failed("bind()"))
        }
    }
}

/// A socket with a name. That of the control socket is closed to other users from its first moment on: the system takes the
/// mode of the socket, less the umask, for it (`unix_bind` of Linux), and follows no link.
fn unix(path: &Path, options: &ListenOptions) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    if options.is_control {
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    }
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(options.backlog.unwrap_or(limits::BACKLOG))?;
    Ok(socket.into())
}

fn tcp(address: SocketAddr, options: &ListenOptions, is_shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(options.ipv6only.unwrap_or(true))?;
    }
    if is_shared {
        socket.set_reuse_port(true)?;
        // Accepted sockets take these over from the listening one.
        socket.set_tcp_nodelay(true)?;
        if let Some(probes) = options.keepalive {
            keepalive(&socket, probes)?;
        }
        if let Some(bytes) = options.receive_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(bytes) = options.send_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
    }
    socket.bind(&SockAddr::from(address))?;
    if is_shared {
        socket.listen(options.backlog.unwrap_or(limits::BACKLOG))?;
    }
    Ok(socket.into())
}

/// `so_keepalive`. Times that the system does not take are its own, as with nginx.
fn keepalive(socket: &Socket, probes: Probes) -> io::Result<()> {
    socket.set_keepalive(probes != Probes::Off)?;
    if let Probes::Timed { idle, interval, count } = probes {
        let nothing = TcpKeepalive::new;
        let said = [
            idle.map(|time| nothing().with_time(Duration::from_secs(time))),
            interval.map(|time| nothing().with_interval(Duration::from_secs(time))),
            count.map(|count| nothing().with_retries(count)),
        ];
        for one in said.into_iter().flatten() {
            let _ = socket.set_tcp_keepalive(&one);
        }
    }
    Ok(())
}

fn udp(address: SocketAddr, options: &ListenOptions, is_shared: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(options.ipv6only.unwrap_or(true))?;
    }
    if is_shared {
        socket.set_reuse_port(true)?;
        if let Some(bytes) = options.receive_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(bytes) = options.send_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
    }
    socket.bind(&SockAddr::from(address))?;
    Ok(socket.into())
}

/// Removes the names of Unix sockets.
pub fn remove(addresses: impl Iterator<Item = ListenAddress>) {
    for address in addresses {
        if let ListenAddress::Unix(path) = address {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_so_keepalive_says_is_asked_for() {
        let of = |probes| {
            let options = ListenOptions { keepalive: Some(probes), ..ListenOptions::default() };
            Socket::from(tcp(([127, 0, 0, 1], 0).into(), &options, true).unwrap())
        };
        let timed = Probes::Timed { idle: Some(1800), interval: None, count: Some(10) };
        assert!(!of(Probes::Off).keepalive().unwrap());
        assert!(of(Probes::Usual).keepalive().unwrap());
        assert!(of(timed).keepalive().unwrap());
        assert_eq!(of(timed).tcp_keepalive_time().unwrap(), Duration::from_secs(1800));
        assert_eq!(of(timed).tcp_keepalive_retries().unwrap(), 10);
        let interval = |probes| of(probes).tcp_keepalive_interval().unwrap();
        assert_eq!(interval(timed), interval(Probes::Usual));
        let own = Probes::Timed { idle: None, interval: Some(7), count: None };
        assert_eq!(interval(own), Duration::from_secs(7));
        // Too much for the system: its own, as with nginx.
        let much = Probes::Timed { idle: Some(1 << 40), interval: None, count: Some(2) };
        assert_eq!(of(much).tcp_keepalive_retries().unwrap(), 2);
    }

    #[test]
    fn the_control_socket_is_for_nobody_else_from_the_start() {
        let folder = std::env::temp_dir().join(format!("yorozu-listen.{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("control.sock");
        let control = ListenOptions { is_control: true, ..ListenOptions::default() };
        let listener = unix(&path, &control).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        // Nothing has changed the mode since it was bound.
        assert_eq!(format!("{:o}", mode(&path)), "600");
        // Its own name stays with it: a server that it is handed over to knows it by that.
        assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(&*path));
        drop(listener);
        // A link is not followed, and what is not a socket stays as it is.
        let (other, link) = (folder.join("other"), folder.join("link.sock"));
        fs::write(&other, "x").unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let before = mode(&other);
        for name in [&link, &other] {
            assert!(bind(&ListenAddress::Unix(name.clone()), &control, 1).is_err());
        }
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!((mode(&other), fs::read_to_string(&other).unwrap()), (before, "x".to_owned()));
        // A name that a killed server left is taken over.
        let address = ListenAddress::Unix(path.clone());
        assert_eq!(bind(&address, &control, 2).unwrap().len(), 2);
        assert_eq!(format!("{:o}", mode(&path)), "600");
        fs::remove_dir_all(&folder).unwrap();
    }
}
