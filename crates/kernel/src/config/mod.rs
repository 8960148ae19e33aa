//! Configuration: values, rows of directives, blocks, and what they come to in servers and locations.

pub mod block;
pub mod directive;
pub mod env;
pub mod expressions;
pub mod files;
pub mod hosts;
pub mod http_core;
pub mod listen;
mod literals;
pub mod loader;
pub mod main_core;
pub mod module;
pub mod named;
pub mod names;
pub mod network;
pub mod place;
pub mod prefixes;
pub mod regex;
pub mod regex_set;
pub mod servers;
pub mod settings;
pub mod shared;
pub mod spans;
pub mod template;
pub mod types;
pub mod unsupported;
pub mod value_error;
