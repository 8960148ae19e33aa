//! What the lines do to a request, before the phases behind `rewrite` look at it.

use super::Conf;
use super::directives::Change;
use yorozu_http::field::{Name, Value};
use yorozu_kernel::exchange::Exchange;

impl Conf {
    /// Whether fields of requests are changed.
    pub fn changes_requests(&self) -> bool {
        !self.more_input_headers.0.is_empty()
    }
}

/// Changes the fields of the request as the location says.
pub fn apply(exchange: &mut Exchange, conf: &Conf) {
    for line in &conf.more_input_headers.0 {
        if !line.admits_type(exchange.request.field(b"content-type").unwrap_or_default()) {
            continue;
        }
        for field in &line.fields {
            let is_there = exchange.request.field(field.name.text()).is_some();
            if line.only_replaces && !is_there {
                continue;
            }
            let value = match &field.change {
                Change::Set(value) | Change::Add(value) => value.value(exchange),
                Change::Clear => Default::default(),
            };
            exchange.request.retain_fields(|name| !field.may_change(name, true));
            match Name::new(field.name.text()) {
                Some(name) if !value.is_empty() => {
                    exchange.request.add_field(name, &Value::new(&value));
                }
                _ => {}
            }
        }
    }
}
