//! Error logs, log files and the clock that dates them.

pub mod clock;
pub mod error;
pub mod error_log;
pub mod file;
pub mod level;
pub mod memory;
pub mod syslog;
mod verbatim;
pub mod writer;
