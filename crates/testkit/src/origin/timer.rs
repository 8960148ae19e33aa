//! Whether the other end of a connection keeps it alive: the timer of its socket, as the system tells it.

use socket2::{Domain, Protocol, Socket, Type};
use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;

/// Timers of a socket, as sock_diag(7) and proc(5) number them.
const RETRANSMISSION: u8 = 1;
const KEEPALIVE: u8 = 2;
const WINDOW_PROBE: u8 = 4;

/// Whether the socket at `from`, connected to `to`, has its timer for SO_KEEPALIVE running.
pub(super) fn is_kept_alive(from: SocketAddr, to: SocketAddr) -> bool {
    // Bytes under way have another timer, until they are acknowledged.
    for _ in 0..100 {
        match asked(from, to).or_else(|| listed(from, to)) {
            Some(KEEPALIVE) => return true,
            Some(RETRANSMISSION | WINDOW_PROBE) => std::thread::sleep(Duration::from_millis(5)),
            _ => return false,
        }
    }
    false
}

/// By netlink's question for one socket; `None`: it is not known, or the system cannot be asked.
fn asked(from: SocketAddr, to: SocketAddr) -> Option<u8> {
    const AF_NETLINK: i32 = 16;
    const NETLINK_SOCK_DIAG: i32 = 4;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const HEAD_BYTES: usize = 16;
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { return None };
    // struct inet_diag_req_v2: AF_INET, IPPROTO_TCP, no more than the least, any state; the socket's ports and addresses, any
    // interface, no cookie.
    let mut request = vec![2, 6, 0, 0, 0xff, 0xff, 0xff, 0xff];
    request.extend(from.port().to_be_bytes());
    request.extend(to.port().to_be_bytes());
    for address in [from.ip(), to.ip()] {
        request.extend(address.octets());
        request.extend([0; 12]);
    }
    request.extend([0; 4]);
    request.extend([0xff; 8]);
    let length = u32::try_from(HEAD_BYTES + request.len()).ok()?;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(request);
    let (domain, protocol) = (Domain::from(AF_NETLINK), Protocol::from(NETLINK_SOCK_DIAG));
    let mut socket = Socket::new(domain, Type::DGRAM, Some(protocol)).ok()?;
    socket.send(&message).ok()?;
    let mut answer = [0; 1024];
    let count = socket.read(&mut answer).ok()?;
    // struct inet_diag_msg: family, state, timer; another kind of message is an error.
    let is_found = answer[..count].get(4..6)? == SOCK_DIAG_BY_FAMILY.to_ne_bytes();
    if is_found { answer[..count].get(HEAD_BYTES + 2).copied() } else { None }
}

/// By the table of all connections, which is read far more slowly.
fn listed(from: SocketAddr, to: SocketAddr) -> Option<u8> {
    let (from, to) = (format!(":{:04X}", from.port()), format!(":{:04X}", to.port()));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    table.lines().filter(|line| line.contains(&from)).find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, local, remote, _, _, timer, ..] = words[..] else { return None };
        let is_it = local.ends_with(&from) && remote.ends_with(&to);
        is_it.then(|| u8::from_str_radix(timer.get(..2)?, 16).ok()).flatten()
    })
}
