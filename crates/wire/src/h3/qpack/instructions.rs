//! What a client's encoder says (RFC 9204, section 4.3).

use super::Packed;
use crate::packed::Unread;

/// A text, perhaps coded.
pub(super) type Text<'a> = (bool, &'a [u8]);

/// An instruction. Numbers of the dynamic table count from the newest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Instruction<'a> {
    Capacity(u64),
    /// A field with the name of one of the static table, or of the dynamic one.
    InsertNamed {
        is_static: bool,
        number: usize,
        value: Text<'a>,
    },
    Insert {
        name: Text<'a>,
        value: Text<'a>,
    },
    Duplicate(usize),
}

/// The first instruction, once all of it is there; nothing is decoded before. No text has more than `text_bytes_max`.
pub(super) fn read<'a>(
    packed: &mut Packed<'a>,
    text_bytes_max: usize,
) -> Result<Instruction<'a>, Unread> {
    let first = *packed.0.first().ok_or(Unread::Short)?;
    let text = |packed: &mut Packed<'a>, bits| {
        // One that is too long is not waited for.
        match packed.clone().number(bits)? > text_bytes_max {
            true => Err(Unread::Broken),
            false => packed.raw_string(bits),
        }
    };
    Ok(match first {
        0x80.. => {
            let number = packed.number(6)?;
            let value = text(packed, 7)?;
            Instruction::InsertNamed { is_static: first & 0x40 != 0, number, value }
        }
        0x40.. => Instruction::Insert { name: text(packed, 5)?, value: text(packed, 7)? },
        0x20.. => Instruction::Capacity(packed.integer(5)?),
        _ => Instruction::Duplicate(packed.number(5)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_read_when_they_are_whole() {
        let value = (false, &b"ab"[..]);
        let examples: [(&[u8], Instruction<'_>); 5] = [
            (&[0x3f, 0xbd, 0x01], Instruction::Capacity(220)),
            (
                &[0xff, 0x01, 2, b'a', b'b'],
                Instruction::InsertNamed { is_static: true, number: 64, value },
            ),
            (
                &[0x83, 2, b'a', b'b'],
                Instruction::InsertNamed { is_static: false, number: 3, value },
            ),
            (&[0x61, 0x1f, 2, b'a', b'b'], Instruction::Insert { name: (true, &[0x1f]), value }),
            (&[0x02], Instruction::Duplicate(2)),
        ];
        for (bytes, expected) in examples {
            assert_eq!(read(&mut Packed::new(bytes), 2), Ok(expected));
            for end in 0..bytes.len() {
                let mut short = Packed::new(&bytes[..end]);
                assert_eq!(read(&mut short, 2), Err(Unread::Short));
            }
        }
        let long = [0x43, b'a'];
        assert_eq!(read(&mut Packed::new(&long), 2), Err(Unread::Broken));
    }
}
