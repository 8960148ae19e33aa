//! From text to settings, and what is wrong with them as a whole.

mod cycles;
mod dropped_args;
pub mod findings;
mod issued;
pub mod load;
pub mod manual;
mod shared_sockets;
pub mod visitors;

#[cfg(test)]
mod tests;
