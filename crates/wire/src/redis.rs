//! Redis' protocol (RESP 2): commands as a client writes them, and answers.
//!
//! # Source
//! Redis, "Redis serialization protocol specification".

use crate::WireError;

/// Longest answer, in bytes; chosen: above some purges of 10,000 URLs, and what a page may have.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Items of an answer, at all depths; chosen: above the places of some thousand nodes, below what would fill the memory: each
/// takes more of it than the few bytes that it is sent as.
const ITEMS_MAX: usize = 64 * 1024;
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
/// As [`Reader::read`].
pub fn reply(input: &[u8]) -> Result<Option<(Reply, usize)>, WireError> {
    let (consumed, found) = Reader::default().read(input)?;
    Ok(found.map(|reply| (reply, consumed)))
}

/// Reads an answer as it comes: what was read once is not read again, however many pieces it comes in.
#[derive(Debug, Default)]
pub struct Reader {
    /// Lists whose end has not come, each in the one before it.
    open: Vec<Open>,
    items: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Open {
    items: Vec<Reply>,
    missing: usize,
}

impl Reader {
    /// Goes on with what has come: how much of it is done with, and the answer once that is whole.
    ///
    /// # Errors
    /// [`WireError::Redis`], or [`WireError::RedisLength`]; nothing more can be read then.
    pub fn read(&mut self, input: &[u8]) -> Result<(usize, Option<Reply>), WireError> {
        let mut at = 0;
        loop {
            let begun = at;
            let Some(item) = self.item(input, &mut at)? else {
                let is_too_long = self.bytes + input.len() - begun > BYTES_MAX;
                return if is_too_long { Err(WireError::RedisLength) } else { Ok((begun, None)) };
            };
            self.bytes += at - begun;
            if let Some(reply) = self.close(item) {
                *self = Self::default();
                return Ok((at, Some(reply)));
            }
        }
    }

    /// The next line and its text; `None` if that is not whole. Of a list with items it is the beginning.
    fn item(&mut self, input: &[u8], at: &mut usize) -> Result<Option<Item>, WireError> {
        let Some(line) = line(input, at)? else { return Ok(None) };
        let (kind, rest) = line.split_first().ok_or(WireError::Redis)?;
        self.items += 1;
        if self.items > ITEMS_MAX {
            return Err(WireError::RedisLength);
        }
        let shown = || String::from_utf8_lossy(rest).into_owned();
        let reply = match kind {
            b'+' => Reply::Status(shown()),
            b'-' => Reply::Error(shown()),
            b':' => Reply::Number(number(rest)?),
            b'$' | b'*' => match (kind, number(rest)?) {
                (_, -1) => Reply::Nothing,
                (b'$', length) => {
                    let text = text(input, at, length, BYTES_MAX.saturating_sub(self.bytes))?;
                    // Its line is read again with it.
                    self.items -= usize::from(text.is_none());
                    return Ok(text.map(Item::Whole));
                }
                (_, 0) => Reply::List(Vec::new()),
                (_, count) => {
                    let missing = usize::try_from(count).map_err(|_| WireError::Redis)?;
                    if self.open.len() == DEPTH_MAX {
                        return Err(WireError::Redis);
                    }
                    return Ok(Some(Item::Begins(missing)));
                }
            },
            _ => return Err(WireError::Redis),
        };
        Ok(Some(Item::Whole(reply)))
    }

    /// Puts an item where it belongs; the answer, if that was its last.
    fn close(&mut self, item: Item) -> Option<Reply> {
        let mut whole = match item {
            Item::Whole(reply) => reply,
            Item::Begins(missing) => {
                self.open.push(Open { items: Vec::new(), missing });
                return None;
            }
        };
        while let Some(list) = self.open.last_mut() {
            list.items.push(whole);
            list.missing -= 1;
            if list.missing > 0 {
                return None;
            }
            whole = Reply::List(self.open.pop()?.items);
        }
        Some(whole)
    }
}

enum Item {
    Whole(Reply),
    /// A list of this many items.
    Begins(usize),
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

fn text(
    input: &[u8],
    at: &mut usize,
    length: i64,
    bytes_max: usize,
) -> Result<Option<Reply>, WireError> {
    let length = usize::try_from(length).map_err(|_| WireError::Redis)?;
    if length > bytes_max {
        return Err(WireError::RedisLength);
    }
    let Some(found) = input.get(*at..*at + length + 2) else { return Ok(None) };
    let bytes = found.strip_suffix(b"\r\n").ok_or(WireError::Redis)?;
    *at += length + 2;
    Ok(Some(Reply::Text(bytes.to_vec())))
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
        for text in [
            "HTTP\r\n",
            "\r\n",
            ":x\r\n",
            "+OK\n",
            "$1\r\nabc",
            "$-2\r\n",
            "*-2\r\n",
            "$x\r\n",
            &deep,
        ] {
            assert_eq!(reply(text.as_bytes()), Err(WireError::Redis), "{text}");
        }
        assert_eq!(reply(&[b'+'; LINE_BYTES_MAX]), Err(WireError::Redis));
    }

    #[test]
    fn what_is_longer_than_any_answer_is_refused_before_it_has_come() {
        let many = format!("*999999999999\r\n{}", ":1\r\n".repeat(ITEMS_MAX));
        let lists = "*9999999\r\n".to_owned() + &"*0\r\n".repeat(ITEMS_MAX);
        for text in ["$67108865\r\n", "$99999999999\r\n", &many, &lists] {
            let shown = &text[..text.len().min(20)];
            assert_eq!(reply(text.as_bytes()), Err(WireError::RedisLength), "{shown}");
        }
        // Of several texts it is all of them together.
        let half = vec![b'x'; BYTES_MAX / 2];
        let mut long = b"*2\r\n$33554432\r\n".to_vec();
        long.extend_from_slice(&half);
        long.extend_from_slice(b"\r\n$33554432\r\n");
        assert_eq!(reply(&long), Err(WireError::RedisLength));
    }

    #[test]
    fn an_answer_in_pieces_is_read_once() {
        let item = "*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n";
        let whole = format!("*5000\r\n{}", item.repeat(5000));
        let expected = reply(whole.as_bytes()).unwrap().unwrap().0;
        let (mut reader, mut input, mut read) = (Reader::default(), Vec::new(), 0);
        let mut found = None;
        for piece in whole.as_bytes().chunks(7) {
            assert!(found.is_none());
            input.extend_from_slice(piece);
            read += input.len();
            let (consumed, reply) = reader.read(&input).unwrap();
            input.drain(..consumed);
            found = reply;
        }
        assert_eq!(found, Some(expected));
        // Counted, not measured: a part of an item is seen again, no more.
        assert!(read < 4 * whole.len(), "{read} of {}", whole.len());
    }
}
