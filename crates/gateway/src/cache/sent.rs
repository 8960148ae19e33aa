//! Fields of a request as its upstream gets them: the client's own, or what the configuration sends in their place. By these
//! a page varies, and credentials are credentials, wherever they came from.

use super::settings::Conf;
use crate::protocol::{self, SetTo};
use std::rc::Rc;
use yorozu_http::{field, vary};
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::request::{Method, append_joined};

/// What the configuration sends in the place of the client's field of this name, which may be nothing; `None`: the
/// client's goes on.
fn set_value(exchange: &mut Exchange, name: &[u8]) -> Option<Scratch> {
    let config = Rc::clone(&exchange.conf);
    let location = config.location(exchange.location);
    let mut value: Option<Scratch> = None;
    let is_set = protocol::of(location)?.each_set(location, name, &mut |said| {
        let value = value.get_or_insert_with(Scratch::take);
        if !value.is_empty() {
            value.extend_from_slice(b", ");
        }
        match said {
            SetTo::Text(text) => value.extend_from_slice(text),
            SetTo::Spelled(template) => template.append(exchange, value),
        }
    });
    is_set.then(|| value.unwrap_or_else(Scratch::take))
}

/// A field's value, its lines joined; nothing if there is none.
pub fn value(exchange: &mut Exchange, name: &[u8]) -> Scratch {
    set_value(exchange, name).unwrap_or_else(|| said(exchange, name))
}

/// As the client says it.
fn said(exchange: &Exchange, name: &[u8]) -> Scratch {
    let mut value = Scratch::take();
    append_joined(exchange.request.values(name), b", ", &mut value);
    value
}

/// Whether the upstream gets the field as the client says it.
pub fn is_as_said(exchange: &mut Exchange, name: &[u8]) -> bool {
    let set = set_value(exchange, name);
    set.is_none_or(|value| value[..] == said(exchange, name)[..])
}

/// Whether the request opens a WebSocket (RFC 6455, section 4.1) and the configuration has its `Upgrade` sent on: what
/// answers that is no page, nor is a page an answer to it.
pub fn opens_websocket(exchange: &mut Exchange) -> bool {
    let is_asked = |value: &[u8]| field::list_has(value, b"websocket");
    let request = &exchange.request;
    let is_handshake = request.method == Method::Get
        && request
            .known(request.known.connection)
            .is_some_and(|value| field::list_has(value, b"upgrade"))
        && request.values(b"upgrade").any(is_asked);
    is_handshake && set_value(exchange, b"upgrade").is_some_and(|value| is_asked(&value))
}

/// Appends what selects a variant by a field.
pub fn append_selecting(exchange: &mut Exchange, conf: &Conf, name: &[u8], out: &mut Vec<u8>) {
    let is_unordered = conf.cache_vary_language;
    match set_value(exchange, name) {
        Some(value) => {
            // As nginx: an empty value takes the field away.
            let line = (!value.is_empty()).then_some(&value[..]);
            vary::append_selecting(name, line.into_iter(), is_unordered, out);
        }
        None => vary::append_selecting(name, exchange.request.values(name), is_unordered, out),
    }
    append_disguised(exchange, name, out);
}

/// Appends fields that applications may take for the named one: those whose names are written with `_`, say.
fn append_disguised(exchange: &Exchange, name: &[u8], out: &mut Vec<u8>) {
    let request = &exchange.request;
    for field in &request.fields {
        let found = request.name(field);
        if found.len() == name.len() && field::is_alike(found, name) && !field::is_same(found, name)
        {
            out.push(b'\n');
            out.extend_from_slice(found);
            out.push(b':');
            out.extend_from_slice(request.value(field));
        }
    }
}

/// Whether a request has credentials, and whether its key tells them apart.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Credentials {
    pub are_there: bool,
    /// Those that the key does not hold.
    pub are_unkeyed: bool,
}

impl Credentials {
    /// Of the client's `Authorization`, also where that is not sent on, and of the one that the configuration makes of other
    /// things that the client says. One that is the same for all requests names no visitor.
    pub fn of(exchange: &mut Exchange, conf: &Conf) -> Self {
        let mut found = Self::default();
        let key = conf.cache_key.as_ref();
        if exchange.request.known.authorization.is_some() {
            let is_keyed = key.is_some_and(|key| key.has_field(b"authorization"));
            found = Self { are_there: true, are_unkeyed: !is_keyed };
        }
        let config = Rc::clone(&exchange.conf);
        let location = config.location(exchange.location);
        let Some(protocol) = protocol::of(location) else { return found };
        protocol.each_set(location, b"authorization", &mut |said| {
            let SetTo::Spelled(template) = said else { return };
            let mut value = Scratch::take();
            template.append(exchange, &mut value);
            // `Bearer` before nothing names no visitor.
            if value[..] != template.with(b"")[..] {
                found.are_there = true;
                found.are_unkeyed |= !key.is_some_and(|key| key.has_variables_of(template));
            }
        });
        found
    }
}
