//! Whether the response to a request may become a page of others, as far as the request decides it.
//!
//! What neither the key nor the secondary key holds may take a page, and makes none: content, credentials, headers that no list
//! knows. Such a request claims nothing, for no other would make the page meanwhile; it gets its own response, and the page is
//! made by one that is without all that ([`without_strangers`]).

use super::header_rules;
use super::headers::{self, Class};
use super::plan::Plan;
use super::secondary::{self, Secondary};
use super::sent::{self, Credentials};
use super::settings::Conf;
use super::{is_for_stored_page, key};
use crate::protocol;
use bytes::Bytes;
use std::rc::Rc;
use yorozu_http::field;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::NotStored;
use yorozu_kernel::exchange::request::Method;

/// What stands against storing the response to a request.
#[derive(Clone, Debug, Default)]
pub struct Eligibility {
    /// No response lifts it.
    never: Option<NotStored>,
    /// Unless the response says that it is for all.
    pub credentials: Credentials,
    /// Headers that name the client, and that the upstream sees and the key does not hold: as credentials, unless the
    /// response varies by them.
    names_of_client: Vec<Header>,
    /// Headers that no list knows and the upstream sees, unless the response varies by them.
    strangers: Vec<Header>,
}

/// A header that the upstream sees, and the address does not hold.
#[derive(Clone, Debug)]
struct Header {
    /// As applications may read it that take `_` for `-`, in lower case.
    name: Bytes,
    /// Whether the upstream gets it as the client says it: only then a page that varies by it is for those alone who say the
    /// same.
    is_sent_as_said: bool,
}

impl Header {
    fn is_varied_by(&self, vary: &[u8]) -> bool {
        self.is_sent_as_said && field::list_has(vary, &self.name)
    }
}

/// What a response may be stored as.
#[derive(Clone, Copy, Debug)]
pub struct Eligible {
    /// Whether it must say itself that it is for all.
    pub is_authorized: bool,
    /// Whether that would be true of the response to a request without its strange headers.
    pub is_by_stranger: bool,
}

impl Eligibility {
    pub(super) const NONE: Self = Self {
        never: None,
        credentials: Credentials { are_there: false, are_unkeyed: false },
        names_of_client: Vec::new(),
        strangers: Vec::new(),
    };

    pub fn of(exchange: &mut Exchange, conf: &Conf, not_stored: Option<NotStored>) -> Self {
        let credentials = Credentials::of(exchange, conf);
        let is_get = exchange.request.method.is_get_or_head();
        // Applications read it, and nothing of it is in the key.
        let has_content = is_get && exchange.request.has_content();
        let never = not_stored.or(has_content.then_some(NotStored::Body));
        let mut found = Self { never, credentials, ..Self::NONE };
        let config = Rc::clone(&exchange.conf);
        let location = config.location(exchange.location);
        let reads = config.reads_of(exchange.location);
        let Some((protocol, reads)) = protocol::of(location).zip(reads) else { return found };
        let rules: &header_rules::Conf = location.of();
        let (mut of_client, mut strangers) = (Vec::new(), Vec::new());
        for field in &exchange.request.fields {
            let name = exchange.request.name(field);
            let class = headers::class(name);
            let kind = match class {
                Class::Credential => &mut of_client,
                Class::Unknown => &mut strangers,
                _ => continue,
            };
            let is_named =
                rules.cache_ignore_headers.has(name) || rules.cache_split_headers.has(name);
            let is_joined = class == Class::Unknown
                && (reads.selecting.iter().any(|read| field::is_alike(name, &read.name))
                    || !is_get && secondary::is_of_content(name));
            let is_keyed = match class {
                Class::Credential => reads.in_key.has_field(name),
                _ => reads.key.has_field(name),
            };
            if is_named || is_joined || is_keyed || is_for_stored_page(name) {
                continue;
            }
            let is_passed_on = protocol.passes_on(location, name);
            if is_passed_on || reads.told.has_field(name) {
                kind.push((Bytes::from(field::plain_name(name)), is_passed_on));
            }
        }
        let mut header = |(name, is_passed_on): (Bytes, bool)| Header {
            is_sent_as_said: is_passed_on || sent::is_as_said(exchange, &name),
            name,
        };
        found.names_of_client = of_client.into_iter().map(&mut header).collect();
        found.strangers = strangers.into_iter().map(&mut header).collect();
        found
    }

    /// Whether the page with this stored `Vary`, if one is stored, may be made by this request.
    pub fn admits(&self, vary: &[u8]) -> bool {
        self.admits_without_strangers(vary)
            && self.strangers.iter().all(|header| header.is_varied_by(vary))
    }

    /// Whether it may be made by this request without its headers that no list knows.
    pub fn admits_without_strangers(&self, vary: &[u8]) -> bool {
        self.never.is_none()
            && !self.credentials.are_unkeyed
            && self.names_of_client.iter().all(|header| header.is_varied_by(vary))
    }

    /// Whether anyone may have made the request for the page with this `Vary`: what comes of it is not likely to come of what its
    /// client alone says.
    pub(super) fn is_by_anyone(&self, exchange: &Exchange, vary: &[u8]) -> bool {
        self.admits(vary) && exchange.request.values(b"cookie").next().is_none()
    }

    /// The headers that no list knows.
    pub fn strangers(&self) -> impl Iterator<Item = &Bytes> {
        self.strangers.iter().map(|header| &header.name)
    }

    /// Checks that a response with this `Vary` lifts what stands against storing it.
    ///
    /// # Errors
    /// The reason.
    pub fn judge(&self, vary: &[u8]) -> Result<Eligible, NotStored> {
        if let Some(why) = self.never {
            return Err(why);
        }
        let has_other =
            |headers: &[Header]| !headers.iter().all(|header| header.is_varied_by(vary));
        Ok(Eligible {
            is_authorized: self.credentials.are_unkeyed || has_other(&self.names_of_client),
            is_by_stranger: has_other(&self.strangers),
        })
    }
}

/// The eligibility of the request under way, judged once a pass.
pub fn of_request(exchange: &mut Exchange, conf: &Conf) -> Rc<Eligibility> {
    let Some(mut plan) = exchange.pass.take::<Plan>() else { return Rc::new(Eligibility::NONE) };
    let known = plan.eligibility.take();
    let found = known.unwrap_or_else(|| Rc::new(Eligibility::of(exchange, conf, plan.not_stored)));
    plan.eligibility = Some(Rc::clone(&found));
    exchange.pass.put(plan);
    found
}

/// The request that makes the page in place of one that may not: a GET without credentials, content and headers that no list
/// knows; `vary`: what its page varies by. `None` if that is another page, or its response is not stored either.
pub fn without_strangers(
    exchange: &mut Exchange,
    conf: &Conf,
    vary: &[u8],
) -> Option<Box<Exchange>> {
    let eligibility = of_request(exchange, conf);
    // These tell which variant it is.
    let is_kept = |name: &[u8]| field::list_has(vary, &field::plain_name(name));
    let of_client = &eligibility.names_of_client;
    // By its cookies, else it would make the page itself.
    let is_known = exchange.pass.of::<Plan>()?.wants_shared;
    let is_taken = |name: &[u8]| {
        let is_it = |taken: &Header| field::is_alike(name, &taken.name);
        name.eq_ignore_ascii_case(b"authorization")
            || is_known && name.eq_ignore_ascii_case(b"cookie")
            || !is_kept(name)
                && (of_client.iter().any(is_it) || eligibility.strangers.iter().any(is_it))
    };
    let reads = exchange.conf.reads_of(exchange.location)?;
    let has_read = |header: &Header| reads.told.has_field(&header.name);
    let is_user_read = reads.told.has("remote_user") || reads.told.has_field(b"authorization");
    if of_client.iter().any(has_read)
        || eligibility.credentials.are_there && is_user_read
        || is_known && reads.told.has_field(b"cookie")
    {
        // Rules have gone by it.
        return None;
    }
    let wanted = exchange.pass.of::<Plan>()?.key.clone();
    let id = *exchange.id();
    let mut asked = Box::new(exchange.request_of_its_own());
    asked.request_id = id.into();
    if asked.request.method == Method::Head {
        asked.request.become_get();
    }
    asked.request.retain_fields(|name| !is_taken(name));
    asked.forget_computed();
    let page = key::primary(&mut asked, conf);
    let is_same = Secondary::of(&asked, conf).address(page) == wanted;
    // The configuration may make them of something else that the client says.
    let is_authorized = Credentials::of(&mut asked, conf).are_unkeyed;
    (is_same && !is_authorized && !is_forbidden_by_request(&asked, conf)).then_some(asked)
}

/// Whether `*_no_cache` holds for a request. What waits for the response does not count yet.
pub(super) fn forbids_storing(exchange: &mut Exchange, conf: &Conf) -> bool {
    let worker = Rc::clone(&exchange.conf);
    let waits = worker.reads_of(exchange.location).map(|reads| &reads.waits_for_response);
    let waits = |at: usize| waits.and_then(|waits| waits.get(at)).is_some_and(|waits| *waits);
    let mut values = conf.no_cache.0.iter().enumerate();
    values.any(|(at, value)| !waits(at) && value.is_true(exchange))
}

/// As [`forbids_storing`], and the exchange stays as it is.
pub(super) fn is_forbidden_by_request(exchange: &Exchange, conf: &Conf) -> bool {
    !conf.no_cache.0.is_empty() && exchange.peek(|asked| forbids_storing(asked, conf))
}
