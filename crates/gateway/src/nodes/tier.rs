//! The shared tier: pages in Redis or memcached for all nodes.
//!
//! A value is a page as its file has it, behind what says how old it is:
//!
//! ```text
//! "yzp2" | epoch 8, place 8 + 8 | CRC-32 of key and place, 4, or with a secret HMAC-SHA-256 of key and all else, 32 | page
//! ```
//! The place is how far the node had read the stream of purges when the page began to be made. Who finds the page compares
//! that with the purges it knows itself: what may be older is a miss. So no clock and no second deletion is needed.

use super::bus::Bus;
use super::lane::{Answer, Circuit, Command, Lane, Server};
use super::link::Link;
use super::message::Secret;
use super::place::Id;
use super::target::Target;
use base16ct::lower;
use bytes::Bytes;
use rustls::ClientConfig;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use yorozu_cache::{Beyond, Entry, Key, Known, Making, Purge, Zone};
use yorozu_kernel::base::tasks::Generation;
use yorozu_kernel::base::turn;
use yorozu_kernel::logging::error::Level;
use yorozu_upstream::{Ring, RingKind};

const MAGIC: &[u8; 4] = b"yzp2";
const HEAD_BYTES: usize = 4 + 24;
/// Time for a page to be sent; chosen: no client waits.
const PUT_TIMEOUT: Duration = Duration::from_secs(1);

/// For so long a server that refuses a page is sent no other; chosen.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// Between two lines of the log about pages that are not believed; as about entries of the bus.
const DAMAGED_PAUSE: Duration = Duration::from_secs(1);
/// Between two lines of the log about what a server refuses; chosen.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// `shared=` of a zone, as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TierSpec {
    pub servers: Vec<Server>,
    /// Which of several has a key.
    pub ring: RingKind,
    pub timeout: Duration,
    /// Largest value, in bytes.
    pub object_max: u64,
    /// How long one node makes a page for all; `None`: each makes its own.
    pub lease: Option<Duration>,
}

/// What is counted.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub hit: AtomicU64,
    pub miss: AtomicU64,
    /// Older than a purge, or not fresh.
    pub old: AtomicU64,
    pub damaged: AtomicU64,
    pub failed: AtomicU64,
    pub stored: AtomicU64,
    /// Too large, too many at once, refused, or lost on the way.
    pub dropped: AtomicU64,
}

/// A page on its way to the tier. It counts as stored when the server has said so, as dropped whatever else becomes of it.
struct OnItsWay {
    figures: Arc<Figures>,
    is_stored: bool,
}

impl OnItsWay {
    /// By what the server answered.
    fn judge(mut self, answer: &Answer) {
        self.is_stored = *answer == Answer::Done(true);
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let cell = if self.is_stored { &self.figures.stored } else { &self.figures.dropped };
        cell.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Lanes {
    quick: Lane,
    pages: Lane,
    circuit: Circuit,
    /// When a page was refused last.
    refused: Last,
    /// When the log said so last.
    refused_logged: Last,
}

/// When something happened last.
#[derive(Debug, Default)]
struct Last(Mutex<Option<Instant>>);

impl Last {
    fn is_within(&self, time: Duration) -> bool {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < time)
    }

    fn is_now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// The shared tier of a zone.
pub struct Tier {
    pub(super) zone: String,
    pub(super) spec: TierSpec,
    pub(super) bus: Arc<Bus>,
    tls: Mutex<Option<Arc<ClientConfig>>>,
    lanes: Vec<Lanes>,
    ring: Ring,
    pub(super) figures: Arc<Figures>,
    /// When the log said last that a page is damaged.
    damaged_logged: Last,
}

impl std::fmt::Debug for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tier").field("zone", &self.zone).finish_non_exhaustive()
    }
}

/// What was found under a key.
pub enum Found {
    Page(Box<Entry>),
    /// It is not fresh any more, but may answer in place of an origin that fails.
    Stale(Box<Entry>),
    /// Nothing that could be used.
    Nothing,
    /// The server is not asked, or does not answer.
    Away,
}

/// Keeps other nodes from making a page; dropped, the next one may.
pub struct Lease {
    tier: Arc<Tier>,
    server: usize,
    /// Empty if it is another node's.
    key: String,
    /// Tells it from those of others.
    token: String,
    /// Whether the server has said so.
    is_held: bool,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Lanes { quick, pages, circuit, .. } = &self.tier.lanes[self.server];
        if self.key.is_empty() || circuit.is_open() {
            return;
        }
        let (key, token) = (std::mem::take(&mut self.key), std::mem::take(&mut self.token));
        // Behind the page, if that is on its way; or behind the question that was waited for in vain.
        let lane = if self.is_held { pages } else { quick };
        lane.say(Command::Release(key, token));
    }
}

/// What came of asking for a lease.
pub enum Leased {
    Mine(Lease),
    Taken,
    /// Leases are off, or the server does not answer.
    None,
}

impl Tier {
    pub(super) fn new(
        zone: &str,
        spec: TierSpec,
        bus: Arc<Bus>,
        tls: Option<Arc<ClientConfig>>,
    ) -> Self {
        let lanes = spec.servers.iter().map(|_| Lanes::default()).collect();
        let names = spec.servers.iter().map(|server| (server.to_string(), 1));
        let ring = Ring::new(spec.ring, &names.collect::<Vec<_>>());
        Self {
            zone: zone.to_owned(),
            spec,
            bus,
            tls: Mutex::new(tls),
            lanes,
            ring,
            figures: Arc::default(),
            damaged_logged: Last::default(),
        }
    }

    pub(super) fn set_tls(&self, tls: Option<Arc<ClientConfig>>) {
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls;
    }

    fn name(&self, key: &Key) -> String {
        let digest = lower::encode_string(&key.digest());
        format!(
            "{{{}}}:{}:{digest}",
            self.bus.spec.stream,
            lower::encode_string(self.zone.as_bytes())
        )
    }

    /// The server that has a key, as it has for other clients with the same ring.
    fn server_of(&self, name: &str) -> usize {
        self.ring.server_of(name.as_bytes()).unwrap_or_default()
    }

    /// Asks a server, unless it is left alone.
    async fn ask(&self, server: usize, command: Command) -> Option<Answer> {
        match self.lanes[server].circuit.is_closed() {
            true => self.answer(server, command).await,
            false => None,
        }
    }

    async fn answer(&self, server: usize, command: Command) -> Option<Answer> {
        let answer = self.lanes[server].quick.ask(command);
        // A connection that is opened first takes longer than an answer: what is late is made here.
        match tokio::time::timeout(self.spec.timeout, answer).await {
            Ok(answered) => answered.ok(),
            Err(_) => None,
        }
    }

    /// Looks for a page that may answer, and is not older than any purge this node knows. `making` began before.
    pub async fn get(&self, zone: &Zone, key: &Key, making: &Making, now: (i64, i64)) -> Found {
        let name = self.name(key);
        let server = self.server_of(&name);
        let count = |cell: &AtomicU64| cell.fetch_add(1, Ordering::Relaxed);
        let found = match self.ask(server, Command::Get(name.clone())).await {
            Some(Answer::Value(found)) => found,
            _ => {
                count(&self.figures.failed);
                return Found::Away;
            }
        };
        let Some(bytes) = found else {
            count(&self.figures.miss);
            return Found::Nothing;
        };
        let entry =
            opened(&name, &bytes.into(), self.bus.secret.as_ref()).and_then(|(known, page)| {
                zone.entry_of(&page, key, (making, known), now.0).map(|entry| (known, entry))
            });
        let Some((known, entry)) = entry else {
            count(&self.figures.damaged);
            self.lanes[server].quick.say(Command::Delete(name));
            if !self.damaged_logged.is_within(DAMAGED_PAUSE) {
                self.damaged_logged.is_now();
                let text = format!(
                    "zone \"{}\": a page in the shared tier is damaged, or not signed",
                    self.zone
                );
                self.bus.log(Level::Error, &text);
            }
            return Found::Nothing;
        };
        let known = (known.0, Id(known.1, known.2));
        let is_old = self.bus.is_older(&self.zone, key, &entry.head.tags, known);
        if is_old || !entry.head.is_fresh(now.1) {
            count(&self.figures.old);
            let may_answer = !is_old && (entry.head.stored_at..entry.head.ends()).contains(&now.1);
            return if may_answer { Found::Stale(Box::new(entry)) } else { Found::Nothing };
        }
        count(&self.figures.hit);
        Found::Page(Box::new(entry))
    }

    /// Removes a page, so that this node does not find it again; at most as long as an answer is waited for. Other nodes may
    /// have it by themselves.
    pub async fn forget(&self, key: &Key) {
        let name = self.name(key);
        let server = self.server_of(&name);
        let removed = self.ask(server, Command::Delete(name)).await;
        if !matches!(removed, Some(Answer::Done(_))) {
            self.leave(key);
        }
    }

    /// Keeps this node from finding pages of before under this key, or that bear its URL. Other nodes do not hear of it.
    pub fn leave(&self, key: &Key) {
        self.bus.mark_here(&self.zone, Purge::Page(key.clone()));
    }

    /// Asks to be the one node that makes a page.
    pub async fn lease(self: &Arc<Self>, key: &Key) -> Leased {
        let Some(life) = self.spec.lease else { return Leased::None };
        let name = self.name(key);
        let server = self.server_of(&name);
        if !self.lanes[server].circuit.is_closed() {
            return Leased::None;
        }
        let (key, token) = (lease_key(&name), format!("{:016x}", fastrand::u64(..)));
        let claim = Command::Claim(key.clone(), token.clone(), life);
        // Held from here on: who stops waiting gives back what it may have got.
        let mut lease = Lease { tier: Arc::clone(self), server, key, token, is_held: false };
        match self.answer(server, claim).await {
            Some(Answer::Done(true)) => {
                lease.is_held = true;
                Leased::Mine(lease)
            }
            Some(Answer::Done(false)) => {
                lease.key.clear();
                Leased::Taken
            }
            Some(_) | None => Leased::None,
        }
    }

    /// Whether a node makes the page; `None` if the server does not say.
    pub async fn is_leased(&self, key: &Key) -> Option<bool> {
        let name = self.name(key);
        let server = self.server_of(&name);
        match self.ask(server, Command::Get(lease_key(&name))).await {
            Some(Answer::Value(found)) => Some(found.is_some()),
            _ => None,
        }
    }

    /// Whether the pages of this tier are leased.
    pub fn has_leases(&self) -> bool {
        self.spec.lease.is_some()
    }

    /// Starts what asks the servers, which lasts as long as the task of this future.
    pub(super) async fn serve(self: Arc<Self>) {
        let tasks = Generation::default();
        for (server, is_quick) in
            (0..self.lanes.len()).flat_map(|server| [(server, true), (server, false)])
        {
            let tier = Arc::clone(&self);
            tasks.keep("shared tier", move || Arc::clone(&tier).serve_lane(server, is_quick));
        }
        std::future::pending::<()>().await;
    }

    async fn serve_lane(self: Arc<Self>, server: usize, is_quick: bool) {
        let Lanes { quick, pages, circuit, refused, refused_logged } = &self.lanes[server];
        let connect = async || self.connect(server).await;
        let told = |asked: Result<Option<String>, String>| match asked {
            Ok(line) => {
                if circuit.answered() {
                    self.log(Level::Notice, "answers again");
                }
                let Some(line) = line else { return };
                if !is_quick {
                    refused.is_now();
                }
                if !refused_logged.is_within(LOG_PAUSE) {
                    refused_logged.is_now();
                    self.log(Level::Error, &format!("refuses what it is asked: {line}"));
                }
            }
            Err(why) => {
                if circuit.failed() {
                    self.log(
                        Level::Error,
                        &format!("does not answer, pages are made without it: {why}"),
                    );
                }
            }
        };
        let (lane, timeout) = match is_quick {
            true => (quick, self.spec.timeout),
            false => (pages, PUT_TIMEOUT),
        };
        lane.serve(connect, timeout, told).await;
    }

    fn log(&self, level: Level, text: &str) {
        self.bus.log(level, &format!("shared tier of zone \"{}\" {text}", self.zone));
    }

    async fn connect(&self, server: usize) -> Result<(Link, bool), String> {
        match &self.spec.servers[server] {
            Server::Redis(target) => {
                let mut target: Target = target.clone();
                target.tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // On the server of all others, and of those that a user needs a right to.
                let key = format!("{{{}}}:", self.bus.spec.stream);
                Ok((target.connect(key.as_bytes()).await?, true))
            }
            Server::Memcached(host) => Ok((Target::plain(host).await?, false)),
        }
    }
}

impl Beyond for Tier {
    fn known(&self) -> Known {
        let (epoch, Id(milliseconds, number)) = self.bus.known();
        (epoch, milliseconds, number)
    }

    fn stored(&self, key: &Key, entry: &Arc<Entry>, known: Known) {
        let now = turn::unix_millis();
        let life = u64::try_from(entry.head.ends() - now).unwrap_or_default();
        // A part of a page, or one that may only be served while it is renewed, is this node's own.
        if now >= entry.head.fresh_until || entry.head.part.is_some() || entry.head.is_purged {
            return;
        }
        let name = self.name(key);
        let server = self.server_of(&name);
        let on_its_way = OnItsWay { figures: Arc::clone(&self.figures), is_stored: false };
        let page = entry.to_bytes().filter(|page| page.len() as u64 <= self.spec.object_max);
        let Some(page) = page else { return };
        let value = sealed(&name, known, &page, self.bus.secret.as_ref());
        let lanes = &self.lanes[server];
        if !lanes.refused.is_within(REFUSED_PAUSE) && lanes.circuit.is_closed() {
            let put = Command::Put(name, value, Duration::from_millis(life));
            lanes.pages.tell(put, Box::new(|answer| on_its_way.judge(answer)));
        }
    }
}

fn lease_key(name: &str) -> String {
    format!("{name}:lease")
}

fn head_of(known: Known) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(MAGIC);
    head[4..12].copy_from_slice(&known.0.to_le_bytes());
    head[12..20].copy_from_slice(&known.1.to_le_bytes());
    head[20..].copy_from_slice(&known.2.to_le_bytes());
    head
}

fn sum(name: &str, head: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(name.as_bytes());
    hasher.update(head);
    hasher.finalize().to_le_bytes()
}

/// A page as the value of a key.
fn sealed(name: &str, known: Known, page: &[u8], secret: Option<&Secret>) -> Vec<u8> {
    let head = head_of(known);
    let mut out = head.to_vec();
    match secret {
        Some(secret) => out.extend(secret.tag(&[name.as_bytes(), &head, page])),
        None => out.extend(sum(name, &head)),
    }
    out.extend_from_slice(page);
    out
}

/// What [`sealed`] made; `None` if it is not believed.
fn opened(name: &str, value: &Bytes, secret: Option<&Secret>) -> Option<(Known, Bytes)> {
    let (head, _) = value.split_first_chunk::<HEAD_BYTES>()?;
    if !head.starts_with(MAGIC) {
        return None;
    }
    let number = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    let known = (number(4)?, number(12)?, number(20)?);
    let tag_bytes = if secret.is_some() { 32 } else { 4 };
    let tag = value.get(HEAD_BYTES..HEAD_BYTES + tag_bytes)?;
    let page = value.slice(HEAD_BYTES + tag_bytes..);
    let is_good = match secret {
        Some(secret) => secret.verifies(&[name.as_bytes(), head, &page], tag),
        None => sum(name, head) == tag,
    };
    is_good.then_some((known, page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_back_and_a_changed_one_is_not() {
        let secret = Secret::new(b"secret");
        for secret in [None, Some(&secret)] {
            let value = sealed("k", (6, 7, 8), b"page", secret);
            let (known, page) = opened("k", &value.clone().into(), secret).unwrap();
            assert_eq!((known, &page[..]), ((6, 7, 8), &b"page"[..]));
            assert!(opened("other", &value.clone().into(), secret).is_none());
            // Without a secret the page has sums of its own.
            let end = if secret.is_some() { value.len() } else { HEAD_BYTES + 4 };
            for at in 0..end {
                let mut changed = value.clone();
                changed[at] ^= 1;
                assert!(opened("k", &changed.into(), secret).is_none(), "{at}");
                assert!(opened("k", &value[..at].to_vec().into(), secret).is_none(), "{at}");
            }
        }
    }
}
