//! FastCGI: the mapping from an exchange to the protocol, and its own directives.

mod codec;
mod params;

use codec::codec;
use params::request;

use super::Handler;
use super::gateway::{self, Call, Framing, Protocol};
use crate::config::block::Block;
use crate::config::compiled::LocationConf;
use crate::config::directive::*;
use crate::config::env::Env;
use crate::config::regex::Regex;
use crate::config::template::Template;
use crate::connection::body::Content;
use crate::exchange::Exchange;
use bytes::Bytes;
use std::sync::Arc;

/// The shared directives under this protocol's prefix.
pub struct Family;

impl gateway::Family for Family {
    const PREFIX: &'static str = "fastcgi";
    const TEMP_PATH: &'static str = "fastcgi_temp";
    fn draft(block: &mut Block) -> &mut gateway::Draft {
        &mut block.fastcgi.gateway
    }
}

/// `fastcgi_param name value [if_not_empty]`
#[derive(Clone, Debug)]
pub struct Param {
    pub name: Bytes,
    pub value: Template,
    pub is_if_not_empty: bool,
}

impl Setting for Param {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let is_if_not_empty = match args.word(2) {
            b"" => false,
            b"if_not_empty" => true,
            other => return Err(args.invalid_parameter(other)),
        };
        Ok(Self {
            name: args.words[0].clone(),
            value: Template::compile(args.word(1), args.env)?,
            is_if_not_empty,
        })
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

mod own {
    use super::{Param, SplitPathInfo};
    use crate::config::directive::*;
    use bytes::Bytes;

    settings! {
        in fastcgi;
        /// File name appended to paths that end in a slash.
        fastcgi_index: Bytes = none, ONE, HTTP_SERVER_LOCATION;
        /// Whether the connection stays open; useful with `keepalive` in the upstream block.
        fastcgi_keep_conn: bool = "off", ONE, HTTP_SERVER_LOCATION;
        /// A parameter for the application.
        fastcgi_param: Vec<Param> = none, TWO_OR_THREE, HTTP_SERVER_LOCATION;
        /// Splits the path into $fastcgi_script_name and $fastcgi_path_info.
        fastcgi_split_path_info: Option<SplitPathInfo> = none, ONE, LOCATION;
        /// A text in the application's messages that counts as a failure.
        fastcgi_catch_stderr: Vec<Bytes> = none, ONE, HTTP_SERVER_LOCATION;
    }
}

pub use own::DIRECTIVES;

/// What one block says about FastCGI.
#[derive(Clone, Default)]
pub struct Draft {
    own: own::Draft,
    pub gateway: gateway::Draft,
}

/// FastCGI's settings in one location.
#[derive(Clone)]
pub struct Conf {
    own: own::Conf,
    pub gateway: gateway::Conf,
}

impl std::ops::Deref for Draft {
    type Target = own::Draft;
    fn deref(&self) -> &own::Draft {
        &self.own
    }
}

impl std::ops::DerefMut for Draft {
    fn deref_mut(&mut self) -> &mut own::Draft {
        &mut self.own
    }
}

impl std::ops::Deref for Conf {
    type Target = own::Conf;
    fn deref(&self) -> &own::Conf {
        &self.own
    }
}

impl Draft {
    /// Takes over what the enclosing block says where this one is silent.
    pub fn inherit(&mut self, outer: &Self) {
        self.own.inherit(&outer.own);
        self.gateway.inherit(&outer.gateway);
    }
}

impl Conf {
    /// Applies the defaults.
    pub fn compile(draft: &Draft, env: &Env) -> Result<Self, ValueError> {
        Ok(Self {
            own: own::Conf::compile(&draft.own, env)?,
            gateway: gateway::Conf::compile::<Family>(&draft.gateway, env)?,
        })
    }
}

/// Rows that are no plain settings.
pub const OTHERS: &[Directive] = &[
    Directive::row(
        "fastcgi_cache_path",
        HTTP,
        Arity::TWO_OR_MORE,
        Action::Set(crate::cache::directives::cache_path),
        "Folder, name and bounds of a cache zone; `memory=` bounds its memory tier.",
    ),
    Directive::row(
        "fastcgi_pass",
        LOCATION | LOCATION_IF,
        Arity::ONE,
        Action::Set(pass),
        "Address of the FastCGI server, or the name of an upstream block.",
    ),
];

fn pass(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    if block.handler.is_some() {
        return Err(args.duplicate());
    }
    let address = Template::compile(args.word(0), args.env)?;
    block.handler =
        Some(Handler::Gateway(Protocol::Fastcgi(Arc::new(gateway::Target::new(address, 0)))));
    Ok(())
}

/// What FastCGI makes of an exchange with this content.
pub fn call(exchange: &mut Exchange, location: &LocationConf, content: Content) -> Call {
    let conf = &location.fastcgi;
    let (request, validates) = request(exchange, location, &content);
    Call {
        request: request.into(),
        validates,
        framing: Framing::Stdin,
        content,
        codec: Box::new(codec(conf.gateway.buffer_size.bytes())),
        catch_stderr: conf.fastcgi_catch_stderr.clone(),
        is_pipelined: false,
        may_keep: conf.fastcgi_keep_conn,
        tls: None,
        scheme: "fastcgi://",
        uri: Vec::new(),
    }
}

/// `$fastcgi_script_name`
pub fn script_name(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let conf = &exchange.conf.location(exchange.location).fastcgi;
    let split =
        conf.fastcgi_split_path_info.as_ref().and_then(|split| split.0.captures(&exchange.uri));
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
    let conf = &exchange.conf.location(exchange.location).fastcgi;
    let split =
        conf.fastcgi_split_path_info.as_ref().and_then(|split| split.0.captures(&exchange.uri));
    if let Some(captures) = split {
        out.extend_from_slice(captures.get(2).unwrap_or_default());
    }
    true
}
