//! The least that a server of pages can cost: epoll, one read and one write for each request, nothing
//! looked at, nothing logged. What `bench/run` measures servers against.
//!
//! `yorozu-floor PORT FILE [close]` answers everything that comes on loopback with the bytes of the file, and with `close`
//! ends the connection then.
//!
//! `yorozu-floor PORT FILE ask WHERE REQUEST BYTES` is the least that a gateway can cost: it sends the bytes of the file
//! REQUEST to WHERE (a port on loopback, or the path of a socket) for everything that comes, over a connection that is kept,
//! and answers when BYTES have come from there.

mod ask;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;

const USAGE: &str = "usage: yorozu-floor PORT FILE [close | ask WHERE REQUEST BYTES]";
const REQUEST_BYTES_MAX: usize = 16 * 1024;
const EVENTS_MAX: usize = 512;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, file, rest @ ..] = &*arguments else { return Err(io::Error::other(USAGE)) };
    let port = port.parse().map_err(|_| io::Error::other(format!("\"{port}\" is not a port")))?;
    let response = std::fs::read(file)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    match rest {
        [] => serve(&listener, &response, false),
        [word] if word == "close" => serve(&listener, &response, true),
        [word, place, request, bytes] if word == "ask" => {
            let bytes = bytes.parse().map_err(|_| io::Error::other(USAGE))?;
            ask::serve(&listener, &response, place, &std::fs::read(request)?, bytes)
        }
        _ => Err(io::Error::other(USAGE)),
    }
}

fn serve(listener: &TcpListener, response: &[u8], closes: bool) -> io::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    let mut clients: HashMap<u64, TcpStream> = HashMap::new();
    let mut request = vec![0; REQUEST_BYTES_MAX];
    let mut events = vec![EpollEvent::empty(); EVENTS_MAX];
    loop {
        let count = epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in &events[..count] {
            let key = event.data();
            if let Some(client) = clients.get_mut(&key) {
                if !answer(client, &mut request, response) || closes {
                    clients.remove(&key);
                }
            } else if let Ok((client, _)) = listener.accept() {
                client.set_nonblocking(true)?;
                let key = u64::from(client.as_raw_fd().unsigned_abs());
                epoll.add(&client, EpollEvent::new(EpollFlags::EPOLLIN, key))?;
                clients.insert(key, client);
            }
        }
    }
}

/// Whether the connection goes on.
fn answer(client: &mut TcpStream, request: &mut [u8], response: &[u8]) -> bool {
    let Ok(count) = client.read(request) else { return false };
    count > 0 && client.write_all(response).is_ok()
}
