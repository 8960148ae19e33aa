//! Lists inside field values.

/// The members of a comma-separated list, trimmed, empty ones left out.
///
/// # Source
/// RFC 9110, section 5.6.1.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|member| !member.is_empty())
}

/// As [`list`], where a comma inside a quoted string parts nothing.
pub fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    value
        .split(move |byte| {
            let is_plain = !std::mem::take(&mut is_escaped);
            match byte {
                b'\\' if is_quoted && is_plain => is_escaped = true,
                b'"' if is_plain => is_quoted = !is_quoted,
                _ => {}
            }
            *byte == b',' && !is_quoted
        })
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

/// Whether a CR, LF or NUL stands in a value: written as it is, it would be more than one line, or none.
pub fn has_break(value: &[u8]) -> bool {
    // Whether one of eight bytes is below 16: the highest bit of a byte is borrowed where its upper half is 0.
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let (mut rest, mut borrowed) = (value, 0);
    while let Some((eight, behind)) = rest.split_first_chunk() {
        let upper = u64::from_ne_bytes(*eight) & (ONES * 0xf0);
        borrowed |= upper.wrapping_sub(ONES) & !upper & (ONES * 0x80);
        rest = behind;
    }
    let unread = if borrowed == 0 { rest } else { value };
    unread.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
}

/// Whether the list holds `token`, compared without case.
pub fn list_has(value: &[u8], token: &[u8]) -> bool {
    list(value).any(|member| member.eq_ignore_ascii_case(token))
}

/// First position of `needle` in `haystack`, compared without case.
pub fn find_ignore_case(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window.eq_ignore_ascii_case(needle))
}

/// The value of one cookie in a `Cookie` field.
///
/// nginx compares names without case, takes the first match, looks for it behind `;` and `,`, and cuts at `;`.
pub fn cookie<'a>(field: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut rest = field;
    loop {
        let pair = rest.trim_ascii_start();
        let found = pair.split_at_checked(name.len()).and_then(|(found, behind)| {
            let value = behind.trim_ascii_start().strip_prefix(b"=")?;
            found.eq_ignore_ascii_case(name).then(|| value.trim_ascii_start())
        });
        if let Some(value) = found {
            let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
            return Some(&value[..end]);
        }
        let next = pair.iter().position(|byte| matches!(byte, b';' | b','))?;
        rest = &pair[next + 1..];
    }
}

/// The value of one argument of a query, not decoded; names compare without case.
pub fn argument<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    args.split(|byte| *byte == b'&').find_map(|pair| {
        let (found, rest) = pair.split_at_checked(name.len())?;
        let value = rest.strip_prefix(b"=")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_behind_semicolons_and_commas_and_ends_at_a_semicolon() {
        let of = |text: &'static str| cookie(text.as_bytes(), b"sid");
        for text in ["sid=m", "a=1; sid=m", "a=1,sid=m", "a=1, sid=m; b=2", "a=1;\tSID = m"] {
            assert_eq!(of(text), Some(&b"m"[..]), "{text}");
        }
        assert_eq!(of("sid=a,b; c"), Some(&b"a,b"[..]));
        assert_eq!(of("xsid=m; a=sid"), None);
    }

    #[test]
    fn cookies_and_arguments_are_found_by_whole_name() {
        assert_eq!(cookie(b"a=1; bc=2; c=3", b"c"), Some(&b"3"[..]));
        assert_eq!(cookie(b"a=1", b"A"), Some(&b"1"[..]));
        assert_eq!(cookie(b"ab=1", b"a"), None);
        assert_eq!(argument(b"x=1&yy=2&y=3", b"y"), Some(&b"3"[..]));
        assert_eq!(argument(b"x", b"x"), None);
        assert_eq!(argument(b"", b"x"), None);
    }

    #[test]
    fn a_break_is_found_wherever_it_stands() {
        for length in 0..40 {
            let plain: Vec<u8> =
                (0u8..=255).cycle().filter(|b| !b"\r\n\0".contains(b)).take(length).collect();
            assert!(!has_break(&plain), "{length}");
            for at in 0..length {
                for byte in *b"\r\n\0" {
                    let mut broken = plain.clone();
                    broken[at] = byte;
                    assert!(has_break(&broken), "{length} {at}");
                }
            }
        }
    }

    #[test]
    fn quoted_commas_part_nothing() {
        let found: Vec<&[u8]> = members(br#"a="b,\",c" , d"#).collect();
        assert_eq!(found, [&br#"a="b,\",c""#[..], b"d"]);
    }

    #[test]
    fn lists_are_trimmed_and_compared_without_case() {
        assert!(list_has(b"keep-alive , Close", b"close"));
        assert!(!list_has(b"closed", b"close"));
        assert_eq!(find_ignore_case(b"Mozilla MSIE 6", b"msie "), Some(8));
    }
}
