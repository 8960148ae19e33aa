//! From an upstream's head to a response: what is acted on, passed on, stored, or replaced.

use super::arriving::{Arriving, Keepers};
use super::directives::IgnoreHeaders;
use super::fetch::Fetched;
use super::store::Saver;
use super::tunnel::Tunnel;
use super::{Conf, Head, Protocol};
use crate::cache::freshness::{self, NotStored};
use crate::cache::{self, Collector};
use crate::config::compiled::LocationConf;
use crate::exchange::Exchange;
use crate::exchange::request::Method;
use crate::exchange::response::{Body, Response};
use crate::filters::charset;
use crate::handlers::{Handler, Outcome, error_page, static_file};
use crate::logging::error::{self, Context, Level};
use crate::process::turn;
use bytes::Bytes;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use yorozu_cache::{EntryHead, Part, Zone};
use yorozu_http::field;

/// Fields of an answer that are for the server, not the client.
const HIDDEN: [&[u8]; 7] = [
    b"x-accel-purge",
    b"x-accel-expires",
    b"x-accel-expires-max",
    b"x-accel-redirect",
    b"x-accel-limit-rate",
    b"x-accel-buffering",
    b"x-accel-charset",
];
/// Fields about the connection to the upstream (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [&[u8]; 3] = [b"connection", b"keep-alive", b"transfer-encoding"];

/// Turns what was fetched into an outcome; the body goes on arriving.
pub async fn accept(exchange: &mut Exchange, conf: &Conf, mut fetched: Fetched) -> Outcome {
    let (head, before) = completed(exchange, std::mem::take(&mut fetched.head));
    exchange.upstream_fields = Rc::clone(&head.fields);
    exchange.cache_report.forward_status = Some(head.status);
    if !exchange.request.method.is_get_or_head() && conf.cache.zone().is_some() {
        Box::pin(cache::invalidate::after(exchange, conf, head.status)).await;
        cache::invalidate::plan_for_get(exchange, conf, &head);
    }
    let may_purge = !conf.ignore_headers.has(IgnoreHeaders::X_ACCEL_PURGE);
    if may_purge && head.field(b"x-accel-purge").is_some() {
        Box::pin(crate::control::by_answer(exchange, &head)).await;
    }
    let config = Rc::clone(&exchange.conf);
    let location = config.location(exchange.location);
    let is_memcached = matches!(location.handler, Handler::Gateway(Protocol::Memcached(_)));
    if is_memcached && head.status == 404 {
        error::request(exchange, Level::Info, "the key was not found by memcached");
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
    if !conf.ignore_headers.has(IgnoreHeaders::X_ACCEL_LIMIT_RATE) {
        if let Some(rate) = head.field(b"x-accel-limit-rate") {
            exchange.limit_rate = yorozu_conf::value::number(rate);
        }
    }
    if let Some(outcome) = accel_redirect(exchange, conf, &head) {
        fetched.end();
        return outcome;
    }
    if let Some(status) = intercepted(exchange, conf, head.status) {
        keep_challenges(exchange, status, &head.fields);
        keep_intercepted(exchange, conf, &head, fetched).await;
        return Outcome::Status(status);
    }
    let mut response = response(exchange, conf, &head);
    if is_memcached {
        // Its values say nothing about their type.
        response.content_type = static_file::content_type(exchange, location);
    }
    response.is_judged = exchange.pass.cache.is_none();
    let collector = collector(exchange, conf, &head, &response, fetched.started);
    response.location = response.location.map(|path| error_page::absolute(exchange, &path));
    let saver = Saver::start(exchange, conf, &response);
    let is_buffered = match head.field(b"x-accel-buffering") {
        Some(value) if !conf.ignore_headers.has(IgnoreHeaders::X_ACCEL_BUFFERING) => {
            if value.eq_ignore_ascii_case(b"no") {
                false
            } else {
                conf.buffering || value.eq_ignore_ascii_case(b"yes")
            }
        }
        _ => conf.buffering,
    };
    let keepers = Keepers { collector, saver };
    fetched.before = before;
    let mut body = Arriving::new(exchange, fetched, keepers);
    body.gather(is_buffered, &response).await;
    body.attach(exchange, conf, is_buffered, &mut response);
    Outcome::Respond(Box::new(response))
}

/// Is `head` no rest of a page whose start is stored, or the rest that fits it?
///
/// # Source
/// RFC 9110, section 15.3.7.3: only parts with the same strong validator are joined.
pub async fn completes(exchange: &mut Exchange, head: &Head) -> bool {
    let Some(plan) = exchange.pass.cache.as_mut() else { return true };
    let Some(start) = plan.start.clone() else { return true };
    let etag = &start.head.etag;
    let is_same = !etag.is_empty()
        && !etag.starts_with(b"W/")
        && head.field(b"etag").is_some_and(|found| found == etag);
    let (Some(part), bytes) = (&start.head.part, start.head.body_bytes) else { return false };
    let total = part.total;
    let rest = format!("bytes {bytes}-{}/{total}", total.saturating_sub(1));
    let fits = head.field(b"content-range").is_some_and(|range| range[..] == *rest.as_bytes());
    if is_same && fits {
        plan.start_body =
            spawn_blocking(move || Zone::body(&start)).await.ok().and_then(Result::ok);
    }
    plan.start_body.is_some()
}

/// Joins the rest of a page with its stored start: the head of the whole, and the bytes before.
fn completed(exchange: &mut Exchange, head: Head) -> (Head, Option<Bytes>) {
    let Some(plan) = exchange.pass.cache.as_mut() else { return (head, None) };
    let (start, before) = (plan.start.take(), plan.start_body.take());
    let part = start.as_ref().and_then(|start| start.head.part.as_ref());
    let (Some(part), Some(before)) = (part, before) else { return (head, None) };
    let is_of_part = |name: &[u8]| {
        name.eq_ignore_ascii_case(b"content-range") || name.eq_ignore_ascii_case(b"content-length")
    };
    let mut fields: Vec<_> =
        head.fields.iter().filter(|(name, _)| !is_of_part(name)).cloned().collect();
    fields.push((Bytes::from_static(b"Content-Length"), part.total.to_string().into()));
    (Head { status: 200, reason: None, fields: Rc::new(fields) }, Some(before))
}

/// The connection leaves HTTP: the client's and the upstream's are joined.
fn upgraded(exchange: &mut Exchange, conf: &Conf, head: &Head, fetched: Fetched) -> Outcome {
    exchange.pass.cache = None;
    let mut response = response(exchange, conf, head);
    let Fetched { source, lease, .. } = fetched;
    let Some(connection) = source.connection else { return Outcome::Status(502) };
    let early = source.input.freeze();
    response.body =
        Body::Tunnel(Box::new(Tunnel::new(connection, early, conf.read_timeout, lease)));
    Outcome::Respond(Box::new(response))
}

fn accel_redirect(exchange: &mut Exchange, conf: &Conf, head: &Head) -> Option<Outcome> {
    let target = head
        .field(b"x-accel-redirect")
        .filter(|_| !conf.ignore_headers.has(IgnoreHeaders::X_ACCEL_REDIRECT))?;
    if let Some(plan) = exchange.pass.cache.take() {
        if plan.ends_with(head.status, NotStored::NoLifetime) {
            plan.end_stale(Context::of(exchange));
        }
    }
    if target.starts_with(b"@") {
        return Some(Outcome::Named(target.clone()));
    }
    if exchange.request.method != Method::Head {
        exchange.request.become_get();
    }
    // As nginx: these travel on to the redirected answer.
    for name in [
        &b"Content-Type"[..],
        b"Set-Cookie",
        b"Content-Disposition",
        b"Cache-Control",
        b"Expires",
        b"Accept-Ranges",
    ] {
        let values = head.fields.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        exchange.accel_fields.extend(values.cloned());
    }
    let Some(parts) = yorozu_http::uri::parse_unsafe(target) else {
        let text = format!("unsafe URI \"{}\" was detected", String::from_utf8_lossy(target));
        error::request(exchange, Level::Error, &text);
        return Some(Outcome::Status(404));
    };
    Some(Outcome::Internal { uri: parts.path, args: Some(parts.args.unwrap_or_default()) })
}

/// With `intercept_errors`: the status, if `error_page` has a page for it.
pub fn intercepted(exchange: &Exchange, conf: &Conf, status: u16) -> Option<u16> {
    let location: &LocationConf = exchange.conf.location(exchange.location);
    let has_page = location.http_core.error_page.iter().any(|page| page.codes.contains(&status));
    (conf.intercept_errors && status >= 300 && has_page).then_some(status)
}

/// Of an answer that is intercepted the challenges stay, also hidden ones: without them it is no 401 or 407
/// (RFC 9110, sections 15.5.2 and 15.5.8).
pub fn keep_challenges(exchange: &mut Exchange, status: u16, fields: &[(Bytes, Bytes)]) {
    let wanted: &[u8] = match status {
        401 => b"www-authenticate",
        407 => b"proxy-authenticate",
        _ => return,
    };
    let found = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
    exchange.challenges.extend(found.cloned());
}

/// The answer that a page of our own replaces: stored all the same, if it may be, so that the
/// upstream is not asked again for as long.
async fn keep_intercepted(exchange: &mut Exchange, conf: &Conf, head: &Head, fetched: Fetched) {
    let mut response = response(exchange, conf, head);
    match collector(exchange, conf, head, &response, fetched.started) {
        None => fetched.end(),
        Some(collector) => {
            let keepers = Keepers { collector: Some(collector), saver: None };
            let mut body = Arriving::new(exchange, fetched, keepers);
            body.gather(conf.buffering, &response).await;
            body.attach(exchange, conf, conf.buffering, &mut response);
        }
    }
}

/// The upstream's head as the client shall see it.
pub fn response(exchange: &mut Exchange, conf: &Conf, head: &Head) -> Response {
    let config = Rc::clone(&exchange.conf);
    let Handler::Gateway(protocol) = &config.location(exchange.location).handler else {
        unreachable!("only gateways have answers")
    };
    let mut response = Response::new(head.status);
    response.reason.clone_from(&head.reason);
    // Most have nothing to say but whether it is kept.
    let is_usual = |options: &Bytes| {
        options.eq_ignore_ascii_case(b"keep-alive") || options.eq_ignore_ascii_case(b"close")
    };
    let names_fields = head.status != 101 && !head.values(b"connection").all(is_usual);
    for (name, value) in head.fields.iter() {
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
    let is_ignored = conf.ignore_headers.has(IgnoreHeaders::X_ACCEL_CHARSET);
    if let Some(charset) = head.field(b"x-accel-charset").filter(|_| !is_ignored) {
        charset::complete(&mut response.content_type, charset);
    }
    response.allow_ranges |= conf.force_ranges;
    // As nginx: who passes the origin's own ones on adds none where it sent none.
    let is_passed = |name: &[u8]| {
        protocol.hidden().contains(&name)
            && conf.pass_header.iter().any(|passed| passed.eq_ignore_ascii_case(name))
    };
    response.has_own_date |= is_passed(b"date");
    response.has_own_server |= is_passed(b"server");
    response
}

/// Does `Connection` name the field (RFC 9110, section 7.6.1)?
pub(super) fn is_of_connection(head: &Head, name: &[u8]) -> bool {
    // What tells where the message ends, and what was hidden before, is not its to name.
    const NOT_ITS: [&[u8]; 2] = [b"content-length", b"content-type"];
    head.values(b"connection").any(|options| field::list_has(options, name))
        && !NOT_ITS.iter().any(|kept| kept.eq_ignore_ascii_case(name))
}

pub(super) fn is_hidden(protocol: &Protocol, conf: &Conf, name: &[u8]) -> bool {
    let is = |found: &[u8]| found.eq_ignore_ascii_case(name);
    let by_default = || {
        let own = protocol.hidden().iter();
        let tags = cache::purge::TAG_FIELDS.iter().filter(|_| conf.cache.zone().is_some());
        HIDDEN.iter().chain(own).chain(tags).any(|hidden| is(hidden))
            && !conf.pass_header.iter().any(|passed| is(passed))
    };
    HOP_BY_HOP.iter().any(|hop| is(hop))
        || by_default()
        || conf.hide_header.iter().any(|hidden| is(hidden))
}

/// Puts a field where the filters look for it.
fn place(response: &mut Response, name: &Bytes, value: &Bytes) {
    let is = |known: &[u8]| known.eq_ignore_ascii_case(name);
    // By length first: most names are none of these.
    match name.len() {
        12 if is(b"content-type") => response.content_type = value.clone(),
        14 if is(b"content-length") => {
            response.content_length = yorozu_conf::value::number(value);
        }
        13 if is(b"last-modified") => match yorozu_http::date::parse(value) {
            Some(time) => response.last_modified = Some(time),
            None => response.add(name.clone(), value.clone()),
        },
        4 if is(b"etag") => response.etag = value.clone(),
        13 if is(b"accept-ranges") => {
            response.allow_ranges = value.eq_ignore_ascii_case(b"bytes");
            response.add(name.clone(), value.clone());
        }
        length => {
            response.has_own_date |= length == 4 && is(b"date");
            response.has_own_server |= length == 6 && is(b"server");
            response.add(name.clone(), value.clone());
        }
    }
}

/// Prepares to store the answer, if it may be stored; `started`: when the upstream was asked.
fn collector(
    exchange: &mut Exchange,
    conf: &Conf,
    head: &Head,
    response: &Response,
    started: std::time::Instant,
) -> Option<Collector> {
    cache::storing::objections(exchange, conf);
    let mut plan = exchange.pass.cache.take()?;
    let making = plan.making.take()?;
    match entry_head(exchange, conf, head, response, &plan) {
        Ok(mut entry) => {
            entry.made_in = u32::try_from(turn::since(started).as_millis()).unwrap_or(u32::MAX);
            exchange.cache_report.is_stored = true;
            let context = Context::of(exchange);
            Some(Collector::new(plan.zone, entry, plan.guard.take(), making, context))
        }
        Err(why) => {
            exchange.cache_report.not_stored = Some(why);
            if plan.ends_with(head.status, why) {
                plan.end_stale(Context::of(exchange));
            }
            None
        }
    }
}

/// Is there nothing about request and answer that forbids to show it to others? Judged alike for answers that are
/// stored and for those that renew what is stored. `true`: the answer must say itself that it is for all.
///
/// # Errors
/// The reason.
pub fn may_be_stored(
    exchange: &mut Exchange,
    conf: &Conf,
    head: &Head,
    plan: &cache::Plan,
) -> Result<bool, NotStored> {
    if let Some(why) = plan.not_stored {
        return Err(why);
    }
    // Once more: it may name what the upstream answered.
    if conf.no_cache.0.iter().any(|value| value.is_true(exchange)) {
        return Err(NotStored::Forbidden);
    }
    let objections = plan.objections.as_ref();
    objections.map_or(Ok(()), |objections| objections.judge(conf, head))?;
    if exchange.request.known.authorization.is_some() && head.status == 401 {
        return Err(NotStored::Authorization);
    }
    if cache::unkeyed::leads_to_itself(exchange, conf, head) {
        return Err(NotStored::Loop);
    }
    Ok(objections.is_some_and(|objections| objections.is_authorized))
}

/// What is stored about the answer beside its body.
fn entry_head(
    exchange: &mut Exchange,
    conf: &Conf,
    head: &Head,
    response: &Response,
    plan: &cache::Plan,
) -> Result<EntryHead, NotStored> {
    let is_authorized = may_be_stored(exchange, conf, head, plan)?;
    let part = match head.status {
        206 => Some(part(exchange, head, plan).ok_or(NotStored::Partial)?),
        304 => return Err(NotStored::Partial),
        _ => None,
    };
    let now = turn::unix_millis();
    let fresh = freshness::freshness(head, conf, now, is_authorized)?;
    let lines = cache::purge::TAG_FIELDS.iter().flat_map(|name| head.values(name));
    let tags = cache::purge::tags(&exchange.request.host, lines.map(|line| &line[..]));
    let tags = tags.ok_or(NotStored::Tags)?;
    let vary = if conf.ignore_headers.has(IgnoreHeaders::VARY) {
        Bytes::new()
    } else {
        let values: Vec<_> = head.values(b"vary").map(|value| &value[..]).collect();
        Bytes::from(values.join(&b", "[..]))
    };
    let variant =
        if vary.is_empty() { [0; 16] } else { cache::key::variant_id(exchange, conf, &vary) };
    // The first variant keeps its place as long as the origin varies by the same fields.
    let first = plan.first.as_ref().or(plan.stale.as_ref());
    let first = first.filter(|first| !vary.is_empty() && first.head.vary == vary);
    let is_other = first.is_some_and(|first| first.head.variant != variant)
        || plan.first.as_ref().is_some_and(|first| first.head.vary == vary);
    let key = if is_other { plan.key.variant(&variant) } else { plan.key.clone() };
    Ok(EntryHead {
        key: Bytes::copy_from_slice(key.as_bytes()),
        status: head.status,
        content_type: response.content_type.clone(),
        fields: stored_fields(response, part.is_some()),
        stored_at: now,
        born_at: fresh.born_at,
        fresh_until: fresh.fresh_until,
        stale_updating_until: fresh.stale_updating_until,
        stale_error_until: fresh.stale_error_until,
        must_revalidate: fresh.must_revalidate,
        is_by_operator: fresh.is_by_operator,
        last_modified: response.last_modified,
        etag: response.etag.clone(),
        vary,
        variant,
        family: first.map_or_else(|| fastrand::u64(..), |first| first.head.family),
        part,
        tags,
        ..EntryHead::default()
    })
}

/// Which part a 206 holds, if the client asked for it and no whole page has its place.
fn part(exchange: &Exchange, head: &Head, plan: &cache::Plan) -> Option<Part> {
    if plan.stale.as_ref().is_some_and(|stale| stale.head.part.is_none()) {
        return None;
    }
    let asked = exchange.asked_range()?;
    let text = std::str::from_utf8(head.field(b"content-range")?).ok()?;
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let total: u64 = total.parse().ok()?;
    let is_sound = first <= last && last < total;
    is_sound.then(|| Part {
        first,
        total,
        is_to_end: last + 1 == total,
        asked: Bytes::copy_from_slice(&asked),
    })
}

/// Fields as a later client shall get them.
fn stored_fields(response: &Response, is_part: bool) -> Vec<(Bytes, Bytes)> {
    // These are made anew for each answer.
    let is_kept = |name: &[u8]| {
        let is = |known: &[u8]| known.eq_ignore_ascii_case(name);
        let is_anew = is(b"age") || (is_part && is(b"content-range"));
        !is_anew
    };
    let kept = response.fields.iter().filter(|(name, _)| is_kept(name));
    let mut fields: Vec<_> = kept.cloned().collect();
    if let Some(location) = &response.location {
        fields.push((Bytes::from_static(b"Location"), location.clone()));
    }
    fields
}

/// How long a background refresh may take beyond the upstream's own timeouts; chosen.
pub const REFRESH_MAX: Duration = Duration::from_secs(600);
