//! A server process whose master died, and a new master that takes it over.
//!
//! The master listens on a socket beside the pid file, and gives it to the server process, which accepts there only once
//! its master is gone. A master that starts looks for such a server before it opens anything: it gets the sockets, and
//! the server a configuration like at any reload; no connection is lost, and no page in memory.

#![expect(clippy::disallowed_methods, reason = "the master process's, which serves no one")]

use super::channel::{Channel, Sender};
use super::message::{self, Order};
use super::server::Told;
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use yorozu_kernel::logging::file::LogFiles;

/// Processes of the same program understand each other.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How long a server may take to answer a new master; chosen.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same where nothing waits for it: it may still be starting; chosen.
const LONG_PATIENCE: Duration = Duration::from_secs(60);

/// Masters that may look there while one lives; chosen.
const WAITING_MAX: i32 = 16;

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
    /// Which file the name is of.
    id: (u64, u64),
    pub socket: OwnedFd,
}

impl Place {
    /// Opens it beside the pid file; what another one left there goes.
    ///
    /// # Errors
    /// As the system has it.
    pub(super) fn open(pid: &Path) -> io::Result<Self> {
        let path = path_of(pid);
        let socket = open(&path)?;
        let id = id_of(&fs::symlink_metadata(&path)?);
        Ok(Self { path, id, socket })
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
        // Another one may have it by now: where both names lead to one folder, or another master begins.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| id_of(&found) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn id_of(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let _ = fs::remove_file(path);
    let socket = socket()?;
    // The system takes the mode of the socket for that of its name: it is for no other user from its first moment on.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, WAITING_MAX)?;
    Ok(socket)
}

/// A server whose master is gone.
pub(super) struct Orphan {
    pub channel: Channel,
    /// Its process and user, by the kernel's word.
    pub sender: Sender,
    /// What it listens on.
    pub sockets: Vec<OwnedFd>,
    /// Whether it is of this version.
    pub is_same: bool,
}

/// The server that waits beside the pid file. One is given keys and sockets: the place must have been opened by a master
/// of the same user, whatever lies there.
pub(super) fn find(pid: &Path) -> Option<Orphan> {
    reach(pid)?.answer(PATIENCE)
}

/// A connection to a server whose master is gone, which may not have noticed that yet.
pub(super) struct Reached(Channel);

/// As [`find`], without its answer.
pub(super) fn reach(pid: &Path) -> Option<Reached> {
    let (path, user) = (path_of(pid), geteuid());
    let found = fs::symlink_metadata(&path).ok()?;
    if !found.file_type().is_socket() || found.uid() != user.as_raw() {
        return None;
    }
    let socket = socket().ok()?;
    // Before anything can arrive: what was sent earlier does not say who sent it.
    set_socket_passcred(&socket, true).ok()?;
    // While a master lives no one takes connections: those of others that looked may stand there, so none is waited for.
    ioctl_fionbio(&socket, true).ok()?;
    connect(&socket, &SocketAddrUnix::new(&path).ok()?).ok()?;
    ioctl_fionbio(&socket, false).ok()?;
    let channel = Channel::from(socket);
    let listener = channel.listener().ok()?;
    if listener.user != user.as_raw() || is_alive(listener.id) {
        return None;
    }
    Some(Reached(channel))
}

impl Reached {
    fn answer(self, patience: Duration) -> Option<Orphan> {
        let Self(channel) = self;
        channel.set_timeout(Some(patience)).ok()?;
        let (version, sockets, sender) = message::first_answer(&channel).ok()?;
        channel.set_timeout(None).ok()?;
        Some(Orphan { channel, sender, sockets, is_same: version == VERSION })
    }

    /// Tells the server to end once its requests are answered, on a thread of its own; `done` is given its process.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn dismiss(self, done: impl FnOnce(u32) + Send + 'static) -> io::Result<()> {
        let work = move || {
            let Some(orphan) = self.answer(LONG_PATIENCE) else { return };
            if message::end(&orphan.channel, true).is_ok() {
                done(orphan.sender.id);
            }
        };
        std::thread::Builder::new().name("ends orphan".to_owned()).spawn(work).map(drop)
    }
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
    logs: Arc<LogFiles>,
    tell: mpsc::UnboundedSender<Told>,
) -> io::Result<()> {
    let listen = move || {
        loop {
            // A word of another version is no better than none.
            while let Ok(Some(order)) = message::next_order(&master) {
                match order {
                    // At once: of many, those that wait would hold more descriptors than there are.
                    Order::Logs(given) => logs.take(given),
                    // Before the end of this master can be noticed.
                    Order::WaitAt(place) => {
                        *adoption.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
                    }
                    order => drop(tell.send(Told::Order(order))),
                }
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
