//! HTTPS for a site: by an issuer for names that lead here, or by an authority of its own.

use super::listen;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use yorozu_server::authority;

/// What certificates are asked of where nothing else is said.
pub(super) const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// A certificate of the site's own authority is renewed at this age: it is good for 397 days.
const RENEWED_AFTER: Duration = Duration::from_secs(330 * 24 * 3600);
/// How long a name has to lead here.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Makes sure that a folder has an authority of the site's own, and a certificate by it for these names.
///
/// # Errors
/// A name that no certificate can have, or a file that cannot be written.
pub(super) fn make_own(folder: &Path, site: &str, names: &[String]) -> Result<(), String> {
    let failed = |why: std::io::Error| format!("\"{}\": {why}", folder.display());
    fs::create_dir_all(folder).map_err(failed)?;
    let name = format!("yorozu for {site}");
    // Another list of names needs another authority, which is good for these alone.
    let listed = names.join("\n");
    let is_known = fs::read_to_string(folder.join("names")).is_ok_and(|text| text == listed);
    let mut key = fs::read_to_string(folder.join("authority.key")).ok().filter(|_| is_known);
    if key.is_none() {
        let made = authority::make(&name, names)?;
        let _ = fs::remove_file(folder.join("site.crt"));
        write(&folder.join("authority.key"), &made.key, 0o600).map_err(failed)?;
        write(&folder.join("authority.crt"), &made.certificate, 0o644).map_err(failed)?;
        write(&folder.join("names"), &listed, 0o644).map_err(failed)?;
        key = Some(made.key);
    }
    let age = fs::metadata(folder.join("site.crt")).and_then(|it| it.modified()).ok();
    let age = age.and_then(|at| SystemTime::now().duration_since(at).ok());
    if age.is_none_or(|age| age > RENEWED_AFTER) {
        let made = authority::issue(&name, &key.unwrap_or_default(), names)?;
        write(&folder.join("site.key"), &made.key, 0o600).map_err(failed)?;
        write(&folder.join("site.crt"), &made.certificate, 0o644).map_err(failed)?;
    }
    Ok(())
}

/// Writes a file that is whole, or as it was.
pub(super) fn write(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    fs::rename(&new, path)
}

/// Makes sure that names lead to a port of this machine, by asking there for a word that only this process knows.
///
/// # Errors
/// One has no address, or another server answers there, which an issuer would ask, too. A machine that cannot reach itself by its name
/// proves nothing: that is only said. The port cannot be used.
pub(super) fn lead_here(names: &[String], port: u16) -> Result<(), String> {
    let used = |why: std::io::Error| {
        let holder = listen::holder(port).filter(|_| why.kind() == ErrorKind::AddrInUse);
        let why = holder.map_or_else(|| why.to_string(), |who| format!("{who} has it"));
        format!("port {port}, where an issuer asks, cannot be used: {why}")
    };
    let listeners = ["[::]", "0.0.0.0"].map(|host| TcpListener::bind(format!("{host}:{port}")));
    // One of them may have the other's addresses, too.
    let listeners: Vec<_> = match listeners {
        [Err(_), Err(why)] => return Err(used(why)),
        listeners => listeners.into_iter().flatten().collect(),
    };
    listeners.iter().try_for_each(|it| it.set_nonblocking(true)).map_err(used)?;
    let word = format!("{:032x}", fastrand::u128(..));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                listeners.iter().for_each(|listener| answer(listener, &word));
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let judged = names.iter().try_for_each(|name| leads_here(name, port, &word));
        is_done.store(true, Ordering::Relaxed);
        judged
    })
}

/// Says the word to those who are waiting.
fn answer(listener: &TcpListener, word: &str) {
    while let Ok((mut client, _)) = listener.accept() {
        let _ =
            client.set_nonblocking(false).and_then(|()| client.set_read_timeout(Some(LOOK_MAX)));
        let _ = client.read(&mut [0; 4096]);
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            word.len()
        );
        let _ = client.write_all((head + word).as_bytes());
    }
}

fn leads_here(name: &str, port: u16, word: &str) -> Result<(), String> {
    let addresses = (name, port).to_socket_addrs().map_err(|why| {
        format!(
            "\"{name}\" has no address ({why}): no issuer gives a certificate for it before it has"
        )
    })?;
    for address in addresses {
        let Ok(mut server) = TcpStream::connect_timeout(&address, LOOK_MAX) else {
            say!(
                "yorozu: [warn] \"{name}\" leads to {address}, where this machine does not reach itself: the issuer has to"
            );
            continue;
        };
        let asked = format!(
            "GET /.well-known/yorozu HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        );
        let _ = server
            .set_read_timeout(Some(LOOK_MAX))
            .and_then(|()| server.write_all(asked.as_bytes()));
        let mut said = Vec::new();
        let _ = server.take(65_536).read_to_end(&mut said);
        if !String::from_utf8_lossy(&said).contains(word) {
            return Err(format!(
                "\"{name}\" leads to {address}, where another server answers: no issuer gives this one a certificate for it"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for a name on a port where the first client is answered by this word.
    fn judged(said: &str, wanted: &str) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut client, _) = listener.accept().expect("a client");
                let _ = client.read(&mut [0; 4096]);
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
                client.write_all((head.to_owned() + said).as_bytes()).expect("written");
            });
            leads_here("localhost", port, wanted)
        })
    }

    #[test]
    fn a_port_that_is_taken_is_told_with_who_has_it() {
        let holder = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
        let holder = holder.expect("a port");
        let port = holder.local_addr().expect("an address").port();
        let refused = lead_here(&[], port).expect_err("taken");
        let own = format!("(process {}) has it", std::process::id());
        assert!(refused.contains(&own), "{refused}");
    }

    #[test]
    fn a_name_leads_here_if_this_process_answers_there() {
        assert_eq!(judged("word", "word"), Ok(()));
        let other = judged("welcome", "word").expect_err("another server");
        assert!(other.contains("where another server answers"), "{other}");
        let none = leads_here("nothing.invalid", 80, "word").expect_err("no address");
        assert!(none.contains("\"nothing.invalid\" has no address"), "{none}");
    }
}
