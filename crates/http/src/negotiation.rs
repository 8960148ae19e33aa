//! Which content coding a client takes.

/// Does `Accept-Encoding` accept `coding` with a weight above zero?
///
/// As nginx, `*` does not stand for a coding, and only the exact token counts.
///
/// # Source
/// RFC 9110, section 12.5.3.
pub fn accepts(accept_encoding: &[u8], coding: &[u8]) -> bool {
    crate::field::list(accept_encoding).any(|member| {
        let mut parts = member.split(|byte| *byte == b';');
        let token = parts.next().unwrap_or_default().trim_ascii();
        token.eq_ignore_ascii_case(coding) && parts.all(|parameter| !is_zero_weight(parameter))
    })
}

fn is_zero_weight(parameter: &[u8]) -> bool {
    let parameter = parameter.trim_ascii();
    let Some((name, value)) = parameter.split_at_checked(2) else { return false };
    if !name.eq_ignore_ascii_case(b"q=") {
        return false;
    }
    let digits = value.iter().filter(|byte| byte.is_ascii_digit());
    value.starts_with(b"0") && digits.clone().all(|digit| *digit == b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_weight_refuses() {
        let table = [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.001", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("gzip;q=1", true),
            ("x-gzip", false),
            ("gzipped", false),
            ("*", false),
            ("", false),
        ];
        for (value, expected) in table {
            assert_eq!(accepts(value.as_bytes(), b"gzip"), expected, "{value}");
        }
    }
}
