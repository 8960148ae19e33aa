//! Faults that tests ask of a running server, to see that it goes on. A release build has none.

/// The file of this name in the folder that `YOROZU_FAULTS` names.
#[cfg(debug_assertions)]
fn file(name: &str) -> Option<std::path::PathBuf> {
    use std::path::PathBuf;
    use std::sync::LazyLock;
    static FOLDER: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("YOROZU_FAULTS").map(PathBuf::from));
    FOLDER.as_ref().map(|folder| folder.join(name))
}

/// Panics if there is a file of this name, and removes it: once a file.
#[cfg(debug_assertions)]
#[expect(clippy::disallowed_methods, reason = "a debug build's")]
pub fn point(name: &str) {
    if let Some(file) = file(name) {
        assert!(std::fs::remove_file(file).is_err(), "a test asked for it: {name}");
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_: &str) {}

/// Stands still for as long as there is a file of this name.
#[cfg(debug_assertions)]
#[expect(clippy::disallowed_methods, reason = "a debug build's")]
pub fn stand(name: &str) {
    while file(name).is_some_and(|file| file.exists()) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn stand(_: &str) {}
