//! `console`: a page that shows what the running server does, and why each request was no hit.
//!
//! | path behind the location's | answer |
//! | --- | --- |
//! | `GET /`, `/console.js` … | the page, the same for everyone |
//! | `POST /login`, content: the token | a cookie that says as much (`token=`) |
//! | `GET /about` | what the viewer may do, and the reasons in words |
//! | `GET /events` | figures, requests and purges as they come (`crate::live::events`), with the arguments of a filter |
//! | `GET /figures` | the figures once |
//! | `GET /history` | what was counted in the last hour and day (`crate::live::history`) |
//! | `GET /explain?url=URL` | what `yorozu cache explain` says |
//! | `POST /purge`, content: JSON | what was purged (`write=on`) |
//! | `POST /warm`, content: a URL | its status, and what the cache did (`write=on`) |
//!
//! # Invariants
//! - Nothing but the page's own files goes to a client that [`access`] has not let in.
//! - What changes something is a POST that no other site can have a browser send.

mod access;

use crate::control::{self, Problem};
use crate::live::{events, figures, history};
use access::Rights;
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use yorozu_http::field::argument;
use yorozu_http::uri::unescape;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::{Outcome, Pending};
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::live::reason::Reason;
use yorozu_kernel::live::viewers::{Of, VIEWERS_MAX};
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module = Module::new("console", || DIRECTIVES.to_vec());

pub const DIRECTIVES: &[Directive] = &[Directive::row(
    "console",
    LOCATION,
    Arity::UP_TO_THREE,
    Action::Set(|block, args| {
        let rights = Rights::from_args(args)?;
        args.env.is_counted.set(true);
        block.handle_by(Console(rights));
        Ok(())
    }),
    "Answers with a page that shows the running server: why requests missed the cache, what that costs, figures and requests as they come.",
)];

/// The page's files: built in, so that it asks for nothing elsewhere.
const FILES: [(&str, &str, &[u8]); 6] = [
    ("", "text/html; charset=utf-8", include_bytes!("../../../../console/index.html")),
    ("console.css", "text/css; charset=utf-8", include_bytes!("../../../../console/console.css")),
    (
        "console.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../../../../console/console.js"),
    ),
    ("icon.svg", "image/svg+xml", include_bytes!("../../../../console/icon.svg")),
    ("uPlot.css", "text/css; charset=utf-8", include_bytes!("../../../../console/uPlot.min.css")),
    (
        "uPlot.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../../../../console/uPlot.iife.min.js"),
    ),
];

/// Longest content of a POST, in bytes; chosen: a batch of some hundred purges.
const CONTENT_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
struct Console(Rights);

impl Handler for Console {
    fn respond(&self, exchange: &mut Exchange) -> Outcome {
        let path = exchange.path_behind_location();
        let Some((_, content_type, content)) = FILES.iter().find(|(name, ..)| *name == path) else {
            return Outcome::Wait(Pending::Content);
        };
        if !exchange.request.method.is_get_or_head() {
            return Outcome::Status(405);
        }
        if path.is_empty() && !exchange.uri.ends_with(b"/") {
            // What the page names is relative to it.
            let mut response = Response::new(301);
            response.location = Some([&exchange.uri[..], b"/"].concat().into());
            return Outcome::Redirect(Box::new(response));
        }
        let content = Bytes::from_static(content);
        respond(Response::with_body(200, Bytes::from_static(content_type.as_bytes()), content))
    }

    fn run(self: Arc<Self>, exchange: &mut Exchange) -> Later<'_, Outcome> {
        Box::pin(async move { run(exchange, &self.0).await })
    }

    fn is_alone(&self) -> bool {
        true
    }

    fn bounds_bodies(&self) -> bool {
        true
    }

    fn is_for_viewers(&self) -> bool {
        true
    }
}

/// Adds what browsers need to know of every answer.
fn respond(mut response: Response) -> Outcome {
    let fields: [(&'static [u8], &'static [u8]); 5] = [
        (
            b"Content-Security-Policy",
            b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        ),
        (b"X-Content-Type-Options", b"nosniff"),
        (b"Referrer-Policy", b"no-referrer"),
        (b"Cross-Origin-Resource-Policy", b"same-origin"),
        (b"Cache-Control", b"no-store"),
    ];
    for (name, value) in fields {
        response.add(Bytes::from_static(name), Bytes::from_static(value));
    }
    Outcome::Respond(Box::new(response))
}

fn as_json(status: u16, value: &Value) -> Outcome {
    json_text(status, value.to_string())
}

fn json_text(status: u16, text: String) -> Outcome {
    respond(Response::with_body(status, Bytes::from_static(b"application/json"), text))
}

async fn run(exchange: &mut Exchange, rights: &Rights) -> Outcome {
    match answer(exchange, rights).await {
        Ok(outcome) => outcome,
        Err(Problem(status, text)) => {
            if status == 403 {
                error::request(exchange, Level::Error, &format!("console refused: {text}"));
            }
            // A page that gets this asks for the token.
            let login = status == 403 && rights.has_token();
            as_json(status, &json!({ "error": text, "login": login }))
        }
    }
}

async fn answer(exchange: &mut Exchange, rights: &Rights) -> Result<Outcome, Problem> {
    let path = exchange.path_behind_location();
    let method = exchange.request.method;
    let is_write = matches!(&*path, "login" | "purge" | "warm");
    if !is_write && !matches!(&*path, "about" | "events" | "explain" | "figures" | "history") {
        return Ok(Outcome::Status(404));
    }
    if is_write && method != Method::Post || !is_write && !method.is_get_or_head() {
        return Err(Problem(405, "another method was expected".to_owned()));
    }
    rights.admit_host(exchange).map_err(forbidden)?;
    if is_write {
        access::is_from_itself(exchange).map_err(forbidden)?;
    } else {
        access::is_not_foreign(exchange).map_err(forbidden)?;
    }
    if path == "login" {
        let token = control::content_within(exchange, CONTENT_BYTES_MAX).await?;
        let cookie = rights.login(exchange, &token).map_err(forbidden)?;
        let mut response = Response::new(204);
        response.add(Bytes::from_static(b"Set-Cookie"), cookie);
        return Ok(respond(response));
    }
    rights.admit(exchange).map_err(forbidden)?;
    match &*path {
        "about" => Ok(as_json(200, &about(exchange, rights))),
        "events" => Ok(respond(events::events(exchange, Of::Site, rights.shows_args()))),
        "figures" => Ok(as_json(200, &figures::of(&exchange.conf))),
        "history" => Ok(json_text(200, history::json())),
        "explain" => explain(exchange).await,
        _ if !rights.may_write(exchange) => Err(forbidden(
            "this console is read-only: add write=on, plus token=, allow or auth_basic",
        )),
        "purge" => purge(exchange).await,
        _ => warm(exchange).await,
    }
}

fn forbidden(text: impl Into<String>) -> Problem {
    Problem(403, text.into())
}

/// What the viewer may do, and what the reasons mean.
fn about(exchange: &Exchange, rights: &Rights) -> Value {
    let reasons = Reason::all().map(|reason| {
        let (title, advice) = reason.words();
        json!({ "id": reason.number(), "name": reason.name(), "title": title, "advice": advice })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "viewers_max": VIEWERS_MAX,
        "write": rights.may_write(exchange),
        "reasons": reasons.collect::<Vec<_>>(),
    })
}

async fn explain(exchange: &mut Exchange) -> Result<Outcome, Problem> {
    let url = unescape(argument(&exchange.args, b"url").unwrap_or_default());
    let head = control::head(&String::from_utf8_lossy(&url), "GET", "")?;
    let rows = control::explain::of_head(&exchange.conf, head.as_bytes()).await?;
    Ok(as_json(200, &json!({ "rows": rows.json() })))
}

async fn purge(exchange: &mut Exchange) -> Result<Outcome, Problem> {
    let content = control::content_within(exchange, CONTENT_BYTES_MAX).await?;
    let text = control::purge_api::of_content(exchange, &content).await?;
    error::request(exchange, Level::Notice, &format!("purged by the console: {}", text.trim_end()));
    let value = serde_json::from_str(&text).unwrap_or_default();
    Ok(as_json(200, &value))
}

async fn warm(exchange: &mut Exchange) -> Result<Outcome, Problem> {
    let url = control::content_within(exchange, CONTENT_BYTES_MAX).await?;
    let fields = "User-Agent: yorozu warm\r\nAccept-Encoding: gzip\r\n";
    let head = control::head(&String::from_utf8_lossy(&url), "GET", fields)?;
    let text = control::warm::of_head(&exchange.conf, head.as_bytes(), false).await?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut words = text.split_ascii_whitespace();
    let status = words.next().and_then(|status| status.parse::<u16>().ok());
    Ok(as_json(200, &json!({ "status": status, "cache": words.next() })))
}
