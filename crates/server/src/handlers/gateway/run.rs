//! The part of a gateway's work that waits: disk, other makers, the request body, the upstream.

use super::answer;
use super::fetch::{Fetched, Job, fetch};
use super::pools::PoolKey;
use super::{Conf, Fault, Protocol, Target};
use crate::cache;
use crate::cache::answer::Failure;
use crate::config::compiled::LocationConf;
use crate::connection::body::{BodyError, Content, Origin, RequestBody};
use crate::exchange::subrequests::TooMany;
use crate::exchange::{Captures, Exchange};
use crate::handlers::{Handler, Outcome};
use crate::logging::error::{self, Context, Level};
use crate::process::turn;
use crate::tasks;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use yorozu_upstream::Selector;
use yorozu_wire::h1::Version;

/// Asks the gateway of the exchange's location.
///
/// # Cancel safety
/// The upstream's connection is closed and a claimed page freed.
pub async fn run(exchange: &mut Exchange) -> Outcome {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let gateway = location.gateway();
    let Handler::Gateway(protocol) = &location.handler else {
        unreachable!("only gateways lead here")
    };
    // Boxed, as everything rare: the future of a request is moved when it starts.
    if exchange.pass.cache.is_some() {
        if let Some(outcome) = Box::pin(cache::prepare(exchange, gateway)).await {
            return outcome;
        }
    }
    let is_live = !gateway.request_buffering
        && gateway.pass_request_body
        && exchange.body.may_be_sent_on(protocol.takes_chunked(location))
        && !exchange.body.is_whole_at_hand();
    let has_body = !exchange.body.is_empty() && !exchange.body.is_lost();
    if !is_live && gateway.pass_request_body && has_body {
        let read = Box::pin(exchange.body.read_all(&location.http_core)).await;
        if let Err(problem) = read {
            return body_failed(exchange, problem);
        }
    }
    let job = match job(exchange, location, protocol, is_live).await {
        Ok(job) => job,
        Err(status) => return Outcome::Status(status),
    };
    let mut result = fetch_for_client(exchange, gateway, &job).await;
    if let Some(Ok(fetched)) = &result {
        if fetched.head.status == 206 && !answer::completes(exchange, &fetched.head).await {
            // The rest does not fit the start that is stored: all of it is asked for.
            let plan = exchange.pass.cache.as_mut().expect("has a start");
            plan.start = None;
            let job = match self::job(exchange, location, protocol, false).await {
                Ok(job) => job,
                Err(status) => return Outcome::Status(status),
            };
            result = fetch_for_client(exchange, gateway, &job).await;
        }
    }
    let Some(result) = result else {
        error::request(
            exchange,
            Level::Info,
            "client prematurely closed connection while sending request to upstream",
        );
        return Outcome::Status(499);
    };
    if job.is_live {
        // A body that is still on its way stays with the upload.
        exchange.body = job.live.borrow_mut().take().unwrap_or_else(RequestBody::lent);
    }
    if let Some(problem) = job.client_fault.take() {
        return body_failed(exchange, problem);
    }
    settle(exchange, gateway, job.call.validates, result).await
}

/// Fetches; `None` if the client has gone meanwhile and nobody else wants the answer.
async fn fetch_for_client(
    exchange: &mut Exchange,
    conf: &Conf,
    job: &Job,
) -> Option<Result<Fetched, Fault>> {
    // A body on its way shows by itself that the client is there.
    let is_watching =
        !job.is_live && !exchange.is_cacheable() && !conf.ignore_client_abort && !conf.stores();
    let closed = exchange.body.client_closed();
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

/// The status for a request body that could not be read.
pub fn body_failed(exchange: &mut Exchange, problem: BodyError) -> Outcome {
    exchange.keep_alive = false;
    let (level, text, status) = match problem {
        BodyError::Broken => (Level::Info, "client sent invalid chunked body".to_owned(), 400),
        BodyError::Closed => (Level::Info, "client prematurely closed connection".to_owned(), 400),
        BodyError::Timeout => (Level::Info, "client timed out".to_owned(), 408),
        BodyError::TooLarge => {
            (Level::Error, "client intended to send too large chunked body".to_owned(), 413)
        }
        BodyError::File(why) => (Level::Crit, why, 500),
        BodyError::Spent => {
            let text = "request body was sent to an upstream already and cannot be read again";
            (Level::Error, text.to_owned(), 500)
        }
    };
    error::request(exchange, level, &text);
    Outcome::Status(status)
}

/// Everything one request to the upstream needs.
///
/// # Errors
/// The status the client gets.
async fn job(
    exchange: &mut Exchange,
    location: &LocationConf,
    protocol: &Protocol,
    is_live: bool,
) -> Result<Box<Job>, u16> {
    match &mut exchange.pass.cache {
        Some(plan) => plan.begin(),
        None => cache::invalidate::begin(exchange, location.gateway()),
    }
    let upstream = match protocol.target().and_then(Target::fixed) {
        Some(upstream) => Arc::clone(upstream),
        None => Box::pin(protocol.upstream(exchange)).await?,
    };
    let gateway = location.gateway();
    let from = gateway.bind.0.as_ref().map(|bind| bind.address.value(exchange));
    let from = from.and_then(|address| super::directives::bind_address(&address));
    let mut selector = Selector { client: exchange.remote.ip(), key: Vec::new() };
    if let Some(key) = &upstream.hash_key {
        key.append(exchange, &mut selector.key);
    }
    let content = match gateway.pass_request_body {
        true => exchange.body.content(is_live),
        false => Content::None,
    };
    let call = protocol.call(exchange, location, content)?;
    let pool = (call.may_keep && upstream.keepalive.is_some()).then(|| {
        let tls_name = call.tls.as_ref().map(|tls| tls.name.to_str());
        let place = std::ptr::from_ref(location).addr();
        Rc::new(PoolKey::new(&upstream, call.scheme, from, place, tls_name.as_deref()))
    });
    let hinted = hinted(exchange, location);
    let is_live = matches!(call.content, Content::Live { .. });
    let live = is_live.then(|| std::mem::replace(&mut exchange.body, RequestBody::none()));
    Ok(Box::new(Job {
        conf: Rc::clone(&exchange.conf),
        location: exchange.location,
        upstream,
        selector,
        call,
        live: RefCell::new(live),
        is_live,
        client_fault: Cell::default(),
        from,
        pool,
        is_idempotent: !matches!(exchange.request.method_text(), b"POST" | b"LOCK" | b"PATCH"),
        context: Context::of(exchange),
        hinted,
        attempts: RefCell::default(),
        begun: Cell::new(turn::instant()),
    }))
}

/// The client, if `early_hints` lets it have 103 answers.
fn hinted(exchange: &mut Exchange, location: &LocationConf) -> Option<Origin> {
    let conditions = &location.http_core.early_hints.0;
    let is_wanted = !conditions.is_empty()
        && exchange.request.version >= Version::V11
        && conditions.iter().all(|value| value.is_true(exchange));
    is_wanted.then(|| exchange.body.origin().clone())
}

/// Decides between the answer, a stale entry and an error; `validates`: the upstream was asked whether the stored
/// page is still good.
async fn settle(
    exchange: &mut Exchange,
    conf: &Conf,
    validates: bool,
    result: Result<Fetched, Fault>,
) -> Outcome {
    let fault = match result {
        Ok(fetched) => {
            let status = fetched.head.status;
            let failure = super::directives::Failures::of_status(status);
            let has_stale = exchange.pass.cache.as_ref().is_some_and(|plan| plan.stale.is_some());
            if has_stale && status == 304 && validates {
                return cache::revalidated(exchange, conf, &fetched.head)
                    .expect("there is a stale entry");
            }
            if has_stale && failure != 0 {
                let failure = Failure { bit: failure, is_status: true };
                if let Some(outcome) = cache::answer_stale(exchange, conf, failure) {
                    return outcome;
                }
            }
            return answer::accept(exchange, conf, fetched).await;
        }
        Err(fault) => fault,
    };
    let failure = Failure { bit: fault.failure(), is_status: false };
    if let Some(outcome) = cache::answer_stale(exchange, conf, failure) {
        return outcome;
    }
    // Unlike nginx, our own 502 and 504 are never stored: a dead PHP would be remembered beyond its
    // return.
    exchange.pass.cache = None;
    Outcome::Status(fault.status())
}

/// Makes a page in a task of its own, independent of the client that noticed that it is due.
pub fn refresh_in_background(mut shadow: Box<Exchange>) {
    tasks::of_request(async move {
        let refresh = refresh(&mut shadow);
        if tokio::time::timeout(answer::REFRESH_MAX, refresh).await.is_err() {
            error::request(&shadow, Level::Error, "background update took too long");
        }
    });
}

async fn refresh(exchange: &mut Exchange) {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let Handler::Gateway(protocol) = &location.handler else { return };
    let Ok(job) = job(exchange, location, protocol, false).await else { return };
    let result = fetch(&job).await;
    job.hand_over(exchange);
    // Dropping the response leaves its pump to finish the entry.
    drop(settle(exchange, location.gateway(), job.call.validates, result).await);
}

/// An exchange's request without its client, for work that outlives it or goes beside it.
impl Exchange {
    /// A request of this one's own for another location; `None`, and logged, if there were too many.
    pub fn subrequest(&self, uri: &[u8]) -> Option<Self> {
        let refuse = |why| {
            let text = match why {
                TooMany::Deep => "subrequests cycle",
                TooMany::Made => "too many subrequests",
                TooMany::Told => return,
            };
            let uri = String::from_utf8_lossy(uri);
            error::request(self, Level::Error, &format!("{text} while processing \"{uri}\""));
        };
        let subrequests = self.subrequests.next().map_err(refuse).ok()?;
        let mut asked = self.request_of_its_own();
        asked.subrequests = subrequests;
        asked.is_subrequest = true;
        asked.request_id = (*self.id()).into();
        asked.request.become_get();
        asked.captures = Captures::default();
        asked.redirect_internally(uri.to_vec(), Some(Vec::new()));
        Some(asked)
    }

    /// The same request once more, for work of the server's own: without content, which is the client's.
    pub fn request_of_its_own(&self) -> Self {
        let mut asked = self.shadow();
        asked.request.drop_content();
        asked
    }

    /// The same request, to look at.
    pub fn shadow(&self) -> Self {
        let mut shadow = Self::new(
            Rc::clone(&self.conf),
            Rc::clone(&self.client),
            self.request.clone(),
            RequestBody::none(),
        );
        shadow.server = self.server;
        shadow.is_subrequest = self.is_subrequest;
        shadow.subrequests = self.subrequests.clone();
        shadow.location = self.location;
        shadow.uri.clone_from(&self.uri);
        shadow.is_uri_as_sent = self.is_uri_as_sent;
        shadow.is_uri_in_location = self.is_uri_in_location;
        shadow.is_internal = self.is_internal;
        shadow.pass.proxy.clone_from(&self.pass.proxy);
        shadow.args.clone_from(&self.args);
        shadow.captures = self.captures.clone();
        shadow.variables = self.variables.clone();
        shadow
    }
}
