//! The socket between the master process and the server process: messages with open files.
//!
//! A message is a packet of the kernel's (`SOCK_SEQPACKET`): its kind, a text, and files (`SCM_RIGHTS`). A long text
//! goes as a file of its own; files that are too many for one packet follow in others.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

/// Most files of a packet; the kernel takes 253 (`SCM_MAX_FD`).
const FILES_MAX: usize = 250;
/// Longest text that a packet holds, in bytes; chosen far below the kernel's bound of a packet.
const TEXT_MAX: usize = 16 * 1024;
/// Before the text: the kind, whether the text is the first file, how many files there are (little endian).
const HEAD_BYTES: usize = 6;
/// The kind of a packet that only brings more files.
const MORE: u8 = 0;

/// One end.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

/// What goes over it.
#[derive(Debug)]
pub(super) struct Packet {
    /// Not 0.
    pub kind: u8,
    pub text: Vec<u8>,
    pub files: Vec<OwnedFd>,
}

/// A file without a name that holds `text`.
///
/// # Errors
/// No descriptor or memory is left.
pub(super) fn text_file(text: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("yorozu", MemfdFlags::CLOEXEC)?);
    file.write_all(text)?;
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

    /// The process at the other end; of a connection, the one that listened.
    ///
    /// # Errors
    /// As the system has it.
    pub(super) fn peer(&self) -> io::Result<u32> {
        let peer = rustix::net::sockopt::socket_peercred(&self.0)?;
        Ok(peer.pid.as_raw_nonzero().get().unsigned_abs())
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

    /// Sends a message; waits while the other end has no room for it.
    ///
    /// # Errors
    /// The other end is gone, or a file cannot be passed.
    pub(super) fn send(&self, packet: &Packet) -> io::Result<()> {
        let long = match packet.text.len() > TEXT_MAX {
            true => Some(text_file(&packet.text)?),
            false => None,
        };
        let files: Vec<BorrowedFd<'_>> =
            long.iter().chain(&packet.files).map(|file| file.as_fd()).collect();
        let count = u32::try_from(files.len()).map_err(io::Error::other)?;
        let mut bytes = vec![packet.kind, u8::from(long.is_some())];
        bytes.extend(count.to_le_bytes());
        if long.is_none() {
            bytes.extend(&packet.text);
        }
        let mut parts = files.chunks(FILES_MAX);
        self.send_part(&bytes, parts.next().unwrap_or_default())?;
        parts.try_for_each(|part| self.send_part(&[MORE], part))
    }

    fn send_part(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = [IoSlice::new(bytes)];
        loop {
            match sendmsg(&self.0, &bytes, &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                sent => return sent.map(|_| ()).map_err(io::Error::from),
            }
        }
    }

    /// The next message; `None` if the other end is gone.
    ///
    /// # Errors
    /// As the system has it; what came is no message.
    pub(super) fn receive(&self) -> io::Result<Option<Packet>> {
        let mut files = Vec::new();
        let Some(bytes) = self.receive_part(&mut files)? else { return Ok(None) };
        let broken = || io::Error::from(io::ErrorKind::InvalidData);
        let (head, text) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or_else(broken)?;
        let [kind, is_long, a, b, c, d] = *head;
        while files.len() < u32::from_le_bytes([a, b, c, d]) as usize {
            if self.receive_part(&mut files)?.as_deref() != Some(&[MORE]) {
                return Err(broken());
            }
        }
        let mut text = text.to_vec();
        if is_long != 0 {
            if files.is_empty() {
                return Err(broken());
            }
            text = text_of(files.remove(0))?;
        }
        Ok(Some(Packet { kind, text, files }))
    }

    fn receive_part(&self, files: &mut Vec<OwnedFd>) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; HEAD_BYTES + TEXT_MAX];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut into = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                received => break received?,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(given) = message {
                files.extend(given);
            }
        }
        bytes.truncate(received.bytes);
        Ok((received.bytes > 0).then_some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_files_of_any_number_arrive() {
        let (one, other) = Channel::pair().unwrap();
        for (length, count) in
            [(0, 0), (5, 1), (TEXT_MAX, FILES_MAX), (TEXT_MAX + 1, FILES_MAX), (90_000, 600)]
        {
            let text = vec![b'x'; length];
            let files = (0..count).map(|number: usize| text_file(&number.to_le_bytes()).unwrap());
            let packet = Packet { kind: 7, text, files: files.collect() };
            std::thread::scope(|scope| {
                scope.spawn(|| one.send(&packet).unwrap());
                let found = other.receive().unwrap().unwrap();
                assert_eq!((found.kind, found.text == packet.text), (7, true));
                let numbers = found.files.into_iter().map(|file| text_of(file).unwrap());
                assert!(numbers.eq((0..count).map(|number| number.to_le_bytes().to_vec())));
            });
        }
        drop(one);
        assert!(other.receive().unwrap().is_none());
    }
}
