//! What `if` asks of a file.

use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::files::links::Links;
use yorozu_kernel::files::open;
use yorozu_kernel::files::path::kind;

/// `-f`, `-d`, `-e`, `-x`
#[derive(Clone, Copy, Debug)]
pub enum FileTest {
    File,
    Folder,
    Exists,
    Executable,
}

impl FileTest {
    /// Whether what the path names is that.
    pub(super) fn holds(self, exchange: &Exchange, path: &[u8]) -> bool {
        match self {
            _ if Links::of(exchange, path).refuse(path) => false,
            Self::File => kind(exchange, path) == Some(open::Kind::File),
            Self::Folder => kind(exchange, path) == Some(open::Kind::Folder),
            Self::Exists => kind(exchange, path).is_some(),
            Self::Executable => open::is_executable(path),
        }
    }
}
