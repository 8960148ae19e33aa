//! Files: which one a request names, what lies there, reading without making the event loop wait, temporary ones.

pub mod links;
pub mod open;
pub mod path;
pub mod read;
pub mod temporary;

use nix::unistd::Uid;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Whether no other user can have put anything else in the place of this folder or of what lies in it: it and those above
/// it are this process's user's or root's, and no one else may write there, or only to what is theirs. Blocks.
pub fn is_own_folder(path: &Path) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let own = nix::unistd::geteuid().as_raw();
    path.ancestors().filter(|folder| !folder.as_os_str().is_empty()).all(|folder| {
        #[expect(
            clippy::disallowed_methods,
            reason = "asked by the master process, which serves no one"
        )]
        let metadata = std::fs::metadata(folder);
        metadata.is_ok_and(|found| {
            let is_closed = found.mode() & OTHERS_WRITE == 0 || found.mode() & STICKY != 0;
            is_closed && [0, own].contains(&found.uid())
        })
    })
}

/// Whether what lies at `path` belongs to a user. Blocks.
pub fn is_of_user(path: &Path, user: Uid) -> bool {
    #[expect(
        clippy::disallowed_methods,
        reason = "asked by the master process, which serves no one"
    )]
    let metadata = std::fs::metadata(path);
    metadata.is_ok_and(|found| found.uid() == user.as_raw())
}
