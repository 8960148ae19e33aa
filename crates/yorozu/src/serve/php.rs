//! PHP for a site: a pool of its own, as the site's owner, or one that others run.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a site's scripts run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Php {
    /// By PHP-FPM of this machine, which is started for the site.
    Own { program: PathBuf, version: String },
    /// By one that runs already: what `server` of an `upstream` says.
    Running(String),
}

/// Where Debian's sockets are.
const SOCKETS: &str = "/run/php";

/// Finds PHP: what was asked for, else a PHP-FPM to start, the newest, else the socket of one that runs.
///
/// # Errors
/// There is none, in words for who is to install it.
pub(super) fn find(asked: Option<&str>) -> Result<Php, String> {
    if let Some(asked) = asked {
        return chosen(asked);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    if let Some((version, program)) = newest(folders) {
        return Ok(Php::Own { program, version });
    }
    let sockets = fs::read_dir(SOCKETS).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_socket = |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let mut sockets: Vec<_> = sockets.filter(is_socket).collect();
    sockets.sort();
    match sockets.pop() {
        Some(socket) => Ok(Php::Running(format!("unix:{}", socket.display()))),
        None => Err("no PHP-FPM is here: install it (Debian: apt install php-fpm), or say where one listens (--php unix:/run/php/php-fpm.sock, --php 127.0.0.1:9000)".to_owned()),
    }
}

/// The one that `--php` names: a program, a socket or an address.
fn chosen(asked: &str) -> Result<Php, String> {
    let path = Path::new(asked.strip_prefix("unix:").unwrap_or(asked));
    let Ok(metadata) = fs::metadata(path) else {
        return match asked.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => Ok(Php::Running(asked.to_owned())),
            _ => Err(format!(
                "--php \"{asked}\": neither a program or socket that is there, nor an address such as 127.0.0.1:9000"
            )),
        };
    };
    if metadata.file_type().is_socket() {
        return Ok(Php::Running(format!("unix:{}", path.display())));
    }
    let version = version_of(path).ok_or_else(|| format!("--php \"{asked}\" is no PHP-FPM"))?;
    Ok(Php::Own { program: path.to_owned(), version })
}

/// The newest PHP-FPM of these folders: by the version in its name as Debian has it, else as it says itself.
fn newest(folders: impl Iterator<Item = PathBuf>) -> Option<(String, PathBuf)> {
    let number = |version: &str| {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next(), parts.next())
    };
    let programs = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let found = programs.filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix("php-fpm")?;
        let is_version = |text: &str| {
            text.contains('.') && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        };
        match rest {
            "" => Some((version_of(&entry.path())?, entry.path())),
            version if is_version(version) => Some((version.to_owned(), entry.path())),
            _ => None,
        }
    });
    found.max_by_key(|(version, _)| number(version))
}

/// As `php-fpm -v` says: `PHP 8.2.29 (fpm-fcgi) ...`
fn version_of(program: &Path) -> Option<String> {
    let said = Command::new(program).arg("-v").output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let rest = text.strip_prefix("PHP ")?;
    text.contains("fpm").then(|| rest.split_whitespace().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_counts_by_number_and_not_by_letter() {
        let folder = std::env::temp_dir().join(format!("yorozu-php-{:x}", fastrand::u64(..)));
        fs::create_dir_all(&folder).expect("a folder");
        for name in ["php-fpm8.2", "php-fpm8.10", "php-fpm7.4", "php-fpm-healthcheck", "php-fpm8"] {
            fs::write(folder.join(name), "").expect("a file");
        }
        let found = newest([folder.clone()].into_iter());
        fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(found, Some(("8.10".to_owned(), folder.join("php-fpm8.10"))));
    }

    #[test]
    fn what_is_asked_for_is_an_address_or_there() {
        assert_eq!(chosen("127.0.0.1:9000"), Ok(Php::Running("127.0.0.1:9000".to_owned())));
        assert_eq!(chosen("php:9000"), Ok(Php::Running("php:9000".to_owned())));
        assert!(chosen("/nothing/here").is_err_and(|why| why.contains("/nothing/here")));
        assert!(chosen("/bin/sh").is_err_and(|why| why.contains("is no PHP-FPM")));
    }
}
