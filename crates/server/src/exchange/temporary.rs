//! Temporary files of bodies, requests' and responses'.

use std::fs::File;
use std::io;
use std::path::Path;

/// A file without a name: it is gone when it is closed, whatever happens to us.
pub fn unnamed_file(folder: &Path) -> io::Result<File> {
    use nix::fcntl::OFlag;
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::create_dir_all(folder)?;
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(OFlag::O_TMPFILE.bits()).open(folder) {
        Ok(file) => Ok(file),
        Err(_) => {
            // Not every file system has O_TMPFILE.
            let number = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
            let path = folder.join(format!("{}.{number}", std::process::id()));
            let file = options.create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
    }
}
