//! Values of the variables that the configuration defines.

use crate::base::limits;
use bytes::Bytes;

/// Values of slots in one exchange.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    /// None before the first is set.
    values: Vec<Option<Bytes>>,
    count: usize,
    /// What is being computed, outermost first: each needs the one behind it.
    under_way: Vec<usize>,
}

impl Slots {
    pub fn new(count: usize) -> Self {
        Self { values: Vec::new(), count, under_way: Vec::new() }
    }

    pub fn get(&self, slot: u16) -> Option<&Bytes> {
        self.values.get(usize::from(slot))?.as_ref()
    }

    pub fn set(&mut self, slot: u16, value: Option<Bytes>) {
        if self.values.is_empty() {
            self.values.resize(self.count, None);
        }
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
