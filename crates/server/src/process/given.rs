//! The configuration that the first of several processes was started with: it is that of those which it starts, whatever names the usual
//! one by then.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const FILE: &str = "YOROZU_FILE";
static GIVEN: OnceLock<PathBuf> = OnceLock::new();

/// The configuration of the process that started this one, for where the command line names none.
pub fn given_file() -> Option<PathBuf> {
    std::env::var_os(FILE).map(PathBuf::from)
}

/// Gives the processes that this one starts its own configuration.
pub fn give_file(file: &Path) {
    // Once is enough: it is asked for at the start.
    let _ = GIVEN.set(file.to_owned());
}

/// Hands it to a process that is about to be started.
pub(super) fn hand_file(command: &mut Command) {
    if let Some(file) = GIVEN.get() {
        command.env(FILE, file);
    }
}
