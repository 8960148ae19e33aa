//! Whether a connection may be used for another request: `keepalive_timeout 0`, `keepalive_requests`, `keepalive_time`,
//! `keepalive_disable`.

use crate::base::turn;
use crate::config::http_core::{Conf, KeepaliveDisable};
use crate::exchange::Exchange;
use crate::exchange::request::Method;

/// What the exchange's location says.
pub fn is_allowed(exchange: &Exchange) -> bool {
    let client = &exchange.client;
    let core = exchange.conf.location(exchange.location).http_core();
    !core.keepalive_timeout.timeout.is_zero()
        && client.requests.get() < core.keepalive_requests
        && client.since.checked_add(core.keepalive_time).is_none_or(|end| turn::instant() < end)
        && !is_disabled(exchange, core)
}

/// `keepalive_disable`
fn is_disabled(exchange: &Exchange, core: &Conf) -> bool {
    let disabled = core.keepalive_disable;
    let is_post = exchange.request.method == Method::Post;
    let may_be_msie = disabled.contains(KeepaliveDisable::MSIE6) && is_post;
    let may_be_safari = disabled.contains(KeepaliveDisable::SAFARI);
    // Most requests are answered by this: a search of their agent costs more than the rest here.
    if !may_be_msie && !may_be_safari {
        return false;
    }
    let Some(agent) = exchange.request.known(exchange.request.known.user_agent) else {
        return false;
    };
    let has = |needle: &[u8]| memchr::memmem::find(agent, needle).is_some();
    let is_old_msie =
        || [&b"MSIE 4."[..], b"MSIE 5.", b"MSIE 6."].iter().any(|text| has(text)) && !has(b"Opera");
    let is_safari = || has(b"Safari/") && has(b"Mac OS X") && !has(b"Chrome/");
    (may_be_msie && is_old_msie()) || (may_be_safari && is_safari())
}
