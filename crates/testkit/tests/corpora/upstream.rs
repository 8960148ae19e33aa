//! Heads of HTTP upstreams, trailer sections, and answers of memcached and Redis: in one piece or in two, the
//! result is the same, and nothing beyond the input is claimed.

use yorozu_wire::h1::{BareLf, Chunked, ChunkedStep, status_line, upstream_fields};
use yorozu_wire::memcached::{Reply, done, reply, value_end};
use yorozu_wire::redis;

pub(crate) fn check(input: &[u8]) {
    if let Ok(Some(line)) = status_line(input) {
        assert!(line.consumed <= input.len() && (100..1000).contains(&line.status));
        assert_eq!(status_line(&input[..line.consumed]), Ok(Some(line.clone())));
        for cut in 0..line.consumed {
            assert!(matches!(status_line(&input[..cut]), Ok(None)), "a line cut short is partial");
        }
        if let Ok(Some((fields, end))) = upstream_fields(input, line.consumed) {
            assert!(end <= input.len());
            assert!(fields.iter().all(|field| field.value.end as usize <= end));
        }
    }
    if let Ok(Some((answer, consumed))) = reply(input) {
        assert!(consumed <= input.len());
        if let Reply::Value { key, .. } = answer {
            assert!(key.end < consumed);
        }
    }
    let _ = value_end(input);
    let _ = done(input);
    if let Ok(Some((answer, consumed))) = redis::reply(input) {
        assert_eq!(redis::reply(&input[..consumed]), Ok(Some((answer.clone(), consumed))));
        for cut in 0..consumed {
            assert_eq!(redis::reply(&input[..cut]), Ok(None), "an answer cut short is partial");
            let mut reader = redis::Reader::default();
            let (done, first) = reader.read(&input[..cut]).expect("as in one piece");
            assert!(first.is_none() && done <= cut);
            let (rest, second) = reader.read(&input[done..]).expect("as in one piece");
            assert_eq!((done + rest, second.as_ref()), (consumed, Some(&answer)));
        }
    }
    let mut chunked = Chunked::with_trailers(BareLf::Accept);
    let mut at = 0;
    loop {
        match chunked.next(&input[at..]) {
            Ok(ChunkedStep::Data(range)) => at += range.end,
            Ok(ChunkedStep::Done(_)) => {
                let _ = upstream_fields(&chunked.take_trailers(), 0);
                break;
            }
            Ok(ChunkedStep::Partial(_)) | Err(_) => break,
        }
        assert!(at <= input.len());
    }
}
