//! What is kept of a site beside its folder: where, whose it may be, tokens, and what was measured.

use super::{https, supervise};
use nix::unistd::Uid;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Longest path of the folder of sockets, so that each has 107 bytes at most (unix(7)); `pid.server.new` is the longest name.
const SOCKETS_PATH_MAX: usize = 107 - "/pid.server.new".len();

/// Where pages, certificates and what was measured are kept: below XDG_STATE_HOME, and without it below /var/lib for root, else
/// below the user's own state folder.
pub(super) fn state(folder: &Path) -> PathBuf {
    let told =
        std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = told.map(|base| base.join("yorozu")).unwrap_or_else(|| {
        if Uid::effective().is_root() {
            return "/var/lib/yorozu/serve".into();
        }
        let home = std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into());
        Path::new(&home).join(".local/state/yorozu")
    });
    base.join(short_name(folder))
}

/// A name for a folder that no other has.
pub(super) fn short_name(folder: &Path) -> String {
    let name = folder.file_name().map_or("root".into(), |name| name.to_string_lossy());
    let plain = |sign: char| if sign.is_ascii_alphanumeric() { sign } else { '-' };
    let name: String = name.chars().map(plain).take(24).collect();
    format!("{name}-{:08x}", hash(folder))
}

/// Where sockets are: beside what else is kept, or where that path is too long, in a folder of this user for what runs.
pub(super) fn sockets(state: &Path) -> PathBuf {
    if state.as_os_str().len() <= SOCKETS_PATH_MAX {
        return state.to_owned();
    }
    let user = Uid::effective();
    let told =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let (base, name) = match (user.is_root(), told) {
        (true, _) => ("/run".into(), "yorozu".to_owned()),
        (_, Some(base)) => (base, "yorozu".to_owned()),
        _ => ("/tmp".into(), format!("yorozu-{user}")),
    };
    base.join(format!("{name}-{:08x}", hash(state)))
}

/// A short name for a path, the same for ever: FNV-1a, as the standard library's hashes may be others with another compiler.
fn hash(path: &Path) -> u32 {
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Whether a folder may keep what is the server's alone.
///
/// # Errors
/// Visitors would get it, or a configuration cannot name it.
pub(super) fn may_keep(state: &Path, root: &Path) -> Result<(), String> {
    let text = state.to_string_lossy();
    if text.contains(|sign: char| sign.is_whitespace() || "$;{}[]\"'*?#\\".contains(sign)) {
        return Err(format!(
            "\"{text}\", where pages are to be kept, has a sign in its path that configurations cannot have: --state names another folder"
        ));
    }
    if state.starts_with(root) {
        return Err(format!(
            "\"{text}\", where pages are to be kept, is in \"{}\", which visitors see: --state names another folder",
            root.display()
        ));
    }
    Ok(())
}

/// Makes a folder that no other user can write to, or takes one that is so.
pub(super) fn make_folder(folder: &Path) -> Result<(), String> {
    let failed = |why: std::io::Error| format!("\"{}\": {why}", folder.display());
    if folder.is_dir() {
        let is_ours = is_ours(folder);
        let text = format!("\"{}\" can be changed by others than who runs this", folder.display());
        return is_ours.then_some(()).ok_or(text);
    }
    fs::create_dir_all(folder).map_err(failed)?;
    let mode = if Uid::effective().is_root() { 0o755 } else { 0o700 };
    fs::set_permissions(folder, fs::Permissions::from_mode(mode)).map_err(failed)
}

/// Whether no other user can write to a file or a folder.
pub(super) fn is_ours(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| {
        [0, Uid::effective().as_raw()].contains(&it.uid()) && it.mode() & 0o022 == 0
    })
}

/// The token in a file, between these texts; it is made where there is none.
pub(super) fn make_token(file: &Path, before: &str, after: &str) -> Result<String, String> {
    let known = fs::read_to_string(file).ok();
    let known = known
        .and_then(|text| Some(text.trim().strip_prefix(before)?.strip_suffix(after)?.to_owned()))
        .filter(|token| !token.is_empty());
    if let Some(token) = known {
        return Ok(token);
    }
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|why| format!("\"/dev/urandom\": {why}"))?;
    let token = format!("{:032x}", u128::from_ne_bytes(bytes));
    write_token(file, &format!("{before}{token}{after}"))?;
    Ok(token)
}

pub(super) fn write_token(file: &Path, line: &str) -> Result<(), String> {
    if fs::read_to_string(file).is_ok_and(|known| known.trim() == line) {
        return Ok(());
    }
    https::write(file, &format!("{line}\n"), 0o600)
        .map_err(|why| format!("\"{}\": {why}", file.display()))
}

/// Keeps the size of the largest process of PHP for the next start or reload.
pub(super) fn remember(fpm: nix::unistd::Pid, file: &Path) {
    let Some(kb) = supervise::largest_child(fpm) else { return };
    let known = fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    // Processes that have done little yet say little.
    if known.is_none_or(|known| kb > known) {
        let _ = fs::write(file, kb.to_string());
    }
}
