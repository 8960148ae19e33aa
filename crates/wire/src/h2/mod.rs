//! HTTP/2: frames, and header fields by HPACK.
//!
//! # Sources
//! RFC 9113, RFC 7541.

pub mod frame;
pub mod hpack;
