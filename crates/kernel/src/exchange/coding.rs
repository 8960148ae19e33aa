//! Content codings that responses are compressed with.

/// A content coding, in the order of preference among those a client likes as much.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Coding {
    Brotli,
    Zstd,
    Gzip,
}

impl Coding {
    pub const ALL: [Self; 3] = [Self::Brotli, Self::Zstd, Self::Gzip];

    /// Its name in `Content-Encoding` (RFC 9110, section 8.4.1; RFC 7932; RFC 8878).
    pub fn token(self) -> &'static [u8] {
        match self {
            Self::Brotli => b"br",
            Self::Zstd => b"zstd",
            Self::Gzip => b"gzip",
        }
    }

    /// Its place among the forms of a stored page; files of the cache hold it.
    pub fn place(self) -> usize {
        match self {
            Self::Gzip => 0,
            Self::Brotli => 1,
            Self::Zstd => 2,
        }
    }
}
