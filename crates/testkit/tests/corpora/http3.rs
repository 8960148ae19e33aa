//! HTTP/3 streams of a client that sends anything, in any pieces: what comes of them does not depend on the pieces.

use yorozu_wire::h3::frame::{self, Broken};
use yorozu_wire::h3::qpack::{self, Acknowledgments, Decoder, Section};
use yorozu_wire::h3::{control, request};

/// Most bytes that one byte of a section may become: an entry of the table.
const GROWTH: usize = qpack::TABLE_BYTES;

pub(crate) fn check(input: &[u8]) {
    let Some((size, input)) = input.split_first() else { return };
    let size = usize::from(*size).max(1);
    assert_eq!(of_request(input, size), of_request(input, input.len().max(1)));
    assert_eq!(of_control(input, size), of_control(input, input.len().max(1)));
    assert_eq!(acknowledged(input, size), acknowledged(input, input.len().max(1)));
    if let Some((value, _)) = frame::read_integer(input) {
        let mut again = Vec::new();
        frame::put_integer(&mut again, value);
        assert_eq!(frame::read_integer(&again), Some((value, again.len())));
    }
    talk(input);
}

/// Sections and body of a request's stream.
fn of_request(input: &[u8], size: usize) -> Result<(Vec<u8>, Vec<u8>, u64), Broken> {
    let (mut reader, mut fields, mut body) = (request::Reader::default(), Vec::new(), Vec::new());
    for mut piece in input.chunks(size) {
        while let Some(part) = reader.next(&mut piece)? {
            match part {
                request::Part::Fields { part, .. } => fields.extend_from_slice(part),
                request::Part::Data { part, .. } => body.extend_from_slice(part),
            }
        }
        assert!(piece.is_empty());
    }
    reader.end()?;
    assert!(fields.len() + body.len() <= input.len());
    Ok((fields, body, reader.skipped()))
}

fn of_control(input: &[u8], size: usize) -> Result<Vec<control::Control>, Broken> {
    let (mut reader, mut found) = (control::Reader::default(), Vec::new());
    for mut piece in input.chunks(size) {
        while let Some(control) = reader.next(&mut piece)? {
            found.push(control);
        }
        assert!(piece.is_empty());
    }
    Ok(found)
}

fn acknowledged(input: &[u8], size: usize) -> Result<u32, Broken> {
    let mut reader = Acknowledgments::default();
    input.chunks(size).map(|piece| reader.read(piece)).sum()
}

/// A conversation: pieces behind their lengths, for the encoder stream or for the streams of requests. Two decoders, of which
/// one is given the encoder stream byte by byte, agree.
fn talk(mut input: &[u8]) {
    let mut whole = Decoder::new(qpack::TABLE_BYTES, 3);
    let mut split = Decoder::new(qpack::TABLE_BYTES, 3);
    while let Some(([kind, length], rest)) = input.split_first_chunk() {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        if kind.is_multiple_of(4) {
            let mut bytes = piece.chunks(1);
            let result = whole.encoder_stream(piece);
            assert_eq!(result, bytes.try_for_each(|byte| split.encoder_stream(byte)));
            if result.is_err() {
                return;
            }
            continue;
        }
        let stream = u64::from(*kind);
        let section = fields(&mut whole, stream, piece);
        assert_eq!(section, fields(&mut split, stream, piece));
        match section {
            Err(_) => return,
            Ok(Section::Blocked) => {}
            Ok(_) if kind % 4 == 1 => {
                whole.cancel(stream);
                split.cancel(stream);
            }
            Ok(_) => {
                let (mut said, mut also) = (Vec::new(), Vec::new());
                whole.take_acknowledgments(&mut said);
                split.take_acknowledgments(&mut also);
                assert_eq!(said, also);
            }
        }
        assert_eq!(whole.ready(), split.ready());
    }
}

/// What is decoded is bounded by the section, and comes back from our own encoder.
fn fields(decoder: &mut Decoder, stream: u64, section: &[u8]) -> Result<Section, Broken> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    let read = decoder.section(stream, section, |name, value| {
        bytes += name.len() + value.len();
        found.push((name.to_ascii_lowercase(), value.to_vec()));
        bytes < 1 << 16
    });
    assert!(bytes <= section.len().saturating_mul(GROWTH));
    let mut ours = Vec::new();
    qpack::put_prefix(&mut ours);
    found.iter().for_each(|(name, value)| qpack::put_field(&mut ours, name, value));
    let mut back = found.iter();
    let again = Decoder::new(0, 0).section(0, &ours, |name, value| {
        let (expected_name, expected) = back.next().expect("as many fields");
        assert_eq!((name, value), (&expected_name[..], &expected[..]));
        true
    });
    assert_eq!(again, Ok(Section::Whole));
    assert!(back.next().is_none());
    read
}
