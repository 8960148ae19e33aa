//! What viewers of the running server are sent, over the console's location and over the control socket.

pub(crate) mod events;
pub(crate) mod figures;
pub(crate) mod history;
