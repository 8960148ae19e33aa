//! HTTP/3: frames, and header fields by QPACK.
//!
//! | file | what it has |
//! | --- | --- |
//! | `frame.rs` | integers, names of numbers, what is written |
//! | `incoming.rs` | a stream of frames that arrives in pieces |
//! | `request.rs` | frames of a request's stream |
//! | `control.rs` | frames of the control stream |
//! | `qpack/` | header fields |
//!
//! # Sources
//! RFC 9114, RFC 9204; RFC 9218 for the frames that change priorities.

pub mod control;
pub mod frame;
mod incoming;
pub mod qpack;
pub mod request;
