//! FastCGI records and CGI heads of an application that sends anything.

use yorozu_wire::fastcgi::{HEAD_BYTES, RecordKind, decode_head, stream};
use yorozu_wire::h1::{slice, upstream_fields};

pub(crate) fn check(input: &[u8]) {
    if let Ok(Some(head)) = decode_head(input) {
        assert!(head.content_bytes <= 65535 && head.padding_bytes <= 255);
    }
    if let Ok(Some((fields, end))) = upstream_fields(input, 0) {
        assert!(end <= input.len());
        for field in &fields {
            assert!(!slice(input, &field.value).contains(&b'\n'));
        }
    }
    let mut out = Vec::new();
    stream(&mut out, RecordKind::Stdout, input);
    let head = decode_head(&out).expect("our own record").expect("it is whole");
    assert_eq!(head.kind, RecordKind::Stdout);
    assert!(out.len() >= HEAD_BYTES + head.content_bytes);
}
