//! nginx's modules, each in a file or folder of its own: what a request passes, what a response passes, content of this
//! server's own, the access log. Which there are, and in which order they come, the server says.

#![expect(missing_docs, reason = "public for the server's crates alone; fields say what they are")]

pub mod access_log;
pub mod filters;
pub mod handlers;
pub mod phases;
