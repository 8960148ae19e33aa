//! Sections that are read (RFC 9204, sections 2.2, 3.2 and 4.5).

use super::Packed;
use super::fixed::FIELDS;
use super::instructions::{self, Instruction, Text};
use crate::h3::frame::{Broken, Code};
use crate::huffman;
use crate::packed::{Unread, put_integer};
use crate::table::{ENTRY_BYTES, Table};

/// Entries that a client may put in beside those that its sections need.
const INSERTS_MIN: u64 = 1024;
/// Entries that it may put in for each section: as many as the table holds.
const INSERTS_PER_SECTION: u64 = 128;
/// A coded text may have up to this many times the bytes that it stands for.
const CODED: usize = 4;

/// What came of a section.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Section {
    /// All of its fields were given.
    Whole,
    /// It needs entries that are not there yet: nothing was given. [`Decoder::ready`] names its stream when they are.
    Blocked,
    /// Who takes the fields wants no more of them.
    Enough,
}

/// The way of a client's fields.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    capacity_max: usize,
    /// Entries that were ever put in.
    inserted: u64,
    /// How many of them the client knows to be in.
    known: u64,
    /// Sections that were read.
    sections: u64,
    /// An instruction that is not whole yet.
    unread: Vec<u8>,
    /// Streams that wait, and how many entries each needs.
    blocked: Vec<(u64, u64)>,
    blocked_max: usize,
    /// What the client is to be told.
    said: Vec<u8>,
    /// What was coded, decoded; kept for its allocation.
    scratch: Vec<u8>,
}

/// A section is broken.
struct Failed;

impl From<Unread> for Failed {
    fn from(_: Unread) -> Self {
        Self
    }
}

impl From<huffman::Broken> for Failed {
    fn from(_: huffman::Broken) -> Self {
        Self
    }
}

/// What a section begins with (section 4.5.1).
struct Prefix {
    /// How many entries must have been put in.
    required: u64,
    /// The entry that numbers count from.
    base: u64,
}

impl Decoder {
    /// Allows a client this many bytes of a dynamic table, and this many streams that wait for it: what its settings say.
    pub fn new(capacity_max: usize, blocked_max: usize) -> Self {
        Self {
            table: Table::new(0),
            capacity_max,
            inserted: 0,
            known: 0,
            sections: 0,
            unread: Vec::new(),
            blocked: Vec::new(),
            blocked_max,
            said: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Takes bytes of the client's encoder stream, behind its type. What is not whole yet is kept: eight times
    /// the table's bytes at most.
    ///
    /// # Errors
    /// [`Broken`]: they are no instructions, or cannot be followed.
    pub fn encoder_stream(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        if self.unread.is_empty() {
            let rest = self.instructions(bytes)?;
            self.unread.extend_from_slice(rest);
        } else {
            let mut unread = std::mem::take(&mut self.unread);
            unread.extend_from_slice(bytes);
            let left = self.instructions(&unread)?.len();
            unread.drain(..unread.len() - left);
            self.unread = unread;
        }
        Ok(())
    }

    /// Follows instructions; the rest is one that is not whole.
    fn instructions<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Broken> {
        let mut rest = bytes;
        loop {
            let mut packed = Packed::new(rest);
            match instructions::read(&mut packed, self.capacity_max * CODED) {
                Ok(instruction) => {
                    rest = packed.0;
                    self.follow(&instruction).map_err(|Failed| {
                        let text = "client sent invalid instruction for the dynamic table";
                        Broken::Connection(Code::QPACK_ENCODER_STREAM_ERROR, text)
                    })?;
                }
                Err(Unread::Short) => return Ok(rest),
                Err(Unread::Broken) => {
                    let text = "client sent invalid encoder stream";
                    return Err(Broken::Connection(Code::QPACK_ENCODER_STREAM_ERROR, text));
                }
            }
            let inserts_max = INSERTS_MIN + INSERTS_PER_SECTION.saturating_mul(self.sections);
            if self.inserted > inserts_max {
                let text = "client sent too many fields for the dynamic table";
                return Err(Broken::Connection(Code::EXCESSIVE_LOAD, text));
            }
        }
    }

    fn follow(&mut self, instruction: &Instruction<'_>) -> Result<(), Failed> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let name_bytes = match *instruction {
            Instruction::Capacity(capacity) => {
                let capacity = usize::try_from(capacity).map_err(|_| Failed)?;
                if capacity > self.capacity_max {
                    return Err(Failed);
                }
                self.table.resize(capacity);
                self.scratch = scratch;
                return Ok(());
            }
            Instruction::InsertNamed { is_static, number, value } => {
                let field =
                    if is_static { FIELDS.get(number).copied() } else { self.table.get(number) };
                scratch.extend_from_slice(field.ok_or(Failed)?.0);
                let name_bytes = scratch.len();
                put_text(&mut scratch, value)?;
                name_bytes
            }
            Instruction::Insert { name, value } => {
                put_text(&mut scratch, name)?;
                let name_bytes = scratch.len();
                put_text(&mut scratch, value)?;
                name_bytes
            }
            Instruction::Duplicate(number) => {
                let (name, value) = self.table.get(number).ok_or(Failed)?;
                scratch.extend_from_slice(name);
                scratch.extend_from_slice(value);
                name.len()
            }
        };
        let fits = self.table.insert(&scratch, name_bytes);
        self.inserted += 1;
        self.scratch = scratch;
        if fits { Ok(()) } else { Err(Failed) }
    }

    /// A stream whose section was blocked and is not any more; each is named once.
    pub fn ready(&mut self) -> Option<u64> {
        let index = self.blocked.iter().position(|(_, required)| *required <= self.inserted)?;
        Some(self.blocked.swap_remove(index).0)
    }

    /// Gives each field of a stream's section to `take`, in order: name and value. It says whether it wants more.
    ///
    /// # Errors
    /// [`Broken`]: it breaks the rules, or waits where too many do.
    pub fn section(
        &mut self,
        stream: u64,
        bytes: &[u8],
        mut take: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Section, Broken> {
        let failed = |text| Broken::Connection(Code::QPACK_DECOMPRESSION_FAILED, text);
        let invalid = |Failed| failed("client sent invalid field section");
        self.blocked.retain(|(blocked, _)| *blocked != stream);
        let mut packed = Packed::new(bytes);
        let prefix = self.prefix(&mut packed).map_err(invalid)?;
        if prefix.required > self.inserted {
            if self.blocked.len() >= self.blocked_max {
                return Err(failed("client has too many blocked streams"));
            }
            self.blocked.push((stream, prefix.required));
            return Ok(Section::Blocked);
        }
        self.sections += 1;
        let is_whole = self.fields(&prefix, &mut packed, &mut take).map_err(invalid)?;
        if prefix.required > 0 {
            put_integer(&mut self.said, 0x80, 7, stream);
            self.known = self.known.max(prefix.required);
        }
        Ok(if is_whole { Section::Whole } else { Section::Enough })
    }

    fn prefix(&self, packed: &mut Packed<'_>) -> Result<Prefix, Failed> {
        let required = self.required(packed.integer(8)?)?;
        let is_below = packed.0.first().is_some_and(|first| first & 0x80 != 0);
        let delta = packed.integer(7)?;
        let base = match is_below {
            true => required.checked_sub(delta).and_then(|base| base.checked_sub(1)),
            false => required.checked_add(delta),
        };
        Ok(Prefix { required, base: base.ok_or(Failed)? })
    }

    /// How many entries a section needs, from what is written of it (section 4.5.1.1).
    fn required(&self, written: u64) -> Result<u64, Failed> {
        if written == 0 {
            return Ok(0);
        }
        let entries_max = (self.capacity_max / ENTRY_BYTES) as u64;
        let range = 2 * entries_max;
        if written > range {
            return Err(Failed);
        }
        let highest = self.inserted + entries_max;
        let required = highest / range * range + written - 1;
        match required <= highest {
            true if required > 0 => Ok(required),
            false if required > range => Ok(required - range),
            _ => Err(Failed),
        }
    }

    /// The fields behind a prefix; whether all of them were wanted.
    fn fields(
        &mut self,
        prefix: &Prefix,
        packed: &mut Packed<'_>,
        take: &mut impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool, Failed> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut is_wanted = true;
        while is_wanted && !packed.0.is_empty() {
            scratch.clear();
            let (name, value) = self.line(prefix, packed, &mut scratch)?;
            is_wanted = take(name, value);
        }
        self.scratch = scratch;
        Ok(is_wanted)
    }

    /// One field (sections 4.5.2 to 4.5.6); what is written out of it goes to `scratch`.
    fn line<'s>(
        &'s self,
        prefix: &Prefix,
        packed: &mut Packed<'_>,
        scratch: &'s mut Vec<u8>,
    ) -> Result<(&'s [u8], &'s [u8]), Failed> {
        let first = packed.0.first().copied().unwrap_or_default();
        let named = match first {
            0xc0.. => return fixed(packed.number(6)?),
            0x80.. => return self.entry(prefix, prefix.below(packed.integer(6)?)),
            0x50..0x60 | 0x70.. => fixed(packed.number(4)?)?,
            0x40.. => self.entry(prefix, prefix.below(packed.integer(4)?))?,
            0x20.. => {
                packed.string(3, scratch)?;
                (&[][..], &[][..])
            }
            0x10.. => return self.entry(prefix, prefix.above(packed.integer(4)?)),
            _ => self.entry(prefix, prefix.above(packed.integer(3)?))?,
        };
        scratch.extend_from_slice(named.0);
        let name_bytes = scratch.len();
        packed.string(7, scratch)?;
        Ok(scratch.split_at(name_bytes))
    }

    /// The entry that was put in behind this many others.
    fn entry(&self, prefix: &Prefix, number: Option<u64>) -> Result<(&[u8], &[u8]), Failed> {
        let number = number.filter(|number| *number < prefix.required).ok_or(Failed)?;
        // A section is read only when what it requires is in.
        let newer = usize::try_from(self.inserted - 1 - number).map_err(|_| Failed)?;
        self.table.get(newer).ok_or(Failed)
    }

    /// A stream was reset, or is not read any more, before the end of its last section.
    pub fn cancel(&mut self, stream: u64) {
        self.blocked.retain(|(blocked, _)| *blocked != stream);
        if self.capacity_max > 0 {
            put_integer(&mut self.said, 0x40, 6, stream);
        }
    }

    /// Appends what the client is to be told on the decoder stream, behind its type: some bytes for each section and for
    /// each stream that was given up, until this is called.
    pub fn take_acknowledgments(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.said);
        if self.inserted > self.known {
            put_integer(out, 0, 6, self.inserted - self.known);
            self.known = self.inserted;
        }
    }
}

impl Prefix {
    fn below(&self, number: u64) -> Option<u64> {
        self.base.checked_sub(1)?.checked_sub(number)
    }

    fn above(&self, number: u64) -> Option<u64> {
        self.base.checked_add(number)
    }
}

fn fixed(number: usize) -> Result<(&'static [u8], &'static [u8]), Failed> {
    FIELDS.get(number).copied().ok_or(Failed)
}

fn put_text(out: &mut Vec<u8>, (is_coded, bytes): Text<'_>) -> Result<(), Failed> {
    if is_coded {
        huffman::decode(bytes, out)?;
    } else {
        out.extend_from_slice(bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    type Fields = Vec<(String, String)>;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: String = hex.chars().filter(char::is_ascii_hexdigit).collect();
        let pairs = (0..digits.len()).step_by(2);
        pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    fn section(decoder: &mut Decoder, stream: u64, hex: &str) -> Result<(Section, Fields), Code> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let read = decoder.section(stream, &bytes(hex), |name, value| {
            fields.push((text(name), text(value)));
            true
        });
        read.map(|section| (section, fields)).map_err(code)
    }

    fn code(broken: Broken) -> Code {
        match broken {
            Broken::Connection(code, _) | Broken::Stream(code, _) => code,
        }
    }

    fn said(decoder: &mut Decoder) -> Vec<u8> {
        let mut out = Vec::new();
        decoder.take_acknowledgments(&mut out);
        out
    }

    fn whole(fields: &[(&str, &str)]) -> Result<(Section, Fields), Code> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Ok((Section::Whole, fields.iter().map(owned).collect()))
    }

    const AUTHORITY: (&str, &str) = (":authority", "www.example.com");
    const SAMPLE: (&str, &str) = (":path", "/sample/path");

    /// A decoder of 220 bytes in the middle of appendix B: with the entries of B.2.
    fn begun() -> Decoder {
        let mut decoder = Decoder::new(TABLE, 100);
        let inserts = "3fbd01 c00f 7777772e6578616d706c652e636f6d c10c 2f73616d706c652f70617468";
        decoder.encoder_stream(&bytes(inserts)).unwrap();
        decoder
    }

    const TABLE: usize = 4096;

    #[test]
    fn connections_are_read_as_the_rfc_has_them() {
        let mut decoder = Decoder::new(TABLE, 100);
        // Appendix B.1, and B.2 with the section first.
        let index = "0000 510b 2f696e6465782e68746d6c";
        assert_eq!(section(&mut decoder, 0, index), whole(&[(":path", "/index.html")]));
        assert_eq!(section(&mut decoder, 4, "0381 10 11"), Ok((Section::Blocked, Vec::new())));
        assert_eq!(decoder.ready(), None);
        let inserts = "3fbd01 c00f 7777772e6578616d706c652e636f6d c10c 2f73616d706c652f70617468";
        for byte in bytes(inserts) {
            decoder.encoder_stream(&[byte]).unwrap();
        }
        assert_eq!(decoder.table.size(), (2, 106));
        assert_eq!((decoder.ready(), decoder.ready()), (Some(4), None));
        assert_eq!(section(&mut decoder, 4, "0381 10 11"), whole(&[AUTHORITY, SAMPLE]));
        assert_eq!(said(&mut decoder), [0x84]);
        // B.3.
        let custom = "4a 637573746f6d2d6b6579 0c 637573746f6d2d76616c7565";
        decoder.encoder_stream(&bytes(custom)).unwrap();
        assert_eq!(decoder.table.size(), (3, 160));
        assert_eq!(said(&mut decoder), [0x01]);
        // B.4.
        assert_eq!(section(&mut decoder, 8, "0500 80 c1 81").unwrap().0, Section::Blocked);
        decoder.cancel(8);
        assert_eq!(said(&mut decoder), [0x48]);
        decoder.encoder_stream(&bytes("02")).unwrap();
        assert_eq!((decoder.ready(), decoder.table.size()), (None, (4, 217)));
        let expected = [AUTHORITY, (":path", "/"), ("custom-key", "custom-value")];
        assert_eq!(section(&mut decoder, 12, "0500 80 c1 81"), whole(&expected));
        assert_eq!(said(&mut decoder), [0x8c]);
        // B.5.
        decoder.encoder_stream(&bytes("810d 637573746f6d2d76616c756532")).unwrap();
        assert_eq!(decoder.table.size(), (4, 215));
        assert_eq!(said(&mut decoder), [0x01]);
        assert_eq!(section(&mut decoder, 16, "0600 84"), Err(Code::QPACK_DECOMPRESSION_FAILED));
    }

    #[test]
    fn every_form_of_a_field_is_read() {
        let forms = [
            // Names of entries before and behind the base, with and without "never index".
            ("0300 40 0161", (":path", "a")),
            ("0300 61 0161", (":authority", "a")),
            ("0381 00 0161", (":authority", "a")),
            ("0381 09 0161", (":path", "a")),
            ("0381 11", SAMPLE),
            ("0301 81", SAMPLE),
            ("0301 82", AUTHORITY),
            ("0000 7f10 0162", ("accept-encoding", "b")),
            ("0000 29 1f 0162", ("a", "b")),
            ("0000 ff23", ("x-frame-options", "sameorigin")),
        ];
        for (hex, field) in forms {
            let read = section(&mut begun(), 0, hex);
            assert_eq!(read, whole(&[field]), "{hex}");
        }
    }

    #[test]
    fn sections_that_no_one_wrote_fail() {
        let broken = [
            "",
            "00",
            "0080",
            "0000 ff24",
            "0000 80",
            "0000 10",
            "0000 5101",
            "0000 2201",
            // More than was required, before the first, behind the base, none required.
            "0200 81",
            "0300 82",
            "0380 11",
            "0280 11",
            "0381 12",
            "0383 80",
            // No such number of entries.
            "ff 8202 00 80",
            "ff ffffffffffffffffff 00",
            "0000 ff ffffffffffffffffff01",
            "0000 51 81 18",
            "0000 28 8118 00",
        ];
        for hex in broken {
            let failed = section(&mut begun(), 0, hex).map(|(section, _)| section);
            assert_eq!(failed, Err(Code::QPACK_DECOMPRESSION_FAILED), "{hex}");
        }
    }

    #[test]
    fn instructions_that_no_one_gave_fail() {
        let broken = [
            // Too large: the table, a field, a text; no such field; no such number.
            "3fe21f",
            "3f00 c2 00",
            "7fffff7f",
            "ff24 00",
            "82 00",
            "02",
            "3fffffffffffffffffffff",
            "c0 8118",
            "6118 00",
        ];
        for hex in broken {
            let failed = begun().encoder_stream(&bytes(hex));
            assert_eq!(failed.map_err(code), Err(Code::QPACK_ENCODER_STREAM_ERROR), "{hex}");
        }
        let first = Decoder::new(TABLE, 0).encoder_stream(&bytes("c0 00"));
        assert_eq!(first.map_err(code), Err(Code::QPACK_ENCODER_STREAM_ERROR));
        let mut none = Decoder::new(0, 0);
        assert!(none.encoder_stream(&bytes("20")).is_ok());
        assert!(none.encoder_stream(&bytes("21")).is_err());
        assert!(section(&mut none, 0, "0200 80").is_err());
    }

    #[test]
    fn what_waits_has_a_bound() {
        let mut decoder = Decoder::new(TABLE, 2);
        for stream in [0, 4, 4, 0] {
            assert_eq!(section(&mut decoder, stream, "0200 80").unwrap().0, Section::Blocked);
        }
        assert_eq!(section(&mut decoder, 8, "0200 80"), Err(Code::QPACK_DECOMPRESSION_FAILED));
        let unfinished = [&bytes("3fe11f 7f e17f")[..], &vec![b'a'; TABLE * CODED]].concat();
        let mut decoder = Decoder::new(TABLE, 2);
        for piece in unfinished.chunks(1000) {
            decoder.encoder_stream(piece).unwrap();
            assert!(decoder.unread.len() <= 2 * (TABLE * CODED + 10));
        }
    }

    #[test]
    fn fields_are_put_in_for_sections() {
        let mut decoder = begun();
        let inserts = vec![0x01; 1024];
        assert_eq!(decoder.encoder_stream(&inserts).map_err(code), Err(Code::EXCESSIVE_LOAD));
        let mut decoder = begun();
        for stream in 0..8 {
            section(&mut decoder, stream, "0000 c0").unwrap();
        }
        assert!(decoder.encoder_stream(&inserts).is_ok());
    }

    #[test]
    fn who_takes_fields_may_stop() {
        let mut decoder = begun();
        let mut count = 0;
        let stopped = decoder.section(4, &bytes("0381 10 11"), |_, _| {
            count += 1;
            false
        });
        assert_eq!((stopped, count), (Ok(Section::Enough), 1));
        // Its entries are not needed any more.
        assert_eq!(said(&mut decoder), [0x84]);
    }

    #[test]
    fn numbers_of_entries_go_round() {
        let mut decoder = Decoder::new(128, 1);
        // A table of four entries, of which numbers below eight are written.
        decoder.encoder_stream(&bytes("3f61 c001 61")).unwrap();
        for round in 1..200u64 {
            let written = round % 8 + 1;
            let hex = format!("{written:02x}00 80");
            assert_eq!(section(&mut decoder, 0, &hex), whole(&[(":authority", "a")]), "{round}");
            decoder.encoder_stream(&[0]).unwrap();
        }
    }

    /// Reads a section; those that wait are kept.
    fn note(
        decoder: &mut Decoder,
        stream: u64,
        hex: &'static str,
        read: &mut BTreeMap<u64, Fields>,
        waiting: &mut BTreeMap<u64, &'static str>,
    ) {
        match section(decoder, stream, hex).unwrap() {
            (Section::Whole, fields) => drop(read.insert(stream, fields)),
            _ => drop(waiting.insert(stream, hex)),
        }
    }

    #[test]
    fn what_another_encoder_wrote_is_read() {
        let mut decoder = Decoder::new(256, 16);
        let (mut read, mut expected) = (BTreeMap::new(), BTreeMap::<u64, Fields>::new());
        let (mut waiting, mut last) = (BTreeMap::new(), 0);
        for line in include_str!("recorded.txt").lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["#", ..] => {}
                ["table", hex] => {
                    decoder.encoder_stream(&bytes(hex)).unwrap();
                    while let Some(stream) = decoder.ready() {
                        let hex = waiting.remove(&stream).unwrap();
                        note(&mut decoder, stream, hex, &mut read, &mut waiting);
                    }
                }
                ["section", stream, hex, how] => {
                    last = stream.parse().unwrap();
                    note(&mut decoder, last, hex, &mut read, &mut waiting);
                    assert_eq!(waiting.contains_key(&last), how == "blocked", "{stream}");
                }
                ["", "", name, value] => {
                    expected.entry(last).or_default().push((name.to_owned(), value.to_owned()));
                }
                _ => panic!("{line}"),
            }
        }
        assert_eq!((read.len(), read), (24, expected));
    }
}
