//! The phases of a request, in nginx's order; the first with an outcome ends the pass.
//!
//! post_read (acme, realip) > server_rewrite > find_config > rewrite > preaccess (limit_req, limit_conn) > access (access,
//! auth_basic, auth_request) > precontent (try_files, mirror) > content

use crate::handlers::{self, CACHED};
use bytes::Bytes;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use yorozu_acme::challenges;
use yorozu_gateway::cache::purge;
use yorozu_kernel::config::http_core::Satisfy;
use yorozu_kernel::config::servers::LocationId;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::engine::Judged;
use yorozu_kernel::exchange::handler::Bound;
use yorozu_kernel::exchange::keep_alive;
use yorozu_kernel::exchange::outcome::{Outcome, Pending, Permission, Step};
use yorozu_kernel::exchange::{Exchange, Pass, Role};
use yorozu_kernel::find_config::{self, Found};
use yorozu_kernel::logging::error::{self, Level};
use yorozu_modules::filters::more_headers;
use yorozu_modules::handlers::{dav, random_index, static_file};
use yorozu_modules::phases::limit_zones::Counted;
use yorozu_modules::phases::rewrite::Verdict;
use yorozu_modules::phases::{
    access, auth_basic, auth_request, htaccess, limit_conn, limit_req, mirror, realip, rewrite,
    try_files,
};

/// A part of the phases that most locations have nothing to do for: it is not looked at there.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    RealIp,
    /// The script of a location.
    Rewrite,
    RequestFields,
    Limits,
    /// Those of requests that reach an upstream.
    UpstreamLimits,
    Access,
    /// What an `.htaccess` refuses, but to an upstream: a gateway asks itself, as stored pages are not asked about.
    Htaccess,
    Mirror,
    Purge,
    Dav,
    RandomIndex,
}

impl Part {
    const ALL: [Self; 11] = [
        Self::RealIp,
        Self::Rewrite,
        Self::RequestFields,
        Self::Limits,
        Self::UpstreamLimits,
        Self::Access,
        Self::Htaccess,
        Self::Mirror,
        Self::Purge,
        Self::Dav,
        Self::RandomIndex,
    ];

    /// Whether the exchange's location has it.
    pub fn concerns(self, exchange: &Exchange) -> bool {
        exchange.conf.location(exchange.location).phases.has(self as u8)
    }

    fn is_on(self, location: &LocationConf) -> bool {
        match self {
            Self::RealIp => location.of::<realip::Conf>().is_on(),
            Self::Rewrite => !location.of::<rewrite::Script>().is_empty(),
            Self::RequestFields => location.of::<more_headers::Conf>().changes_requests(),
            Self::Limits => {
                location.of::<limit_req::Conf>().has(Counted::All)
                    || location.of::<limit_conn::Conf>().has(Counted::All)
            }
            Self::UpstreamLimits => {
                location.of::<limit_req::Conf>().has(Counted::ToUpstream)
                    || location.of::<limit_conn::Conf>().has(Counted::ToUpstream)
            }
            Self::Access => {
                location.of::<access::Conf>().is_set()
                    || location.of::<auth_basic::Conf>().is_on()
                    || location.of::<auth_request::Conf>().is_on()
            }
            Self::Htaccess => {
                location.of::<htaccess::Conf>().htaccess_deny && !location.handler.is_gateway()
            }
            Self::Mirror => location.of::<mirror::Conf>().is_on(),
            Self::Purge => purge::is_possible(location, &CACHED),
            Self::Dav => location.of::<dav::Conf>().is_on(),
            Self::RandomIndex => location.of::<random_index::Conf>().random_index,
        }
    }
}

/// As many as [`Bound`] has numbers for.
const _: () = assert!(Part::ALL.len() <= 32);

/// What the phases have to do in a location.
pub fn bound(location: &LocationConf) -> Bound {
    Part::ALL.into_iter().filter(|part| part.is_on(location)).map(|part| part as u8).collect()
}

/// One pass from the server's script on.
pub fn pass(exchange: &mut Exchange) -> Outcome {
    if exchange.doubt.is_open() {
        // Whose request it is.
        return Outcome::Status(500);
    }
    let conf = Rc::clone(&exchange.conf);
    exchange.pass = Pass::default();
    exchange.location = conf.server(exchange.server).conf;
    // As nginx's module: before any phase, so that neither a redirect to https nor a password keeps an issuer out.
    if let Some(outcome) = challenges::answer(exchange) {
        return outcome;
    }
    take_real_ip(exchange);
    if let Verdict::Done(outcome) = rewrite::in_server(exchange) {
        return outcome;
    }
    match choose_location(exchange) {
        Some(outcome) => outcome,
        None => after_rewrite(exchange),
    }
}

/// A pass that enters the named location `name` directly.
pub fn named_pass(exchange: &mut Exchange, name: &Bytes) -> Outcome {
    let conf = Rc::clone(&exchange.conf);
    let Some(id) = conf.server(exchange.server).locations.named.get(name) else {
        let name = error::verbatim(name);
        error::request(
            exchange,
            Level::Error,
            &format!("could not find named location \"{name}\""),
        );
        return Outcome::Status(500);
    };
    exchange.pass = Pass::default();
    exchange.is_internal = true;
    enter(exchange, *id);
    match rewrite::in_location(exchange) {
        Verdict::Done(outcome) => outcome,
        Verdict::Continue => after_rewrite(exchange),
        Verdict::UriChanged => choose_location(exchange).unwrap_or_else(|| after_rewrite(exchange)),
    }
}

/// Finds a location and runs its script, again while the script changes the path.
fn choose_location(exchange: &mut Exchange) -> Option<Outcome> {
    loop {
        if let Some(outcome) = find_location(exchange) {
            return Some(outcome);
        }
        if !Part::Rewrite.concerns(exchange) {
            return None;
        }
        match rewrite::in_location(exchange) {
            Verdict::Done(outcome) => return Some(outcome),
            Verdict::Continue => return None,
            Verdict::UriChanged => {
                let ends = |exchange: &Exchange| {
                    format!("processing \"{}\"", error::verbatim(&exchange.uri))
                };
                if let Some(outcome) = count_uri_change(exchange, ends) {
                    return Some(outcome);
                }
            }
        }
    }
}

/// Every rewrite and internal redirect uses up one of a bounded number; `doing` says in nginx's words what is too much.
pub fn count_uri_change(
    exchange: &mut Exchange,
    doing: impl FnOnce(&Exchange) -> String,
) -> Option<Outcome> {
    if exchange.redirects.left == 0 {
        let text = format!("rewrite or internal redirection cycle while {}", doing(exchange));
        error::request(exchange, Level::Error, &text);
        exchange.redirects.is_cycle = true;
        return Some(Outcome::Status(500));
    }
    exchange.redirects.left -= 1;
    None
}

/// Enters a location, however it was come to: its `limit_except` holds for the methods it does not list. As nginx: where
/// it ends the connection, no later location keeps it.
fn enter(exchange: &mut Exchange, id: LocationId) {
    let method = exchange.request.method_text();
    exchange.location = match &exchange.conf.location(id).limit_except {
        Some((methods, other)) if !methods.iter().any(|allowed| allowed == method) => *other,
        _ => id,
    };
    if !exchange.request.is_multiplexed() {
        exchange.keep_alive &= keep_alive::is_allowed(exchange);
    }
}

/// Finds the location of the path, and enters it.
fn find_location(exchange: &mut Exchange) -> Option<Outcome> {
    let conf = Rc::clone(&exchange.conf);
    let mut lacks_slash = false;
    let id = match find_config::location(exchange) {
        Err(_) => return Some(Outcome::Status(500)),
        Ok(Found::Location(id)) => id,
        Ok(Found::Server) => conf.server(exchange.server).conf,
        // As nginx: what that location says holds for the redirect.
        Ok(Found::LacksSlash(id)) => {
            lacks_slash = true;
            id
        }
    };
    enter(exchange, id);
    let location = conf.location(exchange.location);
    let core = location.http_core();
    if core.internal.0 && !exchange.is_internal {
        return Some(Outcome::Refused(404));
    }
    let max = match location.handler.bounds_bodies() {
        true => 0,
        false => core.client_max_body_size.0,
    };
    if let Some(length) = exchange.request.content_length.filter(|length| max > 0 && *length > max)
    {
        if !exchange.body.is_discarded() {
            let text = format!("client intended to send too large body: {length} bytes");
            error::request(exchange, Level::Error, &text);
            exchange.body.discard();
            return Some(Outcome::Refused(413));
        }
    }
    if lacks_slash {
        return Some(static_file::redirect_to_slash(exchange));
    }
    None
}

fn after_rewrite(exchange: &mut Exchange) -> Outcome {
    take_real_ip(exchange);
    if Part::RequestFields.concerns(exchange) {
        let conf = Rc::clone(&exchange.conf);
        let step = more_headers::apply_to_request(exchange, conf.location(exchange.location).of());
        if let Step::Refuse(status) = step {
            return Outcome::Refused(status);
        }
    }
    // A subrequest was let in with its parent.
    if exchange.role != Role::Request {
        return content(exchange);
    }
    if Part::Limits.concerns(exchange) {
        for phase in [limit_req::pass, limit_conn::pass] {
            match phase(exchange, Counted::All) {
                Step::Next => {}
                Step::Refuse(status) => return Outcome::Refused(status),
                Step::Delay(time) => return Outcome::Wait(Pending::Delay(time)),
            }
            if exchange.doubt.is_open() {
                // Its key.
                return Outcome::Status(500);
            }
        }
    }
    access(exchange)
}

/// Judges a request that is about to reach an upstream, by the limits for these; `None` where there are none. An error: what
/// its client gets.
pub fn before_upstream(exchange: &mut Exchange) -> Option<Judged<'_>> {
    let is_due = exchange.role == Role::Request && Part::UpstreamLimits.concerns(exchange);
    is_due.then(|| -> Judged<'_> {
        Box::pin(async move {
            for phase in [limit_req::pass, limit_conn::pass] {
                match phase(exchange, Counted::ToUpstream) {
                    Step::Next => {}
                    Step::Refuse(status) => return Err(Outcome::Refused(status)),
                    Step::Delay(time) => {
                        if has_left_within(exchange, time).await {
                            return Err(Outcome::Status(499));
                        }
                    }
                }
                if exchange.doubt.is_open() {
                    return Err(Outcome::Status(500));
                }
            }
            Ok(())
        })
    })
}

/// Puts the client's own address in the place of a trusted proxy's.
pub fn take_real_ip(exchange: &mut Exchange) {
    if Part::RealIp.concerns(exchange) {
        let conf = Rc::clone(&exchange.conf);
        realip::apply(exchange, conf.location(exchange.location).of::<realip::Conf>());
    }
}

/// The access phase, as far as it needs no waiting.
fn access(exchange: &mut Exchange) -> Outcome {
    if !Part::Access.concerns(exchange) {
        return content(exchange);
    }
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let is_any = matches!(location.http_core().satisfy, Satisfy::Any);
    let is_asked =
        location.of::<auth_basic::Conf>().is_on() || location.of::<auth_request::Conf>().is_on();
    let (denied, is_decided) = match access::check(exchange, location.of::<access::Conf>()) {
        Permission::Allow => (None, is_any),
        Permission::NoOpinion => (None, false),
        Permission::Refuse(status) => (Some(status), !is_any),
    };
    if is_asked && !is_decided {
        return Outcome::Wait(Pending::Authentication { denied });
    }
    match denied {
        Some(status) => {
            error::request(exchange, Level::Error, "access forbidden by rule");
            Outcome::Refused(status)
        }
        None => content(exchange),
    }
}

fn content(exchange: &mut Exchange) -> Outcome {
    if let Some(outcome) = try_files::choose(exchange) {
        return outcome;
    }
    if exchange.doubt.is_open() {
        return Outcome::Status(500);
    }
    if Part::Mirror.concerns(exchange) {
        if mirror::waits(exchange) {
            return Outcome::Wait(Pending::Mirror);
        }
        mirror::start(exchange);
    }
    handlers::respond(exchange)
}

/// Waits, and looks whether the client leaves meanwhile: nothing is done for one that has.
async fn has_left_within(exchange: &Exchange, time: Duration) -> bool {
    let mut closed = pin!(exchange.body.client_closed());
    let has_left = tokio::select! {
        biased;
        () = &mut closed => true,
        () = tokio::time::sleep(time) => false,
    };
    if has_left {
        error::request(exchange, Level::Info, "client prematurely closed connection");
    }
    has_left
}

/// Waits, and goes on with the phases behind.
pub async fn wait(exchange: &mut Exchange, pending: Pending) -> Outcome {
    match pending {
        Pending::Delay(time) => {
            if has_left_within(exchange, time).await {
                return Outcome::Status(499);
            }
            match limit_conn::pass(exchange, Counted::All) {
                Step::Refuse(status) => Outcome::Refused(status),
                Step::Next | Step::Delay(_) => access(exchange),
            }
        }
        Pending::Content => unreachable!("awaited by the handler"),
        Pending::Mirror => match mirror::read_body(exchange).await {
            Some(outcome) => outcome,
            None => {
                mirror::start(exchange);
                handlers::respond(exchange)
            }
        },
        Pending::Authentication { denied } => match authenticate(exchange, denied).await {
            None => content(exchange),
            Some(status) => {
                if status == 401 {
                    let conf = Rc::clone(&exchange.conf);
                    let delay = conf.location(exchange.location).http_core().auth_delay;
                    if has_left_within(exchange, delay).await {
                        return Outcome::Status(499);
                    }
                }
                Outcome::Refused(status)
            }
        },
    }
}

/// Asks for name and password, and the location that decides; the status of a refusal.
async fn authenticate(exchange: &mut Exchange, mut denied: Option<u16>) -> Option<u16> {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let is_any = matches!(location.http_core().satisfy, Satisfy::Any);
    for is_basic in [true, false] {
        let found = match is_basic {
            true if !location.of::<auth_basic::Conf>().is_on() => continue,
            true => auth_basic::check(exchange).await,
            false if !location.of::<auth_request::Conf>().is_on() => continue,
            false => Box::pin(auth_request::check(exchange)).await,
        };
        exchange.pass.is_let_in_by_credentials |= found == Permission::Allow;
        match found {
            Permission::Allow if is_any => {
                exchange.challenges.clear();
                return None;
            }
            Permission::Allow | Permission::NoOpinion => {}
            // As nginx: the challenge is sent also if another check refused.
            Permission::Refuse(401 | 403) if is_any && denied == Some(401) => {}
            Permission::Refuse(status @ (401 | 403)) if is_any => denied = Some(status),
            Permission::Refuse(status) => return Some(status),
        }
    }
    denied
}
