//! Connections of clients: bytes to exchanges and back.

pub mod body;
pub mod h1;
pub mod head;
pub mod timer;
pub mod transport;
mod write;
