//! The user that the server process runs as, and what the master process, as root, gets ready for it.
//!
//! The server process gives up everything before it reads a word, while it has one thread and nothing in its memory. Not a
//! thread of the master: as long as one is `user`, that user may send it signals, which end the whole process.

use crate::handlers::CACHED;
use caps::{CapSet, Capability, CapsHashSet};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{Gid, Group, Uid, User, fchownat, getgrouplist, setgroups, setresgid, setresuid};
use rustix::process::DumpableBehavior;
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use yorozu_acme::Acme;
use yorozu_gateway::pass;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::files::temporary::private_folder;
use yorozu_kernel::files::{is_of_user, is_own_folder};

/// Set for a server process that is to become another user.
pub(super) const USER: &str = "YOROZU_USER";
/// nginx's default user where the configuration names none.
const DEFAULT_USER: &str = "nobody";

/// The user of the server process, where it is another one than the master's.
#[derive(Clone, Debug, Eq, PartialEq)]
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
    /// As a server process is told it, in its environment: ids of user and group, whether one right stays, ids of groups.
    pub(super) fn told(&self) -> String {
        let groups = self.groups.iter().map(|group| format!(" {group}")).collect::<String>();
        format!("{} {} {}{groups}", self.uid, self.gid, u8::from(self.is_transparent))
    }

    /// What [`Identity::told`] said.
    fn heard(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(|number| number.parse::<u32>().ok());
        let (uid, gid) = (numbers.next()??, numbers.next()??);
        let is_transparent = numbers.next()?? != 0;
        let groups = numbers.map(|group| group.map(Gid::from_raw)).collect::<Option<_>>()?;
        Some(Self { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid), groups, is_transparent })
    }

    /// Has this process, which has one thread, become this user for good.
    ///
    /// # Errors
    /// The system refuses it: with the call's name.
    fn take_on(&self) -> Result<(), String> {
        let failed = |call: String| {
            move |problem: Errno| format!("{call} failed ({}: {})", problem as i32, problem.desc())
        };
        let Self { uid, gid, .. } = self;
        if self.is_transparent {
            let kept = caps::securebits::set_keepcaps(true);
            kept.map_err(|problem| format!("prctl(PR_SET_KEEPCAPS) failed ({problem})"))?;
        }
        // No program it might start gets more; where the system grants no change of that, it has nothing to give either.
        let _ = caps::clear(None, CapSet::Bounding);
        let _ = rustix::thread::set_no_new_privs(true);
        setgroups(&self.groups).map_err(failed("initgroups()".to_owned()))?;
        setresgid(*gid, *gid, *gid).map_err(failed(format!("setgid({gid})")))?;
        setresuid(*uid, *uid, *uid).map_err(failed(format!("setuid({uid})")))?;
        if self.is_transparent {
            keep_raw_sockets().map_err(|problem| format!("capset() failed ({problem})"))?;
        }
        Ok(())
    }
}

/// As nginx with `*_bind … transparent`: the right to bind to foreign addresses, and no other, stays.
fn keep_raw_sockets() -> Result<(), caps::errors::CapsError> {
    let only: CapsHashSet = [Capability::CAP_NET_RAW].into();
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &only)?;
    }
    Ok(())
}

/// Gives up what the server process is not to have: the first thing that it does, before it reads a word.
///
/// # Errors
/// The system refuses it.
pub(super) fn give_up() -> Result<(), String> {
    let Ok(text) = std::env::var(USER) else { return Ok(()) };
    Identity::heard(&text).ok_or_else(|| format!("{USER} is \"{text}\""))?.take_on()?;
    // Another process of this user's, such as PHP, shall read neither its memory nor its descriptors.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|problem| format!("prctl(PR_SET_DUMPABLE) failed ({problem})"))
}

/// Has the kernel write a core file of this process, which it does not of one that gave up rights.
pub(super) fn allow_core_files() {
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
}

/// The folders that the server process writes to: of caches, of certificates, and for temporary files.
pub(super) fn folders(config: &Config) -> Vec<PathBuf> {
    let caches = config.zones.values().map(|zone| zone.options().disk.path.clone());
    let temporary = config.locations.iter().flat_map(|location| {
        let of_gateways = CACHED.map(|family| pass::conf(location, family).temp_path.0.clone());
        let of_bodies = location.http_core().client_body_temp_path.0.clone();
        of_gateways.into_iter().chain([of_bodies])
    });
    let of_issuers = config.shared.of::<Acme>().folders();
    let mut folders: Vec<_> = caches.chain(temporary).chain(of_issuers).collect();
    folders.sort_unstable();
    folders.dedup();
    folders
}

/// As nginx at each reading of its configuration: makes a folder for `identity` alone, and gives it one that another user
/// made. So are those above it that are missing, which nginx does not make.
/// Failing here shows later, with a message that says which file.
pub(super) fn give_folder(path: &Path, identity: &Identity) {
    let missing: Vec<_> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    let first = missing.last().copied().unwrap_or(path);
    if !first.parent().is_some_and(is_own_folder) {
        return;
    }
    for folder in missing.into_iter().rev() {
        let _ = private_folder(folder);
        give(folder, identity);
    }
    if !is_of_user(path, identity.uid) {
        give(path, identity);
    }
}

/// Gives what a name stands for, which no link may be.
pub(super) fn give(path: &Path, identity: &Identity) {
    let uid = Some(identity.uid);
    let _ = fchownat(AT_FDCWD, path, uid, None, AtFlags::AT_SYMLINK_NOFOLLOW);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_arrives_as_it_was_told() {
        for (groups, is_transparent) in [(vec![], false), (vec![33, 4], true)] {
            let groups = groups.into_iter().map(Gid::from_raw).collect();
            let told =
                Identity { uid: Uid::from_raw(33), gid: Gid::from_raw(34), groups, is_transparent };
            assert_eq!(Identity::heard(&told.told()), Some(told));
        }
        for text in ["", "33", "33 34", "33 34 0 x", "-1 34 0", "33  34 0"] {
            assert_eq!(Identity::heard(text), None, "{text}");
        }
    }
}
