//! The body of a request on its way into a file.

use crate::exchange::file;
use crate::exchange::temporary::{NamedFile, named_file, private_folder, unnamed_file};
use crate::limits;
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// Has the file a name?
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Name {
    None,
    /// As long as the request.
    Goes,
    Stays,
}

/// A body on its way into a file, which threads write that may block.
pub(super) struct Spill {
    pub(super) file: Arc<File>,
    pub(super) path: Option<NamedFile>,
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
                return Ok((unnamed_file(&folder)?, None));
            }
            private_folder(&folder)?;
            let mut named = named_file(&folder, "")?;
            if name == Name::Stays {
                named.stay();
            }
            Ok::<_, io::Error>((named.file.try_clone()?, Some(named)))
        });
        let (file, path) = made.await.map_err(io::Error::other)??;
        let file = Arc::new(file);
        Ok(Self { file, path, written: 0, bytes: first.len(), pieces: vec![first] })
    }

    pub(super) async fn push(&mut self, piece: Bytes) -> io::Result<()> {
        self.bytes += piece.len();
        self.pieces.push(piece);
        if self.bytes >= limits::FILE_CHUNK_BYTES { self.flush().await } else { Ok(()) }
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        let (pieces, bytes) = (std::mem::take(&mut self.pieces), std::mem::take(&mut self.bytes));
        file::write(&self.file, pieces, self.written).await?;
        self.written += bytes as u64;
        Ok(())
    }
}
