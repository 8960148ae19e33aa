//! HTTP/1: every prefix of a head that is refused stays refused, chunked bodies are the same
//! in all pieces, and targets are normalised to paths that need no further work.

use yorozu_http::{negotiation, range, uri};
use yorozu_wire::h1::{
    BareLf, Chunked, ChunkedStep, FieldRules, fields, fields_end, request_line, slice,
};

fn dechunk(input: &[u8], piece: usize) -> Option<Vec<u8>> {
    let (mut chunked, mut body, mut used, mut end) =
        (Chunked::new(BareLf::Refuse), Vec::new(), 0, 0);
    while end < input.len() {
        end = (end + piece).min(input.len());
        loop {
            match chunked.next(&input[used..end]).ok()? {
                ChunkedStep::Data(range) => {
                    body.extend_from_slice(&input[used + range.start..used + range.end]);
                    used += range.end;
                }
                ChunkedStep::Done(_) => return Some(body),
                ChunkedStep::Partial(count) => {
                    used += count;
                    break;
                }
            }
        }
    }
    None
}

pub(crate) fn check(input: &[u8]) {
    match request_line(input) {
        Ok(Some(line)) => {
            let start = line.consumed as usize;
            if let Some(end) = fields_end(input, start, start) {
                let mut out = Vec::new();
                if fields(input, start, end, FieldRules::default(), &mut out).is_ok() {
                    for field in &out {
                        assert!(!slice(input, &field.value).contains(&b'\n'));
                        assert!(!slice(input, &field.name).contains(&b':'));
                    }
                }
            }
            if let Ok(target) = uri::normalize(slice(input, &line.path_and_query), true) {
                assert!(!target.path.contains(&0));
                let again = uri::normalize(&target.path, true);
                let is_plain = !target.path.iter().any(|byte| b"%?#".contains(byte));
                if is_plain && target.path.first() == Some(&b'/') {
                    assert_eq!(again.map(|again| again.path), Ok(target.path));
                }
            }
        }
        Ok(None) => {}
        Err(error) => {
            let mut longer = input.to_vec();
            longer.push(b'x');
            assert_eq!(request_line(&longer), Err(error));
        }
    }
    assert_eq!(dechunk(input, 1), dechunk(input, usize::MAX / 2));
    let _ = uri::split_authority(input);
    let _ = negotiation::accepts(input, b"gzip");
    if let range::Wanted::Parts(parts) = range::parse(input, 1000, 16) {
        assert!(
            parts.len() <= 16 && parts.iter().all(|part| part.start < part.end && part.end <= 1000)
        );
    }
}
