//! What the lines do to a request, before the phases behind `rewrite` look at it.

use super::Conf;
use super::directives::Change;
use yorozu_http::field::{Name, Value};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Step;
use yorozu_kernel::logging::error::{self, Level};

impl Conf {
    /// Whether fields of requests are changed.
    pub fn changes_requests(&self) -> bool {
        !self.more_input_headers.0.is_empty()
    }
}

/// Changes the fields of the request as the location says. A value that would be more than one line, by a variable that decodes
/// what the client sent, is refused: what reads the request behind it would read another one.
pub fn apply(exchange: &mut Exchange, conf: &Conf) -> Step {
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
            let Some(name) = Name::new(field.name.text()).filter(|_| !value.is_empty()) else {
                continue;
            };
            let Some(value) = Value::unbroken(&value) else {
                let (name, value) = (error::verbatim(&name), error::verbatim(&value));
                let text = format!("line break in the value of \"{name}\": \"{value}\"");
                error::request(exchange, Level::Error, &text);
                return Step::Refuse(400);
            };
            exchange.request.add_field(name, &value);
        }
    }
    Step::Next
}
