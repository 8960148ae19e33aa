//! Pages on their way into the store, for those who read along.

#![expect(clippy::disallowed_methods, reason = "a folder for a test")]

use crate::testing;
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;
use yorozu_cache::{
    Claim, DiskOptions, EntryHead, Key, Levels, Pace, Piece, Woken, Zone, ZoneOptions,
};
use yorozu_gateway::cache::collector::Collector;
use yorozu_kernel::logging::error::Context;

const BODY_BYTES: usize = 300_000;

fn zone(max_size: Option<u64>) -> Arc<Zone> {
    let name = format!("yorozu-collector.{}.{:016x}", std::process::id(), fastrand::u64(..));
    let disk = DiskOptions {
        path: std::env::temp_dir().join(name),
        levels: Levels::parse("1:2").unwrap(),
        max_size,
        min_free: None,
        files_max: 100,
        inactive: 600,
        loader: Pace::default(),
        manager: Pace::default(),
    };
    Arc::new(Zone::open(ZoneOptions { memory_bytes: 1 << 20, disk }).unwrap())
}

/// How many bytes of a page that arrives whole a waiter gets.
async fn read_along(zone: Arc<Zone>) -> Option<usize> {
    let key = Key::new(Bytes::from_static(b"key"));
    let claim = || zone.claim(&key, Instant::now(), Duration::from_secs(5));
    let Claim::Maker(guard) = claim() else { panic!("it is being made already") };
    let Claim::Taken(waiter) = claim() else { panic!("it is being made") };
    let conf = testing::config("http { server { listen 127.0.0.1:1; } }");
    let context = Context::of(&testing::exchange(conf, "GET / HTTP/1.0\r\n\r\n"));
    let head = EntryHead {
        key: Bytes::from_static(b"key"),
        status: 200,
        fresh_until: i64::MAX,
        ..EntryHead::default()
    };
    let making = Arc::new(zone.begin());
    let collector = Collector::new(Arc::clone(&zone), head, Some(guard), making, context);
    let pieces: Vec<Bytes> = (0..3).map(|_| Bytes::from(vec![b'x'; BODY_BYTES / 3])).collect();
    collector.store_whole(&pieces, 0);
    let Woken::Flowing(flow) = waiter.woken().await else { panic!("it flows") };
    let mut follower = flow.follow()?;
    let mut bytes = 0;
    while let Some(piece) = follower.next().await.ok()? {
        bytes += match piece {
            Piece::Memory(piece) => piece.len(),
            Piece::File(_, range) => usize::try_from(range.end - range.start).unwrap(),
        };
    }
    Some(bytes)
}

#[tokio::test(flavor = "current_thread")]
async fn who_reads_along_gets_all_of_a_body_that_cannot_be_stored() {
    let (vanished, small, good) = (zone(None), zone(Some(1000)), zone(None));
    std::fs::remove_dir_all(&vanished.options().disk.path).unwrap();
    for (what, zone) in [("no folder", vanished), ("above max_size", small), ("stored", good)] {
        let path = zone.options().disk.path.clone();
        let bytes = LocalSet::new().run_until(read_along(zone)).await;
        assert_eq!(bytes, Some(BODY_BYTES), "{what}");
        let _ = std::fs::remove_dir_all(path);
    }
}
