//! What groups and their loads are shared by: the standard library's. With the feature `model` shuttle's,
//! which tries one order of the steps after the other (`tests/model.rs`).

#[cfg(not(feature = "model"))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicUsize};

#[cfg(feature = "model")]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic::AtomicUsize};
