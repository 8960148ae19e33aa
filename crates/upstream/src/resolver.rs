//! Names to addresses, asked of the name servers that `resolver` lists.

#![cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "name servers are waited for by the clock")
)]

use crate::dns::{self, Found};
use crate::last_known;
use domain::base::iana::Rtype;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// What `resolver` says.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Resolver {
    /// The name servers.
    pub servers: Vec<SocketAddr>,
    /// How long an answer holds, in place of its TTL.
    pub valid: Option<Duration>,
    /// Whether IPv4 addresses are asked for.
    pub ipv4: bool,
    /// Whether IPv6 addresses are asked for.
    pub ipv6: bool,
}

/// The addresses of a name.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// At least one.
    pub addresses: Vec<IpAddr>,
    /// When to ask again.
    pub valid_until: Instant,
    /// Why these are the last that were known; told once for each question that failed.
    pub is_stale_for: Option<ResolveFault>,
}

/// Where a service is offered: what its SRV records come to.
#[derive(Clone, Debug)]
pub struct Offered {
    /// At least one.
    pub places: Vec<Place>,
    /// Servers of the service that have no address.
    pub missing: Vec<(String, ResolveFault)>,
    /// When to ask again.
    pub valid_until: Instant,
}

/// One address of a service.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Place {
    /// The lower, the sooner it is to be used.
    pub priority: u16,
    /// Share among those of the same priority; at least 1.
    pub weight: u16,
    /// Where.
    pub address: SocketAddr,
}

/// Why a name has no address; displayed with nginx's number and words.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ResolveFault {
    /// A name server did not understand the question.
    #[error("1: Format error")]
    Format,
    /// No such name, or no address of the family asked for.
    #[error("3: Host not found")]
    NotFound,
    /// No name server answered.
    #[error("110: Operation timed out")]
    TimedOut,
    /// A name server could not answer.
    #[error("2: Server failure")]
    Failed,
    /// No name server answers such questions.
    #[error("4: Unimplemented")]
    Unimplemented,
    /// No name server answers us.
    #[error("5: Operation refused")]
    Refused,
}

/// Answers each worker remembers, in names; chosen.
const CACHED_NAMES_MAX: usize = 1024;

/// What is known of a name; locked while it is asked for, so that it is asked for once.
type Known = Rc<Mutex<Option<Answer>>>;

#[derive(Clone, Debug)]
struct Answer {
    learned: Instant,
    said: Result<Resolved, ResolveFault>,
}

impl Answer {
    /// What it says. As nginx: each time another address is the first.
    fn told(&mut self) -> Result<Resolved, ResolveFault> {
        let said = self.said.clone();
        if let Ok(resolved) = &mut self.said {
            resolved.addresses.rotate_left(1);
            resolved.is_stale_for = None;
        }
        said
    }

    /// Whether it answers a question asked at `asked`. What came while the question waited does, a fault too.
    fn holds(&self, asked: Instant, now: Instant) -> bool {
        let is_valid = self.said.as_ref().is_ok_and(|resolved| resolved.valid_until > now);
        is_valid || self.learned >= asked
    }
}

thread_local! {
    /// What this worker knows.
    static NAMES: RefCell<HashMap<last_known::Key, Known>> = RefCell::default();
}

impl Resolver {
    /// Looks a name up, within `timeout`. Requests for a name that is being asked for share the answer. Where no name server
    /// helps, the last addresses stand in for it, up to a day.
    ///
    /// # Errors
    /// [`ResolveFault`]
    ///
    /// # Cancel safety
    /// The question is dropped; the next that waits for its answer asks.
    pub async fn addresses(&self, host: &str, timeout: Duration) -> Result<Resolved, ResolveFault> {
        let asked = Instant::now();
        if let Some(addresses) = self.own_addresses(host) {
            return Ok(Resolved { addresses, valid_until: asked, is_stale_for: None });
        }
        // A full name: the machine's search list is not for servers.
        let key = (self.clone(), host.trim_end_matches('.').to_ascii_lowercase());
        let known = known(&key, asked);
        let answer = async {
            let mut known = known.lock().await;
            if let Some(answer) = known.as_mut().filter(|known| known.holds(asked, Instant::now()))
            {
                return answer.told();
            }
            let said = self.ask_or_recall(&key, host, timeout).await;
            known.insert(Answer { learned: Instant::now(), said }).told()
        };
        let told = tokio::time::timeout(timeout, answer).await;
        told.unwrap_or_else(|_| recall(&key, ResolveFault::TimedOut))
    }

    /// Looks up where a service is offered: `name` has SRV records (RFC 2782). Nothing of it is remembered.
    ///
    /// # Errors
    /// [`ResolveFault`]
    ///
    /// # Cancel safety
    /// As [`Resolver::addresses`].
    pub async fn services(&self, name: &str, timeout: Duration) -> Result<Offered, ResolveFault> {
        let offered = dns::ask_services(&self.servers, name);
        let offered = tokio::time::timeout(timeout, offered).await;
        let (records, ttl) = offered.unwrap_or(Err(ResolveFault::TimedOut))?;
        let mut valid_until = Instant::now() + self.valid.unwrap_or(ttl);
        let (mut places, mut missing) = (Vec::new(), Vec::new());
        for record in records {
            match self.addresses(&record.target, timeout).await {
                Ok(found) => {
                    valid_until = valid_until.min(found.valid_until);
                    places.extend(found.addresses.into_iter().map(|ip| Place {
                        priority: record.priority,
                        weight: record.weight.max(1),
                        address: SocketAddr::new(ip, record.port),
                    }));
                }
                Err(fault) => missing.push((record.target, fault)),
            }
        }
        if places.is_empty() {
            // As nginx: a name that is not there says more than a question that failed.
            let is_nowhere = missing.iter().any(|(_, fault)| *fault == ResolveFault::NotFound);
            let first = missing.first().map(|(_, fault)| *fault).filter(|_| !is_nowhere);
            return Err(first.unwrap_or(ResolveFault::NotFound));
        }
        places.sort_unstable();
        Ok(Offered { places, missing, valid_until })
    }

    async fn ask_or_recall(
        &self,
        key: &last_known::Key,
        host: &str,
        timeout: Duration,
    ) -> Result<Resolved, ResolveFault> {
        let now = Instant::now();
        if let Some(resolved) = last_known::in_between(key, now) {
            return Ok(resolved);
        }
        let is_known = last_known::is_known(key, now);
        let patience = if is_known { timeout.min(last_known::PATIENCE) } else { timeout };
        let said = tokio::time::timeout(patience, self.ask(host)).await;
        match said.unwrap_or(Err(ResolveFault::TimedOut)) {
            Ok(found) => {
                last_known::note(key, &found);
                Ok(found)
            }
            Err(ResolveFault::NotFound) => {
                last_known::forget(key);
                Err(ResolveFault::NotFound)
            }
            Err(fault) => recall(key, fault),
        }
    }

    async fn ask(&self, host: &str) -> Result<Resolved, ResolveFault> {
        let families = match (self.ipv4, self.ipv6) {
            (true, true) => &[Rtype::A, Rtype::AAAA][..],
            (true, false) => &[Rtype::A],
            (false, true) => &[Rtype::AAAA],
            (false, false) => &[],
        };
        let Found { addresses, ttl } = dns::ask(&self.servers, host, families).await?;
        if addresses.is_empty() {
            return Err(ResolveFault::NotFound);
        }
        let valid_until = Instant::now() + self.valid.or(ttl).unwrap_or_default();
        Ok(Resolved { addresses, valid_until, is_stale_for: None })
    }
}

impl Resolver {
    /// Those of names that no name server is asked about (RFC 6761, section 6.3).
    fn own_addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let first = self.ipv4.then_some(Ipv4Addr::LOCALHOST.into());
        let second = self.ipv6.then_some(Ipv6Addr::LOCALHOST.into());
        (host == "localhost" || host.ends_with(".localhost"))
            .then(|| first.into_iter().chain(second).collect())
    }
}

/// The last addresses, now that a question failed.
fn recall(key: &last_known::Key, fault: ResolveFault) -> Result<Resolved, ResolveFault> {
    let now = Instant::now();
    last_known::failed(key, now);
    let resolved = last_known::in_between(key, now).ok_or(fault)?;
    Ok(Resolved { is_stale_for: Some(fault), ..resolved })
}

/// The place of what this worker knows of a name.
fn known(key: &last_known::Key, now: Instant) -> Known {
    NAMES.with_borrow_mut(|names| {
        if names.len() >= CACHED_NAMES_MAX && !names.contains_key(key) {
            make_room(names, now);
        }
        if let Some(known) = names.get(key) {
            return Rc::clone(known);
        }
        Rc::clone(names.entry(key.clone()).or_default())
    })
}

/// Forgets what no longer holds, or else the name that would be forgotten first. One that is being asked for stays.
fn make_room(names: &mut HashMap<last_known::Key, Known>, now: Instant) {
    let valid_until = |known: &Known| -> Option<Instant> {
        let known = known.try_lock().ok()?;
        known.as_ref()?.said.as_ref().ok().map(|resolved| resolved.valid_until)
    };
    let is_free = |known: &Known| Rc::strong_count(known) == 1;
    names.retain(|_, known| !is_free(known) || valid_until(known).is_some_and(|until| until > now));
    if names.len() >= CACHED_NAMES_MAX {
        let free = names.iter().filter(|(_, known)| is_free(known));
        let first = free.min_by_key(|(_, known)| valid_until(known)).map(|(key, _)| key.clone());
        first.map(|key| names.remove(&key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::base::iana::{Class, Rcode};
    use domain::base::message_builder::AnswerBuilder;
    use domain::base::{Message, MessageBuilder, Name, Ttl};
    use domain::rdata::{A, Aaaa, Cname};
    use std::cell::Cell;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, UdpSocket};

    type Script = dyn Fn(&Message<Vec<u8>>) -> Vec<Vec<u8>>;

    fn name(text: &str) -> Name<Vec<u8>> {
        text.parse().unwrap()
    }

    fn asked(question: &Message<Vec<u8>>) -> String {
        question.first_question().unwrap().qname().to_string()
    }

    fn answer(question: &Message<Vec<u8>>, rcode: Rcode) -> AnswerBuilder<Vec<u8>> {
        MessageBuilder::new_vec().start_answer(question, rcode).unwrap()
    }

    fn says(question: &Message<Vec<u8>>, owner: &str, ttl: u32, last_byte: u8) -> Vec<u8> {
        let mut answer = answer(question, Rcode::NOERROR);
        let address = A::from_octets(127, 0, 0, last_byte);
        answer.push((name(owner), Class::IN, Ttl::from_secs(ttl), address)).unwrap();
        answer.finish()
    }

    /// A name server: for each question, the datagrams that come back. Also over TCP, where the last one does.
    async fn server(script: impl Fn(&Message<Vec<u8>>) -> Vec<Vec<u8>> + 'static) -> SocketAddr {
        let script: Rc<Script> = Rc::new(script);
        // A port that is free for both.
        let (listener, socket) = loop {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()).await {
                break (listener, socket);
            }
        };
        let address = listener.local_addr().unwrap();
        let over_tcp = Rc::clone(&script);
        tokio::task::spawn_local(async move {
            let mut buffer = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
                let question = Message::from_octets(buffer[..length].to_vec()).unwrap();
                for datagram in script(&question) {
                    socket.send_to(&datagram, client).await.unwrap();
                }
            }
        });
        tokio::task::spawn_local(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let length = stream.read_u16().await.unwrap();
                let mut question = vec![0; length.into()];
                stream.read_exact(&mut question).await.unwrap();
                let question = Message::from_octets(question).unwrap();
                let mut whole = over_tcp(&question).pop().unwrap();
                whole[2] &= !2; // TC
                stream.write_u16(whole.len().try_into().unwrap()).await.unwrap();
                stream.write_all(&whole).await.unwrap();
            }
        });
        address
    }

    fn resolver(servers: &[SocketAddr]) -> Resolver {
        Resolver { servers: servers.to_vec(), valid: None, ipv4: true, ipv6: false }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    async fn last_byte(resolver: &Resolver, host: &str) -> Result<u8, ResolveFault> {
        let found = resolver.addresses(host, MINUTE).await?;
        let [IpAddr::V4(address)] = found.addresses[..] else { panic!("{found:?}") };
        Ok(address.octets()[3])
    }

    fn with_servers(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn aliases_are_followed_within_an_answer_and_beyond() {
        with_servers(async {
            let address = server(|question| {
                let mut answer = answer(question, Rcode::NOERROR);
                let mut alias = |from: &str, to: &str, ttl| {
                    let alias = Cname::new(name(to));
                    answer.push((name(from), Class::IN, Ttl::from_secs(ttl), alias)).unwrap();
                };
                match &*asked(question) {
                    "a" => alias("a", "b", 40),
                    "loop" => alias("loop", "loop-2", 40),
                    "loop-2" => alias("loop-2", "loop", 40),
                    _ => {
                        alias("b", "c", 30);
                        for (owner, byte) in [("c", 7), ("other", 8)] {
                            let (ttl, byte) = (Ttl::from_secs(50), A::from_octets(127, 0, 0, byte));
                            answer.push((name(owner), Class::IN, ttl, byte)).unwrap();
                        }
                    }
                }
                vec![answer.finish()]
            });
            let resolver = resolver(&[address.await]);
            assert_eq!(last_byte(&resolver, "a.").await, Ok(7));
            let validity = resolver.addresses("A", MINUTE).await.unwrap().valid_until;
            let left = validity.duration_since(Instant::now());
            assert!(left <= Duration::from_secs(30) && left > Duration::from_secs(20), "{left:?}");
            assert_eq!(last_byte(&resolver, "loop").await, Err(ResolveFault::NotFound));
        });
    }

    #[test]
    fn an_alias_in_the_answer_for_one_family_is_followed_for_both() {
        with_servers(async {
            let address = server(|question| {
                let mut answer = answer(question, Rcode::NOERROR);
                let rtype = question.first_question().unwrap().qtype();
                let ttl = Ttl::from_secs(50);
                match (&*asked(question), rtype) {
                    ("four", Rtype::A) | ("six", Rtype::AAAA) => {
                        answer
                            .push((
                                question.first_question().unwrap().qname(),
                                Class::IN,
                                ttl,
                                Cname::new(name("real")),
                            ))
                            .unwrap();
                    }
                    ("real", Rtype::AAAA) => {
                        answer
                            .push((name("real"), Class::IN, ttl, Aaaa::new(Ipv6Addr::LOCALHOST)))
                            .unwrap();
                    }
                    ("real" | "half", Rtype::A) => {
                        return vec![says(question, &asked(question), 50, 7)];
                    }
                    // A circle in one response takes nothing from the other.
                    ("half", _) => {
                        let alias = Cname::new(name("half"));
                        answer.push((name("half"), Class::IN, ttl, alias)).unwrap();
                    }
                    _ => {}
                }
                vec![answer.finish()]
            });
            let both = Resolver { ipv6: true, ..resolver(&[address.await]) };
            let real = [IpAddr::from([127, 0, 0, 7]), Ipv6Addr::LOCALHOST.into()];
            for host in ["four", "six", "real"] {
                assert_eq!(both.addresses(host, MINUTE).await.unwrap().addresses, real, "{host}");
            }
            assert_eq!(both.addresses("half", MINUTE).await.unwrap().addresses, real[..1]);
            assert_eq!(both.addresses("none", MINUTE).await.unwrap_err(), ResolveFault::NotFound);
        });
    }

    #[test]
    fn localhost_is_not_looked_up() {
        with_servers(async {
            let without_server = resolver(&[]);
            for host in ["localhost", "LocalHost.", "a.localhost"] {
                assert_eq!(last_byte(&without_server, host).await, Ok(1));
            }
            let both = Resolver { ipv6: true, ..without_server };
            let found = both.addresses("localhost", MINUTE).await.unwrap();
            assert_eq!(found.addresses.len(), 2);
        });
    }

    #[test]
    fn what_does_not_fit_comes_over_tcp() {
        with_servers(async {
            let address = server(|question| {
                let mut short = says(question, "a", 60, 1);
                short[2] |= 2; // TC
                vec![short]
            });
            assert_eq!(last_byte(&resolver(&[address.await]), "a").await, Ok(1));
        });
    }

    #[test]
    fn datagrams_may_be_longer_than_they_have_to_be() {
        with_servers(async {
            let label = "a".repeat(60);
            let host = [&*label; 4].join(".");
            let address = server(|question| {
                let whole = says(question, &asked(question), 60, 1);
                assert!(whole.len() > 512);
                vec![whole]
            });
            assert_eq!(last_byte(&resolver(&[address.await]), &host).await, Ok(1));
        });
    }

    #[test]
    fn answers_to_other_questions_are_not_taken() {
        with_servers(async {
            let address = server(|question| {
                let mut other_number = says(question, "a", 60, 1);
                other_number[1] ^= 1;
                let mut other_name = says(question, "a", 60, 2);
                other_name[13] = b'b';
                let echo = question.as_slice().to_vec();
                vec![other_number, other_name, echo, b"?".to_vec(), says(question, "a", 60, 3)]
            });
            assert_eq!(last_byte(&resolver(&[address.await]), "a").await, Ok(3));
        });
    }

    #[test]
    fn a_server_that_cannot_help_is_not_the_last_word() {
        with_servers(async {
            let failing = |rcode| server(move |question| vec![answer(question, rcode).finish()]);
            let (refuses, fails) = (failing(Rcode::REFUSED).await, failing(Rcode::SERVFAIL).await);
            let helps = server(|question| vec![says(question, "a", 60, 1)]).await;
            assert_eq!(last_byte(&resolver(&[refuses, helps, fails]), "a").await, Ok(1));
            for (rcode, fault) in [
                (Rcode::FORMERR, ResolveFault::Format),
                (Rcode::SERVFAIL, ResolveFault::Failed),
                (Rcode::NOTIMP, ResolveFault::Unimplemented),
                (Rcode::REFUSED, ResolveFault::Refused),
            ] {
                let servers = [failing(rcode).await, failing(rcode).await];
                assert_eq!(last_byte(&resolver(&servers), "a").await, Err(fault));
            }
            let unknown = failing(Rcode::NXDOMAIN).await;
            assert_eq!(last_byte(&resolver(&[unknown]), "a").await, Err(ResolveFault::NotFound));
            let empty = failing(Rcode::NOERROR).await;
            assert_eq!(last_byte(&resolver(&[empty]), "a").await, Err(ResolveFault::NotFound));
            let no_name = last_byte(&resolver(&[helps]), "a..b").await;
            assert_eq!(no_name, Err(ResolveFault::NotFound));
        });
    }

    #[test]
    fn a_silent_server_is_passed_over() {
        with_servers(async {
            tokio::time::pause();
            let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
            let mute = server(|_| Vec::new()).await;
            let helps = server(|question| vec![says(question, "a", 60, 1)]).await;
            assert_eq!(last_byte(&resolver(&[silent, mute, helps]), "a").await, Ok(1));
            let outcome = last_byte(&resolver(&[silent, mute]), "a").await;
            assert_eq!(outcome, Err(ResolveFault::TimedOut));
        });
    }

    #[test]
    fn the_last_addresses_stand_in_while_no_server_helps() {
        with_servers(async {
            tokio::time::pause();
            let mood = Rc::new(Cell::new(Some(Rcode::NOERROR)));
            let (questions, asked_for) = (Rc::new(Cell::new(0)), Rc::clone(&mood));
            let count = Rc::clone(&questions);
            let address = server(move |question| {
                count.set(count.get() + 1);
                match asked_for.get() {
                    Some(Rcode::NOERROR) => vec![says(question, "stale", 0, 1)],
                    Some(rcode) => vec![answer(question, rcode).finish()],
                    None => Vec::new(),
                }
            });
            let resolver = resolver(&[address.await]);
            assert_eq!(last_byte(&resolver, "stale").await, Ok(1));
            for failure in [None, Some(Rcode::SERVFAIL), Some(Rcode::REFUSED)] {
                mood.set(failure);
                let began = tokio::time::Instant::now();
                let found = resolver.addresses("stale", MINUTE).await.unwrap();
                assert!(found.is_stale_for.is_some() && began.elapsed() < Duration::from_secs(2));
                // For some seconds no other is asked, and none waits.
                questions.set(0);
                let found = resolver.addresses("stale", MINUTE).await.unwrap();
                assert_eq!((found.is_stale_for, questions.get()), (None, 0));
                mood.set(Some(Rcode::NOERROR));
                last_known::note(&(resolver.clone(), "stale".to_owned()), &found);
                NAMES.with_borrow_mut(HashMap::clear);
                assert_eq!(last_byte(&resolver, "stale").await, Ok(1));
            }
            // One that is no name any more is not used on.
            mood.set(Some(Rcode::NXDOMAIN));
            for rcode in [Rcode::NXDOMAIN, Rcode::SERVFAIL] {
                mood.set(Some(rcode));
                assert!(last_byte(&resolver, "stale").await.is_err());
            }
        });
    }

    #[test]
    fn who_asks_at_once_is_answered_once() {
        with_servers(async {
            let questions = Rc::new(Cell::new(0));
            let count = Rc::clone(&questions);
            let address = server(move |question| {
                count.set(count.get() + 1);
                match &*asked(question) {
                    "never" => vec![answer(question, Rcode::NXDOMAIN).finish()],
                    other => vec![says(question, other, if other == "kept" { 60 } else { 0 }, 1)],
                }
            });
            let resolver = resolver(&[address.await]);
            for (host, then) in [("kept", 1), ("fleeting", 2), ("never", 2)] {
                questions.set(0);
                let all = (0..50).map(|_| {
                    let resolver = resolver.clone();
                    tokio::task::spawn_local(async move { last_byte(&resolver, host).await })
                });
                for one in all.collect::<Vec<_>>() {
                    let _ = one.await.unwrap();
                }
                assert_eq!(questions.get(), 1, "{host}");
                let _ = last_byte(&resolver, host).await;
                assert_eq!(questions.get(), then, "{host}");
            }
            let kept = Resolver { valid: Some(MINUTE), ..resolver };
            questions.set(0);
            let first = last_byte(&kept, "fleeting").await;
            assert_eq!((first, last_byte(&kept, "fleeting").await), (Ok(1), Ok(1)));
            assert_eq!(questions.get(), 1);
        });
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        with_servers(async {
            let address = server(|question| vec![says(question, &asked(question), 60, 1)]).await;
            let resolver = resolver(&[address]);
            for number in 0..CACHED_NAMES_MAX + 5 {
                last_byte(&resolver, &format!("n{number}")).await.unwrap();
            }
            NAMES.with_borrow(|names| {
                assert_eq!(names.len(), CACHED_NAMES_MAX);
                assert!(!names.contains_key(&(resolver.clone(), "n0".to_owned())));
            });
        });
    }
}
