//! What a worker's last searches for a location found.

use crate::base::limits;
use crate::config::regex::{Regex, Undecided};
use crate::config::servers::{LocationId, ServerId};
use foldhash::fast::RandomState;
use std::cell::RefCell;
use std::fmt;
use std::hash::BuildHasher as _;
use std::rc::Rc;

/// What the search for a location found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Found {
    Location(LocationId),
    /// The path lacks only the slash of a location that passes requests on: redirect there.
    LacksSlash(LocationId),
    /// No location takes the path: the server's own settings hold.
    Server,
}

/// The locations that a worker found last, each in the place that its hash says: with the server and the
/// path, what was found depends on nothing but the configuration. Many locations cost as little as few.
#[derive(Default)]
pub struct Memo(RefCell<Places>);

#[derive(Default)]
struct Places {
    hasher: RandomState,
    known: Vec<Option<Known>>,
}

struct Known {
    server: ServerId,
    uri: Box<[u8]>,
    search: Search,
}

/// What a search found, and the expressions that matched on the way: the last of them with groups sets `$1`. Behind them is
/// the one whose own search came to no end.
#[derive(Clone)]
pub(super) struct Search {
    pub(super) found: Result<Found, Undecided>,
    pub(super) matched: Rc<[Regex]>,
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memo").finish_non_exhaustive()
    }
}

impl Memo {
    /// What is known of the search, which is made where nothing is.
    pub(super) fn find(
        &self,
        server: ServerId,
        uri: &[u8],
        search: impl FnOnce() -> Search,
    ) -> Search {
        if uri.len() > limits::LOCATION_MEMO_BYTES {
            return search();
        }
        let Places { hasher, known } = &mut *self.0.borrow_mut();
        known.resize_with(limits::LOCATION_MEMO, || None);
        let hash = hasher.hash_one((server.0, uri));
        let place = &mut known[usize::try_from(hash).unwrap_or(0) % limits::LOCATION_MEMO];
        match place {
            Some(known) if known.server == server && &*known.uri == uri => known.search.clone(),
            _ => place.insert(Known { server, uri: uri.into(), search: search() }).search.clone(),
        }
    }
}
