//! The user that the server process runs as, and what the master process, as root, gets ready for it.
//!
//! The server process begins with nothing of root's: the thread that starts it gives up everything first, and a process
//! begins with the rights of the thread that starts it. The master's other threads keep theirs.

use crate::handlers::CACHED;
use caps::{CapSet, Capability, CapsHashSet};
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use yorozu_gateway::pass;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::files::is_of_user;
use yorozu_kernel::files::temporary::private_folder;

/// nginx's default user where the configuration names none.
const DEFAULT_USER: &str = "nobody";

/// The user of the server process, where it is another one than the master's.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    /// Whether some `*_bind` is transparent: that needs a right, as with nginx.
    is_transparent: bool,
}

/// What `user` comes to.
#[derive(Debug)]
pub(super) enum Wish {
    /// The server runs as this user.
    Other(Identity),
    /// As the master.
    Same,
    /// The master is not root, so that `user` has no effect.
    Ignored,
}

/// The user of the configuration's server process.
///
/// # Errors
/// The user or the group does not exist.
pub(super) fn wish(config: &Config) -> Result<Wish, String> {
    let main = config.main();
    let wanted = main.user.as_ref();
    if !nix::unistd::geteuid().is_root() {
        return Ok(if wanted.is_some() { Wish::Ignored } else { Wish::Same });
    }
    let name = wanted.map_or(DEFAULT_USER, |user| &user.user);
    if name == "root" || !main.master_process {
        return Ok(Wish::Same);
    }
    let unknown = || format!("getpwnam(\"{name}\") failed");
    let user = User::from_name(name).ok().flatten().ok_or_else(unknown)?;
    let gid = match wanted.and_then(|user| user.group.as_ref()) {
        Some(group) => {
            let found = Group::from_name(group).ok().flatten();
            found.ok_or_else(|| format!("getgrnam(\"{group}\") failed"))?.gid
        }
        None => user.gid,
    };
    let groups = CString::new(user.name.clone())
        .map_err(io::Error::from)
        .and_then(|name| Ok(getgrouplist(&name, gid)?))
        .map_err(|problem| format!("getgrouplist(\"{name}\") failed ({problem})"))?;
    Ok(Wish::Other(Identity { uid: user.uid, gid, groups, is_transparent: config.is_transparent }))
}

impl Identity {
    /// Becomes this user, on the present thread alone.
    ///
    /// # Errors
    /// The system refuses it: with the call's name.
    fn take_on(&self) -> Result<(), String> {
        use rustix::thread;
        let failed = |call: &str| {
            let call = call.to_owned();
            move |problem: rustix::io::Errno| {
                format!("{call} failed ({}: {problem})", problem.raw_os_error())
            }
        };
        let (uid, gid) = (self.uid.as_raw(), self.gid.as_raw());
        let groups: Vec<_> =
            self.groups.iter().map(|group| thread::Gid::from_raw(group.as_raw())).collect();
        if self.is_transparent {
            thread::set_keep_capabilities(true).map_err(failed("prctl(PR_SET_KEEPCAPS)"))?;
        }
        thread::set_thread_groups(&groups).map_err(failed("initgroups()"))?;
        let group = thread::Gid::from_raw(gid);
        thread::set_thread_res_gid(group, group, group)
            .map_err(failed(&format!("setgid({gid})")))?;
        let user = thread::Uid::from_raw(uid);
        thread::set_thread_res_uid(user, user, user).map_err(failed(&format!("setuid({uid})")))?;
        if self.is_transparent {
            keep_raw_sockets().map_err(|problem| format!("capset() failed ({problem})"))?;
        }
        Ok(())
    }
}

/// As nginx with `*_bind … transparent`: the right to bind to foreign addresses, and no other, stays.
fn keep_raw_sockets() -> Result<(), caps::errors::CapsError> {
    let only: CapsHashSet = [Capability::CAP_NET_RAW].into();
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable, CapSet::Ambient] {
        caps::set(None, set, &only)?;
    }
    Ok(())
}

/// Runs `work` as this user, on a thread of its own; `None` is the present user.
///
/// # Errors
/// As `work`; the user cannot be taken on.
pub(super) fn as_user<T: Send>(
    identity: Option<&Identity>,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    let Some(identity) = identity else { return work() };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("becomes another user".to_owned());
        let begun = thread.spawn_scoped(scope, || {
            identity.take_on()?;
            work()
        });
        let thread = begun.map_err(|problem| problem.to_string())?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The folders that the server process writes to: of caches, and for temporary files.
pub(super) fn folders(config: &Config) -> Vec<PathBuf> {
    let caches = config.zones.values().map(|zone| zone.options().disk.path.clone());
    let temporary = config.locations.iter().flat_map(|location| {
        let of_gateways = CACHED.map(|family| pass::conf(location, family).temp_path.0.clone());
        let of_bodies = location.http_core().client_body_temp_path.0.clone();
        of_gateways.into_iter().chain([of_bodies])
    });
    let mut folders: Vec<_> = caches.chain(temporary).collect();
    folders.sort_unstable();
    folders.dedup();
    folders
}

/// As nginx at each reading of its configuration: makes a folder for `identity` alone, and gives it one that another user
/// made. So are those above it that are missing, which nginx does not make.
/// Failing here shows later, with a message that says which file.
pub(super) fn give_folder(path: &Path, identity: &Identity) {
    // What that user made there could be a link to anything: it is not touched with root's rights.
    let existing = path.ancestors().skip(1).find(|folder| folder.exists());
    if existing.is_some_and(|folder| is_of_user(folder, identity.uid)) {
        return;
    }
    let missing: Vec<_> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        let _ = private_folder(folder);
        let _ = nix::unistd::chown(folder, Some(identity.uid), None);
    }
    if !is_of_user(path, identity.uid) {
        let _ = nix::unistd::chown(path, Some(identity.uid), None);
    }
}
