//! Name and password of a request, and the base64 they come in.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use base64::prelude::BASE64_STANDARD;

/// The user name of a `Basic` authorization.
pub fn basic_user(value: &[u8]) -> Option<Vec<u8>> {
    basic_credentials(value).map(|(user, _)| user)
}

/// Name and password of a `Basic` authorization (RFC 7617).
pub fn basic_credentials(value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, token) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = decode_base64(token.trim_ascii())?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    (colon > 0).then(|| (decoded[..colon].to_vec(), decoded[colon + 1..].to_vec()))
}

/// As nginx: without regard to the bits that are left over at the end.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, NO_PAD.with_decode_allow_trailing_bits(true));

/// Base64 of the standard alphabet, with its padding.
pub fn encode_base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// What base64, of either alphabet, spells up to its padding; `None` for other letters, or a letter that is alone.
pub fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let letters = text.iter().take_while(|byte| **byte != b'=').map(|byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        byte => *byte,
    });
    LENIENT.decode(letters.collect::<Vec<u8>>()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_basic_credentials() {
        assert_eq!(basic_user(b"Basic YWxpY2U6cHc=").as_deref(), Some(&b"alice"[..]));
        assert_eq!(basic_user(b"Bearer x"), None);
        assert_eq!(basic_user(b"Basic !"), None);
    }

    #[test]
    fn base64_is_read_as_nginx_reads_it() {
        for (text, bytes) in [
            (&b"-_-_"[..], Some(&b"\xfb\xff\xbf"[..])),
            (b"+/-_", Some(b"\xfb\xff\xbf")),
            (b"YWI", Some(b"ab")),
            (b"YWI=", Some(b"ab")),
            (b"YWJ=YWI", Some(b"ab")),
            (b"", Some(b"")),
            (b"YWJjZ", None),
            (b"YW I", None),
        ] {
            assert_eq!(decode_base64(text).as_deref(), bytes, "{}", text.escape_ascii());
        }
    }
}
