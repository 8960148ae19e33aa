//! Streams for viewers: figures once a second, and requests and purges as they come.
//!
//! To the page they go as server-sent events (HTML, section 9.2): `figures`, `requests`, `purges`, each with a value of JSON.
//! To `yorozu log` go requests alone, each a line.
//!
//! A stream ends with its configuration: at a reload the page comes back to the next one, and an upgrade need not wait for it.

use super::figures;
use bytes::Bytes;
use serde_json::{Value, json};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use yorozu_http::field::argument;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::response::{Body, Response};
use yorozu_kernel::exchange::stream::{self, Sink, Torn};
use yorozu_kernel::live::filter::Filter;
use yorozu_kernel::live::reason::Reason;
use yorozu_kernel::live::viewers::{LOOKS, Line, Of, Purged, Seat};

/// Requests that a page is sent in a second; chosen: more cannot be read.
const OF_PAGE: u32 = 50;
/// The same of `yorozu log`.
const OF_LOG: u32 = 1000;
/// How long a viewer waits until it looks into its queue again.
const LOOK: Duration = Duration::from_millis(1000 / LOOKS as u64);

fn refused(status: u16, text: &str) -> Response {
    Response::with_body(status, Bytes::from_static(b"text/plain"), format!("{text}\n"))
}

/// The page's stream.
pub(crate) fn events(exchange: &mut Exchange, of: Of, shows_args: bool) -> Response {
    stream(exchange, of, OF_PAGE, b"text/event-stream", move |seat, conf, sink| async move {
        sink.put(Bytes::from_static(b"retry: 2000\n\n")).await?;
        for look in 0_u64.. {
            if look % u64::from(LOOKS) == 0 {
                sink.put(format!("event: figures\ndata: {}\n\n", figures::shared(&conf)).into())
                    .await?;
            }
            let seen = seat.look();
            let lines: Vec<_> =
                seen.requests.iter().map(|line| request(line, shows_args)).collect();
            let (lines, left_out) = (lines.join(","), seen.left_out);
            let purges: Vec<_> = seen.purges.iter().map(|done| purge(done, shows_args)).collect();
            if !lines.is_empty() || left_out > 0 {
                let value = format!("{{\"left_out\":{left_out},\"lines\":[{lines}]}}");
                sink.put(format!("event: requests\ndata: {value}\n\n").into()).await?;
            }
            if !purges.is_empty() {
                sink.put(format!("event: purges\ndata: {}\n\n", Value::from(purges)).into())
                    .await?;
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    })
}

/// The stream of `yorozu log`.
pub(crate) fn log(exchange: &mut Exchange) -> Response {
    let shows_args = argument(&exchange.args, b"args").is_some_and(|value| value == b"1");
    stream(
        exchange,
        Of::Control,
        OF_LOG,
        b"application/x-ndjson",
        move |seat, _, sink| async move {
            loop {
                let seen = seat.look();
                let mut text = String::new();
                for line in &seen.requests {
                    text += &request(line, shows_args);
                    text.push('\n');
                }
                if seen.left_out > 0 {
                    text += &format!("{}\n", json!({ "left_out": seen.left_out }));
                }
                sink.put(text.into()).await?;
                tokio::time::sleep(LOOK).await;
            }
        },
    )
}

/// Answers with what `make` puts into its sink, as long as the viewer and the configuration stay.
fn stream<F>(
    exchange: &mut Exchange,
    of: Of,
    per_second: u32,
    content_type: &'static [u8],
    make: impl FnOnce(Seat, Rc<WorkerConf>, Sink) -> F + 'static,
) -> Response
where
    F: Future<Output = Result<(), Torn>> + 'static,
{
    let filter = match Filter::of(&exchange.args) {
        Ok(filter) => filter,
        Err(problem) => return refused(400, &problem),
    };
    let Some(seat) = Seat::take(of, filter, per_second) else {
        return refused(503, "as many as may are watching already");
    };
    let conf = Rc::clone(&exchange.conf);
    let ended = conf.tasks.ended();
    let made = stream::made_by(exchange.body.client_closed(), |sink| async move {
        tokio::select! {
            biased;
            () = ended => Ok(()),
            ended = make(seat, conf, sink) => ended,
        }
    });
    let mut response = Response::new(200);
    response.content_type = Bytes::from_static(content_type);
    // A proxy in front that knows it sends on what it has.
    response.add(Bytes::from_static(b"X-Accel-Buffering"), &b"no"[..]);
    response.body = Body::Stream(Box::new(made));
    response
}

/// A request as viewers get it: of arguments, which may hold what is private, only that there were some.
///
/// Written at once: as a [`Value`] it would cost as much as a hit, and `yorozu log` gets a thousand in a second.
fn request(line: &Line, shows_args: bool) -> String {
    let scheme = if line.is_tls { "https" } else { "http" };
    let args = match &line.args {
        None => String::new(),
        Some(args) if shows_args => format!("?{args}"),
        Some(_) => "?…".to_owned(),
    };
    let none = || "null".to_owned();
    let cache = line.cache.map_or_else(none, |status| format!("\"{}\"", status.name()));
    let reason = |reason: Reason| format!("[{},\"{}\"]", reason.number(), reason.name());
    let header = line.header.map_or_else(none, |name| Text(name).to_string());
    format!(
        "{{\"args\":{},\"at\":{},\"bytes\":{},\"cache\":{cache},\"header\":{header},\"host\":{},\"method\":{},\
         \"micros\":{},\"path\":{},\"reason\":{},\"scheme\":\"{scheme}\",\
         \"status\":{},\"upstream_micros\":{}}}",
        Text(&args),
        line.at,
        line.bytes,
        Text(&line.host),
        Text(&line.method),
        line.micros,
        Text(&line.path),
        line.reason.map_or_else(none, reason),
        line.status,
        line.upstream_micros,
    )
}

/// A string of JSON.
struct Text<'a>(&'a str);

impl std::fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(self.0).map_err(|_| std::fmt::Error)?)
    }
}

/// A key, or its beginning, without the values of arguments. Where they do not stand behind a `?` (`$uri$args`), they begin
/// at the first `=` or `&`: what stands before that may be the name of one.
fn without_arguments(key: &str) -> String {
    match key.find(['?', '=', '&']) {
        Some(at) => format!("{}…", &key[..=at]),
        None => key.to_owned(),
    }
}

fn purge(purged: &Purged, shows_args: bool) -> Value {
    let what = match shows_args || matches!(purged.kind, "tag" | "all") {
        true => purged.what.to_string(),
        false => without_arguments(&purged.what),
    };
    json!({
        "at": purged.at, "kind": purged.kind, "what": what, "pages": purged.pages, "soft": purged.is_soft,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use yorozu_kernel::exchange::cached::CacheStatus;

    #[test]
    fn values_of_arguments_are_not_shown_wherever_they_stand_in_a_key() {
        let shown = |key: &str| without_arguments(key);
        assert_eq!(shown("https://a.example/page/"), "https://a.example/page/");
        assert_eq!(shown("https://a.example/page?token=1&b=2"), "https://a.example/page?…");
        assert_eq!(shown("a.example/pagetoken=1?b"), "a.example/pagetoken=…");
        assert_eq!(shown("a.example/page|token&b"), "a.example/page|token&…");
    }

    #[test]
    fn a_request_is_json_whatever_it_holds() {
        let line = |args: Option<&str>| Line {
            at: 1,
            method: "GET".into(),
            is_tls: true,
            host: "a\"\\.example".into(),
            path: "/\u{1b}\n\u{fffd}é\u{2028}".into(),
            args: args.map(Into::into),
            status: 200,
            cache: Some(CacheStatus::Miss),
            reason: Some(Reason::Uncached),
            header: Some("x-odd"),
            micros: 2,
            upstream_micros: 3,
            bytes: 4,
        };
        let read = |line: &Line, shows_args| -> Value {
            let text = request(line, shows_args);
            assert!(!text.contains('\n'), "{text}");
            serde_json::from_str(&text).unwrap()
        };
        let expected = json!({
            "at": 1, "method": "GET", "scheme": "https", "host": "a\"\\.example",
            "path": "/\u{1b}\n\u{fffd}é\u{2028}", "args": "?a=\"", "status": 200, "cache": "MISS",
            "reason": [0, "uncached"], "header": "x-odd", "micros": 2, "upstream_micros": 3, "bytes": 4,
        });
        assert_eq!(read(&line(Some("a=\"")), true), expected);
        assert_eq!(read(&line(Some("a=\"")), false)["args"], "?…");
        let hit = Line { cache: None, reason: None, header: None, is_tls: false, ..line(None) };
        let hit = read(&hit, true);
        let found = ["args", "cache", "reason", "header", "scheme"].map(|name| &hit[name]);
        assert_eq!(found, [&json!(""), &Value::Null, &Value::Null, &Value::Null, &json!("http")]);
    }

    #[test]
    fn a_tag_is_shown_as_it_is() {
        let of = |kind, what: &str| {
            let purged = Purged { at: 0, kind, what: what.into(), pages: 0, is_soft: false };
            purge(&purged, false)["what"].as_str().unwrap().to_owned()
        };
        assert_eq!(of("tag", "a.example x=1"), "a.example x=1");
        assert_eq!(of("prefix", "a.example/x=1"), "a.example/x=…");
    }
}
