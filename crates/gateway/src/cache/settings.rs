//! The cache's settings in one location: what is stored, for how long, and when it answers.

use super::directives::*;
use super::early::{EarlyRefresh, Heuristic};
use crate::protocol;
use crate::protocol::family::{Family, Stamped, family_settings};
use crate::protocol::fault::Conditions;
use std::time::Duration;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::{Offset, Templates};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;

/// What one block says about the cache with the prefix of a protocol.
pub type Shared<P> = Stamped<P, Draft>;

family_settings! {
    at cache, check = check;
    /// Zone of the page cache; `off` for none.
    cache: CacheZoneName = "off", ONE;
    /// Whether stored pages say how old they are (`Age`).
    cache_age: bool = "on", ONE;
    /// Whether expired pages are served while they are refreshed in the background.
    cache_background_update: bool = "off", ONE;
    /// Values that, if neither empty nor 0, keep the cache from answering; the response may still be stored.
    cache_bypass: Templates = none, ONE_OR_MORE;
    /// Values that, if neither empty nor 0, limit the cache to responses that are marked as shared.
    cache_bypass_unless_shared: Templates = none, ONE_OR_MORE;
    /// Whether the response to a POST that names the request's URL in Content-Location is stored for GET.
    cache_content_location: bool = "off", ONE;
    /// Whether only the rest of a page is requested if its start is stored.
    cache_complete_partial: bool = "off", ONE;
    /// Whether requests go to the upstream even if a stored page could answer, and the two are compared.
    cache_dry_run: bool = "off", ONE;
    /// How eagerly frequently requested pages are refreshed before they expire.
    cache_early_refresh: EarlyRefresh = "off", ONE;
    /// Lifetime, as a share of its age, of a page that states only when it last changed.
    cache_heuristic: Heuristic = "off", ONE;
    /// Which stored pages the response to a method that may change them removes: none, those whose headers set their
    /// lifetime, or all.
    cache_invalidate: Invalidate = "fields", ONE;
    /// The key of a stored page.
    cache_key: Option<Template> = none, ONE;
    /// Whether only one request at a time generates a missing page.
    cache_lock: bool = "off", ONE;
    /// How long a request may take to generate a page before another may try too.
    cache_lock_age: Duration = "5s", ONE;
    /// How long a request waits while another generates the page.
    cache_lock_timeout: Duration = "5s", ONE;
    /// Offset beyond which ranges are not served from a page that is being generated.
    cache_max_range_offset: Option<Offset> = none, ONE;
    /// Methods whose responses are stored; GET and HEAD always.
    cache_methods: CacheMethods = "GET HEAD", ONE_OR_MORE;
    /// Requests after which a page is stored.
    cache_min_uses: u64 = "1", ONE;
    /// Which requests purge stored pages.
    cache_purge: PurgeRule = "off", ONE_OR_MORE;
    /// Whether expired pages are revalidated instead of fetched again.
    cache_revalidate: bool = "off", ONE;
    /// Name of the cache in the Cache-Status header of its responses.
    cache_status: StatusName = "off", ONE;
    /// Headers by which the upstream tags its pages; `off` for none. They are not sent to clients.
    cache_tag_headers: TagHeaders = "Surrogate-Key Cache-Tag xkey X-Cache-Tags X-Magento-Tags", ONE_OR_MORE;
    /// Conditions under which a stale page is served.
    cache_use_stale: Conditions = "off", ONE_OR_MORE;
    /// How long pages are fresh, by status.
    cache_valid: CacheValid = none, ONE_OR_MORE;
    /// Whether languages of equal weight have no order, and a page in the most wanted language is served.
    cache_vary_language: bool = "off", ONE;
    /// Whether ranges are served even if the upstream does not advertise them.
    force_ranges: bool = "off", ONE;
    /// Response headers that are not acted on.
    ignore_headers: IgnoreHeaders = none, ONE_OR_MORE;
    /// Whether responses with status 300 and above may be replaced by error_page.
    intercept_errors: bool = "off", ONE;
    /// Values that, if neither empty nor 0, keep the response from being stored.
    no_cache: Templates = none, ONE_OR_MORE;
}

/// The directives, without their prefix, that say whether the cache has a part in a request.
pub const CONDITIONS: [&str; 3] = ["cache_bypass", "cache_bypass_unless_shared", "no_cache"];

/// Whether a directive is one of [`CONDITIONS`].
pub fn is_condition(directive: &[u8]) -> bool {
    CONDITIONS.iter().any(|name| {
        let prefix = directive.strip_suffix(name.as_bytes());
        prefix.is_some_and(|prefix| prefix.ends_with(b"_"))
    })
}

/// Checks what several directives must be to each other.
///
/// # Errors
/// What does not fit together.
fn check(conf: &Conf, family: &Family, is_used: bool, env: &Env) -> Result<(), ValueError> {
    let prefix = family.prefix;
    if let Some(zone) = conf.zone() {
        // A name with variables is looked up with each request.
        if let Some(zone) = zone.as_literal() {
            let zone = String::from_utf8_lossy(&zone).into_owned();
            if !env.zones.borrow().contains_key(&zone) {
                return Err(ValueError(format!("\"{prefix}_cache\" zone \"{zone}\" is unknown")));
            }
        }
        if is_used && conf.cache_key.is_none() && !family.has_default_key {
            env.warn(format!("no \"{prefix}_cache_key\" for \"{prefix}_cache\""));
        }
    }
    if let Some(zone) = conf.cache_purge.zone() {
        if !env.zones.borrow().contains_key(zone) {
            return Err(ValueError(format!("\"{prefix}_cache_purge\" zone \"{zone}\" is unknown")));
        }
    }
    Ok(())
}

impl Conf {
    /// Whether only a page that says that it is shared may answer a request.
    pub fn wants_shared(&self, exchange: &mut Exchange) -> bool {
        self.cache_bypass_unless_shared.0.iter().any(|value| value.is_true(exchange))
    }

    /// The name of the zone, if pages are stored.
    pub fn zone(&self) -> Option<&Template> {
        self.cache.zone()
    }
}

/// The settings in a location that have the prefix of a family.
pub fn with_prefix<'a>(location: &'a LocationConf, family: &Family) -> &'a Conf {
    location.at(&family.cache)
}

/// The settings of the cache in front of the gateway that a location has.
pub fn of(location: &LocationConf) -> Option<&Conf> {
    protocol::of(location).map(|protocol| with_prefix(location, protocol.family()))
}
