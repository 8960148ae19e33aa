//! What the whole server does, for parts of it that may not know the whole: functions that the assembly puts here.

use super::Exchange;
use super::figures::Section;
use super::outcome::{Outcome, Pending, Progress};
use super::response::Response;
use super::stream::Stream;
use super::variables::Variable;
use crate::base::report::Report;
use crate::exchange::conf::{Config, WorkerConf};
use bytes::Bytes;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Something that comes later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A response, or the status under which a connection would close without one.
pub type Answer = Result<Box<Response>, u16>;

/// Whether a request may go on; else what its client gets.
pub type Judged<'a> = Later<'a, Result<(), Outcome>>;

/// Lines of a head.
pub type FieldLines = Rc<[(Bytes, Bytes)]>;

/// Those of no head: a list that all have together.
pub fn no_fields() -> FieldLines {
    thread_local! {
        static NONE: FieldLines = FieldLines::default();
    }
    NONE.with(Rc::clone)
}

/// The way of a request through the server.
pub struct Engine {
    /// Runs the phases until there is a response or something to wait for.
    pub start: fn(&mut Exchange) -> Progress,
    /// Goes on with what was awaited.
    pub resume: fn(&mut Exchange, Outcome) -> Progress,
    /// The part of a request that waits.
    pub run: for<'a> fn(&'a mut Exchange, Pending) -> Later<'a, Outcome>,
    /// The content phase of a location without a handler: indexes, listings, files. Not for methods that may change them.
    pub files: fn(&mut Exchange) -> Outcome,
    /// The response, however long it takes; the status under which a connection would close without one.
    pub whole: for<'a> fn(&'a mut Exchange) -> Later<'a, Answer>,
    /// The same once more, from the content phase on.
    pub content_again: for<'a> fn(&'a mut Exchange) -> Later<'a, Answer>,
    /// The status and the content of a subrequest, as it becomes a part of another response.
    pub content: for<'a> fn(&'a mut Exchange) -> Later<'a, (u16, Stream)>,
    /// Passes a response through every filter.
    pub filter: fn(&mut Exchange, &mut Response),
    /// Computes the fields behind the content, when that was sent.
    pub add_trailers: fn(&mut Exchange),
    /// The metrics of all modules.
    pub report: fn(&Config) -> Report,
    /// What `api` can show.
    pub sections: fn() -> Vec<&'static Section>,
    /// The request is over: counts it, and writes the access log.
    pub log: fn(&mut Exchange),
    /// Puts the client's own address in the place of a trusted proxy's (`real_ip_header`).
    pub take_real_ip: fn(&mut Exchange),
    /// Judges a request that is about to reach an upstream; an error is what its client gets. `None`: nothing limits these.
    pub before_upstream: for<'a> fn(&'a mut Exchange) -> Option<Judged<'a>>,
    /// Whether what an upstream would be asked for is refused to all clients, by what is said beside it on the disk.
    pub is_forbidden: fn(&Exchange) -> bool,
    /// The variable of a name that the server computes.
    pub variable: fn(&str) -> Option<&'static Variable>,
    /// Purges what an answer asks for in its `X-Accel-Purge` fields.
    pub purge_by_answer: for<'a> fn(&'a mut Exchange, FieldLines) -> Later<'a, ()>,
}

impl Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// The worker that a connection belongs to.
pub trait Host: Debug {
    /// The configuration for the next request.
    fn conf(&self) -> Rc<WorkerConf>;

    /// Whether connections are to end.
    fn is_stopping(&self) -> bool;

    /// Is ready when the worker stops or has another configuration.
    fn changed(self: Rc<Self>) -> Later<'static, ()>;
}
