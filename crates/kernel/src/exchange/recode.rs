//! Changes of a content on its way: codings, conversions, replacements.

use super::coding::Coding;
use bytes::Bytes;
use std::fmt::Debug;
use std::io;

/// Changes a body piece by piece.
pub trait Recode: Debug {
    /// Bytes it takes at once.
    fn takes(&self) -> usize {
        usize::MAX
    }

    /// Takes a piece; returns what is ready, and with `is_flushed` everything so far.
    ///
    /// # Errors
    /// What is to be decoded is not what it says.
    fn write(&mut self, bytes: &[u8], is_flushed: bool) -> io::Result<Bytes>;

    /// What is left at the end.
    ///
    /// # Errors
    /// What is to be decoded ends too early.
    fn finish(&mut self) -> io::Result<Bytes>;

    /// The coding it makes, if it makes one, with the bytes taken and made so far.
    fn coded_bytes(&self) -> Option<(Coding, u64, u64)> {
        None
    }
}

/// A change of content, piece by piece, that is not a coding.
pub trait Rewrite {
    /// Takes a piece; appends what is ready. What must wait for more is kept.
    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>);

    /// Appends what was kept.
    fn finish(&mut self, out: &mut Vec<u8>);
}

/// A [`Rewrite`] as a change like any other.
pub struct Rewriting<R>(pub R);

impl<R> Debug for Rewriting<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rewriting").finish_non_exhaustive()
    }
}

impl<R: Rewrite> Recode for Rewriting<R> {
    fn write(&mut self, bytes: &[u8], _is_flushed: bool) -> io::Result<Bytes> {
        let mut out = Vec::with_capacity(bytes.len());
        self.0.write(bytes, &mut out);
        Ok(out.into())
    }

    fn finish(&mut self) -> io::Result<Bytes> {
        let mut out = Vec::new();
        self.0.finish(&mut out);
        Ok(out.into())
    }
}
