//! Codings over the libraries kept for them.

use super::Effort;
use brotli::CompressorWriter;
use bytes::Bytes;
use flate2::write::{GzEncoder, MultiGzDecoder};
use flate2::{Compress, Compression, Crc, FlushCompress, GzBuilder, Status};
use std::fmt::Debug;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use yorozu_kernel::base::limits;
use yorozu_kernel::exchange::coding::Coding;
use yorozu_kernel::exchange::recode::Recode;

/// Bytes that Brotli gathers before it works; the library's own choice.
const BROTLI_BUFFER: usize = 4096;
/// Bytes of gzip decoded at once. They may become a thousand times as many.
const DECODED_AT_ONCE: usize = 1024;

/// The library's effort for one of nginx's levels. Its own level 1 is another algorithm: a fifth to a quarter more bytes than
/// zlib's; with 2 they are fewer, in less time than zlib takes. The others are as they are called (`docs/decisions/0010-codings.md`).
fn deflate_effort(level: u8) -> Compression {
    Compression::new(level.max(2).into())
}

/// Compresses a body whole. The head carries no time and no name, so equal bodies stay equal.
pub fn compress(bytes: &[u8], effort: Effort) -> Bytes {
    const MEMORY: &str = "writing to memory cannot fail";
    let buffer = Vec::with_capacity(bytes.len() / 3 + 64);
    match effort.coding {
        Coding::Gzip => {
            let mut encoder: GzEncoder<Vec<u8>> =
                GzBuilder::new().write(buffer, deflate_effort(effort.level));
            encoder.write_all(bytes).expect(MEMORY);
            encoder.finish().expect(MEMORY).into()
        }
        Coding::Brotli => {
            let (level, window) = (effort.level.into(), effort.window);
            let mut encoder = CompressorWriter::new(buffer, BROTLI_BUFFER, level, window);
            encoder.write_all(bytes).expect(MEMORY);
            encoder.into_inner().into()
        }
        Coding::Zstd => zstd::bulk::compress(bytes, effort.level.into()).expect(MEMORY).into(),
    }
}

/// What the coders of all clients take, in bytes.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Room for a coder, given back when it is dropped.
struct Room(u64);

impl Room {
    /// `None`: too many are at work. Gzip, which takes least, has half of all for itself.
    fn take(effort: Effort) -> Option<Self> {
        let bytes = effort.coder_bytes();
        let max = match effort.coding {
            Coding::Gzip => limits::CODERS_BYTES,
            Coding::Brotli | Coding::Zstd => limits::CODERS_BYTES / 2,
        };
        // One alone always has its room, at any level.
        let fits = |taken: u64| (taken == 0 || taken + bytes <= max).then_some(taken + bytes);
        TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Self(bytes))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

impl Effort {
    /// What a coder takes that has seen a megabyte, in bytes: measured, and rounded up.
    fn coder_bytes(self) -> u64 {
        const MB: u64 = 1024 * 1024;
        match (self.coding, self.level) {
            (Coding::Gzip, _) => 400 * 1024,
            (Coding::Brotli, 0..=1) => 5 * MB / 4,
            (Coding::Brotli, 2..=4) => 4 * MB,
            // Of small windows the library thinks it should look more closely.
            (Coding::Brotli, 5..=8) if self.window > 16 => 6 * MB,
            (Coding::Brotli, 5..=9) => 34 * MB,
            (Coding::Brotli, _) => 34 * MB + (8 << self.window),
            (Coding::Zstd, 0..=2) => 5 * MB / 4,
            (Coding::Zstd, 3..=5) => 4 * MB,
            (Coding::Zstd, 6..=8) => 8 * MB,
            (Coding::Zstd, 9..=11) => 16 * MB,
            (Coding::Zstd, 12..=19) => 84 * MB,
            (Coding::Zstd, _) => 724 * MB,
        }
    }
}

/// Codes a body piece by piece.
pub struct Coder {
    _room: Room,
    /// `None` at the end: the libraries end by value.
    inner: Option<Inner>,
    coding: Coding,
    bytes_in: u64,
    bytes_out: u64,
}

enum Inner {
    Gzip(Gzip),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

const ENDED: &str = "nothing comes after the end";

impl Debug for Coder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coder").field("coding", &self.coding).finish_non_exhaustive()
    }
}

impl Coder {
    /// `None`: too many are at work for other clients.
    pub fn new(effort: Effort) -> Option<Self> {
        let room = Room::take(effort)?;
        let inner = match effort.coding {
            Coding::Gzip => Inner::Gzip(Gzip::new(effort.level)),
            Coding::Brotli => {
                let (level, window) = (effort.level.into(), effort.window);
                let out = Vec::new();
                Inner::Brotli(Box::new(CompressorWriter::new(out, BROTLI_BUFFER, level, window)))
            }
            Coding::Zstd => {
                let encoder = zstd::stream::write::Encoder::new(Vec::new(), effort.level.into());
                Inner::Zstd(encoder.expect("the level was checked when it was read"))
            }
        };
        let coding = effort.coding;
        Some(Self { _room: room, inner: Some(inner), coding, bytes_in: 0, bytes_out: 0 })
    }
}

impl Recode for Coder {
    fn write(&mut self, bytes: &[u8], is_flushed: bool) -> io::Result<Bytes> {
        self.bytes_in += bytes.len() as u64;
        let out = match self.inner.as_mut().expect(ENDED) {
            Inner::Gzip(gzip) => gzip.write(bytes, is_flushed),
            Inner::Brotli(brotli) => {
                brotli.write_all(bytes)?;
                if is_flushed {
                    brotli.flush()?;
                }
                std::mem::take(brotli.get_mut()).into()
            }
            Inner::Zstd(zstd) => {
                zstd.write_all(bytes)?;
                if is_flushed {
                    zstd.flush()?;
                }
                std::mem::take(zstd.get_mut()).into()
            }
        };
        self.bytes_out += out.len() as u64;
        Ok(out)
    }

    fn finish(&mut self) -> io::Result<Bytes> {
        let out = match self.inner.take().expect(ENDED) {
            Inner::Gzip(mut gzip) => gzip.finish(),
            Inner::Brotli(brotli) => brotli.into_inner().into(),
            Inner::Zstd(zstd) => zstd.finish()?.into(),
        };
        self.bytes_out += out.len() as u64;
        Ok(out)
    }

    fn coded_bytes(&self) -> Option<(Coding, u64, u64)> {
        Some((self.coding, self.bytes_in, self.bytes_out))
    }
}

/// Undoes gzip piece by piece; nothing at the end.
pub(super) struct Gunzip(Option<MultiGzDecoder<Vec<u8>>>);

impl Default for Gunzip {
    fn default() -> Self {
        Self(Some(MultiGzDecoder::new(Vec::new())))
    }
}

impl Debug for Gunzip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gunzip").finish_non_exhaustive()
    }
}

impl Recode for Gunzip {
    fn takes(&self) -> usize {
        DECODED_AT_ONCE
    }

    fn write(&mut self, bytes: &[u8], _is_flushed: bool) -> io::Result<Bytes> {
        let decoder = self.0.as_mut().expect(ENDED);
        decoder.write_all(bytes)?;
        decoder.flush()?;
        Ok(std::mem::take(decoder.get_mut()).into())
    }

    fn finish(&mut self) -> io::Result<Bytes> {
        Ok(self.0.take().expect(ENDED).finish()?.into())
    }
}

/// Makes gzip piece by piece.
struct Gzip {
    deflate: Compress,
    crc: Crc,
    has_begun: bool,
}

/// RFC 1952, section 2.3: deflate, no flags, no time, unknown system.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

impl Gzip {
    fn new(level: u8) -> Self {
        Self {
            deflate: Compress::new(deflate_effort(level), false),
            crc: Crc::new(),
            has_begun: false,
        }
    }

    fn write(&mut self, bytes: &[u8], is_flushed: bool) -> Bytes {
        self.crc.update(bytes);
        let flush = if is_flushed { FlushCompress::Sync } else { FlushCompress::None };
        self.run(bytes, flush)
    }

    /// The rest and the trailer.
    fn finish(&mut self) -> Bytes {
        let mut out = self.run(b"", FlushCompress::Finish).to_vec();
        out.extend(self.crc.sum().to_le_bytes());
        out.extend(self.crc.amount().to_le_bytes());
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

    /// Markup of some 78 KB, of which zlib's level 1 makes 19,693 bytes.
    fn markup() -> Vec<u8> {
        const WORDS: [&str; 18] = [
            "ten",
            "thousand",
            "requests",
            "a",
            "second",
            "from",
            "a",
            "page",
            "that",
            "was",
            "made",
            "once",
            "and",
            "kept",
            "for",
            "everybody",
            "who",
            "asks",
        ];
        let (mut text, mut number) = (Vec::new(), 1_u32);
        while text.len() < 78_000 {
            let mut words = [""; 12];
            for word in &mut words {
                number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let drawn = number >> 16;
                *word = WORDS[((drawn * drawn) >> 16) as usize % WORDS.len()];
            }
            let (drawn, words) = (number >> 16, words.join(" "));
            let line =
                format!("<p class=\"c{}\" id=\"p{}\">{words}</p>\n", drawn % 7, drawn % 1000);
            text.extend(line.into_bytes());
        }
        text
    }

    #[test]
    fn the_least_level_of_gzip_makes_no_more_bytes_than_zlib() {
        let effort = Effort { coding: Coding::Gzip, level: 1, window: 0 };
        let text = markup();
        assert_eq!(text.len(), 78_030);
        let whole = compress(&text, effort).len();
        let mut coder = Coder::new(effort).unwrap();
        let pieces = coder.write(&text, false).unwrap().len() + coder.finish().unwrap().len();
        assert!(whole <= 19_693 && pieces <= 19_693, "{whole} {pieces}");
    }

    fn decode(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match coding {
            Coding::Gzip => GzDecoder::new(bytes).read_to_end(&mut out).unwrap(),
            Coding::Brotli => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out).unwrap(),
            Coding::Zstd => {
                out = zstd::stream::decode_all(bytes).unwrap();
                0
            }
        };
        out
    }

    #[test]
    fn whole_and_piecewise_compression_can_be_undone() {
        let body: Vec<u8> = (0..50_000u32).flat_map(|n| n.to_string().into_bytes()).collect();
        for coding in Coding::ALL {
            let effort = Effort { coding, level: 3, window: 19 };
            let whole = compress(&body, effort);
            assert!(whole.len() < body.len() / 2);
            assert_eq!(decode(coding, &whole), body);
            for piece in [1000, 65_536] {
                let mut coder = Coder::new(effort).unwrap();
                let mut out = Vec::new();
                for (index, part) in body.chunks(piece).enumerate() {
                    out.extend_from_slice(&coder.write(part, index % 3 == 0).unwrap());
                }
                out.extend_from_slice(&coder.finish().unwrap());
                assert_eq!(decode(coding, &out), body);
                assert_eq!(
                    coder.coded_bytes(),
                    Some((coding, body.len() as u64, out.len() as u64))
                );
            }
        }
    }

    #[test]
    fn gzip_is_undone_or_refused() {
        let body = vec![b'x'; 100_000];
        let zipped = compress(&body, Effort::gzip(6));
        let undo = |bytes: &[u8]| {
            let mut coder = Gunzip::default();
            let mut out = Vec::new();
            for part in bytes.chunks(7) {
                out.extend_from_slice(&coder.write(part, true)?);
            }
            out.extend_from_slice(&coder.finish()?);
            io::Result::Ok(out)
        };
        assert_eq!(undo(&zipped).unwrap(), body);
        assert!(undo(&zipped[..zipped.len() - 1]).is_err());
        assert!(undo(b"not gzip at all").is_err());
    }
}
