//! From a request to its response: the part that all protocols share.

use crate::h2;
use crate::head::{self, Refusal};
use crate::quic;
use crate::tls::client_auth::Verification;
use crate::tls::server::ServerTls;
use crate::tls::session;
use bytes::Bytes;
use yorozu_http::uri;
use yorozu_kernel::base::faults;
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::client::TlsSession as _;
use yorozu_kernel::exchange::error_page;
use yorozu_kernel::exchange::outcome::{Outcome, Pending, Progress};
use yorozu_kernel::find_config;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_wire::h1::Version;

/// How far a request came without waiting.
pub(super) enum Begun {
    Done(Answer),
    /// The response waits for something: [`wait`] for it.
    Waits(Pending),
}

/// What of a request is read first, and what then.
const LINE: &str = "request line";
const HEADERS: &str = "request headers";

/// The response, filtered; or the status for the log where the connection shall end without one.
pub(super) use yorozu_kernel::exchange::engine::Answer;

/// Answers a request as far as that needs no waiting; `refusal` is the status a broken one gets.
pub(super) fn begin(exchange: &mut Exchange, refusal: Option<(u16, String)>) -> Begun {
    let progress = match refusal {
        Some((status, text)) => {
            choose_server_of_refused(exchange);
            // Nothing of a line is known that could not be read.
            let is_line_read = !exchange.request.method_span.is_empty();
            refuse(exchange, status, &text, if is_line_read { HEADERS } else { LINE })
        }
        None => phases(exchange),
    };
    filtered(exchange, progress)
}

/// The part of a request that waits.
pub(super) async fn wait(exchange: &mut Exchange, mut pending: Pending) -> Answer {
    faults::point("wait");
    loop {
        let outcome = {
            let run = exchange.conf.engine.run;
            run(exchange, pending).await
        };
        let resume = exchange.conf.engine.resume;
        let progress = resume(exchange, outcome);
        match filtered(exchange, progress) {
            Begun::Done(answer) => return answer,
            Begun::Waits(next) => pending = next,
        }
    }
}

fn filtered(exchange: &mut Exchange, mut progress: Progress) -> Begun {
    loop {
        let mut response = match progress {
            Progress::Ready(response) => response,
            Progress::Close(status) => return Begun::Done(Err(status)),
            Progress::Wait(pending) => return Begun::Waits(pending),
        };
        let filter = exchange.conf.engine.filter;
        filter(exchange, &mut response);
        if exchange.is_given_up {
            // Under this status in the log: the client gets none.
            return Begun::Done(Err(exchange.status));
        }
        // Where even the server's own page for that has values in doubt, it goes without them.
        if exchange.doubt.is_open() && !exchange.redirects.is_cycle {
            let resume = exchange.conf.engine.resume;
            progress = resume(exchange, Outcome::Status(500));
            continue;
        }
        // A filter's refusal is an error like any other; the redirects that it leads to are bounded.
        let Some(status) = exchange.redirects.refused.take() else {
            return Begun::Done(Ok(response));
        };
        exchange.leave_refused();
        let Some(outcome) = error_page::find(exchange, status) else {
            return Begun::Done(Ok(response));
        };
        let resume = exchange.conf.engine.resume;
        progress = resume(exchange, outcome);
    }
}

/// The request is over: what it was read into may hold the next one.
pub(super) fn end(exchange: &mut Exchange) {
    head::give_back(&mut exchange.request);
    exchange.sent.give_back();
    drop(Scratch::from(std::mem::take(&mut exchange.uri)));
    drop(Scratch::from(std::mem::take(&mut exchange.args)));
}

/// Writes the access log.
pub(super) fn log(exchange: &mut Exchange) {
    let log = exchange.conf.engine.log;
    log(exchange);
}

/// As nginx: a broken request is answered by the server of the host that was known before it broke, or of the name in the
/// handshake.
pub(super) fn choose_server_of_refused(exchange: &mut Exchange) {
    let is_host_known = exchange.request.is_read || !exchange.request.host.is_empty();
    exchange.server = match is_host_known {
        true => find_config::server(exchange),
        false => find_config::first_server(&exchange.conf, &exchange.client),
    };
    exchange.location = exchange.conf.server(exchange.server).conf;
    // Logs name the client also where nothing else is known of it.
    let take_real_ip = exchange.conf.engine.take_real_ip;
    take_real_ip(exchange);
}

/// Whether slashes in the path are merged. As in nginx this is decided before the server is known: the path must not be read in
/// another way because the client asks for another name.
fn merges_slashes(exchange: &Exchange) -> bool {
    let conf = &exchange.conf;
    let server = find_config::first_server(conf, &exchange.client);
    conf.location(conf.server(server).conf).http_core().merge_slashes
}

/// Chooses the server, normalises the path, and runs the phases.
fn phases(exchange: &mut Exchange) -> Progress {
    exchange.server = find_config::server(exchange);
    exchange.location = exchange.conf.server(exchange.server).conf;
    if let Err((status, text)) = check_version(exchange).and_then(|()| check_tls(exchange)) {
        return refuse(exchange, status, &text, HEADERS);
    }
    let merges = merges_slashes(exchange);
    let target = exchange.request.target();
    let room = || Scratch::take().into();
    let path = room();
    let target = match target.first() {
        Some(b'/') => uri::normalize_into(path, room, target, merges),
        // Absolute-form without a path.
        _ => uri::normalize_into(path, room, &[b"/", target].concat(), merges),
    };
    match target {
        Ok(target) => {
            exchange.uri = target.path;
            exchange.args = target.args.unwrap_or_default();
        }
        Err(_) => {
            // As nginx: the request line is judged before it is known which server is asked.
            exchange.request.host = Bytes::new();
            exchange.request.is_read = false;
            choose_server_of_refused(exchange);
            return refuse(exchange, 400, "client sent invalid request", LINE);
        }
    }
    let refused = match exchange.request.method_text() {
        b"TRACE" => Some("client sent TRACE method"),
        b"CONNECT" => Some("client sent CONNECT method"),
        _ => None,
    };
    if let Some(text) = refused {
        return refuse(exchange, 405, text, HEADERS);
    }
    let start = exchange.conf.engine.start;
    start(exchange)
}

/// Checks that the request's server speaks the version of HTTP that was agreed on, with it or with one of its neighbours.
fn check_version(exchange: &Exchange) -> Result<(), Refusal> {
    let (conf, server) = (&exchange.conf, exchange.server);
    let is_spoken = match exchange.request.version {
        Version::V20 => {
            conf.socket(&exchange.client).http2 || conf.of_server::<h2::Conf>(server).http2
        }
        Version::V30 => conf.of_server::<quic::directives::Conf>(server).http3,
        _ => true,
    };
    match is_spoken {
        true => Ok(()),
        false => {
            let text = "client attempted to request the server name for which the negotiated protocol is disabled";
            Err((421, text.to_owned()))
        }
    }
}

/// Checks that what the handshake agreed on suffices for the request's server.
fn check_tls(exchange: &Exchange) -> Result<(), Refusal> {
    let conf = &exchange.conf;
    let Some(session) = session::of(&exchange.client) else {
        return match conf.socket(&exchange.client).is_tls {
            true => Err((497, "client sent plain HTTP request to HTTPS port".to_owned())),
            false => Ok(()),
        };
    };
    let Some(auth) = &conf.of_server::<ServerTls>(exchange.server).client_auth else {
        return Ok(());
    };
    // By its name: the handshake may have been under an earlier configuration, which numbers servers in another way.
    let is_other = find_config::first_server(conf, &exchange.client) != exchange.server;
    if is_other && session.server_name().is_some_and(|name| *name != exchange.request.host) {
        // The client meant another server (RFC 9110, section 7.4).
        let text = "client attempted to request the server name different from the one that was negotiated";
        return Err((421, text.to_owned()));
    }
    // By the rules of the request's own server, whichever server the handshake was with.
    let verification = session.verification(Some(auth));
    auth.admits(&verification).map_err(|status| {
        let text = match verification {
            Verification::Failed(number, words) => {
                format!("client SSL certificate verify error: ({number}:{words})")
            }
            _ => "client sent no required SSL certificate".to_owned(),
        };
        (status, text)
    })
}

/// Refuses a request; `part` is what of it was being read, in nginx's words.
fn refuse(exchange: &mut Exchange, status: u16, text: &str, part: &str) -> Progress {
    let text = format!("{text} while reading client {part}");
    error::request(exchange, Level::Info, &text);
    exchange.keep_alive = false;
    if exchange.uri.is_empty() {
        // As nginx: the path of a request whose other lines are wrong is known.
        let target = uri::normalize(exchange.request.target(), merges_slashes(exchange));
        exchange.uri = target.map(|target| target.path).unwrap_or_default();
    }
    let resume = exchange.conf.engine.resume;
    resume(exchange, Outcome::Refused(status))
}
