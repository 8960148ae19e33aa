//! Entity tags and the conditions built on them.

use crate::field;

/// `W/"…"` loses its `W/`.
fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Whether a tag of the list `field` matches `etag`.
///
/// `weak`: compare as `If-None-Match` does (RFC 9110, section 8.8.3.2); otherwise both must be
/// strong, as `If-Match` wants.
pub fn etag_matches(field: &[u8], etag: &[u8], weak: bool) -> bool {
    if field.trim_ascii() == b"*" {
        return true;
    }
    if !weak && etag.starts_with(b"W/") {
        return false;
    }
    field::list(field).any(
        |member| {
            if weak { opaque(member) == opaque(etag) } else { member == etag }
        },
    )
}

/// The weak form of a tag, for content that is equivalent and no longer the same bytes.
pub fn weaken(etag: &[u8]) -> Option<Vec<u8>> {
    if etag.starts_with(b"W/") {
        return Some(etag.to_vec());
    }
    let quoted = etag.len() >= 2 && etag.starts_with(b"\"") && etag.ends_with(b"\"");
    quoted.then(|| [b"W/", etag].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_and_strong_comparison_differ_as_the_table_of_rfc_9110_says() {
        let table = [
            ("W/\"1\"", "W/\"1\"", true, false),
            ("W/\"1\"", "W/\"2\"", false, false),
            ("W/\"1\"", "\"1\"", true, false),
            ("\"1\"", "\"1\"", true, true),
            ("\"0\", \"1\"", "\"1\"", true, true),
            ("*", "\"1\"", true, true),
        ];
        for (field, etag, weak, strong) in table {
            assert_eq!(etag_matches(field.as_bytes(), etag.as_bytes(), true), weak, "{field}");
            assert_eq!(etag_matches(field.as_bytes(), etag.as_bytes(), false), strong, "{field}");
        }
    }

    #[test]
    fn only_quoted_tags_can_be_weakened() {
        assert_eq!(weaken(b"\"a\"").as_deref(), Some(&b"W/\"a\""[..]));
        assert_eq!(weaken(b"W/\"a\"").as_deref(), Some(&b"W/\"a\""[..]));
        assert_eq!(weaken(b"a"), None);
    }
}
