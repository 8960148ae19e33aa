//! Brings a node's purges into the stream, in their order.

use super::bus::{Bus, Side};
use super::link::Link;
use super::place::Id;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use yorozu_wire::redis::{self, Reply};

/// Entries that are kept in the stream, nearly; as documented.
const STREAM_MAX: &[u8] = b"100000";
/// Entries that are sent together; chosen.
const BATCH: usize = 100;
/// Redis is given up after this time, for one answer; chosen.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Between two attempts to connect: at first, and at most; chosen.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Bounds what is asked of Redis.
///
/// # Errors
/// Also that it took too long.
pub(super) async fn bounded<T>(
    time: Duration,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    timeout(time, work).await.unwrap_or_else(|_| Err("timed out".to_owned()))
}

/// Connects to the server that has the stream.
///
/// # Errors
/// Why not.
pub(super) async fn connect(bus: &Bus) -> Result<Link, String> {
    let mut target = bus.spec.target.clone();
    target.tls = bus.tls();
    bounded(TIMEOUT, target.connect(bus.spec.stream.as_bytes())).await
}

/// Pauses that grow.
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) fn new() -> Self {
        Self(PAUSE_MIN)
    }

    pub(super) async fn wait(&mut self) {
        sleep(self.0).await;
        self.0 = (self.0 * 2).min(PAUSE_MAX);
    }
}

/// Sends what there is to send, for ever.
pub(super) async fn send_forever(bus: Arc<Bus>) {
    let mut pause = Pause::new();
    loop {
        let what = match connect(&bus).await {
            Ok(link) => match send_all(&bus, link, &mut pause).await {
                Err(Failed::Closed) => {
                    // As when Redis starts again: whether it is away is seen by the next attempt.
                    pause.wait().await;
                    continue;
                }
                Err(Failed::Refused(line)) => format!("refuses purges, which are queued: {line}"),
                Ok(never) => match never {},
            },
            Err(why) => silent(&why),
        };
        bus.away(Side::Sender, &what);
        pause.wait().await;
    }
}

/// What Redis does if it does not answer, for [`Bus::away`].
pub(super) fn silent(why: &str) -> String {
    format!("does not answer, purges are queued: {why}")
}

/// Why nothing more is sent over a connection.
enum Failed {
    Closed,
    /// With Redis' own words.
    Refused(String),
}

enum Never {}

async fn send_all(bus: &Arc<Bus>, mut link: Link, pause: &mut Pause) -> Result<Never, Failed> {
    loop {
        let batch = bus.next(BATCH);
        if batch.is_empty() {
            bus.here(Side::Sender);
            bus.to_send.notified().await;
            continue;
        }
        let mut out = Vec::new();
        for message in &batch {
            let fields = message.fields(&bus.spec.stream, bus.secret.as_ref());
            let mut words: Vec<&[u8]> =
                vec![b"XADD", bus.spec.stream.as_bytes(), b"MAXLEN", b"~", STREAM_MAX, b"*"];
            for (name, value) in &fields {
                words.extend([name.as_bytes(), value.as_bytes()]);
            }
            redis::command(&mut out, &words);
        }
        bounded(TIMEOUT, link.send(&out)).await.map_err(|_| Failed::Closed)?;
        for message in &batch {
            let reply = bounded(TIMEOUT, link.reply()).await.map_err(|_| Failed::Closed)?;
            match reply.text().and_then(Id::parse) {
                Some(id) => bus.sent(message.number, id),
                None if matches!(reply, Reply::Error(_)) => {
                    let Reply::Error(line) = reply else { continue };
                    return Err(Failed::Refused(line));
                }
                None => return Err(Failed::Closed),
            }
        }
        *pause = Pause::new();
        bus.here(Side::Sender);
        if bus.has_files() {
            let tidied = Arc::clone(bus);
            // What stays is sent again by the next process.
            let _ = tokio::task::spawn_blocking(move || tidied.tidy()).await;
        }
    }
}
