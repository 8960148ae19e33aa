//! What the lines do to a response.

use super::Conf;
use super::directives::{Change, Field, Line};
use bytes::Bytes;
use std::rc::Rc;
use yorozu_http::date;
use yorozu_kernel::exchange::handler::Filter;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::{Exchange, error_page};

/// Where it has something to do.
pub const FILTER: Filter =
    Filter::when(|location| !location.of::<Conf>().more_headers.0.is_empty(), filter);

fn filter(exchange: &mut Exchange, response: &mut Response) {
    let config = Rc::clone(&exchange.conf);
    let lines = &config.location(exchange.location).of::<Conf>().more_headers.0;
    for line in lines.iter().filter(|line| is_meant(line, response)).collect::<Vec<_>>() {
        for field in &line.fields {
            match &field.change {
                Change::Clear => clear(response, field),
                Change::Set(value) => {
                    let value = value.value_within(exchange, response);
                    set(exchange, response, field.name.text(), value);
                }
                Change::Add(value) => {
                    let value = value.value_within(exchange, response);
                    if !value.is_empty() {
                        response.add(field.name.text().clone(), value);
                    }
                }
            }
        }
    }
}

fn is_meant(line: &Line, response: &Response) -> bool {
    let is_status = line.statuses.is_empty() || line.statuses.contains(&response.status);
    is_status && line.admits_type(&response.content_type)
}

type Empty = fn(&mut Response);

/// Fields that a response keeps apart, with what empties them.
const OWN: [(&[u8], Empty); 7] = [
    (b"age", |response| response.age = None),
    (b"content-type", |response| response.content_type = Bytes::new()),
    (b"date", |response| response.has_own_date = true),
    (b"etag", |response| response.etag = Bytes::new()),
    (b"last-modified", |response| response.last_modified = None),
    (b"location", |response| response.location = None),
    (b"server", |response| response.has_own_server = true),
];

fn clear(response: &mut Response, field: &Field) {
    for (_, empty) in OWN.iter().filter(|(name, _)| field.name.matches(name)) {
        empty(response);
    }
    if response.all_fields().any(|(name, _)| field.may_change(name, false)) {
        response.own_fields();
        response.fields.retain(|(name, _)| !field.may_change(name, false));
    }
}

fn set(exchange: &Exchange, response: &mut Response, name: &Bytes, value: Bytes) {
    if let Some((_, empty)) = OWN.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)) {
        empty(response);
    }
    response.remove(name);
    match &name.to_ascii_lowercase()[..] {
        _ if value.is_empty() => {}
        b"content-type" => response.content_type = value,
        b"etag" => response.etag = value,
        b"last-modified" => response.last_modified = date::parse(&value),
        b"location" => response.location = Some(error_page::absolute(exchange, &value)),
        _ => response.add(name.clone(), value),
    }
}
