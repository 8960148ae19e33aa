//! `POST /cache/purge`: many purges in one request.
//!
//! ```json
//! {"urls": ["https://www.example.com/a", "https://www.example.com/blog/*"],
//!  "tags": ["post-1", "home"], "host": "www.example.com", "zone": "pages",
//!  "all": false, "soft": true}
//! ```
//! A URL that ends with `*` stands for all with that prefix, one without a scheme (`//www.example.com/a`) for
//! http and https. Tags belong to `host`, to every host without it. `zone` narrows tags and `all` to one
//! zone. The answer has counts of stored responses, variants counted. A list of such objects is answered
//! with a list.

use super::batch::{Batch, Batches};
use super::{Problem, explain, list};
use crate::handlers;
use crate::live::figures;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_cache::{Purge, PurgeMode, Zone};
use yorozu_gateway::cache::purge::{self, InZones};
use yorozu_gateway::cache::url::Scope;
use yorozu_gateway::cache::{key, settings};
use yorozu_gateway::nodes::Told;
use yorozu_http::field;
use yorozu_kernel::config::hosts::Hosts;
use yorozu_kernel::config::servers::ServerId;
use yorozu_kernel::exchange::conf::{LocationConf, WorkerConf};
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::{Exchange, Role};
use yorozu_kernel::find_config;
use yorozu_kernel::logging::error;

/// URLs whose keys are made before others have their turn; chosen: well below a millisecond's work.
const URLS_AT_ONCE: usize = 16;

impl Batches {
    /// Each batch, also if others fail; the worst of what went wrong.
    async fn perform(&self, exchange: &Exchange) -> Result<String, Problem> {
        let (mut answers, mut worst) = (Vec::new(), None);
        let mut told: Option<Told> = None;
        for batch in &self.0 {
            match perform(&exchange.conf, batch, &mut told).await {
                Ok(answer) => answers.push(answer),
                Err(problem) => worst = worse(worst, problem),
            }
        }
        if let Some(problem) = worst {
            return Err(problem);
        }
        if let Some(told) = told {
            let told = purge::settled(&exchange.conf, told).await;
            for answer in answers.iter_mut().filter_map(Value::as_object_mut) {
                let word = if told.is_queued { "queued" } else { "sent" };
                answer.insert("bus".to_owned(), word.into());
                if !told.late.is_empty() {
                    answer.insert("late".to_owned(), told.late.clone().into());
                }
            }
        }
        let answer = if self.1 { Value::Array(answers) } else { answers.remove(0) };
        Ok(format!("{answer}\n"))
    }
}

/// A purge that may not outlast the server: it says so with 500, whatever else was wrong.
impl From<purge::NotDurable> for Problem {
    fn from(problem: purge::NotDurable) -> Self {
        Self(500, problem.0)
    }
}

/// The first problem of the higher status.
fn worse(worst: Option<Problem>, other: Problem) -> Option<Problem> {
    match worst {
        Some(first) if first.0 >= other.0 => Some(first),
        _ => Some(other),
    }
}

/// `yorozu purge`
pub(super) async fn run(exchange: &mut Exchange) -> Result<String, Problem> {
    let content = super::content(exchange).await?;
    of_content(exchange, &content).await
}

/// Purges what a batch, or a list of them, names.
///
/// # Errors
/// The status, and what is wrong.
pub(crate) async fn of_content(exchange: &Exchange, content: &[u8]) -> Result<String, Problem> {
    let mut batches = Batches::parse(content)?;
    batches.0.iter_mut().for_each(|batch| batch.scope = Scope::All);
    batches.perform(exchange).await
}

/// `cache_purge_api`: batches of the site itself; the zones' figures for a GET.
///
/// # Errors
/// The status, and what is wrong.
pub(super) async fn for_site(exchange: &mut Exchange, token: &[u8]) -> Result<String, Problem> {
    let said = exchange.request.known(exchange.request.known.authorization);
    let said = said.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    if aws_lc_rs::constant_time::verify_slices_are_equal(said, token).is_err() {
        return Err(Problem(403, "the token is missing or wrong".to_owned()));
    }
    match exchange.request.method {
        Method::Get => {
            let zones = Scope::Site.zones(exchange);
            let mut figures = list::figures(&exchange.conf, &zones);
            let server = exchange.conf.server(exchange.server);
            figures["live"] = figures::of_site(server, &exchange.request.host);
            return Ok(format!("{figures}\n"));
        }
        Method::Post => {}
        _ => return Err(Problem(405, "expected a POST, or a GET for figures".to_owned())),
    }
    let mut batches = Batches::parse(&super::content(exchange).await?)?;
    for batch in &mut batches.0 {
        confine(exchange, batch).map_err(|problem| Problem(403, problem))?;
    }
    batches.perform(exchange).await
}

/// `X-Accel-Purge`: an answer's own purges, of its own host: `tag=NAME`, `url=/PATH`, `soft`, parted by
/// commas.
pub async fn by_answer(exchange: &mut Exchange, fields: &[(Bytes, Bytes)]) {
    let mut batch = Batch::default();
    let values = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"x-accel-purge"));
    let values: Vec<Bytes> = values.map(|(_, value)| value.clone()).collect();
    let mut problem = None;
    for item in values.iter().flat_map(|value| field::list(value)) {
        let text = String::from_utf8_lossy(item).into_owned();
        match text.split_once('=') {
            Some(("tag", tag)) => batch.tags.push(tag.to_owned()),
            Some(("url", url)) => batch.urls.push(url.to_owned()),
            None if text == "soft" => batch.mode = PurgeMode::Soft,
            _ => {
                problem = Some(format!("invalid \"{text}\", expected tag=NAME, url=/PATH or soft"));
            }
        }
    }
    let done = match confine(exchange, &mut batch) {
        Ok(()) => perform(&Rc::clone(&exchange.conf), &batch, &mut None).await.map(|_| ()),
        Err(refused) => Err(refused.into()),
    };
    // What the upstream answered is sent all the same: it has done what it was asked.
    let problems = problem.map(Problem::from).into_iter().chain(done.err());
    if let Some(problem) = problems.fold(None, worse) {
        error::request(exchange, problem.level(), &format!("X-Accel-Purge: {}", problem.1));
    }
}

/// The host whose pages a request may purge: the one it came for, if its server answers for that by name. A
/// server without names answers for all that no other server has.
fn own_host(exchange: &mut Exchange) -> Result<String, String> {
    let text = String::from_utf8_lossy(&exchange.request.host).into_owned();
    if text.is_empty() {
        return Err("the request names no host".to_owned());
    }
    let (is_own, is_others) = whose_host(exchange);
    let has_names = exchange.conf.server(exchange.server).has_names();
    match is_own || !(has_names || is_others) {
        true => Ok(text),
        false => Err(format!("\"{text}\" is not a name of the server that was asked")),
    }
}

/// Whether the host of a request is a name of the server that answers it, and whether one of another server.
pub(crate) fn whose_host(exchange: &mut Exchange) -> (bool, bool) {
    let (conf, host) = (Rc::clone(&exchange.conf), exchange.request.host.clone());
    let captures = exchange.captures.clone();
    let own = exchange.server;
    // What cannot be told is another's.
    let mut is_named_by = |hosts: &Hosts<ServerId>, is_own: bool| {
        let is_meant = |id: ServerId| (id == own) == is_own;
        let mut by_regex = hosts.regexes().filter(|(_, id)| is_meant(**id));
        hosts.find(&host).is_some_and(|id| is_meant(*id))
            || by_regex.any(|(regex, _)| regex.matches(&host, exchange).unwrap_or(!is_own))
    };
    let is_own = conf.sockets.iter().any(|socket| is_named_by(&socket.hosts, true));
    let is_others = conf.sockets.iter().any(|socket| is_named_by(&socket.hosts, false));
    exchange.captures = captures;
    (is_own, is_others)
}

/// Bounds a batch to the host of the request.
fn confine(exchange: &mut Exchange, batch: &mut Batch) -> Result<(), String> {
    if batch.all {
        let text =
            "\"all\" means every site's pages: purge by a tag that all pages of the site have";
        return Err(text.to_owned());
    }
    let own = own_host(exchange)?;
    if !batch.host.is_empty() && batch.host != own {
        return Err(format!("host \"{}\" is not \"{own}\"", batch.host));
    }
    let authority = String::from_utf8_lossy(exchange.request.authority()).into_owned();
    for url in &mut batch.urls {
        if url.starts_with('/') && !url.starts_with("//") {
            *url = format!("//{authority}{url}");
        }
        let rest = url.split_once("//").map_or("", |(_, rest)| rest);
        let named = rest.split(['/', '?', ':']).next().unwrap_or_default();
        if !named.eq_ignore_ascii_case(&own) {
            return Err(format!("\"{url}\" is not of host \"{own}\""));
        }
    }
    batch.host = own;
    Ok(())
}

/// Does a batch; adds to `told` what came of it on other nodes.
async fn perform(
    conf: &Rc<WorkerConf>,
    batch: &Batch,
    told: &mut Option<Told>,
) -> Result<Value, Problem> {
    if let Some(name) = batch.tags.iter().find(|name| !is_tag(name)) {
        return Err(format!("invalid tag \"{name}\": spaces and commas separate tags").into());
    }
    let tag = |name: &String| Purge::Tag(purge::tag(batch.host.as_bytes(), name.as_bytes()));
    let mut wanted = Wanted::default();
    for zone in &zones(conf, batch)? {
        let tags = batch.tags.iter().enumerate().map(|(at, name)| (Of::Tag(at), tag(name)));
        wanted.add(zone, tags.chain(batch.all.then_some((Of::All, Purge::All))));
    }
    let mut worst = add_urls(conf, batch, &mut wanted).await.map(Problem::from);
    let (mut urls, mut tags) = (vec![0; batch.urls.len()], vec![0; batch.tags.len()]);
    let mut total = 0;
    for (zone, of, purges) in wanted.in_zones {
        let counts = match purge::everywhere(conf, &zone, purges, batch.mode).await {
            Ok((counts, of_bus)) => {
                if let Some(of_bus) = of_bus {
                    told.get_or_insert_default().join(of_bus);
                }
                counts
            }
            Err(problem) => {
                worst = worse(worst, problem.into());
                continue;
            }
        };
        for (of, count) in of.into_iter().zip(counts) {
            total += count;
            match of {
                Of::Tag(at) => tags[at] += count,
                Of::Url(at) => urls[at] += count,
                Of::All => {}
            }
        }
    }
    if let Some(at) = wanted.uncached.iter().find(|at| urls[**at] == 0) {
        let text = format!("\"{}\": no cache is asked there, purge by tag", batch.urls[*at]);
        worst = worse(worst, text.into());
    }
    if let Some(problem) = worst {
        return Err(problem);
    }
    let by_name = |names: &[String], counts: Vec<usize>| -> BTreeMap<String, usize> {
        let mut found = BTreeMap::new();
        for (name, count) in names.iter().zip(counts) {
            *found.entry(name.clone()).or_default() += count;
        }
        found
    };
    let (urls, tags) = (by_name(&batch.urls, urls), by_name(&batch.tags, tags));
    Ok(json!({ "purged": total, "urls": urls, "tags": tags }))
}

/// Whether an answer can have it: what stands between spaces and commas.
fn is_tag(name: &str) -> bool {
    !name.is_empty() && !name.contains([' ', ',', '\t'])
}

/// What a purge of a batch was asked for as.
#[derive(Clone, Copy)]
enum Of {
    Tag(usize),
    Url(usize),
    All,
}

/// The purges of a batch: each zone does all of its own at once, for each call waits for the disk.
#[derive(Default)]
struct Wanted {
    in_zones: Vec<(Arc<Zone>, Vec<Of>, Vec<Purge>)>,
    /// URLs with `*` that lead to no cache, by number: what they match was stored by way of others, if at all.
    uncached: Vec<usize>,
}

impl Wanted {
    fn add(&mut self, zone: &Arc<Zone>, purges: impl Iterator<Item = (Of, Purge)>) {
        let (of, purges): (Vec<Of>, Vec<Purge>) = purges.unzip();
        match self.in_zones.iter_mut().find(|(known, ..)| Arc::ptr_eq(known, zone)) {
            Some((_, all_of, all)) => {
                all_of.extend(of);
                all.extend(purges);
            }
            None if purges.is_empty() => {}
            None => self.in_zones.push((Arc::clone(zone), of, purges)),
        }
    }
}

/// Adds the purges of the URLs; what is wrong with the first one that is refused, which keeps nothing else
/// from being purged.
async fn add_urls(conf: &Rc<WorkerConf>, batch: &Batch, wanted: &mut Wanted) -> Option<String> {
    let mut refused = None;
    for (number, url) in batch.urls.iter().enumerate() {
        if number % URLS_AT_ONCE == URLS_AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        let mut is_cached = false;
        for url in with_schemes(conf, url) {
            match of_url(conf, &url, batch.scope) {
                Ok((in_zones, leads_to_cache)) => {
                    is_cached |= leads_to_cache;
                    for (zone, purges) in in_zones {
                        wanted.add(&zone, purges.into_iter().map(|purge| (Of::Url(number), purge)));
                    }
                }
                Err(problem) => refused = refused.or(Some(problem)),
            }
        }
        if url.ends_with('*') && !is_cached {
            wanted.uncached.push(number);
        }
    }
    refused
}

/// The zones of a batch's tags, which say themselves whose they are.
fn zones(conf: &WorkerConf, batch: &Batch) -> Result<Vec<Arc<Zone>>, String> {
    let Some(name) = &batch.zone else { return Ok(conf.zones.values().cloned().collect()) };
    match (conf.zones.get(name), batch.scope) {
        (Some(zone), _) => Ok(vec![Arc::clone(zone)]),
        (None, Scope::Site) => Err(format!("cache zone \"{name}\" is unknown")),
        (None, Scope::All) => {
            let known = conf.zones.keys().cloned().collect::<Vec<_>>().join(", ");
            Err(format!("cache zone \"{name}\" is unknown, expected one of: {known}"))
        }
    }
}

/// Itself; of a URL without a scheme what it is with each that is listened for.
fn with_schemes(conf: &WorkerConf, url: &str) -> Vec<String> {
    if !url.starts_with("//") {
        return vec![url.to_owned()];
    }
    let is_served = |is_tls: bool| {
        let mut sockets = conf.sockets.iter().filter(|socket| !socket.options.is_control);
        let by_proxy = |location: &LocationConf| explain::scheme_header(location).is_some();
        sockets.any(|socket| socket.is_tls == is_tls)
            || is_tls && conf.locations.iter().any(by_proxy)
    };
    let schemes = [("http:", false), ("https:", true)];
    let served = schemes.iter().filter(|(_, is_tls)| is_served(*is_tls));
    served.map(|(scheme, _)| format!("{scheme}{url}")).collect()
}

/// What is to be purged for a URL, and whether that leads to a cache.
fn of_url(conf: &Rc<WorkerConf>, url: &str, scope: Scope) -> Result<(InZones, bool), String> {
    // Many sites refuse requests without it.
    const AGENT: &str = "User-Agent: Mozilla/5.0 (compatible; yorozu)\r\n";
    let mut asked = explain::asked(conf, explain::head(url, "GET", AGENT)?.as_bytes())?;
    find_config::begin(&mut asked)?;
    asked.role = Role::Question { supposes_scripts: false };
    // As far as it comes without waiting for anything: where rules refuse it, its location says which keys it has.
    handlers::start(&mut asked);
    let cache = settings::of(conf.location(asked.location));
    let is_cached = cache
        .is_some_and(|cache| key::zones(&mut asked, cache).is_ok_and(|zones| !zones.is_empty()));
    Ok((purge::of_keys(scope.keys(&mut asked, cache), url.ends_with('*')), is_cached))
}
