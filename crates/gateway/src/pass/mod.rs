//! What every gateway shares: directives, peers and retries, buffering, the cache in front.
//!
//! Way through: [`respond`] (cache, never waits) -> [`run`] (waits: disk, another maker, the request
//! body, the peer) -> [`fetch`] (peers, one after another; with each a [`conversation`]) -> [`answer`] (head to response, what is
//! stored) -> [`arriving`] (the body, if it is there) -> [`pump`] (the rest, read ahead of the client).
//!
//! Nothing here names a protocol: each is a [`Protocol`], which brings its directives, a
//! [`Call`](super::protocol::call::Call) (what it makes of the exchange) and a
//! [`Codec`](super::protocol::codec::Codec).

pub mod answer;
pub mod arriving;
mod conversation;
pub mod directives;
pub mod fetch;
mod hints;
mod pace;
pub mod pools;
pub mod pump;
pub mod ready;
pub mod run;
mod shown;
pub mod store;
pub mod tunnel;
pub mod upload;

pub use directives::{Conf, handle_by, rows_of};
pub use run::run;

use super::protocol::family::{Family, Stamped};
use super::protocol::{Gateway, Protocol};
use crate::cache::{self, purge};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_kernel::config::directive::ValueError;
use yorozu_kernel::config::shared::Collected;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::Report;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::engine::{Later, no_fields};
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::{Outcome, Pending};

/// What one block says with the prefix of a protocol.
pub type Shared<P> = Stamped<P, directives::Draft>;

impl Handler for Gateway {
    fn respond(&self, exchange: &mut Exchange) -> Outcome {
        respond(exchange, &*self.0)
    }

    fn run(self: Arc<Self>, exchange: &mut Exchange) -> Later<'_, Outcome> {
        // Written where it stays: it has thousands of bytes, which would be moved there.
        let place = Box::new_uninit();
        let made = Box::write(place, async move { run(exchange, &*self.0).await });
        Box::into_pin(made)
    }

    fn check(&self, shared: &Collected) -> Result<(), ValueError> {
        self.0.target().map_or(Ok(()), |target| target.resolve(shared))
    }

    fn is_gateway(&self) -> bool {
        true
    }
}

/// The settings in a location that have the prefix of a family.
pub fn conf<'a>(location: &'a LocationConf, family: &Family) -> &'a Conf {
    location.at(&family.gateway)
}

/// How long an answer's head may be in a location. Tags of a page that may be stored need room beside what a browser sees.
pub fn head_bytes_max(location: &LocationConf, family: &Family) -> usize {
    let tags = match cache::settings::with_prefix(location, family).zone() {
        Some(_) => purge::TAGS_BYTES_MAX,
        None => 0,
    };
    conf(location, family).buffer_size.bytes() + tags
}

/// The settings of a gateway in a location, and of the cache in front of it.
#[derive(Clone, Copy)]
pub struct Settings<'a> {
    own: &'a Conf,
    pub cache: &'a cache::Conf,
}

impl Deref for Settings<'_> {
    type Target = Conf;

    fn deref(&self) -> &Conf {
        self.own
    }
}

/// All settings in a location that have the prefix of a protocol.
pub fn settings<'a>(location: &'a LocationConf, protocol: &dyn Protocol) -> Settings<'a> {
    let family = protocol.family();
    Settings { own: conf(location, family), cache: cache::settings::with_prefix(location, family) }
}

/// Looks into the cache; what cannot be answered from memory is left to [`run`].
fn respond(exchange: &mut Exchange, protocol: &dyn Protocol) -> Outcome {
    let config = Rc::clone(&exchange.conf);
    let location = config.location(exchange.location);
    // As nginx: variables tell of the gateway that was asked last, and of nothing before it has an answer.
    exchange.stored = None;
    if !exchange.upstream_fields.is_empty() {
        exchange.upstream_fields = no_fields();
        exchange.upstream_trailers.clear();
    }
    // The same goes for the cache: one without a cache says nothing of it.
    if exchange.cache_report.is_made() {
        exchange.cache_status = None;
        exchange.cache_report = Report::default();
    }
    if let Err(status) = protocol.resolve(exchange) {
        return Outcome::Status(status);
    }
    let conf = cache::settings::with_prefix(location, protocol.family());
    if !cache::may_answer(exchange, conf) || cache::waits_for_content(exchange, conf) {
        return Outcome::Wait(Pending::Content);
    }
    cache::lookup(exchange, conf).map_or(Outcome::Wait(Pending::Content), run::act)
}
