//! nginx's modules, each in its own file or folder: what a request passes, what a response passes, this server's own
//! content, the access log. Which there are, and in which order they come, the server says.

#![expect(missing_docs, reason = "public for the server's crates alone; fields say what they are")]

pub mod access_log;
pub mod filters;
pub mod handlers;
pub mod metrics;
pub mod phases;
