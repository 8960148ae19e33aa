//! The pid file.

use crate::config::compiled::Config;
use crate::logging::error::os_error;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Written at start, removed at the end.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    file: fs::File,
}

/// Where it is: `pid`, or `logs/nginx.pid` below the prefix.
pub fn path(config: &Config) -> PathBuf {
    config
        .main
        .pid
        .as_ref()
        .map_or_else(|| config.prefix.join("logs/nginx.pid"), |path| path.0.clone())
}

impl PidFile {
    /// Writes our own process id.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(path: &Path) -> Result<Self, String> {
        let write = || {
            let mut file = fs::File::create(path)?;
            writeln!(file, "{}", std::process::id())?;
            Ok(file)
        };
        let file = write().map_err(|problem: io::Error| {
            format!("open() \"{}\" failed ({})", path.display(), os_error(&problem))
        })?;
        Ok(Self { path: path.to_owned(), file })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if fs::remove_file(&self.path).is_err() {
            // The folder belongs to root, which we were when we made it: at least it names nobody.
            let _ = self.file.set_len(0);
        }
    }
}

/// Reads the id of the running server.
///
/// # Errors
/// The file is missing or holds no number.
pub fn read(path: &Path) -> Result<i32, String> {
    let text = fs::read_to_string(path).map_err(|problem| {
        format!("open() \"{}\" failed ({})", path.display(), os_error(&problem))
    })?;
    text.trim()
        .parse()
        .map_err(|_| format!("invalid PID number \"{}\" in \"{}\"", text.trim(), path.display()))
}
