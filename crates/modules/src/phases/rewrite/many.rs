//! Many `rewrite` lines in a row: those that cannot match are passed over.

use super::{Instruction, Rewrite, Run, Step, is_logged};
use yorozu_kernel::config::regex::{Captures, Undecided};
use yorozu_kernel::config::regex_set::RegexSet;
use yorozu_kernel::exchange::Exchange;

/// This many lines in a row are a [`Rewrites`]; chosen: fewer are told apart as fast by what is remembered of them.
const MANY: usize = 16;

/// `rewrite` lines in a row.
#[derive(Clone, Debug)]
pub struct Rewrites {
    all: Vec<Rewrite>,
    set: RegexSet,
}

impl Rewrites {
    fn new(all: Vec<Rewrite>) -> Self {
        let set = RegexSet::new(all.iter().map(|rewrite| &rewrite.regex));
        Self { all, set }
    }

    /// Puts rows of many `rewrite` lines together.
    pub fn gather(script: Vec<Instruction>) -> Vec<Instruction> {
        let is_rewrite = |step: &Instruction| matches!(step, Instruction::Rewrite(_));
        let has_many =
            script.chunk_by(|a, b| is_rewrite(a) && is_rewrite(b)).any(|row| row.len() >= MANY);
        if !has_many {
            return script;
        }
        let (mut gathered, mut row) = (Vec::new(), Vec::new());
        for step in script {
            match step {
                Instruction::Rewrite(rewrite) => row.push(*rewrite),
                other => {
                    finish(&mut row, &mut gathered);
                    gathered.push(other);
                }
            }
        }
        finish(&mut row, &mut gathered);
        gathered
    }

    pub(super) fn apply(&self, exchange: &mut Exchange, run: &mut Run) -> Step {
        // The log has a line for each that does not match.
        let is_logged = is_logged(exchange);
        let mut begin = 0;
        while begin < self.all.len() {
            let matched = if is_logged {
                self.first(begin..self.all.len(), exchange, run)
            } else {
                let candidates = self.set.candidates(&exchange.uri);
                let candidates = candidates.iter().map(|place| *place as usize);
                self.first(candidates.filter(|place| *place >= begin), exchange, run)
            };
            match matched {
                Err(why) => return why.into(),
                Ok(Some((place, Step::Next))) => begin = place + 1,
                Ok(Some((_, step))) => return step,
                Ok(None) => {
                    // As after any line that does not match.
                    exchange.captures = Captures::default();
                    break;
                }
            }
        }
        Step::Next
    }

    /// The first of some lines that matches, and what it says; after it, others may match.
    fn first(
        &self,
        places: impl Iterator<Item = usize>,
        exchange: &mut Exchange,
        run: &mut Run,
    ) -> Result<Option<(usize, Step)>, Undecided> {
        for place in places {
            if let Some(step) = self.all[place].apply(exchange, run)? {
                return Ok(Some((place, step)));
            }
        }
        Ok(None)
    }
}

fn finish(row: &mut Vec<Rewrite>, gathered: &mut Vec<Instruction>) {
    if row.len() < MANY {
        gathered.extend(row.drain(..).map(|rewrite| Instruction::Rewrite(Box::new(rewrite))));
    } else {
        let all = std::mem::take(row);
        gathered.push(Instruction::Rewrites(Box::new(Rewrites::new(all))));
    }
}
