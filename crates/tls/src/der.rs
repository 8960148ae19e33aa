//! Elements of DER with any tag: names hold kinds of text that libraries have no types for.

use std::fmt::Write as _;

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// An element made of parts.
pub(super) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let digits = length.to_be_bytes();
    let digits = &digits[digits.iter().take_while(|digit| **digit == 0).count()..];
    let head = match (length, u8::try_from(digits.len())) {
        (0..0x80, _) => vec![tag, u8::try_from(length).unwrap_or_default()],
        (_, count) => [&[tag, 0x80 | count.unwrap_or_default()], digits].concat(),
    };
    [&head[..], &parts.concat()].concat()
}

/// One element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element<'a> {
    pub tag: u8,
    pub content: &'a [u8],
    /// With tag and length.
    pub whole: &'a [u8],
}

impl<'a> Element<'a> {
    /// Takes the first element off the input.
    pub(super) fn take(input: &mut &'a [u8]) -> Option<Self> {
        const LONG_TAG: u8 = 0x1f;
        let (&tag, rest) = input.split_first()?;
        let (&first, rest) = rest.split_first()?;
        if tag & LONG_TAG == LONG_TAG {
            return None;
        }
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        let whole = &input[..input.len() - rest.len()];
        *input = rest;
        Some(Self { tag, content, whole })
    }

    /// Takes an element of one tag off the input.
    pub(super) fn take_tagged(input: &mut &'a [u8], tag: u8) -> Option<Self> {
        Self::take(input).filter(|element| element.tag == tag)
    }

    /// The only element of the input.
    pub(super) fn only(mut input: &'a [u8], tag: u8) -> Option<Self> {
        Self::take_tagged(&mut input, tag).filter(|_| input.is_empty())
    }

    /// The elements inside; `None` where something is not one.
    pub(super) fn inside(&self) -> Option<Vec<Self>> {
        let mut rest = self.content;
        let mut found = Vec::new();
        while !rest.is_empty() {
            found.push(Self::take(&mut rest)?);
        }
        Some(found)
    }

    /// An object identifier in numbers: `2.5.4.3`.
    pub(super) fn numbers(&self) -> Option<String> {
        const MORE: u8 = 0x80;
        let is_whole = self.content.last().is_some_and(|last| last & MORE == 0);
        if self.tag != OBJECT_IDENTIFIER || !is_whole {
            return None;
        }
        let mut out = String::new();
        let mut number = 0_u128;
        for byte in self.content {
            number = number.checked_mul(1 << 7)? | u128::from(byte & !MORE);
            if byte & MORE == 0 {
                // The first two stand in one (X.690, section 8.19.4).
                let _ = match (out.is_empty(), number) {
                    (true, 0..80) => write!(out, "{}.{}", number / 40, number % 40),
                    (true, _) => write!(out, "2.{}", number - 80),
                    (false, _) => write!(out, ".{number}"),
                };
                number = 0;
            }
        }
        Some(out)
    }
}
