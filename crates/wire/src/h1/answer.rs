//! A whole answer to a request of our own, for what is short and read whole: what issuers of certificates say, and
//! those who know their status.

use super::{BareLf, Chunked, ChunkedStep, slice, status_line, upstream_fields};
use crate::WireError;

/// Most bytes of a head; chosen.
const HEAD_BYTES_MAX: usize = 32 * 1024;

/// A whole answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// 200 to 999: what is said before the answer is passed over.
    pub status: u16,
    /// Names as written, and values.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// Without chunks around it.
    pub content: Vec<u8>,
}

impl Answer {
    /// The first value of a field.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let is_it = |(other, _): &&(Vec<u8>, Vec<u8>)| other.eq_ignore_ascii_case(name.as_bytes());
        self.fields.iter().find(is_it).map(|(_, value)| &value[..])
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnswerError {
    /// It is no HTTP/1.
    #[error("upstream sent an invalid answer: {0}")]
    Invalid(#[from] WireError),
    /// It is longer than any that is wanted.
    #[error("upstream sent too much")]
    TooMuch,
    /// The connection ended before it.
    #[error("upstream prematurely closed connection")]
    CutShort,
}

/// Reads one answer as it arrives.
#[derive(Debug)]
pub struct AnswerReader {
    has_content: bool,
    content_max: usize,
    /// What has arrived and is not read yet.
    input: Vec<u8>,
    /// With its content so far.
    begun: Option<(Answer, End)>,
}

#[derive(Debug)]
enum End {
    Length(usize),
    Chunks(Chunked),
    Connection,
}

impl AnswerReader {
    /// `has_content`: the request was no HEAD; `content_max`: most bytes of content.
    pub fn new(has_content: bool, content_max: usize) -> Self {
        Self { has_content, content_max, input: Vec::new(), begun: None }
    }

    /// Takes what has arrived; the answer, once it is whole.
    ///
    /// # Errors
    /// It is invalid, or too long.
    pub fn take(&mut self, arrived: &[u8]) -> Result<Option<Answer>, AnswerError> {
        self.input.extend_from_slice(arrived);
        if self.begun.is_none() {
            let Some(answer) = read_head(&mut self.input)? else {
                let is_too_long = self.input.len() > HEAD_BYTES_MAX;
                return if is_too_long { Err(AnswerError::TooMuch) } else { Ok(None) };
            };
            let end = self.end_of(&answer);
            self.begun = Some((answer, end));
        }
        let Some((answer, end)) = &mut self.begun else { return Ok(None) };
        let is_whole = end.take(&mut self.input, &mut answer.content)?;
        if answer.content.len() > self.content_max {
            return Err(AnswerError::TooMuch);
        }
        Ok(if is_whole { self.finish() } else { None })
    }

    /// The connection ended; `is_in_order`: as it shall, and not torn.
    ///
    /// # Errors
    /// The answer is not whole.
    pub fn ended(&mut self, is_in_order: bool) -> Result<Answer, AnswerError> {
        let is_whole = is_in_order && matches!(self.begun, Some((_, End::Connection)));
        let answer = if is_whole { self.finish() } else { None };
        answer.ok_or(AnswerError::CutShort)
    }

    fn end_of(&self, answer: &Answer) -> End {
        let length = answer.field("content-length");
        let length = length.and_then(|length| std::str::from_utf8(length).ok()?.parse().ok());
        match length {
            _ if !self.has_content || answer.status == 204 => End::Length(0),
            _ if answer.field("transfer-encoding").is_some() => {
                End::Chunks(Chunked::new(BareLf::Accept))
            }
            Some(length) => End::Length(length),
            None => End::Connection,
        }
    }

    fn finish(&mut self) -> Option<Answer> {
        self.begun.take().map(|(answer, _)| answer)
    }
}

impl End {
    /// Moves content out of the input; whether all of it is there.
    fn take(&mut self, input: &mut Vec<u8>, content: &mut Vec<u8>) -> Result<bool, WireError> {
        match self {
            Self::Connection => {
                content.append(input);
                Ok(false)
            }
            Self::Length(length) => {
                let left = length.saturating_sub(content.len()).min(input.len());
                content.extend(input.drain(..left));
                Ok(content.len() >= *length)
            }
            Self::Chunks(chunks) => loop {
                match chunks.next(input)? {
                    ChunkedStep::Data(range) => {
                        content.extend_from_slice(&input[range.clone()]);
                        input.drain(..range.end);
                    }
                    ChunkedStep::Done(_) => return Ok(true),
                    ChunkedStep::Partial(used) => {
                        input.drain(..used);
                        return Ok(false);
                    }
                }
            },
        }
    }
}

fn read_head(input: &mut Vec<u8>) -> Result<Option<Answer>, WireError> {
    loop {
        let Some(line) = status_line(input)? else { return Ok(None) };
        let Some((fields, end)) = upstream_fields(input, line.consumed)? else { return Ok(None) };
        let copied = |span| slice(input, span).to_vec();
        let fields =
            fields.iter().map(|field| (copied(&field.name), copied(&field.value))).collect();
        input.drain(..end);
        // What is said meanwhile.
        if (100..200).contains(&line.status) {
            continue;
        }
        return Ok(Some(Answer { status: line.status, fields, content: Vec::new() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT_MAX: usize = 1024;

    fn read(text: &[u8], has_content: bool) -> Result<(u16, String), AnswerError> {
        let mut reader = AnswerReader::new(has_content, CONTENT_MAX);
        let shown =
            |answer: Answer| (answer.status, String::from_utf8_lossy(&answer.content).into_owned());
        for byte in text {
            if let Some(answer) = reader.take(&[*byte])? {
                return Ok(shown(answer));
            }
        }
        reader.ended(true).map(shown)
    }

    #[test]
    fn answers_end_in_each_way() {
        let of = |text: &str| read(text.as_bytes(), true);
        let head = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nA: b\r\n";
        assert_eq!(of(&format!("{head}Content-Length: 2\r\n\r\nabc")), Ok((201, "ab".to_owned())));
        assert_eq!(of(&format!("{head}\r\nabc")), Ok((201, "abc".to_owned())));
        let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n");
        assert_eq!(of(&chunked), Err(AnswerError::CutShort));
        assert_eq!(of(&format!("{chunked}0\r\n\r\n")), Ok((201, "abc".to_owned())));
        assert_eq!(of(&format!("{head}Content-Length: 4\r\n\r\nabc")), Err(AnswerError::CutShort));
        assert_eq!(of("HTTP/1.1 204 No Content\r\n\r\n"), Ok((204, String::new())));
        let of_head = read(format!("{head}Content-Length: 4\r\n\r\n").as_bytes(), false);
        assert_eq!(of_head, Ok((201, String::new())));
        assert!(matches!(of("SSH-2.0"), Err(AnswerError::Invalid(_))));
        assert_eq!(of("HTTP/1.1 200"), Err(AnswerError::CutShort));
    }

    #[test]
    fn a_torn_connection_ends_no_answer() {
        let mut reader = AnswerReader::new(true, CONTENT_MAX);
        assert_eq!(reader.take(b"HTTP/1.1 200 OK\r\n\r\nabc"), Ok(None));
        assert_eq!(reader.ended(false), Err(AnswerError::CutShort));
    }

    #[test]
    fn answers_are_bounded() {
        let mut reader = AnswerReader::new(true, CONTENT_MAX);
        assert_eq!(reader.take(b"HTTP/1.1 200 OK\r\nA: "), Ok(None));
        assert_eq!(reader.take(&vec![b'a'; HEAD_BYTES_MAX]), Err(AnswerError::TooMuch));
        let mut reader = AnswerReader::new(true, CONTENT_MAX);
        assert_eq!(reader.take(b"HTTP/1.1 200 OK\r\n\r\n"), Ok(None));
        assert_eq!(reader.take(&vec![b'a'; CONTENT_MAX]), Ok(None));
        assert_eq!(reader.take(b"a"), Err(AnswerError::TooMuch));
    }
}
