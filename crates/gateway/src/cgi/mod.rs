//! What applications behind a gateway interface have in common, by whatever protocol they are asked: parameters, and
//! an answer with the head of a CGI program.

pub mod codec;
pub mod head;
pub mod params;

use crate::protocol::call::{Call, Framing, Talk};
use crate::protocol::family::Family;
use bytes::Bytes;
use codec::reader;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_upstream::TlsOptions;

/// Room for a request before it has to grow; chosen: most are shorter.
pub const REQUEST_BYTES: usize = 2048;

/// How the names of parameters that hold a client's field begin.
const FIELD_START: &[u8] = b"HTTP_";

/// `*_param name value [if_not_empty]`
#[derive(Clone, Debug)]
pub struct Param {
    pub name: Bytes,
    pub value: Template,
    pub is_if_not_empty: bool,
    /// Whether it is `CONTENT_LENGTH`, whose value what is sent decides.
    pub is_content_length: bool,
    /// Whether it takes the place of one of the client's fields: its name begins with `HTTP_`.
    pub is_of_field: bool,
    /// Whether it only takes that field away: as nginx, an empty value that no variable spells is not sent.
    pub is_only_removal: bool,
}

impl AsRef<Self> for Param {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Setting for Param {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let is_if_not_empty = match args.word(2) {
            b"" => false,
            b"if_not_empty" => true,
            other => return Err(args.invalid_parameter(other)),
        };
        let name = args.words[0].clone();
        let is_of_field = name.len() > FIELD_START.len() && name.starts_with(FIELD_START);
        Ok(Self {
            value: Template::compile(args.word(1), args.env)?,
            is_only_removal: is_of_field && args.word(1).is_empty(),
            is_if_not_empty,
            is_content_length: &name[..] == b"CONTENT_LENGTH",
            is_of_field,
            name,
        })
    }
}

/// A request over a connection of its own: without frames, and the close ends the answer.
pub struct Plain {
    /// What goes before the content.
    pub request: Vec<u8>,
    /// Whether it asks if the stored page is still good.
    pub validates: bool,
    pub content: Content,
    pub tls: Option<TlsOptions>,
    pub scheme: &'static str,
}

impl Plain {
    /// What it makes of the exchange, in a location that speaks a protocol of this family.
    pub fn call(self, exchange: &Exchange, location: &LocationConf, family: &Family) -> Call {
        let Self { mut request, validates, content, tls, scheme } = self;
        if let Content::Memory(body) = &content {
            request.extend_from_slice(body);
        }
        Call {
            request: request.into(),
            validates,
            framing: Framing::PLAIN,
            content,
            talk: Talk::Apart(reader(exchange, location, family)),
            catch_stderr: Vec::new(),
            line: None,
            may_keep: false,
            tls,
            scheme,
            uri: 0..0,
        }
    }
}
