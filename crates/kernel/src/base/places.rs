//! Files that the configuration does not name.

use std::path::{Path, PathBuf};

/// The prefix that counts without `-p`: that of Debian's nginx, so that its files are found as they are.
pub const STANDARD_PREFIX: &str = "/usr/share/nginx";

/// `error.log` or `access.log`: below the prefix, or in the folder that Debian's nginx has for them.
pub fn log(prefix: &Path, name: &str) -> PathBuf {
    match prefix == Path::new(STANDARD_PREFIX) {
        true => Path::new("/var/log/nginx").join(name),
        false => prefix.join("logs").join(name),
    }
}

/// The pid file, likewise.
pub fn pid(prefix: &Path) -> PathBuf {
    match prefix == Path::new(STANDARD_PREFIX) {
        true => "/run/nginx.pid".into(),
        false => prefix.join("logs/nginx.pid"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_prefix_logs_and_pid_are_where_debian_has_them() {
        let table = [
            (STANDARD_PREFIX, "/var/log/nginx/access.log", "/run/nginx.pid"),
            ("/usr/share/nginx/", "/var/log/nginx/access.log", "/run/nginx.pid"),
            ("/srv", "/srv/logs/access.log", "/srv/logs/nginx.pid"),
        ];
        for (prefix, expected_log, expected_pid) in table {
            let prefix = Path::new(prefix);
            assert_eq!(log(prefix, "access.log"), Path::new(expected_log));
            assert_eq!(pid(prefix), Path::new(expected_pid));
        }
    }
}
