//! Which content coding a client takes.

/// Whether `Accept-Encoding` accepts `coding` with a weight above zero.
///
/// As nginx, `*` does not stand for a coding, and only the exact token counts.
///
/// # Source
/// RFC 9110, section 12.5.3.
pub fn accepts(accept_encoding: &[u8], coding: &[u8]) -> bool {
    weight(accept_encoding, coding).is_some()
}

/// The weight `Accept-Encoding` gives to `coding`, in thousandths; `None` if it is not accepted.
///
/// # Source
/// RFC 9110, sections 12.4.2 and 12.5.3.
pub fn weight(accept_encoding: &[u8], coding: &[u8]) -> Option<u16> {
    let found = crate::field::list(accept_encoding).find_map(|member| {
        let mut parts = member.split(|byte| *byte == b';');
        let token = parts.next().unwrap_or_default().trim_ascii();
        let is_it = token.eq_ignore_ascii_case(coding);
        is_it.then(|| weight_alone(parts))
    });
    found.filter(|weight| *weight > 0)
}

/// The weight among the parameters of a coding, which has no others: what else stands there may be meant to refuse it, and does.
fn weight_alone<'a>(parameters: impl Iterator<Item = &'a [u8]>) -> u16 {
    let mut given = parameters.map(<[u8]>::trim_ascii).filter(|parameter| !parameter.is_empty());
    match (given.next(), given.next()) {
        (None, _) => 1000,
        (Some(parameter), None) => thousandths(parameter).unwrap_or(0),
        (Some(_), Some(_)) => 0,
    }
}

/// The weight of one member of an `Accept-…` list, in thousandths.
pub(crate) fn quality(member: &[u8]) -> u16 {
    member.split(|byte| *byte == b';').skip(1).find_map(thousandths).unwrap_or(1000)
}

/// `q=0.5` as 500; `None` for another parameter. As nginx: what is no weight, or one above 1, is 0.
fn thousandths(parameter: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', rest @ ..] = parameter.trim_ascii() else { return None };
    let value = match rest {
        [b'=', value @ ..] => value,
        [] | [b' ' | b'\t', ..] => return Some(0),
        _ => return None,
    };
    let whole = match value.first() {
        Some(b'0') => 0,
        Some(b'1') => 1000,
        _ => return Some(0),
    };
    let decimals = match &value[1..] {
        [] => &[][..],
        [b'.', decimals @ ..] => decimals,
        _ => return Some(0),
    };
    if decimals.len() > 3 || !decimals.iter().all(u8::is_ascii_digit) {
        return Some(0);
    }
    let places = [100, 10, 1].into_iter().zip(decimals);
    let parts: u16 = places.map(|(place, digit)| place * u16::from(digit - b'0')).sum();
    Some(whole + parts).map(|weight| if weight > 1000 { 0 } else { weight })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_thousandths() {
        let weight = |text: &str| weight(text.as_bytes(), b"br");
        assert_eq!(weight("gzip, br"), Some(1000));
        assert_eq!(weight("br;q=0.5, gzip"), Some(500));
        assert_eq!(weight("br; q=0.875"), Some(875));
        assert_eq!(weight("br;q=1.0"), Some(1000));
        assert_eq!(weight("br;q=1."), Some(1000));
        for none in ["7", "1.001", "1.0000", "0.0001", "0.5x", "0.0:", "x", ".5", "-1"] {
            assert_eq!(weight(&format!("br;q={none}")), None, "{none}");
        }
        for none in ["q=", "q", "Q", "q =0.5", "q= 0.5", "qq=1", "q:1", "x=1", "q=1;x=1", "q=1;q=1"]
        {
            assert_eq!(weight(&format!("br;{none}")), None, "{none}");
            assert_eq!(weight(&format!("br; {none}, gzip")), None, "{none}");
        }
        for all in ["", " ", ";", ";q=1"] {
            assert_eq!(weight(&format!("br;{all}")), Some(1000), "{all}");
        }
        assert_eq!(weight("gzip"), None);
    }

    #[test]
    fn a_member_may_have_parameters_beside_its_weight() {
        let table = [
            ("en", 1000),
            ("en;level=1;q=0.5", 500),
            ("en;q=0.5;x=1", 500),
            ("en;quality=1", 1000),
            ("en;q", 0),
            ("en;q =1", 0),
        ];
        for (member, expected) in table {
            assert_eq!(quality(member.as_bytes()), expected, "{member}");
        }
    }

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
