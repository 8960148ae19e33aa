//! The phases of a request, in nginx's order; the first with an outcome ends the pass.
//!
//! post_read (realip) > server_rewrite > find_config > rewrite > access > precontent (try_files) > content

pub mod access;
pub mod map;
pub mod realip;
pub mod rewrite;
pub mod try_files;

use crate::config::compiled::LocationConf;
use crate::exchange::Exchange;
use crate::find_config::{self, Found};
use crate::handlers::{self, Outcome};
use crate::logging::error::{self, Level};
use bytes::Bytes;
use rewrite::Verdict;
use std::rc::Rc;

/// One pass from the server's script on.
pub fn pass(exchange: &mut Exchange) -> Outcome {
    let conf = Rc::clone(&exchange.conf);
    exchange.location = conf.server(exchange.server).conf;
    realip::apply(exchange, &conf.location(exchange.location).realip);
    if let Verdict::Done(outcome) = rewrite::in_server(exchange) {
        return outcome;
    }
    match until_settled(exchange) {
        Some(outcome) => outcome,
        None => after_rewrite(exchange),
    }
}

/// A pass that enters the named location `name` directly.
pub fn named_pass(exchange: &mut Exchange, name: &Bytes) -> Outcome {
    let conf = Rc::clone(&exchange.conf);
    let Some(id) = conf.server(exchange.server).locations.named.get(name) else {
        let name = String::from_utf8_lossy(name);
        error::request(
            exchange,
            Level::Error,
            &format!("could not find named location \"{name}\""),
        );
        return Outcome::Status(500);
    };
    exchange.location = *id;
    exchange.is_internal = true;
    match rewrite::in_location(exchange) {
        Verdict::Done(outcome) => outcome,
        Verdict::Continue => after_rewrite(exchange),
        Verdict::UriChanged => until_settled(exchange).unwrap_or_else(|| after_rewrite(exchange)),
    }
}

/// Finds a location and runs its script, again while the script changes the path.
fn until_settled(exchange: &mut Exchange) -> Option<Outcome> {
    loop {
        if let Some(outcome) = enter_location(exchange) {
            return Some(outcome);
        }
        match rewrite::in_location(exchange) {
            Verdict::Done(outcome) => return Some(outcome),
            Verdict::Continue => return None,
            Verdict::UriChanged => {
                if let Some(outcome) = count_uri_change(exchange) {
                    return Some(outcome);
                }
            }
        }
    }
}

/// Every rewrite and internal redirect uses up one of a bounded number.
pub fn count_uri_change(exchange: &mut Exchange) -> Option<Outcome> {
    if exchange.uri_changes_left == 0 {
        let uri = String::from_utf8_lossy(&exchange.uri).into_owned();
        let text = format!("rewrite or internal redirection cycle while processing \"{uri}\"");
        error::request(exchange, Level::Error, &text);
        return Some(Outcome::Status(500));
    }
    exchange.uri_changes_left -= 1;
    None
}

fn enter_location(exchange: &mut Exchange) -> Option<Outcome> {
    let conf = Rc::clone(&exchange.conf);
    exchange.location = match find_config::location(exchange) {
        Found::Location(id) => id,
        Found::Server => conf.server(exchange.server).conf,
        Found::LacksSlash => {
            return Some(crate::handlers::static_file::redirect_to_slash(exchange));
        }
    };
    let location = conf.location(exchange.location);
    if location.http_core.internal.0 && !exchange.is_internal {
        return Some(Outcome::Status(404));
    }
    let max = location.http_core.client_max_body_size.0;
    if let Some(length) = exchange.request.content_length.filter(|length| max > 0 && *length > max)
    {
        if !exchange.body.is_discarded() {
            let text = format!("client intended to send too large body: {length} bytes");
            error::request(exchange, Level::Error, &text);
            return Some(Outcome::Status(413));
        }
    }
    if let Some((methods, id)) = &location.limit_except {
        let method = exchange.request.method_text();
        if !methods.iter().any(|allowed| allowed == method) {
            exchange.location = *id;
        }
    }
    None
}

fn after_rewrite(exchange: &mut Exchange) -> Outcome {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    realip::apply(exchange, &location.realip);
    if let Some(outcome) = check_access(exchange, location) {
        return outcome;
    }
    match try_files::choose(exchange) {
        Some(outcome) => outcome,
        None => handlers::respond(exchange),
    }
}

fn check_access(exchange: &Exchange, location: &LocationConf) -> Option<Outcome> {
    // As nginx: access was checked before an internal redirect only if the first pass came so far;
    // each pass checks anew.
    if access::is_denied(exchange, &location.access) {
        error::request(exchange, Level::Error, "access forbidden by rule");
        return Some(Outcome::Status(403));
    }
    None
}
