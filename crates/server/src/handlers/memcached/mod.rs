//! `memcached_pass`: pages that an application put into memcached under their URI.

pub mod pipeline;

use super::Handler;
use super::gateway::{self, BodyStep, Call, Codec, CodecError, Framing, Head, Protocol};
use crate::config::block::Block;
use crate::config::directive::*;
use crate::config::env::Env;
use crate::config::template::Template;
use crate::connection::body::Content;
use crate::exchange::Exchange;
use crate::logging::error::{self, Level};
use bytes::{Bytes, BytesMut};
use pipeline::Answer;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_http::uri::{Escape, escape_into};
use yorozu_wire::memcached::KEY_BYTES_MAX;

/// The shared directives under this protocol's prefix.
pub struct Family;

impl gateway::Family for Family {
    const PREFIX: &'static str = "memcached";
    const TEMP_PATH: &'static str = "memcached_temp";
    fn draft(block: &mut Block) -> &mut gateway::Draft {
        &mut block.memcached_gateway
    }
}

/// Which of the shared directives memcached has, in nginx.
const SHARED: [&str; 9] = [
    "memcached_bind",
    "memcached_buffer_size",
    "memcached_connect_timeout",
    "memcached_next_upstream",
    "memcached_next_upstream_timeout",
    "memcached_next_upstream_tries",
    "memcached_read_timeout",
    "memcached_send_timeout",
    "memcached_socket_keepalive",
];

settings! {
    in memcached;
    /// Bit of a value's flags that says it is stored gzipped; it is sent with Content-Encoding then.
    memcached_gzip_flag: u64 = "0", ONE, HTTP_SERVER_LOCATION;
}

/// Every row of the module.
pub fn rows() -> Vec<Directive> {
    let mut rows = gateway::rows::<Family>();
    rows.retain(|row| SHARED.contains(&&*row.name));
    rows.extend_from_slice(DIRECTIVES);
    rows.push(Directive::row(
        "memcached_pass",
        LOCATION | LOCATION_IF,
        Arity::ONE,
        Action::Set(pass),
        "Address of the memcached server, or the name of an upstream block; the key is $memcached_key.",
    ));
    rows
}

/// What `memcached_pass` says.
#[derive(Debug)]
pub struct Pass {
    pub target: gateway::Target,
    /// `$memcached_key`, which the configuration sets.
    key: Template,
}

fn pass(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    if block.handler.is_some() {
        return Err(args.duplicate());
    }
    let target = gateway::Target::new(Template::compile(args.word(0), args.env)?, 0);
    let key = Template::compile(b"$memcached_key", args.env)?;
    block.handler = Some(Handler::Gateway(Protocol::Memcached(Arc::new(Pass { target, key }))));
    Ok(())
}

/// The shared settings of a location.
///
/// # Errors
/// A default that cannot be read.
pub fn gateway_conf(draft: &gateway::Draft, env: &Env) -> Result<gateway::Conf, ValueError> {
    gateway::Conf::compile::<Family>(draft, env)
}

impl Pass {
    /// What memcached makes of an exchange.
    ///
    /// # Errors
    /// The status the client gets: a method that reads nothing, no key, or one memcached cannot
    /// have.
    pub fn call(&self, exchange: &mut Exchange) -> Result<Call, u16> {
        if !exchange.request.method.is_get_or_head() {
            return Err(405);
        }
        let key = self.key.value(exchange);
        if key.is_empty() {
            let text = "the \"$memcached_key\" variable is not set";
            error::request(exchange, Level::Error, text);
            return Err(500);
        }
        let mut escaped = Vec::with_capacity(key.len());
        escape_into(&mut escaped, &key, Escape::Memcached);
        if escaped.len() > KEY_BYTES_MAX {
            let text = format!("the key is longer than memcached's {KEY_BYTES_MAX} bytes");
            error::request(exchange, Level::Info, &text);
            return Err(404);
        }
        Ok(Call {
            request: escaped.into(),
            framing: Framing::Plain,
            content: Content::None,
            validates: false,
            codec: Box::new(|| Box::new(ValueCodec { body: None })),
            catch_stderr: Vec::new(),
            may_keep: false,
            tls: None,
            scheme: "memcached://",
            uri: Vec::new(),
            is_pipelined: true,
        })
    }
}

/// The head of a page out of memcached, and the page.
pub fn page(answer: Answer, gzip_flag: u64) -> (Head, Bytes) {
    let (flags, body) = match answer {
        Answer::NotFound => return (Head { status: 404, ..Head::default() }, Bytes::new()),
        Answer::Value { flags, body } => (flags, body),
    };
    let mut fields =
        vec![(Bytes::from_static(b"Content-Length"), Bytes::from(body.len().to_string()))];
    if u64::from(flags) & gzip_flag != 0 {
        fields.push((Bytes::from_static(b"Content-Encoding"), Bytes::from_static(b"gzip")));
    }
    (Head { status: 200, reason: None, fields: Rc::new(fields) }, body)
}

/// Hands out a value that is there already.
pub struct ValueCodec {
    pub body: Option<Bytes>,
}

impl Codec for ValueCodec {
    fn read_head(&mut self, _: &mut BytesMut) -> Result<Option<Head>, CodecError> {
        unreachable!("the pipeline reads it")
    }

    fn read_body(&mut self, _: &mut BytesMut) -> Result<BodyStep, CodecError> {
        let body = self.body.take().filter(|body| !body.is_empty());
        Ok(body.map_or(BodyStep::End, BodyStep::Data))
    }

    fn is_whole_at_close(&self) -> bool {
        self.body.is_none()
    }

    fn is_reusable(&self) -> bool {
        false
    }
}
