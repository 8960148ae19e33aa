//! After a purge has answered, no answer to a request that began later shows an older version of a page:
//! tried on the running server, in every race. Readers over HTTP/1.1 and HTTP/2 (plain, compressed,
//! parts, conditions, HEAD), purges of every kind by every way, an origin that is slow, breaks off and fails,
//! small tiers, jumps of the clock, reloads, kills, restarts and upgrades in the middle; two rounds, or as many as
//! `SECONDS` has room for.
//!
//! The purger raises the versions of the pages at the origin first. Each body is made from its page,
//! version and variant alone, and is compared byte for byte. `SEED` is that of the first round, the same each time
//! without it; what is drawn comes again with it, the timing does not. `WORKERS` sets their number, `YOROZU` names another binary.

mod answer;
mod origin;
mod purger;
mod reader;
mod server;
mod site;

use crate::shared::{number, seed, steps};
use nix::sys::signal::Signal;
use server::{Options, Server};
use site::Site;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Failures shown; the others are counted.
const SHOWN: usize = 6;
/// What happens to the server in a round.
const EVENTS: usize = 4;
/// Longer than any answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

type Counts = BTreeMap<String, u64>;

pub(crate) struct Round {
    seed: u64,
    site: Site,
    server: Server,
    /// Whether reloads open other zones on the folder: then an old connection may have an old soft copy.
    has_other_zones: bool,
    memory_body_max: usize,
    is_over: AtomicBool,
    wrong: Mutex<Vec<String>>,
    answers: AtomicU64,
    counts: Mutex<Counts>,
    purges: Mutex<Counts>,
}

impl Round {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst) || self.wrong.lock().unwrap().len() > 100
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    /// Answers that were judged.
    fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Purges that were acknowledged.
    fn purges_done(&self) -> u64 {
        self.purges.lock().unwrap().get("purges").copied().unwrap_or(0)
    }

    fn count(&self, what: &str) {
        *self.counts.lock().unwrap().entry(what.to_owned()).or_default() += 1;
    }

    fn count_purge(&self, kind: String, is_soft: bool, pages: usize) {
        let mut purges = self.purges.lock().unwrap();
        let depth = if is_soft { "soft" } else { "hard" };
        for name in [kind, depth.to_owned(), "purges".to_owned()] {
            *purges.entry(name).or_default() += 1;
        }
        *purges.entry("pages in all".to_owned()).or_default() += pages as u64;
    }
}

/// Waits until there were this many more answers and purges.
async fn busy(round: &Round, answers: u64, purges: u64) {
    let (answers, purges) = (round.answers() + answers, round.purges_done() + purges);
    // On a busy machine they come one after the other.
    let end = Instant::now() + 10 * PATIENCE;
    while (round.answers() < answers || round.purges_done() < purges) && !round.is_over() {
        if Instant::now() > end {
            return round.wrong(format!("in vain for {answers} answers and {purges} purges"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What happens to the server in the middle of a round.
async fn live(round: &Round, draw: &mut fastrand::Rng) {
    for _ in 0..EVENTS {
        busy(round, draw.u64(30..300), draw.u64(2..8)).await;
        if round.is_over() {
            return;
        }
        let name = match draw.u8(..10) {
            0..2 => {
                round.server.restart(Signal::SIGKILL, draw).await;
                "kill -9"
            }
            8 => {
                round.server.lose(false).await;
                "kill -9 of the process that serves"
            }
            9 => {
                round.server.lose(true).await;
                "kill -9 of the master"
            }
            2 => {
                round.server.restart(Signal::SIGQUIT, draw).await;
                "restart"
            }
            3..5 => {
                round.server.reload(round.has_other_zones);
                "reload"
            }
            5 => {
                round.server.upgrade().await;
                "upgrade"
            }
            6..8 if round.server.has_clock() => {
                round.server.set_clock(draw);
                "jump of the clock"
            }
            _ => continue,
        };
        round.count(name);
    }
    busy(round, 50, 2).await;
}

/// What the log may not have.
fn check_log(round: &Round) {
    let log = round.server.log();
    let is_bad = |line: &&str| {
        // Who kills a process is told so.
        // How a process ended that another master started is not known to this one.
        let is_of_another = line.contains("server process ") && line.ends_with(" ended");
        let is_expected = is_of_another
            || line.contains("exited on signal 9")
            || line.contains("the master process is gone");
        let is_severe = ["[crit]", "[alert]", "[emerg]"].iter().any(|level| line.contains(level));
        line.contains("panicked") || is_severe && !is_expected && !line.contains("is damaged")
    };
    log.lines().filter(is_bad).for_each(|line| round.wrong(format!("in the log: {line}")));
    let said = round.server.said();
    if let Some(at) = said.find("panicked") {
        round.wrong(format!("on standard error: {}", &said[at..]));
    }
}

async fn round(seed: u64, workers: u64) -> Arc<Round> {
    let mut draw = fastrand::Rng::with_seed(seed);
    let pages = [3, 40, 300, 5000][draw.usize(..4)];
    let options = Options::new(workers, &mut draw);
    println!("seed {seed}: {pages} pages, {options:?}");
    let origin = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let memory_body_max = options.memory_bytes / 8;
    let round = Arc::new(Round {
        seed,
        site: Site::new(pages, &mut draw),
        server: Server::new(options, origin.local_addr().unwrap().port()),
        has_other_zones: draw.bool(),
        memory_body_max,
        is_over: AtomicBool::new(false),
        wrong: Mutex::default(),
        answers: AtomicU64::new(0),
        counts: Mutex::default(),
        purges: Mutex::default(),
    });
    let origin = tokio::spawn(origin::serve(Arc::clone(&round), origin));
    round.server.start().await;
    let mut tasks = tokio::task::JoinSet::new();
    let mut other = || fastrand::Rng::with_seed(draw.u64(..));
    for _ in 0..24 {
        tasks.spawn(reader::read_h1(Arc::clone(&round), other()));
    }
    for _ in 0..8 {
        tasks.spawn(reader::read_h2(Arc::clone(&round), other()));
    }
    for _ in 0..3 {
        tasks.spawn(purger::purge(Arc::clone(&round), other()));
    }
    live(&round, &mut draw).await;
    round.is_over.store(true, Ordering::SeqCst);
    while let Some(done) = tasks.join_next().await {
        if let Err(problem) = done {
            round.wrong(problem.to_string());
        }
    }
    round.server.stop().await;
    origin.abort();
    check_log(&round);
    round
}

fn add(all: &mut Counts, more: &Mutex<Counts>) {
    for (name, count) in &*more.lock().unwrap() {
        *all.entry(name.clone()).or_default() += count;
    }
}

fn shown(counts: &Counts) -> String {
    counts.iter().map(|(name, count)| format!("{name}: {count}")).collect::<Vec<_>>().join(", ")
}

#[test]
fn nothing_of_before_a_purge_is_answered_after_it() {
    let first = seed();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    let (mut counts, mut purges) = (Counts::new(), Counts::new());
    for step in steps(2) {
        let seed = first.wrapping_add(step);
        let workers = number("WORKERS").unwrap_or(1 + seed % 2);
        let round = runtime.block_on(round(seed, workers));
        add(&mut counts, &round.counts);
        add(&mut purges, &round.purges);
        let mut wrong = round.wrong.lock().unwrap();
        wrong.sort_by_key(|what| !what.starts_with("on standard error"));
        let some = wrong.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n");
        if !wrong.is_empty() {
            let log = round.server.log();
            let is_told = |line: &&str| line.contains("[error]") || line.contains("[notice]");
            let told: Vec<_> = log.lines().filter(is_told).collect();
            println!("{}", told[told.len().saturating_sub(40)..].join("\n"));
        }
        println!("answers: {}\npurges: {}", shown(&counts), shown(&purges));
        assert!(wrong.is_empty(), "seed {seed}: {} wrong:\n{some}", wrong.len());
    }
    let count = |counts: &Counts, name: &str| counts.get(name).copied().unwrap_or(0);
    assert!(count(&counts, "HIT") > 20 && count(&purges, "purges") > 10);
}
