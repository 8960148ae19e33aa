//! How far a node has read the stream: beside the pages of each zone, in the file `yorozu.bus`.
//!
//! ```text
//! place ID                     the last entry whose purges were done
//! new ID                       where the node began to read: what was before is made up for, whoever wrote it
//! epoch EPOCH                  whose order the entries have, in hexadecimal
//! run RUN NUMBER               the last number of a process that was read
//! sum CRC                      of what stands before, in hexadecimal
//! ```

use std::fmt;
use std::fmt::Write as _;

/// Its name.
pub(super) const NAME: &str = "yorozu.bus";
/// Runs that are remembered; chosen: one for each start of a process. Of one that was forgotten everything is purged.
const RUNS_MAX: usize = 256;

/// The name of an entry: milliseconds and a number, as Redis gives it.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Id(pub u64, pub u64);

impl Id {
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (milliseconds, number) = std::str::from_utf8(text).ok()?.split_once('-')?;
        Some(Self(milliseconds.parse().ok()?, number.parse().ok()?))
    }

    /// When it was added, by Redis' clock.
    pub(super) fn seconds(self) -> i64 {
        i64::try_from(self.0 / 1000).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// What an entry's number says of those before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Order {
    Next,
    /// It was read before.
    Again,
    /// Some are missing.
    Gap,
}

/// What an entry says of the epoch of its stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Epoch {
    /// From here on it is this: the stream is a new one.
    Begins(u64),
    /// The one that its node knows.
    Present(u64),
}

/// A place in the stream.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Place {
    pub id: Id,
    /// Where the node began: everything was purged after the entries up to there.
    began: Id,
    /// Tells the order of this stream from that of one that was lost before; 0: there was none.
    pub epoch: u64,
    /// The last number of each run, the last one that was heard of at the end.
    runs: Vec<(u64, u64)>,
}

impl Place {
    /// A place from which on entries are read, of whomever; what was purged before is made up for.
    pub(super) fn new(id: Id) -> Self {
        Self { id, began: id, ..Self::default() }
    }

    /// Notes an entry's number. `taken`: the last number of its run that Redis had taken before, and where.
    pub(super) fn follow(&mut self, run: u64, number: u64, taken: Option<(u64, Id)>) -> Order {
        let known = self.runs.iter().position(|(other, _)| *other == run);
        let last = known.map(|at| self.runs.remove(at).1);
        // Of a run that is not known yet, what was taken before this node began is made up for.
        let made_up = taken.filter(|(_, id)| *id <= self.began).map(|(number, _)| number);
        let before = last.or(made_up).unwrap_or_default();
        self.runs.push((run, number.max(before)));
        if self.runs.len() > RUNS_MAX {
            self.runs.remove(0);
        }
        match number.checked_sub(before.saturating_add(1)) {
            Some(0) => Order::Next,
            Some(_) => Order::Gap,
            // It may not have been read: the number was only heard of.
            None if last.is_none() => Order::Next,
            None => Order::Again,
        }
    }

    /// Takes what an entry says of the epoch.
    pub(super) fn enter(&mut self, epoch: Option<Epoch>) {
        match epoch {
            Some(Epoch::Begins(epoch)) => self.epoch = epoch,
            Some(Epoch::Present(epoch)) if self.epoch == 0 => self.epoch = epoch,
            _ => {}
        }
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = format!("place {}\n", self.id);
        if self.began != Id::default() {
            let _ = writeln!(text, "new {}", self.began);
        }
        if self.epoch != 0 {
            let _ = writeln!(text, "epoch {:016x}", self.epoch);
        }
        for (run, number) in &self.runs {
            let _ = writeln!(text, "run {run:016x} {number}");
        }
        let sum = crc32fast::hash(text.as_bytes());
        let _ = writeln!(text, "sum {sum:08x}");
        text
    }

    /// What [`Place::to_text`] wrote; `None` if it is torn.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (before, sum) = text.strip_suffix('\n')?.rsplit_once("sum ")?;
        if u32::from_str_radix(sum, 16).ok()? != crc32fast::hash(before.as_bytes()) {
            return None;
        }
        let mut place = Self::default();
        for line in before.lines() {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("place", id) => place.id = Id::parse(id.as_bytes())?,
                ("new", id) => place.began = Id::parse(id.as_bytes()).unwrap_or_default(),
                ("epoch", epoch) => place.epoch = u64::from_str_radix(epoch, 16).ok()?,
                ("run", rest) => {
                    let (run, number) = rest.split_once(' ')?;
                    place.runs.push((u64::from_str_radix(run, 16).ok()?, number.parse().ok()?));
                }
                _ => return None,
            }
        }
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_noticed() {
        let mut place = Place::default();
        assert_eq!(place.follow(7, 1, None), Order::Next);
        assert_eq!(place.follow(7, 2, None), Order::Next);
        assert_eq!(place.follow(7, 2, None), Order::Again);
        assert_eq!(place.follow(7, 4, None), Order::Gap);
        assert_eq!(place.follow(7, 3, None), Order::Again, "what came too late was made up for");
        assert_eq!(place.follow(7, 5, None), Order::Next);
        assert_eq!(place.follow(8, 2, None), Order::Gap, "its first one is missing");
    }

    #[test]
    fn of_an_unknown_run_what_was_taken_before_the_place_is_not_missing() {
        let new = || Place::new(Id(5, 0));
        assert_eq!(new().follow(8, 1, None), Order::Next);
        assert_eq!(new().follow(8, 2, None), Order::Gap, "where the first one was is not known");
        assert_eq!(new().follow(8, 2, Some((1, Id(6, 0)))), Order::Gap, "the first one is missing");
        assert_eq!(new().follow(8, 2, Some((1, Id(5, 0)))), Order::Next);
        assert_eq!(
            new().follow(8, 3, Some((1, Id(5, 0)))),
            Order::Gap,
            "the second one is missing"
        );
        let mut place = new();
        assert_eq!(place.follow(8, 9, Some((8, Id(4, 0)))), Order::Next);
        assert_eq!(place.follow(8, 11, Some((10, Id(4, 0)))), Order::Gap);
    }

    #[test]
    fn a_place_is_read_back_and_a_torn_one_is_none() {
        let mut place = Place::new(Id(1_700_000_000_000, 3));
        place.enter(Some(Epoch::Present(7)));
        place.enter(Some(Epoch::Present(8)));
        assert_eq!(place.epoch, 7, "that of a node that is behind");
        place.enter(Some(Epoch::Begins(9)));
        assert_eq!(place.epoch, 9);
        for run in 0..300 {
            place.follow(run, run + 1, None);
        }
        assert_eq!(place.runs.len(), RUNS_MAX);
        let text = place.to_text();
        assert_eq!(Place::parse(text.as_bytes()), Some(place));
        for end in 0..text.len() {
            assert_eq!(Place::parse(&text.as_bytes()[..end]), None);
        }
    }

    #[test]
    fn ids_have_an_order() {
        assert!(Id::parse(b"5-10") > Id::parse(b"5-9"));
        assert_eq!(Id::parse(b"5-9").unwrap().to_string(), "5-9");
        assert_eq!(Id::parse(b"59"), None);
    }
}
