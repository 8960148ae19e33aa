//! Integers and strings of compressed fields (RFC 7541, section 5), which QPACK shares.

use crate::huffman;

/// Why something cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unread {
    /// It breaks the rules.
    Broken,
    /// It ends in the middle.
    Short,
}

impl From<huffman::Broken> for Unread {
    fn from(_: huffman::Broken) -> Self {
        Self::Broken
    }
}

/// What is still to be read. Integers have `OCTETS` bytes behind their first at most.
#[derive(Clone)]
pub(crate) struct Packed<'a, const OCTETS: u32>(pub(crate) &'a [u8]);

impl<'a, const OCTETS: u32> Packed<'a, OCTETS> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn byte(&mut self) -> Result<u8, Unread> {
        let (first, rest) = self.0.split_first().ok_or(Unread::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    /// An integer in the last `bits` of a byte and those behind it (section 5.1).
    pub(crate) fn integer(&mut self, bits: u32) -> Result<u64, Unread> {
        let mask = u8::MAX >> (8 - bits);
        let first = self.byte()? & mask;
        let mut value = u64::from(first);
        if first < mask {
            return Ok(value);
        }
        let mut octet = 0;
        while octet < OCTETS {
            let byte = self.byte()?;
            value += u64::from(byte & 127) << (7 * octet);
            if byte < 128 {
                return Ok(value);
            }
            octet += 1;
        }
        Err(Unread::Broken)
    }

    /// A number of something that is in memory.
    pub(crate) fn number(&mut self, bits: u32) -> Result<usize, Unread> {
        usize::try_from(self.integer(bits)?).map_err(|_| Unread::Broken)
    }

    /// A string whose length has `bits` in its first byte (section 5.2): whether it is coded, and its bytes.
    pub(crate) fn raw_string(&mut self, bits: u32) -> Result<(bool, &'a [u8]), Unread> {
        let is_coded = self.0.first().is_some_and(|first| first >> bits & 1 == 1);
        let length = self.number(bits)?;
        let (text, rest): (&'a [u8], _) = self.0.split_at_checked(length).ok_or(Unread::Short)?;
        self.0 = rest;
        Ok((is_coded, text))
    }

    /// Appends a string.
    pub(crate) fn string(&mut self, bits: u32, out: &mut Vec<u8>) -> Result<(), Unread> {
        let (is_coded, text) = self.raw_string(bits)?;
        if is_coded {
            huffman::decode(text, out)?;
        } else {
            out.extend_from_slice(text);
        }
        Ok(())
    }
}

/// Appends an integer in the last `bits` of a byte, behind `flags`, and those that it needs more.
#[expect(clippy::cast_possible_truncation, reason = "seven bits each")]
pub(crate) fn put_integer(out: &mut Vec<u8>, flags: u8, bits: u32, mut value: u64) {
    let mask = u64::from(u8::MAX >> (8 - bits));
    if value < mask {
        return out.push(flags | value as u8);
    }
    out.push(flags | mask as u8);
    value -= mask;
    while value >= 128 {
        out.push(128 | value as u8);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a string, coded if that makes it shorter; its length has `bits` in the first byte, behind `flags`. A name's
/// letters are made small.
pub(crate) fn put_string(out: &mut Vec<u8>, flags: u8, bits: u32, text: &[u8], is_name: bool) {
    let bytes = || text.iter().map(|byte| if is_name { byte.to_ascii_lowercase() } else { *byte });
    let coded = huffman::coded_bytes(bytes());
    if coded < text.len() {
        put_integer(out, flags | 1 << bits, bits, coded as u64);
        huffman::encode(bytes(), out);
    } else {
        put_integer(out, flags, bits, text.len() as u64);
        out.extend(bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back() {
        for value in [0, 9, 30, 31, 32, 127, 128, 1337, 65_535, u64::from(u32::MAX), (1 << 62) - 1]
        {
            for bits in 3..=8 {
                let mut out = Vec::new();
                put_integer(&mut out, 0, bits, value);
                let mut packed = Packed::<9>(&out);
                assert_eq!((packed.integer(bits), packed.0), (Ok(value), &[][..]));
                let mut short = Packed::<9>(&out[..out.len() - 1]);
                assert_eq!(short.integer(bits), Err(Unread::Short));
            }
        }
        // Section C.1.2.
        let mut out = Vec::new();
        put_integer(&mut out, 0, 5, 1337);
        assert_eq!(out, [31, 154, 10]);
    }

    #[test]
    fn strings_are_coded_where_that_makes_them_shorter() {
        let put = |text: &[u8], is_name| {
            let mut out = Vec::new();
            put_string(&mut out, 0, 7, text, is_name);
            out
        };
        // RFC 7541, section C.4.1.
        let coded = [140, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(put(b"www.example.com", false), coded);
        assert_eq!(put(b"WWW.Example.COM", true), coded);
        assert_eq!(put(b"\x01", false), [1, 1]);
    }

    #[test]
    fn an_integer_has_a_longest_form() {
        let padded = [255, 128, 128, 128, 0];
        assert_eq!(Packed::<4>(&padded).integer(8), Ok(255));
        assert_eq!(Packed::<3>(&padded).integer(8), Err(Unread::Broken));
        assert_eq!(Packed::<9>(&[255; 10]).integer(8), Err(Unread::Broken));
    }
}
