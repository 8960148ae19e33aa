//! What everything else stands on: turns of the event loop and their clock, timers, the zone of time, tasks, counters, bounds.

pub mod address;
pub mod batch;
pub mod beat;
pub mod counters;
pub mod faults;
pub mod limits;
pub mod memory;
pub mod pace;
pub mod places;
pub mod readable;
pub mod report;
pub mod room;
pub mod scratch;
pub mod spare;
pub mod tally;
pub mod tasks;
pub mod texts;
pub mod timer;
pub mod turn;
pub mod zone;

/// The nginx release whose behaviour is the model; `$nginx_version` and `-V`.
pub const NGINX_VERSION: &str = "1.31.5";
