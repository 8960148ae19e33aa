//! The part of a gateway's work that waits: disk, other makers, the request body, the upstream.

use super::answer;
use super::fetch::{Fetched, Job, fetch};
use super::{Conf, Fault, Target};
use crate::cache;
use crate::config::compiled::LocationConf;
use crate::connection::body::{BodyError, RequestBody};
use crate::exchange::{Exchange, UpstreamAttempt};
use crate::handlers::{Handler, Outcome, fastcgi};
use crate::logging::error::{self, Context, Level};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Asks the gateway of the exchange's location.
///
/// # Cancel safety
/// The upstream's connection is closed and a claimed page freed.
pub async fn run(exchange: &mut Exchange) -> Outcome {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let gateway = &location.fastcgi.gateway;
    if let Some(outcome) = cache::prepare(exchange, gateway).await {
        return outcome;
    }
    let is_live =
        !gateway.request_buffering && exchange.body.may_be_sent_on() && gateway.pass_request_body;
    if !is_live {
        if let Err(problem) = read_body(exchange, location).await {
            return body_failed(exchange, problem);
        }
    }
    let Handler::Fastcgi(target) = &location.handler else {
        unreachable!("only gateways lead here")
    };
    let target = Arc::clone(target);
    let Some(job) = job(exchange, location, &target, is_live) else {
        return Outcome::Status(500);
    };
    // A body on its way shows by itself that the client is there.
    let is_watching = !is_live
        && exchange.cache.as_ref().is_none_or(|plan| !plan.may_store)
        && !gateway.ignore_client_abort;
    let mut attempts = Vec::new();
    let result = if is_watching {
        let closed = exchange.body.client_closed();
        tokio::select! {
            biased;
            result = fetch(&job, &mut attempts) => Some(result),
            () = closed => None,
        }
    } else {
        Some(fetch(&job, &mut attempts).await)
    };
    exchange.attempts.append(&mut attempts);
    if let Some(body) = job.live.take() {
        exchange.body = body;
    }
    if let Some(problem) = job.client_fault.take() {
        return body_failed(exchange, problem);
    }
    match result {
        Some(result) => settle(exchange, gateway, result),
        None => {
            error::request(
                exchange,
                Level::Info,
                "client prematurely closed connection while sending request to upstream",
            );
            Outcome::Status(499)
        }
    }
}

async fn read_body(exchange: &mut Exchange, location: &LocationConf) -> Result<(), BodyError> {
    if exchange.body.is_empty() || !location.fastcgi.gateway.pass_request_body {
        return Ok(());
    }
    let core = &location.http_core;
    exchange.body.read_all(core).await
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
    };
    error::request(exchange, level, &text);
    Outcome::Status(status)
}

fn job(
    exchange: &mut Exchange,
    location: &LocationConf,
    target: &Target,
    is_live: bool,
) -> Option<Job> {
    let Some(upstream) = target.upstream(exchange) else {
        error::request(
            exchange,
            Level::Error,
            "no resolver defined to resolve the upstream's address",
        );
        return None;
    };
    let from = location.fastcgi.gateway.bind.0.as_ref().map(|address| address.value(exchange));
    let from = from.and_then(|address| super::directives::bind_address(&address));
    let request = fastcgi::request(exchange, location, is_live);
    Some(Job {
        upstream,
        request,
        body_file: if location.fastcgi.gateway.pass_request_body {
            exchange.body.file()
        } else {
            None
        },
        live: Cell::new(
            is_live.then(|| std::mem::replace(&mut exchange.body, RequestBody::none())),
        ),
        is_live,
        body_timeout: location.http_core.client_body_timeout,
        client_fault: Cell::default(),
        from,
        frame: fastcgi::frame,
        conf: location.fastcgi.gateway.clone(),
        codec: Box::new(fastcgi::codec(location.fastcgi.gateway.buffer_size.bytes())),
        catch_stderr: location.fastcgi.fastcgi_catch_stderr.clone(),
        may_keep: location.fastcgi.fastcgi_keep_conn,
        is_idempotent: !matches!(exchange.request.method_text(), b"POST" | b"LOCK" | b"PATCH"),
        context: Context::of(exchange),
        scheme: "fastcgi://",
    })
}

/// Decides between the answer, a stale entry and an error.
fn settle(exchange: &mut Exchange, conf: &Conf, result: Result<Fetched, Fault>) -> Outcome {
    let fault = match result {
        Ok(fetched) => {
            let status = fetched.head.status;
            let failure = super::directives::Failures::of_status(status);
            let has_stale = exchange.cache.as_ref().is_some_and(|plan| plan.stale.is_some());
            if has_stale && status == 304 && conf.cache_revalidate {
                let fresh = cache::freshness::freshness(&fetched.head, conf, exchange.now());
                drop(fetched);
                return cache::revalidated(exchange, fresh.map(|fresh| fresh.fresh_until))
                    .expect("there is a stale entry");
            }
            if has_stale && failure != 0 {
                if let Some(outcome) = cache::answer_stale(exchange, conf, failure) {
                    return outcome;
                }
            }
            return answer::accept(exchange, conf, fetched);
        }
        Err(fault) => fault,
    };
    if let Some(outcome) = cache::answer_stale(exchange, conf, fault.failure()) {
        return outcome;
    }
    // Unlike nginx, our own 502 and 504 are never stored: a dead PHP would be remembered beyond its
    // return.
    exchange.cache = None;
    Outcome::Status(fault.status())
}

/// Refreshes an expired entry in a task of its own, independent of the client that noticed.
pub fn refresh_in_background(exchange: &mut Exchange) {
    let plan = exchange.cache.as_mut().expect("only cached requests refresh");
    let plan = cache::Plan {
        zone: Arc::clone(&plan.zone),
        key: plan.key.clone(),
        stale: plan.stale.clone(),
        may_store: plan.may_store,
        guard: plan.guard.take(),
        is_bypassed: false,
    };
    let mut shadow = exchange.shadow();
    shadow.cache = Some(plan);
    tokio::task::spawn_local(async move {
        let refresh = refresh(&mut shadow);
        if tokio::time::timeout(answer::REFRESH_MAX, refresh).await.is_err() {
            error::request(&shadow, Level::Error, "background update took too long");
        }
    });
}

async fn refresh(exchange: &mut Exchange) {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let Handler::Fastcgi(target) = &location.handler else { return };
    let Some(job) = job(exchange, location, target, false) else { return };
    let mut attempts: Vec<UpstreamAttempt> = Vec::new();
    let result = fetch(&job, &mut attempts).await;
    exchange.attempts.append(&mut attempts);
    // Dropping the response leaves its pump to finish the entry.
    drop(settle(exchange, &location.fastcgi.gateway, result));
}

/// An exchange's request without its client, for work that outlives it.
impl Exchange {
    pub fn shadow(&self) -> Self {
        let mut shadow = Self::new(
            Rc::clone(&self.conf),
            Rc::clone(&self.client),
            self.request.clone(),
            RequestBody::none(),
        );
        shadow.server = self.server;
        shadow.location = self.location;
        shadow.uri.clone_from(&self.uri);
        shadow.args.clone_from(&self.args);
        shadow.captures = self.captures.clone();
        shadow.variables = self.variables.clone();
        shadow
    }
}
