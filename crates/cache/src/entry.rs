//! One stored response: its head, its body, and how both lie in a file.
//!
//! ```text
//! magic 8 | head bytes u32 | head crc u32 | head ... | body ... | forms ...
//! head: what all have | with the second magic: reason phrase, length of a HEAD's content
//! form: mark 4 | place u8 | effort u8 | bytes u64 | crc u32 | bytes ...
//! ```
//! Numbers are little-endian. The head holds the body's length and checksum, so that a file is
//! whole or refused.

use bytes::{Bytes, BytesMut};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::beyond::Known;
use crate::key::VariantId;
use crate::lent::Held;
use crate::purge_list::Moment;

/// First bytes of an entry's file; the digit is the format's version.
const MAGIC: &[u8; 8] = b"yorozu-5";
/// The same where something follows in the head that few have: an earlier version of this program passes it over, and reads all others.
/// Two bits from the first, so that no flipped one makes one of the other.
const MAGIC_MORE: &[u8; 8] = b"yorozu-9";
/// Bytes before the head.
pub(crate) const PREFIX_BYTES: usize = 16;
/// First bytes of a form behind the body.
const FORM_MARK: &[u8; 4] = b"form";
/// Most bytes of an encoded head; chosen well above any buffer an upstream's head must fit in.
pub const HEAD_BYTES_MAX: usize = 1 << 20;

/// Which part of a representation a stored 206 holds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Part {
    /// Where its first byte stands in the whole.
    pub first: u64,
    /// Length of the whole, in bytes.
    pub total: u64,
    /// Whether it reaches to the end of the whole, as the origin said.
    pub is_to_end: bool,
    /// The `Range` it answered.
    pub asked: Bytes,
}

/// What a response says of the length of its content.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Length {
    /// That of the body, which is stored.
    #[default]
    OfBody,
    /// It answers a HEAD, which has no body: what the origin said.
    OfHead(Option<u64>),
}

/// What is stored about a response beside its body. Times are milliseconds since 1970.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EntryHead {
    /// The key's bytes, compared on load: two keys can share a digest.
    pub key: Bytes,
    /// Status of the response.
    pub status: u16,
    /// Its reason phrase; empty for the usual one.
    pub reason: Bytes,
    /// `Content-Type` as the origin sent it; empty for none.
    pub content_type: Bytes,
    /// Other field lines of the response as they shall be sent, names as the origin wrote them.
    pub fields: Vec<(Bytes, Bytes)>,
    /// When its making began, among purges and other makings ([`crate::Making::moment`]).
    pub began: Moment,
    /// When the response arrived.
    pub stored_at: i64,
    /// When it was made: before it arrived, if the upstream's `Age` says so.
    pub born_at: i64,
    /// How long the origin took to make it.
    pub made_in: u32,
    /// Fresh while `now` is below this.
    pub fresh_until: i64,
    /// Its origin forbids its use once it is not fresh.
    pub must_revalidate: bool,
    /// The operator or the application said how long it is fresh, not a field of a standard.
    pub is_by_operator: bool,
    /// Its origin says that it is the same for visitors who otherwise bypass the cache.
    pub is_shared: bool,
    /// May answer while it is refreshed until here (stale-while-revalidate).
    pub stale_updating_until: i64,
    /// May answer when the origin fails until here (stale-if-error).
    pub stale_error_until: i64,
    /// `Last-Modified`, if the origin sent a valid one.
    pub last_modified: Option<i64>,
    /// `ETag` as the origin sent it; empty for none.
    pub etag: Bytes,
    /// `Vary` as the origin sent it; empty for none.
    pub vary: Bytes,
    /// Which variant this is; zeros without `vary`.
    pub variant: VariantId,
    /// The variants of one key that belong together: drawn for the first one and passed on to the others.
    /// Those of an older group are not found any more.
    pub variant_group: u64,
    /// For a stored 206.
    pub part: Option<Part>,
    /// What it can be purged by (`Surrogate-Key` and its like).
    pub tags: Vec<Bytes>,
    /// A soft purge applied to it: it answers once more while it is refreshed. Never in a file.
    pub is_purged: bool,
    /// What is said of the content's length.
    pub length: Length,
    /// Length of the body.
    pub body_bytes: u64,
    /// CRC-32 of the body.
    pub body_crc: u32,
}

/// How a file begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Prefix {
    /// Length and checksum of the head that follows.
    Head(usize, u32),
    /// In another version of the format.
    Other,
    /// It is not an entry's file.
    Foreign,
}

/// Where the body is.
#[derive(Clone, Debug)]
pub enum EntryBody {
    /// In memory, shared.
    Memory(Held),
    /// In an open file, starting at this offset; for bodies too large for memory.
    File(Arc<File>, u64),
}

/// Other codings an entry can be kept in.
pub const FORMS: usize = 3;

/// The body in another coding: made once, kept with the entry in both tiers.
#[derive(Debug, Default)]
pub struct Form {
    made: OnceLock<(u8, Held)>,
    is_claimed: AtomicBool,
}

impl Form {
    /// Effort and bytes, once they are there.
    pub fn made(&self) -> Option<&(u8, Held)> {
        self.made.get()
    }

    /// Whether the caller is to make it: `true` once.
    pub fn claim(&self) -> bool {
        !self.is_claimed.swap(true, Ordering::Relaxed)
    }

    /// The caller does not make it after all: the next one may.
    pub fn give_back(&self) {
        self.is_claimed.store(false, Ordering::Relaxed);
    }

    /// Keeps what was made; the first one stays.
    pub fn keep(&self, effort: u8, bytes: Held) {
        self.is_claimed.store(true, Ordering::Relaxed);
        let _ = self.made.set((effort, bytes));
    }
}

/// A stored response; immutable but for the time of its last use and derived encodings.
#[derive(Debug)]
pub struct Entry {
    /// What is known about it.
    pub head: EntryHead,
    /// Its bytes.
    pub body: EntryBody,
    /// The body in other codings; what each place stands for is the caller's.
    pub forms: [Form; FORMS],
    last_used: AtomicI64,
    /// Of the purges of other machines, before it began to be made; for the tier beyond this machine's.
    pub(crate) known: OnceLock<Known>,
}

impl EntryHead {
    /// The length of its content, if it says one.
    pub fn announced(&self) -> Option<u64> {
        match self.length {
            Length::OfBody => Some(self.body_bytes),
            Length::OfHead(length) => length,
        }
    }

    /// Seconds since the response was made, at `now` in milliseconds (RFC 9111, section 4.2.3).
    pub fn age(&self, now: i64) -> u64 {
        u64::try_from((now - self.born_at) / 1000).unwrap_or(0)
    }

    /// Whether it may answer a request that the origin was not asked for: never with `no-cache`, which is stored to be asked
    /// for at each use (RFC 9111, section 5.2.2.4).
    pub fn may_answer_others(&self) -> bool {
        self.fresh_until > self.stored_at
    }

    /// When it can answer no more, whatever happens: fresh, while it is refreshed, or in place of an origin that fails.
    pub fn ends(&self) -> i64 {
        self.fresh_until.max(self.stale_updating_until).max(self.stale_error_until)
    }

    /// Whether it is fresh at `now`, in milliseconds. An entry from the future is not: a clock was set back.
    pub fn is_fresh(&self, now: i64) -> bool {
        now < self.fresh_until && !self.is_purged && now >= self.stored_at - CLOCK_SLACK
    }
}

/// How far an entry's time may lie ahead of the clock, in milliseconds; chosen above what a turn of an
/// event loop takes and clock adjustments step.
const CLOCK_SLACK: i64 = 2000;

impl Entry {
    /// A new entry, used now. It owns every byte of its head: a slice of what was read from an upstream would keep the
    /// whole buffer.
    pub fn new(head: EntryHead, body: EntryBody, now: i64) -> Self {
        let last_used = AtomicI64::new(now);
        let known = OnceLock::new();
        Self { head: head.owned(), body, forms: Default::default(), last_used, known }
    }

    /// The same page, its other codings too, with another head and place.
    pub(crate) fn with(&self, head: EntryHead, body: EntryBody, now: i64) -> Self {
        let other = Self::new(head, body, now);
        for (form, old) in other.forms.iter().zip(&self.forms) {
            if let Some((effort, bytes)) = old.made() {
                form.keep(*effort, bytes.clone());
            }
        }
        other
    }

    /// Notes a use; `inactive` counts from here. Whether it is the first in this second.
    pub fn touch(&self, now: i64) -> bool {
        // A load first: a hit must not take the cache line exclusively each time.
        let is_first = self.last_used.load(Ordering::Relaxed) != now;
        if is_first {
            self.last_used.store(now, Ordering::Relaxed);
        }
        is_first
    }

    /// When it was used last.
    pub fn last_used(&self) -> i64 {
        self.last_used.load(Ordering::Relaxed)
    }

    /// Bytes this entry takes in the memory tier.
    pub fn memory_bytes(&self) -> u64 {
        // Measured as resident memory of some thousand small pages: struct, slots in map and catalog, allocations.
        const OVERHEAD: u64 = 1024;
        let fields: usize = self.head.fields.iter().map(|(n, v)| n.len() + v.len() + 64).sum();
        // In the catalog, too: the tag's place there and the key's place with it.
        let tags: usize = self.head.tags.iter().map(|tag| tag.len() + 128).sum();
        OVERHEAD + (fields + tags + self.head.key.len()) as u64 + self.held_bytes()
    }

    /// Those of its body and forms.
    pub(crate) fn held_bytes(&self) -> u64 {
        let body = match &self.body {
            EntryBody::Memory(bytes) => bytes.len(),
            EntryBody::File(..) => 0,
        };
        let forms: usize = self.forms.iter().map(|form| form.made().map_or(0, |f| f.1.len())).sum();
        (body + forms) as u64
    }
}

/// A form's head, behind which its bytes stand.
pub(crate) fn encode_form(place: usize, (effort, bytes): &(u8, Held)) -> Vec<u8> {
    let mut out = FORM_MARK.to_vec();
    out.push(u8::try_from(place).expect("few forms"));
    out.push(*effort);
    out.extend((bytes.len() as u64).to_le_bytes());
    let crc = form_crc(&out, bytes);
    out.extend(crc.to_le_bytes());
    out
}

fn form_crc(head: &[u8], bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(bytes);
    hasher.finalize()
}

/// Reads the forms behind a body; `None` if any byte is not as it was written.
pub(crate) fn decode_forms(input: &Held, entry: &Entry) -> Option<()> {
    const HEAD_BYTES: usize = 4 + 1 + 1 + 8;
    let mut at = 0;
    while at < input.len() {
        let mut head = input.get(at..at + HEAD_BYTES)?;
        let summed = head;
        let mark: [u8; 4] = take(&mut head)?;
        let [place, effort] = take(&mut head)?;
        let length = usize::try_from(u64::from_le_bytes(take(&mut head)?)).ok()?;
        let mut rest = &input[at + HEAD_BYTES..];
        let crc = u32::from_le_bytes(take(&mut rest)?);
        let bytes = rest.get(..length)?;
        if mark != *FORM_MARK || form_crc(summed, bytes) != crc {
            return None;
        }
        let start = input.len() - rest.len();
        at = start + length;
        entry.forms.get(usize::from(place))?.keep(effort, input.slice(start..at));
    }
    Some(())
}

impl EntryHead {
    /// The same, copied into one piece of memory.
    fn owned(mut self) -> Self {
        let bytes = self.texts().map(|text| text.len()).sum();
        let mut all = BytesMut::with_capacity(bytes);
        self.texts().for_each(|text| all.extend_from_slice(text));
        let mut all = all.freeze();
        self.texts().for_each(|text| *text = all.split_to(text.len()));
        self.fields.shrink_to_fit();
        self.tags.shrink_to_fit();
        self
    }

    fn texts(&mut self) -> impl Iterator<Item = &mut Bytes> {
        let fields = self.fields.iter_mut().flat_map(|(name, value)| [name, value]);
        let asked = self.part.as_mut().map(|part| &mut part.asked);
        [&mut self.key, &mut self.reason, &mut self.content_type, &mut self.etag, &mut self.vary]
            .into_iter()
            .chain(asked)
            .chain(&mut self.tags)
            .chain(fields)
    }

    /// The prefix and head of a file; the body follows.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; PREFIX_BYTES];
        put_bytes(&mut out, &self.key);
        out.extend(self.began.epoch.to_le_bytes());
        out.extend(self.began.number.to_le_bytes());
        out.extend(self.status.to_le_bytes());
        for time in [self.stored_at, self.born_at] {
            out.extend(time.to_le_bytes());
        }
        out.extend(self.made_in.to_le_bytes());
        out.extend(self.fresh_until.to_le_bytes());
        out.push(u8::from(self.must_revalidate));
        out.push(u8::from(self.is_by_operator));
        for time in [self.stale_updating_until, self.stale_error_until] {
            out.extend(time.to_le_bytes());
        }
        out.extend(self.last_modified.unwrap_or(i64::MIN).to_le_bytes());
        put_bytes(&mut out, &self.content_type);
        put_bytes(&mut out, &self.etag);
        put_bytes(&mut out, &self.vary);
        out.extend(self.variant);
        out.extend(self.variant_group.to_le_bytes());
        out.push(u8::from(self.part.is_some()));
        if let Some(part) = &self.part {
            out.extend(part.first.to_le_bytes());
            out.extend(part.total.to_le_bytes());
            out.push(u8::from(part.is_to_end));
            put_bytes(&mut out, &part.asked);
        }
        out.extend(length(self.tags.len()));
        for tag in &self.tags {
            put_bytes(&mut out, tag);
        }
        out.extend(self.body_bytes.to_le_bytes());
        out.extend(self.body_crc.to_le_bytes());
        out.extend(length(self.fields.len()));
        for (name, value) in &self.fields {
            put_bytes(&mut out, name);
            put_bytes(&mut out, value);
        }
        let has_more = self.has_more();
        if has_more {
            put_bytes(&mut out, &self.reason);
            put_length(&mut out, self.length);
            out.push(u8::from(self.is_shared));
        }
        let (head_bytes, crc) = (out.len() - PREFIX_BYTES, crc32fast::hash(&out[PREFIX_BYTES..]));
        out[..8].copy_from_slice(if has_more { MAGIC_MORE } else { MAGIC });
        out[8..12].copy_from_slice(&length(head_bytes));
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Whether it has what few have.
    fn has_more(&self) -> bool {
        !self.reason.is_empty() || self.length != Length::OfBody || self.is_shared
    }

    /// What a file's first [`PREFIX_BYTES`] say.
    pub(crate) fn prefix(prefix: &[u8; PREFIX_BYTES]) -> Prefix {
        let [magic @ .., a, b, c, d, e, f, g, h] = *prefix;
        if magic != *MAGIC && magic != *MAGIC_MORE {
            let is_own = magic[..MAGIC.len() - 1] == MAGIC[..MAGIC.len() - 1];
            return if is_own && magic[7].is_ascii_digit() {
                Prefix::Other
            } else {
                Prefix::Foreign
            };
        }
        match usize::try_from(u32::from_le_bytes([a, b, c, d])) {
            Ok(head_bytes) if head_bytes <= HEAD_BYTES_MAX => {
                Prefix::Head(head_bytes, u32::from_le_bytes([e, f, g, h]))
            }
            _ => Prefix::Foreign,
        }
    }

    /// Reads a head; `None` if any byte is not as [`EntryHead::encode`] wrote it.
    pub fn decode(head: &[u8], crc: u32) -> Option<Self> {
        if crc32fast::hash(head) != crc {
            return None;
        }
        let mut input = head;
        let mut decoded = Self {
            key: take_bytes(&mut input)?,
            began: Moment {
                epoch: u64::from_le_bytes(take(&mut input)?),
                number: u64::from_le_bytes(take(&mut input)?),
            },
            status: u16::from_le_bytes(take(&mut input)?),
            stored_at: i64::from_le_bytes(take(&mut input)?),
            born_at: i64::from_le_bytes(take(&mut input)?),
            made_in: u32::from_le_bytes(take(&mut input)?),
            fresh_until: i64::from_le_bytes(take(&mut input)?),
            must_revalidate: take_flag(&mut input)?,
            is_by_operator: take_flag(&mut input)?,
            is_shared: false,
            stale_updating_until: i64::from_le_bytes(take(&mut input)?),
            stale_error_until: i64::from_le_bytes(take(&mut input)?),
            last_modified: Some(i64::from_le_bytes(take(&mut input)?)).filter(|t| *t != i64::MIN),
            content_type: take_bytes(&mut input)?,
            etag: take_bytes(&mut input)?,
            vary: take_bytes(&mut input)?,
            variant: take(&mut input)?,
            variant_group: u64::from_le_bytes(take(&mut input)?),
            part: if take_flag(&mut input)? { Some(take_part(&mut input)?) } else { None },
            tags: take_list(&mut input)?,
            is_purged: false,
            reason: Bytes::new(),
            length: Length::OfBody,
            body_bytes: u64::from_le_bytes(take(&mut input)?),
            body_crc: u32::from_le_bytes(take(&mut input)?),
            fields: take_fields(&mut input)?,
        };
        if !input.is_empty() {
            decoded.reason = take_bytes(&mut input)?;
            decoded.length = take_length(&mut input)?;
            decoded.is_shared = take_flag(&mut input)?;
            // Else it would have been written without.
            decoded.has_more().then_some(())?;
        }
        input.is_empty().then_some(decoded)
    }
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("heads are bounded far below 4 GiB").to_le_bytes()
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(length(bytes.len()));
    out.extend_from_slice(bytes);
}

fn put_length(out: &mut Vec<u8>, length: Length) {
    let (kind, bytes) = match length {
        Length::OfBody => (0, 0),
        Length::OfHead(None) => (1, 0),
        Length::OfHead(Some(bytes)) => (2, bytes),
    };
    out.push(kind);
    out.extend(u64::to_le_bytes(bytes));
}

fn take_length(input: &mut &[u8]) -> Option<Length> {
    let [kind] = take(input)?;
    match (kind, u64::from_le_bytes(take(input)?)) {
        (0, 0) => Some(Length::OfBody),
        (1, 0) => Some(Length::OfHead(None)),
        (2, bytes) => Some(Length::OfHead(Some(bytes))),
        _ => None,
    }
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, rest) = input.split_first_chunk::<N>()?;
    *input = rest;
    Some(*bytes)
}

fn take_flag(input: &mut &[u8]) -> Option<bool> {
    match take::<1>(input)? {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}

fn take_part(input: &mut &[u8]) -> Option<Part> {
    Some(Part {
        first: u64::from_le_bytes(take(input)?),
        total: u64::from_le_bytes(take(input)?),
        is_to_end: take_flag(input)?,
        asked: take_bytes(input)?,
    })
}

fn take_bytes(input: &mut &[u8]) -> Option<Bytes> {
    let length = usize::try_from(u32::from_le_bytes(take(input)?)).ok()?;
    let (bytes, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(Bytes::copy_from_slice(bytes))
}

fn take_list(input: &mut &[u8]) -> Option<Vec<Bytes>> {
    let count = u32::from_le_bytes(take(input)?);
    // No capacity from an untrusted count: the loop ends at the first missing byte.
    let mut list = Vec::new();
    for _ in 0..count {
        list.push(take_bytes(input)?);
    }
    Some(list)
}

fn take_fields(input: &mut &[u8]) -> Option<Vec<(Bytes, Bytes)>> {
    let count = u32::from_le_bytes(take(input)?);
    // No capacity from an untrusted count: the loop ends at the first missing byte.
    let mut fields = Vec::new();
    for _ in 0..count {
        fields.push((take_bytes(input)?, take_bytes(input)?));
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn head() -> EntryHead {
        EntryHead {
            key: Bytes::from_static(b"http://GETa/"),
            began: Moment { epoch: 3, number: 8 },
            status: 200,
            fields: vec![(Bytes::from_static(b"X-A"), Bytes::from_static(b"1"))],
            stored_at: 5,
            fresh_until: 65,
            last_modified: Some(-3),
            etag: Bytes::from_static(b"\"e\""),
            must_revalidate: true,
            variant_group: 7,
            tags: vec!["post-1".into(), "home".into()],
            part: Some(Part { first: 4, total: 9, is_to_end: true, asked: "bytes=-5".into() }),
            body_bytes: 4,
            body_crc: 9,
            ..EntryHead::default()
        }
    }

    fn decode(file: &[u8]) -> Option<EntryHead> {
        let (prefix, rest) = file.split_first_chunk::<PREFIX_BYTES>()?;
        let Prefix::Head(head_bytes, crc) = EntryHead::prefix(prefix) else { return None };
        EntryHead::decode(rest.get(..head_bytes)?, crc)
    }

    #[test]
    fn a_page_from_the_future_is_not_fresh() {
        let head = EntryHead { stored_at: 100_000, fresh_until: 160_000, ..EntryHead::default() };
        assert!(head.is_fresh(100_000) && head.is_fresh(159_999) && !head.is_fresh(160_000));
        // The clock was set back by a minute.
        assert!(!head.is_fresh(40_000));
        assert_eq!((head.age(40_000), EntryHead::default().age(2999)), (40, 2));
    }

    #[test]
    fn an_entry_keeps_nothing_of_the_buffer_its_head_was_read_into() {
        let buffer = Bytes::from(vec![b'x'; 32 * 1024]);
        let text = |at: usize| buffer.slice(at..at + 5);
        let head = EntryHead {
            key: text(0),
            reason: text(40),
            content_type: text(5),
            etag: text(10),
            vary: text(15),
            fields: vec![(text(20), text(25))],
            tags: vec![text(30)],
            part: Some(Part { asked: text(35), ..Part::default() }),
            ..EntryHead::default()
        };
        let wanted = head.clone();
        let entry = Entry::new(head, EntryBody::Memory(Held::default()), 0);
        assert_eq!(entry.head, wanted);
        drop(wanted);
        assert!(buffer.is_unique(), "the entry still holds the buffer");
    }

    #[test]
    fn heads_are_read_back() {
        assert_eq!(decode(&head().encode()), Some(head()));
        let bare = EntryHead { last_modified: None, ..EntryHead::default() };
        assert_eq!(decode(&bare.encode()), Some(bare));
        let gone = EntryHead { reason: "Gone Fishing".into(), ..head() };
        assert_eq!(decode(&gone.encode()), Some(gone));
        for length in [None, Some(0), Some(25)] {
            let of_head = EntryHead { length: Length::OfHead(length), ..head() };
            assert_eq!(decode(&of_head.encode()), Some(of_head));
        }
    }

    #[test]
    fn what_all_have_is_written_as_before() {
        let more = EntryHead { reason: "Gone Fishing".into(), ..head() };
        assert_eq!((&head().encode()[..8], &more.encode()[..8]), (&MAGIC[..], &MAGIC_MORE[..]));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let more = EntryHead { reason: "Gone".into(), length: Length::OfHead(None), ..head() };
        for file in [head().encode(), more.encode()] {
            is_noticed(&file);
        }
    }

    fn is_noticed(file: &[u8]) {
        for at in 0..file.len() * 8 {
            let mut damaged = file.to_vec();
            damaged[at / 8] ^= 1 << (at % 8);
            assert_eq!(decode(&damaged), None, "bit {at}");
        }
        for end in 0..file.len() {
            assert_eq!(decode(&file[..end]), None, "cut at {end}");
        }
    }
}
