//! Reads the stream, and does what the other nodes purged.
//!
//! Each question begins with the entry that was read last: Redis still has it, so nothing behind it was trimmed or
//! flushed. Else the place is lost: this node adds an entry, purges everything softly, and goes on behind that entry.

use super::bus::{Bus, NOTES_PAUSE, Side};
use super::link::{Link, TOO_LONG};
use super::members::{listed, places_key, sign};
use super::message::{self, Message};
use super::place::{Id, Order, Place};
use super::send::{Pause, bounded, connect, silent};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::timeout;
use yorozu_kernel::logging::error::Level;
use yorozu_wire::redis::{self, Reply};

/// How long Redis holds a question back while there is nothing new; chosen: so often a lost place is noticed where nothing
/// is purged.
const BLOCK: Duration = Duration::from_secs(1);
/// Time for an answer, of which Redis may take [`BLOCK`]; chosen.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Entries that are read together; chosen.
const COUNT: &[u8] = b"100";
/// Entries that are read again by a process that begins; chosen.
const RECALLED: &[u8] = b"500";
/// Between two notes that this node is there.
const SIGNS_PAUSE: Duration = Duration::from_secs(30);

/// Reads the stream, for ever.
pub(super) async fn read_forever(bus: Arc<Bus>) {
    let mut pause = Pause::new();
    let (mut has_failed, mut entered) = (false, None);
    loop {
        let (why, is_known) = match connect(&bus).await {
            Ok(link) => {
                let mut reader = Reader {
                    bus: &bus,
                    link,
                    entered: &mut entered,
                    is_at_end: false,
                    sign: None,
                    is_unsigned: false,
                    listed: None,
                };
                let why = loop {
                    match reader.round().await {
                        Ok(()) => (pause, has_failed) = (Pause::new(), false),
                        Err(why) => break why,
                    }
                };
                // As when Redis starts again: whether it is away is seen by the next attempt.
                (why, has_failed)
            }
            Err(why) => (why, true),
        };
        if is_known {
            bus.away(Side::Reader, &silent(&why));
        }
        has_failed = true;
        note(&bus).await;
        pause.wait().await;
    }
}

/// Notes the place, if that is still to be done.
async fn note(bus: &Arc<Bus>) {
    if bus.is_to_note() {
        // Should it be interrupted, the next process reads more again.
        let _ = blocking(bus, Bus::note_place).await;
    }
}

async fn blocking(bus: &Arc<Bus>, work: impl FnOnce(&Bus) + Send + 'static) -> Result<(), String> {
    let bus = Arc::clone(bus);
    let done = tokio::task::spawn_blocking(move || work(&bus)).await;
    done.map_err(|_| "a purge was interrupted".to_owned())
}

/// A message, or why it is not believed.
type Believed = Result<Message, &'static str>;

struct Reader<'a> {
    bus: &'a Arc<Bus>,
    link: Link,
    /// What says the name of the entry that takes a place, while Redis has not taken it.
    entered: &'a mut Option<oneshot::Receiver<Id>>,
    /// Whether all that there was has been read over this connection.
    is_at_end: bool,
    /// When this node last noted its place for the others.
    sign: Option<Instant>,
    /// Whether Redis refused that, which is in the log.
    is_unsigned: bool,
    /// When this node last asked who the others are.
    listed: Option<Instant>,
}

/// Entries of a stream as a reply has them.
type Entries = Vec<Reply>;

impl Reader<'_> {
    /// Asks once, and does what is found.
    async fn round(&mut self) -> Result<(), String> {
        let Some(place) = self.bus.place() else { return self.begin().await };
        if !self.bus.has_marks() {
            self.recall(place.id).await?;
        }
        let began = Instant::now();
        let entries = self.next(&place).await?;
        self.bus.here(Side::Reader);
        match entries {
            None => {
                let text = "its place in the stream is gone: everything stored is purged softly";
                self.bus.log(Level::Warn, text);
                self.bus.figures.lost.fetch_add(1, Ordering::Relaxed);
                self.begin().await
            }
            Some(entries) if entries.is_empty() => {
                if !self.is_at_end {
                    self.is_at_end = true;
                    self.bus.is_caught_up();
                } else {
                    self.look_for_lost(Some(began));
                }
                note(self.bus).await;
                self.tell_place(false).await
            }
            Some(entries) => {
                let waits = self.apply(place, entries).await?;
                self.look_for_lost(None);
                self.tell_place(waits).await?;
                if self.bus.is_note_due() {
                    note(self.bus).await;
                }
                Ok(())
            }
        }
    }

    /// The entries behind `place`, waiting for one at the end; `None` if that is not there any more, or cannot be passed by
    /// reading what is behind it.
    async fn next(&mut self, place: &Place) -> Result<Option<Entries>, String> {
        // Together they may be too long.
        for count in [COUNT, b"1"] {
            match self.ask(place, count).await {
                Err(why) if why == TOO_LONG => self.link = connect(self.bus).await?,
                found => return found,
            }
        }
        Ok(None)
    }

    async fn ask(&mut self, place: &Place, count: &[u8]) -> Result<Option<Entries>, String> {
        let (stream, id) = (self.bus.spec.stream.as_bytes(), place.id.to_string());
        let mut out = Vec::new();
        redis::command(&mut out, &[b"XRANGE", stream, id.as_bytes(), id.as_bytes()]);
        let mut words: Vec<&[u8]> = vec![b"XREAD", b"COUNT", count];
        // A place that is to be noted waits for more of its like, not for long.
        let block = if self.bus.is_to_note() { NOTES_PAUSE } else { BLOCK };
        let block = block.as_millis().to_string();
        if self.is_at_end {
            words.extend([&b"BLOCK"[..], block.as_bytes()]);
        }
        words.extend([&b"STREAMS"[..], stream, id.as_bytes()]);
        redis::command(&mut out, &words);
        let (last, found) = bounded(TIMEOUT, async {
            self.link.send(&out).await?;
            Ok((self.link.reply().await?, self.link.reply().await?))
        })
        .await?;
        let is_there = match last {
            Reply::List(entries) => !entries.is_empty(),
            other => return Err(refused(&other)),
        };
        let entries = match found {
            Reply::Nothing => Vec::new(),
            Reply::List(mut streams) => match streams.pop() {
                Some(Reply::List(mut pair)) => match pair.pop() {
                    Some(Reply::List(entries)) => entries,
                    _ => return Err(refused(&Reply::Nothing)),
                },
                _ => return Err(refused(&Reply::Nothing)),
            },
            other => return Err(refused(&other)),
        };
        Ok(is_there.then_some(entries))
    }

    /// Takes a place in the stream: what others purged until now may be unknown.
    async fn begin(&mut self) -> Result<(), String> {
        let entered = self.entered.get_or_insert_with(|| self.bus.enqueue(None, None, false).1);
        let named = timeout(TIMEOUT, entered).await.map_err(|_| "timed out".to_owned())?;
        *self.entered = None;
        let id = named.map_err(|_| "the entry was not sent".to_owned())?;
        // Of a stream that lost something only what comes from here on is known; to a new node it is whole.
        let earlier = self.bus.place();
        let is_new = earlier.is_none();
        let entries = self.before(id).await?;
        let epoch = earlier.as_ref().map(|place| place.epoch).unwrap_or_default();
        let mut place = Place::new(id);
        place.epoch = epoch;
        for (_, message) in &entries {
            if let Ok(message) = message {
                place.follow(message.run, message.number, None);
                place.enter(message.epoch());
            }
        }
        // Redis has lost everything: by the clock of one that takes its place, what comes may have lower names.
        if entries.len() <= 1 || earlier.is_some_and(|earlier| earlier.id >= id) {
            place.epoch = fastrand::u64(1..);
            self.bus.begin(place.epoch);
        }
        // What is there is done as it says, and not only softly.
        let run = self.bus.run;
        let others = entries.iter().filter_map(|(_, message)| message.as_ref().ok());
        let lines: Vec<_> =
            others.filter(|message| message.run != run).map(|it| it.lines.clone()).collect();
        let (floor, marks) = if is_new { recalled(entries, id) } else { (id, Vec::new()) };
        blocking(self.bus, move |bus| {
            bus.enter(place.epoch);
            bus.mark(Some(floor), marks);
            bus.purge(&lines.join("\n"));
            bus.purge_all();
            bus.reached(place);
            bus.note_place();
        })
        .await?;
        self.tell_place(true).await
    }

    /// Learns from the entries before `place` what was purged there.
    async fn recall(&mut self, place: Id) -> Result<(), String> {
        let (floor, marks) = recalled(self.before(place).await?, place);
        self.bus.mark(Some(floor), marks);
        Ok(())
    }

    /// The last entries up to `place`.
    async fn before(&mut self, place: Id) -> Result<Vec<(Id, Believed)>, String> {
        let (bus, id) = (self.bus, place.to_string());
        let stream = bus.spec.stream.as_bytes();
        let words = [&b"XREVRANGE"[..], stream, id.as_bytes(), b"-", b"COUNT", RECALLED];
        let reply = match bounded(TIMEOUT, self.link.ask(&words)).await {
            Err(why) if why == TOO_LONG => {
                self.link = connect(bus).await?;
                Reply::List(Vec::new())
            }
            reply => reply?,
        };
        let Some(entries) = reply.list() else { return Err(refused(&reply)) };
        let read = |fields| Message::read(fields, &bus.spec.stream, bus.secret.as_ref());
        let entries = entries.iter().rev().filter_map(message::entry);
        let entries: Vec<_> = entries.map(|(id, fields)| (id, read(fields))).collect();
        for (id, message) in &entries {
            if let Ok(message) = message {
                bus.heard(&message.node, id.seconds());
            }
        }
        Ok(entries)
    }

    /// Does what entries say; whether a node waits for this one.
    async fn apply(&self, mut place: Place, entries: Entries) -> Result<bool, String> {
        let (mut lines, mut waits) = (String::new(), false);
        let (mut gap, mut marks) = (None, Vec::new());
        for entry in &entries {
            let Some((id, fields)) = message::entry(entry) else { continue };
            place.id = id;
            let bus = self.bus;
            let message = Message::read(fields, &bus.spec.stream, bus.secret.as_ref());
            let message = match message {
                Ok(message) => message,
                Err(why) => {
                    bus.refuse(id, why);
                    continue;
                }
            };
            // Its own as well: the next process of this node goes on behind them.
            let order = place.follow(message.run, message.number, message.taken());
            if order != Order::Again {
                place.enter(message.epoch());
            }
            // Its own as well: what Redis says of others is believed where it has what this node said.
            waits |= message.is_waited_for();
            if message.run == bus.run {
                bus.seen(message.number);
                continue;
            }
            bus.figures.read.fetch_add(1, Ordering::Relaxed);
            bus.heard(&message.node, id.seconds());
            match order {
                Order::Again => continue,
                Order::Next => {}
                Order::Gap => gap = Some((id, message.node)),
            }
            let _ = writeln!(lines, "{}", message.lines);
            marks.push((id, message.lines));
        }
        if let Some((id, node)) = &gap {
            let text = format!(
                "entries of node \"{node}\" before {id} are missing: everything stored is purged softly"
            );
            self.bus.log(Level::Warn, &text);
            self.bus.figures.lost.fetch_add(1, Ordering::Relaxed);
        }
        let (is_gap, has_lines) = (gap.is_some(), !lines.is_empty());
        let work = move |bus: &Bus| {
            // First of all: it applies to what comes from other nodes from here on.
            bus.enter(place.epoch);
            bus.mark(gap.map(|(id, _)| id), marks);
            bus.purge(&lines);
            if is_gap {
                bus.purge_all();
            }
            bus.reached(place);
        };
        // What this node purged itself is done: another thread would cost more than what is left.
        match has_lines || is_gap {
            true => blocking(self.bus, work).await?,
            false => work(self.bus),
        }
        Ok(waits)
    }

    fn look_for_lost(&self, since: Option<Instant>) {
        let count = self.bus.send_again(since);
        if count > 0 {
            let text = format!("{count} purges that Redis had are not in the stream: sent again");
            self.bus.log(Level::Warn, &text);
        }
    }

    /// Notes for the others how far this node is: at once if one of them waits, or now and then.
    async fn tell_place(&mut self, at_once: bool) -> Result<(), String> {
        let is_due = self.listed.is_none_or(|listed| listed.elapsed() >= SIGNS_PAUSE);
        if is_due && self.bus.spec.wait.is_some() {
            self.listed = Some(Instant::now());
            bounded(TIMEOUT, listed(self.bus, &mut self.link)).await?;
        }
        if !at_once && self.sign.is_some_and(|sign| sign.elapsed() < SIGNS_PAUSE) {
            return Ok(());
        }
        let Some(Place { id, .. }) = self.bus.place() else { return Ok(()) };
        let (key, value) = (places_key(&self.bus.spec.stream), sign(id));
        let words = [&b"HSET"[..], key.as_bytes(), self.bus.spec.node.as_bytes(), value.as_bytes()];
        let reply = bounded(TIMEOUT, self.link.ask(&words)).await?;
        self.sign = Some(Instant::now());
        // Purges are read all the same: only those that wait for this node miss it.
        let is_refused = matches!(reply, Reply::Error(_));
        if is_refused && !self.is_unsigned {
            let text = format!("its place cannot be noted for other nodes: {}", refused(&reply));
            self.bus.log(Level::Warn, &text);
        }
        self.is_unsigned = is_refused;
        Ok(())
    }
}

/// What the entries up to `place` purged, and from where on that is all of it.
fn recalled(entries: Vec<(Id, Believed)>, place: Id) -> (Id, Vec<(Id, String)>) {
    let mut floor = entries.first().map_or(place, |(id, _)| *id);
    let (mut known, mut marks) = (Place::new(floor), Vec::new());
    for (id, message) in entries {
        let Ok(message) = message else { continue };
        if known.follow(message.run, message.number, message.taken()) == Order::Gap {
            floor = id;
        }
        marks.push((id, message.lines));
    }
    (floor, marks)
}

fn refused(reply: &Reply) -> String {
    match reply {
        Reply::Error(line) => line.clone(),
        _ => "unexpected answer".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::About;
    use super::*;

    #[test]
    fn what_is_recalled_begins_behind_what_is_missing() {
        let entry = |id: u64, run: u64, number: u64, taken: Option<u64>| {
            let about =
                About { taken: taken.map(|id| (number - 1, Id(id, 0))), ..About::default() };
            (Id(id, 0), Ok(Message::new("n", run, number, "", about)))
        };
        let floor = |entries| recalled(entries, Id(9, 0)).0;
        assert_eq!(floor(Vec::new()), Id(9, 0));
        let whole = vec![
            entry(3, 7, 5, Some(1)),
            (Id(4, 0), Err("forged")),
            entry(5, 7, 6, Some(3)),
            entry(6, 8, 4, Some(2)),
            entry(7, 9, 1, None),
        ];
        assert_eq!(floor(whole), Id(3, 0), "earlier ones are before it");
        assert_eq!(floor(vec![entry(3, 7, 5, Some(1)), entry(5, 7, 7, Some(4))]), Id(5, 0));
        assert_eq!(floor(vec![entry(3, 7, 5, Some(1)), entry(5, 8, 2, Some(4))]), Id(5, 0));
    }
}
