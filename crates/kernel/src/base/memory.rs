//! Memory that was freed, and the system.

use super::limits;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Has the allocator give back to the system what has been free for a while. It does so when a large piece goes: without,
/// on an idle server, never.
pub fn give_back() {
    let mut piece = Vec::<u8>::new();
    let _ = piece.try_reserve_exact(limits::LARGE_PIECE_BYTES);
    drop(std::hint::black_box(piece));
}

/// As [`give_back`], once the allocator takes what was freed just now for unused. One that is due already is as good, but
/// for what the last of many reloads leaves, which the next pulse gives back.
#[expect(clippy::disallowed_methods, reason = "of a thread that serves no client")]
pub fn give_back_soon() {
    static IS_DUE: AtomicBool = AtomicBool::new(false);
    if IS_DUE.swap(true, Ordering::Relaxed) {
        return;
    }
    let wait = || {
        std::thread::sleep(limits::UNUSED_AFTER);
        IS_DUE.store(false, Ordering::Relaxed);
        give_back();
    };
    let thread = std::thread::Builder::new().name("gives memory back".to_owned());
    if thread.spawn(wait).is_err() {
        // What is free stays until the next pulse.
        IS_DUE.store(false, Ordering::Relaxed);
    }
}

/// The memory that this process may use: the machine's, or what a control group above it leaves; `None` if neither is known.
pub fn available_bytes() -> Option<u64> {
    let machine = text_of("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
    });
    let groups = text_of("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(of_control_groups(&groups)).min()
}

#[expect(clippy::disallowed_methods, reason = "files of the system, while a configuration is read")]
fn text_of(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The bounds of the groups that `/proc/self/cgroup` names, and of those above them: version 2, and 1.
fn of_control_groups(groups: &str) -> Vec<u64> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut words = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (words.next(), words.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let folder = PathBuf::from(root).join(path.trim_start_matches('/'));
        let above = folder.ancestors().take_while(|folder| folder.starts_with(root));
        let bounds =
            above.filter_map(|folder| text_of(folder.join(file))?.trim().parse::<u64>().ok());
        found.extend(bounds);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_says_its_memory() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 64 << 20));
        assert_eq!(
            of_control_groups("0::/no/such/group\n1:cpu:/x\nbroken"),
            of_control_groups("0::/")
        );
    }
}
