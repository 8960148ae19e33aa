//! The target of a request line: where its path begins, and which authority it names (RFC 9112, section 3.2).

use super::WireError;
use std::ops::Range;

/// Refuses what no target begins with.
pub(super) fn check_start(target: &[u8]) -> Result<(), WireError> {
    match target.first() {
        None | Some(b'/') => Ok(()),
        Some(byte) if byte.is_ascii_alphabetic() => {
            const BEHIND: &[u8] = b"://";
            let behind = &target[scheme_bytes(target)..];
            let behind = &behind[..behind.len().min(BEHIND.len())];
            if BEHIND.starts_with(behind) { Ok(()) } else { Err(WireError::RequestLine) }
        }
        Some(_) => Err(WireError::RequestLine),
    }
}

fn scheme_bytes(target: &[u8]) -> usize {
    target.iter().take_while(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b)).count()
}

/// `host:port`, as only CONNECT has it.
pub(super) fn authority_form(
    input: &[u8],
    target: &Range<usize>,
) -> Result<Range<usize>, WireError> {
    let bytes = &input[target.clone()];
    let colon = bytes.iter().rposition(|byte| *byte == b':').ok_or(WireError::RequestLine)?;
    let port = &bytes[colon + 1..];
    let is_port = !port.is_empty() && port.iter().all(u8::is_ascii_digit);
    if colon == 0 || !is_port || bytes.contains(&b'/') {
        return Err(WireError::RequestLine);
    }
    Ok(target.clone())
}

/// Origin-form and absolute-form; `*` and authority-form are refused as nginx does.
pub(super) fn split(
    input: &[u8],
    target: &Range<usize>,
) -> Result<(Option<Range<usize>>, Range<usize>), WireError> {
    let bytes = &input[target.clone()];
    check_start(bytes)?;
    if bytes.first() == Some(&b'/') {
        return Ok((None, target.clone()));
    }
    let scheme_bytes = scheme_bytes(bytes);
    let Some(rest) = bytes[scheme_bytes..].strip_prefix(b"://") else {
        return Err(WireError::RequestLine);
    };
    let authority_start = target.start + scheme_bytes + 3;
    let authority_bytes = authority_bytes(rest);
    let authority = authority_start..authority_start + authority_bytes;
    let path_and_query = match rest.get(authority_bytes) {
        _ if authority_bytes == 0 => return Err(WireError::RequestLine),
        Some(b'/' | b'?') => authority.end..target.end,
        Some(_) => return Err(WireError::RequestLine),
        // The path is empty, which is written "/": as nginx, the one behind the scheme.
        None => authority_start - 1..authority_start,
    };
    Ok((Some(authority), path_and_query))
}

/// The length of the host and port that stand in a target, as far as the bytes can be those of one.
fn authority_bytes(rest: &[u8]) -> usize {
    let is_in_address =
        |byte: &u8| byte.is_ascii_alphanumeric() || b":-._~!$&'()*+,;=".contains(byte);
    let host = match rest.first() {
        Some(b'[') => {
            let address = rest[1..].iter().take_while(|byte| is_in_address(byte)).count();
            let is_closed = rest.get(address + 1) == Some(&b']');
            address + 1 + usize::from(is_closed)
        }
        _ => rest.iter().take_while(|b| b.is_ascii_alphanumeric() || b"-.".contains(b)).count(),
    };
    let digits = |from: usize| rest[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    match rest.get(host) {
        Some(b':') if host > 0 => host + 1 + digits(host + 1),
        _ => host,
    }
}
