//! Leases of one peer, taken and given back by two configurations at once, in one order of the steps after
//! the other (shuttle, at random and by PCT): a fixed number, or as many as `SECONDS` has room for. `SEED` is that of
//! the drawing, the same each time without it.
//!
//! Run by `cargo test -p yorozu-upstream --features model --test model`.

#![allow(clippy::disallowed_methods, reason = "a test begins at some time")]
#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread::spawn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use yorozu_upstream::{Balance, Group, Lease, Loads, PeerAddress, PeerOptions, Selector, Tried};

const MAX: usize = 2;

fn group(loads: &Arc<Loads>, others: &[&str]) -> Arc<Group> {
    let peer = |name: &str| PeerOptions {
        max_conns: MAX,
        max_fails: 0,
        ..PeerOptions::new(PeerAddress::Unix(name.into()))
    };
    let peers = ["a"].iter().chain(others).map(|name| peer(name)).collect();
    Arc::new(Group::new("g".into(), peers, Balance::LeastConn, loads))
}

fn select(group: &Arc<Group>) -> Option<Lease> {
    group.select(&mut Tried::default(), &Selector::default(), Instant::now())
}

/// The old configuration's group, the new one's, which has a peer more, and one that comes meanwhile: no
/// more requests than are allowed are at a peer at once, and none is counted once all have ended.
fn leases_of_two_configurations() {
    let loads = Arc::default();
    let groups = [group(&loads, &[]), group(&loads, &["b"])];
    let under_way = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let (groups, under_way, loads) =
                (groups.clone(), Arc::clone(&under_way), Arc::clone(&loads));
            spawn(move || {
                let later = (number == 2).then(|| group(&loads, &["b"]));
                let group = later.as_ref().unwrap_or(&groups[number % 2]);
                for is_good in [true, false] {
                    let Some(lease) = select(group) else { continue };
                    let is_of_a = &**lease.peer().text() == "unix:a";
                    let before = is_of_a.then(|| under_way.fetch_add(1, Ordering::SeqCst));
                    assert!(before.is_none_or(|before| before < MAX), "above max_conns");
                    shuttle::thread::yield_now();
                    if is_of_a {
                        under_way.fetch_sub(1, Ordering::SeqCst);
                    }
                    match is_good {
                        true => lease.succeeded(Duration::ZERO),
                        false => {
                            lease.failed(Instant::now());
                        }
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let all: Vec<_> = (0..MAX).map(|_| select(&groups[0]).expect("all were given back")).collect();
    assert!(select(&groups[0]).is_none(), "no more than were taken");
    drop(all);
}

/// Tries them in a fixed number of schedules, or until the time is over; how many.
fn run<S: Scheduler + 'static>(
    scheduler: impl Fn(u64, usize) -> S,
    seed: u64,
    time: Option<Duration>,
) -> usize {
    /// Schedules of one scheduler, which are over before the time is looked at.
    const AT_ONCE: usize = 20;
    /// Schedules in all if there is no time.
    const USUAL: usize = 1000;
    let (end, mut schedules) = (time.map(|time| Instant::now() + time), 0);
    for seed in seed.. {
        let mut config = shuttle::Config::new();
        config.stack_size = 1 << 18;
        config.silence_warnings = true;
        let runner = shuttle::Runner::new(scheduler(seed, AT_ONCE), config);
        schedules += runner.run(leases_of_two_configurations);
        if end.map_or(schedules >= USUAL, |end| Instant::now() >= end) {
            break;
        }
    }
    schedules
}

#[test]
fn every_order_that_is_tried_holds() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("SEED").unwrap_or(1);
    let time = number("SECONDS").map(|seconds| Duration::from_secs(seconds) / 2);
    println!("seed {seed}");
    let pct = |seed, count| PctScheduler::new_from_seed(seed, 4, count);
    let drawn = run(RandomScheduler::new_from_seed, seed, time);
    let by_pct = run(pct, seed, time);
    println!("at random {drawn} schedules, by PCT {by_pct}");
}
