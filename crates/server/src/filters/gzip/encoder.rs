//! The gzip format over a kept deflate library.

use bytes::Bytes;
use flate2::write::GzEncoder;
use flate2::{Compress, Compression, Crc, FlushCompress, GzBuilder, Status};
use std::io::Write as _;

/// Compresses a body whole. The head carries no time and no name, so equal bodies stay equal.
pub fn compress(bytes: &[u8], level: u8) -> Bytes {
    let buffer = Vec::with_capacity(bytes.len() / 3 + 64);
    let mut encoder: GzEncoder<Vec<u8>> =
        GzBuilder::new().write(buffer, Compression::new(level.into()));
    encoder.write_all(bytes).expect("writing to memory cannot fail");
    encoder.finish().expect("writing to memory cannot fail").into()
}

/// Compresses a body piece by piece.
pub struct Encoder {
    deflate: Compress,
    crc: Crc,
    has_begun: bool,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("bytes_in", &self.bytes_in).finish_non_exhaustive()
    }
}

/// RFC 1952, section 2.3: deflate, no flags, no time, unknown system.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

impl Encoder {
    pub fn new(level: u8) -> Self {
        Self {
            deflate: Compress::new(Compression::new(level.into()), false),
            crc: Crc::new(),
            has_begun: false,
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    /// Takes a piece; returns what is ready, and with `is_flushed` everything so far.
    pub fn write(&mut self, bytes: &[u8], is_flushed: bool) -> Bytes {
        self.crc.update(bytes);
        self.bytes_in += bytes.len() as u64;
        let flush = if is_flushed { FlushCompress::Sync } else { FlushCompress::None };
        self.run(bytes, flush)
    }

    /// The rest and the trailer.
    pub fn finish(&mut self) -> Bytes {
        let mut out = self.run(b"", FlushCompress::Finish).to_vec();
        out.extend(self.crc.sum().to_le_bytes());
        out.extend(self.crc.amount().to_le_bytes());
        self.bytes_out += 8;
        out.into()
    }

    fn run(&mut self, mut bytes: &[u8], flush: FlushCompress) -> Bytes {
        let mut out = Vec::with_capacity(bytes.len() / 2 + 256);
        if !self.has_begun {
            self.has_begun = true;
            out.extend(HEAD);
        }
        loop {
            out.reserve(1024);
            let (taken, room) = (self.deflate.total_in(), out.capacity() - out.len());
            let produced = self.deflate.total_out();
            let status =
                self.deflate.compress_vec(bytes, &mut out, flush).expect("deflate takes any bytes");
            let used = usize::try_from(self.deflate.total_in() - taken).unwrap_or(bytes.len());
            bytes = &bytes[used..];
            let filled =
                usize::try_from(self.deflate.total_out() - produced).unwrap_or(room) == room;
            let is_done = match flush {
                FlushCompress::Finish => status == Status::StreamEnd,
                _ => bytes.is_empty() && !filled,
            };
            if is_done {
                self.bytes_out += out.len() as u64;
                return out.into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read as _;

    fn decode(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        GzDecoder::new(bytes).read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn whole_and_piecewise_compression_can_be_undone() {
        let body: Vec<u8> = (0..50_000u32).flat_map(|n| n.to_string().into_bytes()).collect();
        assert_eq!(decode(&compress(&body, 2)), body);
        for piece in [1000, 65_536] {
            let mut encoder = Encoder::new(1);
            let mut out = Vec::new();
            for (index, part) in body.chunks(piece).enumerate() {
                out.extend_from_slice(&encoder.write(part, index % 3 == 0));
            }
            out.extend_from_slice(&encoder.finish());
            assert_eq!(decode(&out), body);
            assert_eq!(
                (encoder.bytes_in, encoder.bytes_out),
                (body.len() as u64, out.len() as u64)
            );
        }
    }
}
