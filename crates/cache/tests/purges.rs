//! What began before an acknowledged purge is not served after it, in every race: readers, makers, fills, late writes, purges
//! of every kind, the manager, reloads and restarts, on threads: three rounds of a fixed number of answers, or as many as
//! `SECONDS` has room for. `SEED` is that of the first round; the threads' timing is not repeated with it.
//!
//! Each body names its page, and carries the reading of one counter from when its making had begun. A purge takes a reading
//! before it is asked for; once it is done, a request that begins then may find nothing with a smaller one.

#![allow(clippy::disallowed_methods, reason = "a test begins at some time")]
#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use bytes::Bytes;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};
use yorozu_cache::{
    Account, Claim, DiskOptions, Entry, EntryBody, EntryHead, Filling, Key, Levels, Making, Pace,
    Piece, Purge, PurgeMode, Woken, Zone, ZoneOptions,
};

/// Variants of each page.
const VARIANTS: usize = 2;
const SECTIONS: usize = 4;
const THREADS: u64 = 4;
/// Rounds, and how many answers and how many purges each has at least.
const ROUNDS: (u64, u64) = (3, 96);

struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Readings below which nothing may be served any more: by hard purges, and by hard and soft ones.
#[derive(Default)]
struct Floor {
    hard: AtomicU64,
    any: AtomicU64,
}

impl Floor {
    fn raise(&self, mode: PurgeMode, to: u64) {
        if mode == PurgeMode::Hard {
            self.hard.fetch_max(to, Ordering::SeqCst);
        }
        self.any.fetch_max(to, Ordering::SeqCst);
    }
}

#[derive(Clone, Copy, Debug)]
struct Floors {
    hard: u64,
    any: u64,
}

/// A stored page, found again by its parts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Page {
    section: usize,
    number: usize,
    variant: usize,
}

impl Page {
    fn url(self) -> Key {
        Key::new(format!("http://GETsite/s{}/p{:05}", self.section, self.number).into())
    }

    fn key(self) -> Key {
        match self.variant {
            0 => self.url(),
            variant => self.url().variant(&[u8::try_from(variant).unwrap(); 16]),
        }
    }

    fn tags(self) -> Vec<Bytes> {
        let (section, number) = (self.section, self.number);
        vec![
            "h\0all".into(),
            format!("h\0s{section}").into(),
            format!("h\0p{section}.{number}").into(),
        ]
    }

    /// Its body in the version of a reading.
    fn body(self, reading: u64, is_large: bool) -> Bytes {
        let times = if is_large { 3000 } else { 10 };
        let (section, number, variant) = (self.section, self.number, self.variant);
        format!("{section}/{number}/{variant} of {reading};").repeat(times).into()
    }
}

struct Round {
    folder: PathBuf,
    pages: usize,
    is_bounded: bool,
    /// The zone of the present configuration, and its number.
    zone: RwLock<(u64, Arc<Zone>)>,
    clock: AtomicU64,
    all: Floor,
    sections: Vec<Floor>,
    urls: Vec<Floor>,
    seen: Vec<AtomicU64>,
    is_over: AtomicBool,
    wrong: Mutex<Vec<String>>,
    beginning: Mutex<()>,
    served: AtomicU64,
    purges: AtomicU64,
}

/// A page that is to be written behind its making.
type Late = (Arc<Zone>, Key, Arc<Entry>, Arc<Making>);

impl Round {
    fn options(&self, inactive: i64) -> ZoneOptions {
        let pace = Pace { files: 50, sleep: Duration::from_micros(50), threshold: Duration::MAX };
        let disk = DiskOptions {
            path: self.folder.clone(),
            levels: Levels::parse("1:2").unwrap(),
            max_size: self.is_bounded.then_some(300_000),
            min_free: None,
            files_max: 100_000,
            inactive,
            loader: pace,
            manager: pace,
        };
        ZoneOptions { memory_bytes: if self.is_bounded { 1 << 18 } else { 1 << 26 }, disk }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn zone(&self) -> Arc<Zone> {
        Arc::clone(&self.zone.read().unwrap().1)
    }

    fn place(&self, page: Page) -> usize {
        page.section * self.pages + page.number
    }

    fn floors(&self, page: Page) -> Floors {
        let all = [&self.all, &self.sections[page.section], &self.urls[self.place(page)]];
        let most = |of: fn(&Floor) -> &AtomicU64| {
            all.iter().map(|floor| of(floor).load(Ordering::SeqCst)).max().unwrap()
        };
        Floors { hard: most(|floor| &floor.hard), any: most(|floor| &floor.any) }
    }

    fn any_page(&self, draw: &mut Draw) -> Page {
        // A few pages are asked for often, so that there are always requests for them.
        let number =
            if draw.one_in(2) { draw.below(self.pages.min(4)) } else { draw.below(self.pages) };
        Page { section: draw.below(SECTIONS), number, variant: draw.below(VARIANTS) }
    }

    fn say(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    /// Checks what a request that began with these floors was given.
    fn check(&self, page: Page, head: &EntryHead, body: &[u8], floors: Floors, way: &str) {
        self.served.fetch_add(1, Ordering::Relaxed);
        let reading = u64::try_from(head.born_at).unwrap();
        let made = u64::try_from(head.fresh_until).unwrap();
        let floor = if head.is_purged { floors.hard } else { floors.any };
        if reading < floor {
            self.say(format!(
                "{way}: {page:?} of {reading} though purged at {floor} ({floors:?}, {:?})",
                head.began
            ));
        }
        if head.key != page.key().as_bytes() || body != page.body(made, body.len() > 10_000) {
            self.say(format!("{way}: {page:?} of {made} has a foreign or torn body"));
        }
    }

    /// Checks that no newer page was served from the same zone before this request began. A reload loses what is
    /// not written.
    fn check_order(&self, page: Page, head: &EntryHead, (seen, zone): (u64, u64), way: &str) {
        const BITS: u32 = 40;
        let reading = u64::try_from(head.born_at).unwrap();
        let latest = seen & ((1 << BITS) - 1);
        if !self.is_bounded && seen >> BITS == zone && reading < latest {
            self.say(format!("{way}: {page:?} of {reading} behind {latest}"));
        }
        let seen = &self.seen[self.place(page) * VARIANTS + page.variant];
        seen.fetch_max(zone << BITS | reading, Ordering::SeqCst);
    }

    fn check_entry(&self, page: Page, entry: &Entry, floors: Floors, way: &str) {
        self.check(page, &entry.head, &Zone::body(entry).unwrap(), floors, way);
    }
}

/// One of those who ask for pages.
struct Worker {
    round: Arc<Round>,
    draw: Draw,
    late: Sender<Late>,
    runtime: tokio::runtime::Runtime,
    /// A request of an old configuration is answered from its zone.
    own: Option<Arc<Zone>>,
}

impl Worker {
    fn run(mut self) {
        while !self.round.is_over.load(Ordering::Relaxed) {
            let page = self.round.any_page(&mut self.draw);
            if self.draw.one_in(30) {
                self.own = self.draw.one_in(2).then(|| self.round.zone());
            }
            self.request(page);
        }
    }

    fn request(&mut self, page: Page) {
        let round = Arc::clone(&self.round);
        let seen = round.seen[round.place(page) * VARIANTS + page.variant].load(Ordering::SeqCst);
        let floors = round.floors(page);
        let is_old = self.own.is_some();
        let (number, zone) = round.zone.read().unwrap().clone();
        let (seen, zone) = ((seen, number), self.own.clone().unwrap_or(zone));
        let key = page.key();
        if let Some(entry) = zone.peek(&key) {
            round.check_entry(page, &entry, floors, "memory");
            if !is_old {
                round.check_order(page, &entry.head, seen, "memory");
            }
            return self.after_hit(&zone, page, &entry, floors);
        }
        if zone.may_be_on_disk(&key) {
            match zone.load(&key, 0) {
                Ok(Some((entry, _))) => {
                    round.check_entry(page, &entry, floors, "disk");
                    if !is_old {
                        round.check_order(page, &entry.head, seen, "disk");
                    }
                    return;
                }
                Ok(None) => {}
                Err(problem) => round.say(problem.to_string()),
            }
        }
        for _ in 0..3 {
            let age = Duration::from_micros(if self.draw.one_in(20) { 0 } else { 5000 });
            match zone.claim(&key, Instant::now(), age) {
                Claim::Maker(guard) => return self.make(&zone, page, guard),
                Claim::Taken(waiter) => {
                    let woken = async {
                        tokio::time::timeout(Duration::from_millis(3), waiter.woken()).await
                    };
                    match self.runtime.block_on(woken) {
                        Ok(Woken::Stored(entry)) => {
                            return round.check_entry(page, &entry, floors, "fill");
                        }
                        Ok(Woken::Flowing(flow)) => {
                            let body = self.runtime.block_on(read_along(&flow));
                            if let Some(body) = body {
                                round.check(page, &flow.head, &body, floors, "flow");
                            }
                            return;
                        }
                        Ok(Woken::Free) | Err(_) => {}
                    }
                }
            }
        }
    }

    fn pause(&mut self) {
        match self.draw.below(8) {
            0 => std::thread::sleep(Duration::from_micros(self.draw.next() % 2000)),
            1..4 => std::thread::yield_now(),
            _ => {}
        }
    }

    fn make(&mut self, zone: &Arc<Zone>, page: Page, mut guard: yorozu_cache::FillGuard) {
        self.pause();
        let (making, reading) = {
            // So that the readings of two makers stand in the order of their beginnings.
            let _alone = self.round.beginning.lock().unwrap();
            let making = Arc::new(zone.begin());
            guard.started(&making);
            (making, self.round.tick())
        };
        self.pause();
        let is_large = self.draw.one_in(50);
        let body = page.body(reading, is_large);
        let reading = i64::try_from(reading).unwrap();
        let head = EntryHead {
            key: Bytes::copy_from_slice(page.key().as_bytes()),
            began: making.moment(),
            born_at: reading,
            fresh_until: reading,
            tags: page.tags(),
            body_bytes: body.len() as u64,
            body_crc: crc32fast::hash(&body),
            ..EntryHead::default()
        };
        let mut flow = None;
        if self.draw.one_in(2) {
            let filling = Filling::new(head.clone(), None, &Account::default());
            guard = guard.begin(filling.flow()).expect("it may answer others");
            for chunk in body.chunks(body.len() / 3 + 1) {
                self.pause();
                filling.push(&body.slice_ref(chunk));
            }
            flow = Some(filling);
        }
        if self.draw.one_in(12) {
            // It fails at its end.
            return;
        }
        if let Some(filling) = flow {
            filling.end();
        }
        let body = if body.len() as u64 > zone.memory_body_max() {
            let mut spool = zone.spool().unwrap();
            spool.write(&body).unwrap();
            spool.into_body()
        } else {
            EntryBody::Memory(zone.hold(body))
        };
        let entry = Arc::new(Entry::new(head, body, 0));
        self.store(zone, page, entry, making, Some(guard));
    }

    fn store(
        &mut self,
        zone: &Arc<Zone>,
        page: Page,
        entry: Arc<Entry>,
        making: Arc<Making>,
        guard: Option<yorozu_cache::FillGuard>,
    ) {
        let key = page.key();
        if !zone.insert(&key, &entry, &making) {
            return;
        }
        if let Some(guard) = guard {
            guard.stored(Arc::clone(&entry));
        }
        self.pause();
        if self.draw.one_in(3) {
            let _ = self.late.send((Arc::clone(zone), key, entry, making));
        } else if let Err(problem) = zone.write(&key, &entry, 0, &making) {
            self.round.say(problem.to_string());
        }
    }

    /// A coded form is made, or the page is renewed.
    fn after_hit(&mut self, zone: &Arc<Zone>, page: Page, entry: &Arc<Entry>, floors: Floors) {
        let key = page.key();
        match self.draw.below(12) {
            0 if entry.forms[0].claim() => {
                entry.forms[0].keep(1, zone.hold(Bytes::from_static(b"coded")));
                zone.reweigh(&key, entry);
                self.pause();
                let _ = zone.rewrite(&key, entry, 0);
            }
            1 => {
                self.pause();
                let now = self.round.floors(page);
                let alone = self.round.beginning.lock().unwrap();
                let Some(making) = zone.begin_from(&key, entry) else { return };
                let floor = if entry.head.is_purged { now.hard } else { now.any };
                if u64::try_from(entry.head.born_at).unwrap() < floor {
                    self.round.say(format!("{page:?}: builds on {floors:?}, purged at {floor}"));
                }
                let born_at = i64::try_from(self.round.tick()).unwrap();
                drop(alone);
                self.pause();
                let began = making.moment();
                let head = EntryHead { began, born_at, is_purged: false, ..entry.head.clone() };
                let renewed = Arc::new(Zone::renewed(entry, head, 0));
                self.store(zone, page, renewed, Arc::new(making), None);
            }
            _ => {}
        }
    }
}

async fn read_along(flow: &Arc<yorozu_cache::Flow>) -> Option<Vec<u8>> {
    let (mut reader, mut body) = (flow.follow()?, Vec::new());
    loop {
        let piece = tokio::time::timeout(Duration::from_secs(60), reader.next()).await;
        match piece.expect("the maker ends") {
            Ok(Some(Piece::Memory(bytes))) => body.extend_from_slice(&bytes),
            Ok(Some(Piece::File(..))) => return None,
            Ok(None) => return Some(body),
            Err(_) => return None,
        }
    }
}

fn purge(round: &Round, draw: &mut Draw) {
    let mode = if draw.one_in(3) { PurgeMode::Soft } else { PurgeMode::Hard };
    let mut purges = Vec::new();
    let mut floors = Vec::new();
    for _ in 0..=draw.below(3) {
        let page = round.any_page(draw);
        let (section, number) = (page.section, page.number);
        let (purge, floor) = match draw.below(20) {
            0..6 => (Purge::Page(page.url()), &round.urls[round.place(page)]),
            6..12 => {
                let tag =
                    format!("{}p{section}.{number}", if draw.one_in(2) { "h\0" } else { "\0" });
                (Purge::Tag(tag.into()), &round.urls[round.place(page)])
            }
            12..15 => (Purge::Tag(format!("h\0s{section}").into()), &round.sections[section]),
            15..18 => (
                Purge::Prefix(format!("http://GETsite/s{section}/").into()),
                &round.sections[section],
            ),
            18 => (Purge::Tag("h\0all".into()), &round.all),
            _ => (Purge::All, &round.all),
        };
        purges.push(purge);
        floors.push(floor);
    }
    let zone = round.zone();
    let reading = round.tick();
    if let Err(problem) = zone.purge(&purges, mode) {
        return round.say(problem.to_string());
    }
    floors.iter().for_each(|floor| floor.raise(mode, reading));
    round.purges.fetch_add(1, Ordering::Relaxed);
}

/// Writes what was stored, later; a restart loses it.
fn write_late(round: &Round, late: &Receiver<Late>, draw: &mut Draw) {
    while let Ok((zone, key, entry, making)) = late.recv() {
        std::thread::sleep(Duration::from_micros(draw.next() % 1000));
        if !round.is_over.load(Ordering::Relaxed) {
            let _ = zone.write(&key, &entry, 0, &making);
        }
    }
}

fn manage(round: &Round, draw: &mut Draw) {
    while !round.is_over.load(Ordering::Relaxed) {
        let zone = round.zone();
        let steps = draw.below(40);
        let left = std::cell::Cell::new(steps);
        let is_wanted = || {
            left.set(left.get().saturating_sub(1));
            left.get() > 0
        };
        zone.scan(0, &is_wanted);
        if let Some(problem) = zone.evict(0, &|| true).problems.first() {
            round.say(problem.to_string());
        }
        drop(zone);
        std::thread::sleep(Duration::from_micros(draw.next() % 3000));
    }
}

/// A life of the process, one of `lives` of a round: reloads change the options, and its end loses what was not written.
fn life(round: &Arc<Round>, draw: &mut Draw, lives: u64) {
    /// Parts of a life, behind each of which there may be a reload.
    const PARTS: u64 = 4;
    round.is_over.store(false, Ordering::SeqCst);
    round.seen.iter().for_each(|seen| seen.store(0, Ordering::SeqCst));
    let mut threads = Vec::new();
    let (late, behind) = mpsc::channel();
    let seed = draw.next();
    let spawn = |work: Box<dyn FnOnce() + Send>| std::thread::spawn(work);
    for number in 0..THREADS {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let worker = Worker {
            round: Arc::clone(round),
            draw: Draw(seed ^ (number + 1) << 32 | 1),
            late: late.clone(),
            runtime,
            own: None,
        };
        threads.push(spawn(Box::new(move || worker.run())));
    }
    drop(late);
    for number in 0..2 {
        let (round, mut draw) = (Arc::clone(round), Draw(seed ^ (number + 9) << 40 | 1));
        threads.push(spawn(Box::new(move || {
            while !round.is_over.load(Ordering::Relaxed) {
                purge(&round, &mut draw);
                std::thread::sleep(Duration::from_micros(draw.next() % 4000));
            }
        })));
    }
    let (of_writer, mut writer_draw) = (Arc::clone(round), Draw(seed | 5));
    threads.push(spawn(Box::new(move || write_late(&of_writer, &behind, &mut writer_draw))));
    let (of_manager, mut manager_draw) = (Arc::clone(round), Draw(seed | 3));
    threads.push(spawn(Box::new(move || manage(&of_manager, &mut manager_draw))));
    let done = || round.served.load(Ordering::Relaxed).min(round.purges.load(Ordering::Relaxed));
    for _ in 0..PARTS {
        let enough = done() + ROUNDS.1 / lives / PARTS;
        while done() < enough && round.wrong.lock().unwrap().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if draw.one_in(3) {
            let inactive = 600 + i64::try_from(draw.below(1000)).unwrap();
            let zone = Arc::new(Zone::open(round.options(inactive)).unwrap());
            let mut present = round.zone.write().unwrap();
            *present = (present.0 + 1, zone);
        }
    }
    round.is_over.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // The process ends right behind these: the manager removes no file for them.
    (0..4).for_each(|_| purge(round, draw));
}

fn round(seed: u64) -> (u64, u64) {
    let mut draw = Draw(seed | 1);
    (0..9).for_each(|_| _ = draw.next());
    let pages = [1, 12, 1250][draw.below(3)];
    let folder = std::env::temp_dir().join(format!("yorozu-purges.{}.{seed}", std::process::id()));
    let floors = |count: usize| (0..count).map(|_| Floor::default()).collect::<Vec<_>>();
    let is_bounded = draw.one_in(2);
    let mut round = Round {
        zone: RwLock::new((0, Arc::new(Zone::open(outside(&folder)).unwrap()))),
        folder: folder.clone(),
        pages,
        is_bounded,
        clock: AtomicU64::new(1),
        all: Floor::default(),
        sections: floors(SECTIONS),
        urls: floors(SECTIONS * pages),
        seen: (0..SECTIONS * pages * VARIANTS).map(|_| AtomicU64::new(0)).collect(),
        is_over: AtomicBool::new(false),
        wrong: Mutex::default(),
        beginning: Mutex::default(),
        served: AtomicU64::new(0),
        purges: AtomicU64::new(0),
    };
    let lives = 1 + draw.below(4);
    for _ in 0..lives {
        // The process starts: nothing of the one before it is left but the folder.
        let options = round.options(600);
        round.zone = RwLock::new((0, Arc::new(Zone::open(outside(&folder)).unwrap())));
        round.zone = RwLock::new((1, Arc::new(Zone::open(options).unwrap())));
        let shared = Arc::new(round);
        life(&shared, &mut draw, lives as u64);
        round = Arc::into_inner(shared).expect("all threads have ended");
    }
    let counts = (round.served.into_inner(), round.purges.into_inner());
    let wrong = round.wrong.into_inner().unwrap();
    drop(round.zone);
    let _ = std::fs::remove_dir_all(&folder);
    let _ = std::fs::remove_dir_all(folder.with_extension("outside"));
    let shown = wrong.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    let kind = format!("{pages} pages a section, bounded: {is_bounded}, {lives} lives");
    assert!(wrong.is_empty(), "seed {seed}, {kind}: {} wrong:\n{shown}", wrong.len());
    counts
}

/// Some zone in the place of the round's, so that no zone has its folder open.
fn outside(folder: &std::path::Path) -> ZoneOptions {
    let disk = DiskOptions {
        path: folder.with_extension("outside"),
        levels: Levels::default(),
        max_size: None,
        min_free: None,
        files_max: 1,
        inactive: 1,
        loader: Pace::default(),
        manager: Pace::default(),
    };
    ZoneOptions { memory_bytes: 1 << 16, disk }
}

#[test]
fn nothing_of_before_a_purge_is_served_after_it() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, begun) = (number("SEED").unwrap_or(1), Instant::now());
    let end = number("SECONDS").map(|seconds| begun + Duration::from_secs(seconds));
    println!("SEED={first}");
    let (mut rounds, mut served, mut purges) = (0, 0, 0);
    while end.map_or(rounds < ROUNDS.0, |end| Instant::now() < end) {
        let counts = round(first.wrapping_add(rounds));
        (served, purges) = (served + counts.0, purges + counts.1);
        rounds += 1;
    }
    println!("{rounds} rounds, {served} answers, {purges} purges");
}
