//! From an upstream's head to a response: what is acted on, passed on, stored, or replaced.

use super::Settings;
use super::arriving::{ArrivingBody, StoreTargets};
use super::fetch::Fetched;
use super::run;
use super::shown::{is_hidden, is_of_connection, passes_trailer, starts_with_accel};
use super::store::Saver;
use super::tunnel::Upgraded;
use crate::cache::Collector;
use crate::cache::answer::intercepted;
use crate::cache::directives::IgnoreHeaders;
use crate::cache::entry::{self, Collected};
use crate::cache::{self, Plan, parts};
use crate::protocol;
use crate::protocol::codec::Head;
use crate::upstream::sticky;
use bytes::Bytes;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use yorozu_http::field;
use yorozu_kernel::exchange::cached::NotStored;
use yorozu_kernel::exchange::left::LeftPage;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::{Body, Response};
use yorozu_kernel::exchange::{Exchange, error_page};
use yorozu_kernel::files::path;
use yorozu_kernel::logging::error::{self, Level};

/// Does what an answer asks for beside its response: purges, and what it says of cookies.
async fn obey(exchange: &mut Exchange, conf: &cache::settings::Conf, head: &Head) {
    let is_said =
        |name: &[u8], ignored| !conf.ignore_headers.contains(ignored) && head.field(name).is_some();
    if is_said(b"x-accel-purge", IgnoreHeaders::X_ACCEL_PURGE) {
        let purge = exchange.conf.engine.purge_by_answer;
        purge(exchange, Rc::clone(&head.fields)).await;
    }
    if is_said(cache::learned::HEADER, IgnoreHeaders::X_ACCEL_COOKIES) {
        cache::learned::learn(exchange, conf, &head.fields);
    }
}

/// Turns what was fetched into an outcome; the body goes on arriving.
pub async fn accept(
    exchange: &mut Exchange,
    conf: Settings<'_>,
    mut fetched: Box<Fetched>,
) -> Outcome {
    let head = std::mem::take(&mut fetched.head);
    let (head, before) = match exchange.pass.of::<Plan>() {
        Some(_) => parts::completed(exchange, head),
        None => (head, None),
    };
    let config = Rc::clone(&exchange.conf);
    let location = config.location(exchange.location);
    let protocol = protocol::of(location).expect("only gateways have answers");
    if protocol.has_fields() {
        exchange.upstream_fields = Rc::clone(&head.fields);
    }
    sticky::learn(exchange);
    exchange.cache_report.forward_status = Some(head.status);
    if !exchange.request.method.is_get_or_head() && conf.cache.zone().is_some() {
        Box::pin(cache::invalidate::after(exchange, conf.cache, head.status)).await;
        cache::invalidate::plan_for_get(exchange, conf.cache, &head);
    }
    // Looked for once: few answers have any.
    let has_accel = head.fields.iter().any(|(name, _)| starts_with_accel(name));
    if has_accel {
        obey(exchange, conf.cache, &head).await;
    }
    if let Some(text) = protocol.miss(head.status) {
        error::request(exchange, Level::Info, text);
        fetched.end();
        return Outcome::Status(404);
    }
    if head.status < 200 {
        if !fetched.source.codec.is_tunnel() {
            fetched.end();
            return Outcome::Status(502);
        }
        return upgraded(exchange, conf, &head, fetched);
    }
    // As nginx: what is intercepted leads nowhere else, and sets no rate.
    if let Some(status) = intercepted(exchange, conf.cache, head.status) {
        exchange.keep_challenges(status, &head.fields);
        Box::pin(keep_intercepted(exchange, conf, &head, fetched)).await;
        return Outcome::Status(status);
    }
    if has_accel {
        set_rate(exchange, conf, &head);
        if let Some(outcome) = accel_redirect(exchange, conf, &head) {
            fetched.end();
            return outcome;
        }
    }
    let mut response = response(exchange, conf, &head);
    if !protocol.says_type() {
        response.content_type = path::content_type(exchange, location);
    }
    announce_content(exchange, &fetched, &mut response);
    response.upstream_validates =
        protocol.judges_conditions() && exchange.pass.of::<Plan>().is_none();
    let is_cacheable = cache::is_cacheable(exchange);
    let collector = collector(exchange, conf, &head, &response, &fetched);
    settle_ranges(is_cacheable, &mut response);
    response.location = response.location.map(|path| error_page::absolute(exchange, &path));
    let saver = Saver::start(exchange, &conf, &response).map(Box::new);
    let is_buffered = if has_accel { is_buffered(conf, &head) } else { conf.buffering };
    fetched.before = before;
    let targets = StoreTargets { collector, saver };
    let mut body = ArrivingBody::new(exchange, &conf, is_buffered, fetched, targets);
    body.gather(&response).await;
    if let Some(saver) = body.attach(exchange, &conf, &mut response).await {
        Box::pin(saver.finish()).await;
    }
    Outcome::Respond(response)
}

fn set_rate(exchange: &mut Exchange, conf: Settings<'_>, head: &Head) {
    let is_ignored = conf.cache.ignore_headers.contains(IgnoreHeaders::X_ACCEL_LIMIT_RATE);
    if let Some(rate) = head.field(b"x-accel-limit-rate").filter(|_| !is_ignored) {
        exchange.limit_rate = yorozu_conf::value::number(rate);
    }
}

fn is_buffered(conf: Settings<'_>, head: &Head) -> bool {
    let is_ignored = conf.cache.ignore_headers.contains(IgnoreHeaders::X_ACCEL_BUFFERING);
    match head.field(b"x-accel-buffering").filter(|_| !is_ignored) {
        Some(value) if value.eq_ignore_ascii_case(b"no") => false,
        Some(value) => conf.buffering || value.eq_ignore_ascii_case(b"yes"),
        None => conf.buffering,
    }
}

/// The connection leaves HTTP: the client's and the upstream's are joined.
fn upgraded(
    exchange: &mut Exchange,
    conf: Settings<'_>,
    head: &Head,
    fetched: Box<Fetched>,
) -> Outcome {
    drop(exchange.pass.take::<Plan>());
    let mut response = response(exchange, conf, head);
    let Fetched { source, lease, started, .. } = *fetched;
    let Some(connection) = source.connection else { return Outcome::Status(502) };
    let early = source.input.freeze();
    response.body =
        Body::Tunnel(Box::new(Upgraded::new(connection, early, conf.read_timeout, started, lease)));
    Outcome::Respond(response)
}

/// Notes that the answer to what was asked for leads elsewhere, as `X-Accel-Redirect` or as a status that has a page. Where it
/// says who may see the page, or when, what it leads to is not stored in its place; else it is, as by nginx.
fn leave_page(exchange: &mut Exchange, status: Option<u16>) {
    if matches!(status, None | Some(401..=403 | 407 | 429 | 503))
        && let Some(plan) = exchange.pass.of::<Plan>()
    {
        let (zone, key) = (Arc::clone(&plan.zone), plan.key.clone());
        exchange.left_pages.push(LeftPage::Asked { zone, key });
    }
}

fn accel_redirect(exchange: &mut Exchange, conf: Settings<'_>, head: &Head) -> Option<Outcome> {
    let target = head
        .field(b"x-accel-redirect")
        .filter(|_| !conf.cache.ignore_headers.contains(IgnoreHeaders::X_ACCEL_REDIRECT))?;
    let says_ranges = !conf.cache.force_ranges && !cache::is_cacheable(exchange);
    leave_page(exchange, None);
    if let Some(plan) = exchange.pass.take::<Plan>() {
        plan.end_without(exchange, head.status, NotStored::NoLifetime);
    }
    exchange.redirects.is_led = true;
    // As nginx: these travel on to the redirected answer.
    let ranges = says_ranges.then_some(&b"Accept-Ranges"[..]);
    for name in
        [&b"Content-Type"[..], b"Set-Cookie", b"Content-Disposition", b"Cache-Control", b"Expires"]
            .into_iter()
            .chain(ranges)
    {
        let values = head.fields.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        exchange.accel_fields.extend(values.cloned());
    }
    if target.starts_with(b"@") {
        return Some(Outcome::Named(target.clone()));
    }
    if exchange.request.method != Method::Head {
        exchange.request.become_get();
    }
    let Some(parts) = yorozu_http::uri::parse_unsafe(target) else {
        let text = format!("unsafe URI \"{}\" was detected", error::verbatim(target));
        error::request(exchange, Level::Error, &text);
        return Some(Outcome::Status(404));
    };
    Some(Outcome::Internal { uri: parts.path, args: Some(parts.args.unwrap_or_default()) })
}

/// Where the answer is stored, if it is; else what makes the page in its place begins.
fn collector(
    exchange: &mut Exchange,
    conf: Settings<'_>,
    head: &Head,
    response: &Response,
    fetched: &Fetched,
) -> Option<Box<Collector>> {
    match entry::collector(exchange, conf.cache, head, response, fetched.started) {
        Collected::Stored(collector) => Some(collector),
        Collected::MadeBy(shadow) => {
            run::make_in_background(shadow);
            None
        }
        Collected::NotStored => None,
    }
}

/// The answer that our error page replaces: stored all the same, if it may be, so that the
/// upstream is not asked again for as long.
async fn keep_intercepted(
    exchange: &mut Exchange,
    conf: Settings<'_>,
    head: &Head,
    fetched: Box<Fetched>,
) {
    leave_page(exchange, Some(head.status));
    let mut response = response(exchange, conf, head);
    announce_content(exchange, &fetched, &mut response);
    match collector(exchange, conf, head, &response, &fetched) {
        None => fetched.end(),
        Some(collector) => {
            let targets = StoreTargets { collector: Some(collector), saver: None };
            let mut body = ArrivingBody::new(exchange, &conf, conf.buffering, fetched, targets);
            body.gather(&response).await;
            // Nothing was given to it that would have to be finished.
            drop(body.attach(exchange, &conf, &mut response).await);
        }
    }
}

/// The upstream's head as the client shall see it.
pub fn response(exchange: &mut Exchange, conf: Settings<'_>, head: &Head) -> Box<Response> {
    let config = Rc::clone(&exchange.conf);
    let protocol = protocol::of(config.location(exchange.location));
    let protocol = protocol.expect("only gateways have answers");
    let passes_trailers = protocol.passes_trailers(config.location(exchange.location));
    exchange.passes_trailer = passes_trailers.then_some(passes_trailer);
    // Written where it stays.
    let mut response = Box::write(Box::new_uninit(), Response::new(head.status));
    response.reason.clone_from(&head.reason);
    // Most have nothing to say but whether it is kept.
    let is_usual = |options: &Bytes| {
        field::is_same(options, b"keep-alive") || field::is_same(options, b"close")
    };
    let names_fields = head.status != 101 && !head.values(b"connection").all(is_usual);
    let mut has_accel = false;
    for (name, value) in head.fields.iter() {
        has_accel |= starts_with_accel(name);
        let is_of_connection = names_fields && is_of_connection(head, name);
        if is_hidden(protocol, conf, name) || is_of_connection {
            continue;
        }
        match protocol.rewritten(exchange, name, value) {
            // Completed by the client's host when it is sent, and not before it is stored: the key
            // need not hold that host.
            Some(value) if value.starts_with(b"/") && name.eq_ignore_ascii_case(b"location") => {
                response.location = Some(value);
            }
            Some(value) => place(&mut response, name, &value),
            None => place(&mut response, name, value),
        }
    }
    let is_ignored = conf.cache.ignore_headers.contains(IgnoreHeaders::X_ACCEL_CHARSET);
    if has_accel && !is_ignored {
        if let Some(charset) = head.field(b"x-accel-charset") {
            response.charset = (!charset.is_empty()).then(|| charset.clone());
        }
    }
    response.forces_ranges = conf.cache.force_ranges || protocol.forces_ranges();
    // As nginx: if the origin's own ones are passed on, none is added where it sent none.
    let is_passed = |name: &[u8]| {
        protocol.hidden().contains(&name)
            && conf.pass_header.iter().any(|passed| passed.eq_ignore_ascii_case(name))
    };
    response.has_own_date |= is_passed(b"date");
    response.has_own_server |= is_passed(b"server");
    response
}

/// Where the configuration asks for a head alone, the answer to another request has no content, and says so. nginx announces
/// what the head does: the client would wait for it.
fn announce_content(exchange: &Exchange, fetched: &Fetched, response: &mut Response) {
    let is_head_alone = fetched.source.codec.is_of_head_request();
    let has_content = yorozu_http::status::has_content(response.status);
    if is_head_alone && has_content && exchange.request.method != Method::Head {
        response.content_length = Some(0);
    }
}

/// As nginx: pieces are cut of an answer that may be stored or where that is forced, and only if it says its length. Whether
/// there are any is said with them then, and is stored in the upstream's words. Of other answers these go on to the client.
fn settle_ranges(is_cacheable: bool, response: &mut Response) {
    let is_ours = response.forces_ranges || (response.allow_ranges && is_cacheable);
    if is_ours {
        response.remove(b"accept-ranges");
    }
    response.allow_ranges = is_ours && response.content_length.is_some();
}

/// Puts a field where the filters look for it.
fn place(response: &mut Response, name: &Bytes, value: &Bytes) {
    let is = |known: &[u8]| field::is_same(known, name);
    // By length first: most names are none of these.
    match name.len() {
        12 if is(b"content-type") => response.content_type = value.clone(),
        14 if is(b"content-length") => {
            response.content_length = yorozu_conf::value::number(value);
        }
        13 if is(b"last-modified") => match yorozu_http::date::parse(value) {
            Some(time) => {
                response.last_modified = Some(time);
                response.has_own_last_modified = true;
            }
            None => response.add(name.clone(), value.clone()),
        },
        4 if is(b"etag") => response.etag = value.clone(),
        13 if is(b"accept-ranges") => {
            // As nginx, whatever it says: pieces are cut here.
            response.allow_ranges = true;
            response.add(name.clone(), value.clone());
        }
        length => {
            response.has_own_date |= length == 4 && is(b"date");
            response.has_own_server |= length == 6 && is(b"server");
            response.add(name.clone(), value.clone());
        }
    }
}

/// How long a background refresh may take beyond the upstream's own timeouts; chosen.
pub const REFRESH_MAX: Duration = Duration::from_secs(600);
