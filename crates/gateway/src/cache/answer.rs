//! Responses made from what is stored, or is being stored.

use super::directives::IgnoreHeaders;
use super::plan::Plan;
use super::settings::{self, Conf};
use super::{collector, eligibility, entry, freshness, storing};
use crate::protocol::codec::Head;
use crate::protocol::fault::Conditions;
use bytes::Bytes;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use yorozu_cache::{Entry, EntryBody, EntryHead, Flow, Follower, Key, Zone};
use yorozu_http::conditional;
use yorozu_http::range::{self, Wanted};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::{CacheStatus, Forward, NotStored, Stored};
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::{Body, Response, Segment, StoredPage};
use yorozu_kernel::exchange::stream::Stream;
use yorozu_kernel::logging::error;

/// A response made from an entry, as the location's `conf` says.
pub fn answer(
    exchange: &mut Exchange,
    conf: &Conf,
    entry: &Arc<Entry>,
    status: CacheStatus,
) -> Outcome {
    let is_hit = matches!(status, CacheStatus::Hit | CacheStatus::Stale | CacheStatus::Updating);
    let now = exchange.now_millis();
    exchange.cache_status = Some(status);
    exchange.cache_report.is_hit = is_hit;
    exchange.cache_report.ttl = Some(entry.head.fresh_until - now);
    exchange.cache_report.saved = entry.head.made_in;
    if entry.touch(exchange.now())
        && let Some(plan) = exchange.pass.of::<Plan>()
    {
        plan.zone.sighted(Key::new(entry.head.key.clone()));
    }
    exchange.stored = Some(Stored::Entry(Arc::clone(entry)));
    let head = &entry.head;
    if let Some(status) = intercepted(exchange, conf, head.status) {
        exchange.keep_challenges(status, &head.fields);
        return Outcome::Status(status);
    }
    let mut response = head_only(head, conf, now);
    response.content_length = head.announced();
    response.body = body(entry, 0..head.body_bytes);
    response.stored = Some(Arc::clone(entry));
    apply_fields(&mut response, conf);
    if let Some(plan) = exchange.pass.of::<Plan>() {
        let key = Key::new(head.key.clone());
        let zone = Arc::clone(&plan.zone);
        response.stored_page = Some(StoredPage { zone, key, entry: Arc::clone(entry) });
    }
    Outcome::Respond(Box::new(response))
}

/// With `intercept_errors`: the status, if `error_page` has a page for it.
pub fn intercepted(exchange: &Exchange, conf: &Conf, status: u16) -> Option<u16> {
    let location: &LocationConf = exchange.conf.location(exchange.location);
    let has_page = location.http_core().error_page.iter().any(|page| page.codes.contains(&status));
    (conf.intercept_errors && status >= 300 && has_page).then_some(status)
}

/// The fields of a stored head that a response keeps apart.
fn head_only(head: &EntryHead, conf: &Conf, now: i64) -> Response {
    let mut response = Response::new(head.status);
    response.reason = (!head.reason.is_empty()).then(|| head.reason.clone());
    entry::place_type(&head.content_type, &mut response);
    response.last_modified = head.last_modified;
    response.has_own_last_modified = true;
    response.etag = head.etag.clone();
    response.age = conf.cache_age.then(|| head.age(now));
    response
}

/// Acts on the stored fields that the server acts on.
fn apply_fields(response: &mut Response, conf: &Conf) {
    let (mut is_bytes, mut has_date, mut has_server) = (None, false, false);
    for (name, value) in response.all_fields() {
        // Few have one of these lengths: one look at the fields is enough for all three.
        match name.len() {
            4 => has_date |= name.eq_ignore_ascii_case(b"date"),
            6 => has_server |= name.eq_ignore_ascii_case(b"server"),
            13 if name.eq_ignore_ascii_case(b"accept-ranges") => {
                is_bytes.get_or_insert(value.eq_ignore_ascii_case(b"bytes"));
            }
            _ => {}
        }
    }
    // As nginx, whatever the word was: pieces are cut here.
    let is_allowed = conf.force_ranges || is_bytes.is_some();
    response.allow_ranges = is_allowed && response.content_length.is_some();
    // Where it is true the stored word stays: to take it away, and say it again, would cost each hit a copy of its fields.
    let is_true = response.allow_ranges && response.status == 200;
    if is_bytes.is_some_and(|is_bytes| !(is_bytes && is_true)) {
        response.remove(b"accept-ranges");
    }
    response.has_own_date = has_date;
    response.has_own_server = has_server;
}

fn body(entry: &Entry, range: Range<u64>) -> Body {
    match &entry.body {
        EntryBody::Memory(bytes) => {
            let inside = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            let (bytes, range) = (bytes.bytes(), inside(range.start)..inside(range.end));
            let is_whole = range == (0..bytes.len());
            Body::Memory(if is_whole { bytes } else { bytes.slice(range) })
        }
        EntryBody::File(file, offset) => {
            let range = offset + range.start..offset + range.end;
            Body::Segments(vec![Segment::File(Arc::clone(file), range)])
        }
    }
}

/// A response that is still being made by another request, read along.
pub fn answer_along(exchange: &mut Exchange, flow: &Arc<Flow>, follower: Follower) -> Outcome {
    exchange.stored = Some(Stored::Flow(Arc::clone(flow)));
    exchange.cache_status = Some(CacheStatus::Hit);
    exchange.cache_report.is_hit = true;
    let head = &flow.head;
    exchange.cache_report.saved = head.made_in;
    let location = exchange.conf.location(exchange.location);
    let Some(conf) = settings::of(location) else { unreachable!("a gateway's answer") };
    if let Some(status) = intercepted(exchange, conf, head.status) {
        exchange.keep_challenges(status, &head.fields);
        return Outcome::Status(status);
    }
    let mut response = head_only(head, conf, exchange.now_millis());
    response.content_length = flow.announced;
    response.fields.clone_from(&head.fields);
    apply_fields(&mut response, conf);
    response.body = Body::Stream(Box::new(Stream::along(follower)));
    Outcome::Respond(Box::new(response))
}

/// The bytes of a stored part that answer the request's range; `None` if it holds them not all.
pub(super) fn covered(exchange: &Exchange, entry: &Entry) -> Option<Range<u64>> {
    let (request, head) = (&exchange.request, &entry.head);
    let part = head.part.as_ref()?;
    let asked = &*exchange.asked_range()?;
    // A condition on the range is the origin's to judge; that on slices is judged here.
    if request.known.if_range.is_some() && exchange.pass.slice.get().is_none() {
        return None;
    }
    if asked == &part.asked[..] {
        return Some(0..head.body_bytes);
    }
    let end = part.first + head.body_bytes;
    let length = if part.is_to_end { end } else { part.total };
    match range::parse(asked, length, 1) {
        Wanted::Parts(parts) => {
            let wanted = parts.first()?;
            let is_held = wanted.start >= part.first && wanted.end <= end;
            is_held.then(|| wanted.start - part.first..wanted.end - part.first)
        }
        Wanted::Whole | Wanted::Unsatisfiable => None,
    }
}

/// A 206 made from a stored one.
pub(super) fn answer_part(
    exchange: &mut Exchange,
    conf: &Conf,
    entry: &Arc<Entry>,
    range: &Range<u64>,
) -> Outcome {
    let Outcome::Respond(mut response) = answer(exchange, conf, entry, CacheStatus::Hit) else {
        return Outcome::Status(500);
    };
    if let Some(part) = &entry.head.part {
        let (first, end) = (part.first + range.start, part.first + range.end);
        let value = format!("bytes {first}-{}/{}", end.saturating_sub(1), part.total);
        response.add(Bytes::from_static(b"Content-Range"), value);
    }
    response.body = body(entry, range.clone());
    response.content_length = Some(range.end - range.start);
    response.allow_ranges = false;
    // Forms are of the whole.
    response.stored_page = None;
    Outcome::Respond(response)
}

/// A stale entry in place of a failure, if `*_cache_use_stale` or the entry itself allows it.
///
/// Unlike nginx, `stale-if-error` of the entry also counts where the upstream says itself that it failed (RFC 5861, section 4).
pub fn answer_stale(exchange: &mut Exchange, conf: &Conf, failure: Failure) -> Option<Outcome> {
    let entry = exchange.pass.of::<Plan>()?.stale.clone()?;
    let head = &entry.head;
    let is_error = !failure.is_status || Failure::ERRORS.intersects(failure.condition);
    let is_within = is_error && exchange.now_millis() < head.stale_error_until;
    if failure.is_status && head.status >= 500 {
        // A page of an error is no better than the newer one.
        return None;
    }
    let is_allowed = conf.cache_use_stale.has(failure.condition) && !head.must_revalidate;
    (!conf.cache_dry_run && (is_allowed || is_within))
        .then(|| answer(exchange, conf, &entry, CacheStatus::Stale))
}

/// What went wrong with the upstream.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub condition: Conditions,
    /// Whether it answered, with a status that counts as a failure.
    pub is_status: bool,
}

impl Failure {
    /// RFC 5861, section 4.
    const ERRORS: Conditions = Conditions::HTTP_500
        .union(Conditions::HTTP_502)
        .union(Conditions::HTTP_503)
        .union(Conditions::HTTP_504);
    /// Beside the bits of conditions.
    const STATUS: u16 = 1 << 15;

    /// Notes that a stored page could not be refreshed, so that an upstream in trouble is left alone for a while.
    pub fn note(self, exchange: &mut Exchange, conf: &Conf) {
        const OF_CLIENT: Conditions = Conditions::HTTP_403.union(Conditions::HTTP_404);
        let has_stale = exchange.pass.of::<Plan>().is_some_and(|plan| plan.stale.is_some());
        if !has_stale || OF_CLIENT.intersects(self.condition) {
            return;
        }
        let vary = storing::known_vary(exchange);
        let eligibility = eligibility::of_request(exchange, conf);
        let is_of_client = match self.is_status {
            true => !eligibility.is_by_anyone(exchange, &vary),
            false => !eligibility.admits(&vary),
        };
        if let Some(plan) = exchange.pass.of::<Plan>().filter(|_| !is_of_client) {
            let status = if self.is_status { Self::STATUS } else { 0 };
            let how = self.condition.bits() | status;
            plan.zone.setbacks().note_failure(&plan.key, how, Instant::now());
        }
    }

    /// How a refresh of the page failed, if it is not to be tried again yet.
    pub(super) fn noted(exchange: &Exchange) -> Option<Self> {
        let plan = exchange.pass.of::<Plan>()?;
        let how = plan.zone.setbacks().paused(&plan.key, Instant::now())?;
        let condition = Conditions::from_bits_truncate(how);
        Some(Self { condition, is_status: how & Self::STATUS != 0 })
    }
}

/// The upstream says by `head`, a 304, that the expired entry is still good: its fields, as they are shown to clients,
/// take the place of the stored ones.
///
/// # Source
/// RFC 9111, sections 3.2 and 4.3.4.
pub fn revalidated(
    exchange: &mut Exchange,
    conf: &Conf,
    head: &Head,
    shown: impl FnOnce(&mut Exchange) -> Response,
) -> Option<Outcome> {
    let arrived_at = yorozu_kernel::base::turn::unix_millis();
    let entry = exchange.pass.of::<Plan>()?.stale.clone()?;
    eligibility::of_request(exchange, conf);
    let plan = exchange.pass.take::<Plan>()?;
    exchange.upstream_fields = Rc::clone(&head.fields);
    let says_other_vary = head.field(b"vary").is_some()
        && !conf.ignore_headers.contains(IgnoreHeaders::VARY)
        && !entry::vary(conf, head).eq_ignore_ascii_case(&entry.head.vary);
    let judged = match says_other_vary {
        // The stored page may be another variant's from here on.
        true => Err(NotStored::Vary),
        false => entry::may_be_stored(exchange, conf, head, &plan),
    };
    let has_tags = head.fields.iter().any(|(name, _)| conf.cache_tag_headers.has(name));
    let tags = match has_tags {
        true => entry::tags(exchange, conf, head, &plan),
        false => Ok(entry.head.tags.clone()),
    };
    exchange.pass.put(plan);
    let mut renewed = entry.head.clone();
    let fresh = judged.and_then(|eligible| {
        if eligible.is_by_stranger {
            return Err(NotStored::UnknownHeader);
        }
        renewed.tags = tags?;
        update_fields(conf, shown(exchange), &mut renewed);
        renewed_freshness(conf, head, &renewed, arrived_at, eligible.is_authorized)
    });
    if fresh.is_err() {
        // What came with it is for this client alone, at most.
        renewed = entry.head.clone();
    }
    exchange.cache_report.forward = Some(Forward::Stale);
    exchange.cache_report.forward_status = Some(304);
    exchange.cache_report.not_stored = fresh.err();
    exchange.cache_report.is_stored = fresh.is_ok();
    if let Ok(fresh) = fresh {
        renewed.stored_at = arrived_at;
        renewed.is_purged = false;
        renewed.born_at = fresh.born_at;
        renewed.fresh_until = fresh.fresh_until;
        renewed.stale_updating_until = fresh.stale_updating_until;
        renewed.stale_error_until = fresh.stale_error_until;
        renewed.must_revalidate = fresh.must_revalidate;
        renewed.is_by_operator = fresh.is_by_operator;
        renewed.is_shared = entry::says_shared(conf, head).unwrap_or(renewed.is_shared);
    }
    let now = arrived_at / 1000;
    let making = exchange.pass.of_mut::<Plan>()?.making.take();
    if let Some(making) = &making {
        renewed.began = making.moment();
    }
    let renewed = Arc::new(Zone::renewed(&entry, renewed, now));
    let plan = exchange.pass.of_mut::<Plan>()?;
    plan.zone.setbacks().forget(&plan.key);
    if let (Ok(_), Some(making)) = (fresh, making) {
        let (zone, guard) = (Arc::clone(&plan.zone), plan.guard.take());
        let context = error::Context::of(exchange);
        let made = collector::Made { entry: Arc::clone(&renewed), making, guard };
        collector::store(zone, made, now, context);
    }
    let outcome = answer(exchange, conf, &renewed, CacheStatus::Revalidated);
    if let Err(why) = fresh
        && let Some(plan) = exchange.pass.take::<Plan>()
    {
        plan.end_without(exchange, 200, why);
    }
    Some(outcome)
}

fn update_fields(conf: &Conf, update: Response, renewed: &mut EntryHead) {
    if !update.content_type.is_empty() {
        renewed.content_type = entry::stored_type(&update);
    }
    // A stored page that was compressed on its way has a weak tag; servers that judge conditions before they compress, as
    // nginx does, confirm it by the strong one (RFC 9111, section 4.3.4: that is another representation's).
    if !conditional::etag_matches(&update.etag, &renewed.etag, true) && !update.etag.is_empty() {
        renewed.etag = update.etag.clone();
    }
    renewed.last_modified = update.last_modified.or(renewed.last_modified);
    let keeps = |name: &[u8]| {
        // What says how the stored bytes are to be read, or is for this client alone.
        const KEPT: [&[u8]; 4] = [b"content-encoding", b"content-range", b"vary", b"age"];
        let is_cookie = name.eq_ignore_ascii_case(b"set-cookie")
            && !conf.ignore_headers.contains(IgnoreHeaders::SET_COOKIE);
        is_cookie || KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(name))
    };
    let fields: Vec<_> = update.fields.into_iter().filter(|(name, _)| !keeps(name)).collect();
    renewed.fields.retain(|(old, _)| !fields.iter().any(|(new, _)| new.eq_ignore_ascii_case(old)));
    renewed.fields.extend(fields);
}

/// From the fields of the 304 joined with the stored ones; without any in it the page is fresh for as
/// long as it was, which may have come from a field that is not stored (`X-Accel-Expires`).
fn renewed_freshness(
    conf: &Conf,
    head: &Head,
    renewed: &EntryHead,
    now: i64,
    is_authorized: bool,
) -> Result<freshness::Freshness, NotStored> {
    const DECIDING: [&[u8]; 6] = [
        b"x-accel-expires",
        b"x-accel-expires-max",
        b"cdn-cache-control",
        b"cache-control",
        b"expires",
        b"set-cookie",
    ];
    let is_decided = DECIDING.iter().any(|name| head.field(name).is_some());
    let lifetime = renewed.fresh_until - renewed.stored_at;
    if !is_decided && lifetime > 0 && !is_authorized {
        let window = |until: i64| {
            if until > 0 { now + lifetime + (until - renewed.fresh_until) } else { 0 }
        };
        return Ok(freshness::Freshness {
            born_at: now,
            fresh_until: now + lifetime,
            stale_updating_until: window(renewed.stale_updating_until),
            stale_error_until: window(renewed.stale_error_until),
            must_revalidate: renewed.must_revalidate,
            is_by_operator: renewed.is_by_operator,
        });
    }
    let mut fields: Vec<_> = head.fields.to_vec();
    fields.extend(renewed.fields.iter().filter(|(name, _)| head.field(name).is_none()).cloned());
    fields.push((Bytes::from_static(b"ETag"), renewed.etag.clone()));
    let joined = Head { status: renewed.status, reason: None, fields: fields.into() };
    freshness::freshness(&joined, conf, now, is_authorized)
}
