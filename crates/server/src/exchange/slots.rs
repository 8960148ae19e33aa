//! Values of the variables that the configuration defines.

use super::Exchange;
use crate::config::compiled::Config;
use crate::limits;
use crate::logging::error::{self, Level};
use bytes::Bytes;
use std::rc::Rc;

/// Values of slots in one exchange.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    values: Vec<Option<Bytes>>,
    /// What is being computed, outermost first: each needs the one behind it.
    under_way: Vec<usize>,
}

impl Slots {
    pub fn new(count: usize) -> Self {
        Self { values: vec![None; count], under_way: Vec::new() }
    }

    pub fn get(&self, slot: u16) -> Option<&Bytes> {
        self.values.get(usize::from(slot))?.as_ref()
    }

    pub fn set(&mut self, slot: u16, value: Option<Bytes>) {
        if let Some(place) = self.values.get_mut(usize::from(slot)) {
            *place = value;
        }
    }

    /// Notes that a value is being computed; `false` if it needs itself, or too many others, for that. A slot, or the
    /// address of what computes.
    pub fn begin(&mut self, key: usize) -> bool {
        let may = self.under_way.len() < limits::VARIABLES_DEEP && !self.under_way.contains(&key);
        if may {
            self.under_way.push(key);
        }
        may
    }

    /// The value that was begun last is computed.
    pub fn end(&mut self) {
        self.under_way.pop();
    }
}

/// Appends the value of a slot, which is computed if need be; `false` if there is none.
pub fn append(exchange: &mut Exchange, slot: u16, out: &mut Vec<u8>) -> bool {
    if let Some(value) = exchange.variables.get(slot) {
        out.extend_from_slice(value);
        return true;
    }
    let conf = Rc::clone(&exchange.conf);
    let config: &Config = &conf;
    let Some(source) = config.computed.get(usize::from(slot)).and_then(Option::as_ref) else {
        return false;
    };
    let name = config.variable_names.get(usize::from(slot)).map(String::as_str);
    if !begin(exchange, slot.into(), name) {
        return false;
    }
    let value = source.value(exchange);
    exchange.variables.end();
    out.extend_from_slice(&value);
    if !source.is_volatile() {
        exchange.variables.set(slot, Some(value));
    }
    true
}

/// Begins to compute a value, unless it needs itself: nothing is its value then, as with nginx.
pub fn begin(exchange: &mut Exchange, key: usize, name: Option<&str>) -> bool {
    let may = exchange.variables.begin(key);
    if !may {
        let name = name.map(|name| format!(" \"{name}\"")).unwrap_or_default();
        let text = format!("cycle while evaluating variable{name}");
        error::request(exchange, Level::Error, &text);
    }
    may
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_itself_is_not_begun() {
        let mut slots = Slots::new(0);
        assert!(slots.begin(1) && slots.begin(2) && !slots.begin(1));
        slots.end();
        assert!(slots.begin(2) && slots.begin(3));
        let fresh = 10..10 + limits::VARIABLES_DEEP;
        assert_eq!(fresh.filter(|key| slots.begin(*key)).count(), limits::VARIABLES_DEEP - 3);
    }
}
