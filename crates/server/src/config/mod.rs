//! Configuration: rows of directives, drafts of blocks, the compiled form, and the door from text.

pub mod block;
mod check;
pub mod compiled;
mod cycles;
pub mod directive;
pub mod env;
pub mod files;
pub mod findings;
pub mod http_core;
pub mod listen;
pub mod load;
pub mod main_core;
pub mod manual;
pub mod network;
pub mod regex;
pub mod registry;
mod shared_sockets;
pub mod template;
pub mod types;
pub mod unsupported;
pub mod visitors;

#[cfg(test)]
mod tests;
