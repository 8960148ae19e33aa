//! Directives of nginx's http core module.

mod values;

pub use values::*;

use super::directive::*;
use super::env::Env;
use super::settings::silent;
use super::types::{Buffers, HashSize, LongTime, Offset, Size, TempPath, Templates, hash_size};
use crate::base::limits;
use crate::config::module::Module;
use crate::exchange::conf::LocationConf;
use crate::exchange::request_body::{BodyRules, Name, PieceBounds};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use yorozu_upstream::Resolver;

/// The module.
pub const MODULE: Module =
    Module::new("http_core", || [DIRECTIVES, OTHERS, IGNORED].concat()).with(&[silent::<Draft>]);

settings! {
    inherit = Draft::inherit, check = check;
    /// Whether redirects made by the server name scheme, host and port.
    absolute_redirect: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// Delay of 401 responses, against timing attacks.
    auth_delay: Duration = "0s", ONE, HTTP_SERVER_LOCATION;
    /// Whether HTTP/1.1 bodies of unknown length are sent chunked.
    chunked_transfer_encoding: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// Bytes of a request body kept in memory before it goes to a file.
    client_body_buffer_size: Size = "16k", ONE, HTTP_SERVER_LOCATION;
    /// Whether request bodies always go to a file.
    client_body_in_file_only: InFileOnly = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether the body is kept in one buffer; here it always is.
    client_body_in_single_buffer: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Folder for request bodies in files.
    client_body_temp_path: TempPath = "client_body_temp", ONE_TO_FOUR, HTTP_SERVER_LOCATION;
    /// Time between two reads of the request body.
    client_body_timeout: Duration = "60s", ONE, HTTP_SERVER_LOCATION;
    /// Buffer for the request head; a longer one uses large_client_header_buffers.
    client_header_buffer_size: Size = "1k", ONE, HTTP | SERVER;
    /// Time to receive the whole request head.
    client_header_timeout: Duration = "60s", ONE, HTTP | SERVER;
    /// Largest request body; 0 for no limit. Larger ones get 413.
    client_max_body_size: Offset = "1m", ONE, HTTP_SERVER_LOCATION;
    /// Memory pool of a connection.
    connection_pool_size: PoolSize = "512", ONE, HTTP | SERVER;
    /// Type of files whose extension is not in `types`.
    default_type: Bytes = "text/plain", ONE, HTTP_SERVER_LOCATION;
    /// Pages shown for errors, or redirects in their place.
    error_page: Vec<ErrorPage> = none, TWO_OR_MORE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Whether static files get an ETag.
    etag: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// How If-Modified-Since is compared.
    if_modified_since: IfModifiedSince = "exact", ONE, HTTP_SERVER_LOCATION;
    /// Whether headers with invalid names are dropped instead of passed on.
    ignore_invalid_headers: bool = "on", ONE, HTTP | SERVER;
    /// Only internal redirects may enter; other requests get 404.
    internal: Present = none, NONE, LOCATION;
    /// Browsers that get no keep-alive after POST.
    keepalive_disable: KeepaliveDisable = "msie6", ONE_OR_TWO, HTTP_SERVER_LOCATION;
    /// Requests per connection.
    keepalive_requests: u64 = "1000", ONE, HTTP_SERVER_LOCATION;
    /// How long a connection may live before it is closed after a request.
    keepalive_time: Duration = "1h", ONE, HTTP_SERVER_LOCATION;
    /// How long an idle connection stays open, and what the Keep-Alive header says.
    keepalive_timeout: KeepaliveTimeout = "75s", ONE_OR_TWO, HTTP_SERVER_LOCATION;
    /// Number and size of buffers for long request heads: each line must fit in one buffer.
    large_client_header_buffers: Buffers = "4 8k", TWO, HTTP | SERVER;
    /// Bytes per second to one client.
    limit_rate: Rate = "0", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Bytes sent before limit_rate applies.
    limit_rate_after: Rate = "0", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Whether unread data from the client is read before closing.
    lingering_close: LingeringClose = "on", ONE, HTTP_SERVER_LOCATION;
    /// Maximum lingering time.
    lingering_time: Duration = "30s", ONE, HTTP_SERVER_LOCATION;
    /// Longest wait for more data while lingering.
    lingering_timeout: Duration = "5s", ONE, HTTP_SERVER_LOCATION;
    /// Whether missing files are logged as errors.
    log_not_found: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// Maximum number of headers in a request.
    max_headers: u64 = "1000", ONE, HTTP | SERVER;
    /// Maximum number of ranges in a request; with more, the whole response is sent.
    max_ranges: u64 = "18446744073709551615", ONE, HTTP_SERVER_LOCATION;
    /// Whether adjacent slashes in a path count as one.
    merge_slashes: bool = "on", ONE, HTTP | SERVER;
    /// Comments that keep old MSIE from replacing short error pages.
    msie_padding: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// Refreshes instead of redirects for old MSIE.
    msie_refresh: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether redirects made by the server name the port.
    port_in_redirect: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// Whether error pages may have error pages.
    recursive_error_pages: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether connections that timed out, or that `return 444` closes, are reset, which frees their buffers at once.
    reset_timedout_connection: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Name servers for names in variables: addresses, valid=, ipv4=, ipv6=.
    resolver: Option<Resolver> = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Time to wait for a name server's response.
    resolver_timeout: Duration = "30s", ONE, HTTP_SERVER_LOCATION;
    /// Folder that files are served from.
    root: Root = "html", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Whether all or any of the access modules must allow access.
    satisfy: Satisfy = "all", ONE, HTTP_SERVER_LOCATION;
    /// Time between two writes of the response.
    send_timeout: Duration = "60s", ONE, HTTP_SERVER_LOCATION;
    /// Whether files are sent without passing through this process.
    sendfile: bool = "off", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Maximum bytes of a file sent in one call.
    sendfile_max_chunk: Size = "2m", ONE, HTTP_SERVER_LOCATION;
    /// Whether redirects name the server's primary name instead of the requested host.
    server_name_in_redirect: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether the version is shown.
    server_tokens: ServerTokens = "on", ONE, HTTP_SERVER_LOCATION;
    /// Whether small writes are sent without delay (TCP_NODELAY); here they always are.
    tcp_nodelay: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// Whether a head and the start of a file share a packet; here they always do.
    tcp_nopush: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Files to look for, and where to go when none exists.
    try_files: Option<TryFiles> = none, TWO_OR_MORE, SERVER | LOCATION;
    /// Whether header names with underscores are valid.
    underscores_in_headers: bool = "off", ONE, HTTP | SERVER;
    /// Whether a file is refused if its path has symbolic links, or links to another owner's file.
    disable_symlinks: DisableSymlinks = "off", ONE_OR_TWO, HTTP_SERVER_LOCATION;
    /// Extensions and their MIME types.
    types: Types = "", NONE, 0;
    /// Open files kept between requests.
    open_file_cache: OpenFileCache = "off", ONE_OR_TWO, HTTP_SERVER_LOCATION;
    /// Whether failed lookups are kept too.
    open_file_cache_errors: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Uses during the inactive time that keep a file open.
    open_file_cache_min_uses: u64 = "1", ONE, HTTP_SERVER_LOCATION;
    /// How long a kept file is trusted before it is checked again.
    open_file_cache_valid: LongTime = "60s", ONE, HTTP_SERVER_LOCATION;
    /// Size above which files are read without the system's page cache; accepted, not done.
    directio: OffOrSize = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether subrequests are written to the access log, too.
    log_subrequest: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Values that, if none is empty or 0, let 103 responses from upstreams pass to the client.
    early_hints: Templates = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
}

/// As nginx: a pool is no larger than the buffers that are taken from it.
fn check(conf: &Conf, _: &Env) -> Result<(), ValueError> {
    if conf.large_client_header_buffers.size >= conf.connection_pool_size.0 {
        return Ok(());
    }
    Err(ValueError::new(
        "the \"large_client_header_buffers\" size must be equal to or greater than \"connection_pool_size\"",
    ))
}

macro_rules! ignored {
    ($( $name:literal: $ty:ty, $contexts:expr, $arity:ident, $why:literal, $doc:literal; )*) => {
        &[ $( Directive::row($name, $contexts, Arity::$arity, Action::Ignored($why, once::<$ty>), $doc), )* ]
    };
}

/// Settings of nginx's memory and I/O layout that this program does not have.
pub const IGNORED: &[Directive] = ignored! {
    "aio": Aio, HTTP_SERVER_LOCATION, ONE, "file reads that may block have their own threads", "Asynchronous file reads.";
    "aio_write": bool, HTTP_SERVER_LOCATION, ONE, "file writes have their own threads", "Asynchronous file writes.";
    "directio_alignment": Size, HTTP_SERVER_LOCATION, ONE, "directio is not done", "Alignment for directio.";
    "keepalive_min_timeout": Duration, HTTP_SERVER_LOCATION, ONE, "only keepalive_timeout closes idle connections", "Minimum lifetime of idle connections.";
    "output_buffers": Buffers, HTTP_SERVER_LOCATION, TWO, "files are read in pieces of a fixed size", "Buffers for reading files.";
    "postpone_output": Size, HTTP_SERVER_LOCATION, ONE, "output is written as soon as it is available", "Minimum bytes before a write.";
    "read_ahead": Size, HTTP_SERVER_LOCATION, ONE, "the kernel decides", "Read-ahead of files.";
    "request_pool_size": PoolSize, HTTP | SERVER, ONE, "there are no memory pools", "Memory pool of a request.";
    "send_lowat": Size, HTTP_SERVER_LOCATION, ONE, "the kernel decides", "Minimum bytes per send.";
    "server_names_hash_bucket_size": u64, HTTP, ONE, "hash tables size themselves", "Bucket size of the hash of server names.";
    "server_names_hash_max_size": u64, HTTP, ONE, "hash tables size themselves", "Size of the hash of server names.";
    "subrequest_output_buffer_size": Size, HTTP_SERVER_LOCATION, ONE, "there are no buffered subrequests", "Buffer of a subrequest.";
    "variables_hash_bucket_size": HashSize, HTTP, ONE, "hash tables size themselves", "Bucket size of the hash of variables.";
    "variables_hash_max_size": HashSize, HTTP, ONE, "hash tables size themselves", "Size of the hash of variables.";
    "referer_hash_bucket_size": u64, SERVER | LOCATION, ONE, "hash tables size themselves", "Bucket size of the hash of valid referers.";
    "referer_hash_max_size": u64, SERVER | LOCATION, ONE, "hash tables size themselves", "Size of the hash of valid referers.";
    "map_hash_bucket_size": u64, HTTP, ONE, "hash tables size themselves", "Bucket size of a map's hash.";
    "map_hash_max_size": u64, HTTP, ONE, "hash tables size themselves", "Size of a map's hash.";
};

/// Rows that are no plain settings.
pub const OTHERS: &[Directive] = &[
    Directive::row(
        "types_hash_bucket_size",
        HTTP_SERVER_LOCATION,
        Arity::ONE,
        Action::Ignored("hash tables size themselves", hash_size),
        "Bucket size of the hash of types.",
    ),
    Directive::row(
        "types_hash_max_size",
        HTTP_SERVER_LOCATION,
        Arity::ONE,
        Action::Ignored("hash tables size themselves", hash_size),
        "Size of the hash of types.",
    ),
    Directive::row(
        "server",
        HTTP,
        Arity::NONE,
        Action::Open(super::loader::server),
        "Opens a virtual server.",
    ),
    Directive::row(
        "location",
        SERVER | LOCATION,
        Arity::ONE_OR_TWO,
        Action::Open(super::loader::location),
        "Opens a block of settings for some of the paths.",
    ),
    Directive::row(
        "limit_except",
        LOCATION,
        Arity::ONE_OR_MORE,
        Action::Open(super::loader::limit_except),
        "Limits methods other than those named.",
    ),
    Directive::row(
        "types",
        HTTP_SERVER_LOCATION,
        Arity::NONE,
        Action::Open(types),
        "Extensions and their MIME types.",
    ),
    Directive::row(
        "alias",
        LOCATION,
        Arity::ONE,
        Action::Set(alias),
        "Folder that replaces the location's prefix.",
    ),
    Directive::row(
        "listen",
        SERVER,
        Arity::ONE_OR_MORE,
        Action::Set(super::listen::listen),
        "Address and port, or socket, of a server.",
    ),
    Directive::row(
        "server_name",
        SERVER,
        Arity::ONE_OR_MORE,
        Action::Set(super::listen::server_name),
        "Names of a server.",
    ),
    Directive::row(
        "post_action",
        HTTP_SERVER_LOCATION,
        Arity::ONE,
        Action::Refused("requests after the response are not made"),
        "A request made after the response.",
    ),
];

fn alias(block: &mut super::block::Block, args: &Args<'_>) -> Result<(), ValueError> {
    use super::block::LocationName;
    block.drafts.of::<Draft>().root.set(args)?;
    let mut root = block.drafts.of::<Draft>().root.written().expect("just set").clone();
    root.replaced = match &block.name {
        LocationName::Exact(path) | LocationName::Prefix { path, .. } => Some(path.clone()),
        // The folder's text holds captures.
        LocationName::Regex(_) => None,
        LocationName::Named(_) => {
            return Err(ValueError::new(
                "the \"alias\" directive cannot be used inside the named location",
            ));
        }
        LocationName::Unnamed => Some(Bytes::new()),
    };
    block.drafts.of::<Draft>().root.replace(root);
    Ok(())
}

fn types(
    loader: &mut super::loader::Loader<'_>,
    block: &mut super::block::Block,
    directive: &yorozu_conf::Directive,
) -> Result<(), yorozu_conf::ConfError> {
    // Several blocks are one.
    let written = block.drafts.of::<Draft>().types.written();
    let mut types = written.map_or_else(HashMap::new, |types| HashMap::clone(&types.0));
    for line in super::loader::rows(directive)? {
        let mime = line.name.clone();
        for extension in &line.args {
            let extension = Bytes::from(extension.to_ascii_lowercase());
            if let Some(old) = types.insert(extension.clone(), mime.clone()) {
                loader.env.warn(format!(
                    "duplicate extension \"{}\", content type: \"{}\", previous content type: \"{}\" in {}",
                    String::from_utf8_lossy(&extension),
                    String::from_utf8_lossy(&mime),
                    String::from_utf8_lossy(&old),
                    line.at
                ));
            }
        }
    }
    if types.len() > limits::TYPES_MAX {
        return Err(ValueError(format!("more than {} types", limits::TYPES_MAX)).at(&directive.at));
    }
    block.drafts.of::<Draft>().types.replace(Types(Arc::new(types)));
    Ok(())
}

impl LocationConf {
    /// The settings of nginx's core module.
    #[inline]
    pub fn http_core(&self) -> &Conf {
        let core: &Arc<Conf> = self.core.downcast_ref().expect("load puts it there");
        core
    }
}

impl Conf {
    /// How a request body is read as a whole.
    pub fn body_rules(&self) -> BodyRules<'_> {
        BodyRules {
            timeout: self.client_body_timeout,
            buffer_bytes: self.client_body_buffer_size.bytes(),
            body_bytes_max: self.client_max_body_size.0,
            in_file: match self.client_body_in_file_only {
                InFileOnly::Off => Name::None,
                InFileOnly::Clean => Name::Goes,
                InFileOnly::On => Name::Stays,
            },
            folder: &self.client_body_temp_path.0,
        }
    }

    /// How a body is sent on while it arrives; a gateway holds this many bytes of it beside the buffer.
    pub fn piece_bounds(&self, gateway_buffer_bytes: usize) -> PieceBounds {
        let buffer_bytes = self.client_body_buffer_size.bytes();
        PieceBounds {
            held_bytes: buffer_bytes.saturating_add(gateway_buffer_bytes),
            timeout: self.client_body_timeout,
            buffer_bytes,
            body_bytes_max: self.client_max_body_size.0,
        }
    }
}
