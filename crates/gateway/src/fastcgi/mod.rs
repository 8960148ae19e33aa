//! FastCGI: the mapping from an exchange to the protocol, and its own directives.

mod codec;

use super::cgi::Param;
use super::cgi::params::{Own, Pairs, each_set, put};
use super::pass::{self, Shared};
use super::protocol::call::{Call, Framing, Talk};
use super::protocol::codec::{Asked, Reader};
use super::protocol::family::{Family, Spoken};
use super::protocol::target::Target;
use super::protocol::{Protocol, SetTo};
use crate::cache::settings;
use crate::cgi::REQUEST_BYTES;
use bytes::Bytes;
use codec::codec;
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::regex::{Captures, Regex, Undecided};
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::variables::{Row, Variable};
use yorozu_wire::fastcgi::{
    CONTENT_BYTES_MAX, PairStart, RecordKind, begin_request, pair, pair_with, stdin_head, stream,
    stream_with,
};

/// The module.
pub const MODULE: Module =
    Module::new("http_fastcgi", || [&pass::rows_of::<Fastcgi>(), DIRECTIVES, OTHERS].concat())
        .with(&[silent::<Draft>, silent::<settings::Shared<Fastcgi>>, silent::<Shared<Fastcgi>>])
        .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[
    ("fastcgi_path_info", Variable::Builtin(path_info)),
    ("fastcgi_script_name", Variable::Builtin(script_name)),
];

/// What its directives have in common with those of other gateways.
pub static FAMILY: Family = Family::new("fastcgi", "fastcgi_temp");

/// What `fastcgi_pass` says.
#[derive(Debug)]
pub struct Fastcgi(Target);

impl Spoken for Fastcgi {
    fn family() -> &'static Family {
        &FAMILY
    }
}

impl Protocol for Fastcgi {
    fn target(&self) -> Option<&Target> {
        Some(&self.0)
    }

    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn may_keep(&self, location: &LocationConf) -> bool {
        location.of::<Conf>().fastcgi_keep_conn
    }

    /// Records have no length of the whole. PHP wants one all the same: `fastcgi_request_buffering chunked`.
    fn takes_chunked(&self, _location: &LocationConf) -> bool {
        true
    }

    fn each_set(
        &self,
        location: &LocationConf,
        name: &[u8],
        each: &mut dyn FnMut(SetTo<'_>),
    ) -> bool {
        let params = &location.of::<Conf>().fastcgi_param[..];
        each_set(&Own { family: &FAMILY, params }, location, name, each)
    }

    fn hidden(&self) -> &'static [&'static [u8]] {
        &[b"status"]
    }

    fn call(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        content: Content,
    ) -> Result<Call, u16> {
        let conf = location.of::<Conf>();
        let (request, validates) = request(exchange, location, &content);
        let head_bytes_max = pass::head_bytes_max(location, &FAMILY);
        let asked = Asked { head_bytes_max, ..Asked::default() };
        Ok(Call {
            request: request.into(),
            validates,
            framing: STDIN,
            content,
            talk: Talk::Apart(Reader { asked, make: |asked| codec(asked.head_bytes_max) }),
            catch_stderr: conf.fastcgi_catch_stderr.clone(),
            line: None,
            may_keep: conf.fastcgi_keep_conn,
            tls: None,
            scheme: SCHEME,
            uri: 0..0,
        })
    }
}

const SCHEME: &str = "fastcgi://";

/// Records of the stdin stream; one of no content ends it.
const STDIN: Framing = Framing {
    piece_bytes_max: CONTENT_BYTES_MAX,
    joins: false,
    around: |length, before| stdin_head(before, length),
    end: |out| {
        stdin_head(out, 0);
    },
};

/// The name-value pairs of a stream.
struct Params<'a>(&'a mut Vec<u8>);

impl Pairs<FastcgiParam> for Params<'_> {
    fn put_param(&mut self, param: &FastcgiParam, write: impl FnOnce(&mut Vec<u8>) -> bool) {
        match &param.ready {
            Ready::Whole(pair) => self.0.extend_from_slice(pair),
            Ready::Start(start) => start.put(self.0, write),
        }
    }

    fn put(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool) {
        pair_with(self.0, name, write);
    }
}

/// The request up to its content; with it, if that is in memory. And whether it asks if the stored page is still
/// good.
fn request(exchange: &mut Exchange, location: &LocationConf, content: &Content) -> (Scratch, bool) {
    let conf = location.of::<Conf>();
    let own = Own { family: &FAMILY, params: &conf.fastcgi_param[..] };
    let mut out = Scratch::take();
    out.reserve(REQUEST_BYTES);
    let mut validates = false;
    begin_request(&mut out, conf.fastcgi_keep_conn);
    stream_with(&mut out, RecordKind::Params, |params| {
        validates = put(exchange, location, &own, content, &mut Params(params));
    });
    stream(&mut out, RecordKind::Params, b"");
    match content {
        Content::None => stream(&mut out, RecordKind::Stdin, b""),
        Content::Memory(body) => {
            if !body.is_empty() {
                stream(&mut out, RecordKind::Stdin, body);
            }
            stream(&mut out, RecordKind::Stdin, b"");
        }
        Content::File(..) | Content::Live { .. } => {}
    }
    (out, validates)
}

/// `fastcgi_param`, made ready.
#[derive(Clone, Debug)]
pub struct FastcgiParam {
    param: Param,
    ready: Ready,
}

#[derive(Clone, Debug)]
enum Ready {
    /// No variable stands in its value.
    Whole(Box<[u8]>),
    Start(PairStart),
}

impl AsRef<Param> for FastcgiParam {
    fn as_ref(&self) -> &Param {
        &self.param
    }
}

impl Setting for FastcgiParam {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let param = Param::from_args(args)?;
        let ready = match param.value.as_literal() {
            Some(value) if !param.is_content_length => {
                let mut text = Vec::new();
                if !value.is_empty() || !param.is_if_not_empty {
                    pair(&mut text, &param.name, &value);
                }
                Ready::Whole(text.into())
            }
            _ => Ready::Start(PairStart::new(&param.name)),
        };
        Ok(Self { param, ready })
    }
}

/// `fastcgi_split_path_info`
#[derive(Clone, Debug)]
pub struct SplitPathInfo(pub Regex);

impl Setting for SplitPathInfo {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let regex = Regex::compile(args.word(0), false, args.env)?;
        if regex.groups() < 2 {
            return Err(ValueError(format!("pattern \"{}\" must have 2 captures", args.text(0))));
        }
        Ok(Self(regex))
    }
}

settings! {
    /// File name appended to paths that end in a slash.
    fastcgi_index: Bytes = none, ONE, HTTP_SERVER_LOCATION;
    /// Whether the connection stays open; useful with `keepalive` in the upstream block.
    fastcgi_keep_conn: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// A parameter for the application.
    fastcgi_param: Vec<FastcgiParam> = none, TWO_OR_THREE, HTTP_SERVER_LOCATION;
    /// Splits the path into $fastcgi_script_name and $fastcgi_path_info.
    fastcgi_split_path_info: Option<SplitPathInfo> = none, ONE, HTTP_SERVER_LOCATION;
    /// A text in the application's messages that counts as a failure.
    fastcgi_catch_stderr: Vec<Bytes> = none, ONE, HTTP_SERVER_LOCATION;
}

/// Rows that are no plain settings.
const OTHERS: &[Directive] = &[Directive::row(
    "fastcgi_pass",
    LOCATION | LOCATION_IF,
    Arity::ONE,
    Action::Set(pass),
    "Address of the FastCGI server, or the name of an upstream block.",
)];

fn pass(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let address = Template::compile(args.word(0), args.env)?;
    pass::handle_by(block, Fastcgi(Target::new(address, 0)), args)
}

/// The parts of the path, if it is to be split; where that cannot be told the exchange is in doubt.
fn split_path(exchange: &Exchange, conf: &Conf) -> Result<Option<Captures>, Undecided> {
    let split = conf.fastcgi_split_path_info.as_ref();
    split.map_or(Ok(None), |split| split.0.captures_for(&exchange.uri, exchange))
}

/// `$fastcgi_script_name`
pub fn script_name(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    let Ok(split) = split_path(exchange, conf) else { return false };
    match &split {
        Some(captures) => out.extend_from_slice(captures.get(1).unwrap_or_default()),
        None => out.extend_from_slice(&exchange.uri),
    }
    if out.ends_with(b"/") {
        out.extend_from_slice(&conf.fastcgi_index);
    }
    true
}

/// `$fastcgi_path_info`
pub fn path_info(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    if let Ok(Some(captures)) = split_path(exchange, conf) {
        out.extend_from_slice(captures.get(2).unwrap_or_default());
    }
    true
}
