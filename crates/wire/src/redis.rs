//! Redis' protocol (RESP 2): commands as a client writes them, and answers.
//!
//! # Source
//! Redis, "Redis serialization protocol specification".

use crate::WireError;

/// Longest text in an answer, in bytes; chosen: above a purge of 10,000 URLs, and what a page may have.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest line: a status, an error, a length.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Lists in lists; what is asked for has four.
const DEPTH_MAX: usize = 8;

/// Appends a command of these words.
pub fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// An answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// `+OK`
    Status(String),
    /// `-ERR …`: the line.
    Error(String),
    /// `:1`
    Number(i64),
    /// `$3`: bytes.
    Text(Vec<u8>),
    /// `*2`: answers.
    List(Vec<Reply>),
    /// `$-1` or `*-1`: nothing is there.
    Nothing,
}

impl Reply {
    /// Its bytes, if it is a text or a status.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(bytes) => Some(bytes),
            Self::Status(line) => Some(line.as_bytes()),
            _ => None,
        }
    }

    /// Its items, if it is a list.
    pub fn list(&self) -> Option<&[Reply]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }
}

/// Reads an answer and says how long it is; `Ok(None)` if its end has not arrived.
///
/// # Errors
/// [`WireError::Redis`]
pub fn reply(input: &[u8]) -> Result<Option<(Reply, usize)>, WireError> {
    let mut at = 0;
    let found = read(input, &mut at, 0)?;
    Ok(found.map(|reply| (reply, at)))
}

fn read(input: &[u8], at: &mut usize, depth: usize) -> Result<Option<Reply>, WireError> {
    let Some(line) = line(input, at)? else { return Ok(None) };
    let (kind, rest) = line.split_first().ok_or(WireError::Redis)?;
    let shown = || String::from_utf8_lossy(rest).into_owned();
    let reply = match kind {
        b'+' => Reply::Status(shown()),
        b'-' => Reply::Error(shown()),
        b':' => Reply::Number(number(rest)?),
        b'$' | b'*' => match (kind, usize::try_from(number(rest)?)) {
            (_, Err(_)) => Reply::Nothing,
            (b'$', Ok(length)) => return text(input, at, length),
            (_, Ok(count)) => return list(input, at, count, depth),
        },
        _ => return Err(WireError::Redis),
    };
    Ok(Some(reply))
}

/// The line at `at`, without its end, behind which `at` then stands.
fn line<'a>(input: &'a [u8], at: &mut usize) -> Result<Option<&'a [u8]>, WireError> {
    let rest = &input[*at..];
    let Some(end) = memchr::memchr(b'\n', &rest[..rest.len().min(LINE_BYTES_MAX)]) else {
        return if rest.len() >= LINE_BYTES_MAX { Err(WireError::Redis) } else { Ok(None) };
    };
    *at += end + 1;
    rest[..end].strip_suffix(b"\r").map(Some).ok_or(WireError::Redis)
}

fn number(digits: &[u8]) -> Result<i64, WireError> {
    let text = std::str::from_utf8(digits).map_err(|_| WireError::Redis)?;
    text.parse().map_err(|_| WireError::Redis)
}

fn text(input: &[u8], at: &mut usize, length: usize) -> Result<Option<Reply>, WireError> {
    if length > BYTES_MAX {
        return Err(WireError::Redis);
    }
    let Some(found) = input.get(*at..*at + length + 2) else { return Ok(None) };
    let bytes = found.strip_suffix(b"\r\n").ok_or(WireError::Redis)?;
    *at += length + 2;
    Ok(Some(Reply::Text(bytes.to_vec())))
}

fn list(
    input: &[u8],
    at: &mut usize,
    count: usize,
    depth: usize,
) -> Result<Option<Reply>, WireError> {
    if depth == DEPTH_MAX {
        return Err(WireError::Redis);
    }
    let mut items = Vec::new();
    for _ in 0..count {
        match read(input, at, depth + 1)? {
            Some(item) => items.push(item),
            None => return Ok(None),
        }
    }
    Ok(Some(Reply::List(items)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_written() {
        let mut out = Vec::new();
        command(&mut out, &[b"SET", b"a b", b""]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$3\r\na b\r\n$0\r\n\r\n");
    }

    #[test]
    fn answers_are_read_once_they_are_whole() {
        let text = |text: &str| Reply::Text(text.into());
        let all = [
            ("+OK\r\n", Reply::Status("OK".to_owned())),
            ("-ERR no\r\n", Reply::Error("ERR no".to_owned())),
            (":-7\r\n", Reply::Number(-7)),
            ("$5\r\na\r\nbc\r\n", text("a\r\nbc")),
            ("$-1\r\n", Reply::Nothing),
            ("*-1\r\n", Reply::Nothing),
            ("*0\r\n", Reply::List(vec![])),
            (
                "*2\r\n*1\r\n$1\r\na\r\n:1\r\n",
                Reply::List(vec![Reply::List(vec![text("a")]), Reply::Number(1)]),
            ),
        ];
        for (bytes, expected) in all {
            let more = [bytes.as_bytes(), b"+more"].concat();
            assert_eq!(reply(&more), Ok(Some((expected, bytes.len()))), "{bytes}");
            for end in 0..bytes.len() {
                assert_eq!(reply(&bytes.as_bytes()[..end]), Ok(None), "{bytes} to {end}");
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let deep = "*1\r\n".repeat(9);
        for text in ["HTTP\r\n", "\r\n", ":x\r\n", "+OK\n", "$1\r\nabc", "$99999999999\r\n", &deep]
        {
            assert_eq!(reply(text.as_bytes()), Err(WireError::Redis), "{text}");
        }
        assert_eq!(reply(&[b'+'; LINE_BYTES_MAX]), Err(WireError::Redis));
    }
}
