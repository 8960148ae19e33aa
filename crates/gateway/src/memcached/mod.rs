//! `memcached_pass`: pages that an application put into memcached under their URI.

pub mod pipeline;

use super::pass::{self, Shared};
use super::protocol::Protocol;
use super::protocol::call::{Call, Framing, Line, LineAnswer, LineBounds, LineFault, Talk};
use super::protocol::codec::{Asked, Head, Reader, Whole};
use super::protocol::family::{Family, Spoken};
use super::protocol::fault::Conditions;
use super::protocol::target::Target;
use crate::cache::settings;
use bytes::Bytes;
use pipeline::Value;
use yorozu_http::uri::{Escape, escape_into};
use yorozu_kernel::base::limits;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::add_word_flags;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_upstream::Peer;
use yorozu_wire::memcached::{GET_BYTES, KEY_BYTES_MAX, VALUE_END_BYTES};

/// The module.
pub const MODULE: Module = Module::new("http_memcached", rows).with(&[
    silent::<Draft>,
    silent::<settings::Shared<Memcached>>,
    silent::<Shared<Memcached>>,
]);

/// What its directives have in common with others'.
static FAMILY: Family = Family::new("memcached", "memcached_temp");

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
    /// Bit of a value's flags that marks it as gzipped; it is then sent with Content-Encoding.
    memcached_gzip_flag: u64 = "0", ONE, HTTP_SERVER_LOCATION;
}

/// Every row of the module.
pub fn rows() -> Vec<Directive> {
    let mut rows = pass::rows_of::<Memcached>();
    rows.retain(|row| SHARED.contains(&&*row.name));
    let own = rows.iter_mut().find(|row| row.name == "memcached_next_upstream");
    own.expect("a shared one").action = Action::Set(next_upstream);
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

/// `memcached_next_upstream`, which has its own words.
fn next_upstream(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    const WORDS: [(&str, Conditions); 6] = [
        ("error", Conditions::ERROR),
        ("timeout", Conditions::TIMEOUT),
        ("denied", Conditions::DENIED),
        ("invalid_response", Conditions::INVALID_HEADER),
        ("not_found", Conditions::HTTP_404),
        ("off", Conditions::OFF),
    ];
    let setting = &mut block.drafts.of::<Shared<Memcached>>().0.next_upstream;
    let mut conditions = setting.written().copied().unwrap_or_default();
    add_word_flags(&mut conditions, args, &WORDS)?;
    setting.replace(conditions);
    Ok(())
}

/// What `memcached_pass` says.
#[derive(Debug)]
pub struct Memcached {
    target: Target,
    /// `$memcached_key`, which the configuration sets.
    key: Template,
}

fn pass(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let target = Target::new(Template::compile(args.word(0), args.env)?, 0);
    let key = Template::compile(b"$memcached_key", args.env)?;
    pass::handle_by(block, Memcached { target, key }, args)
}

impl Spoken for Memcached {
    fn family() -> &'static Family {
        &FAMILY
    }
}

impl Protocol for Memcached {
    fn target(&self) -> Option<&Target> {
        Some(&self.target)
    }

    fn scheme(&self) -> &'static str {
        SCHEME
    }

    /// Its connections are kept by the pipelines.
    fn may_keep(&self, _location: &LocationConf) -> bool {
        false
    }

    fn miss(&self, status: u16) -> Option<&'static str> {
        (status == 404).then_some("the key was not found by memcached")
    }

    /// Values are stored without their type.
    fn says_type(&self) -> bool {
        false
    }

    fn has_fields(&self) -> bool {
        false
    }

    /// A value is whole when it is sent, and memcached cuts none.
    fn forces_ranges(&self) -> bool {
        true
    }

    /// Refused are methods that read nothing, no key, and one that memcached cannot have.
    fn call(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        _content: Content,
    ) -> Result<Call, u16> {
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
        let gzip_flag = location.of::<Conf>().memcached_gzip_flag;
        Ok(Call {
            request: escaped.into(),
            framing: Framing::PLAIN,
            content: Content::None,
            validates: false,
            talk: Talk::Apart(Reader {
                asked: Asked::default(),
                make: |_| Box::new(Whole::default()),
            }),
            catch_stderr: Vec::new(),
            may_keep: false,
            tls: None,
            scheme: SCHEME,
            uri: 0..0,
            line: Some(Box::new(Pipelined { gzip_flag })),
        })
    }
}

const SCHEME: &str = "memcached://";

/// Questions of many requests over one connection; a request is a key.
struct Pipelined {
    gzip_flag: u64,
}

impl Line for Pipelined {
    fn ask<'a>(
        &'a self,
        peer: &'a Peer,
        bounds: LineBounds,
        request: Bytes,
    ) -> Later<'a, Result<LineAnswer, LineFault>> {
        let LineBounds { socket, connect_timeout, idle_timeout, read_timeout } = bounds;
        let patience = limits::PIPELINE_PATIENCE;
        let options = pipeline::Options { socket, connect_timeout, idle_timeout, patience };
        Box::pin(async move {
            let answer = pipeline::get(peer.address(), options, request, read_timeout).await?;
            let received = answer.received as u64;
            let (head, body) = page(answer.value, self.gzip_flag);
            let whole = Whole { body: Some(body), end_bytes: VALUE_END_BYTES };
            Ok(LineAnswer { head, codec: Box::new(whole), received })
        })
    }

    fn sent_bytes(&self, request: &[u8]) -> usize {
        GET_BYTES + request.len()
    }
}

/// The head of a page out of memcached, and the page.
fn page(value: Option<Value>, gzip_flag: u64) -> (Head, Bytes) {
    let Some(Value { flags, body }) = value else {
        return (Head { status: 404, ..Head::default() }, Bytes::new());
    };
    let mut fields =
        vec![(Bytes::from_static(b"Content-Length"), Bytes::from(body.len().to_string()))];
    if u64::from(flags) & gzip_flag != 0 {
        fields.push((Bytes::from_static(b"Content-Encoding"), Bytes::from_static(b"gzip")));
    }
    (Head { status: 200, reason: None, fields: fields.into() }, body)
}
