//! Who makes the response: the content phase, and the pages for errors and redirects.

pub mod autoindex;
pub mod dav;
pub mod empty_gif;
pub mod error_page;
pub mod fastcgi;
pub mod gateway;
pub mod index;
pub mod memcached;
pub mod proxy;
pub mod random_index;
pub mod static_file;
pub mod stub_status;
pub mod upstream;

use crate::cache::purge;
use crate::control;
use crate::exchange::Exchange;
use crate::exchange::request::Method;
use crate::exchange::response::Response;
use crate::faults;
use crate::logging::error::{self, Level};
use crate::phases;
use bytes::Bytes;
use std::rc::Rc;

/// What a location's content comes from.
#[derive(Clone, Debug)]
pub enum Handler {
    /// Files: index, autoindex, static.
    Files,
    /// `fastcgi_pass`, `proxy_pass`, `memcached_pass`
    Gateway(gateway::Protocol),
    /// `empty_gif`
    EmptyGif,
    /// `stub_status`
    StubStatus,
    /// `control_api`, `cache_purge_api`
    Control(control::Access),
}

/// What a phase or handler decided.
#[derive(Debug)]
pub enum Outcome {
    /// The response is made.
    Respond(Box<Response>),
    /// A redirect of our own; its location is completed and its page made later.
    Redirect(Box<Response>),
    /// A status whose page is still to be chosen (`error_page`).
    Status(u16),
    /// Start over with another path.
    Internal { uri: Vec<u8>, args: Option<Vec<u8>> },
    /// Start over in a named location.
    Named(Bytes),
    /// Something must be awaited: [`gateway::run`] goes on.
    Gateway,
}

/// How far a request came without waiting.
pub enum Progress {
    /// The response is ready for the filters.
    Ready(Box<Response>),
    /// The gateway of the exchange's location must be asked.
    Gateway,
    /// The connection closes without an answer, under this status in the log.
    Close(u16),
}

/// Runs the phases until there is a response or something to wait for.
pub fn start(exchange: &mut Exchange) -> Progress {
    faults::point("request");
    let outcome = phases::pass(exchange);
    resume(exchange, outcome)
}

/// Goes on with what was awaited.
pub fn resume(exchange: &mut Exchange, mut outcome: Outcome) -> Progress {
    loop {
        outcome = match outcome {
            Outcome::Respond(response) => return Progress::Ready(response),
            Outcome::Gateway => return Progress::Gateway,
            Outcome::Redirect(response) => match error_page::find(exchange, response.status) {
                Some(next) => next,
                None => {
                    // As nginx: what goes on behind an `error_page` is told by its own status.
                    exchange.error_status = None;
                    return Progress::Ready(error_page::redirect(exchange, &response));
                }
            },
            // As nginx: these are for clients that are not listening, or shall not be answered.
            Outcome::Status(status @ (408 | 444 | 499)) => return Progress::Close(status),
            Outcome::Status(status) => match error_page::find(exchange, status) {
                Some(next) => next,
                None => {
                    exchange.error_status = None;
                    return Progress::Ready(Box::new(error_page::standard(exchange, status)));
                }
            },
            Outcome::Internal { uri, args } => match phases::count_uri_change(exchange) {
                Some(cycle) => cycle,
                None if uri.starts_with(b"@") => phases::named_pass(exchange, &uri.into()),
                None => {
                    exchange.redirect_internally(uri, args);
                    phases::pass(exchange)
                }
            },
            Outcome::Named(name) => match phases::count_uri_change(exchange) {
                Some(cycle) => cycle,
                None => phases::named_pass(exchange, &name),
            },
        };
    }
}

/// The response, however long it takes; the status under which a connection would close without one.
pub async fn whole(exchange: &mut Exchange) -> Result<Box<Response>, u16> {
    let progress = start(exchange);
    let mut response = settled(exchange, progress).await?;
    // The page of an `error_page` is what it is under the error's status.
    response.status = exchange.settled_status().unwrap_or(response.status);
    Ok(response)
}

async fn settled(exchange: &mut Exchange, mut progress: Progress) -> Result<Box<Response>, u16> {
    loop {
        progress = match progress {
            Progress::Ready(response) => return Ok(response),
            Progress::Close(status) => return Err(status),
            Progress::Gateway => {
                let outcome = run(exchange).await;
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
    settled(exchange, progress).await
}

/// The content phase.
pub fn respond(exchange: &mut Exchange) -> Outcome {
    if purge::is_asked(exchange) || dav::is_asked(exchange) {
        return Outcome::Gateway;
    }
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    match &location.handler {
        Handler::Gateway(_) => gateway::respond(exchange),
        Handler::EmptyGif => empty_gif::respond(exchange),
        Handler::StubStatus => stub_status::respond(exchange),
        Handler::Control(_) => control::respond(exchange),
        Handler::Files => files(exchange),
    }
}

/// The part of a request that waits: between two phases, or for its content.
pub async fn run(exchange: &mut Exchange) -> Outcome {
    if let Some(pending) = exchange.pending.take() {
        return Box::pin(phases::wait(exchange, pending)).await;
    }
    let conf = Rc::clone(&exchange.conf);
    if let Handler::Control(access) = &conf.location(exchange.location).handler {
        Box::pin(control::run(exchange, access)).await
    } else if purge::is_asked(exchange) {
        Box::pin(purge::run(exchange)).await
    } else if dav::is_asked(exchange) {
        Box::pin(dav::run(exchange)).await
    } else {
        gateway::run(exchange).await
    }
}

fn files(exchange: &mut Exchange) -> Outcome {
    let method = exchange.request.method;
    let root = &exchange.conf.location(exchange.location).http_core.root;
    let is_looked_up = method.is_get_or_head() || method == Method::Post;
    if is_looked_up
        && root.is_alias
        && !static_file::is_alias_whole(exchange)
        && !exchange.is_uri_in_location
    {
        let text = "\"alias\" cannot be used in a location where the URI was rewritten";
        error::request(exchange, Level::Error, text);
        return Outcome::Status(500);
    }
    if exchange.uri.ends_with(b"/") && (method.is_get_or_head() || method == Method::Post) {
        if let Some(outcome) = random_index::respond(exchange) {
            return outcome;
        }
        if let Some(outcome) = index::respond(exchange) {
            return outcome;
        }
        if let Some(outcome) = autoindex::respond(exchange) {
            return outcome;
        }
    }
    static_file::respond(exchange)
}
