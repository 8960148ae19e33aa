//! Tests of what lies in other crates and wants a whole configuration.

mod collector;
mod decision;
mod find_config;
mod freshness;
mod messages;
mod purge;
mod registry;
mod request;
mod sharing;
mod store;
mod words;
