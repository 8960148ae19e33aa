//! Directives that every gateway has under its own prefix: `fastcgi_connect_timeout`, and so on.

use super::store::Store;
use crate::cache;
use crate::cache::directives::cache_path;
use crate::protocol::family::{Family, Spoken, family_settings};
use crate::protocol::fault::Conditions;
use crate::protocol::{Gateway, Protocol, spoken_by};
use bytes::Bytes;
use std::net::SocketAddr;
use std::time::Duration;
use yorozu_conf::value;
use yorozu_kernel::base::address;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::http_core::Rate;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::{Buffers, Offset, Size, StoreAccess, TempPath};

/// Has a location's content made by another server, that is spoken to by `protocol`.
///
/// # Errors
/// As nginx: another of the same protocol stands there.
pub fn handle_by<P: Protocol>(
    block: &mut Block,
    protocol: P,
    args: &Args<'_>,
) -> Result<(), ValueError> {
    if block.handler.as_ref().is_some_and(|handler| spoken_by::<P>(&**handler).is_some()) {
        return Err(args.duplicate());
    }
    block.handle_by(Gateway(Box::new(protocol)));
    Ok(())
}

/// Every row that a protocol has in common with others, by name.
pub fn rows_of<P: Spoken>() -> Vec<Directive> {
    let mut all = [rows::<P>(), cache::settings::rows::<P>()].concat();
    all.push(Directive {
        name: format!("{}_cache_path", <P as Spoken>::family().prefix).into(),
        contexts: HTTP,
        arity: Arity::TWO_OR_MORE,
        default: None,
        doc: "Folder, name and bounds of a cache zone; `memory=` bounds its memory tier, `shared=` names one for several nodes.",
        action: Action::Set(cache_path),
    });
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

/// `off`, or the address to connect from, which may hold variables.
#[derive(Clone, Debug, Default)]
pub struct Bind(pub Option<BindAddress>);

/// Where connections come from.
#[derive(Clone, Debug)]
pub struct BindAddress {
    pub address: Template,
    /// The address may be foreign: the client's, for example.
    pub is_transparent: bool,
}

impl Setting for Bind {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let is_transparent = match (args.word(0), args.word(1)) {
            (b"off", b"") => return Ok(Self(None)),
            (_, b"") => false,
            (_, b"transparent") => true,
            (_, other) => return Err(args.invalid_parameter(other)),
        };
        let address = Template::compile(args.word(0), args.env)?;
        if address.as_literal().is_some_and(|text| address::with_port(&text).is_none()) {
            return Err(ValueError(format!("invalid address \"{}\"", args.text(0))));
        }
        if is_transparent {
            args.env.is_transparent.set(true);
        }
        Ok(Self(Some(BindAddress { address, is_transparent })))
    }
}

/// Which bodies of requests are read whole before the upstream is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestBuffering {
    #[default]
    All,
    /// Those whose length the client did not announce.
    Chunked,
    None,
}

impl Setting for RequestBuffering {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let word = args.word(0);
        match value::switch(word) {
            Some(true) => Ok(Self::All),
            Some(false) => Ok(Self::None),
            None if word.eq_ignore_ascii_case(b"chunked") => Ok(Self::Chunked),
            None => Err(args.invalid_value_must_be(word, "\"on\", \"off\" or \"chunked\"")),
        }
    }
}

family_settings! {
    at gateway, check = check;
    /// Address from which upstreams are contacted.
    bind: Bind = none, ONE_OR_TWO;
    /// Buffer for the first part of the response, which holds its head.
    buffer_size: Size = "8k", ONE;
    /// Whether the response is read ahead of a slow client.
    buffering: bool = { buffering }, ONE;
    /// Number and size of buffers for reading ahead.
    buffers: Buffers = "8 8k", TWO;
    /// Bytes that may wait for the client while more is read.
    busy_buffers_size: Option<Size> = none, ONE;
    /// Time to establish a connection.
    connect_timeout: Duration = "60s", ONE;
    /// Response header that is not passed on.
    hide_header: Vec<Bytes> = none, ONE;
    /// Whether the upstream keeps working after the client is gone.
    ignore_client_abort: bool = "off", ONE;
    /// Bytes per second read from the upstream while its response is read ahead.
    limit_rate: Rate = "0", ONE;
    /// Largest temporary file for a response; 0 for none.
    max_temp_file_size: Offset = "1024m", ONE;
    /// Conditions under which the next peer is tried.
    next_upstream: Conditions = "error timeout", ONE_OR_MORE;
    /// Time within which peers may be tried; 0 for no limit.
    next_upstream_timeout: Duration = "0", ONE;
    /// How many peers may be tried; 0 for all.
    next_upstream_tries: u64 = "0", ONE;
    /// Hidden response header that is passed on anyway.
    pass_header: Vec<Bytes> = none, ONE;
    /// Whether the request's body is passed on.
    pass_request_body: bool = "on", ONE;
    /// Whether the request's headers are passed on.
    pass_request_headers: bool = "on", ONE;
    /// Time between two reads of the response.
    read_timeout: Duration = "60s", ONE;
    /// Whether the whole request body is read before the upstream is contacted; `chunked`: only one whose length the client did not announce.
    request_buffering: RequestBuffering = { buffering }, ONE;
    /// Minimum bytes per send; accepted, not done.
    send_lowat: Size = "0", ONE;
    /// Time between two writes of the request.
    send_timeout: Duration = "60s", ONE;
    /// TCP keepalive towards upstreams.
    socket_keepalive: bool = "off", ONE;
    /// Receive buffer of upstream sockets.
    socket_rcvbuf: Option<Size> = none, ONE;
    /// Send buffer of upstream sockets.
    socket_sndbuf: Option<Size> = none, ONE;
    /// Whether responses are stored as files, and where.
    store: Store = none, ONE;
    /// Permissions of stored files.
    store_access: StoreAccess = "user:rw", ONE_OR_MORE;
    /// Bytes written to a temporary file at a time; accepted, the response's own pieces are written.
    temp_file_write_size: Size = "16k", ONE;
    /// Folder for temporary files.
    temp_path: TempPath = { temp_path }, ONE_TO_FOUR;
}

/// Checks what several directives must be to each other.
///
/// # Errors
/// What does not fit together.
fn check(conf: &Conf, family: &Family, _is_used: bool, _env: &Env) -> Result<(), ValueError> {
    /// What nginx's buffers have where nothing is written, as the table above says it of ours.
    const PAGE: u64 = 4096;
    const DEFAULT: u64 = 2 * PAGE;
    let prefix = family.prefix;
    // As nginx: these have one buffer, and no more.
    if matches!(prefix, "grpc" | "memcached") {
        return Ok(());
    }
    let refuse = |name: &str, must: &str| {
        Err(ValueError(format!(
            "\"{prefix}_{name}\" must be {must} the maximum of the value of \"{prefix}_buffer_size\" and one of the \"{prefix}_buffers\""
        )))
    };
    if conf.buffers.count < 2 {
        return Err(ValueError(format!("there must be at least 2 \"{prefix}_buffers\"")));
    }
    let largest = conf.buffer_size.0.max(conf.buffers.size);
    let least = if largest == DEFAULT { PAGE } else { largest };
    if conf.busy_buffers_size.is_some_and(|busy| busy.0 < least) {
        return refuse("busy_buffers_size", "equal to or greater than");
    }
    let busy = conf.busy_buffers_size.map_or(2 * least, |busy| busy.0);
    if busy > (conf.buffers.count - 1) * conf.buffers.size {
        return Err(ValueError(format!(
            "\"{prefix}_busy_buffers_size\" must be less than the size of all \"{prefix}_buffers\" minus one buffer"
        )));
    }
    let piece = conf.temp_file_write_size.0;
    if piece < least && piece != 2 * DEFAULT {
        return refuse("temp_file_write_size", "equal to or greater than");
    }
    let longest = conf.max_temp_file_size.0;
    if longest != 0 && longest < least {
        return refuse(
            "max_temp_file_size",
            "equal to zero to disable temporary files usage or must be equal to or greater than",
        );
    }
    Ok(())
}

impl Conf {
    /// Whether answers are stored as files.
    pub fn stores(&self) -> bool {
        !matches!(self.store, Store::Off)
    }

    /// Options of upstream sockets.
    pub fn socket_options(&self, from: Option<SocketAddr>) -> yorozu_upstream::SocketOptions {
        yorozu_upstream::SocketOptions {
            from,
            transparent: self.bind.0.as_ref().is_some_and(|bind| bind.is_transparent),
            keepalive: self.socket_keepalive,
            send_bytes: self.socket_sndbuf.map(Size::bytes),
            receive_bytes: self.socket_rcvbuf.map(Size::bytes),
        }
    }
}
