//! How much of the machine a site takes: processes of PHP, memory for pages, descriptors. Each number with its reason.

use std::fmt::Write as _;
use yorozu_kernel::base::memory;

/// Of the memory that the site may use, in per cent: the rest is the system's, for files that it keeps in memory and for
/// surprises. Swap is never counted on.
const SHARE: u64 = 75;
/// Memory of opcache and of what a pool has besides its processes, in MB.
const OPCACHE_MB: u64 = 128;
/// Processes of PHP for each processor: more would only wait for each other.
const CHILDREN_PER_CORE: u64 = 50;
/// A page cache of less would hold too little, one of more belongs into a configuration of one's own.
const CACHE_MB: std::ops::RangeInclusive<u64> = 16..=512;

/// What the machine has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Machine {
    pub(super) cores: u64,
    /// All of it, or what a container may use, in MB.
    pub(super) memory_mb: u64,
    /// Of that, what others use, in MB.
    pub(super) used_mb: u64,
    /// What the site was allowed to take, in MB.
    pub(super) allowed_mb: Option<u64>,
    /// Whether a control group sets the bound.
    pub(super) is_bounded: bool,
    /// Files that a process may have open.
    pub(super) files: u64,
}

impl Machine {
    /// What is there, of which a site may have been allowed to take so much.
    pub(super) fn look(allowed_mb: Option<u64>) -> Self {
        // A machine that says nothing is a small one.
        let unknown = memory::Usable { bytes: 1 << 30, used: 1 << 29, is_bounded: false };
        let usable = memory::usable().unwrap_or(unknown);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        let files = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
        let files = files.map_or(1024, |(_, most)| most);
        let (memory_mb, used_mb) = (usable.bytes >> 20, usable.used >> 20);
        Self { cores, memory_mb, used_mb, allowed_mb, is_bounded: usable.is_bounded, files }
    }
}

/// What a process of PHP takes, in MB.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Process {
    pub(super) mb: u64,
    /// Whether processes of this site were measured.
    pub(super) is_measured: bool,
}

/// Sizes of a site.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Sizes {
    /// `pm.max_children`; none where no PHP runs.
    pub(super) children: u64,
    /// `memory=` of the page cache, in MB.
    pub(super) cache_mb: u64,
    /// `worker_connections`
    pub(super) connections: u64,
    /// `worker_rlimit_nofile`
    pub(super) files: u64,
}

impl Sizes {
    /// For a machine and what a process of PHP takes there; `None` where no PHP runs.
    pub(super) fn of(machine: Machine, process: Option<Process>) -> Self {
        let ours = Self::ours(machine);
        let cache_mb = (ours / 16).clamp(*CACHE_MB.start(), *CACHE_MB.end());
        let children = process.map_or(0, |process| {
            let left = ours.saturating_sub(cache_mb + OPCACHE_MB);
            // One that waits for another of the same site (a call of its own API, say) would wait for ever if it were alone.
            (left / process.mb.max(1)).clamp(2, (machine.cores * CHILDREN_PER_CORE).max(2))
        });
        let connections = (machine.memory_mb * 4).clamp(1024, 16384).min(machine.files / 3);
        Self { children, cache_mb, connections, files: connections * 3 }
    }

    /// What the site may use, in MB.
    fn ours(machine: Machine) -> u64 {
        machine.allowed_mb.unwrap_or_else(|| {
            let share = machine.memory_mb * SHARE / 100;
            share.saturating_sub(machine.used_mb).max(machine.memory_mb / 8)
        })
    }

    /// Each number with its reason, a line each.
    pub(super) fn explained(self, machine: Machine, process: Option<Process>) -> String {
        let Machine { cores, memory_mb, used_mb, allowed_mb, is_bounded, .. } = machine;
        let mut out = String::new();
        let mut row = |name: &str, value: &str, why: &str| {
            let _ = writeln!(out, "{name:<22}{value:>9}  {why}");
        };
        let whose =
            if is_bounded { "what the control group allows" } else { "all of the machine's" };
        row("memory", &format!("{memory_mb} MB"), whose);
        let share = match allowed_mb {
            Some(_) => "for the site: as --memory says".to_owned(),
            None => {
                format!("for the site: {SHARE} % of that, without the {used_mb} MB that others use")
            }
        };
        row("", &format!("{} MB", Self::ours(machine)), &share);
        row(
            "memory=",
            &format!("{} MB", self.cache_mb),
            "the page cache: a sixteenth of it, 16 MB to 512 MB",
        );
        if let Some(Process { mb, is_measured }) = process {
            let how = if is_measured {
                "as measured here"
            } else {
                "as such applications take; measured from now on"
            };
            row("a process of PHP", &format!("{mb} MB"), how);
            let why = format!(
                "the rest, without {OPCACHE_MB} MB for opcache, by that; at least 2, and {CHILDREN_PER_CORE} for each processor at most"
            );
            row("pm.max_children", &self.children.to_string(), &why);
        }
        row("worker_processes", &cores.to_string(), "the processors that this process may use");
        row(
            "worker_connections",
            &self.connections.to_string(),
            "four for each MB, 1,024 to 16,384; a third of the files that a process may open",
        );
        row(
            "worker_rlimit_nofile",
            &self.files.to_string(),
            "three for each connection: its own, PHP's, a file",
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Machine = Machine {
        cores: 1,
        memory_mb: 1024,
        used_mb: 200,
        allowed_mb: None,
        is_bounded: false,
        files: 20_000,
    };

    #[test]
    fn a_small_machine_is_shared_by_the_rule() {
        let process = Process { mb: 64, is_measured: false };
        // 768 MB without 200 MB are 568 MB; less 35 MB for pages and 128 MB for opcache.
        let sizes = Sizes::of(SMALL, Some(process));
        assert_eq!((sizes.cache_mb, sizes.children), (35, 6));
        let measured = Process { mb: 30, is_measured: true };
        assert_eq!(Sizes::of(SMALL, Some(measured)).children, 13);
        let allowed = Machine { allowed_mb: Some(512), ..SMALL };
        assert_eq!(Sizes::of(allowed, Some(process)).children, 5);
        assert!(sizes.explained(SMALL, Some(process)).contains("pm.max_children               6"));
    }

    #[test]
    fn a_full_machine_has_room_for_two() {
        let full = Machine { used_mb: 1000, ..SMALL };
        let sizes = Sizes::of(full, Some(Process { mb: 128, is_measured: true }));
        assert_eq!((sizes.cache_mb, sizes.children), (16, 2));
    }

    #[test]
    fn files_need_no_php() {
        assert_eq!(Sizes::of(SMALL, None).children, 0);
        assert!(!Sizes::of(SMALL, None).explained(SMALL, None).contains("pm."));
    }
}
