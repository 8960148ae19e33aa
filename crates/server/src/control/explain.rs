//! `yorozu cache explain URL`: what would become of a request, and why; nothing is asked of an upstream.

use super::Problem;
use super::list::show_key;
use crate::handlers;
use bytes::Bytes;
use serde_json::json;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use yorozu_cache::{Entry, Key};
use yorozu_connection::head::{self, Bounds, Received};
use yorozu_gateway::cache::decision::{Decision, Missing, NoStale, Renewal, Step};
use yorozu_gateway::cache::{self, Conf, NotAsked, Plan, eligibility, storing};
use yorozu_gateway::protocol;
use yorozu_http::field::{Name, Value, is_token};
use yorozu_kernel::base::limits;
use yorozu_kernel::base::readable::{harmless, size};
use yorozu_kernel::config::servers::{ListenAddress, Socket};
use yorozu_kernel::exchange::cached::Forward;
use yorozu_kernel::exchange::conf::{LocationConf, WorkerConf};
use yorozu_kernel::exchange::outcome::Progress;
use yorozu_kernel::exchange::request::Request;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::{Client, Exchange, Remote, Role};
use yorozu_kernel::find_config;
use yorozu_kernel::live::costs::{self, Cost};
use yorozu_modules::phases::realip;

/// The content of the control request: `SCHEME PORT`, a line end, and the head of the request that is
/// asked about. The answer is JSON: a list of pairs, of a name and what is said of it.
pub(super) async fn explain(exchange: &mut Exchange) -> Result<String, Problem> {
    let head = super::content(exchange).await?;
    let rows = of_head(&exchange.conf, &head).await?;
    Ok(format!("{}\n", rows.json()))
}

/// What is said of a request, by name.
#[derive(Debug, Default)]
pub(crate) struct Rows(Vec<(&'static str, String)>);

impl Rows {
    /// A list of pairs.
    pub(crate) fn json(self) -> serde_json::Value {
        self.0.into_iter().map(|(name, text)| json!([name, text])).collect()
    }
}

/// What would become of a request with this head: `SCHEME PORT`, a line end, and the head.
///
/// # Errors
/// It cannot be asked.
pub(crate) async fn of_head(conf: &Rc<WorkerConf>, head: &[u8]) -> Result<Rows, Problem> {
    let mut asked = asked(conf, head)?;
    let mut out = Rows::default();
    find_config::begin(&mut asked)?;
    row(&mut out, "url", &url(&asked));
    asked.role = Role::Question { supposes_scripts: false };
    match handlers::start(&mut asked) {
        Progress::Wait(_) => {}
        Progress::Ready(response) => {
            row(&mut out, "location", &location(&asked));
            row(&mut out, "answer", &format!("status {}, made without a gateway", response.status));
            return Ok(out);
        }
        Progress::Close(status) => {
            row(&mut out, "answer", &format!("the connection is closed (status {status})"));
            return Ok(out);
        }
    }
    row(&mut out, "location", &location(&asked));
    let location = conf.location(asked.location);
    let Some(protocol) = protocol::of(location) else {
        row(&mut out, "answer", "made by the server itself");
        return Ok(out);
    };
    let family = protocol.family();
    let prefix = family.prefix;
    row(&mut out, "gateway", &format!("{prefix}_pass, {}", protocol.scheme()));
    of_gateway(&mut asked, cache::settings::with_prefix(location, family), prefix, &mut out).await;
    last_miss(&asked, &mut out);
    Ok(out)
}

/// Why the cache did not answer for the page the last time, if that was in the last minutes.
fn last_miss(asked: &Exchange, out: &mut Rows) {
    let found = costs::of_page(&asked.request.host, asked.request.target());
    let Some(Cost { reason, header, last, requests, .. }) = found else { return };
    let seconds = (asked.now_millis() - last).max(0) / 1000;
    let header = header.map_or_else(String::new, |name| format!(" by {name}"));
    let text =
        format!("{seconds} s ago: {}{header}; {requests} in the last minutes", reason.name());
    row(out, "last miss", &text);
}

fn row(out: &mut Rows, name: &'static str, value: &str) {
    out.0.push((name, harmless(value)));
}

fn url(asked: &Exchange) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (scheme, host) = (text(asked.client.scheme()), text(&asked.request.host));
    format!(
        "{} {scheme}://{host}{}",
        text(asked.request.method_text()),
        text(asked.request.target())
    )
}

fn location(asked: &Exchange) -> String {
    let name = &asked.conf.location(asked.location).name;
    let name = if name.is_empty() { "(server)".into() } else { String::from_utf8_lossy(name) };
    format!("{name}, as {}", String::from_utf8_lossy(&asked.uri))
}

/// A request for a URL: `SCHEME PORT`, a line end, and its head; `fields` are lines.
///
/// # Errors
/// It is no URL, or no method.
pub fn head(url: &str, method: &str, fields: &str) -> Result<String, String> {
    let expected =
        || format!("invalid URL \"{url}\", expected http://HOST/PATH or https://HOST/PATH");
    if !is_token(method.as_bytes()) {
        return Err(format!("invalid method \"{method}\", expected one like GET"));
    }
    let (scheme, rest) = url.split_once("://").ok_or_else(expected)?;
    let default = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return Err(expected()),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let path = path.split('#').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let port = match authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
        None => default,
        Some((_, port)) => port.parse::<u16>().map_err(|_| expected())?,
    };
    // A `*` at the end is one of the path.
    if authority.is_empty()
        || authority.contains('*')
        || url.contains(|c: char| c.is_ascii_whitespace() || c.is_control())
    {
        return Err(expected());
    }
    Ok(format!("{scheme} {port}\n{method} {path} HTTP/1.1\r\nHost: {authority}\r\n{fields}\r\n"))
}

/// The request that is asked about, as a client of the socket that takes its port.
pub(crate) fn asked(conf: &Rc<WorkerConf>, content: &[u8]) -> Result<Exchange, String> {
    let end = content.iter().position(|byte| *byte == b'\n').ok_or("no request to explain")?;
    let first = String::from_utf8_lossy(&content[..end]).into_owned();
    let (scheme, port) = first.trim().split_once(' ').ok_or("expected a scheme and a port")?;
    let port: u16 = port.parse().map_err(|_| format!("invalid port \"{port}\""))?;
    let is_https = scheme == "https";
    // Behind a proxy that terminates TLS nothing here speaks it.
    let is_tls = is_https && conf.sockets.iter().any(|socket| socket.is_tls);
    let takes = |address: &ListenAddress| match address {
        ListenAddress::Tcp(address) => address.port() == port,
        ListenAddress::Udp(_) | ListenAddress::Unix(_) => false,
    };
    let sockets = || conf.sockets.iter().enumerate().filter(|(_, socket)| socket.is_tls == is_tls);
    let found = sockets().find(|(_, socket)| takes(&socket.address)).or_else(|| {
        sockets().find(|(_, socket)| !matches!(socket.address, ListenAddress::Unix(_)))
    });
    let (listen, socket) =
        found.ok_or_else(|| format!("nothing listens for {scheme}, port {port}"))?;
    let bounds = Bounds::of(conf.location(conf.server(socket.default_server).conf).http_core());
    let mut request = match head::read(Bytes::copy_from_slice(&content[end + 1..]), &bounds) {
        Received::Request(request) => request,
        Received::Bad { status, text, .. } => return Err(format!("{text} (status {status})")),
        _ => return Err("the request's head has no end".to_owned()),
    };
    // Several addresses may have the port: the one whose servers have the host, before one that has others alone.
    let is_named = |socket: &Socket| {
        find_config::named(socket, &request.host).is_ok_and(|found| found.is_some())
    };
    let has_port = takes(&socket.address);
    let named = sockets()
        .find(|(_, socket)| takes(&socket.address) == has_port && is_named(socket))
        .filter(|(_, socket)| !matches!(socket.address, ListenAddress::Unix(_)));
    let (listen, socket) = named.unwrap_or((listen, socket));
    let local = match socket.address {
        ListenAddress::Tcp(address) | ListenAddress::Udp(address) => Some(address),
        ListenAddress::Unix(_) => None,
    };
    let remote = Rc::new(Remote::of(Some(([127, 0, 0, 1], 0).into())));
    let mut client = Client::new(0, socket.address.clone(), remote, local, Instant::now());
    client.requests.set(1);
    client.listen.set(listen);
    client.is_tls_assumed = is_tls;
    if is_https && !is_tls {
        let named = find_config::named(socket, &request.host).ok().flatten();
        let server = named.unwrap_or(socket.default_server);
        as_from_terminator(conf.locations_of(server), &mut client, &mut request);
    }
    let mut asked = Exchange::new(Rc::clone(conf), Rc::new(client), request, RequestBody::none());
    asked.redirects.left = limits::URI_CHANGES_MAX;
    Ok(asked)
}

/// Makes it a request for https that a proxy in front has taken: by the header that this is trusted for, or else the usual one,
/// unless it says so already.
fn as_from_terminator(locations: &[LocationConf], client: &mut Client, request: &mut Request) {
    let trusted = locations.iter().find_map(scheme_header);
    if trusted.is_some() {
        let address = client.remote.address;
        client.remote = Rc::new(Remote { scheme: Some(b"https"), ..Remote::of(address) });
    }
    let says = |field: &_| cache::is_of_scheme(request.name(field));
    if !request.fields.iter().any(says) {
        let name = trusted.and_then(Name::new);
        request.add_field(name.unwrap_or(Name::X_FORWARDED_PROTO), &Value::new(b"https"));
    }
}

/// The header by which a trusted proxy says the scheme of its client (`real_ip_scheme`).
pub(super) fn scheme_header(location: &LocationConf) -> Option<&[u8]> {
    location.of::<realip::Conf>().scheme_header()
}

/// Why the cache is not asked for the page.
fn not_asked(asked: &Exchange, prefix: &str, why: &NotAsked) -> String {
    let why = match why {
        NotAsked::Request(Forward::Method) => {
            let method = String::from_utf8_lossy(asked.request.method_text());
            format!("{method} is not in \"{prefix}_cache_methods\"")
        }
        NotAsked::Request(_) => "it opens a WebSocket".to_owned(),
        NotAsked::Off | NotAsked::Status(_) => format!("\"{prefix}_cache\" is off for it"),
    };
    format!("fetched from upstream: {why}")
}

async fn of_gateway(asked: &mut Exchange, conf: &Conf, prefix: &str, out: &mut Rows) {
    if conf.zone().is_none() {
        return row(out, "answer", &format!("fetched from upstream: no \"{prefix}_cache\" here"));
    }
    let plan = match cache::ask(asked, conf) {
        Ok(plan) => plan,
        Err(why) => return row(out, "answer", &not_asked(asked, prefix, &why)),
    };
    let (zone, key) = (Arc::clone(&plan.zone), plan.key.clone());
    let (is_bypassed, wants_shared) = (plan.is_bypassed, plan.wants_shared);
    row(out, "zone", asked.conf.zone_name(&zone).unwrap_or("?"));
    row(out, "key", &show_key(key.as_bytes()));
    let names = cache::secondary::names(asked, conf, false);
    let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
    if !names.is_empty() {
        row(out, "split by", &names.join(", "));
    }
    row(out, "file", &zone.path(&key).display().to_string());
    for (what, row_name, values) in [
        ("cache_bypass", "bypass", &conf.cache_bypass),
        ("cache_bypass_unless_shared", "unless shared", &conf.cache_bypass_unless_shared),
        ("no_cache", "not stored", &conf.no_cache),
    ] {
        for (number, value) in values.0.iter().enumerate() {
            let text = value.value(asked);
            if !text.is_empty() && &text[..] != b"0" {
                let text = String::from_utf8_lossy(&text).into_owned();
                let rule = format!("argument {} of \"{prefix}_{what}\" is \"{text}\"", number + 1);
                row(out, row_name, &rule);
            }
        }
    }
    asked.pass.put(plan);
    let eligibility = eligibility::of_request(asked, conf);
    for name in eligibility.strangers() {
        let name = String::from_utf8_lossy(name);
        let text = format!("\"{name}\": takes the stored page, and makes none");
        row(out, "unknown header", &text);
    }
    let is_in_memory = zone.peek(&key).is_some();
    let entry = cache::load(asked, conf).await;
    let answer = match entry {
        Some(entry) => {
            of_entry(asked, &entry, is_in_memory, out);
            match is_bypassed || wants_shared && !entry.head.is_shared {
                true => BYPASSED.to_owned(),
                false if conf.cache_dry_run => of_dry_run(asked, conf, prefix, &entry),
                false => of_stored(asked, conf, prefix, &entry),
            }
        }
        None if is_bypassed || wants_shared => BYPASSED.to_owned(),
        None => {
            let is_known = asked.pass.of::<Plan>().is_some_and(|plan| plan.first.is_some());
            let why = match is_known {
                true => "no variant for these fields is stored",
                false => "nothing is stored under the key",
            };
            of_missing(asked, conf, prefix, (why, false))
        }
    };
    row(out, "answer", &answer);
}

const BYPASSED: &str = "fetched from upstream (BYPASS)";
const EXPIRED: &str = "fetched from upstream (EXPIRED)";

/// What happens to a request that nothing stored can answer, and `why` that is; `is_partial`: a part is stored.
fn of_missing(
    asked: &Exchange,
    conf: &Conf,
    prefix: &str,
    (why, is_partial): (&str, bool),
) -> String {
    let Some(plan) = asked.pass.of::<Plan>() else { return String::new() };
    let uses = plan.zone.uses(&plan.key) + 1;
    let is_range_beyond = cache::is_range_beyond(asked, conf);
    match Missing::of(conf, uses, is_partial, is_range_beyond) {
        Missing::TooFewUses => {
            let min = conf.cache_min_uses;
            format!(
                "fetched from upstream: {why}; use {uses} of {min}, \"{prefix}_cache_min_uses\""
            )
        }
        Missing::RangeBeyond => {
            format!(
                "fetched from upstream (MISS): {why}; not stored, \"{prefix}_cache_max_range_offset\""
            )
        }
        Missing::InLine if plan.first.is_none() && plan.zone.is_claimed(&plan.key) => {
            "the page that another request is making (HIT)".to_owned()
        }
        Missing::InLine | Missing::Beside => format!("fetched from upstream (MISS): {why}"),
    }
}

fn of_entry(asked: &Exchange, entry: &Entry, is_in_memory: bool, out: &mut Rows) {
    let (head, now) = (&entry.head, asked.now_millis());
    row(out, "tier", if is_in_memory { "memory" } else { "disk" });
    let (age, made_in) = (head.age(now), head.made_in);
    let length = size(head.body_bytes);
    let text = format!("status {}, {length}, {age} s old, made in {made_in} ms", head.status);
    row(out, "stored", &text);
    let left = head.fresh_until - now;
    let by = if head.is_by_operator {
        "the configuration or X-Accel-Expires"
    } else {
        "the page's fields"
    };
    let fresh = if head.is_fresh(now) {
        format!("for {} s more, by {by}", left / 1000)
    } else {
        format!("no, since {} s, by {by}", -left / 1000)
    };
    row(out, "fresh", &fresh);
    if head.is_shared {
        row(out, "shared", "also by visitors who otherwise bypass the cache (X-Accel-Shared)");
    }
    if !head.vary.is_empty() {
        row(out, "varies by", &String::from_utf8_lossy(&head.vary));
    }
    let (urls, tags): (Vec<_>, Vec<_>) =
        head.tags.iter().partition(|tag| Key::of_tag(tag).is_some());
    for url in urls.into_iter().filter_map(Key::of_tag) {
        row(out, "purged as", &show_key(url.as_bytes()));
    }
    if !tags.is_empty() {
        let tag = |tag: &Bytes| {
            let name = tag.split(|byte| *byte == 0).next_back().unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        };
        row(out, "tags", &tags.into_iter().map(tag).collect::<Vec<_>>().join(" "));
    }
    let forms = entry.forms.iter().zip(["gzip", "br", "zstd"]);
    let forms: Vec<_> =
        forms.filter(|(form, _)| form.made().is_some()).map(|(_, name)| name).collect();
    let forms = if forms.is_empty() { "none kept".to_owned() } else { forms.join(", ") };
    row(out, "codings", &forms);
}

/// What happens to a request for which this is stored.
fn of_stored(asked: &mut Exchange, conf: &Conf, prefix: &str, entry: &Arc<Entry>) -> String {
    let text = match cache::decide(asked, conf, entry) {
        Decision::Hit => "the stored page (HIT)",
        Decision::Part(_) => "the stored part (HIT)",
        Decision::Beyond { completes } => {
            let why = match completes {
                true => "the start is stored, its rest is asked for alone",
                false => "the stored part does not hold what is asked for",
            };
            return of_missing(asked, conf, prefix, (why, true));
        }
        Decision::Expired(NoStale::MustRevalidate) => {
            "fetched from upstream (EXPIRED): its Cache-Control forbids serving it stale"
        }
        Decision::Expired(NoStale::NotAllowed) => {
            return format!(
                "fetched from upstream (EXPIRED): no \"{prefix}_cache_use_stale updating\""
            );
        }
        Decision::Renewed(renewal) => return of_renewed(asked, conf, entry, renewal),
    };
    text.to_owned()
}

/// What the upstream answers although this is stored, and what would have.
fn of_dry_run(asked: &mut Exchange, conf: &Conf, prefix: &str, entry: &Arc<Entry>) -> String {
    let answer = of_stored(asked, conf, prefix, entry);
    let is_fresh = entry.head.is_fresh(asked.now_millis());
    let fetched = if is_fresh { BYPASSED } else { EXPIRED };
    format!("{fetched}, \"{prefix}_cache_dry_run\"; without it, {answer}")
}

fn of_renewed(asked: &mut Exchange, conf: &Conf, entry: &Arc<Entry>, renewal: Renewal) -> String {
    if let Some(plan) = asked.pass.of_mut::<Plan>() {
        plan.stale = Some(Arc::clone(entry));
    }
    let refreshed = if conf.cache_revalidate { "validated" } else { "refreshed" };
    let step = match renewal.step(storing::claiming(asked, conf)) {
        Step::RefreshingClean => {
            let vary = storing::known_vary(asked);
            match eligibility::without_strangers(asked, conf, &vary) {
                Some(_) => Step::RefreshingClean,
                None => Step::Alone,
            }
        }
        step => step,
    };
    match step {
        Step::Updating => {
            format!("the stored page (UPDATING) while it is {refreshed} for another request")
        }
        Step::Refreshing | Step::RefreshingClean => {
            format!("the stored page (STALE) while it is {refreshed} in the background")
        }
        Step::Making => {
            "fetched from upstream (EXPIRED); others get the stored page meanwhile".to_owned()
        }
        Step::Alone => "fetched from upstream (EXPIRED), for this request alone".to_owned(),
    }
}
