//! Temporary files of bodies, requests' and responses', and how they become files of a site.

#![expect(
    clippy::disallowed_methods,
    reason = "a file is made, renamed and removed here; what is in it is written by threads"
)]

use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Seek as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Makes a folder that only its owner may enter, with those above it that are missing.
pub fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes a folder for files of this mode, with those above it that are missing: it may be entered by those who may read the files.
pub fn folder_for(path: &Path, file_mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(folder_mode(file_mode)).create(path)
}

/// The mode of a folder whose files have `mode`; nginx's `ngx_dir_access`.
pub fn folder_mode(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// A file of ours alone, which is gone with its last reader, with its name if it has one; unless it is kept.
#[derive(Debug)]
pub struct TemporaryFile {
    file: Arc<File>,
    path: Option<PathBuf>,
    is_kept: bool,
}

impl TemporaryFile {
    /// Without a name, so that nothing is left of it, also after a crash. Makes the folder.
    ///
    /// # Errors
    /// As the system has it.
    pub fn unnamed(folder: &Path) -> io::Result<Self> {
        private_folder(folder)?;
        let mut options = new_private_file();
        match options.custom_flags(OFlag::O_TMPFILE.bits()).open(folder) {
            Ok(file) => Ok(Self { file: Arc::new(file), path: None, is_kept: false }),
            // Not every file system has O_TMPFILE.
            Err(_) => {
                let mut named = Self::create(folder, "")?;
                if let Some(path) = named.path.take() {
                    fs::remove_file(path)?;
                }
                Ok(named)
            }
        }
    }

    /// Under an unpredictable name. Makes the folder.
    ///
    /// # Errors
    /// As the system has it.
    pub fn named(folder: &Path) -> io::Result<Self> {
        private_folder(folder)?;
        Self::create(folder, "")
    }

    /// In the folder of the file whose place it is to take, and in no listing of it.
    ///
    /// # Errors
    /// As the system has it.
    pub fn beside(path: &Path) -> io::Result<Self> {
        Self::create(path.parent().unwrap_or(Path::new("/")), ".")
    }

    fn create(folder: &Path, start: &str) -> io::Result<Self> {
        let mut options = new_private_file();
        options.create_new(true);
        loop {
            let path = folder.join(format!("{start}{:016x}", fastrand::u64(..)));
            match options.open(&path) {
                Err(problem) if problem.kind() == io::ErrorKind::AlreadyExists => {}
                opened => {
                    let file = Arc::new(opened?);
                    return Ok(Self { file, path: Some(path), is_kept: false });
                }
            }
        }
    }

    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Its name, if it has one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Its name is not removed with it.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Renames a file, also to another file system; readers of the new name never see a part of it. Its mode
    /// does not depend on the process's mask. `modified` is in seconds; a time before 1970 is left out.
    ///
    /// # Errors
    /// As the system has it; then it is gone.
    pub fn persist(self, to: &Path, mode: u32, modified: Option<i64>) -> io::Result<()> {
        if let Some(seconds) = modified.and_then(|seconds| u64::try_from(seconds).ok()) {
            self.file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds))?;
        }
        match self.rename(to, mode) {
            Err((problem, file)) if crosses_devices(&problem) => {
                let copy = Self::beside(to)?;
                (&*file.file).rewind()?;
                io::copy(&mut &*file.file, &mut &*copy.file)?;
                copy.file.set_modified(file.file.metadata()?.modified()?)?;
                copy.rename(to, mode).map_err(|(problem, _)| problem)
            }
            renamed => renamed.map_err(|(problem, _)| problem),
        }
    }

    fn rename(mut self, to: &Path, mode: u32) -> Result<(), (io::Error, Self)> {
        let Some(path) = &self.path else { return Err((io::ErrorKind::NotFound.into(), self)) };
        let set = self.file.set_permissions(Permissions::from_mode(mode));
        match set.and_then(|()| fs::rename(path, to)) {
            Ok(()) => {
                self.is_kept = true;
                Ok(())
            }
            Err(problem) => Err((problem, self)),
        }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Some(path) = self.path.as_ref().filter(|_| !self.is_kept) {
            let _ = fs::remove_file(path);
        }
    }
}

fn new_private_file() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    options
}

/// Whether a rename failed because its ends lie on different file systems.
pub fn crosses_devices(problem: &io::Error) -> bool {
    problem.raw_os_error() == Some(Errno::EXDEV as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_file_is_private_until_it_gets_its_name_and_gone_when_it_gets_none() {
        let folder = std::env::temp_dir().join(format!("yorozu-temporary.{}", fastrand::u64(..)));
        private_folder(&folder.join("a/b")).unwrap();
        assert_eq!((mode(&folder), mode(&folder.join("a/b"))), (0o700, 0o700));
        let file = TemporaryFile::beside(&folder.join("target")).unwrap();
        file.file().as_ref().write_all(b"text").unwrap();
        let path = file.path().unwrap().to_owned();
        assert_eq!(mode(&path), 0o600);
        // A link under the new name is replaced, not followed.
        let (target, other) = (folder.join("target"), folder.join("other"));
        fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, &target).unwrap();
        file.persist(&target, 0o664, Some(1_000_000_000)).unwrap();
        assert_eq!((mode(&target), fs::read(&target).unwrap()), (0o664, b"text".to_vec()));
        let metadata = fs::symlink_metadata(&target).unwrap();
        assert!(!metadata.is_symlink());
        let modified = metadata.modified().unwrap();
        assert_eq!(modified.duration_since(UNIX_EPOCH).unwrap().as_secs(), 1_000_000_000);
        assert!(!path.exists());
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        let dropped = TemporaryFile::named(&folder).unwrap().path().unwrap().to_owned();
        assert!(!dropped.exists());
        let mut kept = TemporaryFile::named(&folder).unwrap();
        kept.keep();
        let path = kept.path().unwrap().to_owned();
        drop(kept);
        assert!(path.exists());
        let names = fs::read_dir(&folder).unwrap().count();
        let unnamed = TemporaryFile::unnamed(&folder).unwrap();
        let mut file = unnamed.file().as_ref();
        file.write_all(b"x").unwrap();
        file.rewind().unwrap();
        assert_eq!(io::read_to_string(file).unwrap(), "x");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), names);
        fs::remove_dir_all(&folder).unwrap();
    }
}
