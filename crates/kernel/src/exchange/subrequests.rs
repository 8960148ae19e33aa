//! How many subrequests a request may make.

use crate::base::limits;
use std::cell::{Cell, OnceCell};
use std::rc::Rc;

/// What a request may still ask for, by itself and by those it asks.
#[derive(Clone, Debug)]
pub struct Subrequests {
    /// How deep they may still make others.
    deep: u32,
    /// What all of one answer share; made when it is first asked for.
    answer: OnceCell<Rc<Answer>>,
}

#[derive(Debug)]
struct Answer {
    left: Cell<u32>,
    is_reported: Cell<bool>,
    /// How many more may be made before it is their turn in the answer.
    ahead: Cell<u32>,
}

/// Why there is no further one; reported once for each answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TooMany {
    Deep,
    /// For the whole answer.
    Made,
    /// One of these, and reported before.
    Reported,
}

/// One that is made ahead, until it is made.
#[derive(Debug)]
pub struct Ahead(Rc<Answer>);

impl Drop for Ahead {
    fn drop(&mut self) {
        self.0.ahead.set(self.0.ahead.get() + 1);
    }
}

/// Of a client's request.
impl Default for Subrequests {
    fn default() -> Self {
        Self { deep: limits::SUBREQUESTS_DEEP, answer: OnceCell::new() }
    }
}

impl Subrequests {
    fn answer(&self) -> &Rc<Answer> {
        self.answer.get_or_init(|| {
            Rc::new(Answer {
                left: Cell::new(limits::SUBREQUESTS_MAX),
                is_reported: Cell::new(false),
                ahead: Cell::new(limits::SUBREQUESTS_AHEAD),
            })
        })
    }

    /// Counts what is asked for from here together with what its copies ask for.
    pub fn share(&self) {
        self.answer();
    }

    /// What the next subrequest may ask for.
    pub fn next(&self) -> Result<Self, TooMany> {
        let answer = self.answer();
        let why = match (self.deep.checked_sub(1), answer.left.get().checked_sub(1)) {
            (Some(deep), Some(left)) => {
                answer.left.set(left);
                return Ok(Self { deep, answer: Rc::clone(answer).into() });
            }
            (None, _) => TooMany::Deep,
            (_, None) => TooMany::Made,
        };
        Err(if answer.is_reported.replace(true) { TooMany::Reported } else { why })
    }

    /// Whether the one that was counted last may be made at once.
    pub fn ahead(&self) -> Option<Ahead> {
        let answer = self.answer();
        let left = answer.ahead.get().checked_sub(1)?;
        answer.ahead.set(left);
        Some(Ahead(Rc::clone(answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_an_answer_are_counted_together() {
        let first = Subrequests::default();
        first.share();
        let copy = first.clone();
        let mut made =
            (0..limits::SUBREQUESTS_MAX).map(|at| [&first, &copy][at as usize % 2].next());
        assert!(made.all(|next| next.is_ok()));
        assert_eq!(copy.next().err(), Some(TooMany::Made));
        assert_eq!(first.next().err(), Some(TooMany::Reported));
        assert!(Subrequests::default().next().is_ok());
    }

    #[test]
    fn they_are_as_deep_as_nginxs() {
        let mut last = Subrequests::default();
        for _ in 0..limits::SUBREQUESTS_DEEP {
            last = last.next().unwrap();
        }
        assert_eq!(last.next().err(), Some(TooMany::Deep));
    }

    #[test]
    fn only_some_are_made_ahead() {
        let all = Subrequests::default();
        let next = all.next().unwrap();
        let mut ahead: Vec<_> = std::iter::from_fn(|| next.ahead()).collect();
        assert_eq!(ahead.len(), limits::SUBREQUESTS_AHEAD as usize);
        assert!(all.ahead().is_none());
        ahead.pop();
        assert!(all.ahead().is_some());
    }
}
