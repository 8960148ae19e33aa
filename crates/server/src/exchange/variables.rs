//! Variables: names to values of an exchange.

use super::{Exchange, UpstreamAttempt, slots};
use crate::config::compiled::Config;
use crate::exchange::request::{Request, append_joined};
use crate::exchange::scratch::Scratch;
use crate::filters::compress::Coding;
use crate::filters::{slice, ssi, userid};
use crate::logging::clock;
use crate::phases::{browser, referer, secure_link};
use bytes::Bytes;
use std::collections::HashMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;
use yorozu_http::field;
use yorozu_wire::h1::Version;
use yorozu_wire::proxy_protocol::ProxyHeader;

/// Computes a value; `false` if the variable has none now.
pub type Getter = fn(&Exchange, &mut Vec<u8>) -> bool;

/// A reference to a variable, resolved when the configuration was read.
#[derive(Clone, Debug)]
pub enum Variable {
    /// One the server computes.
    Builtin(Getter),
    /// `$args`, which `set` may change.
    Args,
    /// `$limit_rate`, which `set` may change.
    LimitRate,
    /// Computed from texts that hold variables themselves.
    OfTexts(fn(&mut Exchange) -> Option<Bytes>),
    /// `$request_method`, which decides what a cache key keeps apart.
    RequestMethod,
    /// One the configuration defines.
    Slot(u16),
    /// `$http_name`
    RequestField(Box<[u8]>),
    /// `$sent_http_name`
    SentField(Box<[u8]>),
    /// `$sent_trailer_name`
    SentTrailer(Box<[u8]>),
    /// `$upstream_http_name`
    UpstreamField(Box<[u8]>),
    /// `$upstream_trailer_name`
    UpstreamTrailer(Box<[u8]>),
    /// `$upstream_cookie_name`
    UpstreamCookie(Box<[u8]>),
    /// `$cookie_name`
    Cookie(Box<[u8]>),
    /// `$arg_name`
    Argument(Box<[u8]>),
    /// `$proxy_protocol_tlv_name`
    ProxyField(Box<str>),
}

/// A variable that a block of the configuration computes: `map`, `geo`, `split_clients`.
pub trait Computed: std::fmt::Debug + Send + Sync {
    fn value(&self, exchange: &mut Exchange) -> Bytes;

    /// Is it computed anew at each use?
    fn is_volatile(&self) -> bool {
        false
    }
}

/// What gives a slot its value, besides `set` and captures.
#[derive(Debug)]
pub struct Definition {
    pub slot: u16,
    pub source: Box<dyn Computed>,
}

/// Names that the configuration uses or defines.
#[derive(Debug, Default)]
pub struct VariableNames {
    slots: HashMap<String, u16>,
    is_defined: Vec<bool>,
    names: Vec<String>,
    /// Does anything speak of an answer's own fields?
    pub has_sent: bool,
}

impl VariableNames {
    /// The variable a name stands for; an unknown name gets a slot, to be defined later.
    pub fn resolve(&mut self, name: &str) -> Variable {
        if let Some(slot) = self.slots.get(name) {
            return Variable::Slot(*slot);
        }
        if let Some(variable) = builtin(name).or_else(|| prefixed(name)) {
            self.has_sent |= matches!(variable, Variable::SentField(_));
            return variable;
        }
        Variable::Slot(self.slot(name))
    }

    fn slot(&mut self, name: &str) -> u16 {
        if let Some(slot) = self.slots.get(name) {
            return *slot;
        }
        let slot = u16::try_from(self.names.len()).expect("a configuration names few variables");
        self.slots.insert(name.to_owned(), slot);
        self.names.push(name.to_owned());
        self.is_defined.push(false);
        slot
    }

    /// The slot of a variable that `set`, `map` or a named capture fills.
    pub fn define(&mut self, name: &str) -> u16 {
        let slot = self.slot(&name.to_ascii_lowercase());
        self.is_defined[usize::from(slot)] = true;
        slot
    }

    /// Is it one the server computes, so that the configuration may not define it?
    pub fn is_reserved(name: &str) -> bool {
        builtin(name).is_some()
    }

    /// A name that is used and never defined.
    pub fn undefined(&self) -> Option<&str> {
        self.is_defined.iter().position(|defined| !defined).map(|slot| &*self.names[slot])
    }

    pub fn into_names(self) -> Vec<String> {
        self.names
    }
}

impl Variable {
    /// Is it `$request_method`?
    pub fn is_request_method(&self) -> bool {
        matches!(self, Self::RequestMethod)
    }

    /// Appends the value; `false` if there is none.
    pub fn append(&self, exchange: &mut Exchange, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Builtin(getter) => getter(exchange, out),
            Self::OfTexts(getter) => {
                if !slots::begin(exchange, *getter as usize, None) {
                    return false;
                }
                let value = getter(exchange);
                exchange.variables.end();
                value.is_some_and(|value| put(out, &value))
            }
            Self::Args => put(out, &exchange.args),
            Self::RequestMethod => put(out, exchange.request.method_text()),
            Self::LimitRate => put_number(out, exchange.limit_rate.unwrap_or(0)),
            Self::Slot(slot) => slots::append(exchange, *slot, out),
            Self::RequestField(name) => match &name[..] {
                b"cookie" => exchange.request.append_cookies(out),
                name => append_joined(named(&exchange.request, name), b", ", out),
            },
            Self::SentField(name) => sent_field(exchange, name, out),
            Self::UpstreamField(name) => {
                append_joined(of(&exchange.upstream_fields, name), b", ", out)
            }
            Self::SentTrailer(name) => append_joined(of(&exchange.sent.trailers, name), b", ", out),
            Self::UpstreamTrailer(name) => {
                append_joined(of(&exchange.upstream_trailers, name), b", ", out)
            }
            Self::UpstreamCookie(name) => {
                let fields = exchange.upstream_fields.iter();
                let mut values = fields
                    .filter(|(n, _)| n.eq_ignore_ascii_case(b"set-cookie"))
                    .filter_map(|(_, v)| set_cookie(v, name));
                values.next().is_some_and(|value| put(out, value))
            }
            Self::Cookie(name) => {
                let mut cookies = exchange.request.values(b"cookie");
                cookies.find_map(|value| field::cookie(value, name)).is_some_and(|v| put(out, v))
            }
            Self::ProxyField(name) => {
                let header = exchange.client.proxied.get();
                header.and_then(|header| header.tlv(name)).is_some_and(|value| put(out, &value))
            }
            Self::Argument(name) => {
                field::argument(&exchange.args, name).is_some_and(|value| put(out, value))
            }
        }
    }
}

/// The values of the fields that a variable's name stands for: its `-` stands for `_` too.
fn named<'a>(request: &'a Request, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let is_same = |(found, wanted): (&u8, &u8)| match found {
        b'_' => *wanted == b'-',
        found => found.eq_ignore_ascii_case(wanted),
    };
    let fields = request.fields.iter().filter(move |field| {
        let found = request.name(field);
        found.len() == name.len() && found.iter().zip(name).all(is_same)
    });
    fields.map(|field| request.value(field))
}

/// The values of `name` among fields.
fn of<'a>(fields: &'a [(Bytes, Bytes)], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| &value[..])
}

fn put(out: &mut Vec<u8>, value: &[u8]) -> bool {
    out.extend_from_slice(value);
    true
}

fn put_number(out: &mut Vec<u8>, value: u64) -> bool {
    put(out, decimal(value, &mut [0; 20]))
}

/// The decimal digits of a number.
pub fn decimal(mut value: u64, digits: &mut [u8; 20]) -> &[u8] {
    // By hand: `fmt` costs ten times as much, and a request to PHP has several numbers.
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        if value == 0 {
            return &digits[at..];
        }
    }
}

fn put_address(out: &mut Vec<u8>, address: std::net::IpAddr) -> bool {
    match address {
        std::net::IpAddr::V4(address) => {
            for (index, octet) in address.octets().into_iter().enumerate() {
                if index > 0 {
                    out.push(b'.');
                }
                put_number(out, octet.into());
            }
            true
        }
        std::net::IpAddr::V6(address) => write!(out, "{address}").is_ok(),
    }
}

fn put_ip(out: &mut Vec<u8>, address: Option<SocketAddr>) -> bool {
    address.is_some_and(|address| put_address(out, address.ip()))
}

fn put_port(out: &mut Vec<u8>, address: Option<SocketAddr>) -> bool {
    let port = address.map_or(0, |address| address.port());
    port > 0 && put_number(out, port.into())
}

/// What a proxy in front said of the connection.
fn proxied(
    exchange: &Exchange,
    wanted: fn(&ProxyHeader) -> Option<SocketAddr>,
) -> Option<SocketAddr> {
    exchange.client.proxied.get().and_then(|header| wanted(header))
}

/// How many times smaller a coding made the content.
fn put_ratio(exchange: &Exchange, wanted: Coding, out: &mut Vec<u8>) -> bool {
    match exchange.coded_bytes {
        Some((coding, input, output)) if coding == wanted && output > 0 => {
            let hundredths = input * 100 / output;
            write!(out, "{}.{:02}", hundredths / 100, hundredths % 100).is_ok()
        }
        _ => false,
    }
}

fn put_seconds(out: &mut Vec<u8>, time: Duration) -> bool {
    write!(out, "{}.{:03}", time.as_secs(), time.subsec_millis()).is_ok()
}

fn set_cookie<'a>(value: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let pair = value.split(|byte| *byte == b';').next()?;
    // As nginx: spaces around the equals sign are skipped, tabs are not.
    let is_space = |byte: &u8| *byte == b' ';
    let unindented = |text: &'a [u8]| &text[text.iter().take_while(|b| is_space(b)).count()..];
    let (found, rest) = unindented(pair).split_at_checked(name.len())?;
    let value = unindented(unindented(rest).strip_prefix(b"=")?);
    let end = value.iter().rposition(|byte| !is_space(byte)).map_or(0, |last| last + 1);
    found.eq_ignore_ascii_case(name).then(|| &value[..end])
}

fn sent_field(exchange: &Exchange, name: &[u8], out: &mut Vec<u8>) -> bool {
    let sent = &exchange.sent;
    match name {
        b"content-type" if !sent.content_type.is_empty() => put(out, &sent.content_type),
        b"content-length" => sent.content_length.is_some_and(|length| put_number(out, length)),
        b"last-modified" => sent
            .last_modified
            .is_some_and(|time| put(out, yorozu_http::date::format(time).as_bytes())),
        b"etag" if !sent.etag.is_empty() => put(out, &sent.etag),
        b"age" if sent.age.is_some() => put_number(out, sent.age.unwrap_or(0)),
        b"location" if !sent.location.is_empty() => put(out, &sent.location),
        b"connection" => put(out, if sent.is_keep_alive { b"keep-alive" } else { b"close" }),
        b"transfer-encoding" => sent.is_chunked && put(out, b"chunked"),
        _ => {
            let stored = sent.stored.iter().flat_map(|entry| entry.head.fields.iter());
            let all = stored.chain(sent.fields.iter());
            let values = all.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| &v[..]);
            append_joined(values, b", ", out)
        }
    }
}

fn prefixed(name: &str) -> Option<Variable> {
    let dashed = |rest: &str| -> Box<[u8]> { rest.replace('_', "-").into_bytes().into() };
    let plain = |rest: &str| -> Box<[u8]> { rest.as_bytes().into() };
    if let Some(rest) = name.strip_prefix("proxy_protocol_tlv_") {
        Some(Variable::ProxyField(rest.into()))
    } else if let Some(rest) = name.strip_prefix("upstream_http_") {
        Some(Variable::UpstreamField(dashed(rest)))
    } else if let Some(rest) = name.strip_prefix("upstream_cookie_") {
        Some(Variable::UpstreamCookie(plain(rest)))
    } else if let Some(rest) = name.strip_prefix("upstream_trailer_") {
        Some(Variable::UpstreamTrailer(dashed(rest)))
    } else if let Some(rest) = name.strip_prefix("sent_trailer_") {
        Some(Variable::SentTrailer(dashed(rest)))
    } else if let Some(rest) = name.strip_prefix("sent_http_") {
        Some(Variable::SentField(dashed(rest)))
    } else if let Some(rest) = name.strip_prefix("http_") {
        Some(Variable::RequestField(dashed(rest)))
    } else if let Some(rest) = name.strip_prefix("cookie_") {
        Some(Variable::Cookie(plain(rest)))
    } else {
        name.strip_prefix("arg_").map(|rest| Variable::Argument(plain(rest)))
    }
}

/// Variables the server computes, by name; grouped by the module that documents them in nginx.
fn builtin(name: &str) -> Option<Variable> {
    let getter: Getter = match name {
        "args" | "query_string" => return Some(Variable::Args),
        "limit_rate" => return Some(Variable::LimitRate),
        "uid_set" => return Some(Variable::OfTexts(userid::set)),
        "secure_link" => return Some(Variable::OfTexts(secure_link::value)),
        "secure_link_expires" => return Some(Variable::OfTexts(secure_link::expires)),
        "request_method" => return Some(Variable::RequestMethod),
        "cookie_" | "arg_" => return None,
        _ => core_getter(name)
            .or_else(|| connection_getter(name))
            .or_else(|| time_getter(name))
            .or_else(|| upstream_getter(name))
            .or_else(|| gateway_getter(name))
            .or_else(|| crate::tls::session::getter(name))
            .or_else(|| crate::handlers::stub_status::getter(name))?,
    };
    Some(Variable::Builtin(getter))
}

fn core_getter(name: &str) -> Option<Getter> {
    Some(match name {
        "body_bytes_sent" => |ex, out| put_number(out, ex.body_bytes_sent),
        "bytes_sent" => |ex, out| put_number(out, ex.bytes_sent),
        "content_length" => |ex, out| match (ex.request.content_length, ex.body.known_length()) {
            (Some(length), _) => put_number(out, length),
            (None, Some(length)) if ex.request.is_chunked => put_number(out, length),
            _ => false,
        },
        "content_type" => |ex, out| append_joined(ex.request.values(b"content-type"), b", ", out),
        // There is no HTTP/3, and no hello is encrypted.
        "http3" | "ssl_ech_status" => |_, _| false,
        "request_body_length" => |ex, out| put_number(out, ex.body.known_length().unwrap_or(0)),
        "http2" => |ex, out| {
            let is_h2 = ex.request.version == Version::V20;
            is_h2 && put(out, if ex.client.is_tls() { b"h2" } else { b"h2c" })
        },
        "document_root" => |ex, out| {
            crate::handlers::static_file::append_root(ex, out);
            true
        },
        "realpath_root" => realpath_root,
        "uri" | "document_uri" => |ex, out| put(out, &ex.uri),
        "host" => |ex, out| match &ex.request.host[..] {
            b"" => put(out, ex.conf.server(ex.server).name().as_bytes()),
            host => put(out, host),
        },
        "hostname" => |ex, out| put(out, ex.conf.hostname.as_bytes()),
        "https" => |ex, out| ex.client.is_tls() && put(out, b"on"),
        "is_args" => |ex, out| put(out, if ex.args.is_empty() { b"" } else { b"?" }),
        "is_request_port" => {
            |ex, out| put(out, if ex.request.port.is_empty() { b"" } else { b":" })
        }
        "request_port" => |ex, out| put(out, &ex.request.port),
        "nginx_version" => |_, out| put(out, crate::NGINX_VERSION.as_bytes()),
        "pid" => |_, out| put_number(out, std::process::id().into()),
        "remote_user" => remote_user,
        "request" => |ex, out| put(out, ex.request.line_text()),
        "request_body" => |ex, out| ex.body.in_memory().is_some_and(|body| put(out, body)),
        "request_body_file" => |ex, out| {
            ex.body.file_path().is_some_and(|p| put(out, p.as_os_str().as_encoded_bytes()))
        },
        "request_completion" => |ex, out| ex.is_complete && put(out, b"OK"),
        "request_filename" => |ex, out| {
            let path = crate::handlers::static_file::path(ex);
            put(out, &path)
        },
        "limit_req_status" => {
            |ex, out| ex.limit_req_status.is_some_and(|verdict| put(out, verdict.name().as_bytes()))
        }
        "limit_conn_status" => |ex, out| {
            ex.limit_conn_status.is_some_and(|verdict| put(out, verdict.name().as_bytes()))
        },
        "slice_range" => slice::range,
        "uid_got" => userid::got,
        "modern_browser" => browser::modern,
        "ancient_browser" => browser::ancient,
        "msie" => browser::msie,
        "invalid_referer" => |ex, out| referer::is_invalid(ex) && put(out, b"1"),
        "request_id" => request_id,
        "request_length" => |ex, out| put_number(out, ex.request_bytes + ex.body.received()),
        "request_uri" => |ex, out| put(out, ex.request.target()),
        "scheme" => |ex, out| put(out, ex.client.scheme()),
        "server_name" => |ex, out| put(out, ex.conf.server(ex.server).name().as_bytes()),
        _ => return response_getter(name),
    })
}

fn response_getter(name: &str) -> Option<Getter> {
    Some(match name {
        "server_protocol" => |ex, out| match ex.request.version {
            Version::V09 => put(out, b"HTTP/0.9"),
            Version::V10 => put(out, b"HTTP/1.0"),
            Version::V11 => put(out, b"HTTP/1.1"),
            Version::V20 => put(out, b"HTTP/2.0"),
        },
        "status" => |ex, out| {
            // An `error_page` has settled it, whatever its page would say.
            let settled = ex.settled_status().unwrap_or(ex.status);
            // By hand, as in `decimal`.
            let digit = |scale: u16| b'0' + u8::try_from(settled / scale % 10).unwrap_or(0);
            put(out, &[digit(100), digit(10), digit(1)])
        },
        "gzip_ratio" => |ex, out| put_ratio(ex, Coding::Gzip, out),
        "brotli_ratio" => |ex, out| put_ratio(ex, Coding::Brotli, out),
        "zstd_ratio" => |ex, out| put_ratio(ex, Coding::Zstd, out),
        _ => return None,
    })
}

/// The variable of a name that a page says, if the server knows it.
pub fn by_name(config: &Config, name: &str) -> Option<Variable> {
    let slot = config.variable_names.iter().position(|known| known == name);
    let slot = slot.and_then(|slot| u16::try_from(slot).ok());
    slot.map(Variable::Slot).or_else(|| builtin(name)).or_else(|| prefixed(name))
}

/// The root without symbolic links.
fn realpath_root(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let mut root = Scratch::take();
    crate::handlers::static_file::append_root(exchange, &mut root);
    let path =
        std::path::Path::new(std::ffi::OsStr::new(&*String::from_utf8_lossy(&root))).canonicalize();
    path.is_ok_and(|path| put(out, path.as_os_str().as_encoded_bytes()))
}

/// Written in hexadecimal.
fn request_id(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    exchange.id().iter().all(|byte| write!(out, "{byte:02x}").is_ok())
}
fn remote_user(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let value = exchange.request.known(exchange.request.known.authorization);
    let user = value.and_then(crate::phases::access::basic_user);
    user.is_some_and(|user| put(out, &user))
}

fn connection_getter(name: &str) -> Option<Getter> {
    Some(match name {
        "binary_remote_addr" => |ex, out| match ex.remote.ip() {
            Some(std::net::IpAddr::V4(ip)) => put(out, &ip.octets()),
            Some(std::net::IpAddr::V6(ip)) => put(out, &ip.octets()),
            None => put(out, b"unix:"),
        },
        "connection" => |ex, out| put_number(out, ex.client.number),
        "connection_requests" => |ex, out| put_number(out, ex.client.requests.get()),
        "connection_time" => |ex, out| put_seconds(out, ex.client.since.elapsed()),
        "pipe" => |ex, out| put(out, if ex.is_pipelined { b"p" } else { b"." }),
        "remote_addr" => |ex, out| put(out, ex.remote.text.as_bytes()),
        "remote_port" => |ex, out| put_port(out, ex.remote.address),
        "realip_remote_addr" => |ex, out| put(out, ex.client.remote.text.as_bytes()),
        "realip_remote_port" => |ex, out| put_port(out, ex.client.remote.address),
        "proxy_protocol_addr" => |ex, out| put_ip(out, proxied(ex, |header| header.source)),
        "proxy_protocol_port" => |ex, out| put_port(out, proxied(ex, |header| header.source)),
        "proxy_protocol_server_addr" => {
            |ex, out| put_ip(out, proxied(ex, |header| header.destination))
        }
        "proxy_protocol_server_port" => {
            |ex, out| put_port(out, proxied(ex, |header| header.destination))
        }
        "server_addr" => |ex, out| match ex.client.local {
            Some(local) => put_address(out, local.ip()),
            None => put(out, b"unix:"),
        },
        "server_port" => {
            |ex, out| ex.client.local.is_some_and(|local| put_number(out, local.port().into()))
        }
        _ => return None,
    })
}

fn time_getter(name: &str) -> Option<Getter> {
    Some(match name {
        "date_local" => |ex, out| put(out, ssi::time(ssi::TIME_FORMAT, ex.now(), true).as_bytes()),
        "date_gmt" => |ex, out| put(out, ssi::time(ssi::TIME_FORMAT, ex.now(), false).as_bytes()),
        "msec" => |_, out| {
            let now = std::time::SystemTime::now();
            put_seconds(out, now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default())
        },
        "request_time" => |ex, out| put_seconds(out, ex.request_time()),
        "time_iso8601" => |_, out| put(out, clock::now().iso8601.as_bytes()),
        "time_local" => |_, out| put(out, clock::now().local.as_bytes()),
        _ => return None,
    })
}

fn gateway_getter(name: &str) -> Option<Getter> {
    use crate::handlers::{fastcgi, proxy};
    Some(match name {
        "fastcgi_path_info" => fastcgi::path_info,
        "fastcgi_script_name" => fastcgi::script_name,
        "proxy_add_x_forwarded_for" => proxy::add_x_forwarded_for,
        "proxy_host" => proxy::proxy_host,
        "proxy_port" => proxy::proxy_port,
        _ => return None,
    })
}

fn upstream_getter(name: &str) -> Option<Getter> {
    Some(match name {
        "upstream_addr" => |ex, out| attempts(ex, out, |a, out| put(out, a.peer.as_bytes())),
        "upstream_status" => |ex, out| {
            attempts(ex, out, |a, out| {
                if a.status == 0 { put(out, b"-") } else { put_number(out, a.status.into()) }
            })
        },
        "upstream_connect_time" => {
            |ex, out| attempts(ex, out, |a, out| put_optional_seconds(out, a.connect_time))
        }
        "upstream_header_time" => {
            |ex, out| attempts(ex, out, |a, out| put_optional_seconds(out, a.header_time))
        }
        "upstream_response_time" => {
            |ex, out| attempts(ex, out, |a, out| put_optional_seconds(out, a.response_time))
        }
        "upstream_last_addr" => {
            |ex, out| ex.attempts.last().is_some_and(|last| put(out, last.peer.as_bytes()))
        }
        "upstream_bytes_sent" => {
            |ex, out| attempts(ex, out, |a, out| put_number(out, a.bytes_sent))
        }
        "upstream_bytes_received" => {
            |ex, out| attempts(ex, out, |a, out| put_number(out, a.bytes_received))
        }
        "upstream_response_length" => {
            |ex, out| attempts(ex, out, |a, out| put_number(out, a.response_bytes))
        }
        "cache_detail" => crate::cache::report::append_detail,
        "cache_status" => crate::cache::report::append_status,
        "upstream_cache_status" => {
            |ex, out| ex.cache_status.is_some_and(|status| put(out, status.name().as_bytes()))
        }
        _ => return None,
    })
}

fn put_optional_seconds(out: &mut Vec<u8>, time: Option<Duration>) -> bool {
    match time {
        Some(time) => put_seconds(out, time),
        None => put(out, b"-"),
    }
}

/// One value per attempt, joined as nginx joins them.
fn attempts(
    exchange: &Exchange,
    out: &mut Vec<u8>,
    one: impl Fn(&UpstreamAttempt, &mut Vec<u8>) -> bool,
) -> bool {
    for (index, attempt) in exchange.attempts.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        one(attempt, out);
    }
    !exchange.attempts.is_empty()
}
