//! The system calls of the disk tier, in one place, where tests make them fail.

use crate::StoreError;
#[cfg(not(test))]
use crate::turns;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// The error of a call on a path.
pub(crate) fn failed(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { call, path: path.to_owned(), source }
}

/// `mkdir -p`, as nginx: no other user of the machine may read what is stored.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    call("mkdir()")?;
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// A new file, which only its owner may read and write.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    call("open()")?;
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// An existing file, to read.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    call("open()")?;
    File::open(path)
}

/// Writes all of `bytes` where the file stands.
pub(crate) fn write(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    if let Some(count) = cut_short("write()", bytes.len())? {
        file.write_all(&bytes[..count])?;
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all(bytes)
}

/// Fills `buffer` from where the file stands.
pub(crate) fn read_exact(mut file: &File, buffer: &mut [u8]) -> io::Result<()> {
    call("read()")?;
    file.read_exact(buffer)
}

/// Fills `buffer` from `offset` on.
pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    call("read()")?;
    file.read_exact_at(buffer, offset)
}

/// Bytes at `offset`; 0 at the end.
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    call("read()")?;
    file.read_at(buffer, offset)
}

/// Gives a file its name.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    call("rename()")?;
    fs::rename(from, to)
}

/// Removes a file.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    call("unlink()")?;
    fs::remove_file(path)
}

/// Removes a file, if it is there.
pub(crate) fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    match remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("unlink()", path)(error))
        }
        _ => Ok(()),
    }
}

/// Puts a file with these bytes in the place of the one at `path`, whole or not at all: it is written as `new`. Where that
/// fails the one before stays. `is_durable`: the bytes outlast a power failure from here on, the name does so after
/// [`sync_folder`].
pub(crate) fn replace(
    path: &Path,
    new: &Path,
    bytes: &[u8],
    is_durable: bool,
) -> Result<(), StoreError> {
    // What a torn one of before has.
    let _ = remove(new);
    append(new, bytes, is_durable).map_err(failed("write()", new))?;
    rename(new, path).map_err(failed("rename()", path))
}

/// What lies in a folder.
pub(crate) fn read_folder(path: &Path) -> io::Result<fs::ReadDir> {
    call("opendir()")?;
    fs::read_dir(path)
}

/// A whole file.
pub(crate) fn read_all(path: &Path) -> io::Result<Vec<u8>> {
    call("read()")?;
    fs::read(path)
}

/// Adds to the end of a file, which is made when missing; `is_durable`: it outlasts a power failure from
/// here on.
pub(crate) fn append(path: &Path, bytes: &[u8], is_durable: bool) -> io::Result<()> {
    call("open()")?;
    let file = File::options().create(true).append(true).mode(0o600).open(path)?;
    write(&file, bytes)?;
    if is_durable {
        call("fdatasync()")?;
        if SYNCS {
            file.sync_data()?;
        }
    }
    Ok(())
}

/// Nothing that happens to a test shows whether the disk has it, and there it takes most of the time.
const SYNCS: bool = !cfg!(test);

/// Names that files got or lost in a folder outlast a power failure from here on.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    call("fsync()")?;
    let folder = File::open(path)?;
    if SYNCS { folder.sync_all() } else { Ok(()) }
}

/// As [`sync_folder`], for all folders of the file system.
pub(crate) fn sync_all_folders(path: &Path) -> io::Result<()> {
    call("syncfs()")?;
    let folder = File::open(path)?;
    if SYNCS { nix::unistd::syncfs(folder).map_err(Into::into) } else { Ok(()) }
}

/// What tells an open file from others that get its name, and its length.
pub(crate) fn identity(file: &File) -> io::Result<(u64, u64)> {
    call("fstat()")?;
    file.metadata().map(|metadata| (metadata.ino(), metadata.len()))
}

/// What tells the file of a name from others; `None` if there is none.
pub(crate) fn identity_at(path: &Path) -> io::Result<Option<u64>> {
    call("stat()")?;
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(|metadata| Some(metadata.ino())),
    }
}

/// The unit in which the file system at `path` gives room. Some name one of 128 KB or a megabyte that small files do not take.
pub(crate) fn block_bytes(path: &Path) -> u64 {
    let found = nix::sys::statvfs::statvfs(path).map_or(512, |stat| stat.fragment_size());
    found.clamp(512, 4096)
}

#[cfg(not(test))]
fn call(_: &'static str) -> io::Result<()> {
    turns::beat();
    Ok(())
}

#[cfg(not(test))]
fn cut_short(_: &'static str, _: usize) -> io::Result<Option<usize>> {
    turns::beat();
    Ok(None)
}

#[cfg(test)]
use faults::{call, cut_short};

#[cfg(test)]
pub(crate) mod faults {
    use super::io;
    use std::cell::Cell;

    /// What happens to a call.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) enum Fault {
        /// It fails with this error number, and so do no others.
        Once(i32),
        /// A write comes to its half before the disk is full; another call fails.
        Short,
        /// The process ends here: nothing after it happens.
        Crash,
    }

    thread_local! {
        static PLAN: Cell<Option<(u32, Fault)>> = const { Cell::new(None) };
    }

    /// Makes the `nth` call of this thread from now on fail; 0 is the next.
    pub(crate) fn plan(nth: u32, fault: Fault) {
        PLAN.set(Some((nth, fault)));
    }

    /// No more faults. `true` if the planned one happened.
    pub(crate) fn clear() -> bool {
        let happened = !matches!(PLAN.get(), Some((1.., _) | (0, Fault::Once(_) | Fault::Short)));
        PLAN.set(None);
        happened
    }

    fn due() -> Option<Fault> {
        let (nth, fault) = PLAN.get()?;
        if nth > 0 {
            PLAN.set(Some((nth - 1, fault)));
            return None;
        }
        if fault != Fault::Crash {
            PLAN.set(None);
        }
        Some(fault)
    }

    pub(super) fn call(_: &'static str) -> io::Result<()> {
        crate::turns::beat();
        match due() {
            None => Ok(()),
            Some(Fault::Once(number)) => Err(io::Error::from_raw_os_error(number)),
            Some(Fault::Short | Fault::Crash) => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    pub(super) fn cut_short(_: &'static str, bytes: usize) -> io::Result<Option<usize>> {
        match due() {
            None => Ok(None),
            Some(Fault::Once(number)) => Err(io::Error::from_raw_os_error(number)),
            // A crash in the middle leaves a part, too.
            Some(Fault::Short) => Ok(Some(bytes / 2)),
            Some(Fault::Crash) => Err(io::ErrorKind::StorageFull.into()),
        }
    }
}
