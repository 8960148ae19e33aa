//! Header fields in sections (RFC 9204): a decoder with static and dynamic table, and an encoder without the latter, as
//! nginx's.
//!
//! | file | what it has |
//! | --- | --- |
//! | `decoder.rs` | sections, what they wait for, what is said about them |
//! | `instructions.rs` | what a client's encoder says |
//! | `acknowledgments.rs` | what a client's decoder says |
//! | `encoder.rs` | sections that are written |
//! | `fixed.rs` | the static table |

mod acknowledgments;
mod decoder;
mod encoder;
mod fixed;
mod instructions;

pub use acknowledgments::Acknowledgments;
pub use decoder::{Decoder, Section};
pub use encoder::{put_field, put_prefix, put_status};

/// Bytes of the dynamic table that a client may have us keep, as nginx's.
pub const TABLE_BYTES: usize = 4096;

/// What is read here; numbers may have 62 bits (section 4.1.1).
type Packed<'a> = crate::packed::Packed<'a, 9>;
