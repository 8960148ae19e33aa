//! Panics that tests ask of a running server, to see that it goes on. A release build has none.

/// Panics if a file of this name is in the folder that `YOROZU_FAULTS` names, and removes it: once a file.
#[cfg(debug_assertions)]
#[expect(clippy::disallowed_methods, reason = "a debug build's")]
pub fn point(name: &str) {
    use std::path::PathBuf;
    use std::sync::LazyLock;
    static FOLDER: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("YOROZU_FAULTS").map(PathBuf::from));
    if let Some(folder) = &*FOLDER {
        assert!(std::fs::remove_file(folder.join(name)).is_err(), "a test asked for it: {name}");
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_: &str) {}

/// Stands still for as long as a file of this name is in that folder.
#[cfg(debug_assertions)]
#[expect(clippy::disallowed_methods, reason = "a debug build's")]
pub fn stand(name: &str) {
    use std::path::PathBuf;
    use std::sync::LazyLock;
    static FILE: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("YOROZU_FAULTS").map(PathBuf::from));
    if let Some(folder) = &*FILE {
        while folder.join(name).exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn stand(_: &str) {}
