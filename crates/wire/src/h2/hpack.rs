//! Header fields in blocks (RFC 7541): a decoder with its dynamic table, and an encoder without one, as nginx's.

use crate::packed::{Packed, Unread, put_integer, put_string};
use crate::table::Table;

/// Bytes of the dynamic table that a peer may have us keep: the protocol's default (RFC 9113, section 6.5.2).
pub const TABLE_BYTES: usize = 4096;
/// What the first block of an encoder begins with: its dynamic table stays empty (section 6.3).
pub const NO_TABLE: u8 = 0x20;

/// Appendix A; the first has number 1.
const STATIC: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// Why a block was not decoded to its end: the decoder cannot be used any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stop {
    /// It breaks the rules.
    Broken,
    /// It ends in the middle of a field.
    Short,
    /// Who takes the fields wants no more of them.
    Enough,
}

impl From<Unread> for Stop {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Broken => Self::Broken,
            Unread::Short => Self::Short,
        }
    }
}

/// The way of a peer's fields.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// What was coded, decoded; kept for its allocation.
    scratch: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { table: Table::new(TABLE_BYTES), scratch: Vec::new() }
    }
}

impl Decoder {
    /// Gives each field of a block to `put`, in order: name and value. It says whether it wants more.
    ///
    /// # Errors
    /// [`Stop`]
    pub fn decode(
        &mut self,
        block: &[u8],
        mut put: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        let mut block = Block::new(block);
        let mut may_resize = true;
        while let Some(first) = block.0.first().copied() {
            let is_wanted = match first {
                0x80.. => {
                    let (name, value) = self.field(block.number(7)?)?;
                    put(name, value)
                }
                0x20..0x40 => {
                    let size = block.number(5)?;
                    if !may_resize || size > TABLE_BYTES {
                        return Err(Stop::Broken);
                    }
                    self.table.resize(size);
                    continue;
                }
                _ => self.literal(first, &mut block, &mut put)?,
            };
            if !is_wanted {
                return Err(Stop::Enough);
            }
            may_resize = false;
        }
        Ok(())
    }

    /// A field of which at least the value is written out; with the first bits 01 the table takes it.
    fn literal(
        &mut self,
        first: u8,
        block: &mut Block<'_>,
        put: &mut impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool, Stop> {
        let is_kept = first >= 0x40;
        let number = block.number(if is_kept { 6 } else { 4 })?;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        match number {
            0 => block.string(7, &mut scratch)?,
            _ => scratch.extend_from_slice(self.field(number)?.0),
        }
        let name_bytes = scratch.len();
        block.string(7, &mut scratch)?;
        let (name, value) = scratch.split_at(name_bytes);
        let is_wanted = put(name, value);
        if is_kept {
            self.table.insert(&scratch, name_bytes);
        }
        self.scratch = scratch;
        Ok(is_wanted)
    }

    fn field(&self, number: usize) -> Result<(&[u8], &[u8]), Stop> {
        let index = number.checked_sub(1).ok_or(Stop::Broken)?;
        if let Some(field) = STATIC.get(index) {
            return Ok(*field);
        }
        self.table.get(index - STATIC.len()).ok_or(Stop::Broken)
    }
}

/// The rest of a block. No length or number here needs more than three bytes; a fourth is for those who pad.
type Block<'a> = Packed<'a, 4>;

/// Appends the status of a response, which comes first.
pub fn put_status(out: &mut Vec<u8>, status: u16) {
    const STATUS_200: u8 = 8;
    let known = match status {
        200 => 0,
        204 => 1,
        206 => 2,
        304 => 3,
        400 => 4,
        404 => 5,
        500 => 6,
        _ => {
            out.push(STATUS_200);
            let digits = [status / 100 % 10, status / 10 % 10, status % 10];
            #[expect(clippy::cast_possible_truncation, reason = "a digit")]
            return put_string(out, 0, 7, &digits.map(|digit| b'0' + digit as u8), false);
        }
    };
    out.push(0x80 | (STATUS_200 + known));
}

/// Appends what a request begins with: method, scheme, path, and the authority, if there is one.
pub fn put_request(out: &mut Vec<u8>, method: &[u8], scheme: &[u8], path: &[u8], authority: &[u8]) {
    let pseudo = [
        (&b":method"[..], method),
        (b":scheme", scheme),
        (b":path", path),
        (b":authority", authority),
    ];
    for (name, value) in pseudo.into_iter().filter(|(_, value)| !value.is_empty()) {
        if let Some(index) = STATIC.iter().position(|field| *field == (name, value)) {
            put_integer(out, 0x80, 7, index as u64 + 1);
        } else {
            put_field_from(0, out, name, value);
        }
    }
}

/// Appends a field of a request; its name in small letters.
pub fn put_request_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    // Behind the names that begin with a colon.
    put_field_from(14, out, name, value);
}

/// Appends a field of a response; its name in small letters.
pub fn put_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    // Responses have none of those before.
    put_field_from(17, out, name, value);
}

fn put_field_from(first: usize, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    match number_from(first, name) {
        Some(number) => put_integer(out, 0, 4, number as u64),
        None => {
            out.push(0);
            put_string(out, 0, 7, name, true);
        }
    }
    put_string(out, 0, 7, value, false);
}

/// The static table's first field of a name, whatever its letters' case; those before `first` are not looked at.
fn number_from(first: usize, name: &[u8]) -> Option<usize> {
    let mut left = OF_LENGTH.get(name.len())? & u64::MAX << first;
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        if STATIC[index].0.eq_ignore_ascii_case(name) {
            return Some(index + 1);
        }
        left &= left - 1;
    }
    None
}

/// By the length of a name, the fields of the static table that have such a name: a bit for each.
const OF_LENGTH: [u64; 32] = {
    let (mut of_length, mut index) = ([0; 32], 0);
    while index < STATIC.len() {
        of_length[STATIC[index].0.len()] |= 1 << index;
        index += 1;
    }
    of_length
};

#[cfg(test)]
mod tests {
    use super::*;

    type Fields = Vec<(String, String)>;

    fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, Stop> {
        let (mut fields, text) =
            (Vec::new(), |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned());
        decoder.decode(block, |name, value| {
            fields.push((text(name), text(value)));
            true
        })?;
        Ok(fields)
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: String = hex.chars().filter(char::is_ascii_hexdigit).collect();
        let pairs = (0..digits.len()).step_by(2);
        pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn names_of_the_static_table_are_found_in_any_case() {
        // RFC 7541, appendix A.
        for (name, number) in [("Cache-Control", 24), (":status", 8), ("vary", 59), ("via", 60)] {
            assert_eq!(number_from(0, name.as_bytes()), Some(number), "{name}");
        }
        for name in ["cache-controx", "x", ""] {
            assert_eq!(number_from(0, name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn requests_are_decoded_as_the_rfc_has_them() {
        // Appendix C.4: three requests of one connection, coded.
        let blocks = [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ];
        let mut decoder = Decoder::default();
        let mut last = Vec::new();
        for block in blocks {
            last = decoded(&mut decoder, &bytes(block)).unwrap();
        }
        let expected = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ];
        let last: Vec<_> = last.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        assert_eq!(last, expected);
        assert_eq!(decoder.table.size().1, 164);
    }

    #[test]
    fn the_table_has_a_bound() {
        let mut decoder = Decoder::default();
        // Section 6.3: to 256 bytes.
        decoded(&mut decoder, &[0x3f, 0xe1, 0x01]).unwrap();
        for round in 0..10u8 {
            decoded(
                &mut decoder,
                &[0x40, 1, b'a' + round, 60].into_iter().chain([b'v'; 60]).collect::<Vec<_>>(),
            )
            .unwrap();
        }
        assert_eq!(decoder.table.size(), (2, 186));
        assert_eq!(decoded(&mut decoder, &[0xbe]).unwrap()[0].0, "j");
        let long = [&[0x40, 1, b'z', 127, 101 + 27][..], &[1], &[b'v'; 255]].concat();
        assert_eq!(decoded(&mut decoder, &long).unwrap()[0].0, "z");
        assert_eq!(decoder.table.size(), (0, 0), "it is larger than the table");
    }

    #[test]
    fn broken_blocks_are_refused() {
        for block in [&[0x00, 0x01][..], &[0x00, 0x05, b'a'], &[0xff], &[0x42, 0xff]] {
            assert_eq!(decoded(&mut Decoder::default(), block), Err(Stop::Short), "{block:x?}");
        }
        let broken: [&[u8]; 7] = [
            &[0x80],
            &[0xbe],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x3f, 0xe2, 0x1f],
            &[0x82, 0x20],
            &[0x00, 0x81, 0x18, 0x00],
            &[0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 0x00],
        ];
        for block in broken {
            assert_eq!(decoded(&mut Decoder::default(), block), Err(Stop::Broken), "{block:x?}");
        }
        let stopped = Decoder::default().decode(&[0x82, 0x84], |name, _| name == b":path");
        assert_eq!(stopped, Err(Stop::Enough));
    }

    #[test]
    fn requests_are_encoded() {
        let mut block = Vec::new();
        put_request(&mut block, b"GET", b"http", b"/", b"www.example.com");
        put_request_field(&mut block, b"Accept-Encoding", b"gzip");
        // Appendix C.4.1 has the same beginning, with the authority in the table.
        assert_eq!(block[..3], [0x82, 0x86, 0x84]);
        put_request(&mut block, b"PURGE", b"https", b"/a?b", b"");
        let found = decoded(&mut Decoder::default(), &block).unwrap();
        let expected = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "www.example.com"),
            ("accept-encoding", "gzip"),
            (":method", "PURGE"),
            (":scheme", "https"),
            (":path", "/a?b"),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn what_is_encoded_comes_back() {
        let long = "x".repeat(400);
        let mut block = vec![NO_TABLE];
        put_status(&mut block, 200);
        put_status(&mut block, 418);
        let fields = [
            ("Content-Type", "text/html"),
            ("X-Long", &long),
            ("x-codes-badly", "\u{1}\u{2}{}~\\"),
            ("Set-Cookie", ""),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ];
        for (name, value) in fields {
            put_field(&mut block, name.as_bytes(), value.as_bytes());
        }
        let found = decoded(&mut Decoder::default(), &block).unwrap();
        let expected = [(":status", "200"), (":status", "418")]
            .into_iter()
            .chain(fields)
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }
}
