//! What was counted before a viewer came: the last hour by seconds, the last day by minutes, in memory. Where nothing was counted, nothing
//! is kept.

use super::figures;
use serde_json::json;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use yorozu_kernel::base::{faults, turn};
use yorozu_kernel::exchange::conf::WorkerConf;

/// How long rows are kept, in milliseconds; chosen. With all counts in each second and minute it is 2 MB.
const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
const MINUTE: i64 = 60_000;

/// What was counted in a second or a minute that ended `at` (milliseconds since 1970): counts above 0, by their numbers in
/// [`figures::totals`].
#[derive(Debug, Eq, PartialEq)]
struct Row {
    at: i64,
    counts: Box<[(u16, u32)]>,
}

#[derive(Debug, Default)]
struct History {
    seconds: VecDeque<Row>,
    minutes: VecDeque<Row>,
    /// As of the last second and of the last minute.
    last: Vec<u64>,
    last_of_minute: Vec<u64>,
}

impl History {
    /// One that begins now.
    fn new(totals: Vec<u64>) -> Self {
        Self { last_of_minute: totals.clone(), last: totals, ..Self::default() }
    }

    /// Takes what has been counted up to a moment.
    fn take(&mut self, now: i64, totals: &[u64]) {
        push(&mut self.seconds, now - HOUR, &mut self.last, now, totals);
        let is_over = |row: &Row| now.div_euclid(MINUTE) > row.at.div_euclid(MINUTE);
        let begun = self.minutes.back().is_none_or(is_over);
        if begun {
            push(&mut self.minutes, now - DAY, &mut self.last_of_minute, now, totals);
        }
    }

    fn json(&self) -> String {
        let rows = |rows: &VecDeque<Row>| {
            // Written at once: five thousand rows as values would be felt by who shares the worker.
            let rows: Vec<_> = rows.iter().map(|row| (row.at, &row.counts)).collect();
            serde_json::to_string(&rows).unwrap_or_default()
        };
        let (seconds, minutes) = (rows(&self.seconds), rows(&self.minutes));
        format!(
            "{{\"seconds\":{seconds},\"minutes\":{minutes},\"columns\":{}}}",
            json!(figures::columns())
        )
    }
}

/// Adds a row of what has come since the last one, if anything has; those from before `oldest` go.
fn push(rows: &mut VecDeque<Row>, oldest: i64, last: &mut Vec<u64>, now: i64, totals: &[u64]) {
    last.resize(totals.len(), 0);
    let counts = (0_u16..).zip(totals.iter().zip(&*last));
    // A zone that a reload removes takes its counts along.
    let counts = counts.map(|(number, (now, last))| (number, now.saturating_sub(*last)));
    let counts = counts.filter(|(_, count)| *count > 0);
    let counts = counts.map(|(number, count)| (number, u32::try_from(count).unwrap_or(u32::MAX)));
    let counts: Box<[_]> = counts.collect();
    last.copy_from_slice(totals);
    while rows.front().is_some_and(|row| row.at <= oldest) {
        rows.pop_front();
    }
    if !counts.is_empty() {
        rows.push_back(Row { at: now, counts });
    }
}

static HISTORY: Mutex<Option<History>> = Mutex::new(None);

fn locked() -> MutexGuard<'static, Option<History>> {
    // Figures only: a panic between two of them costs at most a row.
    HISTORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to keep the history of a configuration that counts; one worker does for all.
pub(crate) fn start(conf: &Rc<WorkerConf>) {
    if conf.is_counted {
        // What was counted before, for a viewer, did not come in the first second.
        locked().get_or_insert_with(|| History::new(figures::totals(conf)));
        let conf = Rc::clone(conf);
        Rc::clone(&conf).tasks.keep("history", move || keep(Rc::clone(&conf)));
    }
}

/// Takes the totals each second, once no other worker does.
async fn keep(conf: Rc<WorkerConf>) {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _turn = TURN.lock().await;
    loop {
        faults::point("history");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let totals = figures::totals(&conf);
        if let Some(history) = &mut *locked() {
            history.take(turn::unix_millis(), &totals);
        }
    }
}

/// All of it: `seconds` and `minutes`, rows of when each ended and its counts above 0 by column, the latest last; `columns` names
/// those.
pub(crate) fn json() -> String {
    locked().as_ref().map_or_else(|| History::default().json(), History::json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_counts_in_each_second_and_minute_are_less_than_2_mb() {
        let row = size_of::<Row>() + figures::columns().len() * size_of::<(u16, u32)>();
        assert!((HOUR / 1000 + DAY / MINUTE) as usize * row < 2 << 20, "{row}");
    }

    #[test]
    fn seconds_and_minutes_have_what_came_in_them_and_no_more_are_kept_than_their_number() {
        let mut history = History::default();
        for second in 0..7300_i64 {
            let requests = u64::try_from(second).unwrap() / 2;
            history.take(second * 1000, &[requests, 0]);
        }
        assert_eq!(history.seconds.len(), 1800);
        assert!(history.seconds.iter().all(|row| *row.counts == [(0, 1)]));
        let sum = |rows: &VecDeque<Row>| rows.iter().map(|row| row.counts[0].1).sum::<u32>();
        assert_eq!((history.minutes.len(), sum(&history.minutes)), (122, 3630));
        history.take(8_000_000, &[3649, 0]);
        assert_eq!(history.seconds.back().unwrap().at, 7_298_000, "nothing came");
        history.take(8_001_000, &[1, 9]);
        assert_eq!(*history.seconds.back().unwrap().counts, [(1, 9)], "a zone that has gone");
        history.take(100_000_000, &[1, 9]);
        assert_eq!((history.seconds.len(), history.minutes.len()), (0, 1), "older ones go");
        let mut late = History::new(vec![5]);
        late.take(1, &[6]);
        assert_eq!(*late.seconds[0].counts, [(0, 1)], "counted before it began");
    }
}
