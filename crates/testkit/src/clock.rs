//! A wall clock that jumps, for one process: Debian's faketime, where that is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The clock of the processes started with it.
#[derive(Debug)]
pub struct Clock(PathBuf);

impl Clock {
    /// A clock whose offset lies in `folder`; it is right until it is set.
    pub fn new(folder: &Path) -> Self {
        let clock = Self(folder.join("clock"));
        if !clock.0.exists() {
            clock.set(0);
        }
        clock
    }

    /// What it is made by; `None`: `apt-get install faketime`.
    pub fn library() -> Option<PathBuf> {
        let mut folders = fs::read_dir("/usr/lib").ok()?.flatten().map(|item| item.path());
        folders.find_map(|path| {
            let library = path.join("faketime/libfaketimeMT.so.1");
            library.exists().then_some(library)
        })
    }

    /// How many seconds it is ahead of the right one, or behind it.
    pub fn set(&self, seconds: i64) {
        let new = self.0.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        fs::rename(new, &self.0).unwrap();
    }

    /// Has a program live by it. Times of files and the steady clock stay as they are.
    pub fn control(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", Self::library().expect("faketime is installed"))
            .env("FAKETIME_TIMESTAMP_FILE", &self.0)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }
}
