//! HTTP/2 frames and blocks of fields of a client that sends anything.

use yorozu_wire::h2::frame::{self, Frame, HEAD_BYTES, Head};
use yorozu_wire::h2::hpack::{self, Decoder};
use yorozu_wire::huffman;

/// Most bytes that one byte of a block may become: an entry of the table, sent again.
const GROWTH: usize = hpack::TABLE_BYTES;

pub(crate) fn check(input: &[u8]) {
    let (mut rest, mut decoder) = (input, Decoder::default());
    while let Some(head) = Head::read(rest) {
        assert_eq!(&rest[3..5], &head.bytes()[3..5]);
        let Some(payload) = rest[HEAD_BYTES..].get(..head.length) else { break };
        rest = &rest[HEAD_BYTES + head.length..];
        match frame::read(&head, payload) {
            Ok(Frame::Data(part) | Frame::Headers(part) | Frame::Continuation(part)) => {
                assert!(part.len() <= payload.len());
                fields(&mut decoder, part);
            }
            Ok(Frame::Settings(pairs)) => {
                assert!(frame::settings(pairs).count() * 6 == pairs.len());
            }
            _ => {}
        }
    }
    fields(&mut Decoder::default(), input);
    let mut text = Vec::new();
    if huffman::decode(input, &mut text).is_ok() {
        let mut again = Vec::new();
        huffman::encode(text.iter().copied(), &mut again);
        assert_eq!(again, input, "a text has one code");
    }
}

/// What is decoded is bounded by the block, and comes back from our own encoder.
fn fields(decoder: &mut Decoder, block: &[u8]) {
    let (mut found, mut bytes) = (Vec::new(), 0);
    let _ = decoder.decode(block, |name, value| {
        bytes += name.len() + value.len();
        found.push((name.to_ascii_lowercase(), value.to_vec()));
        bytes < 1 << 16
    });
    assert!(bytes <= block.len().saturating_mul(GROWTH));
    let mut ours = vec![hpack::NO_TABLE];
    found.iter().for_each(|(name, value)| hpack::put_field(&mut ours, name, value));
    let mut back = found.iter();
    let read = Decoder::default().decode(&ours, |name, value| {
        let (expected_name, expected) = back.next().expect("as many fields");
        assert_eq!((name, value), (&expected_name[..], &expected[..]));
        true
    });
    assert_eq!(read, Ok(()));
    assert!(back.next().is_none());
}
