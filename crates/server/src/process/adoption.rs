//! A server process whose master died, and a new master that takes it over.
//!
//! The master listens on a socket beside the pid file, and gives it to the server process, which accepts there only once
//! its master is gone. A master that starts looks for such a server before it opens anything: it gets the sockets, and
//! the server a configuration like at any reload; no connection is lost, and no page in memory.

#![expect(clippy::disallowed_methods, reason = "the master process's, which serves no one")]

use super::channel::Channel;
use super::message::{self, Answer};
use super::server::Told;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// Processes of the same program understand each other.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How long a server may take to answer a new master; chosen.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the server waits: the path of the pid file with `.server` appended.
fn path_of(pid: &Path) -> PathBuf {
    let mut path = OsString::from(pid);
    path.push(".server");
    path.into()
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Where a server without a master would wait.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    pub socket: OwnedFd,
}

impl Place {
    /// Opens it beside the pid file; what another one left there goes.
    ///
    /// # Errors
    /// As the system has it.
    pub(super) fn open(pid: &Path) -> io::Result<Self> {
        let path = path_of(pid);
        Ok(Self { socket: open(&path)?, path })
    }

    /// It goes with the pid file.
    pub(super) fn follow(&mut self, pid: &Path) {
        let path = path_of(pid);
        // Without it a server that loses its master stays alone.
        let _ = fs::rename(&self.path, &path);
        self.path = path;
    }

    /// Removes its name.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let _ = fs::remove_file(path);
    let socket = socket()?;
    // The system takes the mode of the socket for that of its name: it is for no other user from its first moment on.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listen(&socket, 1)?;
    Ok(socket)
}

/// A server whose master is gone.
pub(super) struct Orphan {
    pub channel: Channel,
    pub id: u32,
    /// What it listens on.
    pub sockets: Vec<OwnedFd>,
    /// Whether it is of this version.
    pub is_same: bool,
}

/// The server that waits beside the pid file.
pub(super) fn find(pid: &Path) -> Option<Orphan> {
    let socket = socket().ok()?;
    connect(&socket, &SocketAddrUnix::new(path_of(pid)).ok()?).ok()?;
    let channel = Channel::from(socket);
    // Its end names who listens: the master that opened the socket.
    if channel.peer().is_ok_and(is_alive) {
        return None;
    }
    // Between the end of its master and this moment the server may not have noticed yet.
    channel.set_timeout(Some(PATIENCE)).ok()?;
    let Ok(Some(Answer::Here { version, id, sockets })) = message::next_answer(&channel) else {
        return None;
    };
    channel.set_timeout(None).ok()?;
    Some(Orphan { channel, id, sockets, is_same: version == VERSION })
}

/// Whether a process runs; one that ended and that its parent did not ask about yet does not.
fn is_alive(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Passes on what masters say, one after the other, on a thread of its own.
///
/// # Errors
/// It cannot be started.
pub(super) fn listen_to_master(
    mut master: Arc<Channel>,
    adoption: Arc<Mutex<Option<OwnedFd>>>,
    tell: mpsc::UnboundedSender<Told>,
) -> io::Result<()> {
    let listen = move || {
        loop {
            // A word of another version is no better than none.
            while let Ok(Some(order)) = message::next_order(&master) {
                let _ = tell.send(Told::Order(order));
            }
            let _ = tell.send(Told::Orphaned);
            let Some(next) = wait(&adoption) else { return };
            master = Arc::new(next);
            let _ = tell.send(Told::Adopted(Arc::clone(&master)));
        }
    };
    std::thread::Builder::new().name("master".to_owned()).spawn(listen).map(drop)
}

/// The next master; `None` if there is no place to wait for one.
fn wait(adoption: &Mutex<Option<OwnedFd>>) -> Option<Channel> {
    let place =
        adoption.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.try_clone().ok()?;
    loop {
        match accept_with(&place, SocketFlags::CLOEXEC) {
            Ok(socket) => return Some(Channel::from(socket)),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            Err(_) => return None,
        }
    }
}
