//! After `101 Switching Protocols`: bytes pass in both directions until one side ends.

use super::pools::Lease;
use bytes::{Bytes, BytesMut};
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use yorozu_kernel::base::turn;
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
    /// When the upstream was asked.
    started: Instant,
    lease: Lease,
}

/// What passes while it does.
struct Passing {
    /// When something did.
    last: Cell<Instant>,
    carried: Cell<Carried>,
}

impl Passing {
    fn count(&self, note: impl FnOnce(&mut Carried)) {
        let mut carried = self.carried.get();
        note(&mut carried);
        self.carried.set(carried);
    }
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
        started: Instant,
        lease: Lease,
    ) -> Self {
        Self { connection, early, silence_max, started, lease }
    }

    async fn join(self, client: &dyn ByteStream, early: BytesMut) -> Carried {
        let passing =
            Passing { last: Cell::new(Instant::now()), carried: Cell::new(Carried::default()) };
        let result = tokio::select! {
            result = self.to_upstream(client, early, &passing) => result.map(|()| false),
            result = self.to_client(client, &passing) => result.map(|()| false),
            () = silence(&passing.last, self.silence_max) => Ok(true),
        };
        let Self { connection, lease, started, .. } = self;
        drop(connection);
        lease.release(None);
        let carried = passing.carried.get();
        let (time, is_timed_out) = (turn::since(started), result.unwrap_or(false));
        Carried { time, is_timed_out, ..carried }
    }

    async fn to_upstream(
        &self,
        client: &dyn ByteStream,
        mut buffer: BytesMut,
        passing: &Passing,
    ) -> io::Result<()> {
        loop {
            if !buffer.is_empty() {
                passing.last.set(Instant::now());
                self.connection.write_all(&buffer).await?;
                passing.count(|carried| carried.to_upstream += buffer.len() as u64);
                buffer.clear();
            }
            if client.read(&mut buffer, usize::MAX).await? == 0 {
                return Ok(());
            }
        }
    }

    async fn to_client(&self, client: &dyn ByteStream, passing: &Passing) -> io::Result<()> {
        let mut buffer = BytesMut::from(&self.early[..]);
        loop {
            while !buffer.is_empty() {
                passing.last.set(Instant::now());
                let count = client.write(&buffer).await?;
                passing.count(|carried| carried.to_client += count as u64);
                drop(buffer.split_to(count));
            }
            let count = self.connection.read(&mut buffer).await?;
            passing.count(|carried| carried.from_upstream += count as u64);
            if count == 0 {
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
