//! Reading and writing files without the event loop standing still: what the system has in memory is read at once,
//! everything else on a thread that may block.

use crate::base::limits;
use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// What can be read of a file without waiting for a disk.
enum AtHand {
    Bytes(usize),
    /// The file system cannot tell.
    Unknown,
}

fn at_hand(file: &File, buffer: &mut [u8], at: u64) -> io::Result<AtHand> {
    match preadv2(file, &mut [IoSliceMut::new(buffer)], at, ReadWriteFlags::NOWAIT) {
        Ok(count) => Ok(AtHand::Bytes(count)),
        Err(Errno::AGAIN) => Ok(AtHand::Bytes(0)),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(AtHand::Unknown),
        Err(problem) => Err(problem.into()),
    }
}

/// A part of a file, all of it.
///
/// # Errors
/// As the system has it; the file may end before it.
pub async fn read(file: &Arc<File>, at: u64, length: usize) -> io::Result<Bytes> {
    let mut buffer = vec![0; length];
    let read = match at_hand(file, &mut buffer, at)? {
        AtHand::Bytes(count) => count,
        // A small read is cheaper than a thread that does it.
        AtHand::Unknown if length <= limits::READ_ON_LOOP_BYTES => file.read_at(&mut buffer, at)?,
        AtHand::Unknown => 0,
    };
    if read == length {
        return Ok(buffer.into());
    }
    let file = Arc::clone(file);
    let rest = spawn_blocking(move || {
        file.read_exact_at(&mut buffer[read..], at + read as u64).map(|()| buffer.into())
    });
    rest.await.map_err(io::Error::other)?
}

/// Brings a part of a file into the system's memory, so that sending it does not wait for a disk; how much of
/// it, 0 if the file ends there.
///
/// # Errors
/// As the system has it.
pub async fn bring(file: &Arc<File>, at: u64, length: usize) -> io::Result<usize> {
    let length = length.min(limits::SENDFILE_BYTES);
    let last = at + length.saturating_sub(1) as u64;
    let is_there = |at| match at_hand(file, &mut [0], at)? {
        AtHand::Bytes(0) => Ok::<_, io::Error>(false),
        AtHand::Bytes(_) | AtHand::Unknown => Ok(true),
    };
    if is_there(last)? && is_there(at)? {
        return Ok(length);
    }
    let file = Arc::clone(file);
    let read = spawn_blocking(move || {
        let mut buffer = vec![0; limits::FILE_CHUNK_BYTES];
        let mut done = 0;
        while done < length {
            let room = buffer.len().min(length - done);
            match file.read_at(&mut buffer[..room], at + done as u64)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    });
    read.await.map_err(io::Error::other)?
}

/// Writes pieces one behind the other.
///
/// # Errors
/// As the system has it.
///
/// # Cancel safety
/// None: some of it may be written.
pub async fn write(file: &Arc<File>, pieces: Vec<Bytes>, mut at: u64) -> io::Result<()> {
    let file = Arc::clone(file);
    let written = spawn_blocking(move || {
        for piece in pieces {
            file.write_all_at(&piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    });
    written.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::temporary::TemporaryFile;

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_written_is_read_whether_or_not_the_system_has_it_in_memory() {
        let file = Arc::clone(TemporaryFile::unnamed(&std::env::temp_dir()).unwrap().file());
        let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let pieces = bytes.chunks(70_000).map(Bytes::copy_from_slice).collect();
        write(&file, pieces, 5).await.unwrap();
        for is_cold in [false, true] {
            if is_cold {
                file.sync_all().unwrap();
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            }
            assert_eq!(bring(&file, 5, bytes.len()).await.unwrap(), bytes.len());
            if is_cold {
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            }
            for (at, length) in [(0, bytes.len()), (1, 1), (250_000, 50_000)] {
                let found = read(&file, 5 + at as u64, length).await.unwrap();
                assert!(found == bytes[at..at + length], "{length} bytes at {at}");
            }
        }
        assert!(read(&file, 299_999, 100).await.is_err(), "it ends before");
        assert_eq!(bring(&file, 400_000, 10).await.unwrap(), 0);
    }
}
