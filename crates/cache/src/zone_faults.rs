//! Fault injection: after any failed call of the disk tier, and after an end of the process at any point,
//! a zone serves only whole pages.

use crate::disk::DiskOptions;
use crate::entry::{Entry, EntryHead};
use crate::files::faults::{self, Fault};
use crate::levels::Levels;
use crate::pace::Pace;
use crate::{Key, Purge, PurgeMode, Zone, ZoneOptions};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("yorozu-faults.{}.{number}", std::process::id())))
    }

    fn zone(&self) -> Zone {
        let disk = DiskOptions {
            path: self.0.clone(),
            levels: Levels::parse("1:2").unwrap(),
            max_size: Some(1 << 20),
            min_free: None,
            files_max: 4,
            inactive: 600,
            loader: Pace::default(),
            manager: Pace::default(),
        };
        Zone::open(ZoneOptions { memory_bytes: 1 << 16, disk }).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key(number: u32) -> Key {
    Key::new(format!("http://GETsite/{number}").into())
}

/// The bytes of a page in one of its versions; page 3 is too large for memory.
fn page(number: u32, version: u32) -> Bytes {
    let times = if number == 3 { 3000 } else { 40 };
    format!("page {number} in version {version};").repeat(times).into()
}

fn store(zone: &Zone, number: u32, version: u32) {
    let bytes = page(number, version);
    let making = zone.begin();
    let head = EntryHead {
        began: making.moment(),
        key: Bytes::copy_from_slice(key(number).as_bytes()),
        status: 200,
        stored_at: version.into(),
        body_bytes: bytes.len() as u64,
        body_crc: crc32fast::hash(&bytes),
        ..EntryHead::default()
    };
    let body = if bytes.len() as u64 > zone.memory_body_max() {
        let Ok(mut spool) = zone.spool() else { return };
        if spool.write(&bytes).is_err() {
            return;
        }
        spool.into_body()
    } else {
        crate::EntryBody::Memory(zone.hold(bytes))
    };
    let entry = Arc::new(Entry::new(head, body, 0));
    zone.insert(&key(number), &entry, &making);
    let _ = zone.write(&key(number), &entry, version.into(), &making);
    if number == 1 {
        entry.forms[0].keep(1, zone.hold(format!("coded {version}").into()));
        let _ = zone.rewrite(&key(number), &entry, version.into());
    }
}

/// What a running server does; results are the log's.
fn work(zone: &Zone) {
    for version in [2, 3] {
        for number in 0..6 {
            store(zone, number, version);
        }
        let _ = zone.purge(&[Purge::Page(key(2))], PurgeMode::Hard);
        let _ = zone.purge(&[Purge::Prefix("http://GETsite/4".into())], PurgeMode::Soft);
        for number in 0..6 {
            let _ = zone.load(&key(number), 5);
        }
        zone.scan(6, &|| true);
        let _ = zone.evict(6, &|| true);
    }
}

/// Every page a zone has is one that was made, whole; returns how many it has.
fn check(zone: &Zone, what: &str) -> usize {
    let mut found = 0;
    for number in 0..6 {
        // Damage would be noticed and said; no fault may cause any under a page's own name.
        let entry = zone.load(&key(number), 9).unwrap_or_else(|error| panic!("{what}: {error}"));
        let Some((entry, _)) = entry else { continue };
        found += 1;
        let body = Zone::body(&entry).unwrap();
        let version = (1..4).find(|version| page(number, *version) == body);
        let version = version.unwrap_or_else(|| panic!("{what}: page {number} is torn"));
        assert_eq!(entry.head.stored_at, i64::from(version), "{what}");
        if let Some((_, coded)) = entry.forms[0].made() {
            assert_eq!(&coded[..], format!("coded {version}").as_bytes(), "{what}");
        }
    }
    found
}

#[test]
fn every_call_may_fail_and_nothing_is_torn_or_lost_that_was_there() {
    const FAULTS: [Fault; 5] = [
        Fault::Once(nix::libc::ENOSPC),
        Fault::Once(nix::libc::EIO),
        Fault::Once(nix::libc::EMFILE),
        Fault::Short,
        Fault::Crash,
    ];
    for fault in FAULTS {
        let mut nth = 0;
        loop {
            let folder = Folder::new();
            let zone = folder.zone();
            for number in 0..4 {
                store(&zone, number, 1);
            }
            faults::plan(nth, fault);
            work(&zone);
            let happened = faults::clear();
            let what = format!("{fault:?} at call {nth}");
            if fault != Fault::Crash {
                check(&zone, &format!("{what}, same process"));
            }
            drop(zone);
            let found = check(&folder.zone(), &format!("{what}, next process"));
            assert!(found >= 1, "{what}: nothing is left");
            if !happened {
                break;
            }
            nth += 1;
        }
        assert!(nth > 50, "{fault:?}: {nth} calls");
    }
}

#[test]
fn a_folder_that_cannot_be_looked_at_does_not_count_as_removed() {
    let folder = Folder::new();
    let zone = folder.zone();
    store(&zone, 3, 1);
    faults::plan(0, Fault::Once(nix::libc::EACCES));
    let said = zone.drop_deleted().unwrap_err().to_string();
    assert!(faults::clear());
    assert!(said.contains("stat()"), "{said:?}");
    assert!(zone.may_be_on_disk(&key(3)) && zone.load(&key(3), 7).unwrap().is_some());
}
