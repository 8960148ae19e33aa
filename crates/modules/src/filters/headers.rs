//! `add_header`, `expires`, `add_trailer`.

use bytes::Bytes;
use std::rc::Rc;
use yorozu_conf::value;
use yorozu_http::date;
use yorozu_http::status::has_content;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::word_enum;
use yorozu_kernel::exchange::handler::Filter;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::{Body, Response};
use yorozu_kernel::exchange::{Exchange, stream};
use yorozu_wire::h1::Version;

/// The module.
pub const MODULE: Module =
    Module::new("http_headers", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// `add_header name value [always]`
#[derive(Clone, Debug)]
pub struct AddHeader {
    name: Bytes,
    value: Template,
    is_always: bool,
}

impl Setting for AddHeader {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let is_always = match args.word(2) {
            b"" => false,
            b"always" => true,
            other => return Err(args.invalid_parameter(other)),
        };
        Ok(Self {
            name: args.words[0].clone(),
            value: Template::compile(args.word(1), args.env)?,
            is_always,
        })
    }
}

/// `expires`
#[derive(Clone, Debug)]
pub enum Expires {
    Off,
    Epoch,
    Max,
    /// Seconds from now.
    Access(i64),
    /// Seconds from the last modification.
    Modified(i64),
    /// Seconds after local midnight.
    Daily(i64),
    /// Any of these, spelled by variables; with `modified` before them, only what counts from the last modification.
    Variable {
        text: Template,
        is_modified: bool,
    },
}

impl Setting for Expires {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let is_modified = args.word(0) == b"modified" && args.words.len() == 2;
        let word = if is_modified { args.word(1) } else { args.word(0) };
        if !is_modified && args.words.len() == 2 {
            return Err(args.invalid_value());
        }
        if word.contains(&b'$') {
            return Ok(Self::Variable { text: Template::compile(word, args.env)?, is_modified });
        }
        parse(word, is_modified).ok_or_else(|| match word {
            [b'@', ..] if is_modified => ValueError::new(
                "\"expires\" directive daily time cannot be used with \"modified\" parameter",
            ),
            [b'@', time @ ..] if value::time(time).is_some() => {
                ValueError::new("\"expires\" directive daily time value must be less than 24 hours")
            }
            _ => args.invalid_value(),
        })
    }
}

fn parse(word: &[u8], is_modified: bool) -> Option<Expires> {
    let seconds =
        |text: &[u8]| value::time(text).and_then(|time| i64::try_from(time.as_secs()).ok());
    match (word, is_modified) {
        (b"off", false) => Some(Expires::Off),
        (b"epoch", false) => Some(Expires::Epoch),
        (b"max", false) => Some(Expires::Max),
        ([b'@', time @ ..], false) => {
            seconds(time).filter(|time| *time <= 86_400).map(Expires::Daily)
        }
        ([b'-', time @ ..], _) => seconds(time).map(|time| {
            if is_modified { Expires::Modified(-time) } else { Expires::Access(-time) }
        }),
        (time, _) => {
            let time = time.strip_prefix(b"+").unwrap_or(time);
            seconds(time).map(|time| {
                if is_modified { Expires::Modified(time) } else { Expires::Access(time) }
            })
        }
    }
}

word_enum! {
    /// `add_header_inherit`
    AddInherit {
        /// Inherited where a block adds nothing.
        On = "on",
        /// Never taken over.
        Off = "off",
        /// Taken over, and this block's own after them.
        Merge = "merge",
    }
}

settings! {
    inherit = inherit, check = nothing_to_check;
    /// A header added to responses with 200, 201, 204, 206, 301 to 304, 307 and 308, or to all.
    add_header: Vec<AddHeader> = none, TWO_OR_THREE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Whether headers of enclosing blocks are added too.
    add_header_inherit: AddInherit = "on", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// A trailer added after the content of such responses.
    add_trailer: Vec<AddHeader> = none, TWO_OR_THREE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Whether trailers of enclosing blocks are added too.
    add_trailer_inherit: AddInherit = "on", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Expires and Cache-Control of such responses.
    expires: Expires = "off", ONE_OR_TWO, HTTP_SERVER_LOCATION | LOCATION_IF;
}

/// Takes over from the enclosing block as `add_header_inherit` and `add_trailer_inherit` say.
pub fn inherit(draft: &mut Draft, outer: &Draft) {
    draft.add_header_inherit.inherit(&outer.add_header_inherit);
    draft.add_trailer_inherit.inherit(&outer.add_trailer_inherit);
    let mode = draft.add_header_inherit.written().copied();
    inherit_list(&mut draft.add_header, &outer.add_header, mode);
    let mode = draft.add_trailer_inherit.written().copied();
    inherit_list(&mut draft.add_trailer, &outer.add_trailer, mode);
    draft.inherit(outer);
}

fn inherit_list(
    list: &mut Inherit<Vec<AddHeader>>,
    outer: &Inherit<Vec<AddHeader>>,
    mode: Option<AddInherit>,
) {
    let own = list.written().cloned().unwrap_or_default();
    match mode {
        Some(AddInherit::Off) => list.replace(own),
        Some(AddInherit::Merge) => {
            let outer = outer.written().cloned().unwrap_or_default();
            list.replace([outer, own].concat());
        }
        _ => {}
    }
}

/// Statuses that get fields without `always`.
fn is_safe(status: u16) -> bool {
    matches!(status, 200 | 201 | 204 | 206 | 301..=304 | 307 | 308)
}

impl Conf {
    /// Whether there is anything to add.
    fn is_any(&self) -> bool {
        !self.add_header.is_empty()
            || !self.add_trailer.is_empty()
            || !matches!(self.expires, Expires::Off)
    }
}

/// Where it has something to do.
pub const FILTER: Filter = Filter::when(|location| location.of::<Conf>().is_any(), filter);

/// Adds the location's fields.
fn filter(exchange: &mut Exchange, response: &mut Response) {
    let conf = Rc::clone(&exchange.conf);
    let settings = conf.location(exchange.location).of::<Conf>();
    let is_safe = is_safe(response.status);
    if is_safe {
        apply_expires(exchange, response, &settings.expires);
    }
    for header in &settings.add_header {
        if is_safe || header.is_always {
            let value = header.value.value_within(exchange, response);
            add(response, &header.name, value);
        }
    }
    response.has_trailers = settings.add_trailer.iter().any(|add| is_safe || add.is_always);
}

/// Computes what is added behind the content, when that was sent.
pub fn add_trailers(exchange: &mut Exchange) {
    if !exchange.sent.has_trailers {
        return;
    }
    let conf = Rc::clone(&exchange.conf);
    let is_safe = is_safe(exchange.status);
    for trailer in &conf.location(exchange.location).of::<Conf>().add_trailer {
        let value = match is_safe || trailer.is_always {
            true => trailer.value.value(exchange),
            false => continue,
        };
        if !value.is_empty() {
            exchange.sent.trailers.push((trailer.name.clone(), value));
        }
    }
}

/// Puts into the answer what the request came by on its way to it: the challenges of authentications, what travels on with an `X-Accel-Redirect`, and where a redirect led that another
/// page took the place of. As nginx, challenges also when an error page or another failure took the place of their 401; other statuses may have them too (RFC 9110, section 11.6.1).
pub fn brought(exchange: &mut Exchange, response: &mut Response) {
    if !exchange.challenges.is_empty() {
        let challenges = std::mem::take(&mut exchange.challenges);
        response.fields.splice(0..0, challenges);
    }
    if !exchange.accel_fields.is_empty() {
        travelled(exchange, response);
    }
    if let Some(replaced) = exchange.replaced_location.take() {
        response.location.get_or_insert(replaced);
    }
}

/// As nginx, beside lines of the same name that the answer itself has; its own type counts before that which travels.
fn travelled(exchange: &Exchange, response: &mut Response) {
    if response.content_type.is_empty() && has_content(response.status) {
        response.content_type = exchange.accel_content_type().unwrap_or_default();
    }
    // Of a 304 nothing is said about ranges, and what the answer says of its own content is not said twice.
    let says_ranges = response.status == 304 || response.field(b"accept-ranges").is_some();
    let goes_on = |(name, _): &&(Bytes, Bytes)| {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        !(is(b"content-type") || (says_ranges && is(b"accept-ranges")))
    };
    // They stay with the request, too: if a filter refuses this answer, they go with the next one.
    let fields: Vec<_> = exchange.accel_fields.iter().filter(goes_on).cloned().collect();
    response.fields.splice(0..0, fields);
}

/// Makes room for fields behind the content: it has to come in chunks or frames then.
pub fn make_room_for_trailers(exchange: &mut Exchange, response: &mut Response) {
    if !response.has_trailers {
        return;
    }
    let conf = exchange.conf.location(exchange.location).http_core();
    response.has_trailers = match exchange.request.version {
        Version::V11 => conf.chunked_transfer_encoding,
        version => version > Version::V11,
    };
    if !response.has_trailers {
        return;
    }
    let has_content = has_content(response.status) && exchange.request.method != Method::Head;
    if !has_content || matches!(response.body, Body::Tunnel(_)) {
        return;
    }
    response.content_length = None;
    if !matches!(response.body, Body::Stream(_)) {
        let body = std::mem::replace(&mut response.body, Body::empty());
        response.body = Body::Stream(Box::new(stream::of_whole(body, Vec::new())));
    }
}

/// As nginx: these three replace what the origin said; others are added.
fn add(response: &mut Response, name: &Bytes, value: Bytes) {
    match &name.to_ascii_lowercase()[..] {
        b"last-modified" => {
            response.remove(name);
            // Of other statuses the time of a file is not told, but this is.
            let is_time = matches!(response.status, 200 | 206 | 304);
            response.last_modified = date::parse(&value).filter(|_| is_time);
            if response.last_modified.is_none() && !value.is_empty() {
                response.add(name.clone(), value);
            }
        }
        b"etag" => response.etag = value,
        b"cache-control" => {
            if !value.is_empty() {
                response.add(name.clone(), value);
            }
        }
        _ if value.is_empty() => {}
        _ => response.add(name.clone(), value),
    }
}

fn apply_expires(exchange: &mut Exchange, response: &mut Response, expires: &Expires) {
    let resolved;
    let expires = match expires {
        Expires::Variable { text, is_modified } => {
            resolved = parse(&text.value_within(exchange, response), *is_modified);
            match &resolved {
                Some(expires) => expires,
                None => return,
            }
        }
        expires => expires,
    };
    let now = exchange.now();
    let (until, control) = match expires {
        Expires::Off | Expires::Variable { .. } => return,
        Expires::Epoch => (1, "no-cache".to_owned()),
        Expires::Max => (2_145_916_555, "max-age=315360000".to_owned()),
        Expires::Access(0) | Expires::Modified(0) => (now, "max-age=0".to_owned()),
        Expires::Access(seconds) => timed(now, now + seconds),
        Expires::Modified(seconds) => match response.last_modified {
            Some(modified) => timed(now, modified + seconds),
            None => timed(now, now + seconds),
        },
        Expires::Daily(seconds) => {
            let zone = yorozu_kernel::base::zone::local();
            let offset =
                jiff::Timestamp::from_second(now).map_or(0, |now| zone.to_offset(now).seconds());
            let midnight = now - (now + i64::from(offset)).rem_euclid(86_400);
            let until = midnight + seconds;
            timed(now, if until <= now { until + 86_400 } else { until })
        }
    };
    // The time that is given counts from now.
    response.age = None;
    say(response, "Expires", date::format(until));
    say(response, "Cache-Control", control);
}

/// As nginx: the only line of that name, in the place of the first that the answer has.
fn say(response: &mut Response, name: &'static str, value: String) {
    let place = response.field(name.as_bytes()).is_some().then(|| {
        response.own_fields();
        response.fields.iter().position(|(found, _)| found.eq_ignore_ascii_case(name.as_bytes()))
    });
    match place.flatten() {
        Some(place) => {
            response.remove(name.as_bytes());
            response.fields.insert(place, (Bytes::from_static(name.as_bytes()), value.into()));
        }
        None => response.add(Bytes::from_static(name.as_bytes()), value),
    }
}

fn timed(now: i64, until: i64) -> (i64, String) {
    match until - now {
        age if age < 0 => (until, "no-cache".to_owned()),
        age => (until, format!("max-age={age}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_said_where_the_answer_says_it() {
        let mut response = Response::new(200);
        for name in ["A", "cache-control", "B", "Cache-Control", "C"] {
            response.add(name, "old");
        }
        say(&mut response, "Expires", "now".to_owned());
        say(&mut response, "Cache-Control", "max-age=1".to_owned());
        let said = |(name, value): &(Bytes, Bytes)| {
            format!("{}: {}", name.escape_ascii(), value.escape_ascii())
        };
        let lines: Vec<_> = response.fields.iter().map(said).collect();
        assert_eq!(
            lines,
            ["A: old", "Cache-Control: max-age=1", "B: old", "C: old", "Expires: now"]
        );
    }
}
