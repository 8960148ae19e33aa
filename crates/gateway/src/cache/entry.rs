//! From an answer to an entry: whether it may be stored, and what is stored of it.

use super::collector::{Collector, made_in};
use super::directives::IgnoreHeaders;
use super::eligibility::{self, Eligible};
use super::plan::Plan;
use super::secondary::Secondary;
use super::seen::{self, Effect};
use super::settings::Conf;
use super::{dry_run, freshness, key, loops, parts, purge, secondary, url};
use crate::protocol::codec::Head;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;
use yorozu_cache::{Entry, EntryHead, Key, Length};
use yorozu_http::status;
use yorozu_kernel::base::turn;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::{CHARSET_MARK, NotStored};
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::logging::error::Context;

pub const SHARED: &[u8] = b"x-accel-shared";

/// The fate of a response.
pub enum Collected {
    Stored(Box<Collector>),
    /// It is its client's alone; the page is made by this request.
    MadeBy(Box<Exchange>),
    NotStored,
}

/// Prepares to store the answer, if it may be stored; `started`: when the upstream was asked.
pub fn collector(
    exchange: &mut Exchange,
    conf: &Conf,
    head: &Head,
    response: &Response,
    started: Instant,
) -> Collected {
    // It is large, and without a cache there is none: not to be taken in vain.
    let Some(plan) = exchange.pass.of::<Plan>() else { return Collected::NotStored };
    let (is_refresh, is_out) = (plan.is_refresh, plan.not_stored.is_some());
    // What a refresh ends depends on them. Of others they need not be known where the answer is not stored anyway.
    if is_refresh || !(is_out || is_forbidden(exchange, conf)) {
        eligibility::of_request(exchange, conf);
    }
    let Some(mut plan) = exchange.pass.take::<Plan>() else { return Collected::NotStored };
    let Some(making) = plan.making.take() else { return Collected::NotStored };
    if plan.secondary.is_of_origin && secondary::is_for_all_origins(&head.fields) {
        (plan.key, plan.secondary) = (plan.key.page(), Secondary::default());
    }
    let judged = entry_head(exchange, conf, head, response, &plan);
    if let Some(stored) = plan.rehearsed.take() {
        let judged = judged.map(|(entry, _)| entry);
        let Some(entry) = dry_run::judge(exchange, &stored, (head, response), judged) else {
            return Collected::NotStored;
        };
        let collector = Collector::new(plan.zone, entry, None, making, Context::of(exchange));
        return Collected::Stored(Box::new(collector.comparing(stored)));
    }
    match judged {
        Ok((_, Eligible { is_by_stranger: true, .. })) => {
            exchange.cache_report.not_stored = Some(NotStored::UnknownHeader);
            let strangers = plan.eligibility.as_ref().map(|known| known.strangers());
            strangers.into_iter().flatten().for_each(|name| {
                exchange.cache_report.header = Some(seen::count(name, Effect::Unshared));
            });
            let key = plan.key.clone();
            exchange.pass.put(plan);
            let made_by = made_by_other(exchange, conf, head, &key);
            drop(exchange.pass.take::<Plan>());
            made_by.map_or(Collected::NotStored, Collected::MadeBy)
        }
        Ok((mut entry, _)) => {
            // Until it is whole, for those who read along.
            entry.made_in = made_in(started);
            exchange.cache_report.is_stored = true;
            plan.zone.setbacks().forget(&plan.key);
            if plan.secondary != Secondary::default() {
                for name in secondary::names(exchange, conf, false) {
                    exchange.cache_report.header = Some(seen::count(&name, Effect::Split));
                }
            }
            let context = Context::of(exchange);
            let guard = plan.guard.take();
            let collector = Collector::new(plan.zone, entry, guard, making, context);
            Collected::Stored(Box::new(collector.since(started)))
        }
        Err(why) => {
            exchange.cache_report.not_stored = Some(why);
            if why == NotStored::Split {
                for name in secondary::names(exchange, conf, true) {
                    exchange.cache_report.header = Some(seen::count(&name, Effect::Unshared));
                }
            }
            // What an upstream in trouble says is no property of the page.
            let vary = vary(conf, head);
            let judged = plan.eligibility.as_ref();
            let is_by_anyone = judged.is_some_and(|known| known.is_by_anyone(exchange, &vary));
            let is_of_page = why.is_by_response() && head.status < 500 && is_by_anyone;
            if conf.cache_lock && is_of_page {
                plan.zone.setbacks().note_unstorable(&plan.key, Instant::now());
            }
            plan.end_without(exchange, head.status, why);
            Collected::NotStored
        }
    }
}

/// The request that makes the page in place of this one, whose response is its client's alone.
fn made_by_other(
    exchange: &mut Exchange,
    conf: &Conf,
    head: &Head,
    key: &Key,
) -> Option<Box<Exchange>> {
    if exchange.pass.of::<Plan>()?.had_other_maker {
        return None;
    }
    let vary = vary(conf, head);
    let shadow = eligibility::without_strangers(exchange, conf, &vary);
    super::make_by(exchange, conf, key, shadow).asked()
}

/// Checks that nothing about request and answer forbids showing it to others; in the same way for answers that are
/// stored and for those that renew what is stored.
///
/// # Errors
/// The reason.
pub(super) fn may_be_stored(
    exchange: &mut Exchange,
    conf: &Conf,
    head: &Head,
    plan: &Plan,
) -> Result<Eligible, NotStored> {
    if let Some(why) = plan.not_stored {
        return Err(why);
    }
    if is_forbidden(exchange, conf) {
        return Err(NotStored::Forbidden);
    }
    if exchange.doubt.is_there() {
        return Err(NotStored::Undecided);
    }
    // Not known: it was forbidden a moment ago.
    let eligibility = plan.eligibility.as_ref().ok_or(NotStored::Forbidden)?;
    let vary = vary(conf, head);
    let eligible = eligibility.judge(&vary)?;
    if eligibility.credentials.are_there && head.status == 401 {
        return Err(NotStored::Authorization);
    }
    let is_known = plan.uses > 1 || plan.stale.is_some() || plan.first.is_some();
    let place = (&plan.zone, &plan.key);
    if !plan.secondary.may_be_stored(exchange, conf, place, is_known, &vary) {
        return Err(NotStored::Split);
    }
    if loops::leads_to_itself(exchange, head) {
        return Err(NotStored::Loop);
    }
    Ok(eligible)
}

/// What a response varies by, as far as that counts.
pub(super) fn vary(conf: &Conf, head: &Head) -> Bytes {
    if conf.ignore_headers.contains(IgnoreHeaders::VARY) {
        return Bytes::new();
    }
    let values: Vec<_> = head.values(b"vary").map(|value| &value[..]).collect();
    Bytes::from(values.join(&b", "[..]))
}

/// `X-Accel-Shared: yes | no`: whether the response is also for those who take none but shared ones.
pub(super) fn says_shared(conf: &Conf, head: &Head) -> Option<bool> {
    let is_ignored = conf.ignore_headers.contains(IgnoreHeaders::X_ACCEL_SHARED);
    let said = head.field(SHARED).filter(|_| !is_ignored)?;
    Some(said.eq_ignore_ascii_case(b"yes"))
}

/// `*_no_cache`, when the upstream has answered: it may name what that said.
fn is_forbidden(exchange: &mut Exchange, conf: &Conf) -> bool {
    conf.no_cache.0.iter().any(|value| value.is_true(exchange))
}

/// The tags that an answer gives its page, and those of its URLs.
pub(super) fn tags(
    exchange: &Exchange,
    conf: &Conf,
    head: &Head,
    plan: &Plan,
) -> Result<Vec<Bytes>, NotStored> {
    let lines = head.fields.iter().filter(|(name, _)| conf.cache_tag_headers.has(name));
    let tags = purge::tags(&exchange.request.host, lines.map(|(_, line)| &line[..]));
    let mut tags = tags.ok_or(NotStored::Tags)?;
    tags.extend(url::tags(exchange, &plan.key));
    Ok(tags)
}

/// What is stored about the answer beside its body.
fn entry_head(
    exchange: &mut Exchange,
    conf: &Conf,
    head: &Head,
    response: &Response,
    plan: &Plan,
) -> Result<(EntryHead, Eligible), NotStored> {
    let eligible = may_be_stored(exchange, conf, head, plan)?;
    let part = match head.status {
        206 => Some(parts::part(exchange, head, plan).ok_or(NotStored::Partial)?),
        304 => return Err(NotStored::Partial),
        _ => None,
    };
    let now = turn::unix_millis();
    let fresh = freshness::freshness(head, conf, now, eligible.is_authorized)?;
    let tags = tags(exchange, conf, head, plan)?;
    let vary = vary(conf, head);
    let variant = if vary.is_empty() { [0; 16] } else { key::variant_id(exchange, conf, &vary) };
    // The first variant keeps its place as long as the origin varies by the same fields.
    let varies_alike = |entry: &&Arc<Entry>| !vary.is_empty() && entry.head.vary == vary;
    let first = plan.first.as_ref().or(plan.stale.as_ref()).filter(varies_alike);
    // One that answers by its language is renewed where it is, by whatever request: it would be found there, expired, for ever.
    let is_other = plan.first.as_ref().is_some_and(|first| varies_alike(&first))
        || first.is_some_and(|first| {
            first.head.variant != variant && !key::is_in_language(exchange, conf, &first.head)
        });
    let key = if is_other { plan.key.variant(&variant) } else { plan.key.clone() };
    if exchange.doubt.is_there() {
        // A tag of the page: a purge would not find it.
        return Err(NotStored::Undecided);
    }
    let head = EntryHead {
        key: Bytes::copy_from_slice(key.as_bytes()),
        status: head.status,
        reason: own_reason(head),
        length: length(exchange, response),
        content_type: stored_type(response),
        fields: stored_fields(response, part.is_some()),
        stored_at: now,
        born_at: fresh.born_at,
        fresh_until: fresh.fresh_until,
        stale_updating_until: fresh.stale_updating_until,
        stale_error_until: fresh.stale_error_until,
        must_revalidate: fresh.must_revalidate,
        is_by_operator: fresh.is_by_operator,
        is_shared: says_shared(conf, head) == Some(true),
        last_modified: response.last_modified,
        etag: response.etag.clone(),
        vary,
        variant,
        variant_group: first.map_or_else(|| fastrand::u64(..), |first| first.head.variant_group),
        part,
        tags,
        ..EntryHead::default()
    };
    Ok((head, eligible))
}

/// The reason phrase, if it is not the one that is sent without.
fn own_reason(head: &Head) -> Bytes {
    let is_own = |reason: &&Bytes| **reason != status::reason(head.status);
    head.reason.as_ref().filter(is_own).cloned().unwrap_or_default()
}

/// Of an answer to a HEAD that was sent as one, what it says; else the body, which is stored, has its length.
fn length(exchange: &Exchange, response: &Response) -> Length {
    match exchange.request.method {
        Method::Head if !super::is_asked_as_get(exchange) => {
            Length::OfHead(response.content_length)
        }
        _ => Length::OfBody,
    }
}

/// The type, and the charset that the upstream wants.
pub(super) fn stored_type(response: &Response) -> Bytes {
    match &response.charset {
        Some(charset) => [&response.content_type[..], &[CHARSET_MARK], charset].concat().into(),
        None => response.content_type.clone(),
    }
}

/// What [`stored_type`] joined, given to a response.
pub(super) fn place_type(stored: &Bytes, response: &mut Response) {
    match memchr::memchr(CHARSET_MARK, stored) {
        Some(at) => {
            response.content_type = stored.slice(..at);
            response.charset = Some(stored.slice(at + 1..));
        }
        None => response.content_type = stored.clone(),
    }
}

/// Fields as a later client shall get them.
pub(super) fn stored_fields(response: &Response, is_part: bool) -> Vec<(Bytes, Bytes)> {
    // These are made for each answer.
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
