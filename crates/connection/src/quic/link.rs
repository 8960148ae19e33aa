//! Two processes at the same sockets: while a new binary takes over (SIGUSR2), it alone reads them, and hands the one before
//! it what is for connections that this one has.
//!
//! | message | from | means |
//! | --- | --- | --- |
//! | a byte | the new process, again and again | it reads the sockets |
//! | a parcel | the new process | datagrams of a connection that it does not know |
//!
//! What the other end sends is no more than what any peer could send to the sockets.

use super::switch::{Parcel, Switch};
use bytes::Buf as _;
use quinn::udp::{EcnCodepoint, RecvMeta};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};
use yorozu_kernel::base::tasks;

/// How often the new process says that it reads the sockets, and how long without its word the old one does not; chosen.
const INTERVAL: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(1);
/// The word that a process reads the sockets.
const HERE: [u8; 1] = [0];
/// Longest message: as many datagrams as the system gives at once, and what is said of them.
const MESSAGE_BYTES: usize = 72 * 1024;

/// The end of the link in the process that reads the sockets.
#[derive(Debug)]
pub struct Lead {
    switch: Arc<Switch>,
    link: UnixDatagram,
}

impl Lead {
    /// From here on `switch` hands back what it does not know: before the first endpoint reads.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(switch: &Arc<Switch>, link: UnixDatagram) -> io::Result<Self> {
        link.set_nonblocking(true)?;
        switch.set_predecessor(Some(link.try_clone()?));
        Ok(Self { switch: Arc::clone(switch), link })
    }

    /// Tells the process before this one that the sockets are read here, as long as it is there.
    ///
    /// # Errors
    /// No thread is left.
    pub fn begin(self) -> io::Result<()> {
        let Self { switch, link } = self;
        tasks::of_process("the word to the server before", move || {
            while !link.send(&HERE).is_err_and(|problem| problem.kind() != ErrorKind::WouldBlock) {
                pause(INTERVAL);
            }
            // It has ended: what it had is unknown to all.
            switch.set_predecessor(None);
        })
    }
}

/// From here on `switch` reads the sockets only while no one at the other end of `link` does.
///
/// # Errors
/// No thread is left.
pub fn follow(switch: &Arc<Switch>, link: UnixDatagram) -> io::Result<()> {
    link.set_nonblocking(false)?;
    link.set_read_timeout(Some(INTERVAL))?;
    switch.set_successor(true);
    let of_thread = Arc::clone(switch);
    let started = tasks::of_process("what the next server hands back", move || {
        let switch = &of_thread;
        let mut message = vec![0; MESSAGE_BYTES];
        let mut heard: Option<Instant> = None;
        loop {
            match link.recv(&mut message) {
                Ok(length) if message[..length] == HERE => {
                    heard = Some(Instant::now());
                    switch.set_succeeded(true);
                }
                Ok(length) => {
                    if let Some((address, parcel)) = read(&message[..length]) {
                        switch.take_back(address, parcel);
                    }
                }
                Err(problem)
                    if matches!(
                        problem.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(_) => break,
            }
            if heard.is_some_and(|heard| heard.elapsed() > PATIENCE) {
                heard = None;
                switch.set_succeeded(false);
            }
        }
        switch.set_successor(false);
        switch.set_succeeded(false);
    });
    started.inspect_err(|_| switch.set_successor(false))
}

#[expect(clippy::disallowed_methods, reason = "of threads that serve no client")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn put_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
}

fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    put_ip(out, address.ip());
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// A parcel for an address of this process, as a message.
pub(super) fn written(address: SocketAddr, parcel: &Parcel) -> Vec<u8> {
    let Parcel { bytes, meta } = parcel;
    let mut out = Vec::with_capacity(bytes.len() + 64);
    out.push(1);
    put_address(&mut out, address);
    put_address(&mut out, meta.addr);
    match meta.dst_ip {
        Some(ip) => put_ip(&mut out, ip),
        None => out.push(0),
    }
    out.push(meta.ecn.map_or(0, |ecn| ecn as u8));
    out.extend_from_slice(&u32::try_from(meta.stride).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(bytes);
    out
}

fn take_ip(rest: &mut &[u8]) -> Option<Option<IpAddr>> {
    Some(match rest.try_get_u8().ok()? {
        0 => None,
        4 => Some(rest.try_get_u32().ok()?.to_be_bytes().into()),
        _ => Some(rest.try_get_u128().ok()?.to_be_bytes().into()),
    })
}

fn take_address(rest: &mut &[u8]) -> Option<SocketAddr> {
    let ip = take_ip(rest)??;
    Some((ip, rest.try_get_u16().ok()?).into())
}

/// Reads what [`written`] wrote.
fn read(message: &[u8]) -> Option<(SocketAddr, Parcel)> {
    let mut rest = message.strip_prefix(&[1])?;
    let address = take_address(&mut rest)?;
    let addr = take_address(&mut rest)?;
    let dst_ip = take_ip(&mut rest)?;
    let ecn = EcnCodepoint::from_bits(rest.try_get_u8().ok()?);
    let stride = usize::try_from(rest.try_get_u32().ok()?).ok()?.max(1);
    let meta = RecvMeta { addr, len: rest.len(), stride, ecn, dst_ip };
    Some((address, Parcel { bytes: rest.to_vec(), meta }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parcels_arrive_as_they_were() {
        let address: SocketAddr = ([127, 0, 0, 1], 443).into();
        let peers: [SocketAddr; 2] = [([10, 0, 0, 1], 7).into(), "[::1]:65535".parse().unwrap()];
        for (addr, dst_ip, ecn) in [
            (peers[0], None, None),
            (peers[1], Some(IpAddr::from([1, 2, 3, 4])), Some(EcnCodepoint::Ce)),
        ] {
            let meta = RecvMeta { addr, len: 3, stride: 2, ecn, dst_ip };
            let parcel = Parcel { bytes: b"abc".to_vec(), meta };
            let message = written(address, &parcel);
            let (to, found) = read(&message).unwrap();
            assert_eq!((to, found.bytes), (address, b"abc".to_vec()));
            let meta = found.meta;
            assert_eq!((meta.addr, meta.len, meta.stride), (addr, 3, 2));
            assert_eq!((meta.dst_ip, meta.ecn), (dst_ip, ecn));
            assert!((0..message.len() - 3).all(|length| read(&message[..length]).is_none()));
        }
    }
}
