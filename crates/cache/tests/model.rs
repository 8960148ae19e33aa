//! Small races of fills, flows, purges and files, in one order of their steps after the other: shuttle
//! draws each (at random, and by PCT, which finds with known chances what takes few changes of threads): a fixed
//! number, or as many as `SECONDS` has room for in all. `SEED` is that of the drawing, the same each time without it;
//! `RACE=name` is one of them alone. A deadlock and a lost wake-up are failures too.
//!
//! Run by `cargo test -p yorozu-cache --features model --test model`.
//!
//! As in `purges.rs`, what is served carries the reading of one counter from when its making had begun, and
//! a purge takes a reading before it is asked for: once that is done, those that begin then may find nothing with
//! a smaller one.

#![allow(clippy::disallowed_methods, reason = "a test begins at some time")]
#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use bytes::Bytes;
use shuttle::future::block_on;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::thread::{JoinHandle, spawn};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use yorozu_cache::{
    Account, Broken, Claim, DiskOptions, Entry, EntryHead, FillGuard, Filling, Key, Levels, Making,
    Pace, Purge, PurgeMode, Woken, Zone, ZoneOptions,
};

/// Counts the steps that a scheduler chooses.
struct Counted<S> {
    scheduler: S,
    steps: Arc<AtomicU64>,
}

impl<S: Scheduler> Scheduler for Counted<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.scheduler.new_execution()
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.scheduler.next_task(runnable, current, is_yielding)
    }

    fn next_u64(&mut self) -> u64 {
        self.scheduler.next_u64()
    }
}

/// Tries a race in a fixed number of schedules, or until its time is over; schedules and steps.
fn run<S: Scheduler + 'static>(
    scheduler: impl Fn(u64, usize) -> S,
    seed: u64,
    time: Option<Duration>,
    race: fn(),
) -> (usize, u64) {
    /// Schedules of one scheduler, which are over before the time is looked at.
    const AT_ONCE: usize = 20;
    /// Schedules in all if there is no time.
    const USUAL: usize = 60;
    let (steps, mut schedules) = (Arc::new(AtomicU64::new(0)), 0);
    let end = time.map(|time| Instant::now() + time);
    for seed in seed.. {
        let mut config = shuttle::Config::new();
        // Files are opened on the stacks of these threads.
        config.stack_size = 1 << 18;
        config.silence_warnings = true;
        let counted = Counted { scheduler: scheduler(seed, AT_ONCE), steps: Arc::clone(&steps) };
        schedules += shuttle::Runner::new(counted, config).run(race);
        if end.map_or(schedules >= USUAL, |end| Instant::now() >= end) {
            break;
        }
    }
    (schedules, steps.load(Ordering::Relaxed))
}

/// A folder that goes with its owner; in memory where that is possible, for a purge waits for the disk.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let memory = PathBuf::from("/dev/shm");
        let root = if memory.is_dir() { memory } else { std::env::temp_dir() };
        Self(root.join(format!("yorozu-model.{}.{number}", std::process::id())))
    }

    fn options(&self) -> ZoneOptions {
        let pace = Pace { files: 100, sleep: Duration::ZERO, threshold: Duration::MAX };
        let disk = DiskOptions {
            path: self.0.clone(),
            levels: Levels::parse("1").unwrap(),
            max_size: None,
            min_free: None,
            files_max: 1000,
            inactive: 600,
            loader: pace,
            manager: pace,
        };
        ZoneOptions { memory_bytes: 1 << 20, disk }
    }

    fn zone(&self) -> Arc<Zone> {
        Arc::new(Zone::open(self.options()).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key() -> Key {
    Key::new(Bytes::from_static(b"http://GETsite/a"))
}

fn by_page() -> Purge {
    Purge::Page(key())
}

fn by_tag() -> Purge {
    Purge::Tag(Bytes::from_static(b"site\0t"))
}

/// One page of a zone, and what may be served of it.
#[derive(Clone)]
struct World {
    zone: Arc<Zone>,
    numbers: Arc<Numbers>,
}

struct Numbers {
    clock: AtomicU64,
    hard: AtomicU64,
    any: AtomicU64,
    _folder: Folder,
}

impl World {
    fn new() -> Self {
        let folder = Folder::new();
        let zone = folder.zone();
        let (clock, hard, any) = (AtomicU64::new(1), AtomicU64::new(0), AtomicU64::new(0));
        Self { zone, numbers: Arc::new(Numbers { clock, hard, any, _folder: folder }) }
    }

    fn tick(&self) -> u64 {
        self.numbers.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn floors(&self) -> (u64, u64) {
        let Numbers { hard, any, .. } = &*self.numbers;
        (hard.load(Ordering::SeqCst), any.load(Ordering::SeqCst))
    }

    fn purge(&self, purge: Purge, mode: PurgeMode) {
        let reading = self.tick();
        self.zone.purge(&[purge], mode).unwrap();
        if mode == PurgeMode::Hard {
            self.numbers.hard.fetch_max(reading, Ordering::SeqCst);
        }
        self.numbers.any.fetch_max(reading, Ordering::SeqCst);
    }

    /// A request changed the page at its origin.
    fn change(&self) {
        let reading = self.tick();
        self.zone.changed(&key(), false, None);
        if self.zone.peek(&key()).is_some() || self.zone.may_be_on_disk(&key()) {
            self.zone.purge(&[by_page()], PurgeMode::Hard).unwrap();
        }
        self.numbers.hard.fetch_max(reading, Ordering::SeqCst);
        self.numbers.any.fetch_max(reading, Ordering::SeqCst);
    }

    /// The next process, with what the last one left on the disk.
    fn restarted(self) -> Self {
        let Self { zone, numbers } = self;
        let options = zone.options().clone();
        drop(zone);
        Self { zone: Arc::new(Zone::open(options).unwrap()), numbers }
    }

    fn head(&self, making: &Making) -> EntryHead {
        EntryHead {
            key: Bytes::copy_from_slice(key().as_bytes()),
            status: 200,
            began: making.moment(),
            born_at: i64::try_from(self.tick()).unwrap(),
            fresh_until: i64::MAX,
            tags: vec![Bytes::from_static(b"site\0t")],
            ..EntryHead::default()
        }
    }

    fn store(&self, head: EntryHead, body: &'static [u8], making: &Making) -> Option<Arc<Entry>> {
        let entry = Arc::new(self.zone.seal(head, Bytes::from_static(body), 0));
        self.zone.insert(&key(), &entry, making).then(|| {
            self.zone.write(&key(), &entry, 0, making).unwrap();
            entry
        })
    }

    /// Makes the page as one without waiters.
    fn make(&self) {
        let making = self.zone.begin();
        self.store(self.head(&making), b"page", &making);
    }

    /// Makes it as one that others wait for; `is_read_along`: while it arrives.
    fn make_for_all(&self, mut guard: FillGuard, is_read_along: bool) {
        let making = Arc::new(self.zone.begin());
        guard.started(&making);
        let head = self.head(&making);
        if is_read_along {
            let filling = self.zone.filling(head.clone(), Some(4));
            guard = guard.begin(filling.flow()).expect("it may answer others");
            filling.push(&Bytes::from_static(b"pa"));
            filling.push(&Bytes::from_static(b"ge"));
            filling.end();
        }
        let entry = Arc::new(self.zone.seal(head, Bytes::from_static(b"page"), 0));
        if !self.zone.insert(&key(), &entry, &making) {
            return;
        }
        guard.stored(Arc::clone(&entry));
        self.zone.write(&key(), &entry, 0, &making).unwrap();
    }

    fn check(&self, head: &EntryHead, (hard, any): (u64, u64), way: &str) {
        let reading = u64::try_from(head.born_at).unwrap();
        let floor = if head.is_purged { hard } else { any };
        assert!(reading >= floor, "{way}: of {reading}, purged at {floor}");
    }

    /// What is found in either tier.
    fn look(&self) -> Option<Arc<Entry>> {
        let floors = self.floors();
        let found = self.zone.peek(&key());
        let found = found.or_else(|| self.zone.load(&key(), 0).unwrap().map(|(entry, _)| entry));
        if let Some(entry) = &found {
            self.check(&entry.head, floors, "look");
            assert_eq!(Zone::body(entry).unwrap(), "page");
        }
        found
    }

    /// Asks for the page as a request does.
    fn request(&self, is_read_along: bool) {
        let floors = self.floors();
        if let Some(entry) = self.zone.peek(&key()) {
            return self.check(&entry.head, floors, "hit");
        }
        loop {
            match self.zone.claim(&key(), self.now(), Duration::from_secs(1000)) {
                Claim::Maker(guard) => return self.make_for_all(guard, is_read_along),
                Claim::Taken(waiter) => match block_on(waiter.woken()) {
                    Woken::Stored(entry) => return self.check(&entry.head, floors, "fill"),
                    Woken::Flowing(flow) => {
                        self.check(&flow.head, floors, "flow");
                        return assert_eq!(read(&flow), Some(Ok(4)));
                    }
                    Woken::Free => {}
                },
            }
        }
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn thread(&self, act: impl FnOnce(&Self) + Send + 'static) -> JoinHandle<()> {
        let world = self.clone();
        spawn(move || act(&world))
    }
}

/// The bytes of a body that is read along; `None` if its start is gone.
fn read(flow: &Arc<yorozu_cache::Flow>) -> Option<Result<u64, Broken>> {
    let (mut reader, mut bytes) = (flow.follow()?, 0);
    loop {
        match block_on(reader.next()) {
            Ok(Some(yorozu_cache::Piece::Memory(piece))) => bytes += piece.len() as u64,
            Ok(Some(yorozu_cache::Piece::File(..))) => panic!("no file"),
            Ok(None) => return Some(Ok(bytes)),
            Err(Broken) => return Some(Err(Broken)),
        }
    }
}

fn joined(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Two ask for a page that is missing, and a purge comes between.
fn two_claimants_and_a_purge() {
    for (purge, is_read_along) in [(by_page(), false), (by_tag(), false), (by_tag(), true)] {
        let world = World::new();
        joined([
            world.thread(move |world| world.request(is_read_along)),
            world.thread(move |world| world.request(is_read_along)),
            world.thread(move |world| {
                world.purge(purge, PurgeMode::Hard);
                world.request(is_read_along);
            }),
        ]);
        world.look();
    }
}

/// A maker breaks off while others read along: they notice, and one of those who wait makes it.
fn a_maker_breaks_off() {
    let world = World::new();
    let Claim::Maker(mut guard) = world.zone.claim(&key(), world.now(), Duration::MAX) else {
        panic!("no other request asks")
    };
    let follower = |world: &World| {
        let Some(waiter) = world.zone.join(&key()) else { return world.request(true) };
        match block_on(waiter.woken()) {
            // By the first maker, or by one who took over from it.
            Woken::Flowing(flow) => assert!(matches!(read(&flow), Some(Err(Broken) | Ok(4)))),
            Woken::Stored(_) => {}
            Woken::Free => {
                drop(waiter);
                world.request(true);
            }
        }
    };
    joined([
        world.thread(move |world| {
            let making = Arc::new(world.zone.begin());
            guard.started(&making);
            let filling = world.zone.filling(world.head(&making), None);
            guard = guard.begin(filling.flow()).expect("it may answer others");
            filling.push(&Bytes::from_static(b"pa"));
            drop(filling);
            drop(guard);
        }),
        world.thread(follower),
        world.thread(follower),
        world.thread(|world| {
            let floors = world.floors();
            if let Claim::Taken(waiter) = world.zone.claim(&key(), world.now(), Duration::MAX) {
                if let Woken::Flowing(flow) = block_on(waiter.woken()) {
                    world.check(&flow.head, floors, "flow");
                    let _ = read(&flow);
                }
            }
        }),
    ]);
    assert!(!world.zone.is_claimed(&key()), "all have gone");
}

/// A body that is not stored is let go as it is taken: a reader that began in time gets all of it, and
/// its maker waits for the slowest.
fn a_body_is_passed_on() {
    let filling = Filling::new(EntryHead::default(), None, &Account::default());
    let own = filling.flow().follow().unwrap();
    let threads = (0..2).map(|_| {
        let flow = Arc::clone(filling.flow());
        spawn(move || assert!(matches!(read(&flow), None | Some(Ok(6)))))
    });
    let threads: Vec<_> = threads.collect();
    let client = spawn(move || {
        let (mut own, mut bytes) = (own, 0);
        while let Some(yorozu_cache::Piece::Memory(piece)) = block_on(own.next()).unwrap() {
            bytes += piece.len();
        }
        assert_eq!(bytes, 6);
    });
    for piece in ["pa", "ge", "s."] {
        filling.push(&Bytes::from_static(piece.as_bytes()));
        filling.pass_on();
        while !filling.is_taken() && !filling.is_abandoned() {
            block_on(filling.taken());
        }
    }
    filling.end();
    joined(threads);
    client.join().unwrap();
}

/// A page is put into memory and written, while it is purged and purges are forgotten; then the process ends.
fn insert_purge_write_and_the_next_start() {
    for mode in [PurgeMode::Hard, PurgeMode::Soft] {
        let world = World::new();
        world.zone.scan(0, &|| true);
        joined([
            world.thread(World::make),
            world.thread(move |world| {
                world.purge(by_tag(), mode);
                world.look();
            }),
            world.thread(|world| {
                assert!(world.zone.evict(0, &|| true).problems.is_empty());
                world.look();
            }),
        ]);
        world.look();
        world.restarted().look();
    }
}

/// A stored page is purged softly and hard, while it is renewed as by a 304.
fn soft_purge_hard_purge_and_renewal() {
    let world = World::new();
    world.make();
    joined([
        world.thread(|world| {
            world.purge(by_page(), PurgeMode::Soft);
            world.look();
        }),
        world.thread(|world| {
            world.purge(by_tag(), PurgeMode::Hard);
            world.look();
        }),
        world.thread(|world| {
            let Some(entry) = world.look() else { return };
            shuttle::thread::yield_now();
            let (hard, any) = world.floors();
            let Some(making) = world.zone.begin_from(&key(), &entry) else { return };
            world.check(&entry.head, (hard, any), "built on");
            let EntryHead { began, born_at, .. } = world.head(&making);
            let head = EntryHead { began, born_at, is_purged: false, ..entry.head.clone() };
            let renewed = Arc::new(Zone::renewed(&entry, head, 0));
            if world.zone.insert(&key(), &renewed, &making) {
                world.zone.write(&key(), &renewed, 0, &making).unwrap();
            }
        }),
    ]);
    world.look();
}

/// Of two makers of a page, the one that began first may end last.
fn an_older_maker_ends_last() {
    let world = World::new();
    joined([
        world.thread(|world| {
            let first = world.zone.begin();
            let second = world.zone.begin();
            let (old, new) = (world.head(&first), world.head(&second));
            let newest = new.born_at;
            let late = world.thread(move |world| {
                world.store(old, b"page", &first);
            });
            world.store(new, b"page", &second);
            late.join().unwrap();
            assert_eq!(world.look().unwrap().head.born_at, newest);
        }),
        world.thread(|world| {
            world.zone.evict(0, &|| true);
        }),
    ]);
    let newest = world.look().unwrap().head.born_at;
    assert_eq!(world.restarted().look().unwrap().head.born_at, newest);
}

/// A reload opens another zone on the folder while the old one's requests go on.
fn two_zones_and_a_purge() {
    let world = World::new();
    world.make();
    let mut options = world.zone.options().clone();
    options.disk.inactive += 1;
    let next =
        World { zone: Arc::new(Zone::open(options).unwrap()), numbers: Arc::clone(&world.numbers) };
    joined([
        world.thread(World::make),
        next.thread(|world| {
            world.look();
            world.make();
        }),
        next.thread(|world| {
            world.purge(by_tag(), PurgeMode::Hard);
            world.look();
        }),
    ]);
    world.look();
    next.look();
}

/// A file is read while its page is purged, the file removed and the purge forgotten.
fn a_slow_reader() {
    let world = World::new();
    world.make();
    let world = world.restarted();
    world.zone.scan(0, &|| true);
    joined([
        world.thread(|world| {
            world.look();
        }),
        world.thread(|world| world.purge(by_page(), PurgeMode::Hard)),
        world.thread(|world| {
            world.zone.evict(0, &|| true);
        }),
    ]);
    world.look();
}

/// A request changes a page while another one makes it.
fn a_page_is_changed_while_it_is_made() {
    for is_read_along in [false, true] {
        let world = World::new();
        world.zone.scan(0, &|| true);
        joined([
            world.thread(move |world| world.request(is_read_along)),
            world.thread(move |world| {
                world.change();
                world.request(is_read_along);
            }),
            world.thread(|world| {
                world.zone.evict(0, &|| true);
            }),
        ]);
        world.look();
        world.restarted().look();
    }
}

const RACES: [(&str, fn()); 9] = [
    ("a body is passed on", a_body_is_passed_on),
    ("a slow reader", a_slow_reader),
    ("a page is changed while it is made", a_page_is_changed_while_it_is_made),
    ("two claimants and a purge", two_claimants_and_a_purge),
    ("a maker breaks off", a_maker_breaks_off),
    ("insert, purge, write and the next start", insert_purge_write_and_the_next_start),
    ("soft purge, hard purge and renewal", soft_purge_hard_purge_and_renewal),
    ("an older maker ends last", an_older_maker_ends_last),
    ("two zones and a purge", two_zones_and_a_purge),
];

#[test]
fn every_order_that_is_tried_holds() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("SEED").unwrap_or(1);
    let wanted = std::env::var("RACE").unwrap_or_default();
    /// Changes of threads at places of its choice that PCT bounds a schedule to.
    const DEPTH: usize = 4;
    println!("seed {seed}");
    let races = RACES.into_iter().filter(|(name, _)| name.contains(&wanted)).collect::<Vec<_>>();
    let parts = u32::try_from(races.len() * 2).unwrap();
    let time = number("SECONDS").map(|seconds| Duration::from_secs(seconds) / parts);
    for (name, race) in races {
        println!("{name}");
        let pct = |seed, count| PctScheduler::new_from_seed(seed, DEPTH, count);
        let drawn = run(RandomScheduler::new_from_seed, seed, time, race);
        let by_pct = run(pct, seed, time, race);
        println!(
            "    at random {} schedules, {} steps; by PCT {} schedules, {} steps",
            drawn.0, drawn.1, by_pct.0, by_pct.1
        );
    }
}
