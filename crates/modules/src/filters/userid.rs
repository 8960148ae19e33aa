//! `userid`: a cookie by which a client is known again.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use yorozu_conf::value;
use yorozu_http::{date, field};
use yorozu_kernel::base::turn::unix_seconds_of;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::word_enum;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::credentials::decode_base64;
use yorozu_kernel::exchange::handler::Filter;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::variables::{Row, Variable};
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module = Module::new("http_userid", || DIRECTIVES.to_vec())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[
    ("uid_got", Variable::Builtin(got)),
    // What a configuration sets; nothing else gives it a value.
    ("uid_reset", Variable::Builtin(|_, _| true)),
    ("uid_set", Variable::OfTexts(set)),
];

word_enum! {
    /// `userid`
    Mode {
        Off = "off",
        /// Cookies that others set are logged; none is set.
        Log = "log",
        V1 = "v1",
        On = "on",
    }
}

/// `userid_expires time | max | off`, in seconds from now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lifetime(Option<i64>);

impl Lifetime {
    /// Further away than any time; nginx writes the same date then.
    const MAX: i64 = i64::MAX;
}

impl Setting for Lifetime {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(Self(match args.word(0) {
            b"off" => None,
            b"max" => Some(Self::MAX),
            word => {
                let time = value::time(word).and_then(|time| i64::try_from(time.as_secs()).ok());
                Some(time.ok_or_else(|| args.invalid_value())?)
            }
        }))
    }
}

/// `userid_mark letter | digit | = | off`
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark(Option<u8>);

impl Setting for Mark {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match args.word(0) {
            b"off" => Ok(Self(None)),
            [mark] if mark.is_ascii_alphanumeric() || *mark == b'=' => Ok(Self(Some(*mark))),
            _ => Err(ValueError::new(
                "\"userid_mark\" directive value must be \"off\" or a single letter, digit or \"=\"",
            )),
        }
    }
}

/// `userid_flags off | flag …`
#[derive(Clone, Debug, Default)]
pub struct Flags {
    written: [bool; Self::KNOWN.len()],
    /// As they stand in the cookie.
    text: String,
}

impl Flags {
    /// In the order in which they stand in the cookie; `off` stands for none.
    const KNOWN: [&str; 6] =
        ["off", "secure", "httponly", "samesite=strict", "samesite=lax", "samesite=none"];

    /// As they stand in the cookie: of the three last the first.
    fn joined(&self) -> String {
        let is_written = |place: &usize| self.written[*place];
        let places = (1..3).filter(is_written).chain((3..6).find(is_written));
        places.map(|place| format!("; {}", Self::KNOWN[place])).collect()
    }
}

impl Adds for Flags {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            let is_it = |one: &&str| word.eq_ignore_ascii_case(one.as_bytes());
            let place = Self::KNOWN.iter().position(is_it).ok_or_else(|| {
                ValueError(format!("invalid value \"{}\"", String::from_utf8_lossy(word)))
            })?;
            if std::mem::replace(&mut self.written[place], true) {
                args.duplicate_value(word);
            }
        }
        self.text = self.joined();
        Ok(())
    }
}

/// `userid_service number | address`
#[derive(Clone, Copy, Debug, Default)]
pub struct Service(Option<u32>);

impl Setting for Service {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let text = args.text(0);
        let number = text.parse().ok().or_else(|| match text.parse() {
            Ok(IpAddr::V4(address)) => Some(u32::from(address)),
            _ => None,
        });
        number.map(|number| Self(Some(number))).ok_or_else(|| args.invalid_number())
    }
}

const CONTEXTS: Contexts = HTTP_SERVER_LOCATION;

settings! {
    /// Whether clients get a cookie, or those they send are logged.
    userid: Mode = "off", ONE, CONTEXTS;
    /// The cookie's name.
    userid_name: Option<Bytes> = "uid", ONE, CONTEXTS;
    /// The domain it is set for.
    userid_domain: Option<Bytes> = "none", ONE, CONTEXTS;
    /// The path it is set for.
    userid_path: Option<Bytes> = "/", ONE, CONTEXTS;
    /// How long it lives.
    userid_expires: Lifetime = "off", ONE, CONTEXTS;
    /// Further attributes of the cookie.
    userid_flags: Flags = "off", ONE_OR_MORE, CONTEXTS;
    /// The first padding character of its value; a cookie with another one is replaced.
    userid_mark: Mark = "off", ONE, CONTEXTS;
    /// A `P3P` header sent with it.
    userid_p3p: Option<Bytes> = none, ONE, CONTEXTS;
    /// The number of the server in the cookie; if not set, a part of its address.
    userid_service: Service = none, ONE, CONTEXTS;
}

/// Four numbers: service, time, process and start, sequence.
type Uid = [u32; 4];

/// What the cookies of a request say.
#[derive(Clone, Copy, Debug, Default)]
pub struct UidCookie {
    got: Option<Uid>,
    /// Whether the cookie's mark is the configured one.
    is_marked: bool,
    set: Option<Uid>,
}

/// Bytes of a value in Base64; what follows is not looked at.
const VALUE_BYTES: usize = 22;

/// Reads the cookie, once.
fn known(exchange: &Exchange) -> UidCookie {
    if let Some(known) = *exchange.states.of::<Option<UidCookie>>() {
        return known;
    }
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    let name = conf.userid_name.as_deref().unwrap_or_default();
    let mut cookies = exchange.request.values(b"cookie");
    let value = cookies.find_map(|cookies| field::cookie(cookies, name));
    let mut known = UidCookie::default();
    if let Some(value) = value.filter(|_| conf.userid != Mode::Off) {
        let bytes = value.get(..VALUE_BYTES).and_then(decode_base64);
        match bytes.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()) {
            Some(bytes) => {
                let number = |at: usize| {
                    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
                };
                known.got = Some([number(0), number(4), number(8), number(12)]);
                let mark = value.get(VALUE_BYTES..VALUE_BYTES + 2);
                known.is_marked =
                    conf.userid_mark.0.is_none_or(|wanted| mark == Some(&[wanted, b'=']));
            }
            None => {
                let what = if value.len() < VALUE_BYTES { "too short" } else { "invalid" };
                let (name, value) = (error::verbatim(name), error::verbatim(value));
                let text = format!("client sent {what} userid cookie \"{name}={value}\"");
                error::request(exchange, Level::Error, &text);
            }
        }
    }
    *exchange.states.of() = Some(known);
    known
}

/// Makes the identifier a client shall have, if it needs one.
fn given(exchange: &mut Exchange) -> Option<Uid> {
    let mut known = known(exchange);
    if known.set.is_some() {
        return known.set;
    }
    let reset = reset(exchange);
    if let (Some(got), Some(reset)) = (known.got, &reset) {
        if &reset[..] == b"log" {
            let name = &exchange.conf.location(exchange.location).of::<Conf>().userid_name;
            let name = String::from_utf8_lossy(name.as_deref().unwrap_or_default()).into_owned();
            let text = format!("userid cookie \"{name}={}\" was reset", shown(&got));
            error::request(exchange, Level::Notice, &text);
        }
    }
    known.set = match known.got.filter(|_| reset.is_none()) {
        Some(_) if known.is_marked => None,
        // Only its mark is another one.
        Some(got) => Some(got),
        None => Some(fresh(exchange)),
    };
    *exchange.states.of() = Some(known);
    known.set
}

/// `$uid_reset`, if it says so.
fn reset(exchange: &mut Exchange) -> Option<Bytes> {
    let conf = Rc::clone(&exchange.conf);
    let variable = yorozu_kernel::exchange::evaluate::by_name(&conf, "uid_reset")?;
    let mut value = Vec::new();
    variable.append(exchange, &mut value);
    (!value.is_empty() && value != b"0").then(|| value.into())
}

fn fresh(exchange: &Exchange) -> Uid {
    static SEQUENCE_V1: AtomicU32 = AtomicU32::new(1);
    static SEQUENCE_V2: AtomicU32 = AtomicU32::new(0x0303_0302);
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    let is_v1 = conf.userid == Mode::V1;
    let address = match exchange.client.local.map(|local| local.ip()) {
        Some(IpAddr::V4(address)) => u32::from(address),
        Some(IpAddr::V6(address)) => {
            address.octets()[12..].iter().fold(0, |n, b| n << 8 | u32::from(*b))
        }
        None => 0,
    };
    let service = conf.userid_service.0.unwrap_or(if is_v1 { 0 } else { address });
    let now = SystemTime::now();
    let micros = now.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_micros();
    let sequence = if is_v1 { &SEQUENCE_V1 } else { &SEQUENCE_V2 };
    let sequence = sequence.fetch_add(0x100, Ordering::Relaxed);
    let start = (micros / 20) << 16 | (std::process::id() & 0xffff);
    // The time wraps in 2106, as nginx's.
    let time = u32::try_from(unix_seconds_of(now) & 0xffff_ffff).unwrap_or_default();
    let uid = [service, time, start, sequence];
    // As nginx: the older form has the order of this machine's memory.
    if is_v1 { uid.map(u32::to_le).map(u32::swap_bytes) } else { uid }
}

/// As variables and logs show it. As nginx: the bytes of each number in the order of this machine's memory.
fn shown(uid: &Uid) -> String {
    uid.iter().fold(String::with_capacity(32), |mut text, number| {
        let _ = write!(text, "{:08X}", number.swap_bytes());
        text
    })
}

fn put(exchange: &Exchange, uid: Option<Uid>, out: &mut Vec<u8>) -> bool {
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    let Some(uid) = uid.filter(|_| conf.userid != Mode::Off) else { return false };
    out.extend_from_slice(conf.userid_name.as_deref().unwrap_or_default());
    out.push(b'=');
    out.extend_from_slice(shown(&uid).as_bytes());
    true
}

/// `$uid_got`: the name of the cookie and the identifier received.
pub fn got(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    put(exchange, known(exchange).got, out)
}

/// `$uid_set`: the name of the cookie and the identifier sent.
pub fn set(exchange: &mut Exchange) -> Option<Bytes> {
    let conf = Rc::clone(&exchange.conf);
    if !matches!(conf.location(exchange.location).of::<Conf>().userid, Mode::On | Mode::V1) {
        return None;
    }
    let uid = given(exchange)?;
    let mut out = Vec::new();
    put(exchange, Some(uid), &mut out).then(|| out.into())
}

/// Where it has something to do.
pub const FILTER: Filter =
    Filter::when(|location| matches!(location.of::<Conf>().userid, Mode::On | Mode::V1), filter);

/// Sets the cookie.
///
/// # Source
/// nginx, `ngx_http_userid_filter_module`.
fn filter(exchange: &mut Exchange, response: &mut Response) {
    let config = Rc::clone(&exchange.conf);
    let conf = config.location(exchange.location).of::<Conf>();
    let Some(uid) = given(exchange) else { return };
    let mut bytes = Vec::with_capacity(16);
    uid.iter().for_each(|number| bytes.extend(number.to_be_bytes()));
    let mut cookie = conf.userid_name.as_deref().unwrap_or_default().to_vec();
    cookie.push(b'=');
    cookie.extend_from_slice(STANDARD_NO_PAD.encode(&bytes).as_bytes());
    match conf.userid_mark.0 {
        Some(mark) => cookie.extend([mark, b'=']),
        None => cookie.extend(b"=="),
    }
    match conf.userid_expires.0 {
        Some(Lifetime::MAX) => {
            cookie.extend(b"; expires=");
            cookie.extend(date::COOKIE_MAX.as_bytes());
        }
        Some(seconds) => {
            let until = date::cookie(exchange.now() + seconds);
            cookie.extend(b"; expires=");
            cookie.extend(until.as_bytes());
        }
        None => {}
    }
    if let Some(domain) = conf.userid_domain.as_ref().filter(|domain| &domain[..] != b"none") {
        cookie.extend(b"; domain=");
        cookie.extend(&domain[..]);
    }
    cookie.extend(b"; path=");
    cookie.extend(conf.userid_path.as_deref().unwrap_or_default());
    cookie.extend(conf.userid_flags.text.as_bytes());
    response.add(Bytes::from_static(b"Set-Cookie"), cookie);
    if let Some(policy) = conf.userid_p3p.as_ref().filter(|policy| &policy[..] != b"none") {
        response.add(Bytes::from_static(b"P3P"), policy.clone());
    }
}
