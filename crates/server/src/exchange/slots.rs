//! Values of the variables that the configuration defines.

use bytes::Bytes;

/// Values of slots in one exchange.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    values: Vec<Option<Bytes>>,
}

impl Slots {
    pub fn new(count: usize) -> Self {
        Self { values: vec![None; count] }
    }

    pub fn get(&self, slot: u16) -> Option<&Bytes> {
        self.values.get(usize::from(slot))?.as_ref()
    }

    pub fn set(&mut self, slot: u16, value: Option<Bytes>) {
        if let Some(place) = self.values.get_mut(usize::from(slot)) {
            *place = value;
        }
    }
}
