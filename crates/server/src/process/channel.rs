//! The socket between the master process and the server process: messages with open files.
//!
//! A message is a packet of the kernel's (`SOCK_SEQPACKET`): its kind, a text, and files (`SCM_RIGHTS`). A long text
//! goes as a file of its own; files that are too many for one packet follow in others. What a server sends is taken by
//! other rules than what the master sends: who has taken over a server must not be able to fill, stop or end the master.

#![expect(clippy::disallowed_methods, reason = "of threads that serve no client")]

use rustix::fs::{MemfdFlags, SealFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// Most files of a packet; the kernel takes 253 (`SCM_MAX_FD`).
pub(super) const FILES_MAX: usize = 250;
/// Longest text that a packet holds, in bytes; chosen far below the kernel's bound of a packet.
const TEXT_MAX: usize = 16 * 1024;
/// Longest text of a server's message, in bytes: why it refused a configuration. What is longer is cut; chosen.
const SHORT_MAX: usize = 4096;
/// Most files of a server's first message to a new master; chosen above any number of listening sockets.
const FIRST_FILES_MAX: usize = 4096;
/// How long a message may take to be sent, where the other end is busy or stands; chosen.
const SEND_PATIENCE: Duration = Duration::from_secs(1);
/// Before the text: the kind, whether the text is the first file, how many files there are (little endian).
const HEAD_BYTES: usize = 6;
/// The kind of a packet that only brings more files.
const MORE: u8 = 0;

/// One end.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

/// What came over it.
#[derive(Debug)]
pub(super) struct Packet {
    /// Not 0.
    pub kind: u8,
    pub text: Vec<u8>,
    pub files: Vec<OwnedFd>,
    /// Whether files are missing: this process has no descriptor left. The text may be missing with them.
    pub is_cut: bool,
}

/// A file without a name that holds `text`.
///
/// # Errors
/// No descriptor or memory is left.
pub(super) fn text_file(text: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("yorozu", flags)?);
    file.write_all(text)?;
    // Whoever gets it can read it, and no more.
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// What a [`text_file`] holds; its offset, which all who have it share, is not moved.
///
/// # Errors
/// As the system has it.
pub(super) fn text_of(file: OwnedFd) -> io::Result<Vec<u8>> {
    let file = File::from(file);
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut text = vec![0; length];
    file.read_exact_at(&mut text, 0)?;
    Ok(text)
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl Channel {
    /// Both ends.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(one), Self(other)))
    }

    /// The process that listened at the other end of a connection, and its user.
    ///
    /// # Errors
    /// As the system has it.
    pub(super) fn listener(&self) -> io::Result<Sender> {
        let peer = rustix::net::sockopt::socket_peercred(&self.0)?;
        let id = peer.pid.as_raw_nonzero().get().unsigned_abs();
        Ok(Sender { id, user: peer.uid.as_raw() })
    }

    /// Ends it for both sides, whoever still reads from it.
    pub(super) fn shut(&self) {
        // It may have ended already.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    /// Bounds how long [`Channel::receive`] waits.
    ///
    /// # Errors
    /// As the system has it.
    pub(super) fn set_timeout(&self, timeout: Option<std::time::Duration>) -> io::Result<()> {
        let which = rustix::net::sockopt::Timeout::Recv;
        Ok(rustix::net::sockopt::set_socket_timeout(&self.0, which, timeout)?)
    }

    /// Sends a message, if the other end has room for it within [`SEND_PATIENCE`].
    ///
    /// # Errors
    /// The other end is gone or takes nothing, or a file cannot be passed.
    pub(super) fn send(&self, kind: u8, text: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let long = match text.len() > TEXT_MAX {
            true => Some(text_file(text)?),
            false => None,
        };
        let files: Vec<BorrowedFd<'_>> =
            long.iter().map(|file| file.as_fd()).chain(files.iter().copied()).collect();
        let count = u32::try_from(files.len()).map_err(io::Error::other)?;
        let mut bytes = vec![kind, u8::from(long.is_some())];
        bytes.extend(count.to_le_bytes());
        if long.is_none() {
            bytes.extend(text);
        }
        let end = Instant::now() + SEND_PATIENCE;
        let mut parts = files.chunks(FILES_MAX);
        self.send_part(&bytes, parts.next().unwrap_or_default(), end)?;
        parts.try_for_each(|part| self.send_part(&[MORE], part, end))
    }

    fn send_part(&self, bytes: &[u8], files: &[BorrowedFd<'_>], end: Instant) -> io::Result<()> {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = [IoSlice::new(bytes)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match sendmsg(&self.0, &bytes, &mut control, flags) {
                Err(Errno::INTR) => {}
                // Files that are on their way count as well: the other end has to take some first.
                Err(Errno::AGAIN | Errno::TOOMANYREFS) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                sent => return sent.map(|_| ()).map_err(io::Error::from),
            }
        }
    }

    /// The next message of the master's; `None` if the other end is gone.
    ///
    /// # Errors
    /// As the system has it; what came is no message.
    pub(super) fn receive(&self) -> io::Result<Option<Packet>> {
        let mut received = Received::default();
        let Some(bytes) = self.receive_part(&mut received)? else { return Ok(None) };
        let ([kind, is_long, a, b, c, d], text) = head_of(&bytes)?;
        self.receive_files(u32::from_le_bytes([a, b, c, d]) as usize, &mut received)?;
        let Received { mut files, is_cut, .. } = received;
        let mut text = text.to_vec();
        if is_long != 0 && !is_cut {
            if files.is_empty() {
                return Err(broken());
            }
            text = text_of(files.remove(0))?;
        }
        Ok(Some(Packet { kind, text, files, is_cut }))
    }

    /// The next message of a server's, which is not trusted: a short text, and no file, whatever it sends along.
    ///
    /// # Errors
    /// As the system has it; what came is no message.
    pub(super) fn receive_short(&self) -> io::Result<Option<(u8, Vec<u8>)>> {
        let mut bytes = vec![0; HEAD_BYTES + SHORT_MAX];
        let received = loop {
            let mut into = [IoSliceMut::new(&mut bytes)];
            // Without room for files the kernel drops them.
            let mut none = RecvAncillaryBuffer::default();
            match recvmsg(&self.0, &mut into, &mut none, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                received => break received?,
            }
        };
        bytes.truncate(received.bytes);
        if bytes.is_empty() {
            return Ok(None);
        }
        let ([kind, is_long, files @ ..], text) = head_of(&bytes)?;
        if is_long != 0 || files != [0; 4] {
            return Err(broken());
        }
        Ok(Some((kind, text.to_vec())))
    }

    /// The first message of a server that has no master, with its files and who sent it.
    ///
    /// # Errors
    /// As the system has it; what came is no message, or too much.
    pub(super) fn receive_first(&self) -> io::Result<Option<(Packet, Sender)>> {
        let mut received = Received::default();
        let Some(bytes) = self.receive_part(&mut received)? else { return Ok(None) };
        let ([kind, is_long, a, b, c, d], text) = head_of(&bytes)?;
        let count = u32::from_le_bytes([a, b, c, d]) as usize;
        if is_long != 0 || count > FIRST_FILES_MAX {
            return Err(broken());
        }
        self.receive_files(count, &mut received)?;
        let sender = received.sender.ok_or_else(broken)?;
        let Received { files, is_cut, .. } = received;
        Ok(Some((Packet { kind, text: text.to_vec(), files, is_cut }, sender)))
    }

    fn receive_files(&self, count: usize, received: &mut Received) -> io::Result<()> {
        // By their number, also where the kernel had to drop files: what comes then is a message again.
        for _ in 1..count.div_ceil(FILES_MAX) {
            if self.receive_part(received)?.as_deref() != Some(&[MORE]) {
                return Err(broken());
            }
        }
        match received.files.len() == count || received.is_cut {
            true => Ok(()),
            false => Err(broken()),
        }
    }

    fn receive_part(&self, found: &mut Received) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; HEAD_BYTES + TEXT_MAX];
        let space = rustix::cmsg_space!(ScmRights(FILES_MAX), ScmCredentials(1));
        let mut space = vec![MaybeUninit::uninit(); space];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut into = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                received => break received?,
            }
        };
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(given) => found.files.extend(given),
                RecvAncillaryMessage::ScmCredentials(of) => {
                    let id = of.pid.as_raw_nonzero().get().unsigned_abs();
                    found.sender = Some(Sender { id, user: of.uid.as_raw() });
                }
                _ => {}
            }
        }
        found.is_cut |= received.flags.contains(ReturnFlags::CTRUNC);
        bytes.truncate(received.bytes);
        Ok((received.bytes > 0).then_some(bytes))
    }
}

/// What came beside the bytes.
#[derive(Default)]
struct Received {
    files: Vec<OwnedFd>,
    is_cut: bool,
    sender: Option<Sender>,
}

/// Who sent a message, by the kernel's word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Sender {
    /// The process.
    pub id: u32,
    pub user: u32,
}

fn broken() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn head_of(bytes: &[u8]) -> io::Result<([u8; HEAD_BYTES], &[u8])> {
    let (head, text) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or_else(broken)?;
    Ok((*head, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn texts_and_files_of_any_number_arrive() {
        let (one, other) = Channel::pair().unwrap();
        for (length, count) in
            [(0, 0), (5, 1), (TEXT_MAX, FILES_MAX), (TEXT_MAX + 1, FILES_MAX), (90_000, 600)]
        {
            let text = vec![b'x'; length];
            let files: Vec<_> =
                (0..count).map(|number: usize| text_file(&number.to_le_bytes()).unwrap()).collect();
            let lent: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| one.send(7, &text, &lent).unwrap());
                let found = other.receive().unwrap().unwrap();
                assert_eq!((found.kind, found.text == text), (7, true));
                let numbers = found.files.into_iter().map(|file| text_of(file).unwrap());
                assert!(numbers.eq((0..count).map(|number| number.to_le_bytes().to_vec())));
            });
        }
        drop(one);
        assert!(other.receive().unwrap().is_none());
    }

    #[test]
    fn what_a_server_sends_is_short_and_brings_no_files() {
        let (master, server) = Channel::pair().unwrap();
        let send = |text: &[u8]| server.send(7, text, &[]).unwrap();
        send(b"text");
        assert_eq!(master.receive_short().unwrap(), Some((7, b"text".to_vec())));
        send(&[b'x'; SHORT_MAX + 9]);
        assert_eq!(master.receive_short().unwrap().unwrap().1.len(), SHORT_MAX);
        let (mut end, lent) = std::io::pipe().unwrap();
        server.send(7, b"", &[lent.as_fd(); 9]).unwrap();
        drop(lent);
        master.receive_short().unwrap_err();
        // It has an end only if none of them was kept.
        assert_eq!(end.read(&mut [0]).unwrap(), 0);
        send(&[b'x'; TEXT_MAX + 1]);
        master.receive_short().unwrap_err();
        server.send_part(b"x", &[], Instant::now()).unwrap();
        master.receive_short().unwrap_err();
        drop(server);
        assert_eq!(master.receive_short().unwrap(), None);
    }

    #[test]
    fn a_text_that_was_passed_cannot_be_changed() {
        let file = File::from(text_file(b"text").unwrap());
        assert!(file.write_at(b"x", 0).is_err() && file.set_len(0).is_err());
        assert!(file.set_len(9).is_err());
        assert_eq!(text_of(file.into()).unwrap(), b"text");
    }

    #[test]
    fn one_that_takes_nothing_holds_the_other_up_for_a_moment_only() {
        let (master, _server) = Channel::pair().unwrap();
        let begun = Instant::now();
        while master.send(7, &[b'x'; TEXT_MAX], &[]).is_ok() {}
        assert!(begun.elapsed() < SEND_PATIENCE * 3);
    }
}
