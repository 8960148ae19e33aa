//! `more_set_headers`, `more_clear_headers`, `more_set_input_headers`, `more_clear_input_headers`: fields of responses
//! and requests that are replaced or removed, from every source.
//!
//! # Source
//! `headers-more-nginx-module`. Unlike there: fields that say how a message is carried, or its host, cannot be set.

pub mod directives;
mod request;
mod response;

pub use directives::{Conf, Draft};
use directives::{DIRECTIVES, ROWS};
pub use request::apply as apply_to_request;
pub use response::FILTER;

use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;

/// The module.
pub const MODULE: Module =
    Module::new("headers_more", || [DIRECTIVES, ROWS].concat()).with(&[silent::<Draft>]);
