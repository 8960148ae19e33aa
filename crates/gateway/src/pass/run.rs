//! The part of a gateway's work that waits: disk, other makers, the request body, the upstream.

use super::answer;
use super::directives::RequestBuffering;
use super::fetch::{Fetched, Job, fetch};
use super::pools::PoolKey;
use super::{Settings, settings};
use crate::cache::answer::Failure;
use crate::cache::{self, Found, Plan, parts};
use crate::protocol::call::Talk;
use crate::protocol::fault::{Conditions, Fault};
use crate::protocol::target::Target;
use crate::protocol::{self, Protocol};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Notify;
use yorozu_kernel::base::{tasks, turn};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::body_failed::body_failed;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::source::RequestSource;
use yorozu_kernel::logging::error::{self, Context, Level};
use yorozu_upstream::Selector;
use yorozu_wire::h1::Version;

/// Asks the gateway of the exchange's location.
///
/// # Cancel safety
/// The upstream's connection is closed and a claimed page freed.
pub async fn run(exchange: &mut Exchange, protocol: &dyn Protocol) -> Outcome {
    let config = Rc::clone(&exchange.conf);
    let location = config.location(exchange.location);
    let gateway = settings(location, protocol);
    if cache::waits_for_content(exchange, gateway.cache) {
        if let Err(outcome) = Box::pin(read_body(exchange, location)).await {
            return outcome;
        }
        if let Some(found) = cache::lookup(exchange, gateway.cache) {
            return act(found);
        }
    }
    // Boxed, as everything rare: the future of a request is moved when it starts.
    if exchange.pass.of::<Plan>().is_some() {
        if let Some(found) = Box::pin(cache::prepare(exchange, gateway.cache)).await {
            return act(found);
        }
    }
    let is_live = is_sent_on(exchange, location, protocol, gateway);
    let has_body = !exchange.body.is_empty() && !exchange.body.is_lost();
    if !is_live && gateway.pass_request_body && has_body {
        if let Err(outcome) = Box::pin(read_body(exchange, location)).await {
            return outcome;
        }
    }
    let job = match job(exchange, location, protocol, gateway, is_live).await {
        Ok(job) => job,
        Err(status) => return Outcome::Status(status),
    };
    let mut result = fetch_for_client(exchange, gateway, &job).await;
    if let Some(Ok(fetched)) = &result {
        if fetched.head.status == 206 && !parts::completes(exchange, &fetched.head).await {
            // The rest does not fit the start that is stored: all of it is asked for.
            let plan = exchange.pass.of_mut::<Plan>().expect("has a start");
            plan.start = None;
            let job = match self::job(exchange, location, protocol, gateway, false).await {
                Ok(job) => job,
                Err(status) => return Outcome::Status(status),
            };
            result = fetch_for_client(exchange, gateway, &job).await;
        }
    }
    if job.is_live {
        // A body that is still on its way stays with the upload.
        exchange.body = job.live.borrow_mut().take().unwrap_or_else(RequestBody::lent);
        // As nginx: the client need not send the rest.
        exchange.keep_alive &= exchange.body.is_finished();
    }
    let Some(result) = result else {
        error::request(
            exchange,
            Level::Info,
            "client prematurely closed connection while sending request to upstream",
        );
        return Outcome::Status(499);
    };
    if let Some(problem) = job.client_fault.take() {
        return body_failed(exchange, problem);
    }
    conclude(exchange, gateway, job.call.validates, result).await
}

/// Whether the body goes to the upstream while it arrives.
fn is_sent_on(
    exchange: &Exchange,
    location: &LocationConf,
    protocol: &dyn Protocol,
    gateway: Settings<'_>,
) -> bool {
    let takes_chunked = match gateway.request_buffering {
        RequestBuffering::All => return false,
        RequestBuffering::Chunked => false,
        RequestBuffering::None => protocol.takes_chunked(location),
    };
    gateway.pass_request_body
        && !protocol.replaces_content(location)
        && exchange.body.may_be_sent_on(takes_chunked)
        && !exchange.body.is_whole_at_hand()
}

/// Reads the whole body.
///
/// # Errors
/// What the client gets where that fails.
async fn read_body(exchange: &mut Exchange, location: &LocationConf) -> Result<(), Outcome> {
    let read = exchange.body.read_all(location.http_core().body_rules()).await;
    read.map_err(|problem| body_failed(exchange, problem))
}

/// Fetches; `None` if the client has gone meanwhile and the answer is not wanted otherwise.
async fn fetch_for_client(
    exchange: &mut Exchange,
    conf: Settings<'_>,
    job: &Job,
) -> Option<Result<Fetched, Fault>> {
    let is_watching = !cache::is_cacheable(exchange) && !conf.ignore_client_abort && !conf.stores();
    let closed = match &*job.live.borrow() {
        Some(body) => body.client_closed(),
        None => exchange.body.client_closed(),
    };
    // A body on its way shows by itself that the client is there.
    let closed = async {
        if job.is_live {
            job.uploaded.notified().await;
        }
        closed.await;
    };
    let result = tokio::select! {
        biased;
        result = fetch(job) => Some(result),
        () = closed, if is_watching => {
            job.attempt_ended();
            None
        }
    };
    job.hand_over(exchange);
    result
}

/// Everything one request to the upstream needs.
///
/// # Errors
/// The status the client gets.
async fn job(
    exchange: &mut Exchange,
    location: &LocationConf,
    protocol: &dyn Protocol,
    gateway: Settings<'_>,
    is_live: bool,
) -> Result<Box<Job>, u16> {
    match exchange.pass.of_mut::<Plan>() {
        Some(plan) => plan.begin(),
        None => cache::invalidate::begin(exchange, gateway.cache),
    }
    let upstream = match protocol.target().and_then(Target::fixed) {
        Some(upstream) => Arc::clone(upstream),
        None => Box::pin(protocol.upstream(exchange)).await?,
    };
    let from = gateway.bind.0.as_ref().map(|bind| bind.address.value(exchange));
    let from = from.and_then(|address| super::directives::bind_address(&address));
    let mut selector = Selector { client: exchange.remote.ip(), ..Selector::default() };
    if let Some(key) = &upstream.hash_key {
        key.append(exchange, &mut selector.key);
    }
    if let Some(sticky) = &upstream.sticky {
        selector.sid = sticky.sid(exchange);
    }
    let content = match gateway.pass_request_body {
        true => exchange.body.content(is_live),
        false => Content::None,
    };
    let call = protocol.call(exchange, location, content)?;
    let pool = (call.may_keep && upstream.keepalive.is_some()).then(|| {
        let tls_name = call.tls.as_ref().map(|tls| tls.name.to_str());
        let place = std::ptr::from_ref(location).addr();
        let speech = (call.scheme, matches!(call.talk, Talk::Within(_)));
        Rc::new(PoolKey::new(&upstream, speech, from, place, tls_name.as_deref()))
    });
    let hinted = hinted(exchange, location);
    let is_live = matches!(call.content, Content::Live { .. });
    let live = is_live.then(|| std::mem::replace(&mut exchange.body, RequestBody::none()));
    Ok(Box::new(Job {
        conf: Rc::clone(&exchange.conf),
        location: exchange.location,
        family: protocol.family(),
        upstream,
        selector,
        call,
        live: RefCell::new(live),
        is_live,
        uploaded: Notify::new(),
        client_fault: Cell::default(),
        from,
        pool,
        is_idempotent: !matches!(exchange.request.method_text(), b"POST" | b"LOCK" | b"PATCH"),
        context: Context::of(exchange),
        hinted,
        attempts: RefCell::default(),
        sid: RefCell::default(),
        begun: Cell::new(turn::instant()),
    }))
}

/// The client, if `early_hints` lets it have 103 answers.
fn hinted(exchange: &mut Exchange, location: &LocationConf) -> Option<Rc<dyn RequestSource>> {
    let conditions = &location.http_core().early_hints.0;
    let is_wanted = !conditions.is_empty()
        && exchange.request.version >= Version::V11
        && conditions.iter().all(|value| value.is_true(exchange));
    is_wanted.then(|| exchange.body.source()).flatten()
}

/// Decides between the answer, a stale entry and an error; `validates`: the upstream was asked whether the stored
/// page is still good.
async fn conclude(
    exchange: &mut Exchange,
    conf: Settings<'_>,
    validates: bool,
    result: Result<Fetched, Fault>,
) -> Outcome {
    let fault = match result {
        Ok(fetched) => {
            let status = fetched.head.status;
            let condition = Conditions::of_status(status);
            let has_stale = exchange.pass.of::<Plan>().is_some_and(|plan| plan.stale.is_some());
            if has_stale && status == 304 && validates {
                let head = &fetched.head;
                let shown = |exchange: &mut Exchange| answer::response(exchange, conf, head);
                return cache::revalidated(exchange, conf.cache, head, shown)
                    .expect("there is a stale entry");
            }
            if has_stale && !condition.is_empty() {
                let failure = Failure { condition, is_status: true };
                if let Some(outcome) = cache::answer_stale(exchange, conf.cache, failure) {
                    return outcome;
                }
            }
            return answer::accept(exchange, conf, fetched).await;
        }
        Err(fault) => fault,
    };
    let failure = Failure { condition: fault.condition(), is_status: false };
    if let Some(outcome) = cache::answer_stale(exchange, conf.cache, failure) {
        return outcome;
    }
    // Unlike nginx, our own 502 and 504 are never stored: a dead PHP would be remembered beyond its
    // return.
    drop(exchange.pass.take::<Plan>());
    Outcome::Status(fault.status())
}

/// The answer that the cache found; what it asks for beside that begins.
pub fn act(found: Found) -> Outcome {
    if let Some(shadow) = found.refresh {
        refresh_in_background(shadow);
    }
    found.outcome
}

/// Makes a page in a task of its own, independent of the client that noticed that it is due.
fn refresh_in_background(mut shadow: Box<Exchange>) {
    tasks::of_request(async move {
        let refresh = refresh(&mut shadow);
        if tokio::time::timeout(answer::REFRESH_MAX, refresh).await.is_err() {
            error::request(&shadow, Level::Error, "background update took too long");
        }
    });
}

async fn refresh(exchange: &mut Exchange) {
    let config = Rc::clone(&exchange.conf);
    let location = config.location(exchange.location);
    let Some(protocol) = protocol::of(location) else { return };
    let gateway = settings(location, protocol);
    let Ok(job) = job(exchange, location, protocol, gateway, false).await else { return };
    let result = fetch(&job).await;
    job.hand_over(exchange);
    // Dropping the response leaves its pump to finish the entry.
    drop(conclude(exchange, gateway, job.call.validates, result).await);
}
