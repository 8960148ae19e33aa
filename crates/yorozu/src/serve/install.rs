//! The unit of systemd by which a folder is served from every start of the machine on.

use nix::unistd::Uid;
use std::fs;
use std::path::{Path, PathBuf};

/// The first line of a unit that may be written again.
const OURS: &str = "# Written by \"yorozu serve --install\", and again by the next one.\n";

/// What a service of the machine says besides. A database that is not there yet would be the first thing that visitors hear of.
const AFTER: &str = "\
After=network-online.target nss-lookup.target remote-fs.target mariadb.service mysql.service postgresql.service redis-server.service memcached.service
Wants=network-online.target
";

/// What keeps it from the rest of the machine. What an application needs (mail, programs of its own) is not known: nothing here
/// touches that.
const CONFINED: &str = "\
LimitNOFILE=65536
ProtectSystem=full
PrivateTmp=yes
ProtectClock=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
RestrictRealtime=yes
LockPersonality=yes
";

/// Writes the unit of a site, and says how it is started.
///
/// # Errors
/// The file cannot be written, or it was not written by this.
pub(super) fn install(site: &str, folder: &Path, command: &[String]) -> Result<(), String> {
    let is_root = Uid::effective().is_root();
    let place = if is_root { PathBuf::from("/etc/systemd/system") } else { of_user()? };
    let name = format!("yorozu-{site}.service");
    let file = place.join(&name);
    let failed = |why: std::io::Error| format!("\"{}\": {why}", file.display());
    if fs::read_to_string(&file).is_ok_and(|text| !text.starts_with(OURS)) {
        return Err(format!("\"{}\" is there, and was not written by --install", file.display()));
    }
    fs::create_dir_all(&place).map_err(failed)?;
    let text = unit(is_root, folder, command);
    fs::write(&file, text).map_err(failed)?;
    println!("{}: written", file.display());
    match is_root {
        true => println!("systemctl daemon-reload && systemctl enable --now {name}"),
        false => println!(
            "loginctl enable-linger && systemctl --user daemon-reload && systemctl --user enable --now {name}"
        ),
    }
    Ok(())
}

/// Where units of the user are.
fn of_user() -> Result<PathBuf, String> {
    let base = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".config"));
    let base = base.filter(|path| path.is_absolute()).or_else(home);
    base.map(|base| base.join("systemd/user"))
        .ok_or_else(|| "neither XDG_CONFIG_HOME nor HOME says where units are".to_owned())
}

/// The text of a unit: of root's, or of another user's.
fn unit(is_root: bool, folder: &Path, command: &[String]) -> String {
    // Else the service would not find what was written and measured for the folder.
    let state = std::env::var("XDG_STATE_HOME").map(|state| format!("XDG_STATE_HOME={state}"));
    let state =
        state.map_or_else(|_| String::new(), |it| format!("Environment={}\n", word(&it, "")));
    let command: Vec<_> = command.iter().map(|it| word(it, "$")).collect();
    let (after, confined, target) =
        if is_root { (AFTER, CONFINED, "multi-user") } else { ("", "", "default") };
    format!(
        "{OURS}[Unit]\nDescription={what} by yorozu\nDocumentation=man:yorozu(8)\n{after}\n\
         [Service]\nType=exec\n{state}ExecStart={command}\nExecReload=/bin/kill -HUP $MAINPID\nKillMode=mixed\nTimeoutStopSec=30\n\
         Restart=on-failure\nRestartSec=5\n{confined}\n[Install]\nWantedBy={target}.target\n",
        what = folder.display().to_string().replace('%', "%%"),
        command = command.join(" "),
    )
}

/// A word as systemd reads it; what is among `doubled`, and `%`, stands for itself where it is doubled.
fn word(text: &str, doubled: &str) -> String {
    let mut out = String::new();
    for sign in text.chars() {
        match sign {
            '"' | '\\' => out.extend(['\\', sign]),
            sign if sign == '%' || doubled.contains(sign) => out.extend([sign, sign]),
            sign => out.push(sign),
        }
    }
    let is_plain = |sign: char| sign.is_alphanumeric() || "-_./:@=%+,".contains(sign);
    if out.chars().all(is_plain) && !out.is_empty() { out } else { format!("\"{out}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_systemd() {
        for (text, is) in [
            ("/var/www/shop", "/var/www/shop"),
            ("/home/ann/my \"site\"", "\"/home/ann/my \\\"site\\\"\""),
            ("100%", "100%%"),
            ("a$b", "\"a$$b\""),
            ("", "\"\""),
            ("a;b", "\"a;b\""),
        ] {
            assert_eq!(word(text, "$"), is);
        }
    }
}
