//! A body on its way, shared by all who read it while it arrives: its maker's client and those who wait for the page.
//!
//! | mode | what is kept |
//! | --- | --- |
//! | stored | every piece: in memory, and from some length on in the maker's file |
//! | passed on ([`Filling::pass_on`]) | what some reader has not taken yet; the maker waits for its readers |
//!
//! A body that arrives no more is made again while a request watches it ([`Watch`]), and its readers go on in the new one where
//! that begins with the bytes that they have.
//!
//! # Invariants
//! - What is kept is kept once for all readers.
//! - It ends when its [`Filling`] does: dropped before its end, as broken.
//! - What a reader gets is one response, whichever flow it comes from.

use crate::entry::{Entry, EntryBody, EntryHead};
use crate::lent::{Account, Share};
use crate::sync::{Mutex, MutexGuard, Notify};
use bytes::Bytes;
use slab::Slab;
use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The maker ended before the body did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Broken;

/// Bytes of a body.
#[derive(Clone, Debug)]
pub enum Piece {
    /// In memory.
    Memory(Bytes),
    /// In a temporary file of the maker's.
    File(Arc<File>, Range<u64>),
}

impl Piece {
    fn bytes(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(_, range) => range.end - range.start,
        }
    }

    /// What of it lies behind its first `skip` bytes, at most `FILE_PIECE_BYTES` of a file.
    fn behind(&self, skip: u64) -> Self {
        match self {
            Self::Memory(bytes) => {
                Self::Memory(bytes.slice(usize::try_from(skip).unwrap_or(usize::MAX)..))
            }
            Self::File(file, range) => {
                let start = range.start + skip;
                let end = range.end.min(start + FILE_PIECE_BYTES);
                Self::File(Arc::clone(file), start..end)
            }
        }
    }
}

/// Bytes of a file that are handed out at once; chosen: a reader takes no more than a buffer into memory.
const FILE_PIECE_BYTES: u64 = 64 * 1024;

#[derive(Debug)]
struct Arrived {
    /// Each with the place of its first byte in the body.
    pieces: VecDeque<(u64, Piece)>,
    bytes: u64,
    /// Bytes of `pieces` that are in memory.
    in_memory: Share,
    /// How far each reader has come.
    readers: Slab<u64>,
    is_passed_on: bool,
    ended: Option<Result<(), Broken>>,
    is_watched: bool,
    /// It was waited for in vain, and did not go on since.
    is_stalled: bool,
    /// The same response made again.
    again: Option<Arc<Flow>>,
}

impl Arrived {
    fn new(in_memory: Share) -> Self {
        Self {
            pieces: VecDeque::new(),
            bytes: 0,
            in_memory,
            readers: Slab::new(),
            is_passed_on: false,
            ended: None,
            is_watched: false,
            is_stalled: false,
            again: None,
        }
    }

    fn add(&mut self, piece: Piece) {
        let bytes = piece.bytes();
        if bytes == 0 {
            return;
        }
        if matches!(piece, Piece::Memory(_)) {
            self.in_memory.set(self.in_memory.bytes() + bytes);
        }
        self.pieces.push_back((self.bytes, piece));
        self.bytes += bytes;
        self.is_stalled = false;
    }

    fn remove_first(&mut self) {
        if let Some((_, Piece::Memory(bytes))) = self.pieces.pop_front() {
            self.in_memory.set(self.in_memory.bytes() - bytes.len() as u64);
        }
    }

    /// Lets go what ends at `upto` or before.
    fn let_go(&mut self, upto: u64) {
        while self.pieces.front().is_some_and(|(start, piece)| start + piece.bytes() <= upto) {
            self.remove_first();
        }
    }

    /// Where the slowest of those who read is; at the end without any.
    fn slowest(&self) -> u64 {
        self.readers.iter().map(|(_, at)| *at).min().unwrap_or(self.bytes)
    }

    fn piece_at(&self, at: u64) -> Option<Piece> {
        if at >= self.bytes {
            return None;
        }
        let index = self.pieces.partition_point(|(start, _)| *start <= at).checked_sub(1)?;
        let (start, piece) = &self.pieces[index];
        Some(piece.behind(at - start))
    }

    fn is_broken(&self) -> bool {
        self.ended == Some(Err(Broken))
    }

    /// Whether these bytes stand there, as far as that is known without reading a file.
    fn has(&self, mut at: u64, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Some(Piece::Memory(piece)) = self.piece_at(at) else { return false };
            let count = piece.len().min(bytes.len());
            if piece[..count] != bytes[..count] {
                return false;
            }
            (at, bytes) = (at + count as u64, &bytes[count..]);
        }
        true
    }
}

/// A body that arrives, from its first byte on.
#[derive(Debug)]
pub struct Flow {
    /// What is stored about the response, but for length and checksum.
    pub head: EntryHead,
    /// The length the origin announced.
    pub announced: Option<u64>,
    arrived: Mutex<Arrived>,
    /// More came, or the end.
    changed: Notify,
    /// A reader took something that is passed on, or left.
    taken: Notify,
}

impl Flow {
    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        // Each use leaves the state whole: a panic elsewhere cannot leave it half changed.
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads it from its first byte on; `None` if a part of it is gone.
    pub fn follow(self: &Arc<Self>) -> Option<Follower> {
        let mut arrived = self.arrived();
        if arrived.is_passed_on {
            return None;
        }
        let place = arrived.readers.insert(0);
        drop(arrived);
        Some(Follower { flow: Arc::clone(self), place, at: 0, is_last: false, before: None })
    }

    /// Watches it, for all who read along; `None` if it is watched already, or there is no need.
    pub fn watch(self: &Arc<Self>) -> Option<Watch> {
        let mut arrived = self.arrived();
        let is_needless = arrived.ended.is_some() || arrived.is_passed_on;
        if is_needless || std::mem::replace(&mut arrived.is_watched, true) {
            return None;
        }
        Some(Watch(Arc::clone(self)))
    }

    /// A flow of a stored response.
    fn of(entry: &Entry) -> Arc<Self> {
        let head = &entry.head;
        let filling = Filling::new(head.clone(), Some(head.body_bytes), &Account::default());
        match &entry.body {
            EntryBody::Memory(held) => filling.push(&held.bytes()),
            EntryBody::File(file, at) => filling.push_file(file, *at..at + head.body_bytes),
        }
        let flow = Arc::clone(filling.flow());
        filling.end();
        flow
    }

    /// Whether who has the head of the one may be given the body of the other.
    fn is_alike(&self, other: &Self) -> bool {
        const CODING: &[u8] = b"content-encoding";
        let said = |flow: &Self| {
            let head = &flow.head;
            let fields = head.fields.iter();
            let coding = fields.filter(|(name, _)| name.eq_ignore_ascii_case(CODING));
            let coding = coding.map(|(_, value)| value.clone()).collect::<Vec<_>>();
            let validators = (head.etag.clone(), head.last_modified);
            // Who reads along was told apart by these.
            let variant = (head.vary.clone(), head.variant, head.part.clone());
            (head.status, head.content_type.clone(), validators, variant, coding)
        };
        let is_as_long = self.announced.is_none() || self.announced == other.announced;
        is_as_long && said(self) == said(other)
    }
}

/// The watch over a flow. While it is kept, who reads along waits for what takes the place of a body that arrives no more.
#[derive(Debug)]
pub struct Watch(Arc<Flow>);

impl Watch {
    /// Returns when the body is whole, or arrives no more: its maker has ended early, or nothing came for `patience`. Whether
    /// it is to be made again.
    pub async fn is_due(&self, patience: Duration) -> bool {
        let Self(flow) = self;
        loop {
            let mut changed = std::pin::pin!(flow.changed.notified());
            changed.as_mut().enable();
            let bytes = {
                let arrived = flow.arrived();
                if let Some(ended) = arrived.ended {
                    return ended.is_err();
                }
                arrived.bytes
            };
            let is_late = tokio::time::timeout(patience, changed).await.is_err();
            let mut arrived = flow.arrived();
            if is_late && arrived.bytes == bytes && arrived.ended.is_none() {
                arrived.is_stalled = true;
                return true;
            }
        }
    }

    /// The same response has begun again.
    pub fn made_again(self, again: &Arc<Flow>) {
        // Of the same flow, if its maker was not done yet.
        if !Arc::ptr_eq(&self.0, again) {
            self.0.arrived().again = Some(Arc::clone(again));
        }
    }

    /// The same response is stored.
    pub fn stored_again(self, entry: &Entry) {
        self.made_again(&Flow::of(entry));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.arrived().is_watched = false;
        self.0.changed.notify_waiters();
    }
}

/// The maker's side of a flow.
#[derive(Debug)]
pub struct Filling {
    flow: Arc<Flow>,
}

impl Filling {
    /// Begins a flow; `announced`: its length, if the origin said it. What of it is in memory is on the account.
    pub fn new(head: EntryHead, announced: Option<u64>, account: &Account) -> Self {
        let arrived = Mutex::new(Arrived::new(account.share(0)));
        let (changed, taken) = (Notify::new(), Notify::new());
        Self { flow: Arc::new(Flow { head, announced, arrived, changed, taken }) }
    }

    /// What it fills.
    pub fn flow(&self) -> &Arc<Flow> {
        &self.flow
    }

    /// The next bytes.
    pub fn push(&self, bytes: &Bytes) {
        self.add(Piece::Memory(bytes.clone()));
    }

    /// The next bytes, which lie in a file.
    pub fn push_file(&self, file: &Arc<File>, range: Range<u64>) {
        self.add(Piece::File(Arc::clone(file), range));
    }

    fn add(&self, piece: Piece) {
        self.flow.arrived().add(piece);
        self.flow.changed.notify_waiters();
    }

    /// What is in memory, in its order, as long as nothing was let go: what a file does not hold yet.
    pub fn in_memory(&self) -> Vec<Bytes> {
        let arrived = self.flow.arrived();
        let memory = arrived.pieces.iter().filter_map(|(_, piece)| match piece {
            Piece::Memory(bytes) => Some(bytes.clone()),
            Piece::File(..) => None,
        });
        memory.collect()
    }

    /// The first `bytes` bytes of the body lie in `file` from its start on, and are let go from memory.
    pub fn move_to(&self, file: &Arc<File>, bytes: u64) {
        let mut arrived = self.flow.arrived();
        arrived.let_go(bytes);
        arrived.pieces.push_front((0, Piece::File(Arc::clone(file), 0..bytes)));
    }

    /// All of the body is `whole`, which takes the place of its pieces.
    pub fn move_into(&self, whole: &Bytes) {
        let mut arrived = self.flow.arrived();
        debug_assert_eq!(arrived.bytes, whole.len() as u64, "all of it");
        arrived.let_go(u64::MAX);
        arrived.bytes = 0;
        arrived.add(Piece::Memory(whole.clone()));
    }

    /// It is not stored any more: its readers go on, no others come, and what all have taken is let go.
    pub fn pass_on(&self) {
        let mut arrived = self.flow.arrived();
        arrived.is_passed_on = true;
        let slowest = arrived.slowest();
        arrived.let_go(slowest);
    }

    /// Bytes in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.flow.arrived().in_memory.bytes()
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.flow.arrived().bytes
    }

    /// Whether all readers have taken all that is passed on.
    pub fn is_taken(&self) -> bool {
        self.flow.arrived().pieces.is_empty()
    }

    /// Whether it has no reader.
    pub fn is_abandoned(&self) -> bool {
        self.flow.arrived().readers.is_empty()
    }

    /// Returns when something that is passed on was taken, or a reader has left.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn taken(&self) {
        self.flow.taken.notified().await;
    }

    /// The body is whole.
    pub fn end(self) {
        self.ended(Ok(()));
    }

    fn ended(&self, result: Result<(), Broken>) {
        self.flow.arrived().ended.get_or_insert(result);
        self.flow.changed.notify_waiters();
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.ended(Err(Broken));
    }
}

/// A reader of a flow.
#[derive(Debug)]
pub struct Follower {
    flow: Arc<Flow>,
    /// Among those who read.
    place: usize,
    at: u64,
    /// It goes on in no other flow.
    is_last: bool,
    /// What it has read of the flow before, which this one has to begin with.
    before: Option<Box<Follower>>,
}

/// What a reader finds.
enum Step {
    Take(Piece),
    Wait,
    GoOn(Arc<Flow>),
    End(Result<(), Broken>),
}

impl Follower {
    /// Whether [`Follower::next`] would have to wait.
    pub fn is_waiting(&self) -> bool {
        let arrived = self.flow.arrived();
        let is_over = arrived.ended.is_some() && !(arrived.is_broken() && arrived.is_watched);
        self.before.is_some() || arrived.bytes == self.at && !is_over
    }

    /// The next bytes, if they are in memory already.
    pub fn at_hand(&mut self) -> Option<Bytes> {
        let flow = Arc::clone(&self.flow);
        let mut arrived = flow.arrived();
        match arrived.piece_at(self.at) {
            Some(Piece::Memory(bytes)) if self.before.is_none() => {
                self.at += bytes.len() as u64;
                self.took(&mut arrived);
                Some(bytes)
            }
            _ => None,
        }
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The maker ended early.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Piece>, Broken> {
        loop {
            let flow = Arc::clone(&self.flow);
            let mut changed = std::pin::pin!(flow.changed.notified());
            changed.as_mut().enable();
            match self.step(&flow) {
                Step::Take(piece) => match self.unread(piece) {
                    Some(piece) => return Ok(Some(piece)),
                    None => continue,
                },
                Step::Wait => changed.await,
                Step::GoOn(again) => self.go_on(&again),
                Step::End(_) if self.before.is_some() => self.go_back(),
                Step::End(result) => return result.map(|()| None),
            }
        }
    }

    fn step(&mut self, flow: &Flow) -> Step {
        let mut arrived = flow.arrived();
        if let Some(piece) = arrived.piece_at(self.at) {
            self.at += piece.bytes();
            self.took(&mut arrived);
            return Step::Take(piece);
        }
        let is_stuck = arrived.is_broken() || arrived.is_stalled;
        let may_go_on = is_stuck && !self.is_last && self.before.is_none();
        match (arrived.ended, &arrived.again) {
            (Some(Ok(())), _) => Step::End(Ok(())),
            (_, Some(again)) if may_go_on => Step::GoOn(Arc::clone(again)),
            (Some(Err(Broken)), _) if !(may_go_on && arrived.is_watched) => Step::End(Err(Broken)),
            _ => Step::Wait,
        }
    }

    /// Begins to read a flow in place of this one, at what was read already.
    fn go_on(&mut self, again: &Arc<Flow>) {
        let is_alike = self.flow.is_alike(again);
        match again.follow().filter(|_| is_alike) {
            Some(follower) => {
                let before = std::mem::replace(self, follower);
                self.before = (before.at > 0).then(|| Box::new(before));
            }
            None => self.is_last = true,
        }
    }

    /// Returns to the flow before: what should have taken its place is something else.
    fn go_back(&mut self) {
        if let Some(before) = self.before.take() {
            *self = *before;
            self.is_last = true;
        }
    }

    /// What of a piece was not read of the flow before; `None`: nothing.
    fn unread(&mut self, piece: Piece) -> Option<Piece> {
        let Some(before) = &self.before else { return Some(piece) };
        let bytes = piece.bytes();
        let start = self.at - bytes;
        let shared = bytes.min(before.at - start);
        let is_same = match &piece {
            Piece::Memory(memory) => {
                let shared = usize::try_from(shared).unwrap_or(usize::MAX);
                before.flow.arrived().has(start, &memory[..shared])
            }
            // To compare files would take the time of all others.
            Piece::File(..) => false,
        };
        if !is_same {
            self.go_back();
            return None;
        }
        if self.at >= before.at {
            self.before = None;
        }
        (shared < bytes).then(|| piece.behind(shared))
    }

    fn took(&self, arrived: &mut Arrived) {
        arrived.readers[self.place] = self.at;
        if arrived.is_passed_on {
            let slowest = arrived.slowest();
            arrived.let_go(slowest);
            self.flow.taken.notify_one();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut arrived = self.flow.arrived();
        arrived.readers.remove(self.place);
        if arrived.is_passed_on {
            let slowest = arrived.slowest();
            arrived.let_go(slowest);
            self.flow.taken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filling() -> Filling {
        Filling::new(EntryHead::default(), None, &Account::default())
    }

    async fn text(follower: &mut Follower) -> Option<String> {
        match follower.next().await.unwrap()? {
            Piece::Memory(bytes) => Some(String::from_utf8(bytes.to_vec()).unwrap()),
            Piece::File(_, range) => Some(format!("{range:?}")),
        }
    }

    fn file() -> Arc<File> {
        Arc::new(File::open("/dev/null").unwrap())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_a_file_holds_is_let_go_and_read_from_there() {
        let filling = filling();
        let (mut early, mut late) =
            (filling.flow().follow().unwrap(), filling.flow().follow().unwrap());
        filling.push(&Bytes::from_static(b"abc"));
        filling.push(&Bytes::from_static(b"def"));
        assert_eq!(text(&mut early).await.as_deref(), Some("abc"));
        filling.move_to(&file(), 6);
        assert_eq!(filling.memory_bytes(), 0);
        filling.push(&Bytes::from_static(b"gh"));
        assert_eq!(text(&mut early).await.as_deref(), Some("3..6"));
        assert_eq!(text(&mut early).await.as_deref(), Some("gh"));
        filling.move_to(&file(), 8);
        assert_eq!((filling.memory_bytes(), filling.in_memory().len()), (0, 0));
        assert_eq!(text(&mut late).await.as_deref(), Some("0..8"));
        filling.end();
        assert_eq!((text(&mut early).await, text(&mut late).await), (None, None));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn large_files_are_handed_out_piece_by_piece() {
        let filling = filling();
        let mut reader = filling.flow().follow().unwrap();
        filling.push_file(&file(), 10..10 + FILE_PIECE_BYTES + 1);
        assert_eq!(text(&mut reader).await, Some(format!("10..{}", 10 + FILE_PIECE_BYTES)));
        let rest = (10 + FILE_PIECE_BYTES)..(11 + FILE_PIECE_BYTES);
        assert_eq!(text(&mut reader).await, Some(format!("{rest:?}")));
        assert!(reader.is_waiting());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_passed_on_is_kept_for_the_slowest() {
        let filling = filling();
        let mut fast = filling.flow().follow().unwrap();
        let slow = filling.flow().follow().unwrap();
        filling.push(&Bytes::from_static(b"abc"));
        assert_eq!(text(&mut fast).await.as_deref(), Some("abc"));
        filling.pass_on();
        assert!(filling.flow().follow().is_none(), "a later reader may find nothing");
        filling.push(&Bytes::from_static(b"de"));
        assert_eq!(text(&mut fast).await.as_deref(), Some("de"));
        assert_eq!((filling.memory_bytes(), filling.is_taken()), (5, false));
        drop(slow);
        filling.taken().await;
        assert_eq!((filling.memory_bytes(), filling.is_taken()), (0, true));
        filling.push(&Bytes::from_static(b"f"));
        drop(fast);
        assert!(filling.is_abandoned() && filling.is_taken());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_body_that_is_joined_is_held_once() {
        let filling = filling();
        let mut reader = filling.flow().follow().unwrap();
        filling.push(&Bytes::from_static(b"ab"));
        filling.push(&Bytes::from_static(b"cd"));
        assert_eq!(text(&mut reader).await.as_deref(), Some("ab"));
        filling.move_into(&Bytes::from_static(b"abcd"));
        assert_eq!(text(&mut reader).await.as_deref(), Some("cd"));
        drop(filling);
        assert_eq!(reader.next().await.unwrap_err(), Broken);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_reads_along_goes_on_where_a_body_begins_as_the_lost_one_did() {
        let same = Bytes::from_static(b"abcdef");
        for (again, in_file, rest) in [
            (&b"abcdef"[..], false, Ok("def")),
            (b"abXdef", false, Err(Broken)),
            (b"ab", false, Err(Broken)),
            (b"", true, Err(Broken)),
        ] {
            let lost = filling();
            let (mut early, mut late) =
                (lost.flow().follow().unwrap(), lost.flow().follow().unwrap());
            lost.push(&same.slice(..1));
            lost.push(&same.slice(1..3));
            assert_eq!(text(&mut early).await.as_deref(), Some("a"));
            assert_eq!(text(&mut early).await.as_deref(), Some("bc"));
            let watch = lost.flow().watch().unwrap();
            assert!(lost.flow().watch().is_none());
            let flow = Arc::clone(lost.flow());
            drop(lost);
            assert!(watch.is_due(Duration::from_secs(60)).await);
            assert!(early.is_waiting() && !late.is_waiting());
            let other = filling();
            if in_file {
                other.push_file(&file(), 0..6);
            } else {
                again.chunks(2).for_each(|piece| other.push(&Bytes::copy_from_slice(piece)));
            }
            watch.made_again(other.flow());
            other.end();
            assert!(flow.watch().is_none(), "it is over");
            for (reader, mut read) in [(&mut early, b"abc".to_vec()), (&mut late, Vec::new())] {
                let end = loop {
                    match reader.next().await {
                        Ok(Some(Piece::Memory(bytes))) => read.extend_from_slice(&bytes),
                        Ok(Some(Piece::File(..))) => panic!("it was not compared"),
                        Ok(None) => break Ok(()),
                        Err(broken) => break Err(broken),
                    }
                };
                let expected = rest.map_or("abc".to_owned(), |rest| format!("abc{rest}"));
                assert_eq!((read, end), (expected.into_bytes(), rest.map(|_| ())));
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_body_is_lost_without_a_watch_and_stalls_with_one() {
        let filling = filling();
        let mut reader = filling.flow().follow().unwrap();
        let watch = filling.flow().watch().unwrap();
        assert!(watch.is_due(Duration::ZERO).await, "nothing came");
        filling.push(&Bytes::from_static(b"a"));
        assert_eq!(text(&mut reader).await.as_deref(), Some("a"));
        drop(filling);
        assert!(reader.is_waiting());
        let (next, ()) = tokio::join!(reader.next(), async { drop(watch) });
        assert_eq!(next.unwrap_err(), Broken);
    }
}
