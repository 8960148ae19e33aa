//! Pages that a request came for and did not get: its answer leads elsewhere.

use super::Exchange;
use crate::config::servers::LocationId;
use std::sync::Arc;
use yorozu_cache::{Key, Zone};

/// A page in whose place something else is made. That must neither be stored as this page nor taken from what is.
#[derive(Clone)]
pub enum LeftPage {
    /// An upstream was asked for it, and its answer led elsewhere.
    Asked { zone: Arc<Zone>, key: Key },
    /// The request was refused for what it says beside its key, or for when it came. It may be that the cache was not asked
    /// yet: where the page is stored follows from these.
    Refused { location: LocationId, uri: Vec<u8>, args: Vec<u8> },
}

impl Exchange {
    /// Notes that the request is refused, before it is led to the page for that.
    pub fn leave_refused(&mut self) {
        self.left_pages.push(LeftPage::Refused {
            location: self.location,
            uri: self.uri.clone(),
            args: self.args.clone(),
        });
    }
}
