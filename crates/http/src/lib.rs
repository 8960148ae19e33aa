//! The meaning of HTTP: targets, dates, ranges, validators, freshness, negotiation.
//!
//! # Invariants
//! - Pure: bytes and `now` in, values out; no runtime, file, socket or clock.
//! - Nothing requires UTF-8.
//!
//! # Sources
//! RFC 9110, RFC 9111, and nginx where it narrows or widens them (said at each place).

pub mod cache_control;
pub mod conditional;
pub mod date;
pub mod field;
pub mod negotiation;
pub mod range;
pub mod status;
pub mod uri;
pub mod vary;
