//! How far a node has read the stream: beside the pages of each zone, in the file `yorozu.bus`.
//!
//! ```text
//! place ID                     the last entry whose purges were done
//! new                          the runs are not all known: the first entry of an unknown one is taken as it comes
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

/// A place in the stream.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Place {
    pub id: Id,
    is_new: bool,
    /// The last number of each run, the last one that was heard of at the end.
    runs: Vec<(u64, u64)>,
}

impl Place {
    /// A place from which on entries are read, of whomever.
    pub(super) fn new(id: Id) -> Self {
        Self { id, is_new: true, runs: Vec::new() }
    }

    /// Notes an entry's number.
    pub(super) fn follow(&mut self, run: u64, number: u64) -> Order {
        let known = self.runs.iter().position(|(other, _)| *other == run);
        let last = known.map(|at| self.runs.remove(at).1);
        self.runs.push((run, number.max(last.unwrap_or_default())));
        if self.runs.len() > RUNS_MAX {
            self.runs.remove(0);
        }
        match last {
            None if self.is_new || number == 1 => Order::Next,
            None => Order::Gap,
            Some(last) if number <= last => Order::Again,
            Some(last) if number == last + 1 => Order::Next,
            Some(_) => Order::Gap,
        }
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = format!("place {}\n", self.id);
        if self.is_new {
            text.push_str("new\n");
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
                ("new", _) => place.is_new = true,
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
        assert_eq!(place.follow(7, 1), Order::Next);
        assert_eq!(place.follow(7, 2), Order::Next);
        assert_eq!(place.follow(7, 2), Order::Again);
        assert_eq!(place.follow(7, 4), Order::Gap);
        assert_eq!(place.follow(7, 3), Order::Again, "what came too late was made up for");
        assert_eq!(place.follow(7, 5), Order::Next);
        assert_eq!(place.follow(8, 2), Order::Gap, "its first one is missing");
        assert_eq!(Place::new(Id(1, 0)).follow(8, 2), Order::Next);
    }

    #[test]
    fn a_place_is_read_back_and_a_torn_one_is_none() {
        let mut place = Place::new(Id(1_700_000_000_000, 3));
        for run in 0..300 {
            place.follow(run, run + 1);
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
