//! One of the servers of a shared tier: questions in their order over one connection, and a circuit that opens when it
//! does not answer.

use super::link::Link;
use super::send::bounded;
use super::target::{Host, Target};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use yorozu_wire::memcached::{self, Done};
use yorozu_wire::redis::{self, Reply};

/// Questions that are sent together; chosen.
const BATCH: usize = 32;
/// A server that takes longer to connect to is none; chosen.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes of pages that wait to be sent; chosen: of more none is taken.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Questions that wait; chosen.
const WAITING_MAX: usize = 4096;
/// memcached takes longer lives for dates.
const SECONDS_MAX: u64 = 30 * 24 * 60 * 60;
/// Failures in a row after which a server is left alone, for how long at first, and at most; as documented.
const FAILURES: u32 = 3;
const OPEN_MIN: Duration = Duration::from_secs(1);
const OPEN_MAX: Duration = Duration::from_secs(30);

/// What is asked.
#[derive(Debug)]
pub(super) enum Command {
    Get(String),
    /// With how long it lives.
    Put(String, Vec<u8>, Duration),
    /// A value where there is none: whether it is there now. Key, value, and how long it lives.
    Claim(String, String, Duration),
    /// The end of such a value, if it is still that.
    Release(String, String),
    Delete(String),
}

/// What is answered.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Answer {
    Value(Option<Vec<u8>>),
    Done(bool),
    /// The server works, and does not do this: it has no room, or the user no right.
    Refused,
}

/// What hears an answer; dropped if none comes.
pub(super) type Hears = Box<dyn FnOnce(&Answer) + Send>;

/// Who asks.
enum Asker {
    Waits(oneshot::Sender<Answer>),
    Hears(Hears),
    Unheard,
}

impl Asker {
    fn answer(self, answer: Answer) {
        match self {
            // It may have stopped waiting.
            Self::Waits(asker) => drop(asker.send(answer)),
            Self::Hears(asker) => asker(&answer),
            Self::Unheard => {}
        }
    }
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asker")
    }
}

#[derive(Debug)]
struct Job {
    command: Command,
    asker: Asker,
}

impl Job {
    /// Whether its asker still waits: a claim that is made for no request keeps a page from all others.
    fn is_wanted(&self) -> bool {
        !matches!(&self.asker, Asker::Waits(asker) if asker.is_closed())
    }
}

/// Which protocol is spoken.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Server {
    Redis(Target),
    Memcached(Host),
}

/// As a ring of servers has its name.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(target) => f.write_str(&target.shown()),
            Self::Memcached(host) => host.fmt(f),
        }
    }
}

/// Questions to a server. Short ones and pages have a lane each: none waits for a page to pass.
#[derive(Debug, Default)]
pub(super) struct Lane {
    jobs: Mutex<VecDeque<Job>>,
    is_there: Notify,
}

impl Lane {
    fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks; the answer comes, or what it comes by is dropped.
    pub(super) fn ask(&self, command: Command) -> oneshot::Receiver<Answer> {
        let (answer, answered) = oneshot::channel();
        self.push(Job { command, asker: Asker::Waits(answer) });
        answered
    }

    /// Says what needs no answer; `false` if too much waits.
    pub(super) fn say(&self, command: Command) -> bool {
        self.push(Job { command, asker: Asker::Unheard })
    }

    /// Says what is heard of when it is done; `hears` is dropped if too much waits.
    pub(super) fn tell(&self, command: Command, hears: Hears) {
        self.push(Job { command, asker: Asker::Hears(hears) });
    }

    fn push(&self, job: Job) -> bool {
        let bytes = |job: &Job| match &job.command {
            Command::Put(_, bytes, _) => bytes.len(),
            _ => 0,
        };
        let mut jobs = self.jobs();
        let waiting: usize = jobs.iter().map(bytes).sum();
        if jobs.len() >= WAITING_MAX || waiting + bytes(&job) > WAITING_BYTES_MAX {
            return false;
        }
        jobs.push_back(job);
        drop(jobs);
        self.is_there.notify_one();
        true
    }

    fn take(&self) -> VecDeque<Job> {
        let mut jobs = self.jobs();
        let count = jobs.len().min(BATCH);
        jobs.drain(..count).collect()
    }

    /// Asks the server what there is to ask, for ever. `told` hears whether it answered, and what it refused.
    pub(super) async fn serve(
        &self,
        connect: impl AsyncFn() -> Result<(Link, bool), String>,
        timeout: Duration,
        told: impl Fn(Result<Option<String>, String>),
    ) {
        let mut kept = None;
        'jobs: loop {
            let mut jobs = self.take();
            if jobs.is_empty() {
                self.is_there.notified().await;
                continue;
            }
            // A server may end a connection that was idle for long.
            kept = kept.filter(|(link, _): &(Link, bool)| link.is_quiet());
            let mut is_again = false;
            let answered = loop {
                let (mut link, is_new) = match kept.take() {
                    Some(link) => (link, false),
                    None => match bounded(CONNECT_TIMEOUT, connect()).await {
                        Ok(link) => (link, true),
                        Err(why) => break Err(why),
                    },
                };
                jobs.retain(Job::is_wanted);
                let count = jobs.len();
                if count == 0 {
                    // It was asked nothing, which is no answer.
                    kept = Some(link);
                    continue 'jobs;
                }
                let answered = bounded(timeout, exchange(&mut link, &mut jobs, is_again)).await;
                let is_unanswered = jobs.len() == count && link.0.is_over_unanswered();
                match answered {
                    // As it was idle: a new one may do.
                    Err(_) if is_unanswered && !is_new => is_again = true,
                    answered => {
                        kept = answered.is_ok().then_some(link);
                        break answered;
                    }
                }
            };
            told(answered);
        }
    }
}

/// Sends questions together and hands out the answers, as far as they come; the last line by which one was refused. `is_again`:
/// the server may have done them before.
async fn exchange(
    (link, is_redis): &mut (Link, bool),
    jobs: &mut VecDeque<Job>,
    is_again: bool,
) -> Result<Option<String>, String> {
    let mut out = Vec::new();
    for job in &*jobs {
        match is_redis {
            true => as_redis(&mut out, &job.command),
            false => as_memcached(&mut out, &job.command),
        }
    }
    link.send(&out).await?;
    let (mut refused, mut released) = (None, Vec::new());
    while let Some(Job { command, .. }) = jobs.front() {
        let answer = match is_redis {
            true => of_redis(link, command, &mut refused).await?,
            false => of_memcached(link, command, &mut refused).await?,
        };
        let answer = match (command, answer) {
            // Whoever claimed it may be this one.
            (Command::Claim(..), Answer::Done(false)) if is_again => Answer::Refused,
            (_, answer) => answer,
        };
        if let (Command::Release(key, token), Answer::Value(Some(found))) = (command, &answer) {
            released.extend((found == token.as_bytes()).then(|| key.clone()));
        }
        if let Some(job) = jobs.pop_front() {
            job.asker.answer(answer);
        }
    }
    for key in released {
        let mut out = Vec::new();
        memcached::delete(&mut out, key.as_bytes());
        link.send(&out).await?;
        link.next(memcached::done).await?;
    }
    Ok(refused)
}

/// Removes a value if it is still the one that was put there.
///
/// # Source
/// <https://redis.io/docs/latest/commands/set/>, "Patterns": a lock is given back by its holder alone.
const RELEASE: &[u8] =
    b"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0";

fn as_redis(out: &mut Vec<u8>, command: &Command) {
    let milliseconds = |time: &Duration| time.as_millis().max(1).to_string();
    match command {
        Command::Get(key) => redis::command(out, &[b"GET", key.as_bytes()]),
        Command::Put(key, bytes, life) => {
            let life = milliseconds(life);
            redis::command(out, &[b"SET", key.as_bytes(), bytes, b"PX", life.as_bytes()]);
        }
        Command::Claim(key, token, life) => {
            let (token, life) = (token.as_bytes(), milliseconds(life));
            redis::command(out, &[b"SET", key.as_bytes(), token, b"NX", b"PX", life.as_bytes()]);
        }
        Command::Release(key, token) => {
            redis::command(out, &[b"EVAL", RELEASE, b"1", key.as_bytes(), token.as_bytes()]);
        }
        Command::Delete(key) => redis::command(out, &[b"DEL", key.as_bytes()]),
    }
}

async fn of_redis(
    link: &mut Link,
    command: &Command,
    refused: &mut Option<String>,
) -> Result<Answer, String> {
    let reply = link.reply().await?;
    match (command, reply) {
        (_, Reply::Error(line)) if is_refusal(&line) => {
            *refused = Some(line);
            Ok(Answer::Refused)
        }
        (_, Reply::Error(line)) => Err(line),
        (Command::Get(_), Reply::Text(bytes)) => Ok(Answer::Value(Some(bytes))),
        (Command::Get(_), _) => Ok(Answer::Value(None)),
        (_, reply) => Ok(Answer::Done(reply != Reply::Nothing)),
    }
}

/// Whether a server that works says so; others say that it is not the one to be asked, or not yet.
fn is_refusal(line: &str) -> bool {
    let code = line.split(' ').next().unwrap_or_default();
    matches!(code, "OOM" | "NOPERM" | "MISCONF" | "NOREPLICAS" | "WRONGTYPE" | "ERR")
}

fn as_memcached(out: &mut Vec<u8>, command: &Command) {
    let seconds = |time: &Duration| {
        let seconds = time.as_millis().div_ceil(1000).min(SECONDS_MAX.into());
        u32::try_from(seconds).unwrap_or(1).max(1)
    };
    match command {
        // It compares nothing by itself: the value is looked at first.
        Command::Get(key) | Command::Release(key, _) => memcached::get(out, key.as_bytes()),
        Command::Put(key, bytes, life) => {
            memcached::put(out, false, key.as_bytes(), seconds(life), bytes);
        }
        Command::Claim(key, token, life) => {
            memcached::put(out, true, key.as_bytes(), seconds(life), token.as_bytes());
        }
        Command::Delete(key) => memcached::delete(out, key.as_bytes()),
    }
}

async fn of_memcached(
    link: &mut Link,
    command: &Command,
    refused: &mut Option<String>,
) -> Result<Answer, String> {
    if !matches!(command, Command::Get(_) | Command::Release(..)) {
        return match link.next(memcached::done).await? {
            Done::Yes => Ok(Answer::Done(true)),
            Done::No => Ok(Answer::Done(false)),
            Done::Refused(line) => {
                *refused = Some(line);
                Ok(Answer::Refused)
            }
            Done::Error(line) => Err(line),
        };
    }
    match link.next(memcached::reply).await? {
        memcached::Reply::NotFound => Ok(Answer::Value(None)),
        memcached::Reply::Error(_) => Err("it refused the question".to_owned()),
        memcached::Reply::Value { length, .. } => {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let value = |input: &[u8]| {
                let Some((bytes, rest)) = input.split_at_checked(length) else { return Ok(None) };
                let end = memcached::value_end(rest)?;
                Ok(end.map(|end| (bytes.to_vec(), length + end)))
            };
            link.next(value).await.map(|bytes| Answer::Value(Some(bytes)))
        }
    }
}

/// Whether a server is asked: not for a while after it failed some times in a row, then by a first one.
#[derive(Debug, Default)]
pub(super) struct Circuit(Mutex<Failing>);

#[derive(Debug, Default)]
struct Failing {
    failures: u32,
    opened: Option<(Instant, Duration)>,
}

impl Circuit {
    fn failing(&self) -> MutexGuard<'_, Failing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may be asked now.
    pub(super) fn is_closed(&self) -> bool {
        let mut failing = self.failing();
        match &mut failing.opened {
            None => true,
            Some((until, time)) if Instant::now() >= *until => {
                // This one tries; the others wait for what comes of it.
                *until = Instant::now() + *time;
                true
            }
            Some(_) => false,
        }
    }

    /// Whether it is left alone.
    pub(super) fn is_open(&self) -> bool {
        self.failing().opened.is_some()
    }

    /// Whether it has been left alone until now.
    pub(super) fn answered(&self) -> bool {
        let was = std::mem::take(&mut *self.failing());
        was.opened.is_some()
    }

    /// Whether it is left alone from here on.
    pub(super) fn failed(&self) -> bool {
        let mut failing = self.failing();
        failing.failures += 1;
        if failing.failures < FAILURES {
            return false;
        }
        let last = failing.opened.map(|(_, time)| time);
        let time = last.map_or(OPEN_MIN, |time| (time * 2).min(OPEN_MAX));
        failing.opened = Some((Instant::now() + time, time));
        last.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use yorozu_upstream::{Connection, PeerAddress, SocketOptions};

    #[test]
    fn a_circuit_opens_after_some_failures_and_closes_with_an_answer() {
        let circuit = Circuit::default();
        assert!(circuit.is_closed() && !circuit.failed() && !circuit.failed());
        assert!(circuit.is_closed());
        assert!(circuit.failed(), "it is news once");
        assert!(!circuit.is_closed() && !circuit.failed());
        assert_eq!(circuit.failing().opened.unwrap().1, OPEN_MIN * 2);
        for _ in 0..10 {
            circuit.failed();
        }
        assert_eq!(circuit.failing().opened.unwrap().1, OPEN_MAX);
        assert!(circuit.answered() && circuit.is_closed() && !circuit.answered());
    }

    #[tokio::test]
    async fn what_is_waited_for_no_more_is_not_asked() {
        let lane = Lane::default();
        let claim = || Command::Claim("k".to_owned(), "t".to_owned(), OPEN_MIN);
        drop(lane.ask(claim()));
        let _waits = lane.ask(claim());
        lane.say(Command::Delete("k".to_owned()));
        let jobs = lane.take();
        assert_eq!(jobs.iter().map(Job::is_wanted).collect::<Vec<_>>(), [false, true, true]);
    }

    #[tokio::test]
    async fn a_server_that_was_asked_nothing_has_not_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = PeerAddress::Tcp(listener.local_addr().unwrap());
        let (lane, connected, told) = (Lane::default(), Notify::new(), Cell::new(0));
        let ask = || lane.ask(Command::Get("k".to_owned()));
        drop(ask());
        let connect = async || {
            let connection = Connection::open(&address, SocketOptions::default()).await.unwrap();
            connected.notify_one();
            Ok((Link::new(connection), true))
        };
        let asked = async {
            connected.notified().await;
            // Behind the question whose answer is not waited for.
            let answer = ask();
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 64]).await.unwrap() > 0);
            stream.write_all(b"$-1\r\n").await.unwrap();
            answer.await.unwrap()
        };
        tokio::select! {
            () = lane.serve(connect, Duration::from_secs(60), |_| told.set(told.get() + 1)) => {}
            answer = asked => assert_eq!(answer, Answer::Value(None)),
        }
        assert_eq!(told.get(), 1);
    }

    #[test]
    fn too_much_is_not_taken() {
        let lane = Lane::default();
        let page = || Command::Put("k".to_owned(), vec![0; 1 << 20], Duration::ZERO);
        assert!((0..8).all(|_| lane.say(page())));
        assert!(!lane.say(page()) && lane.say(Command::Delete("k".to_owned())));
        lane.take();
        assert!(lane.say(page()));
    }
}
