//! The content of a request, on its way to an upstream.

use bytes::Bytes;
use std::fs::File;
use std::sync::Arc;

/// The content of a request as an upstream gets it. What a head announces is read from here and nowhere else, so
/// that nothing is announced that is not sent: an upstream would take the next request for it.
#[derive(Clone, Debug)]
pub enum Content {
    None,
    Memory(Bytes),
    /// A file, and its length in bytes.
    File(Arc<File>, u64),
    /// It follows while it arrives; `length` as the client announced it.
    Live {
        length: Option<u64>,
    },
}

impl Content {
    /// How long it is, as far as that is known before it is sent.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Memory(bytes) => Some(bytes.len() as u64),
            Self::File(_, bytes) => Some(*bytes),
            Self::Live { length } => *length,
        }
    }
}
