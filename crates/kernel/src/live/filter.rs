//! Which requests a viewer wants to see.

use crate::live::reason::Reason;
use memchr::memmem;
use yorozu_http::field::argument;
use yorozu_http::uri::unescape;

/// Longest word that is looked for, in bytes; chosen.
const WORD_BYTES_MAX: usize = 200;

/// What of a request a filter looks at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen<'a> {
    pub host: &'a [u8],
    pub path: &'a [u8],
    pub status: u16,
    pub micros: u64,
    /// Why the cache did not answer.
    pub reason: Option<Reason>,
}

/// What a request must have; a field that is not set admits all.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Filter {
    /// Only what the cache did not answer.
    pub is_miss: bool,
    /// The host, without case.
    pub host: Option<String>,
    /// What the path contains.
    pub uri: Option<String>,
    /// The name of a reason.
    pub reason: Option<String>,
    /// A status, or the first digit of a class.
    pub status: Option<u16>,
    /// Least time in milliseconds.
    pub slow: u64,
}

impl Filter {
    /// From the arguments `miss`, `host`, `uri`, `reason`, `status` (404, 5xx) and `slow` (milliseconds) of a query; those that
    /// are empty say nothing.
    ///
    /// # Errors
    /// What is wrong with one, and what was expected.
    pub fn of(args: &[u8]) -> Result<Self, String> {
        let text = |name: &str| {
            let value = unescape(argument(args, name.as_bytes())?);
            let value = String::from_utf8_lossy(&value).replace('\0', "");
            (!value.is_empty()).then_some(value)
        };
        let word = |name: &str| match text(name) {
            Some(word) if word.len() > WORD_BYTES_MAX => {
                Err(format!("\"{name}\" is longer than {WORD_BYTES_MAX} bytes"))
            }
            word => Ok(word),
        };
        let reason = word("reason")?;
        if let Some(name) = &reason {
            if !Reason::all().any(|reason| reason.name() == name) {
                return Err(format!("unknown reason \"{name}\""));
            }
        }
        let slow = text("slow").map(|slow| {
            let expected = || format!("invalid \"slow={slow}\", expected milliseconds");
            slow.parse().map_err(|_| expected())
        });
        Ok(Self {
            is_miss: text("miss").is_some_and(|value| value != "0"),
            host: word("host")?.map(|host| host.to_lowercase()),
            uri: word("uri")?,
            reason,
            status: text("status").map(|status| self::status(&status)).transpose()?,
            slow: slow.transpose()?.unwrap_or(0),
        })
    }

    /// Whether a request is wanted.
    pub fn admits(&self, seen: &Seen<'_>) -> bool {
        let by_status = |status: u16| match status {
            class @ ..10 => seen.status / 100 == class,
            status => seen.status == status,
        };
        (!self.is_miss || seen.reason.is_some())
            && self.host.as_ref().is_none_or(|host| seen.host.eq_ignore_ascii_case(host.as_bytes()))
            && self.uri.as_ref().is_none_or(|uri| memmem::find(seen.path, uri.as_bytes()).is_some())
            && self
                .reason
                .as_ref()
                .is_none_or(|name| seen.reason.is_some_and(|reason| reason.name() == name))
            && self.status.is_none_or(by_status)
            && seen.micros >= self.slow.saturating_mul(1000)
    }
}

fn status(text: &str) -> Result<u16, String> {
    let number = text.strip_suffix("xx").unwrap_or(text).parse();
    let is_class = text.ends_with("xx");
    match number {
        Ok(class @ 1..=5) if is_class => Ok(class),
        Ok(status @ 100..=999) if !is_class => Ok(status),
        _ => Err(format!("invalid \"status={text}\", expected one like 404 or 5xx")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::cached::NotStored;

    #[test]
    fn what_is_asked_for_is_shown() {
        let seen = Seen {
            host: b"Shop.example",
            path: b"/blog/a",
            status: 502,
            micros: 5000,
            reason: Some(Reason::NotStored(NotStored::SetCookie)),
        };
        for shown in [
            "",
            "miss=1&host=shop.EXAMPLE&uri=%2Fblog&status=5xx&slow=5&reason=set-cookie",
            "status=502",
            "miss=&host=&status=",
        ] {
            assert!(Filter::of(shown.as_bytes()).unwrap().admits(&seen), "{shown}");
        }
        for hidden in ["host=example", "uri=c", "reason=vary", "status=404", "status=4xx", "slow=6"]
        {
            assert!(!Filter::of(hidden.as_bytes()).unwrap().admits(&seen), "{hidden}");
        }
        assert!(!Filter::of(b"miss=1").unwrap().admits(&Seen::default()));
        for wrong in ["reason=none", "status=5", "status=9xx", "status=abc", "slow=-1"] {
            assert!(Filter::of(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(Filter::of(format!("uri={}", "x".repeat(1000)).as_bytes()).is_err());
    }
}
