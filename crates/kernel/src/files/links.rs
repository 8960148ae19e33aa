//! `disable_symlinks`: which links in a path refuse what lies there.
//!
//! A path is opened part by part, as nginx does: whoever may write in one of its folders can put a link there at any moment,
//! also between a look and an opening.

use crate::base::scratch::Scratch;
use crate::config::http_core::Symlinks;
use crate::exchange::Exchange;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// What `disable_symlinks` says of one path of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Links {
    mode: Symlinks,
    /// Bytes at the beginning of the path where links are followed in any case.
    trusted: usize,
}

/// A folder that a path leads to, and the last part of the path in it.
struct Place<'a> {
    folder: OwnedFd,
    last: &'a [u8],
}

impl Links {
    /// Every link is followed.
    pub const FOLLOWED: Self = Self { mode: Symlinks::Allowed, trusted: 0 };

    /// What the request's location says.
    pub fn of(exchange: &Exchange, path: &[u8]) -> Self {
        let setting = &exchange.conf.location(exchange.location).http_core().disable_symlinks;
        if setting.mode == Symlinks::Allowed {
            return Self::FOLLOWED;
        }
        let mut from = Scratch::take();
        if let Some(trusted) = &setting.from {
            trusted.append_peeked(exchange, &mut from);
        }
        Self::behind(&from, path, setting.mode)
    }

    /// Those behind the folder `from`, if the path lies there.
    fn behind(from: &[u8], path: &[u8], mode: Symlinks) -> Self {
        let rest = path.strip_prefix(from);
        let is_whole_part = from.ends_with(b"/") || rest.is_some_and(|rest| rest.starts_with(b"/"));
        match rest {
            Some(b"") => Self::FOLLOWED,
            Some(_) if is_whole_part => Self { mode, trusted: from.len() },
            _ => Self { mode, trusted: 0 },
        }
    }

    /// Whether every link is followed.
    pub fn are_followed(self) -> bool {
        self.mode == Symlinks::Allowed
    }

    /// What a failure to open is called in nginx's messages.
    pub fn call(self) -> &'static str {
        if self.are_followed() { "open()" } else { "openat()" }
    }

    /// Opens what lies at `path`; what is made has the rights of `mode`. Blocks for a FIFO, unless a flag says otherwise.
    ///
    /// # Errors
    /// As the system says; `ELOOP` or `ENOTDIR` for a link that is refused.
    pub fn open(self, path: &[u8], flags: OFlag, mode: Mode) -> io::Result<File> {
        let flags = flags | OFlag::O_CLOEXEC;
        if self.are_followed() {
            return Ok(open(path, flags, mode)?.into());
        }
        let Place { folder, last } = self.place(path)?;
        // As nginx: what may be made is not looked for behind a link, whoever has it.
        if self.mode == Symlinks::Refused || flags.contains(OFlag::O_CREAT) {
            return Ok(openat(&folder, last, flags | OFlag::O_NOFOLLOW, mode)?.into());
        }
        let opened = openat(&folder, last, flags, mode)?;
        has_one_owner(&folder, last, &fstat(&opened)?)?;
        Ok(opened.into())
    }

    /// Whether a link in the path refuses what lies there; also if there is nothing.
    pub fn refuse(self, path: &[u8]) -> bool {
        !self.are_followed() && self.look(path).is_err()
    }

    fn look(self, path: &[u8]) -> Result<(), Errno> {
        let Place { folder, last } = self.place(path)?;
        let found = fstatat(&folder, last, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        if !is_link(&found) {
            return Ok(());
        }
        if self.mode == Symlinks::Refused {
            return Err(Errno::ELOOP);
        }
        has_one_owner(&folder, last, &fstatat(&folder, last, AtFlags::empty())?)
    }

    fn place(self, path: &[u8]) -> Result<Place<'_>, Errno> {
        let mut folder = match (&path[..self.trusted], path.first()) {
            ([], Some(b'/')) => step(AT_FDCWD, b"/", OFlag::empty())?,
            ([], _) => step(AT_FDCWD, b".", OFlag::empty())?,
            (trusted, _) => step(AT_FDCWD, trusted, OFlag::empty())?,
        };
        let (folders, last) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) if at >= self.trusted => (&path[self.trusted..at], &path[at + 1..]),
            _ => (&b""[..], &path[self.trusted..]),
        };
        for part in folders.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            // A folder's link is "no folder" where it is not followed.
            let follows = match self.mode {
                Symlinks::Refused => OFlag::O_NOFOLLOW,
                _ => OFlag::empty(),
            };
            let next = step(&folder, part, follows)?;
            if self.mode == Symlinks::RefusedIfNotOwner {
                has_one_owner(&folder, part, &fstat(&next)?)?;
            }
            folder = next;
        }
        Ok(Place { folder, last: if last.is_empty() { b"." } else { last } })
    }
}

fn step(folder: impl AsFd, name: &[u8], flags: OFlag) -> Result<OwnedFd, Errno> {
    openat(
        folder,
        name,
        flags | OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
}

fn is_link(found: &FileStat) -> bool {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFLNK
}

/// Whether `name` belongs to whom that belongs which was found behind it: also if it is no link, for it may have been one
/// a moment ago.
fn has_one_owner(folder: &OwnedFd, name: &[u8], target: &FileStat) -> Result<(), Errno> {
    let found = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if found.st_uid != target.st_uid {
        return Err(Errno::ELOOP);
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "no worker waits for a test's files")]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A folder with a file, a link to it, and a link to a folder; it goes at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("yorozu-links-{name}.{}", std::process::id()));
            fs::create_dir_all(path.join("folder")).unwrap();
            fs::write(path.join("folder/file"), "text").unwrap();
            symlink("file", path.join("folder/link")).unwrap();
            symlink("nothing", path.join("folder/dangling")).unwrap();
            symlink("folder", path.join("to_folder")).unwrap();
            Self(path)
        }

        fn errno(&self, from: &str, mode: Symlinks, name: &str, flags: OFlag) -> Option<Errno> {
            let path = self.0.join(name);
            let from = if from.is_empty() { PathBuf::new() } else { self.0.join(from) };
            let links =
                Links::behind(from.as_os_str().as_bytes(), path.as_os_str().as_bytes(), mode);
            let opened =
                links.open(path.as_os_str().as_bytes(), flags, Mode::from_bits_truncate(0o644));
            opened.err().map(|problem| Errno::from_raw(problem.raw_os_error().unwrap()))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn links_are_refused_in_each_part_of_a_path() {
        let folder = Folder::new("parts");
        let errno = |name| folder.errno("", Symlinks::Refused, name, OFlag::O_RDONLY);
        assert_eq!(errno("folder/file"), None);
        assert_eq!(errno("folder//file"), None);
        assert_eq!(errno("folder/"), None);
        assert_eq!(errno("folder/link"), Some(Errno::ELOOP));
        assert_eq!(errno("to_folder/file"), Some(Errno::ENOTDIR));
        assert_eq!(errno("to_folder/"), Some(Errno::ENOTDIR));
        assert_eq!(errno("folder/none"), Some(Errno::ENOENT));
    }

    #[test]
    fn links_of_one_owner_lead_where_they_lead() {
        let folder = Folder::new("owner");
        let errno = |name, flags| folder.errno("", Symlinks::RefusedIfNotOwner, name, flags);
        assert_eq!(errno("to_folder/link", OFlag::O_RDONLY), None);
        assert_eq!(errno("to_folder/link", OFlag::O_WRONLY | OFlag::O_CREAT), Some(Errno::ELOOP));
        assert_eq!(
            errno("to_folder/dangling", OFlag::O_WRONLY | OFlag::O_CREAT),
            Some(Errno::ELOOP)
        );
        assert!(!folder.0.join("folder/nothing").exists());
    }

    #[test]
    fn what_is_trusted_ends_with_a_part_of_the_path() {
        let folder = Folder::new("trusted");
        let errno = |from, name| folder.errno(from, Symlinks::Refused, name, OFlag::O_RDONLY);
        assert_eq!(errno("to_folder", "to_folder/file"), None);
        assert_eq!(errno("to_folder/", "to_folder/file"), None);
        assert_eq!(errno("to_folder", "to_folder/link"), Some(Errno::ELOOP));
        assert_eq!(errno("to_fold", "to_folder/file"), Some(Errno::ENOTDIR));
        assert_eq!(errno("to_folder/link", "to_folder/link"), None);
        assert_eq!(errno("other", "to_folder/file"), Some(Errno::ENOTDIR));
    }
}
