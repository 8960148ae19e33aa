//! The body of a request on its way into a file.

use crate::base::limits;
use crate::files::read;
use crate::files::temporary::TemporaryFile;
use bytes::Bytes;
use std::io;
use std::path::PathBuf;
use tokio::task::spawn_blocking;

/// Whether the file has a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Name {
    None,
    /// As long as the request.
    Goes,
    Stays,
}

/// A body on its way into a file, which threads write that may block.
pub(super) struct Spill {
    pub(super) file: TemporaryFile,
    written: u64,
    /// Not written yet.
    pieces: Vec<Bytes>,
    bytes: usize,
}

impl Spill {
    /// In a new file below `folder`, which begins with `first`.
    pub(super) async fn begin(folder: PathBuf, name: Name, first: Bytes) -> io::Result<Self> {
        let made = spawn_blocking(move || {
            if name == Name::None {
                return TemporaryFile::unnamed(&folder);
            }
            let mut file = TemporaryFile::named(&folder)?;
            if name == Name::Stays {
                file.keep();
            }
            Ok(file)
        });
        let file = made.await.map_err(io::Error::other)??;
        Ok(Self { file, written: 0, bytes: first.len(), pieces: vec![first] })
    }

    pub(super) async fn push(&mut self, piece: Bytes) -> io::Result<()> {
        self.bytes += piece.len();
        self.pieces.push(piece);
        if self.bytes >= limits::FILE_CHUNK_BYTES { self.flush().await } else { Ok(()) }
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        let (pieces, bytes) = (std::mem::take(&mut self.pieces), std::mem::take(&mut self.bytes));
        read::write(self.file.file(), pieces, self.written).await?;
        self.written += bytes as u64;
        Ok(())
    }
}
