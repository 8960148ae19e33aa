//! Addresses of names that a configuration has, so that another process needs not look them up.
//!
//! The master looks names up where the configuration is loaded, and keeps what was found; a server process that loads
//! the same configuration is given that. It begins the same however the name servers are by then.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs as _};

/// Addresses by name, with port 0; none where the name was not found.
pub type Found = BTreeMap<String, Vec<SocketAddr>>;

/// What the thread does with a name.
enum Mode {
    /// It is looked up, and what is found is kept.
    Kept(Found),
    /// Nothing is looked up.
    Given(Found),
}

thread_local! {
    static MODE: RefCell<Option<Mode>> = const { RefCell::new(None) };
}

/// Ends the mode of the thread, however the loading ends.
struct Within;

impl Within {
    fn begin(mode: Mode) -> Self {
        MODE.set(Some(mode));
        Self
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        MODE.set(None);
    }
}

/// Runs `load`, and keeps what it finds.
pub fn keep<T>(load: impl FnOnce() -> T) -> (T, Found) {
    let within = Within::begin(Mode::Kept(Found::new()));
    let loaded = load();
    let found = MODE.with_borrow_mut(|mode| match mode {
        Some(Mode::Kept(found)) => std::mem::take(found),
        _ => Found::new(),
    });
    drop(within);
    (loaded, found)
}

/// Runs `load`, which finds what is in `found` and nothing else.
pub fn give<T>(found: Found, load: impl FnOnce() -> T) -> T {
    let _within = Within::begin(Mode::Given(found));
    load()
}

/// The system's addresses of a name, as the thread's mode says; none if it is not found. Blocks.
pub fn look_up(name: &str, port: u16) -> Vec<SocketAddr> {
    let given = MODE.with_borrow(|mode| match mode {
        Some(Mode::Given(found)) => Some(found.get(name).cloned().unwrap_or_default()),
        _ => None,
    });
    let mut addresses =
        given.unwrap_or_else(|| (name, 0).to_socket_addrs().into_iter().flatten().collect());
    MODE.with_borrow_mut(|mode| {
        if let Some(Mode::Kept(found)) = mode {
            found.insert(name.to_owned(), addresses.clone());
        }
    });
    addresses.iter_mut().for_each(|address| address.set_port(port));
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::address::resolve;

    #[test]
    fn a_name_that_was_found_is_not_looked_up_again() {
        let (before, found) = keep(|| resolve("localhost:81", 80));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["localhost"]);
        assert_eq!(give(found, || resolve("localhost:81", 80)), before);
        // No name server knows this one (RFC 6761).
        let address: SocketAddr = "192.0.2.7:0".parse().unwrap();
        let known = Found::from([("gone.invalid".to_owned(), vec![address])]);
        let again = give(known, || (resolve("gone.invalid", 80), resolve("localhost", 80)));
        assert_eq!(again, (Ok(vec!["192.0.2.7:80".parse().unwrap()]), Err("host not found")));
        assert!(resolve("localhost", 80).is_ok(), "the mode ends with the loading");
    }
}
