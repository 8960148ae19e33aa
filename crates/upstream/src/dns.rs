//! One question to name servers, and its answer (RFC 1035, RFC 7766).
//!
//! # Invariants
//! - An answer counts if it comes from the server that was asked, to the port it was asked from, with the
//!   number and the question that were sent; port and number are drawn for each question.

use crate::resolver::ResolveFault;
use domain::base::iana::{Rcode, Rtype};
use domain::base::wire::ParseError;
use domain::base::{Message, MessageBuilder, Name, ToName as _, Ttl};
use domain::rdata::{A, Aaaa, Cname, Srv};
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
/// Servers of a service; chosen.
const RECORDS_MAX: usize = 256;

/// Addresses of a name.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) addresses: Vec<IpAddr>,
    /// How long they hold; an empty answer does not say.
    pub(crate) ttl: Option<Duration>,
}

type Packet = Message<Vec<u8>>;
type DomainName = Name<Vec<u8>>;

/// Asks for `host`'s addresses of each family (`Rtype::A`, `Rtype::AAAA`) until a server answers; the caller bounds the time.
/// Those of one family are enough.
///
/// # Errors
/// [`ResolveFault`]
///
/// # Cancel safety
/// The question is dropped.
pub(crate) async fn ask(
    servers: &[SocketAddr],
    host: &str,
    families: &[Rtype],
) -> Result<Found, ResolveFault> {
    let mut found = Found::default();
    follow(servers, host, families, |answer, last, family| {
        read(answer, last, family, &mut found)?;
        Ok(!found.addresses.is_empty())
    })
    .await?;
    Ok(found)
}

/// One server of a service.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) priority: u16,
    pub(crate) weight: u16,
    pub(crate) port: u16,
    pub(crate) target: String,
}

/// Asks for the servers of a service, and how long the answer holds; otherwise as [`ask`].
///
/// # Errors
/// [`ResolveFault`]
///
/// # Cancel safety
/// The question is dropped.
pub(crate) async fn ask_services(
    servers: &[SocketAddr],
    name: &str,
) -> Result<(Vec<Record>, Duration), ResolveFault> {
    let (mut records, mut ttl) = (Vec::new(), None);
    follow(servers, name, &[Rtype::SRV], |answer, last, _| {
        for record in answer.answer()?.limit_to_in::<Srv<_>>() {
            let record = record?;
            let data = record.data();
            // A target that is the root: the service is not offered (RFC 2782).
            if record.owner() != last || data.target().is_root() || records.len() == RECORDS_MAX {
                continue;
            }
            least(&mut ttl, holds(record.ttl()));
            records.push(Record {
                priority: data.priority(),
                weight: data.weight(),
                port: data.port(),
                target: data.target().to_string(),
            });
        }
        Ok(!records.is_empty())
    })
    .await?;
    let ttl = ttl.ok_or(ResolveFault::NotFound)?;
    Ok((records, ttl))
}

/// Asks for records of `host`, of one type or of two at once, and of the name that it stands for, until `read` has found some in
/// an answer or there is no other name. As nginx: an alias that one type's answer has is followed for both.
async fn follow(
    servers: &[SocketAddr],
    host: &str,
    types: &[Rtype],
    mut read: impl FnMut(&Packet, &DomainName, Rtype) -> Result<bool, ParseError>,
) -> Result<(), ResolveFault> {
    // Without a server to ask, a name is not found, as with nginx.
    let name: DomainName = host.parse().map_err(|_| ResolveFault::NotFound)?;
    let mut names = vec![name];
    loop {
        let (answers, asked) =
            (ask_for(servers, &names[names.len() - 1], types).await, names.len());
        let (mut is_found, mut fault) = (false, None);
        for (answer, rtype) in answers.into_iter().flatten().zip(types) {
            let done = answer.and_then(|answer| {
                let way = way(&answer, &names[..asked])?;
                let last = way.last().unwrap_or(&names[asked - 1]);
                let has_some = read(&answer, last, *rtype).map_err(|_| ResolveFault::Failed)?;
                Ok((has_some, way))
            });
            match done {
                Ok((has_some, way)) => {
                    is_found |= has_some;
                    if names.len() == asked {
                        names.extend(way);
                    }
                }
                // What the other type has is enough.
                Err(why) => fault = fault.or(Some(why)),
            }
        }
        if is_found {
            return Ok(());
        }
        if names.len() == asked {
            return fault.map_or(Ok(()), Err);
        }
    }
}

/// The answers for each type, in their order.
async fn ask_for(
    servers: &[SocketAddr],
    name: &DomainName,
    types: &[Rtype],
) -> [Option<Result<Packet, ResolveFault>>; 2] {
    let of = async |rtype: Option<&Rtype>| match question(name, *rtype?) {
        Ok(question) => Some(ask_servers(servers, &question).await),
        Err(fault) => Some(Err(fault)),
    };
    tokio::join!(of(types.first()), of(types.get(1))).into()
}

/// The names that the last of `before` stands for, one for the other, as far as an answer says.
fn way(answer: &Packet, before: &[DomainName]) -> Result<Vec<DomainName>, ResolveFault> {
    let aliases = aliases(answer).map_err(|_| ResolveFault::Failed)?;
    let mut way: Vec<DomainName> = Vec::new();
    while let Some((_, to)) =
        aliases.iter().find(|(from, _)| way.last().or(before.last()) == Some(from))
    {
        // As nginx: names that lead round in a circle lead nowhere.
        if before.contains(to) || way.contains(to) || before.len() + way.len() == ALIASES_MAX {
            return Err(ResolveFault::NotFound);
        }
        way.push(to.clone());
    }
    Ok(way)
}

/// The names of an answer that stand for others.
fn aliases(answer: &Packet) -> Result<Vec<(DomainName, DomainName)>, ParseError> {
    let records = answer.answer()?.limit_to_in::<Cname<_>>();
    records.map(|record| record.map(|r| (r.owner().to_vec(), r.data().cname().to_vec()))).collect()
}

/// How long a record holds. A time that would be negative is none (RFC 2181, section 8).
fn holds(ttl: Ttl) -> Duration {
    Some(ttl.into_duration()).filter(|time| time.as_secs() < 1 << 31).unwrap_or_default()
}

fn least(known: &mut Option<Duration>, other: Duration) {
    *known = Some(known.map_or(other, |known| known.min(other)));
}

fn question(name: &DomainName, rtype: Rtype) -> Result<Packet, ResolveFault> {
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
    last: &DomainName,
    rtype: Rtype,
    found: &mut Found,
) -> Result<(), ParseError> {
    let mut add = |ttl: Duration, address: Option<IpAddr>| {
        least(&mut found.ttl, ttl);
        found.addresses.extend(address);
    };
    for record in answer.answer()?.limit_to_in::<Cname<_>>() {
        add(holds(record?.ttl()), None);
    }
    for record in answer.answer()?.limit_to_in::<A>().filter(|_| rtype == Rtype::A) {
        let record = record?;
        if record.owner() == last {
            add(holds(record.ttl()), Some(record.data().addr().into()));
        }
    }
    for record in answer.answer()?.limit_to_in::<Aaaa>().filter(|_| rtype == Rtype::AAAA) {
        let record = record?;
        if record.owner() == last {
            add(holds(record.ttl()), Some(record.data().addr().into()));
        }
    }
    Ok(())
}

/// One server after the other, the first by chance. One that does not answer is asked again when it is its turn; one that
/// cannot help is not.
async fn ask_servers(servers: &[SocketAddr], question: &Packet) -> Result<Packet, ResolveFault> {
    let first = usize::from(question.header().id());
    let (mut refused, mut why) = (0, Rcode::REFUSED);
    for turn in 0.. {
        let server = servers[(first + turn) % servers.len()];
        let until = Instant::now() + RESEND_INTERVAL;
        match timeout_at(until, ask_server(server, question)).await {
            Ok(Ok(answer)) => match answer.header().rcode() {
                Rcode::NOERROR => return Ok(answer),
                Rcode::NXDOMAIN => return Err(ResolveFault::NotFound),
                other => {
                    refused += 1;
                    // A server that refuses says nothing about the name.
                    if other != Rcode::REFUSED {
                        why = other;
                    }
                    if refused == servers.len() {
                        return Err(fault(why));
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

fn fault(rcode: Rcode) -> ResolveFault {
    match rcode {
        Rcode::FORMERR => ResolveFault::Format,
        Rcode::NOTIMP => ResolveFault::Unimplemented,
        Rcode::REFUSED => ResolveFault::Refused,
        _ => ResolveFault::Failed,
    }
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
