//! Giving up root: what was bound and opened stays, the right to bind low ports at a reload too. The main thread
//! can take up the right to read any file again, and does so while a reload reads keys: they are root's alone.

use super::handover;
use crate::config::load::Kept;
use crate::handlers::CACHED;
use caps::{CapSet, Capability};
use nix::unistd::{Gid, Group, User, initgroups, setgid, setuid};
use std::ffi::CString;
use yorozu_gateway::pass;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::files::temporary::private_folder;
use yorozu_kernel::logging::error::{self, Level};

/// nginx's default user where the configuration names none.
const NOBODY: &str = "nobody";

/// Becomes the configuration's `user`, if started as root.
///
/// # Errors
/// The user does not exist or cannot be taken on.
pub(super) fn drop_to_user(config: &Config, kept: &Kept) -> Result<(), String> {
    let wanted = config.main().user.as_ref();
    if !nix::unistd::geteuid().is_root() {
        // Of what the process before lent, one right is for the moment it is needed.
        drop(Lent);
        drop(Reading);
        if wanted.is_some() && !handover::has_predecessor() {
            error::process(
                config,
                Level::Warn,
                "the \"user\" directive makes sense only if the process runs with super-user privileges, ignored",
            );
        }
        return Ok(());
    }
    let name = wanted.map_or(NOBODY, |user| &user.user);
    if name == "root" {
        return Ok(());
    }
    let unknown = || format!("getpwnam(\"{name}\") failed");
    let user = User::from_name(name).ok().flatten().ok_or_else(unknown)?;
    let group = match wanted.and_then(|user| user.group.as_ref()) {
        Some(group) => {
            let found = Group::from_name(group).ok().flatten();
            found.ok_or_else(|| format!("getgrnam(\"{group}\") failed"))?.gid
        }
        None => user.gid,
    };
    give_folders(config, kept, &user);
    become_user(&user, group, config.is_transparent)
        .map_err(|problem| format!("cannot become user \"{name}\": {problem}"))
}

/// What this process made as root and will write as `user`.
fn give_folders(config: &Config, kept: &Kept, user: &User) {
    kept.logs.give_to(user.uid);
    let caches = config.zones.values().map(|zone| zone.options().disk.path.clone());
    let temporary = config.locations.iter().flat_map(|location| {
        let of_gateways = CACHED.map(|family| pass::conf(location, family).temp_path.0.clone());
        let of_bodies = location.http_core().client_body_temp_path.0.clone();
        of_gateways.into_iter().chain([of_bodies])
    });
    for folder in caches.chain(temporary) {
        // Failing here shows later, with a message that says which file.
        let _ = private_folder(&folder);
        let _ = nix::unistd::chown(&folder, Some(user.uid), None);
    }
}

fn become_user(
    user: &User,
    group: Gid,
    is_transparent: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    caps::securebits::set_keepcaps(true)?;
    initgroups(&CString::new(user.name.clone())?, group)?;
    setgid(group)?;
    setuid(user.uid)?;
    // Only this one right is kept, so that a reload may bind a low port; and as nginx, with
    // `*_bind … transparent`, the right to bind to foreign addresses. Where the system grants none
    // of it (a container), ports above 1023 still work.
    let mut kept: caps::CapsHashSet = [Capability::CAP_NET_BIND_SERVICE].into_iter().collect();
    if is_transparent {
        kept.insert(Capability::CAP_NET_RAW);
    }
    let _ = caps::set(None, CapSet::Effective, &kept);
    kept.insert(READS_ALL);
    let _ = caps::set(None, CapSet::Permitted, &kept);
    Ok(())
}

/// The right to read what others may not.
const READS_ALL: Capability = Capability::CAP_DAC_READ_SEARCH;

/// While it lives, this thread may read any file, if the process was started as root.
pub(super) struct Reading;

impl Reading {
    pub(super) fn begin() -> Self {
        // Without it files that `user` may read still are.
        let _ = caps::raise(None, CapSet::Effective, READS_ALL);
        Self
    }
}

/// While it lives, programs that this thread starts get the rights that were kept.
pub(super) struct Lent;

const LENT: [Capability; 3] =
    [Capability::CAP_NET_BIND_SERVICE, Capability::CAP_NET_RAW, READS_ALL];

impl Lent {
    pub(super) fn begin() -> Self {
        for right in LENT {
            // One that was not kept cannot be lent.
            let _ = caps::raise(None, CapSet::Inheritable, right);
            let _ = caps::raise(None, CapSet::Ambient, right);
        }
        Self
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let _ = caps::clear(None, CapSet::Ambient);
        let _ = caps::clear(None, CapSet::Inheritable);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // Root has it anyway; from everybody else it is taken.
        if !nix::unistd::geteuid().is_root() {
            let _ = caps::drop(None, CapSet::Effective, READS_ALL);
        }
    }
}

/// Gives up, on a thread that serves, what only the main thread is to have.
pub(super) fn of_thread() {
    if !nix::unistd::geteuid().is_root() {
        let _ = caps::drop(None, CapSet::Effective, READS_ALL);
        let _ = caps::drop(None, CapSet::Permitted, READS_ALL);
    }
}
