//! What is said of a purge beyond its own node.

use super::place::Id;

/// What came of a purge beyond its own node.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Told {
    /// Redis does not answer: the others learn of it later.
    pub is_queued: bool,
    /// Nodes that did not say in time that they have done it, where that was waited for.
    pub late: Vec<String>,
    pub(super) last: Option<Id>,
}

impl Told {
    /// Both.
    pub fn join(&mut self, other: Self) {
        self.is_queued |= other.is_queued;
        self.last = self.last.max(other.last);
        self.late.extend(other.late);
    }

    /// In a word: `sent`, `queued`, or `late` with the names.
    pub fn text(&self) -> String {
        match (self.is_queued, &self.late[..]) {
            (true, _) => "queued".to_owned(),
            (false, []) => "sent".to_owned(),
            (false, late) => format!("late: {}", late.join(", ")),
        }
    }
}
