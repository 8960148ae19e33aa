//! Codings over the libraries kept for them.

use super::{Coding, Effort};
use brotli::CompressorWriter;
use bytes::Bytes;
use flate2::write::{GzEncoder, MultiGzDecoder};
use flate2::{Compress, Compression, Crc, FlushCompress, GzBuilder, Status};
use std::io::{self, Write as _};

/// Bytes that Brotli gathers before it works; the library's own choice.
const BROTLI_BUFFER: usize = 4096;
/// Bytes of gzip decoded at once. They may become a thousand times as many.
const DECODED_AT_ONCE: usize = 1024;

/// Compresses a body whole. The head carries no time and no name, so equal bodies stay equal.
pub fn compress(bytes: &[u8], effort: Effort) -> Bytes {
    const MEMORY: &str = "writing to memory cannot fail";
    let buffer = Vec::with_capacity(bytes.len() / 3 + 64);
    match effort.coding {
        Coding::Gzip => {
            let mut encoder: GzEncoder<Vec<u8>> =
                GzBuilder::new().write(buffer, Compression::new(effort.level.into()));
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

/// Codes a body piece by piece.
pub struct Coder {
    inner: Inner,
    /// What it makes; `None` when it undoes a coding.
    pub coding: Option<Coding>,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// A change of content, piece by piece, that is no coding.
pub trait Rewrite {
    /// Takes a piece; appends what is ready. What must wait for more is kept.
    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>);

    /// Appends what was kept.
    fn finish(&mut self, out: &mut Vec<u8>);
}

enum Inner {
    Gzip(Gzip),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
    Gunzip(MultiGzDecoder<Vec<u8>>),
    Rewrite(Box<dyn Rewrite>),
}

impl std::fmt::Debug for Coder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coder").field("coding", &self.coding).finish_non_exhaustive()
    }
}

impl Coder {
    pub fn new(effort: Effort) -> Self {
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
        Self { inner, coding: Some(effort.coding), bytes_in: 0, bytes_out: 0 }
    }

    /// One that undoes gzip.
    pub fn gunzip() -> Self {
        let inner = Inner::Gunzip(MultiGzDecoder::new(Vec::new()));
        Self { inner, coding: None, bytes_in: 0, bytes_out: 0 }
    }

    /// One that rewrites.
    pub fn rewrite(rewrite: impl Rewrite + 'static) -> Self {
        let inner = Inner::Rewrite(Box::new(rewrite));
        Self { inner, coding: None, bytes_in: 0, bytes_out: 0 }
    }

    /// Bytes it takes at once.
    pub fn takes(&self) -> usize {
        match self.inner {
            Inner::Gunzip(_) => DECODED_AT_ONCE,
            _ => usize::MAX,
        }
    }

    /// Takes a piece; returns what is ready, and with `is_flushed` everything so far.
    ///
    /// # Errors
    /// What is to be decoded is not what it says.
    pub fn write(&mut self, bytes: &[u8], is_flushed: bool) -> io::Result<Bytes> {
        self.bytes_in += bytes.len() as u64;
        let out = match &mut self.inner {
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
            Inner::Gunzip(gunzip) => {
                gunzip.write_all(bytes)?;
                gunzip.flush()?;
                std::mem::take(gunzip.get_mut()).into()
            }
            Inner::Rewrite(rewrite) => {
                let mut out = Vec::with_capacity(bytes.len());
                rewrite.write(bytes, &mut out);
                out.into()
            }
        };
        self.bytes_out += out.len() as u64;
        Ok(out)
    }

    /// The rest, and whatever the coding ends with.
    ///
    /// # Errors
    /// What is to be decoded ends too early.
    pub fn finish(&mut self) -> io::Result<Bytes> {
        // Replaced, because the libraries end by value.
        let inner = std::mem::replace(&mut self.inner, Inner::Gzip(Gzip::new(1)));
        let out = match inner {
            Inner::Gzip(mut gzip) => gzip.finish(),
            Inner::Brotli(brotli) => brotli.into_inner().into(),
            Inner::Zstd(zstd) => zstd.finish()?.into(),
            Inner::Gunzip(gunzip) => gunzip.finish()?.into(),
            Inner::Rewrite(mut rewrite) => {
                let mut out = Vec::new();
                rewrite.finish(&mut out);
                out.into()
            }
        };
        self.bytes_out += out.len() as u64;
        Ok(out)
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
            deflate: Compress::new(Compression::new(level.into()), false),
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
                let mut coder = Coder::new(effort);
                let mut out = Vec::new();
                for (index, part) in body.chunks(piece).enumerate() {
                    out.extend_from_slice(&coder.write(part, index % 3 == 0).unwrap());
                }
                out.extend_from_slice(&coder.finish().unwrap());
                assert_eq!(decode(coding, &out), body);
                assert_eq!(
                    (coder.bytes_in, coder.bytes_out),
                    (body.len() as u64, out.len() as u64)
                );
            }
        }
    }

    #[test]
    fn gzip_is_undone_or_refused() {
        let body = vec![b'x'; 100_000];
        let zipped = compress(&body, Effort::gzip(6));
        let undo = |bytes: &[u8]| {
            let mut coder = Coder::gunzip();
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
