//! Access logs, error logs, their files and the clock that dates them.

pub mod access;
pub mod clock;
pub mod error;
pub mod file;
pub mod syslog;
