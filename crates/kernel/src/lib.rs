//! What every part of the server stands on, and which knows no module: configuration, the exchange of a request and its
//! response, where they meet.
//!
//! | part | what it is |
//! | --- | --- |
//! | [`base`] | turns of the event loop and their clock, timers, tasks, counters, bounds |
//! | [`config`] | rows, values, blocks, templates, and how modules bring them |
//! | [`exchange`] | one request with its response, and the configuration it began with |
//! | [`find_config`] | which server and which location a request belongs to |
//! | [`files`] | paths, open and temporary files |
//! | [`live`] | what viewers of the running server see |
//! | [`logging`] | error logs and log files |

#![expect(missing_docs, reason = "public for the server's crates alone; fields say what they are")]

pub mod base;
pub mod config;
pub mod exchange;
pub mod files;
pub mod find_config;
pub mod live;
pub mod logging;

pub use base::NGINX_VERSION;
