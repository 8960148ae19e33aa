//! What those see who look at the running server: why each request was no hit, what that costs, and requests and purges as
//! they come.
//!
//! | part | what it is |
//! | --- | --- |
//! | [`reason`] | why a request was not answered from the cache, with what to do about it |
//! | [`costs`] | the pages that upstreams worked longest for, bounded |
//! | [`times`] | a fine histogram of requests, counted only while a viewer is there |
//! | [`viewers`] | the viewers, and a bounded queue for each |
//!
//! # Invariants
//! - Without a viewer a hit costs one look at a number that nothing changes.
//! - A request waits for no viewer: what does not fit into its queue is left out, and counted.

pub mod costs;
pub mod filter;
pub mod reason;
pub mod times;
pub mod viewers;

use crate::exchange::Exchange;
use crate::exchange::conf::Config;
use crate::live::reason::Reason;
use std::time::Duration;
pub use viewers::is_watched;

/// Whether requests are counted at present: by the configuration, or since there is a viewer.
#[inline]
pub fn is_counted(conf: &Config) -> bool {
    conf.is_counted || is_watched()
}

/// Counts a request that is over, where it was not answered from the cache.
pub fn count(exchange: &Exchange) {
    if exchange.cache_report.is_hit {
        return;
    }
    if let Some(why) = Reason::of(exchange) {
        reason::count(why);
        costs::add(exchange, why, upstream_time(exchange));
    }
}

/// Counts a renewal that no client waited for: it is no request, and costs its time.
pub fn count_refresh(exchange: &Exchange) {
    if let Some(why) = Reason::of(exchange) {
        costs::add(exchange, why, upstream_time(exchange));
    }
}

/// How long upstreams were busy with it.
fn upstream_time(exchange: &Exchange) -> Duration {
    exchange.attempts.iter().filter_map(|attempt| attempt.response_time).sum()
}

/// Tells viewers of a request that is over.
#[cold]
pub fn tell(exchange: &Exchange) {
    let time = exchange.request_time();
    times::observe(time);
    viewers::tell_request(exchange, time);
}
