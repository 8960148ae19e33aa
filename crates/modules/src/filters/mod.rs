//! What happens to a response between its handler and the connection.

pub mod addition;
pub mod charset;
pub mod compress;
pub mod headers;
pub mod more_headers;
pub mod not_modified;
pub mod range;
pub mod slice;
pub mod ssi;
pub mod sub;
pub mod userid;
