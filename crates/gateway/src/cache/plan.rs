//! What the cache knows about the request under way, until the answer is stored or is known not to be.

use super::eligibility::Eligibility;
use super::purge;
use super::secondary::Secondary;
use crate::nodes;
use bytes::Bytes;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::Instant;
use yorozu_cache::{Entry, EntryHead, FillGuard, Key, Making, Purge, PurgeMode, Watch, Zone};
use yorozu_kernel::base::tasks;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::NotStored;
use yorozu_kernel::logging::error::{Context, Level};

/// What the cache knows about the request under way.
pub struct Plan {
    pub zone: Arc<Zone>,
    /// The address: key of the first variant.
    pub key: Key,
    /// What the address holds beside the key.
    pub secondary: Secondary,
    /// How often a page was asked for that clients choose an address for, this time included.
    pub(super) uses: u64,
    /// The first variant, if it is stored.
    pub first: Option<Arc<Entry>>,
    /// An expired entry: may answer if the origin fails, and may be validated.
    pub stale: Option<Arc<Entry>>,
    /// What would have answered, and does not (`*_cache_dry_run`).
    pub rehearsed: Option<Arc<Entry>>,
    /// A stored start of the page; the origin is asked for the rest (`*_cache_complete_partial`).
    pub start: Option<Arc<Entry>>,
    /// The body of that, once the rest has come.
    pub start_body: Option<Bytes>,
    /// Why the answer may not be stored.
    pub not_stored: Option<NotStored>,
    /// What the request says against storing it, once that was asked.
    pub(super) eligibility: Option<Rc<Eligibility>>,
    /// Whether the page is refreshed in the background.
    pub is_refresh: bool,
    /// Held while this request makes the page.
    pub guard: Option<FillGuard>,
    /// The request is made only if the page of this key, which others read along, stops arriving.
    pub(super) stands_by: Option<(Watch, Key)>,
    /// Until when this request may wait for another one's page (`*_cache_lock_timeout`), if it began to.
    pub(super) waits_until: Option<Instant>,
    /// Whether another request was asked to make the page in place of this one.
    pub(super) had_other_maker: bool,
    pub is_bypassed: bool,
    /// Whether only a stored page answers that says that it is shared (`*_cache_bypass_unless_shared`).
    pub wants_shared: bool,
    /// Since the upstream is asked: a purge from then on keeps the answer from being stored.
    pub making: Option<Arc<Making>>,
    /// An entry that was read from its file, and a making from before that.
    pub(super) loaded: Option<(Arc<Entry>, Arc<Making>)>,
    /// Whether the stored page that the answer would have built on is gone.
    pub(super) is_base_lost: bool,
}

impl Plan {
    /// Nothing is known yet of what is stored under `key`.
    pub fn new(zone: Arc<Zone>, key: Key) -> Self {
        Self {
            zone,
            key,
            secondary: Secondary::default(),
            uses: 1,
            first: None,
            stale: None,
            rehearsed: None,
            start: None,
            start_body: None,
            not_stored: None,
            eligibility: None,
            is_refresh: false,
            guard: None,
            stands_by: None,
            waits_until: None,
            had_other_maker: false,
            is_bypassed: false,
            wants_shared: false,
            making: None,
            loaded: None,
            is_base_lost: false,
        }
    }

    /// The upstream is about to be asked: what it answers begins here, or where the stored page was found on
    /// which the answer builds. That must still be there.
    pub fn begin(&mut self) {
        let base = self.start.as_ref().or(self.stale.as_ref());
        let since_base = base.and_then(|base| match &self.loaded {
            Some((entry, making)) if Arc::ptr_eq(entry, base) => Some(Arc::clone(making)),
            _ => {
                let key = Key::new(base.head.key.clone());
                self.zone.begin_from(&key, base).map(Arc::new)
            }
        });
        self.is_base_lost = base.is_some() && since_base.is_none();
        if self.is_base_lost {
            self.start = None;
        }
        let making = since_base.unwrap_or_else(|| Arc::new(self.zone.begin()));
        if let Some(guard) = &self.guard {
            guard.started(&making);
        }
        self.making = Some(making);
    }

    /// Whether a page with this head is not for the request, whatever else it is.
    pub fn passes_over(&self, head: &EntryHead) -> bool {
        self.is_bypassed || self.wants_shared && !head.is_shared
    }

    /// What a background request needs to refresh the page; the claim, if it has one, goes with it.
    pub(super) fn for_refresh(&self, guard: Option<FillGuard>) -> Self {
        Self {
            first: self.first.clone(),
            stale: self.stale.clone(),
            is_refresh: true,
            guard,
            loaded: self.loaded.clone(),
            secondary: self.secondary,
            uses: self.uses,
            ..Self::new(Arc::clone(&self.zone), self.key.clone())
        }
    }

    /// Whether the stored page ends, as its renewal got an answer of this status that may not be stored. A page
    /// that is served only while it is renewed would be served for ever; an upstream's failure ends none.
    fn ends_with(&self, status: u16, why: NotStored) -> bool {
        let is_trouble = status >= 500 || matches!(status, 408 | 425 | 429);
        let vary = self.stale.as_ref().map_or(&b""[..], |stale| &stale.head.vary);
        let is_of_request = self.eligibility.as_ref().is_some_and(|found| !found.admits(vary))
            || self.not_stored.is_some()
            || (why == NotStored::Forbidden && !self.is_refresh);
        let is_answering = |stale: &Arc<Entry>| stale.head.is_purged || self.is_refresh;
        self.stale.as_ref().is_some_and(is_answering) && !is_trouble && !is_of_request
    }

    /// The answer, of this status, may not be stored: the stored page is removed where it ends with that. Those who wait for
    /// its renewal are woken afterwards.
    pub fn end_without(self, exchange: &Exchange, status: u16, why: NotStored) {
        if !self.ends_with(status, why) {
            return;
        }
        let context = Context::of(exchange);
        let tier = nodes::tier(&exchange.conf, &self.zone).cloned();
        tasks::of_request(async move {
            // First: the page would come back from there.
            if let Some(tier) = tier {
                tier.forget(&self.key).await;
            }
            let page = vec![Purge::Page(self.key.clone())];
            if let Err(problem) = purge::purge(&self.zone, page, PurgeMode::Hard).await {
                context.upstream(Level::Crit, &problem.0, None);
            }
            drop(self);
        });
    }
}
