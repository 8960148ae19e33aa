//! UDP sockets as the library reads and writes them, with what other endpoints hand over.

use super::ids::{Ids, Owner};
use super::switch::{Joined, Parcel, Switch};
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::fmt::{self, Debug};
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

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
    ) -> io::Result<Self> {
        let part = |socket: &std::net::UdpSocket| {
            let state = UdpSocketState::new(socket.into())?;
            Ok(Part { io: UdpSocket::from_std(socket.try_clone()?)?, state })
        };
        let parts = sockets.iter().map(part).collect::<io::Result<Vec<_>>>()?;
        if parts.is_empty() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let (queue, is_closed) = (Mutex::new(queue), AtomicBool::new(false));
        Ok(Self { parts, address, number, ids, switch, queue, is_closed })
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
                let read = io.try_io(Interest::READABLE, || state.recv(io.into(), buffers, metas));
                if let Ok(count) = read {
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
        let writable = self
            .writable
            .get_or_insert_with(|| Box::pin(async move { sockets.parts[0].io.writable().await }));
        let done = ready!(writable.as_mut().poll(context));
        self.writable = None;
        Poll::Ready(done)
    }
}
