//! Temporary files of bodies, requests' and responses', and how they become files of a site.

#![expect(
    clippy::disallowed_methods,
    reason = "a file is made, renamed and removed here; what is in it is written by threads"
)]

use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Seek as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Makes a folder that only its owner may enter, with those above it that are missing.
pub fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes a folder for files of this mode, with those above it that are missing: who may read them may enter it.
pub fn folder_for(path: &Path, file_mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(folder_mode(file_mode)).create(path)
}

/// The mode of a folder whose files have `mode`; nginx's `ngx_dir_access`.
pub fn folder_mode(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// A file without a name: it is gone when it is closed, whatever happens to us.
pub fn unnamed_file(folder: &Path) -> io::Result<File> {
    private_folder(folder)?;
    let mut options = File::options();
    options.read(true).write(true).mode(0o600).custom_flags(OFlag::O_TMPFILE.bits());
    // Not every file system has O_TMPFILE.
    options.open(folder).or_else(|_| named_file(folder, "")?.file.try_clone())
}

/// A new file of ours alone in a folder that is there, under a name that nobody knows before; a dot at its `start`
/// keeps it out of listings.
pub fn named_file(folder: &Path, start: &str) -> io::Result<NamedFile> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    loop {
        let path = folder.join(format!("{start}{:016x}", fastrand::u64(..)));
        match options.open(&path) {
            Err(problem) if problem.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return Ok(NamedFile { file: opened?, path, stays: false }),
        }
    }
}

/// A file with a temporary name, which goes with it unless it shall stay.
#[derive(Debug)]
pub struct NamedFile {
    pub file: File,
    path: PathBuf,
    stays: bool,
}

impl NamedFile {
    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It is not removed.
    pub fn stay(&mut self) {
        self.stays = true;
    }

    /// Gives it its mode, whatever the process's mask, and its name; nobody sees a part of it under that.
    ///
    /// # Errors
    /// As the system has it; with `CrossesDevices` it is handed back for [`NamedFile::carry`].
    pub fn put(mut self, to: &Path, mode: u32) -> Result<(), (io::Error, Self)> {
        let set = self.file.set_permissions(Permissions::from_mode(mode));
        match set.and_then(|()| fs::rename(&self.path, to)) {
            Ok(()) => {
                self.stays = true;
                Ok(())
            }
            Err(problem) => Err((problem, self)),
        }
    }

    /// As [`NamedFile::put`] where the name lies on another file system: the bytes are copied, which takes its time.
    ///
    /// # Errors
    /// As the system has it.
    pub fn carry(&self, to: &Path, mode: u32) -> io::Result<()> {
        let copy = named_file(to.parent().unwrap_or(Path::new("/")), ".")?;
        (&self.file).rewind()?;
        io::copy(&mut &self.file, &mut &copy.file)?;
        copy.file.set_modified(self.file.metadata()?.modified()?)?;
        copy.put(to, mode).map_err(|(problem, _)| problem)
    }
}

/// Has a rename failed because its ends lie on different file systems?
pub fn crosses_devices(problem: &io::Error) -> bool {
    problem.raw_os_error() == Some(Errno::EXDEV as i32)
}

impl Drop for NamedFile {
    fn drop(&mut self) {
        if !self.stays {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn files_are_private_until_they_get_their_name() {
        let folder = std::env::temp_dir().join(format!("yorozu-temporary.{}", fastrand::u64(..)));
        private_folder(&folder.join("a/b")).unwrap();
        assert_eq!((mode(&folder), mode(&folder.join("a/b"))), (0o700, 0o700));
        let mut kept = named_file(&folder, ".").unwrap();
        kept.file.write_all(b"text").unwrap();
        let path = kept.path().to_owned();
        assert_eq!(mode(&path), 0o600);
        // A link under the new name is replaced, not followed.
        let (target, other) = (folder.join("target"), folder.join("other"));
        fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, &target).unwrap();
        kept.carry(&target, 0o664).unwrap();
        assert_eq!((mode(&target), fs::read(&target).unwrap()), (0o664, b"text".to_vec()));
        assert!(!fs::symlink_metadata(&target).unwrap().is_symlink());
        kept.put(&folder.join("put"), 0o640).map_err(|(problem, _)| problem).unwrap();
        assert!(!path.exists() && mode(&folder.join("put")) == 0o640);
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        let dropped = named_file(&folder, "").unwrap().path().to_owned();
        assert!(!dropped.exists());
        let names = fs::read_dir(&folder).unwrap().count();
        let mut unnamed = unnamed_file(&folder).unwrap();
        unnamed.write_all(b"x").unwrap();
        unnamed.rewind().unwrap();
        assert_eq!(std::io::read_to_string(unnamed).unwrap(), "x");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), names);
        fs::remove_dir_all(&folder).unwrap();
    }
}
