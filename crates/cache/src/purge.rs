//! Purges: what is removed, and how.

use crate::Key;
use crate::catalog::host_end;
use bytes::Bytes;

/// What is purged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Purge {
    /// A page with all its variants.
    Page(Key),
    /// Every key that begins so.
    Prefix(Bytes),
    /// Every page with this tag. A tag may belong to a host, `HOST NUL TAG`; without the host before the
    /// NUL it means that of every host.
    Tag(Bytes),
    /// Everything.
    All,
}

/// What happens to a purged page.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PurgeMode {
    /// It is gone.
    #[default]
    Hard,
    /// It is served stale once more while it is refreshed, if it is in memory; else it is gone.
    Soft,
}

impl Purge {
    /// Whether the purge matches the page.
    pub(crate) fn matches(&self, key: &Key, tags: &[Bytes]) -> bool {
        match self {
            Self::Page(page) => key == page || key.page() == *page,
            Self::Prefix(prefix) => key.as_bytes().starts_with(prefix),
            Self::Tag(wanted) => tags.iter().any(|tag| {
                let of_every_host = host_end(tag).map(|at| &tag[at..]);
                tag == wanted || of_every_host == Some(&wanted[..])
            }),
            Self::All => true,
        }
    }
}
