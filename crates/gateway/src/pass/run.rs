//! The part of a gateway's work that waits: disk, other makers, the request body, the upstream.

use super::answer;
use super::directives::RequestBuffering;
use super::fetch::{Fetched, Job, fetch};
use super::pools::PoolKey;
use super::{Settings, settings};
use crate::cache::answer::Failure;
use crate::cache::{self, Found, Plan, Prepared, parts};
use crate::protocol::call::{Call, Talk};
use crate::protocol::fault::{Conditions, Fault};
use crate::protocol::target::Target;
use crate::protocol::{self, Protocol};
use crate::upstream::{Upstream, sticky};
use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use yorozu_kernel::base::{address, tasks, turn};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::body_failed::body_failed;
use yorozu_kernel::exchange::cached::NotStored;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::source::RequestSource;
use yorozu_kernel::logging::error::{self, Level};
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
        loop {
            match Box::pin(cache::prepare(exchange, gateway.cache)).await {
                Prepared::Found(found) => return act(found),
                Prepared::MadeBy(shadow) => make_in_background(shadow),
                Prepared::Nothing => break,
            }
        }
        if cache::shared::is_there(exchange) {
            if let Some(found) = Box::pin(cache::shared::find(exchange, gateway.cache)).await {
                return act(found);
            }
        }
    }
    let engine = exchange.conf.engine;
    let refused = if (engine.is_forbidden)(exchange) {
        Some(Outcome::Refused(403))
    } else if let Some(limits) = (engine.before_upstream)(exchange) {
        limits.await.err()
    } else {
        None
    };
    if let Some(outcome) = refused {
        // Others may make the page.
        drop(exchange.pass.take::<Plan>());
        return outcome;
    }
    let is_live = is_sent_on(exchange, location, protocol, gateway);
    let has_body = !exchange.body.is_empty() && !exchange.body.is_lost();
    // As nginx: it is read though it is not passed on. One that was announced is known not to be too long without that.
    let is_wanted = gateway.pass_request_body || exchange.request.content_length.is_none();
    if !is_live && is_wanted && has_body {
        if let Err(outcome) = Box::pin(read_body(exchange, location)).await {
            return outcome;
        }
    }
    let way = Way { location, protocol, gateway };
    let mut reply = match ask(exchange, way, is_live).await {
        Ok(reply) => reply,
        Err(outcome) => return outcome,
    };
    if let Ok(fetched) = &reply.result {
        let is_part = fetched.head.status == 206;
        if is_part && !Box::pin(parts::completes(exchange, &fetched.head)).await {
            // The rest does not fit the start that is stored: all of it is asked for.
            let plan = exchange.pass.of_mut::<Plan>().expect("has a start");
            plan.start = None;
            reply = match Box::pin(ask(exchange, way, false)).await {
                Ok(reply) => reply,
                Err(outcome) => return outcome,
            };
        }
    }
    conclude(exchange, gateway, reply).await
}

/// Where a request goes, and by which settings.
#[derive(Clone, Copy)]
struct Way<'a> {
    location: &'a LocationConf,
    protocol: &'a dyn Protocol,
    gateway: Settings<'a>,
}

/// What came of asking the upstream.
struct Reply {
    result: Result<Box<Fetched>, Fault>,
    /// Whether it was asked if the stored page is still good.
    validates: bool,
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
    if let Err(problem) = read {
        return Err(body_failed(exchange, problem));
    }
    if exchange.request.is_multiplexed() && exchange.body.received() == 0 {
        // The stream's end came behind the head, and nothing between them.
        exchange.request.is_chunked = false;
    }
    Ok(())
}

/// Asks the upstream.
///
/// # Errors
/// What the client gets where there is nothing to ask for, or where it is at fault.
async fn ask(exchange: &mut Exchange, way: Way<'_>, is_live: bool) -> Result<Reply, Outcome> {
    match exchange.pass.of_mut::<Plan>() {
        Some(plan) => plan.begin(),
        None => cache::invalidate::begin(exchange, way.gateway.cache),
    }
    let own;
    let upstream = match way.protocol.target().and_then(Target::fixed) {
        Some(upstream) => upstream,
        None => {
            own = way.protocol.upstream(exchange).await.map_err(Outcome::Status)?;
            &own
        }
    };
    let Way { location, protocol, gateway } = way;
    let from = gateway.bind.0.as_ref().map(|bind| bind.address.value(exchange));
    let from = from.and_then(|address| address::with_port(&address));
    let selector = selector(exchange, upstream);
    let content = match gateway.pass_request_body {
        true => exchange.body.content(is_live),
        false => Content::None,
    };
    let call = protocol.call(exchange, location, content).map_err(Outcome::Status)?;
    refuse_in_doubt(exchange)?;
    let pool = pool_key(way, upstream, &call, from);
    let hinted = hinted(exchange, location);
    let is_live = matches!(call.content, Content::Live { .. });
    let live = is_live.then(|| std::mem::replace(&mut exchange.body, RequestBody::none()));
    let job = Job {
        exchange,
        location,
        protocol,
        conf: gateway.own,
        upstream,
        selector: &selector,
        call: &call,
        live: RefCell::new(live),
        is_live,
        is_uploaded: Cell::new(false),
        client_fault: Cell::default(),
        from,
        pool,
        is_idempotent: !matches!(exchange.request.method_text(), b"POST" | b"LOCK" | b"PATCH"),
        hinted,
        attempts: RefCell::default(),
        sid: RefCell::default(),
        begun: Cell::new(turn::instant()),
        started: turn::instant(),
    };
    let result = fetch_for_client(&job, gateway).await;
    // Taken apart where it stands: as a whole it would be moved.
    let Job { attempts, sid, live, client_fault, .. } = job;
    exchange.attempts.append(attempts.into_inner());
    if let Some((sticky, sid)) = upstream.sticky.as_ref().zip(sid.into_inner()) {
        sticky::bind(exchange, sticky, &sid);
    }
    if is_live {
        // A body that is still on its way stays with the upload.
        exchange.body = live.into_inner().unwrap_or_else(RequestBody::lent);
        // As nginx: the client need not send the rest.
        exchange.keep_alive &= exchange.body.is_finished();
    }
    let Some(result) = result else {
        let text = "client prematurely closed connection while sending request to upstream";
        error::request(exchange, Level::Info, text);
        return Err(Outcome::Status(499));
    };
    match client_fault.into_inner() {
        Some(problem) => Err(body_failed(exchange, problem)),
        None => Ok(Reply { result, validates: call.validates }),
    }
}

/// # Errors
/// What is to be sent, or where, could not be found out.
fn refuse_in_doubt(exchange: &mut Exchange) -> Result<(), Outcome> {
    if !exchange.doubt.is_open() {
        return Ok(());
    }
    if cache::is_asked(exchange) {
        exchange.cache_report.not_stored = Some(NotStored::Undecided);
    }
    Err(Outcome::Status(500))
}

/// Fetches; `None` if the client has gone meanwhile and the answer is not wanted otherwise.
async fn fetch_for_client(
    job: &Job<'_>,
    conf: Settings<'_>,
) -> Option<Result<Box<Fetched>, Fault>> {
    let is_watching = !cache::is_cacheable(job.exchange)
        && !conf.ignore_client_abort
        && !conf.stores()
        // What the upstream has changed is not to be served as it was, because a client did not wait to be told.
        && !cache::invalidate::is_due(job.exchange, conf.cache);
    let live = job.live.borrow().as_ref().map(|body| body.source());
    let client = live.unwrap_or_else(|| job.exchange.body.source());
    let client = client.filter(|_| is_watching);
    let mut fetch = pin!(fetch(job));
    poll_fn(|context| {
        if let Poll::Ready(result) = fetch.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        let Some(client) = &client else { return Poll::Pending };
        // A body on its way shows by itself that the client is there.
        let is_asked = !job.is_live || job.is_uploaded.get();
        if is_asked && client.poll_closed(context).is_ready() {
            job.attempt_ended();
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await
}

/// What the choice of a peer depends on.
fn selector(exchange: &mut Exchange, upstream: &Upstream) -> Selector {
    let mut selector = Selector { client: exchange.remote.ip(), ..Selector::default() };
    if let Some(key) = &upstream.hash_key {
        key.append(exchange, &mut selector.key);
    }
    if let Some(sticky) = &upstream.sticky {
        selector.sid = sticky.sid(exchange);
    }
    selector
}

/// What keeps the connections of a request apart from others, if they are kept.
fn pool_key(
    way: Way<'_>,
    upstream: &Upstream,
    call: &Call,
    from: Option<SocketAddr>,
) -> Option<PoolKey> {
    (call.may_keep && upstream.keepalive.is_some()).then(|| {
        let tls_name = call.tls.as_ref().map(|tls| tls.name.to_str());
        let place = std::ptr::from_ref(way.location).addr();
        let speech = (call.scheme, matches!(call.talk, Talk::Within(_)));
        PoolKey::new(upstream, speech, from, place, tls_name.as_deref())
    })
}

/// The client, if `early_hints` lets it have 103 answers.
fn hinted(exchange: &mut Exchange, location: &LocationConf) -> Option<Rc<dyn RequestSource>> {
    let conditions = &location.http_core().early_hints.0;
    let is_wanted = !conditions.is_empty()
        && exchange.request.version >= Version::V11
        && conditions.iter().all(|value| value.is_true(exchange));
    is_wanted.then(|| exchange.body.source()).flatten()
}

/// Decides between the answer, a stale entry and an error.
async fn conclude(exchange: &mut Exchange, conf: Settings<'_>, reply: Reply) -> Outcome {
    let Reply { result, validates } = reply;
    let fault = match result {
        Ok(fetched) => {
            let status = fetched.head.status;
            let condition = Conditions::of_status(status);
            let has_stale = exchange.pass.of::<Plan>().is_some_and(|plan| plan.stale.is_some());
            if has_stale && status == 304 && validates {
                let head = &fetched.head;
                let shown = |exchange: &mut Exchange| *answer::response(exchange, conf, head);
                return cache::revalidated(exchange, conf.cache, head, shown)
                    .expect("there is a stale entry");
            }
            if has_stale && !condition.is_empty() {
                let failure = Failure { condition, is_status: true };
                failure.note(exchange, conf.cache);
                if let Some(outcome) = cache::answer_stale(exchange, conf.cache, failure) {
                    return outcome;
                }
            }
            return answer::accept(exchange, conf, fetched).await;
        }
        Err(fault) => fault,
    };
    let failure = Failure { condition: fault.condition(), is_status: false };
    failure.note(exchange, conf.cache);
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
        make_in_background(shadow);
    }
    found.outcome
}

/// Makes a page in a task of its own, independent of the client that noticed that it is due.
pub(super) fn make_in_background(mut shadow: Box<Exchange>) {
    tasks::of_request(async move {
        let config = Rc::clone(&shadow.conf);
        let location = config.location(shadow.location);
        let Some(protocol) = protocol::of(location) else { return };
        let way = Way { location, protocol, gateway: settings(location, protocol) };
        if !cache::is_due(&mut shadow, way.gateway.cache).await {
            return;
        }
        let refresh = refresh(&mut shadow, way);
        if tokio::time::timeout(answer::REFRESH_MAX, refresh).await.is_err() {
            error::request(&shadow, Level::Error, "background update took too long");
        }
    });
}

async fn refresh(exchange: &mut Exchange, way: Way<'_>) {
    let gateway = way.gateway;
    let is_shared = cache::shared::is_there(exchange);
    if is_shared && Box::pin(cache::shared::find(exchange, gateway.cache)).await.is_some() {
        return;
    }
    if (exchange.conf.engine.is_forbidden)(exchange) {
        if let Some(plan) = exchange.pass.take::<Plan>() {
            plan.end_without(exchange, 403, NotStored::Forbidden);
        }
        return;
    }
    let Ok(reply) = ask(exchange, way, false).await else { return };
    // Dropping the response leaves its pump to finish the entry.
    drop(conclude(exchange, gateway, reply).await);
    cache::counters::count_refresh(exchange);
}
