//! The files that a configuration names: read whole, if they are files and not endless.

#![expect(
    clippy::disallowed_methods,
    reason = "read while a configuration is loaded, or on a thread that may block"
)]

use crate::base::{limits, texts};
use bytes::Bytes;
use nix::fcntl::OFlag;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use yorozu_conf::Source;

/// Where the texts of a configuration come from.
pub struct Files {
    /// Relative includes are looked for here.
    pub folder: PathBuf,
}

impl Source for Files {
    fn read(&self, path: &Path) -> io::Result<Bytes> {
        read_regular(path)
    }
    fn glob(&self, pattern: &str) -> io::Result<Vec<PathBuf>> {
        texts::pattern(pattern, glob)
    }
    fn resolve(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }
}

/// Reads a regular file. Pipes and devices may have no end, or no writer.
///
/// # Errors
/// What opening or reading it gave; it is not a regular file, or too large to be meant.
pub fn read_regular(path: &Path) -> io::Result<Bytes> {
    texts::file(path, read_regular_here)
}

fn read_regular_here(path: &Path) -> io::Result<Bytes> {
    // Without waiting for a writer, if it is a pipe.
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::from_raw_os_error(nix::errno::Errno::EISDIR as i32));
    }
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let too_large = || {
        let text = format!("longer than {} bytes", limits::NAMED_FILE_BYTES);
        io::Error::new(io::ErrorKind::FileTooLarge, text)
    };
    if metadata.len() > limits::NAMED_FILE_BYTES {
        return Err(too_large());
    }
    let mut text = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    // Files of the kernel's have no length, and one that is written to may grow.
    file.take(limits::NAMED_FILE_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > limits::NAMED_FILE_BYTES { Err(too_large()) } else { Ok(text.into()) }
}

/// Reads a regular file, or what is soon written into a named pipe.
///
/// # Errors
/// As [`read_regular`]; the pipe has no writer.
///
/// # Source
/// nginx, `ssl_password_file`: "a named pipe can also be used instead of a file".
pub fn read_file_or_pipe(path: &Path) -> io::Result<Bytes> {
    texts::file(path, read_file_or_pipe_here)
}

fn read_file_or_pipe_here(path: &Path) -> io::Result<Bytes> {
    if !fs::metadata(path)?.file_type().is_fifo() {
        return read_regular_here(path);
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let pipe = path.to_owned();
    // Opening it waits for a writer; a thread that waits in vain is left behind.
    std::thread::Builder::new().name("named pipe".to_owned()).spawn(move || {
        let mut text = Vec::new();
        let read = File::open(pipe)
            .and_then(|file| file.take(limits::PIPE_BYTES).read_to_end(&mut text).map(|_| text));
        let _ = sender.send(read);
    })?;
    match receiver.recv_timeout(limits::PIPE_WAIT) {
        Ok(read) => read.map(Bytes::from),
        Err(_) => Err(io::Error::other("nothing was written to the pipe")),
    }
}

/// Paths that match a shell pattern, in the order of their bytes; a dot at a name's start is matched by a dot only.
///
/// # Source
/// glob(3), as nginx uses it.
fn glob(pattern: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::from(if pattern.starts_with('/') { "/" } else { "" })];
    let mut looked_at = 0;
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = match wildcard(part) {
            Some(wildcard) => {
                let mut matching = Vec::new();
                for folder in &found {
                    names(folder, &wildcard, &mut looked_at, &mut matching)?;
                }
                matching
            }
            None => found.into_iter().map(|path| path.join(part)).collect(),
        };
    }
    found.retain(|path| path.symlink_metadata().is_ok());
    found.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(found)
}

/// A part of a path that stands for several names.
fn wildcard(part: &str) -> Option<glob::Pattern> {
    if !part.contains(['*', '?', '[']) {
        return None;
    }
    // Written so, `**` and `[^` have no special meaning here.
    let mut plain = part.replace("[^", "[!");
    while plain.contains("**") {
        plain = plain.replace("**", "*");
    }
    // A bracket that is not closed stands for itself.
    glob::Pattern::new(&plain).ok()
}

/// Adds the names of a folder that match.
fn names(
    folder: &Path,
    wildcard: &glob::Pattern,
    looked_at: &mut usize,
    matching: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let options = glob::MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let shown = if folder == Path::new("") { Path::new(".") } else { folder };
    // What is not a folder, or may not be read, has no names.
    for item in fs::read_dir(shown).into_iter().flatten().flatten() {
        *looked_at += 1;
        if *looked_at > limits::GLOB_NAMES {
            let text = format!("more than {} names to look at", limits::GLOB_NAMES);
            return Err(io::Error::other(text));
        }
        let name = item.file_name();
        let text = OsStr::to_string_lossy(&name);
        if wildcard.matches_with(&text, options) {
            matching.push(folder.join(&name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary folder, gone at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("yorozu-{name}.{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn patterns_match_as_glob_does() {
        let folder = Folder::new("glob");
        for file in ["a/x.conf", "a/.x.conf", "a/y.conf~", "a-b/x.conf", ".c/x.conf", "d[1/x.conf"]
        {
            let path = folder.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        std::os::unix::fs::symlink("/nowhere", folder.0.join("a/z.conf")).unwrap();
        let table: &[(&str, &[&str])] = &[
            ("a/*.conf", &["a/x.conf", "a/z.conf"]),
            ("a/**.conf", &["a/x.conf", "a/z.conf"]),
            ("a/.*.conf", &["a/.x.conf"]),
            ("a/*", &["a/x.conf", "a/y.conf~", "a/z.conf"]),
            ("a/?.conf", &["a/x.conf", "a/z.conf"]),
            ("a/[wx].conf", &["a/x.conf"]),
            ("a/[!x].conf", &["a/z.conf"]),
            ("a/[^x].conf", &["a/z.conf"]),
            ("*/x.conf", &["a-b/x.conf", "a/x.conf", "d[1/x.conf"]),
            ("**/x.conf", &["a-b/x.conf", "a/x.conf", "d[1/x.conf"]),
            ("d[1/*", &["d[1/x.conf"]),
            ("a/x.conf/*", &[]),
            ("none/*", &[]),
        ];
        for (pattern, expected) in table {
            let found = glob(&folder.0.join(pattern).to_string_lossy()).unwrap();
            let found: Vec<_> = found
                .iter()
                .map(|path| path.strip_prefix(&folder.0).unwrap().to_string_lossy())
                .collect();
            assert_eq!(found, *expected, "{pattern}");
        }
    }

    #[test]
    fn a_pattern_without_end_is_given_up() {
        let problem = glob("/*/*/*/*/*/*/*/*/*/*/*/*").unwrap_err();
        assert!(problem.to_string().contains("names to look at"), "{problem}");
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = Folder::new("files");
        let fifo = folder.0.join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let large = folder.0.join("large");
        File::create(&large).unwrap().set_len(limits::NAMED_FILE_BYTES + 1).unwrap();
        let socket = folder.0.join("socket");
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in
            [&fifo, &large, &socket, &folder.0, Path::new("/dev/zero"), Path::new("/dev/null")]
        {
            assert!(read_regular(path).is_err(), "{}", path.display());
        }
        let writer = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::write(fifo, "secret")
        });
        assert_eq!(read_file_or_pipe(&fifo).unwrap(), "secret");
        writer.join().unwrap().unwrap();
        assert!(read_file_or_pipe(Path::new("/dev/zero")).is_err());
        let small = folder.0.join("small");
        fs::write(&small, "a").unwrap();
        assert_eq!(read_regular(&small).unwrap(), "a");
        // Its length is said to be 0.
        assert!(!read_regular(Path::new("/proc/self/status")).unwrap().is_empty());
    }
}
