//! `sticky`: requests of one client go to one peer.
//!
//! | form | what binds a request |
//! | --- | --- |
//! | `cookie` | a cookie of ours, which holds the peer's [`sid`](yorozu_upstream::Peer::sid) |
//! | `route` | a variable that holds it |
//! | `learn` | a session of the application's, whose peer is remembered |
//!
//! A peer that cannot be had is replaced as if the request were bound to none.

use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use yorozu_conf::value;
use yorozu_http::{date, field};
use yorozu_kernel::base::turn;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::shared::Shared;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::ZONE_BYTES_MIN;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::response::Response;

/// What `sticky` says.
#[derive(Debug)]
pub enum Sticky {
    Cookie(Cookie),
    Route(Vec<Template>),
    Learn(Learn),
}

/// `sticky cookie`
#[derive(Debug, Default)]
pub struct Cookie {
    name: Bytes,
    expires: Option<Expires>,
    domain: Option<Template>,
    samesite: Option<Template>,
    is_httponly: bool,
    is_secure: bool,
    path: Option<Bytes>,
}

#[derive(Clone, Copy, Debug)]
enum Expires {
    Max,
    In(i64),
}

/// `sticky learn`
#[derive(Debug)]
pub struct Learn {
    create: Vec<Template>,
    lookup: Vec<Template>,
    sessions: Arc<Sessions>,
    timeout: Duration,
}

/// Longest `route` of a server, in bytes; nginx's bound.
pub const ROUTE_BYTES_MAX: usize = 32;
/// Bytes of a zone that a session takes at least: 8,000 in a megabyte, as nginx's manual has it.
const SESSION_BYTES: usize = 131;
/// Of these, what its name may take.
const ID_BYTES: usize = 32;
/// Of `timeout=`.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Which peer each session is bound to; those not used for long go first.
#[derive(Debug)]
pub struct Sessions {
    bytes_max: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    by_id: HashMap<Bytes, Session>,
    /// The least recently used first.
    by_use: BTreeMap<u64, Bytes>,
    uses: u64,
    bytes: usize,
}

/// What a session takes of its zone: the longer its name, which a client or an upstream chooses, the more.
fn weight(id: &[u8]) -> usize {
    SESSION_BYTES + id.len().saturating_sub(ID_BYTES)
}

#[derive(Debug)]
struct Session {
    sid: Arc<str>,
    used: Instant,
    /// Its place in [`Known::by_use`].
    number: u64,
}

impl Sessions {
    fn new(bytes_max: usize) -> Self {
        Self { bytes_max, known: Mutex::default() }
    }

    fn sid(&self, id: &[u8], timeout: Duration, now: Instant) -> Option<Arc<str>> {
        // Each use is one call: a panic elsewhere cannot leave it half changed.
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let session = known.by_id.get(id)?;
        let is_fresh = now.saturating_duration_since(session.used) < timeout;
        is_fresh.then(|| Arc::clone(&session.sid))
    }

    /// Binds a session; one that is not known only where it `may_create` it.
    fn bind(&self, id: &[u8], sid: Arc<str>, may_create: bool, now: Instant) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut *known;
        let before = known.by_id.get(id).map(|session| session.number);
        if before.is_none() && !may_create {
            return;
        }
        match before {
            Some(number) => _ = known.by_use.remove(&number),
            None => known.bytes += weight(id),
        }
        // A part of an answer's head would keep the whole of it.
        let id = Bytes::copy_from_slice(id);
        known.uses += 1;
        let number = known.uses;
        known.by_use.insert(number, id.clone());
        known.by_id.insert(id, Session { sid, used: now, number });
        while known.bytes > self.bytes_max {
            let Some((_, oldest)) = known.by_use.pop_first() else { return };
            known.bytes -= weight(&oldest);
            known.by_id.remove(&oldest);
        }
    }
}

/// The zones of `sticky learn`, by name; sessions stay over a reload.
#[derive(Debug, Default)]
pub struct Zones {
    named: HashMap<String, Arc<Sessions>>,
    earlier: HashMap<String, Arc<Sessions>>,
}

impl Shared for Zones {
    fn place() -> &'static Place {
        place!()
    }

    fn follow(&mut self, earlier: &Self) {
        self.earlier.clone_from(&earlier.named);
    }

    fn finish(&mut self, _earlier: &Self) {
        self.earlier.clear();
    }
}

impl Zones {
    fn add(&mut self, name: &str, bytes_max: usize) -> Result<Arc<Sessions>, ValueError> {
        let kept = self.earlier.remove(name).filter(|sessions| sessions.bytes_max == bytes_max);
        let sessions = kept.unwrap_or_else(|| Arc::new(Sessions::new(bytes_max)));
        match self.named.insert(name.to_owned(), Arc::clone(&sessions)) {
            None => Ok(sessions),
            Some(_) => Err(ValueError(format!("sticky zone \"{name}\" is already used"))),
        }
    }
}

/// What a request is bound to after a peer was chosen.
#[derive(Clone, Debug)]
struct Bound {
    sticky: Arc<Sticky>,
    sid: Arc<str>,
}

impl Sticky {
    /// Reads the directive.
    ///
    /// # Errors
    /// nginx's words.
    pub fn read(args: &Args<'_>) -> Result<Self, ValueError> {
        match args.word(0) {
            b"cookie" => Cookie::read(args).map(Self::Cookie),
            b"route" => args.words[1..]
                .iter()
                .map(|word| variable(args, word))
                .collect::<Result<_, _>>()
                .map(Self::Route),
            b"learn" => Learn::read(args).map(Self::Learn),
            other => Err(unknown(other)),
        }
    }

    /// The peer that the request asks for; empty for none.
    pub fn sid(&self, exchange: &mut Exchange) -> Vec<u8> {
        match self {
            Self::Cookie(cookie) => {
                let mut cookies = exchange.request.values(b"cookie");
                let found = cookies.find_map(|line| field::cookie(line, &cookie.name));
                found.unwrap_or_default().to_vec()
            }
            Self::Route(variables) => first(variables, exchange).to_vec(),
            Self::Learn(learn) => {
                let id = first(&learn.lookup, exchange);
                let sid = learn.sessions.sid(&id, learn.timeout, turn::instant());
                sid.map(|sid| sid.as_bytes().to_vec()).unwrap_or_default()
            }
        }
    }
}

/// Notes which peer the request came to.
pub fn bind(exchange: &mut Exchange, sticky: &Arc<Sticky>, sid: &Arc<str>) {
    exchange.states.put(Some(Bound { sticky: Arc::clone(sticky), sid: Arc::clone(sid) }));
}

fn bound(exchange: &Exchange) -> Option<Bound> {
    exchange.states.show(|bound: &Option<Bound>| bound.clone()).flatten()
}

/// Remembers the session that an answer begins, or goes on with. Unlike nginx, always when its head has come: the next
/// request may be here before the answer's end.
pub fn learn(exchange: &mut Exchange) {
    let Some(Bound { sticky, sid }) = bound(exchange) else { return };
    let Sticky::Learn(learn) = &*sticky else { return };
    let created = first(&learn.create, exchange);
    let may_create = !created.is_empty();
    let id = if may_create { created } else { first(&learn.lookup, exchange) };
    if !id.is_empty() {
        learn.sessions.bind(&id, sid, may_create, turn::instant());
    }
}

/// Adds the cookie that binds the client.
pub fn filter(exchange: &mut Exchange, response: &mut Response) {
    let Some(Bound { sticky, sid }) = bound(exchange) else { return };
    if let Sticky::Cookie(cookie) = &*sticky {
        response.add(Bytes::from_static(b"Set-Cookie"), cookie.line(exchange, &sid));
    }
}

/// The first value that is not empty.
fn first(variables: &[Template], exchange: &mut Exchange) -> Bytes {
    let mut values = variables.iter().map(|variable| variable.value(exchange));
    values.find(|value| !value.is_empty()).unwrap_or_default()
}

fn variable(args: &Args<'_>, word: &[u8]) -> Result<Template, ValueError> {
    if !word.starts_with(b"$") {
        let word = String::from_utf8_lossy(word);
        return Err(ValueError(format!("invalid variable name \"{word}\"")));
    }
    Template::compile(word, args.env)
}

fn unknown(word: &[u8]) -> ValueError {
    ValueError(format!("unknown parameter \"{}\"", String::from_utf8_lossy(word)))
}

fn is_samesite(word: &[u8]) -> bool {
    [&b"strict"[..], b"lax", b"none"].iter().any(|known| known.eq_ignore_ascii_case(word))
}

/// Puts a value where none is yet.
fn once<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), ValueError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(ValueError(format!("parameter \"{name}\" is duplicate"))),
    }
}

impl Cookie {
    fn read(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut cookie = Self { name: args.words[1].clone(), ..Self::default() };
        if cookie.name.is_empty() {
            return Err(ValueError::new("empty cookie name"));
        }
        for word in &args.words[2..] {
            let end = word.iter().position(|byte| *byte == b'=').map_or(word.len(), |at| at + 1);
            let value = word.slice(end..);
            match &word[..end] {
                b"domain=" | b"path=" if value.is_empty() => {
                    let name = String::from_utf8_lossy(&word[..end - 1]);
                    return Err(ValueError(format!("no value for \"{name}\"")));
                }
                b"domain=" => {
                    once(&mut cookie.domain, "domain", Template::compile(&value, args.env)?)?;
                }
                b"path=" => once(&mut cookie.path, "path", value)?,
                b"expires=" => once(&mut cookie.expires, "expires", expires(&value)?)?,
                b"samesite=" => {
                    let template = Template::compile(&value, args.env)?;
                    if template.as_literal().is_some_and(|text| !is_samesite(&text)) {
                        return Err(ValueError::new("invalid \"samesite\" parameter value"));
                    }
                    once(&mut cookie.samesite, "samesite", template)?;
                }
                b"httponly" if !cookie.is_httponly => cookie.is_httponly = true,
                b"secure" if !cookie.is_secure => cookie.is_secure = true,
                name @ (b"httponly" | b"secure") => {
                    let name = String::from_utf8_lossy(name);
                    return Err(ValueError(format!("parameter \"{name}\" is duplicate")));
                }
                _ => return Err(unknown(word)),
            }
        }
        Ok(cookie)
    }

    /// `name=value; attributes`, in nginx's order.
    fn line(&self, exchange: &mut Exchange, sid: &str) -> Vec<u8> {
        let mut line = [&self.name[..], b"=", sid.as_bytes()].concat();
        let mut add = |name: &str, value: &[u8]| {
            line.extend_from_slice(b"; ");
            line.extend_from_slice(name.as_bytes());
            // Variables may bring what would begin another attribute, or another line.
            let is_fine = |byte: &&u8| !byte.is_ascii_control() && **byte != b';';
            line.extend(value.iter().filter(is_fine));
        };
        match self.expires {
            None => {}
            Some(Expires::Max) => {
                add("expires=", date::COOKIE_MAX.as_bytes());
                add("max-age=", b"315360000");
            }
            Some(Expires::In(seconds)) => {
                add("expires=", date::cookie(exchange.now() + seconds).as_bytes());
                add("max-age=", seconds.to_string().as_bytes());
            }
        }
        if let Some(domain) = self.domain.as_ref().map(|domain| domain.value(exchange)) {
            if !domain.is_empty() {
                add("domain=", &domain);
            }
        }
        if self.is_httponly {
            add("httponly", b"");
        }
        if self.is_secure {
            add("secure", b"");
        }
        if let Some(samesite) = self.samesite.as_ref().map(|samesite| samesite.value(exchange)) {
            if !samesite.is_empty() {
                add("samesite=", if is_samesite(&samesite) { &samesite } else { b"strict" });
            }
        }
        if let Some(path) = &self.path {
            add("path=", path);
        }
        line
    }
}

fn expires(text: &[u8]) -> Result<Expires, ValueError> {
    if text == b"max" {
        return Ok(Expires::Max);
    }
    let seconds = value::time(text).and_then(|time| i64::try_from(time.as_secs()).ok());
    seconds.map(Expires::In).ok_or_else(|| ValueError::new("invalid \"expires\" parameter value"))
}

impl Learn {
    fn read(args: &Args<'_>) -> Result<Self, ValueError> {
        let (mut create, mut lookup) = (Vec::new(), Vec::new());
        let (mut zone, mut timeout) = (None, None);
        for word in &args.words[1..] {
            if let Some(name) = word.strip_prefix(b"create=") {
                create.push(parameter(args, name, "create")?);
            } else if let Some(name) = word.strip_prefix(b"lookup=") {
                lookup.push(parameter(args, name, "lookup")?);
            } else if let Some(text) = word.strip_prefix(b"zone=") {
                if zone.replace(sessions(text)?).is_some() {
                    return Err(ValueError::new("duplicate zone"));
                }
            } else if let Some(text) = word.strip_prefix(b"timeout=") {
                let time = value::time(text).filter(|time| !time.is_zero());
                let time = time.ok_or_else(|| ValueError::new("invalid timeout"))?;
                if timeout.replace(time).is_some() {
                    return Err(ValueError::new("duplicate timeout"));
                }
            } else if word != "header" {
                return Err(unknown(word));
            }
        }
        let missing = |name: &str| ValueError(format!("\"{name}\" parameter is not specified"));
        if lookup.is_empty() {
            return Err(missing("lookup"));
        }
        if create.is_empty() {
            return Err(missing("create"));
        }
        let (name, bytes_max) = zone.ok_or_else(|| missing("zone"))?;
        let sessions = args.env.shared::<Zones>().add(&name, bytes_max)?;
        Ok(Self { create, lookup, sessions, timeout: timeout.unwrap_or(TIMEOUT) })
    }
}

fn parameter(args: &Args<'_>, word: &[u8], name: &str) -> Result<Template, ValueError> {
    if !word.starts_with(b"$") {
        return Err(ValueError(format!("missing variable in the \"{name}\" parameter")));
    }
    Template::compile(word, args.env)
}

/// Name and bytes of `name:size`.
fn sessions(text: &[u8]) -> Result<(String, usize), ValueError> {
    let text = String::from_utf8_lossy(text).into_owned();
    let (name, size) =
        text.split_once(':').ok_or_else(|| ValueError::new("zone size is not specified"))?;
    if name.is_empty() {
        return Err(ValueError::new("zone name is not specified"));
    }
    let bytes = value::size(size.as_bytes()).ok_or_else(|| ValueError::new("invalid zone size"))?;
    if bytes < ZONE_BYTES_MIN {
        return Err(ValueError::new("zone is too small"));
    }
    Ok((name.to_owned(), usize::try_from(bytes).unwrap_or(usize::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_by_time_and_the_least_used_go_first() {
        let (sessions, start) = (Sessions::new(2 * SESSION_BYTES), Instant::now());
        let timeout = Duration::from_secs(10);
        let at = |seconds| start + Duration::from_secs(seconds);
        let sid = |name: &str, seconds| sessions.sid(name.as_bytes(), timeout, at(seconds));
        sessions.bind(b"a", "one".into(), false, start);
        assert_eq!(sid("a", 0), None);
        sessions.bind(b"a", "one".into(), true, start);
        sessions.bind(b"b", "two".into(), true, start);
        assert_eq!((sid("a", 9).as_deref(), sid("a", 10)), (Some("one"), None));
        sessions.bind(b"a", "two".into(), false, at(9));
        assert_eq!(sid("a", 10).as_deref(), Some("two"));
        sessions.bind(b"c", "one".into(), true, at(9));
        assert_eq!((sid("b", 9), sid("a", 9).as_deref()), (None, Some("two")));
        let known = sessions.known.lock().unwrap();
        assert_eq!((known.by_id.len(), known.by_use.len()), (2, 2));
    }

    #[test]
    fn long_names_take_the_room_of_others() {
        let (sessions, now) = (Sessions::new(40 * SESSION_BYTES), Instant::now());
        for number in 0..100u8 {
            sessions.bind(&[number; 1000], "one".into(), true, now);
            // Used again, it counts once.
            sessions.bind(&[number; 1000], "one".into(), false, now);
        }
        let known = sessions.known.lock().unwrap();
        assert_eq!(known.by_id.len(), 4);
        let weights: usize = known.by_id.keys().map(|id| weight(id)).sum();
        assert_eq!(known.bytes, weights);
    }
}
