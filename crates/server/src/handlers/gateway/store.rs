//! `*_store`: answers kept as plain files, outside the cache.

use crate::config::directive::*;
use crate::config::template::Template;
use crate::exchange::Exchange;
use crate::handlers::static_file;
use crate::logging::error::{Context, Level, os_error};
use bytes::Bytes;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// `*_store off | on | path`
#[derive(Clone, Debug, Default)]
pub enum Store {
    #[default]
    Off,
    /// Where `root` or `alias` has it.
    On,
    Path(Template),
}

impl Setting for Store {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(match args.word(0) {
            b"off" => Self::Off,
            b"on" => Self::On,
            path => Self::Path(Template::compile(path, args.env)?),
        })
    }
}

/// `*_store_access`: `user:rw group:r all:r`
#[derive(Clone, Copy, Debug)]
pub struct StoreAccess(pub u32);

impl Setting for StoreAccess {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut mode = 0o600;
        for word in args.words {
            let broken = || args.invalid_parameter(word);
            let text = std::str::from_utf8(word).map_err(|_| broken())?;
            let (who, rights) = text.split_once(':').ok_or_else(broken)?;
            let bits = match rights {
                "r" => 0o4,
                "rw" => 0o6,
                _ => return Err(broken()),
            };
            mode |= match who {
                "user" => bits << 6,
                "group" => bits << 3,
                "all" => bits << 3 | bits,
                _ => return Err(broken()),
            };
        }
        Ok(Self(mode))
    }
}

/// An answer on its way into a file: written under a temporary name, renamed when it is whole.
pub struct Saver {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    last_modified: Option<i64>,
    context: Context,
    is_kept: bool,
}

impl Saver {
    /// A saver for the exchange's answer, if the location stores answers.
    pub fn start(
        exchange: &mut Exchange,
        conf: &super::Conf,
        status: u16,
        last_modified: Option<i64>,
    ) -> Option<Self> {
        let path = match &conf.store {
            _ if status != 200 => return None,
            Store::Off => return None,
            Store::On => Bytes::from(static_file::path(exchange)),
            Store::Path(template) => template.value(exchange),
        };
        let path = Path::new(OsStr::from_bytes(&path)).to_owned();
        let context = Context::of(exchange);
        match Self::open(&conf.temp_path.0, conf.store_access.0) {
            Ok((file, temporary)) => {
                Some(Self { file, temporary, path, last_modified, context, is_kept: false })
            }
            Err(problem) => {
                let folder = conf.temp_path.0.display();
                let text = format!("open() in \"{folder}\" failed ({})", os_error(&problem));
                context.upstream(Level::Crit, &text, None);
                None
            }
        }
    }

    fn open(folder: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        fs::create_dir_all(folder)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("store.{}.{number}", std::process::id()));
        let file = File::options().write(true).create_new(true).mode(mode).open(&path)?;
        Ok((file, path))
    }

    /// Takes the next bytes; `false` if the answer cannot be stored any more.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let result = self.file.write_all(bytes);
        if let Err(problem) = &result {
            self.failed("write()", problem);
        }
        result.is_ok()
    }

    fn failed(&self, call: &str, problem: &io::Error) {
        let text = format!("{call} \"{}\" failed ({})", self.path.display(), os_error(problem));
        self.context.upstream(Level::Crit, &text, None);
    }

    /// The answer is whole: the file gets its name.
    pub fn finish(mut self) {
        if let Some(time) = self.last_modified.and_then(|time| u64::try_from(time).ok()) {
            let _ = self.file.set_modified(UNIX_EPOCH + Duration::from_secs(time));
        }
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let renamed = fs::create_dir_all(folder).and_then(|()| self.put_in_place());
        match renamed {
            Ok(()) => self.is_kept = true,
            Err(problem) => self.failed("rename()", &problem),
        }
    }

    /// Renames, or copies where the temporary folder is on another file system.
    fn put_in_place(&self) -> io::Result<()> {
        match fs::rename(&self.temporary, &self.path) {
            Err(problem) if problem.raw_os_error() == Some(nix::errno::Errno::EXDEV as i32) => {
                let beside = self.path.with_extension(format!("{}.tmp", std::process::id()));
                fs::copy(&self.temporary, &beside)?;
                fs::rename(&beside, &self.path)?;
                fs::remove_file(&self.temporary)
            }
            result => result,
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
