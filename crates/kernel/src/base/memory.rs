//! Memory that was freed, and the system.

use super::limits;
use std::path::Path;
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

/// Memory that a process may use, in bytes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Usable {
    /// All of it: the machine's, or what a control group leaves.
    pub bytes: u64,
    /// What is in use, without what the system only keeps of files.
    pub used: u64,
    /// Whether a control group sets the bound.
    pub is_bounded: bool,
}

/// The memory that this process may use: the machine's, or what a control group above it leaves; `None` if neither is known.
pub fn usable() -> Option<Usable> {
    let machine = text_of("/proc/meminfo").and_then(|text| {
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
        };
        let all = bytes("MemTotal:")?;
        let used = all.saturating_sub(bytes("MemAvailable:").unwrap_or(all));
        Some(Usable { bytes: all, used, is_bounded: false })
    });
    let groups = text_of("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(of_control_groups(&groups)).min()
}

/// As [`usable`], all of it in bytes.
pub fn available_bytes() -> Option<u64> {
    usable().map(|usable| usable.bytes)
}

#[expect(clippy::disallowed_methods, reason = "files of the system, while a configuration is read")]
fn text_of(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Where the memory of control groups is: a folder, and files for the bound, what is in use, and in the statistics the files
/// that are kept and can go.
type Names = (&'static str, &'static str, &'static str, &'static str);
const VERSION_2: Names = ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ");
const VERSION_1: Names = (
    "/sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file ",
);

/// The bounds of the groups that `/proc/self/cgroup` names, and of those above them: version 2, and 1.
fn of_control_groups(groups: &str) -> Vec<Usable> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut words = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (words.next(), words.next()) else { continue };
        let names = match controllers {
            "" => VERSION_2,
            _ if controllers.split(',').any(|name| name == "memory") => VERSION_1,
            _ => continue,
        };
        found.extend(of_groups(Path::new(names.0), path, names));
    }
    found
}

/// The bounds of a group below `root`, and of those above it.
fn of_groups(root: &Path, path: &str, (_, bound, current, kept): Names) -> Vec<Usable> {
    let folder = root.join(path.trim_start_matches('/'));
    let above = folder.ancestors().take_while(|folder| folder.starts_with(root));
    let number = |text: String| text.trim().parse::<u64>().ok();
    let of_group = |folder: &Path| {
        let bytes = text_of(folder.join(bound)).and_then(number)?;
        let used = text_of(folder.join(current)).and_then(number).unwrap_or(0);
        let kept = text_of(folder.join("memory.stat")).and_then(|text| {
            number(text.lines().find_map(|line| line.strip_prefix(kept))?.to_owned())
        });
        Some(Usable { bytes, used: used.saturating_sub(kept.unwrap_or(0)), is_bounded: true })
    };
    above.filter_map(of_group).collect()
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

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test's own files")]
    fn groups_say_their_bound_and_what_is_in_use() {
        let root = std::env::temp_dir().join(format!("yorozu-groups-{}", std::process::id()));
        let slice = root.join("system.slice");
        std::fs::create_dir_all(slice.join("site.service")).unwrap();
        std::fs::write(slice.join("site.service/memory.max"), "max\n").unwrap();
        for (name, text) in [
            ("memory.max", "536870912\n"),
            ("memory.current", "104857600\n"),
            ("memory.stat", "anon 1\ninactive_file 52428800\n"),
        ] {
            std::fs::write(slice.join(name), text).unwrap();
        }
        let found = of_groups(&root, "/system.slice/site.service", VERSION_2);
        std::fs::remove_dir_all(&root).unwrap();
        let wanted = Usable { bytes: 512 << 20, used: 50 << 20, is_bounded: true };
        assert_eq!(found, [wanted]);
    }
}
