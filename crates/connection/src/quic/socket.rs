//! UDP sockets as the library reads and writes them, with what other endpoints hand over.

use super::ids::{Ids, Owner};
use super::paths;
use super::switch::{Joined, Parcel, Switch};
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::fmt::{self, Debug};
use std::future::Future;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use yorozu_kernel::logging::error::{Level, os_error};
use yorozu_kernel::logging::error_log::ErrorLogs;

/// How often a socket that fails is read again at once; chosen: errors of the network come one at a time, before what is
/// there to be read.
const READS_MAX: usize = 4;
/// The time between two lines of the log about failures; chosen.
const SILENCE: Duration = Duration::from_secs(60);

/// One of the system's sockets.
#[derive(Debug)]
struct Part {
    io: UdpSocket,
    state: UdpSocketState,
}

/// An endpoint's sockets: one, or those of workers that are no more, too.
pub(super) struct Sockets {
    parts: Vec<Part>,
    address: SocketAddr,
    number: u16,
    ids: Ids,
    switch: Arc<Switch>,
    /// What other endpoints got of this one's.
    queue: Mutex<mpsc::Receiver<Parcel>>,
    /// Whether the endpoint takes no more connections.
    is_closed: AtomicBool,
    log: ErrorLogs,
    /// When a failure was logged.
    logged: Mutex<Option<Instant>>,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.switch.leave(self.address, self.number);
    }
}

impl Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Sockets {
    /// # Errors
    /// As the system has it.
    pub(super) fn new(
        sockets: &[std::net::UdpSocket],
        address: SocketAddr,
        ids: Ids,
        switch: Arc<Switch>,
        Joined { number, queue, .. }: Joined,
        log: ErrorLogs,
    ) -> io::Result<Self> {
        let part = |socket: &std::net::UdpSocket| {
            let state = UdpSocketState::new(socket.into())?;
            Ok(Part { io: UdpSocket::from_std(socket.try_clone()?)?, state })
        };
        let parts = sockets.iter().map(part).collect::<io::Result<Vec<_>>>()?;
        if parts.is_empty() {
            return Err(ErrorKind::NotConnected.into());
        }
        let (queue, is_closed) = (Mutex::new(queue), AtomicBool::new(false));
        let logged = Mutex::default();
        Ok(Self { parts, address, number, ids, switch, queue, is_closed, log, logged })
    }

    /// No connection begins here any more.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.switch.close(self.address, self.number);
    }

    fn poll_queue(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        meta: &mut RecvMeta,
    ) -> Poll<()> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(parcel) = ready!(queue.poll_recv(context)) {
            if let Some(place) = buffer.get_mut(..parcel.bytes.len()) {
                place.copy_from_slice(&parcel.bytes);
                *meta = parcel.meta;
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Reads what the system has. Behind a failure that stays the socket counts as empty until more arrives: the worker has
    /// others to serve, and the library would end all connections of the endpoint.
    fn read(&self, mut recv: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        for _ in 0..READS_MAX {
            match recv() {
                Err(problem) if problem.kind() != ErrorKind::WouldBlock => self.note(&problem),
                read => return read,
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }

    fn note(&self, problem: &io::Error) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|logged| logged.elapsed() >= SILENCE) {
            *logged = Some(Instant::now());
            let text = format!("recvmsg() at {} failed ({})", self.address, os_error(problem));
            self.log.process(Level::Alert, &text);
        }
    }

    /// Hands over what is for other endpoints; the library skips what has no length.
    fn sort(&self, buffers: &[IoSliceMut<'_>], metas: &mut [RecvMeta]) {
        for (buffer, meta) in buffers.iter().zip(metas) {
            // Datagrams that the system gives as one come from one peer.
            let bytes = &buffer[..meta.len];
            let parcel = || Parcel { bytes: bytes.to_vec(), meta: *meta };
            let is_gone = match self.ids.owner(bytes) {
                Owner::Endpoint(number) if number != self.number => {
                    self.switch.hand_over(self.address, number, parcel())
                        || self.switch.hand_back(self.address, parcel)
                }
                Owner::Other => self.switch.hand_back(self.address, parcel),
                Owner::New if self.is_closed.load(Ordering::Relaxed) && begins(bytes) => {
                    self.switch.hand_on(self.address, parcel());
                    true
                }
                Owner::Endpoint(_) | Owner::New => false,
            };
            if is_gone {
                meta.len = 0;
            }
        }
    }
}

/// Whether a datagram is one of those that a connection begins with: Initial or 0-RTT (RFC 9000, section 17.2).
fn begins(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0x80 != 0 && first & 0x20 == 0)
}

impl AsyncUdpSocket for Sockets {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller { sockets: self, writable: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        paths::sent_to(transmit.destination);
        let Part { io, state } = &self.parts[0];
        io.try_io(Interest::WRITABLE, || state.send(io.into(), transmit))
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if self.poll_queue(context, &mut buffers[0], &mut metas[0]).is_ready() {
            return Poll::Ready(Ok(1));
        }
        if self.switch.is_succeeded() {
            // Another process reads them. Should it end, the queue has a parcel without content.
            return Poll::Pending;
        }
        for Part { io, state } in &self.parts {
            while io.poll_recv_ready(context)?.is_ready() {
                let mut recv = || self.read(|| state.recv(io.into(), buffers, metas));
                // Any other error would leave the socket readable.
                if let Ok(count) = io.try_io(Interest::READABLE, &mut recv) {
                    self.sort(&buffers[..count], &mut metas[..count]);
                    return Poll::Ready(Ok(count));
                }
            }
        }
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn max_transmit_segments(&self) -> usize {
        self.parts[0].state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.parts[0].state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.parts[0].state.may_fragment()
    }
}

type Writable = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Waits until the system takes datagrams again, for one task.
struct Poller {
    sockets: Arc<Sockets>,
    writable: Option<Writable>,
}

impl Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sockets = Arc::clone(&self.sockets);
        // It nearly always does: asked before each datagram, the future for the rest costs more than making one.
        let is_writable = || sockets.parts[0].io.try_io(Interest::WRITABLE, || Ok(()));
        if self.writable.is_none() && is_writable().is_ok() {
            return Poll::Ready(Ok(()));
        }
        paths::not_sent();
        let writable = self
            .writable
            .get_or_insert_with(|| Box::pin(async move { sockets.parts[0].io.writable().await }));
        let done = ready!(writable.as_mut().poll(context));
        self.writable = None;
        Poll::Ready(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use yorozu_kernel::logging::error_log::{Sink, Target};
    use yorozu_kernel::logging::memory::Ring;

    fn sockets(socket: std::net::UdpSocket, log: ErrorLogs) -> Sockets {
        let (switch, address) = (Arc::new(Switch::default()), socket.local_addr().unwrap());
        let joined = switch.join(address, None).unwrap();
        let ids = Ids::new(joined.keys.clone(), joined.number);
        Sockets::new(&[socket], address, ids, switch, joined, log).unwrap()
    }
    #[tokio::test]
    async fn a_socket_that_cannot_be_read_keeps_no_worker_busy() {
        // From one that listens nothing is received, though the system says that it is readable.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ring, mut log) = (Arc::new(Ring::new(4096)), ErrorLogs::default());
        log.push(Target(Sink::Memory(Arc::clone(&ring)), Level::Alert));
        let sockets = sockets(OwnedFd::from(listener).into(), log);
        let io = &sockets.parts[0].io;
        let is_readable = || io.try_io(Interest::READABLE, || Ok(())).is_ok();
        io.readable().await.unwrap();
        assert!(is_readable());
        std::future::poll_fn(|context| {
            let (mut bytes, mut metas) = ([0; 2048], [RecvMeta::default()]);
            let read = sockets.poll_recv(context, &mut [IoSliceMut::new(&mut bytes)], &mut metas);
            assert!(read.is_pending());
            Poll::Ready(())
        })
        .await;
        assert!(!is_readable());
        let log = String::from_utf8(ring.text()).unwrap();
        assert!(log.contains("failed (107: "), "{log}");
    }
}
