//! One question to name servers, and its answer (RFC 1035, RFC 7766).
//!
//! # Invariants
//! - An answer counts if it comes from the server that was asked, to the port it was asked from, with the
//!   number and the question that were sent; port and number are drawn for each question.

use crate::resolver::ResolveFault;
use domain::base::iana::{Rcode, Rtype};
use domain::base::wire::ParseError;
use domain::base::{Message, MessageBuilder, Name, ToName as _};
use domain::rdata::{A, Aaaa, Cname};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, sleep_until, timeout_at};

/// Time until the next name server is asked; nginx's.
const RESEND_INTERVAL: Duration = Duration::from_secs(5);
/// Longest answer over UDP; nginx's. A question without EDNS allows 512 bytes (RFC 1035, section 4.2.1), which not every server minds.
const DATAGRAM_BYTES_MAX: usize = 4096;
/// Names that stand for another name, one after the other; nginx's.
const ALIASES_MAX: usize = 50;

/// Addresses of one family.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) addresses: Vec<IpAddr>,
    /// How long they hold; an empty answer does not say.
    pub(crate) ttl: Option<Duration>,
}

type Packet = Message<Vec<u8>>;

/// Asks for `host`'s addresses (`Rtype::A`, `Rtype::AAAA`) until a server answers; the caller bounds the time.
///
/// # Errors
/// [`ResolveFault`]
///
/// # Cancel safety
/// The question is dropped.
pub(crate) async fn ask(
    servers: &[SocketAddr],
    host: &str,
    rtype: Rtype,
) -> Result<Found, ResolveFault> {
    // Without a server to ask, a name is not found, as with nginx.
    let mut name: Name<Vec<u8>> = host.parse().map_err(|_| ResolveFault::NotFound)?;
    let mut found = Found::default();
    for _ in 0..ALIASES_MAX {
        let answer = ask_servers(servers, &question(&name, rtype)?).await?;
        let last = answer.canonical_name().ok_or(ResolveFault::Failed)?.to_vec();
        read(&answer, &last, rtype, &mut found).map_err(|_| ResolveFault::Failed)?;
        if !found.addresses.is_empty() || last == name {
            return Ok(found);
        }
        name = last;
    }
    // As nginx: names that lead round in a circle lead nowhere.
    Err(ResolveFault::NotFound)
}

fn question(name: &Name<Vec<u8>>, rtype: Rtype) -> Result<Packet, ResolveFault> {
    let mut id = [0; 2];
    aws_lc_rs::rand::fill(&mut id).map_err(|_| ResolveFault::Failed)?;
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_id(u16::from_be_bytes(id));
    message.header_mut().set_rd(true);
    let mut message = message.question();
    message.push((name, rtype)).map_err(|_| ResolveFault::Failed)?;
    Ok(message.into_message())
}

/// Adds what an answer says of the name at the end of its aliases.
fn read(
    answer: &Packet,
    last: &Name<Vec<u8>>,
    rtype: Rtype,
    found: &mut Found,
) -> Result<(), ParseError> {
    let mut add = |ttl: Duration, address: Option<IpAddr>| {
        found.ttl = Some(found.ttl.map_or(ttl, |least| least.min(ttl)));
        found.addresses.extend(address);
    };
    for record in answer.answer()?.limit_to_in::<Cname<_>>() {
        add(record?.ttl().into_duration(), None);
    }
    for record in answer.answer()?.limit_to_in::<A>().filter(|_| rtype == Rtype::A) {
        let record = record?;
        if record.owner() == last {
            add(record.ttl().into_duration(), Some(record.data().addr().into()));
        }
    }
    for record in answer.answer()?.limit_to_in::<Aaaa>().filter(|_| rtype == Rtype::AAAA) {
        let record = record?;
        if record.owner() == last {
            add(record.ttl().into_duration(), Some(record.data().addr().into()));
        }
    }
    Ok(())
}

/// One server after the other, the first by chance. One that does not answer is asked again when it is its turn; one that
/// cannot help is not.
async fn ask_servers(servers: &[SocketAddr], question: &Packet) -> Result<Packet, ResolveFault> {
    let first = usize::from(question.header().id());
    let mut refused = 0;
    for turn in 0.. {
        let server = servers[(first + turn) % servers.len()];
        let until = Instant::now() + RESEND_INTERVAL;
        match timeout_at(until, ask_server(server, question)).await {
            Ok(Ok(answer)) => match answer.header().rcode() {
                Rcode::NOERROR => return Ok(answer),
                Rcode::NXDOMAIN => return Err(ResolveFault::NotFound),
                _ => {
                    refused += 1;
                    if refused == servers.len() {
                        return Err(ResolveFault::Failed);
                    }
                }
            },
            // Nothing listens there: the next server at once, but each only once in a while.
            Ok(Err(_)) if (turn + 1) % servers.len() == 0 => sleep_until(until).await,
            Ok(Err(_)) | Err(_) => {}
        }
    }
    Err(ResolveFault::TimedOut)
}

async fn ask_server(server: SocketAddr, question: &Packet) -> io::Result<Packet> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(question.as_slice()).await?;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let Ok(answer) = Message::from_octets(buffer[..length].to_vec()) else { continue };
        if answer.is_answer(question) {
            // A part of the addresses would do, but not a part of the aliases.
            let is_whole = !answer.header().tc();
            return if is_whole { Ok(answer) } else { ask_over_tcp(server, question).await };
        }
    }
}

async fn ask_over_tcp(server: SocketAddr, question: &Packet) -> io::Result<Packet> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.as_slice().len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), question.as_slice()].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    match Message::from_octets(answer) {
        Ok(answer) if answer.is_answer(question) => Ok(answer),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
