//! The pid file.

#![expect(clippy::disallowed_methods, reason = "the master process's, which serves no client")]

use std::fs;
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use yorozu_kernel::config::main_core::pid_path;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::os_error;

/// Where the pid file of an old binary is while a new one runs beside it.
pub fn oldbin(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".oldbin");
    path.into()
}

fn is_same_file(one: &fs::File, other: &fs::File) -> bool {
    let of = |file: &fs::File| file.metadata().map(|found| (found.dev(), found.ino()));
    matches!((of(one), of(other)), (Ok(one), Ok(other)) if one == other)
}

/// Written at start, removed at the end.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    file: fs::File,
    /// Whether it is a new binary's, because it could not be renamed, or has another name that it keeps.
    is_given_away: bool,
}

/// Where it is.
pub fn path(config: &Config) -> PathBuf {
    pid_path(config.main().pid.as_ref(), &config.prefix)
}

impl PidFile {
    /// Where it is now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn old(&self) -> PathBuf {
        oldbin(&self.path)
    }

    /// Makes room for a new binary's: ours gets the name with `.oldbin`.
    ///
    /// # Errors
    /// It cannot be renamed: the new binary writes its id into the same file.
    pub fn step_aside(&mut self) -> io::Result<()> {
        let renamed = fs::rename(&self.path, self.old());
        self.is_given_away = renamed.is_err();
        if renamed.is_ok() {
            self.path = self.old();
        }
        renamed
    }

    /// Writes another one, and removes the one before.
    ///
    /// # Errors
    /// The file cannot be written: the old one stays.
    pub fn move_to(&mut self, path: &Path) -> Result<(), String> {
        let is_aside = self.path.extension().is_some_and(|name| name == "oldbin");
        let new = Self::write(&if is_aside { oldbin(path) } else { path.to_owned() })?;
        let mut old = std::mem::replace(self, new);
        // Two names of one file, by way of a link: to remove one could be to remove the other.
        old.is_given_away |= is_same_file(&old.file, &self.file);
        Ok(())
    }

    /// The new binary has ended: ours gets its name back.
    ///
    /// # Errors
    /// As the system has it.
    pub fn step_back(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_given_away) {
            self.file.set_len(0)?;
            self.file.rewind()?;
            return self.file.write_all(line().as_bytes());
        }
        let path = self.path.with_extension("");
        fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(())
    }

    /// Writes our own process id.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(path: &Path) -> Result<Self, String> {
        let write = || {
            let mut file = fs::File::options();
            let mut file = file.write(true).create(true).truncate(true).mode(0o644).open(path)?;
            // In one call: a reader finds nothing or all of it.
            file.write_all(line().as_bytes())?;
            Ok(file)
        };
        let file = write().map_err(|problem: io::Error| {
            format!("open() \"{}\" failed ({})", path.display(), os_error(&problem))
        })?;
        Ok(Self { path: path.to_owned(), file, is_given_away: false })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if self.is_given_away {
            return;
        }
        if fs::remove_file(&self.path).is_err() {
            // The folder belongs to root, which we were when we made it: at least it names no process.
            let _ = self.file.set_len(0);
        }
    }
}

fn line() -> String {
    format!("{}\n", std::process::id())
}

/// Looks whether the file can be written, and does not: for a configuration that is only tested.
///
/// # Errors
/// One line for the operator.
pub fn look(path: &Path) -> Result<(), String> {
    yorozu_kernel::logging::file::look(path)
        .map_err(|problem| format!("open() \"{}\" failed ({})", path.display(), os_error(&problem)))
}

/// Reads the id of the running server.
///
/// # Errors
/// The file is missing or holds no number of a process.
pub fn read(path: &Path) -> Result<i32, String> {
    let text = fs::read_to_string(path).map_err(|problem| {
        format!("open() \"{}\" failed ({})", path.display(), os_error(&problem))
    })?;
    let text = text.trim();
    id_of(text).ok_or_else(|| format!("invalid PID number \"{text}\" in \"{}\"", path.display()))
}

/// The id of one process: to `kill()`, 0 and what is below it are groups of them, and -1 is all that there are.
fn id_of(text: &str) -> Option<i32> {
    text.parse().ok().filter(|id| *id > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_for_one_process() {
        assert_eq!(id_of("4711"), Some(4711));
        for text in ["", "0", "-0", "-1", "-4711", "4711 ", "99999999999"] {
            assert_eq!(id_of(text), None, "{text}");
        }
    }
}
