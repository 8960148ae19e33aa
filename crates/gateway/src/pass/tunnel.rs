//! After `101 Switching Protocols`: bytes pass in both directions until one side ends.

use super::pools::Lease;
use bytes::{Bytes, BytesMut};
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use yorozu_kernel::exchange::source::ByteStream;
use yorozu_kernel::exchange::tunnel::{Carried, Tunnel};
use yorozu_upstream::Connection;

/// The upstream's side of a connection that was upgraded.
pub struct Upgraded {
    connection: Rc<Connection>,
    /// What the upstream sent behind its head.
    early: Bytes,
    /// `*_read_timeout`: how long both sides may be silent.
    silence_max: Duration,
    lease: Lease,
}

impl std::fmt::Debug for Upgraded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upgraded").finish_non_exhaustive()
    }
}

impl Tunnel for Upgraded {
    fn carry(
        self: Box<Self>,
        client: Rc<dyn ByteStream>,
        early: BytesMut,
    ) -> Pin<Box<dyn Future<Output = Carried>>> {
        Box::pin(async move { self.join(&*client, early).await })
    }
}

impl Upgraded {
    pub fn new(
        connection: Rc<Connection>,
        early: Bytes,
        silence_max: Duration,
        lease: Lease,
    ) -> Self {
        Self { connection, early, silence_max, lease }
    }

    async fn join(self, client: &dyn ByteStream, early: BytesMut) -> Carried {
        let last = Cell::new(Instant::now());
        let to_client = Cell::new(0);
        let result = tokio::select! {
            result = self.to_upstream(client, early, &last) => result.map(|()| false),
            result = self.to_client(client, &last, &to_client) => result.map(|()| false),
            () = silence(&last, self.silence_max) => Ok(true),
        };
        let Self { connection, lease, .. } = self;
        drop(connection);
        lease.release(None, false);
        Carried { to_client: to_client.get(), is_timed_out: result.unwrap_or(false) }
    }

    async fn to_upstream(
        &self,
        client: &dyn ByteStream,
        mut buffer: BytesMut,
        last: &Cell<Instant>,
    ) -> io::Result<()> {
        loop {
            if !buffer.is_empty() {
                last.set(Instant::now());
                self.connection.write_all(&buffer).await?;
                buffer.clear();
            }
            if client.read(&mut buffer, usize::MAX).await? == 0 {
                return Ok(());
            }
        }
    }

    async fn to_client(
        &self,
        client: &dyn ByteStream,
        last: &Cell<Instant>,
        sent: &Cell<u64>,
    ) -> io::Result<()> {
        let mut buffer = BytesMut::from(&self.early[..]);
        loop {
            while !buffer.is_empty() {
                last.set(Instant::now());
                let count = client.write(&buffer).await?;
                sent.set(sent.get() + count as u64);
                drop(buffer.split_to(count));
            }
            if self.connection.read(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
    }
}

/// Returns when nothing has passed for so long.
async fn silence(last: &Cell<Instant>, longest: Duration) {
    loop {
        let left = longest.saturating_sub(last.get().elapsed());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}
