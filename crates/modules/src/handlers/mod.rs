//! Content of this server's own.

pub mod autoindex;
pub mod dav;
pub mod empty_gif;
pub mod flv;
pub mod index;
pub mod mp4;
pub mod random_index;
pub mod static_file;
pub mod stub_status;
