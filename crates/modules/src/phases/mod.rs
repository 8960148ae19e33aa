//! What requests pass before their content is made.

pub mod access;
pub mod auth_basic;
pub mod auth_request;
pub mod browser;
mod crypt;
pub mod geo;
pub mod geoip2;
pub mod htaccess;
pub mod limit_conn;
pub mod limit_req;
pub mod limit_zones;
pub mod map;
pub mod mirror;
pub mod realip;
pub mod referer;
pub mod rewrite;
pub mod secure_link;
pub mod split_clients;
pub mod try_files;
