//! Cookies by which an application tells its visitors apart, as it says itself: `X-Accel-Cookies: NAME, -NAME`. Who has one neither
//! takes a shared page nor makes one; with `-` that ends. The names are kept with the zone, for each server by its first name, and
//! over a restart.

use super::settings::Conf;
use super::{key, seen};
use crate::protocol;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use tokio::task::spawn_blocking;
use yorozu_cache::{StoreError, Zone};
use yorozu_http::field;
use yorozu_kernel::base::tasks;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::logging::error::{self, Context, Level};

pub const HEADER: &[u8] = b"x-accel-cookies";
/// In the zone's folder: a line for each server, its name and those of the cookies.
const NOTE: &str = "yorozu.cookies";
/// Names for a server; chosen, as sites set one or two.
const NAMES_MAX: usize = 32;
/// Bytes of a name.
const NAME_BYTES_MAX: usize = 64;

/// Names of cookies by the first name of the server.
type Names = BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>;

/// The names that a zone's applications have said.
#[derive(Debug, Default)]
pub struct Learned {
    names: RwLock<Names>,
    are_there: AtomicBool,
    /// Held while the note is written: it has one place, and the newest is the last.
    writing: Mutex<()>,
}

impl Learned {
    /// What the zone's folder says; nothing, where it cannot be read: the next response says it again. Blocks.
    pub fn read(zone: &Zone) -> Self {
        Self::parse(&zone.read_note(NOTE).ok().flatten().unwrap_or_default())
    }

    fn parse(text: &[u8]) -> Self {
        let mut names = Names::new();
        for line in text.split(|byte| *byte == b'\n') {
            let mut words = line.split(|byte| *byte == b' ').map(<[u8]>::to_vec);
            if let Some(server) = words.next() {
                names.entry(server).or_default().extend(words.filter(|name| is_name(name)));
            }
        }
        names.retain(|_, of_server| !of_server.is_empty());
        Self {
            are_there: AtomicBool::new(!names.is_empty()),
            names: RwLock::new(names),
            writing: Mutex::default(),
        }
    }

    fn names(&self) -> RwLockReadGuard<'_, Names> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn to_note(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (server, names) in &*self.names() {
            text.extend_from_slice(server);
            for name in names {
                text.push(b' ');
                text.extend_from_slice(name);
            }
            text.push(b'\n');
        }
        text
    }

    /// Writes the names to the zone's folder. Blocks.
    fn write(&self, zone: &Zone) -> Result<(), StoreError> {
        let _held = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        zone.replace_note(NOTE, &self.to_note())
    }

    /// Takes what a response says of a cookie; whether that is new.
    fn take(&self, server: &[u8], name: &[u8], is_personal: bool) -> bool {
        let is_known = |names: &Names| names.get(server).is_some_and(|them| them.contains(name));
        if is_known(&self.names()) == is_personal {
            return false;
        }
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let of_server = names.entry(server.to_vec()).or_default();
        let is_new = match is_personal {
            true => of_server.len() < NAMES_MAX && of_server.insert(name.to_vec()),
            false => of_server.remove(name),
        };
        names.retain(|_, of_server| !of_server.is_empty());
        self.are_there.store(!names.is_empty(), Ordering::Release);
        is_new
    }

    /// The first of the names that is that of a cookie in this field.
    fn one_of(&self, server: &[u8], cookies: &[u8]) -> Option<&'static str> {
        let names = self.names();
        let names = names.get(server)?;
        let mut came = cookies.split(|byte| *byte == b';').map(name_of);
        came.find_map(|name| {
            let known = names.iter().find(|known| known.iter().copied().eq(plain(name)));
            known.map(|known| seen::cookie(known))
        })
    }
}

/// The name of a pair in a `Cookie` field.
fn name_of(pair: &[u8]) -> &[u8] {
    pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii()
}

/// A name as PHP reads it.
fn plain(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().map(|byte| if matches!(byte, b'.' | b' ' | b'[') { b'_' } else { *byte })
}

fn is_name(name: &[u8]) -> bool {
    let is_plain =
        |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b';' | b'=' | b'"');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.iter().all(is_plain)
}

/// Takes what a response says of its application's cookies.
pub fn learn(exchange: &mut Exchange, conf: &Conf, fields: &[(Bytes, Bytes)]) {
    let Some(zone) = key::zone(exchange, conf).ok().flatten() else { return };
    let Some(learned) = super::kept::of(&zone).map(|kept| Arc::clone(&kept.learned)) else {
        return;
    };
    let server = exchange.conf.server(exchange.server).name().as_bytes().to_vec();
    let mut is_new = false;
    for (_, value) in fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(HEADER)) {
        for item in field::list(value) {
            let (name, is_personal) = match item.strip_prefix(b"-") {
                Some(name) => (name, false),
                None => (item, true),
            };
            let name: Vec<u8> = plain(name_of(name)).collect();
            if !is_name(&name) {
                let text = format!(
                    "X-Accel-Cookies: invalid \"{}\", expected NAME or -NAME",
                    String::from_utf8_lossy(item)
                );
                error::request(exchange, Level::Error, &text);
            } else if learned.take(&server, &name, is_personal) {
                is_new = true;
                let name = String::from_utf8_lossy(&name);
                let text = match is_personal {
                    true => format!(
                        "the cookie \"{name}\" tells visitors apart: who has it gets no shared page (X-Accel-Cookies)"
                    ),
                    false => format!(
                        "the cookie \"{name}\" tells no visitors apart any more (X-Accel-Cookies)"
                    ),
                };
                error::request(exchange, Level::Notice, &text);
            }
        }
    }
    if is_new {
        let context = Context::of(exchange);
        tasks::of_request(async move {
            if let Ok(Err(problem)) = spawn_blocking(move || learned.write(&zone)).await {
                context.upstream(Level::Crit, &problem.to_string(), None);
            }
        });
    }
}

/// The name of a cookie by which the application tells its visitors apart, if the request has one that the key does not hold.
pub fn of_visitor(exchange: &Exchange, zone: &Zone) -> Option<&'static str> {
    exchange.request.known.cookie?;
    let learned = &super::kept::of(zone)?.learned;
    if !learned.are_there.load(Ordering::Acquire) {
        return None;
    }
    let server = exchange.conf.server(exchange.server).name().as_bytes();
    let mut fields = exchange.request.values(b"cookie");
    fields.find_map(|cookies| learned.one_of(server, cookies)).filter(|_| is_seen(exchange))
}

/// Whether the upstream gets the cookies of a request, and the key does not hold them.
fn is_seen(exchange: &Exchange) -> bool {
    let location = exchange.conf.location(exchange.location);
    let reads = exchange.conf.reads_of(exchange.location);
    let (Some(protocol), Some(reads)) = (protocol::of(location), reads) else { return true };
    let is_passed_on = protocol.passes_on(location, b"cookie") || reads.told.has_field(b"cookie");
    is_passed_on && !reads.in_key.has_field(b"cookie")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outlast_the_process_and_are_bounded() {
        let learned = Learned::default();
        assert!(learned.take(b"a.example", b"my_cart", true));
        assert!(learned.take(b"", b"age", true) && !learned.take(b"", b"age", true));
        let read = Learned::parse(&learned.to_note());
        assert!(read.are_there.load(Ordering::Acquire));
        let has = |server: &str, cookies: &str| read.one_of(server.as_bytes(), cookies.as_bytes());
        assert_eq!(
            [has("a.example", "x=1; my.cart=2"), has("", "age")],
            [Some("my_cart"), Some("age")]
        );
        assert_eq!(
            [has("", "my_cart=2"), has("b.example", "age=1"), has("", "page=age")],
            [None; 3]
        );
        assert!(read.take(b"a.example", b"my_cart", false) && read.take(b"", b"age", false));
        assert!(!read.are_there.load(Ordering::Acquire) && read.to_note().is_empty());
        let took =
            (0..NAMES_MAX + 1).map(|number| read.take(b"", number.to_string().as_bytes(), true));
        assert_eq!(took.filter(|is_new| *is_new).count(), NAMES_MAX);
    }

    #[test]
    fn a_torn_or_foreign_note_is_no_harm() {
        for text in [&b"\n\n  \n"[..], b"a.example", b"\xff\0 \"; x", &[b' '; 9999]] {
            assert!(Learned::parse(text).to_note().len() < 30, "{text:?}");
        }
    }
}
