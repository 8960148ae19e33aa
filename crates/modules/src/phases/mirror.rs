//! `mirror`: the request is made a second time, elsewhere, and what comes of it ignored.

use bytes::Bytes;
use std::rc::Rc;
use yorozu_kernel::base::tasks;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::body_failed::body_failed;
use yorozu_kernel::exchange::outcome::Outcome;

/// The module.
pub const MODULE: Module =
    Module::new("http_mirror", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// `mirror uri | off`, any number of them.
#[derive(Clone, Debug, Default)]
pub struct Mirrors(Vec<Bytes>);

impl Setting for Mirrors {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(match args.word(0) {
            b"off" => Self(Vec::new()),
            _ => Self(vec![args.words[0].clone()]),
        })
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        if self.0.is_empty() || args.word(0) == b"off" {
            return Err(args.duplicate());
        }
        self.0.push(args.words[0].clone());
        Ok(())
    }
}

settings! {
    /// URI that a copy of the request is sent to; several lines send several copies.
    mirror: Mirrors = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether the body is sent there too: it is then read whole first.
    mirror_request_body: bool = "on", ONE, HTTP_SERVER_LOCATION;
}

impl Conf {
    /// Whether anything is mirrored.
    pub fn is_on(&self) -> bool {
        !self.mirror.0.is_empty()
    }
}

/// Whether the request's body must be read before it can be mirrored.
pub fn waits(exchange: &Exchange) -> bool {
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    !conf.mirror.0.is_empty()
        && conf.mirror_request_body
        && !exchange.is_subrequest()
        && !exchange.body.is_empty()
        && !exchange.body.is_finished()
}

/// Reads the body; the outcome of a failure.
pub async fn read_body(exchange: &mut Exchange) -> Option<Outcome> {
    let conf = Rc::clone(&exchange.conf);
    let core = conf.location(exchange.location).http_core();
    let read = Box::pin(exchange.body.read_all(core.body_rules())).await;
    read.err().map(|problem| body_failed(exchange, problem))
}

/// Makes the request a second time, without waiting for it.
///
/// # Source
/// nginx, `ngx_http_mirror_module`.
pub fn start(exchange: &Exchange) {
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    if exchange.is_subrequest() || exchange.is_question() {
        return;
    }
    for path in &conf.mirror.0 {
        let Some(asked) = exchange.subrequest(path) else { return };
        let mut asked = Box::new(asked);
        asked.request.method = exchange.request.method;
        asked.request.method_override = exchange.request.method_override;
        asked.args.clone_from(&exchange.args);
        if conf.mirror_request_body {
            asked.body = exchange.body.copy();
            asked.request.content_length = asked.body.known_length();
        }
        tasks::of_request(async move {
            let (_, mut stream) = (asked.conf.engine.content)(&mut asked).await;
            while let Ok(Some(_)) = stream.next().await {}
        });
    }
}
