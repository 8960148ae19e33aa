//! The gateway: two reads and two writes for each request.

use super::{EVENTS_MAX, REQUEST_BYTES_MAX};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::net::UnixStream;

/// A connection to the place that is asked.
trait Asked: Read + Write + AsFd {}

impl Asked for TcpStream {}
impl Asked for UnixStream {}

/// What one end of a connection is, by its number.
enum End {
    Client(TcpStream),
    Asked {
        stream: Box<dyn Asked>,
        /// The number of the client it is asked for.
        client: usize,
        /// Bytes that are still to come.
        missing: usize,
    },
}

struct Gateway<'a> {
    epoll: Epoll,
    ends: Vec<Option<End>>,
    /// Connections that nothing is asked over.
    idle: Vec<usize>,
    place: &'a str,
    request: &'a [u8],
    response: &'a [u8],
    /// Bytes of the answer to the request.
    bytes: usize,
    buffer: Vec<u8>,
}

/// Sends `response` for everything that comes, once as many `bytes` have come from `place` for `request`.
pub(super) fn serve(
    listener: &TcpListener,
    response: &[u8],
    place: &str,
    request: &[u8],
    bytes: usize,
) -> io::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    let (ends, idle, buffer) = (Vec::new(), Vec::new(), vec![0; 2 * REQUEST_BYTES_MAX]);
    let mut gateway = Gateway { epoll, ends, idle, place, request, response, bytes, buffer };
    let mut events = vec![EpollEvent::empty(); EVENTS_MAX];
    loop {
        let count = gateway.epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in &events[..count] {
            let number = usize::try_from(event.data()).map_err(io::Error::other)?;
            if number == 0 {
                let client = listener.accept()?.0;
                client.set_nonblocking(true)?;
                let number = usize::try_from(client.as_raw_fd()).map_err(io::Error::other)?;
                gateway.add(number, End::Client(client))?;
            } else if gateway.go_on(number).is_err() {
                gateway.ends[number] = None;
            }
        }
    }
}

impl Gateway<'_> {
    fn add(&mut self, number: usize, end: End) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, number as u64);
        match &end {
            End::Client(stream) => self.epoll.add(stream, event)?,
            End::Asked { stream, .. } => self.epoll.add(stream.as_fd(), event)?,
        }
        if self.ends.len() <= number {
            self.ends.resize_with(number + 1, || None);
        }
        self.ends[number] = Some(end);
        Ok(())
    }

    fn connect(&mut self) -> io::Result<usize> {
        let stream: Box<dyn Asked> = match self.place.parse::<u16>() {
            Ok(port) => {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
            Err(_) => {
                let stream = UnixStream::connect(self.place)?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
        };
        let number = usize::try_from(stream.as_fd().as_raw_fd()).map_err(io::Error::other)?;
        self.add(number, End::Asked { stream, client: 0, missing: 0 })?;
        Ok(number)
    }

    /// # Errors
    /// The connection is over.
    fn go_on(&mut self, number: usize) -> io::Result<()> {
        let over = || io::Error::from(ErrorKind::UnexpectedEof);
        match self.ends.get_mut(number).and_then(Option::as_mut).ok_or_else(over)? {
            End::Client(client) => {
                if client.read(&mut self.buffer)? == 0 {
                    return Err(over());
                }
                let asked = match self.idle.pop() {
                    Some(asked) => asked,
                    None => self.connect()?,
                };
                let Some(Some(End::Asked { stream, client, missing })) = self.ends.get_mut(asked)
                else {
                    return Err(over());
                };
                (*client, *missing) = (number, self.bytes);
                stream.write_all(self.request)
            }
            End::Asked { stream, client, missing } => {
                let count = stream.read(&mut self.buffer)?;
                if count == 0 || count > *missing {
                    return Err(over());
                }
                *missing -= count;
                if *missing > 0 {
                    return Ok(());
                }
                let client = *client;
                self.idle.push(number);
                match &mut self.ends[client] {
                    Some(End::Client(client)) => client.write_all(self.response),
                    _ => Ok(()),
                }
            }
        }
    }
}
