//! Files: which one a request names, what lies there, reading without making the event loop wait, temporary ones.

pub mod open;
pub mod path;
pub mod read;
pub mod temporary;
