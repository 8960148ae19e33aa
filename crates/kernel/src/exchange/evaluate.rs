//! What variables, texts with variables and regular expressions come to in an exchange.

use super::Exchange;
use super::request::{Request, append_joined};
use super::response::{Response, SentHead};
use super::variables::{Variable, prefixed, put, put_known, put_number};
use crate::base::scratch::Scratch;
use crate::config::http_core::Rate;
use crate::config::regex::{Captures, Regex, Undecided};
use crate::config::template::{Part, Template};
use crate::exchange::conf::Config;
use crate::logging::error::{self, Level};
use bytes::Bytes;
use std::rc::Rc;
use yorozu_http::field;

impl Rate {
    /// Bytes per second for a request; none if what its variables come to is no size.
    pub fn bytes(&self, exchange: &mut Exchange) -> u64 {
        yorozu_conf::value::size(&self.0.value(exchange)).unwrap_or(0)
    }
}

impl Regex {
    /// As [`Regex::is_match`], for an exchange that is in doubt where the search comes to no end.
    ///
    /// # Errors
    /// As [`Regex::is_match`].
    pub fn is_match_for(&self, subject: &[u8], exchange: &Exchange) -> Result<bool, Undecided> {
        self.is_match(subject).inspect_err(|why| exchange.leave_undecided(self, subject, *why))
    }

    /// As [`Regex::captures`], in the same way.
    ///
    /// # Errors
    /// As [`Regex::is_match`].
    pub fn captures_for(
        &self,
        subject: &[u8],
        exchange: &Exchange,
    ) -> Result<Option<Captures>, Undecided> {
        self.captures(subject).inspect_err(|why| exchange.leave_undecided(self, subject, *why))
    }

    /// Matches and, if it captures, sets `$1`… and the named variables of the exchange.
    ///
    /// # Errors
    /// The search came to no end; the exchange is in doubt.
    pub fn matches(&self, subject: &[u8], exchange: &mut Exchange) -> Result<bool, Undecided> {
        if self.groups() == 0 {
            let is_match = self.is_match_for(subject, exchange)?;
            if is_match {
                // As nginx: a regex without groups leaves `$1`… undefined.
                exchange.captures = Captures::default();
            }
            return Ok(is_match);
        }
        let Some(captures) = self.captures_for(subject, exchange)? else { return Ok(false) };
        for (group, slot) in self.named() {
            exchange.variables.set(*slot, Some(captures.group(*group)));
        }
        exchange.captures = captures;
        Ok(true)
    }
}

impl Template {
    /// As [`Template::append`], for a text whose values change nothing on the exchange but what can be computed
    /// again (`root` with variables).
    pub fn append_peeked(&self, exchange: &Exchange, out: &mut Vec<u8>) {
        match self.literal_text() {
            Some(text) => out.extend_from_slice(text),
            None => exchange.peek(|shadow| {
                // `root` with `$request_filename`: it would need itself. What is under way ends with the shadow.
                if begin(shadow, std::ptr::from_ref(self).addr(), None) {
                    self.append(shadow, out);
                }
            }),
        }
    }

    /// Appends the text with its values.
    #[inline]
    pub fn append(&self, exchange: &mut Exchange, out: &mut Vec<u8>) {
        match &self.parts[..] {
            // As most parameters of an application are.
            [Part::Variable(variable)] => {
                variable.append(exchange, out);
            }
            _ => self.append_parts(exchange, out),
        }
    }

    fn append_parts(&self, exchange: &mut Exchange, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Capture(group) => exchange.captures.append(*group, out),
                Part::Variable(variable) => {
                    variable.append(exchange, out);
                }
            }
        }
    }

    /// As [`Template::append`], with `$1`… passed through `escape`.
    pub fn append_with_captures(
        &self,
        exchange: &mut Exchange,
        out: &mut Vec<u8>,
        escape: fn(&[u8], &mut Vec<u8>),
    ) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Capture(group) => {
                    escape(exchange.captures.get(*group).unwrap_or_default(), out);
                }
                Part::Variable(variable) => {
                    variable.append(exchange, out);
                }
            }
        }
    }

    /// As [`Template::append`], with every value passed through `escape` but those that `is_plain`.
    pub fn append_escaped(
        &self,
        exchange: &mut Exchange,
        out: &mut Vec<u8>,
        is_plain: fn(&[u8]) -> bool,
        escape: fn(Option<&[u8]>, &mut Vec<u8>),
    ) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Capture(group) => escape(exchange.captures.get(*group), out),
                Part::Variable(variable) => {
                    let start = out.len();
                    if !variable.append(exchange, out) {
                        out.truncate(start);
                        escape(None, out);
                    } else if !is_plain(&out[start..]) {
                        let value = out.split_off(start);
                        escape(Some(&value), out);
                    }
                }
            }
        }
    }

    /// The text with its values.
    pub fn value(&self, exchange: &mut Exchange) -> Bytes {
        if let Some(text) = self.as_literal() {
            return text;
        }
        let mut out = Scratch::take();
        self.append(exchange, &mut out);
        Bytes::copy_from_slice(&out)
    }

    /// The text with its values, which may be of the response that is being made (`$sent_http_…`).
    pub fn value_within(&self, exchange: &mut Exchange, response: &Response) -> Bytes {
        if exchange.conf.has_sent && self.as_literal().is_none() {
            exchange.sent = SentHead::preview(response);
        }
        self.value(exchange)
    }

    /// nginx's truth of a string: neither empty nor `0`.
    pub fn is_true(&self, exchange: &mut Exchange) -> bool {
        let mut value = Scratch::take();
        self.append(exchange, &mut value);
        !value.is_empty() && value[..] != *b"0"
    }
}

impl Variable {
    /// Appends the value; `false` if there is none.
    #[inline]
    pub fn append(&self, exchange: &mut Exchange, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Builtin(getter) => getter(exchange, out),
            _ => self.append_other(exchange, out),
        }
    }

    fn append_other(&self, exchange: &mut Exchange, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Builtin(getter) => getter(exchange, out),
            Self::OfTexts(getter) => {
                if !begin(exchange, *getter as usize, None) {
                    return false;
                }
                let value = getter(exchange);
                exchange.variables.end();
                value.is_some_and(|value| put(out, &value))
            }
            Self::Args => put(out, &exchange.args) && exchange.has_args(),
            Self::RequestMethod => put_known(out, exchange.method_text()),
            Self::LimitRate => put_number(out, exchange.limit_rate.unwrap_or(0)),
            Self::Slot(slot) => append_slot(exchange, *slot, out),
            Self::RequestField(name) => match &name[..] {
                b"cookie" => exchange.request.append_cookies(out),
                name => append_joined(named(&exchange.request, name), b", ", out),
            },
            Self::SentField(name) => sent_field(exchange, name, out),
            Self::UpstreamField(name) => match &exchange.stored {
                Some(stored) => append_joined(stored.values(name), b", ", out),
                None => append_joined(of(&exchange.upstream_fields, name), b", ", out),
            },
            Self::SentTrailer(name) => append_joined(of(&exchange.sent.trailers, name), b", ", out),
            Self::UpstreamTrailer(name) => {
                append_joined(of(&exchange.upstream_trailers, name), b", ", out)
            }
            Self::UpstreamCookie(name) => match &exchange.stored {
                Some(stored) => put_set_cookie(stored.values(b"set-cookie"), name, out),
                None => put_set_cookie(of(&exchange.upstream_fields, b"set-cookie"), name, out),
            },
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

impl Variable {
    /// Gives the variable a value, if it is one that can have another.
    pub fn assign(&self, exchange: &mut Exchange, value: Bytes) {
        match self {
            Self::Args => {
                exchange.args = value.to_vec();
                exchange.has_set_args = true;
                // What the client sent is not what gateways are to send on.
                exchange.is_uri_as_sent = false;
            }
            Self::LimitRate => exchange.limit_rate = yorozu_conf::value::size(&value),
            Self::Slot(slot) => exchange.variables.set(*slot, Some(value)),
            _ => unreachable!("`config::env::target` admits only these"),
        }
    }
}

/// Appends the value of a slot, which is computed if need be; `false` if there is none.
fn append_slot(exchange: &mut Exchange, slot: u16, out: &mut Vec<u8>) -> bool {
    if let Some(value) = exchange.variables.get(slot) {
        out.extend_from_slice(value);
        return true;
    }
    let conf = Rc::clone(&exchange.conf);
    let config: &Config = &conf;
    let Some(source) = config.computed.get(usize::from(slot)).and_then(Option::as_ref) else {
        let own = config.own_values.get(usize::from(slot)).and_then(Option::as_ref);
        return own.is_some_and(|variable| variable.append(exchange, out));
    };
    let name = config.variable_names.get(usize::from(slot)).map(String::as_str);
    if !begin(exchange, slot.into(), name) {
        return false;
    }
    let was_in_doubt = exchange.doubt.is_open();
    let value = source.value(exchange);
    exchange.variables.end();
    let is_in_doubt = exchange.doubt.is_open();
    // What is made of what is in doubt is no value, and is asked for again.
    let Some(value) = value.ok().filter(|_| was_in_doubt || !is_in_doubt) else { return false };
    out.extend_from_slice(&value);
    if !source.is_volatile() && !is_in_doubt {
        exchange.variables.set(slot, Some(value));
    }
    true
}

/// Begins to compute a value, unless it needs itself: nothing is its value then, as with nginx.
fn begin(exchange: &mut Exchange, key: usize, name: Option<&str>) -> bool {
    let may = exchange.variables.begin(key);
    if !may {
        let name = name.map(|name| format!(" \"{name}\"")).unwrap_or_default();
        let text = format!("cycle while evaluating variable{name}");
        error::request(exchange, Level::Error, &text);
    }
    may
}

/// The values of the fields that a variable's name stands for: its `-` stands for `_` too.
fn named<'a>(request: &'a Request, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let fields = request.fields.iter();
    let fields = fields.filter(move |of| field::is_of_variable(request.name(of), name));
    fields.map(|field| request.value(field))
}

/// The same among other fields.
fn of<'a>(fields: &'a [(Bytes, Bytes)], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    fields.iter().filter(|(n, _)| field::is_of_variable(n, name)).map(|(_, value)| &value[..])
}

/// The value of the first cookie of a name that fields set.
fn put_set_cookie(
    mut fields: impl Iterator<Item = impl AsRef<[u8]>>,
    name: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    fields.any(|field| set_cookie(field.as_ref(), name).is_some_and(|value| put(out, value)))
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
        b"last-modified" => {
            sent.last_modified.is_some_and(|time| put(out, &yorozu_http::date::text(time)))
        }
        b"etag" if !sent.etag.is_empty() => put(out, &sent.etag),
        b"age" if sent.age.is_some() => put_number(out, sent.age.unwrap_or(0)),
        b"location" if !sent.location.is_empty() => put(out, &sent.location),
        b"connection" if exchange.status == 101 => put(out, b"upgrade"),
        b"connection" => put(out, if sent.is_keep_alive { b"keep-alive" } else { b"close" }),
        b"transfer-encoding" => sent.is_chunked && put(out, b"chunked"),
        _ => {
            let stored = sent.stored.iter().flat_map(|entry| entry.head.fields.iter());
            let travelling = if sent.is_made { &[][..] } else { &exchange.accel_fields };
            let all = travelling.iter().chain(stored).chain(&sent.fields);
            let values = all.filter(|(n, _)| field::is_of_variable(n, name)).map(|(_, v)| &v[..]);
            append_joined(values, b", ", out)
        }
    }
}

/// The variable of a name that a page says, if the server knows it.
pub fn by_name(config: &Config, name: &str) -> Option<Variable> {
    let slot = config.variable_names.iter().position(|known| known == name);
    let slot = slot.and_then(|slot| u16::try_from(slot).ok());
    let of_modules = || (config.engine.variable)(name).cloned();
    slot.map(Variable::Slot).or_else(of_modules).or_else(|| prefixed(name))
}
