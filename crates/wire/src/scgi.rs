//! SCGI: the netstring of headers that starts a request. The body follows it as it is, and the answer has no frames.
//!
//! # Source
//! "SCGI: A Simple Common Gateway Interface alternative", Neil Schemenauer, 2008.

use std::io::Write as _;

/// Headers that are being written.
#[derive(Debug)]
pub struct Headers {
    bytes: Vec<u8>,
    has_nul: bool,
}

/// The name of the header that has to come first.
pub const CONTENT_LENGTH: &[u8] = b"CONTENT_LENGTH";

impl Headers {
    /// The first header alone: how long the body is.
    pub fn new(content_bytes: u64) -> Self {
        let mut bytes = [CONTENT_LENGTH, b"\0"].concat();
        let _ = write!(bytes, "{content_bytes}\0");
        Self { bytes, has_nul: false }
    }

    /// Adds a header whose value `write` appends itself, and says whether it is wanted. [`CONTENT_LENGTH`] is there
    /// already: duplicate names are not allowed.
    pub fn pair_with(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool) {
        if name == CONTENT_LENGTH {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
        let value_at = self.bytes.len();
        if !write(&mut self.bytes) {
            self.bytes.truncate(start);
            return;
        }
        self.has_nul |= name.contains(&0) || self.bytes[value_at..].contains(&0);
        self.bytes.push(0);
    }

    /// The netstring; `None` if a name or value holds the byte that ends one: what comes behind it would be read as
    /// another header.
    pub fn finish(self) -> Option<Vec<u8>> {
        if self.has_nul {
            return None;
        }
        let mut out = Vec::with_capacity(self.bytes.len() + 8);
        let _ = write!(out, "{}:", self.bytes.len());
        out.extend_from_slice(&self.bytes);
        out.push(b',');
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(headers: &mut Headers, name: &str, value: &str) {
        headers.pair_with(name.as_bytes(), |out| {
            out.extend_from_slice(value.as_bytes());
            true
        });
    }

    #[test]
    fn the_length_of_the_body_comes_first() {
        let mut headers = Headers::new(27);
        add(&mut headers, "SCGI", "1");
        add(&mut headers, "CONTENT_LENGTH", "28");
        headers.pair_with(b"EMPTY", |_| false);
        assert_eq!(headers.finish().unwrap(), b"25:CONTENT_LENGTH\x0027\0SCGI\x001\0,");
    }

    #[test]
    fn a_value_cannot_become_a_header() {
        let mut headers = Headers::new(0);
        add(&mut headers, "A", "b\0REMOTE_USER\0root");
        assert_eq!(headers.finish(), None);
    }
}
