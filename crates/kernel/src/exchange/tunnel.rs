//! A connection that is joined with another one in the place of a response body.

use super::source::ByteStream;
use bytes::BytesMut;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

/// What passed, in bytes, and how it ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    pub to_client: u64,
    pub to_upstream: u64,
    /// Without what came behind the upstream's head.
    pub from_upstream: u64,
    /// Since the upstream was asked.
    pub time: Duration,
    /// Whether both sides fell silent.
    pub is_timed_out: bool,
}

/// The other side of a connection that was upgraded.
pub trait Tunnel: Debug {
    /// Carries bytes until one side ends; `early` is what the client sent behind its request.
    fn carry(
        self: Box<Self>,
        client: Rc<dyn ByteStream>,
        early: BytesMut,
    ) -> Pin<Box<dyn Future<Output = Carried>>>;
}
