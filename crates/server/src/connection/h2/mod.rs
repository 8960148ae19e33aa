//! HTTP/2 connections.

mod directives;

pub use directives::{Conf, DIRECTIVES, Draft, OTHERS};
