//! Listening sockets: which are to be opened, in which order, and which worker hears of which.

use super::handover::Inherited;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use yorozu_connection::listen::{self, Listener};
use yorozu_kernel::config::servers::{ListenAddress, ListenOptions};
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_kernel::logging::error_log::ErrorLogs;

/// Open sockets, each with its address; an address may have several.
pub(super) type Sockets = Vec<(ListenAddress, Listener)>;

/// A socket that a configuration wants.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub address: ListenAddress,
    pub options: ListenOptions,
}

/// The sockets of a configuration.
pub(super) fn wanted(config: &Config) -> Vec<Wanted> {
    let sockets = config.sockets.iter();
    let wanted = |address: &ListenAddress, options: &ListenOptions| Wanted {
        address: address.clone(),
        options: *options,
    };
    sockets.map(|socket| wanted(&socket.address, &socket.options)).collect()
}

/// Opens every socket that is wanted and not in `old`, for `count` workers; those that were handed over are open.
///
/// # Errors
/// An address is taken, not ours, or needs rights we do not have.
pub(super) fn bind_all(
    all: &[Wanted],
    old: &[ListenAddress],
    count: usize,
    inherited: &mut Inherited,
    log: &ErrorLogs,
) -> Result<Sockets, String> {
    let mut opened = Vec::new();
    let mut wanted = Vec::new();
    for socket in all.iter().filter(|socket| !old.contains(&socket.address)) {
        let claimed = inherited.claim(&socket.address);
        if claimed.is_empty() {
            wanted.push(socket);
        }
        opened.extend(claimed.into_iter().map(|listener| (socket.address.clone(), listener)));
    }
    // Before any is opened: our own are no obstacle to each other, `*:80` and `127.0.0.1:80` can be together.
    let is_ours =
        |address: &ListenAddress| overlaps(address, old) || inherited.draining.contains(address);
    for socket in wanted.iter().filter(|socket| !is_ours(&socket.address)) {
        listen::check(&socket.address, &socket.options).map_err(|problem| problem.to_string())?;
    }
    // The control socket first: whoever reaches the site can ask about it. Then in particular before in general:
    // while only `*:80` is there, it is given what `127.0.0.1:80` is for.
    wanted.sort_by_key(|socket| (!socket.options.is_control, is_general(&socket.address)));
    for socket in wanted {
        match listen::bind(&socket.address, &socket.options, count) {
            Ok(listeners) => {
                opened.extend(listeners.into_iter().map(|it| (socket.address.clone(), it)));
            }
            Err(problem) if socket.options.is_control => {
                log.process(Level::Warn, &format!("no control socket: {problem}"));
            }
            Err(problem) => return Err(problem.to_string()),
        }
    }
    Ok(opened)
}

/// Looks whether the sockets of a configuration could be opened, for one that is only tested. As with nginx, an address
/// that is in use is none of its faults: the server that runs has it.
///
/// # Errors
/// An address is not ours, or needs rights we do not have.
pub fn look(config: &Config) -> Result<(), String> {
    let sockets = config.sockets.iter().filter(|socket| !socket.options.is_control);
    for socket in sockets {
        listen::look(&socket.address, &socket.options).map_err(|problem| problem.to_string())?;
    }
    Ok(())
}

/// Whether it stands for all addresses of the machine.
fn is_general(address: &ListenAddress) -> bool {
    let (ListenAddress::Tcp(address) | ListenAddress::Udp(address)) = address else { return false };
    address.ip().is_unspecified()
}

/// Whether one of `others` has the same port on all addresses, or this one has theirs.
fn overlaps(address: &ListenAddress, others: &[ListenAddress]) -> bool {
    let is_same = |one: &SocketAddr, other: &SocketAddr| {
        one.port() == other.port() && (one.ip().is_unspecified() || other.ip().is_unspecified())
    };
    others.iter().any(|other| match (address, other) {
        (ListenAddress::Tcp(one), ListenAddress::Tcp(other))
        | (ListenAddress::Udp(one), ListenAddress::Udp(other)) => is_same(one, other),
        _ => false,
    })
}

/// Copies of `sockets` for each of `count` workers: every worker hears of each address, and every socket is heard. A UDP
/// socket is one worker's alone: of a client's first datagrams, none may go to another.
///
/// # Errors
/// No descriptor is left.
pub(super) fn distribute(
    sockets: &[(ListenAddress, Listener)],
    count: usize,
) -> Result<Vec<Sockets>, String> {
    let mut addresses: Vec<&ListenAddress> = sockets.iter().map(|(address, _)| address).collect();
    addresses.sort_unstable_by_key(|address| {
        (matches!(address, ListenAddress::Udp(_)), address.to_string())
    });
    addresses.dedup();
    let mut per_worker: Vec<Sockets> = (0..count).map(|_| Vec::new()).collect();
    for address in addresses {
        let of_it: Vec<_> = sockets.iter().filter(|(at, _)| at == address).collect();
        let copies = match address {
            ListenAddress::Udp(_) => of_it.len(),
            _ => of_it.len().max(count),
        };
        for place in 0..copies {
            let (_, listener) = of_it[place % of_it.len()];
            let copy = listener.try_clone().map_err(|problem| no_descriptor(&problem))?;
            per_worker[place % count].push((address.clone(), copy));
        }
    }
    Ok(per_worker)
}

/// Copies of all sockets, for another process.
///
/// # Errors
/// No descriptor is left.
pub(super) fn copies(sockets: &[(ListenAddress, Listener)]) -> Result<Vec<OwnedFd>, String> {
    let copies = sockets.iter().map(|(_, listener)| match listener.try_clone()? {
        Listener::Tcp(listener) => Ok(listener.into()),
        Listener::Udp(socket) => Ok(socket.into()),
        Listener::Unix(listener) => Ok(listener.into()),
    });
    copies.collect::<Result<_, _>>().map_err(|problem| no_descriptor(&problem))
}

fn no_descriptor(problem: &std::io::Error) -> String {
    format!("dup() failed ({})", error::os_error(problem))
}
