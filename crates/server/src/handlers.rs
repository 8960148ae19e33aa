//! What makes the response: the content phase, and the pages for errors and redirects.

use crate::phases::{self, Part};
use bytes::Bytes;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_gateway::cache::purge;
use yorozu_gateway::protocol::family::Family;
use yorozu_gateway::{fastcgi, proxy, scgi, uwsgi};
use yorozu_kernel::base::faults;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::{Outcome, Pending, Permission, Progress};
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::{Exchange, body_failed, error_page};
use yorozu_kernel::files::path;
use yorozu_kernel::logging::error;
use yorozu_modules::handlers::{autoindex, dav, index, random_index, static_file};
use yorozu_modules::phases::{access, htaccess};

/// The protocols whose pages may be stored.
pub static CACHED: [&Family; 4] = [&proxy::FAMILY, &fastcgi::FAMILY, &uwsgi::FAMILY, &scgi::FAMILY];

/// Runs the phases until there is a response or something to wait for.
pub fn start(exchange: &mut Exchange) -> Progress {
    faults::point("request");
    let outcome = phases::pass(exchange);
    resume(exchange, outcome)
}

/// Goes on with what was awaited.
pub fn resume(exchange: &mut Exchange, mut outcome: Outcome) -> Progress {
    loop {
        if exchange.takes_doubt() {
            outcome = Outcome::Status(500);
        }
        outcome = match outcome {
            Outcome::Respond(response) => match body_failed::broken_unasked(exchange) {
                Some(refusal) => refusal,
                None => return Progress::Ready(response),
            },
            Outcome::Wait(pending) => return Progress::Wait(pending),
            Outcome::Refused(status) => {
                exchange.leave_refused();
                Outcome::Status(status)
            }
            Outcome::Status(status) if exchange.redirects.has_stub => {
                return Progress::Close(status);
            }
            Outcome::Redirect(response) if exchange.redirects.has_stub => {
                return Progress::Close(response.status);
            }
            Outcome::Redirect(response) => match error_page::find(exchange, response.status) {
                Some(next) => {
                    let location = response.location.as_ref();
                    exchange.replaced_location =
                        location.map(|location| error_page::absolute(exchange, location));
                    next
                }
                None => {
                    // As nginx: what happens after an `error_page` is reported by its own status.
                    exchange.redirects.error_status = None;
                    return Progress::Ready(error_page::redirect(exchange, &response));
                }
            },
            // As nginx: these are for clients that are not listening, or shall not be answered.
            Outcome::Status(status @ (408 | 444 | 499)) => return Progress::Close(status),
            Outcome::Status(status) => match error_page::find(exchange, status) {
                Some(next) => next,
                None => {
                    exchange.redirects.error_status = None;
                    return Progress::Ready(Box::new(error_page::standard(exchange, status)));
                }
            },
            Outcome::Internal { uri, .. } if uri.starts_with(b"@") => {
                to_named(exchange, &uri.into())
            }
            Outcome::Internal { uri, args } => {
                let to = |_: &_| format!("internally redirecting to \"{}\"", error::verbatim(&uri));
                match phases::count_uri_change(exchange, to) {
                    Some(cycle) => cycle,
                    None => {
                        exchange.redirect_internally(uri, args);
                        phases::pass(exchange)
                    }
                }
            }
            Outcome::Named(name) => to_named(exchange, &name),
        };
    }
}

/// An internal redirect to a named location.
fn to_named(exchange: &mut Exchange, name: &Bytes) -> Outcome {
    let to = |_: &_| format!("redirect to named location \"{}\"", error::verbatim(name));
    match phases::count_uri_change(exchange, to) {
        Some(cycle) => cycle,
        None => phases::named_pass(exchange, name),
    }
}

/// The response, however long it takes; the status under which a connection would close without one.
pub async fn whole(exchange: &mut Exchange) -> Result<Box<Response>, u16> {
    let progress = start(exchange);
    let mut response = finished(exchange, progress).await?;
    // The page of an `error_page` is what it is under the error's status.
    response.status = exchange.final_status().unwrap_or(response.status);
    Ok(response)
}

async fn finished(exchange: &mut Exchange, mut progress: Progress) -> Result<Box<Response>, u16> {
    loop {
        progress = match progress {
            Progress::Ready(response) => return Ok(response),
            Progress::Close(status) => return Err(status),
            Progress::Wait(pending) => {
                let outcome = run(exchange, pending).await;
                resume(exchange, outcome)
            }
        };
    }
}

/// The response once more, from the content phase of the exchange's location on.
///
/// # Errors
/// As [`whole`].
pub async fn content_again(exchange: &mut Exchange) -> Result<Box<Response>, u16> {
    let outcome = respond(exchange);
    let progress = resume(exchange, outcome);
    finished(exchange, progress).await
}

/// The content phase.
pub fn respond(exchange: &mut Exchange) -> Outcome {
    if exchange.doubt.is_open() {
        return Outcome::Status(500);
    }
    if is_purge(exchange) {
        return Outcome::Wait(Pending::Content);
    }
    // Of a folder the index is shown, which is another path's.
    let is_folder = exchange.uri.ends_with(b"/") && exchange.request.method.is_get_or_head();
    if !is_folder && is_forbidden(exchange) {
        return Outcome::Refused(403);
    }
    let conf = Rc::clone(&exchange.conf);
    conf.location(exchange.location).handler.respond(exchange)
}

fn is_forbidden(exchange: &Exchange) -> bool {
    Part::Htaccess.concerns(exchange) && htaccess::refuses(exchange)
}

fn is_purge(exchange: &mut Exchange) -> bool {
    Part::Purge.concerns(exchange) && purge::is_asked(exchange, &CACHED)
}

/// The part of a request that waits: between two phases, or for its content.
pub fn run(exchange: &mut Exchange, pending: Pending) -> Later<'_, Outcome> {
    if !matches!(pending, Pending::Content) {
        return Box::pin(phases::wait(exchange, pending));
    }
    if is_purge(exchange) {
        let location = exchange.conf.location(exchange.location);
        // Of one that they refuse, another check let it in.
        let said = access::check(exchange, location.of::<access::Conf>());
        let has_rules = said != Permission::NoOpinion;
        return Box::pin(purge::run(exchange, &CACHED, has_rules));
    }
    let handler = Arc::clone(&exchange.conf.location(exchange.location).handler);
    handler.run(exchange)
}

/// Files: `dav_methods`, indexes, listings, static files.
#[derive(Debug)]
pub struct Files;

impl Handler for Files {
    fn respond(&self, exchange: &mut Exchange) -> Outcome {
        if !Part::Dav.concerns(exchange) || !dav::is_asked(exchange) {
            return files(exchange);
        }
        if let Some(refusal) = path::unnamed(exchange) {
            return refusal;
        }
        Outcome::Wait(Pending::Content)
    }

    fn run(self: Arc<Self>, exchange: &mut Exchange) -> Later<'_, Outcome> {
        Box::pin(dav::run(exchange))
    }
}

/// The same without `dav_methods`.
pub fn files(exchange: &mut Exchange) -> Outcome {
    let method = exchange.request.method;
    let is_looked_up = method.is_get_or_head() || method == Method::Post;
    if is_looked_up {
        if let Some(refusal) = path::unnamed(exchange) {
            return refusal;
        }
    }
    if exchange.uri.ends_with(b"/") && (method.is_get_or_head() || method == Method::Post) {
        if Part::RandomIndex.concerns(exchange) {
            if let Some(outcome) = random_index::respond(exchange) {
                return outcome;
            }
        }
        if let Some(outcome) = index::respond(exchange) {
            return outcome;
        }
        if is_forbidden(exchange) {
            return Outcome::Refused(403);
        }
        if let Some(outcome) = autoindex::respond(exchange) {
            return outcome;
        }
    }
    static_file::respond(exchange)
}
