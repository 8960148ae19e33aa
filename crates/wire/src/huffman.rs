//! The Huffman code of header fields (RFC 7541, appendix B), which QPACK shares.

/// Bits of each byte's code, and of the mark of the end. The code is canonical: that says all of it.
#[rustfmt::skip]
const BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
const BITS_MAX: u8 = 30;

/// Each symbol's code, in the lowest bits.
const CODES: [u32; 257] = codes();

const fn codes() -> [u32; 257] {
    let mut codes = [0; 257];
    let (mut next, mut bits) = (0, 1);
    while bits <= BITS_MAX {
        let mut symbol = 0;
        while symbol < 257 {
            if BITS[symbol] == bits {
                codes[symbol] = next;
                next += 1;
            }
            symbol += 1;
        }
        next <<= 1;
        bits += 1;
    }
    codes
}

/// What four bits do in a state of the decoder. No code is that short, so they end one byte at most.
#[derive(Clone, Copy)]
struct Step {
    next: u8,
    byte: u8,
    flags: u8,
}

const HAS_BYTE: u8 = 1;
/// The mark of the end must not be in a text.
const FAILS: u8 = 2;
/// A text may end here: what is left is less than a byte of ones.
const MAY_END: u8 = 4;

static STEPS: [[Step; 16]; 256] = steps();

/// A leaf of the tree: this, and the symbol.
const LEAF: u16 = 256;

/// Inner nodes with their two branches.
const fn tree() -> [[u16; 2]; 256] {
    let (mut nodes, mut count) = ([[0; 2]; 256], 1);
    let mut symbol = 0;
    while symbol < 257 {
        let (mut node, mut bit) = (0, BITS[symbol]);
        while bit > 1 {
            bit -= 1;
            let branch = (CODES[symbol] >> bit & 1) as usize;
            if nodes[node][branch] == 0 {
                nodes[node][branch] = count;
                count += 1;
            }
            node = nodes[node][branch] as usize;
        }
        nodes[node][(CODES[symbol] & 1) as usize] = LEAF + symbol as u16;
        symbol += 1;
    }
    nodes
}

const fn steps() -> [[Step; 16]; 256] {
    let nodes = tree();
    let mut may_end = [false; 256];
    let (mut node, mut ones) = (0, 0);
    while ones < 8 {
        may_end[node] = true;
        node = nodes[node][1] as usize;
        ones += 1;
    }
    let mut steps = [[Step { next: 0, byte: 0, flags: 0 }; 16]; 256];
    let mut state = 0;
    while state < 256 {
        let mut four = 0;
        while four < 16 {
            let mut step = Step { next: 0, byte: 0, flags: 0 };
            let (mut node, mut bit) = (state, 4);
            while bit > 0 {
                bit -= 1;
                let to = nodes[node][four >> bit & 1];
                node = to as usize;
                if to == LEAF + 256 {
                    step.flags |= FAILS;
                    node = 0;
                } else if to >= LEAF {
                    step.flags |= HAS_BYTE;
                    step.byte = (to - LEAF) as u8;
                    node = 0;
                }
            }
            step.next = node as u8;
            if may_end[node] {
                step.flags |= MAY_END;
            }
            steps[state][four] = step;
            four += 1;
        }
        state += 1;
    }
    steps
}

/// A text that no one can have coded so.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Broken;

/// Appends what `coded` says.
///
/// # Errors
/// [`Broken`]: it holds the mark of the end, or ends in the middle of a byte's code.
pub fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
    let (mut state, mut flags) = (0, MAY_END);
    for byte in coded {
        for four in [byte >> 4, byte & 15] {
            let step = STEPS[usize::from(state)][usize::from(four)];
            if step.flags & FAILS != 0 {
                return Err(Broken);
            }
            if step.flags & HAS_BYTE != 0 {
                out.push(step.byte);
            }
            (state, flags) = (step.next, step.flags);
        }
    }
    if flags & MAY_END == 0 { Err(Broken) } else { Ok(()) }
}

/// How many bytes `text` takes when it is coded.
pub fn coded_bytes(text: impl Iterator<Item = u8>) -> usize {
    let bits: usize = text.map(|byte| usize::from(BITS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Appends `text`, coded.
pub fn encode(text: impl Iterator<Item = u8>, out: &mut Vec<u8>) {
    let (mut held, mut count) = (0u64, 0);
    for byte in text {
        let bits = u32::from(BITS[usize::from(byte)]);
        held = held << bits | u64::from(CODES[usize::from(byte)]);
        count += bits;
        // Below that there is room for the longest code.
        if count >= 32 {
            count -= 32;
            #[expect(clippy::cast_possible_truncation, reason = "the bytes wanted")]
            out.extend_from_slice(&((held >> count) as u32).to_be_bytes());
        }
    }
    while count >= 8 {
        count -= 8;
        #[expect(clippy::cast_possible_truncation, reason = "the byte wanted")]
        out.push((held >> count) as u8);
    }
    if count > 0 {
        #[expect(clippy::cast_possible_truncation, reason = "the byte wanted")]
        out.push((held << (8 - count)) as u8 | 0xff >> count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(text.iter().copied(), &mut out);
        assert_eq!(out.len(), coded_bytes(text.iter().copied()));
        out
    }

    #[test]
    fn texts_are_coded_as_the_rfc_has_them() {
        // RFC 7541, appendix C.4 and C.6.
        let examples: [(&[u8], &[u8]); 4] = [
            (
                b"www.example.com",
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
            ),
            (b"no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            (b"302", &[0x64, 0x02]),
            (b"private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
        ];
        for (text, code) in examples {
            assert_eq!(coded(text), code);
        }
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        for text in [&all[..], b"", b"a", b"~~~~~~~~", &[0; 9], &[10, 13, 22, 249]] {
            let mut back = Vec::new();
            assert_eq!(decode(&coded(text), &mut back), Ok(()));
            assert_eq!(back, text);
        }
    }

    #[test]
    fn what_no_one_coded_is_broken() {
        // A byte of padding; zeros as padding; the mark of the end (section 5.2).
        for broken in [&[0x1f, 0xff][..], &[0x18], &[0xff, 0xff, 0xff, 0xff], &[0xff]] {
            assert_eq!(decode(broken, &mut Vec::new()), Err(Broken), "{broken:x?}");
        }
    }
}
