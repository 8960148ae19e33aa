//! Asks a server on this machine for a page over HTTP/3, again and again.
//!
//!   yorozu-h3load PORT PATH CLIENTS STREAMS SECONDS      connections that stay, each with this many requests at a time
//!   yorozu-h3load PORT PATH CLIENTS new SECONDS          a new connection for each request
//!
//! Prints `requests N rate N/s p99 N ms errors N`. What is not answered with 200 is an error. Certificates are not looked at.

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, SendStream, TokioRuntime, VarInt};
use std::cell::RefCell;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;
use yorozu_testkit::tls::{self, Hello};
use yorozu_wire::h3::frame::{kind, put_control_start, put_head, read_integer};
use yorozu_wire::h3::qpack::{Decoder, put_field, put_prefix};

type Failed = Box<dyn Error>;

/// The name that servers are asked for.
const NAME: &str = "localhost";
/// As much of an answer as has its head, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a datagram; jumbo frames have as many.
const DATAGRAM_BYTES_MAX: u16 = 9000;

/// What was counted.
#[derive(Default)]
struct Counts {
    times: Vec<Duration>,
    errors: u64,
}

/// What all clients share.
struct Load {
    address: SocketAddr,
    config: ClientConfig,
    /// A request's stream.
    request: Vec<u8>,
    end: Instant,
    counts: RefCell<Counts>,
}

fn settings() -> Result<ClientConfig, Failed> {
    // Each handshake is a whole one, with whomever it meets.
    let hello = Hello { version: "1.3".to_owned(), alpn: b"h3".to_vec(), ..Hello::default() };
    let tls = tls::settings(&hello);
    Ok(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)))
}

fn request(port: u16, path: &str) -> Vec<u8> {
    let (mut section, mut out) = (Vec::new(), Vec::new());
    put_prefix(&mut section);
    let authority = format!("{NAME}:{port}");
    let fields =
        [(":method", "GET"), (":scheme", "https"), (":authority", &authority), (":path", path)];
    for (name, value) in fields {
        put_field(&mut section, name.as_bytes(), value.as_bytes());
    }
    put_head(&mut out, kind::HEADERS, section.len() as u64);
    out.append(&mut section);
    out
}

/// Whether an answer begins with the status 200; `None` if its head is not whole.
fn is_good(bytes: &[u8]) -> Option<bool> {
    let (kind, first) = read_integer(bytes)?;
    let (length, second) = read_integer(&bytes[first..])?;
    let section = bytes[first + second..].get(..usize::try_from(length).ok()?)?;
    let mut status = false;
    let take = |name: &[u8], value: &[u8]| {
        status |= name == b":status" && value == b"200";
        true
    };
    Some(kind == kind::HEADERS && Decoder::new(0, 0).section(0, section, take).is_ok() && status)
}

/// A client's socket. It takes as large datagrams as the route has, as clients by ngtcp2 do.
fn endpoint() -> Result<Endpoint, Failed> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(DATAGRAM_BYTES_MAX)?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(Endpoint::new(config, None, socket, Arc::new(TokioRuntime))?)
}

impl Load {
    /// Asks once.
    async fn ask(&self, connection: &Connection) -> Result<(), Failed> {
        let (mut send, mut recv) = connection.open_bi().await?;
        send.write_all(&self.request).await?;
        send.finish()?;
        let (mut head, mut good) = (Vec::new(), None);
        while let Some(chunk) = recv.read_chunk(usize::MAX, true).await? {
            if good.is_none() && head.len() < HEAD_BYTES_MAX {
                head.extend_from_slice(&chunk.bytes);
                good = is_good(&head);
            }
        }
        if good == Some(true) { Ok(()) } else { Err("another answer than 200".into()) }
    }

    /// A connection, and its control stream: whose end would be the connection's.
    async fn connect(&self, endpoint: &Endpoint) -> Result<(Connection, SendStream), Failed> {
        let config = self.config.clone();
        let connection = endpoint.connect_with(config, self.address, NAME)?.await?;
        let mut control = connection.open_uni().await?;
        let mut said = Vec::new();
        put_control_start(&mut said, 0, 0);
        control.write_all(&said).await?;
        Ok((connection, control))
    }

    fn note(&self, begun: Instant, done: Result<(), Failed>) {
        // What is under way at the end is not counted.
        if Instant::now() >= self.end {
            return;
        }
        let mut counts = self.counts.borrow_mut();
        match done {
            Ok(()) => counts.times.push(begun.elapsed()),
            Err(problem) => {
                if counts.errors == 0 {
                    eprintln!("{problem}");
                }
                counts.errors += 1;
            }
        }
    }

    /// A connection that stays, with this many requests at a time.
    async fn stay(self: Rc<Self>, streams: usize) -> Result<(), Failed> {
        let endpoint = endpoint()?;
        let (connection, _control) = self.connect(&endpoint).await?;
        let askers: Vec<_> = (0..streams)
            .map(|_| {
                let (load, connection) = (Rc::clone(&self), connection.clone());
                tokio::task::spawn_local(async move {
                    while Instant::now() < load.end {
                        let begun = Instant::now();
                        let done = load.ask(&connection).await;
                        let is_over = done.is_err() && connection.close_reason().is_some();
                        load.note(begun, done);
                        if is_over {
                            return;
                        }
                    }
                })
            })
            .collect();
        for asker in askers {
            asker.await?;
        }
        connection.close(VarInt::from_u32(0x100), b"");
        Ok(())
    }

    /// New connections, one after the other.
    async fn come_and_go(self: Rc<Self>) -> Result<(), Failed> {
        let endpoint = endpoint()?;
        while Instant::now() < self.end {
            let begun = Instant::now();
            let done = async {
                let (connection, _control) = self.connect(&endpoint).await?;
                self.ask(&connection).await?;
                connection.close(VarInt::from_u32(0x100), b"");
                Ok(())
            };
            let done = done.await;
            self.note(begun, done);
        }
        Ok(())
    }
}

async fn run(load: Rc<Load>, clients: usize, streams: Option<usize>) {
    let work: Vec<_> = (0..clients)
        .map(|_| {
            let load = Rc::clone(&load);
            tokio::task::spawn_local(async move {
                let begun = Instant::now();
                let done = match streams {
                    Some(streams) => Rc::clone(&load).stay(streams).await,
                    None => Rc::clone(&load).come_and_go().await,
                };
                if done.is_err() {
                    load.note(begun, done);
                }
            })
        })
        .collect();
    // Who waits for an answer then is not waited for.
    let _ = tokio::time::timeout_at(load.end.into(), async {
        for one in work {
            let _ = one.await;
        }
    })
    .await;
}

fn main() -> Result<(), Failed> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [port, path, clients, streams, seconds] = &words[..] else {
        return Err("usage: yorozu-h3load PORT PATH CLIENTS STREAMS|new SECONDS".into());
    };
    let (port, clients) = (port.parse()?, clients.parse()?);
    let seconds = Duration::from_secs(seconds.parse()?);
    let streams = if streams == "new" { None } else { Some(streams.parse()?) };
    let load = Rc::new(Load {
        address: (Ipv4Addr::LOCALHOST, port).into(),
        config: settings()?,
        request: request(port, path),
        end: Instant::now() + seconds,
        counts: RefCell::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, run(Rc::clone(&load), clients, streams));
    let mut counts = load.counts.borrow_mut();
    counts.times.sort_unstable();
    let requests = counts.times.len();
    let p99 = counts.times.get(requests * 99 / 100).copied().unwrap_or_default();
    let rate = f64::from(u32::try_from(requests)?) / seconds.as_secs_f64();
    let (p99, errors) = (p99.as_secs_f64() * 1000.0, counts.errors);
    println!("requests {requests} rate {rate:.1}/s p99 {p99:.3} ms errors {errors}");
    Ok(())
}
