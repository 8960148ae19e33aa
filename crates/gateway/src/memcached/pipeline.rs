//! Requests of many clients over one connection: what was asked within one turn of the event loop
//! goes out in one call, and the answers come back in the same order.
//!
//! | state of a pipeline | next |
//! | --- | --- |
//! | opening | open; closed when the server cannot be reached |
//! | open | closed by an error, by the server, by an answer that is overdue, or after being idle for so long |
//! | closed | opened again for the questions that it left without an answer |
//!
//! A server answers in order: one key that it is slow with holds up those behind it. When the oldest question of a
//! pipeline has waited for [`Options::patience`], further ones, and those behind it, go to another pipeline.
//!
//! A connection that ends without an answer for its oldest question speaks against this question alone: the others are asked
//! again, before it, until it has ended some. A server that ends many in a row and answers nothing is given up.
//!
//! # Invariants
//! - An answer belongs to the oldest question that has none, and its key is compared.
//! - A pipeline belongs to one worker; its task ends with its connection.

use crate::protocol::call::LineFault;
use bytes::{Bytes, BytesMut};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use yorozu_kernel::base::timer::Timer;
use yorozu_kernel::base::{limits, tasks, turn};
use yorozu_kernel::logging::error::verbatim;
use yorozu_upstream::{Connection, PeerAddress, SocketOptions};
use yorozu_wire::memcached::{self, Reply};

/// Longest value that is read; memcached's own bound is 1 MB unless configured otherwise.
const VALUE_BYTES_MAX: u64 = 64 << 20;
/// How many pipelines may have a question because those before were slow; chosen, to spare a server that is.
const ASKED_MAX: u8 = 3;
/// What speaks against a question when a connection ends and it is the oldest: less if the connection had answered
/// others, and may have died of age. Chosen: three connections of its own.
const ALONE: u8 = 3;
const BEHIND_OTHERS: u8 = 1;
const SUSPICION_MAX: u8 = 7;
/// Connections of a pipeline that may end one after the other without any answer; chosen: what five bad questions
/// one after the other cost, so that good ones behind them are asked.
const BARREN_MAX: u8 = 5 * 3 + 1;

/// How a pipeline is opened and how long it is kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Options {
    pub socket: SocketOptions,
    pub connect_timeout: Duration,
    pub idle_timeout: Duration,
    /// How long others wait behind the oldest question.
    pub patience: Duration,
}

/// What the server said about a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// `None`: it has no such key.
    pub value: Option<Value>,
    /// How long the whole answer was, in bytes.
    pub received: usize,
}

/// What is stored under a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Value {
    pub flags: u32,
    pub body: Bytes,
}

type Sender = oneshot::Sender<Result<Answer, LineFault>>;

/// A question without an answer.
struct Waiting {
    key: Bytes,
    /// Where the answer goes; `None` if the question went on to another pipeline: the answer here is dropped.
    sender: Option<Sender>,
    /// How long the server may take for it.
    timeout: Duration,
    /// How many pipelines have had it.
    asked: u8,
    /// What speaks against it, up to [`SUSPICION_MAX`].
    suspicion: u8,
}

#[derive(Default)]
struct State {
    /// Not written yet.
    queued: VecDeque<Waiting>,
    is_open: bool,
}

#[derive(Default)]
struct Shared {
    state: RefCell<State>,
    wake: Notify,
    /// Since when the oldest question has been the next to be answered; `None` when there is none.
    waits_since: Cell<Option<Instant>>,
}

impl Shared {
    fn push(&self, waiting: Waiting) {
        self.state.borrow_mut().queued.push_back(waiting);
        self.wake.notify_one();
    }

    /// Whether a question would wait behind a slow one.
    fn is_stalled(&self, patience: Duration) -> bool {
        self.waits_since.get().is_some_and(|since| turn::since(since) >= patience)
    }
}

/// The pipelines of a worker, by server and by how their sockets are opened; the first that is not stalled is used.
type Pipelines = HashMap<PeerAddress, Vec<(SocketOptions, Rc<Shared>)>>;

thread_local! {
    static PIPELINES: RefCell<Pipelines> = RefCell::default();
}

/// Asks for a key, over a pipeline that is open or being opened.
///
/// # Errors
/// [`LineFault`]
///
/// # Cancel safety
/// The answer is dropped when it comes.
pub async fn get(
    address: &PeerAddress,
    options: Options,
    key: Bytes,
    timeout: Duration,
) -> Result<Answer, LineFault> {
    let (sender, receiver) = oneshot::channel();
    let shared = pipeline(address, options);
    let is_open = shared.state.borrow().is_open;
    shared.push(Waiting { key, sender: Some(sender), timeout, asked: 1, suspicion: 0 });
    let to_connect = if is_open { Duration::ZERO } else { options.connect_timeout };
    match tokio::time::timeout(timeout + to_connect, receiver).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(LineFault::Closed),
        Err(_) => Err(LineFault::Timeout),
    }
}

/// A pipeline to a server that is not stalled, one more within bounds, or else a stalled one.
fn pipeline(address: &PeerAddress, options: Options) -> Rc<Shared> {
    PIPELINES.with_borrow_mut(|pipelines| {
        if !pipelines.contains_key(address) {
            pipelines.insert(address.clone(), Vec::new());
        }
        let all = pipelines.get_mut(address).expect("just made");
        let same = all.iter().filter(|(socket, _)| *socket == options.socket);
        if let Some((_, free)) =
            same.clone().find(|(_, shared)| !shared.is_stalled(options.patience))
        {
            return Rc::clone(free);
        }
        if same.clone().count() >= limits::PIPELINES_MAX {
            // Where the last answer came latest the next one is most likely.
            let latest = same.max_by_key(|(_, shared)| shared.waits_since.get());
            return Rc::clone(&latest.expect("there are some").1);
        }
        let shared = Rc::new(Shared::default());
        all.push((options.socket, Rc::clone(&shared)));
        let driver = Driver {
            shared: Rc::clone(&shared),
            address: address.clone(),
            options,
            asked: VecDeque::new(),
            out: Vec::new(),
            input: BytesMut::new(),
            has_served: false,
            barren: 0,
            has_passed_on: false,
            timer: Timer::default(),
        };
        tasks::of_request(driver.run());
        shared
    })
}

/// The task behind a pipeline.
struct Driver {
    shared: Rc<Shared>,
    address: PeerAddress,
    options: Options,
    /// Written, in order, and not answered yet.
    asked: VecDeque<Waiting>,
    out: Vec<u8>,
    input: BytesMut,
    /// Whether the present connection has answered anything.
    has_served: bool,
    /// Connections in a row that did not.
    barren: u8,
    /// Whether the questions behind the oldest one were moved to other pipelines.
    has_passed_on: bool,
    timer: Timer,
}

impl Driver {
    async fn run(mut self) {
        loop {
            let fault = self.serve().await;
            let repeated = self.after(&fault);
            self.shared.waits_since.set(None);
            if repeated.is_empty() {
                return;
            }
            self.shared.state.borrow_mut().queued = repeated;
            self.shared.wake.notify_one();
        }
    }

    /// A connection is over: a question that has caused it too often fails, all if the server is not there; returns those that a new
    /// connection may answer. Asking twice changes nothing.
    fn after(&mut self, fault: &LineFault) -> VecDeque<Waiting> {
        let is_barren = !self.has_served && self.input.is_empty();
        let mut left = std::mem::take(&mut self.asked);
        let oldest = left.pop_front();
        left.extend(self.shared.state.borrow_mut().queued.drain(..));
        let mut failed = VecDeque::new();
        match (fault, oldest) {
            (LineFault::Closed, Some(mut oldest)) => {
                self.barren += u8::from(is_barren);
                oldest.suspicion += if self.has_served { BEHIND_OTHERS } else { ALONE };
                let is_bad = oldest.suspicion >= SUSPICION_MAX;
                // Behind the others: their outcome shows which question is at fault.
                if is_bad { &mut failed } else { &mut left }.push_back(oldest);
            }
            (_, oldest) => failed.extend(oldest),
        }
        let is_unreachable = matches!(fault, LineFault::Connect(_) | LineFault::ConnectTimeout);
        if is_unreachable || self.barren >= BARREN_MAX {
            failed.append(&mut left);
        }
        for sender in failed.into_iter().filter_map(|waiting| waiting.sender) {
            // The client may have gone meanwhile.
            let _ = sender.send(Err(fault.clone()));
        }
        left.retain(|waiting| waiting.sender.as_ref().is_some_and(|sender| !sender.is_closed()));
        left
    }

    /// One connection from its opening to its end.
    async fn serve(&mut self) -> LineFault {
        self.has_served = false;
        self.shared.state.borrow_mut().is_open = false;
        self.input.clear();
        self.out.clear();
        let open = Connection::open(&self.address, self.options.socket);
        let connection = match tokio::time::timeout(self.options.connect_timeout, open).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(problem)) => return LineFault::Connect(Arc::new(problem)),
            Err(_) => return LineFault::ConnectTimeout,
        };
        self.shared.state.borrow_mut().is_open = true;
        loop {
            self.take_queued();
            if !self.out.is_empty() {
                match connection.try_write(&self.out) {
                    Ok(count) => drop(self.out.drain(..count)),
                    Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return LineFault::Closed,
                }
            }
            if let Err(fault) = self.wait(&connection).await {
                return fault;
            }
        }
    }

    /// Writes the questions of this turn behind one another.
    fn take_queued(&mut self) {
        let mut state = self.shared.state.borrow_mut();
        if self.asked.is_empty() && !state.queued.is_empty() {
            self.next_is_awaited(true);
        }
        for waiting in state.queued.drain(..) {
            memcached::get(&mut self.out, &waiting.key);
            self.asked.push_back(waiting);
        }
    }

    /// The oldest question is another one, if there `is_one`.
    fn next_is_awaited(&self, is_one: bool) {
        self.shared.waits_since.set(is_one.then(turn::instant));
    }

    /// How long to wait for something to do.
    fn limit(&self) -> Duration {
        let (Some(oldest), Some(since)) = (self.asked.front(), self.shared.waits_since.get())
        else {
            return self.options.idle_timeout;
        };
        let may_pass_on = self.asked.len() > 1 && !self.has_passed_on;
        let whole =
            if may_pass_on { oldest.timeout.min(self.options.patience) } else { oldest.timeout };
        whole.saturating_sub(turn::since(since))
    }

    /// Nothing came for so long.
    fn is_quiet(&mut self) -> Result<(), LineFault> {
        let Some(oldest) = self.asked.front() else { return Err(LineFault::Closed) };
        let waited = self.shared.waits_since.get().map_or(Duration::ZERO, turn::since);
        if waited >= oldest.timeout {
            return Err(LineFault::Timeout);
        }
        if waited >= self.options.patience {
            self.pass_on();
        }
        Ok(())
    }

    /// Has those who wait behind the oldest question ask elsewhere; their answers here are dropped.
    fn pass_on(&mut self) {
        self.has_passed_on = true;
        for waiting in self.asked.iter_mut().skip(1).filter(|waiting| waiting.asked < ASKED_MAX) {
            let Some(sender) = waiting.sender.take_if(|sender| !sender.is_closed()) else {
                continue;
            };
            let other = pipeline(&self.address, self.options);
            if Rc::ptr_eq(&other, &self.shared) || other.is_stalled(self.options.patience) {
                waiting.sender = Some(sender);
                return;
            }
            let (key, timeout) = (waiting.key.clone(), waiting.timeout);
            let (asked, suspicion) = (waiting.asked + 1, waiting.suspicion);
            other.push(Waiting { key, sender: Some(sender), timeout, asked, suspicion });
        }
    }

    /// Waits for something to do, and reads what has come.
    async fn wait(&mut self, connection: &Connection) -> Result<(), LineFault> {
        let is_blocked = !self.out.is_empty();
        let limit = self.limit();
        let done = {
            let input = &mut self.input;
            let event = pin!(async {
                tokio::select! {
                    biased;
                    read = connection.read(input) => Some(read),
                    () = self.shared.wake.notified() => None,
                    _ = connection.writable(), if is_blocked => None,
                }
            });
            self.timer.within(limit, event).await
        };
        let read = match done {
            None => return self.is_quiet(),
            Some(None) => return Ok(()),
            Some(Some(read)) => read,
        };
        match read {
            Ok(count) if count > 0 => {
                while !self.asked.is_empty() && self.answer()? {}
                if self.asked.is_empty() && !self.input.is_empty() {
                    let text = "memcached sent data unasked".to_owned();
                    return Err(LineFault::Invalid(text, self.input.len()));
                }
                Ok(())
            }
            _ => Err(LineFault::Closed),
        }
    }

    /// Hands out the next answer; `false` if it is not whole yet.
    fn answer(&mut self) -> Result<bool, LineFault> {
        let come = self.input.len();
        let invalid = |text: String| Err(LineFault::Invalid(text, come));
        let (reply, line_bytes) = match memcached::reply(&self.input) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(false),
            Err(_) => {
                return invalid(format!("memcached sent invalid response: \"{}\"", self.line()));
            }
        };
        let answer = match reply {
            Reply::NotFound => {
                drop(self.input.split_to(line_bytes));
                Answer { value: None, received: line_bytes }
            }
            Reply::Error(_) => {
                return invalid(format!("memcached sent invalid response: \"{}\"", self.line()));
            }
            Reply::Value { key, flags, length } => {
                if self.asked.front().is_none_or(|asked| asked.key != self.input[key]) {
                    return invalid(format!(
                        "memcached sent invalid key in response \"{}\"",
                        self.line()
                    ));
                }
                if length > VALUE_BYTES_MAX {
                    return invalid(format!(
                        "memcached sent a value of {length} bytes, more than {VALUE_BYTES_MAX}"
                    ));
                }
                match self.value(line_bytes, length)? {
                    None => return Ok(false),
                    Some(body) => {
                        let received = line_bytes + body.len() + memcached::VALUE_END_BYTES;
                        Answer { value: Some(Value { flags, body }), received }
                    }
                }
            }
        };
        (self.has_served, self.barren) = (true, 0);
        if let Some(sender) = self.asked.pop_front().and_then(|waiting| waiting.sender) {
            // The client may have gone meanwhile.
            let _ = sender.send(Ok(answer));
        }
        self.has_passed_on = false;
        self.next_is_awaited(!self.asked.is_empty());
        Ok(true)
    }

    /// The value behind a line, when all of it has come.
    fn value(&mut self, line_bytes: usize, length: u64) -> Result<Option<Bytes>, LineFault> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let value_end = line_bytes + length;
        let Some(rest) = self.input.get(value_end..) else {
            self.input.reserve(value_end - self.input.len());
            return Ok(None);
        };
        let end = memcached::value_end(rest).map_err(|_| {
            LineFault::Invalid("memcached sent invalid trailer".to_owned(), self.input.len())
        })?;
        let Some(end_bytes) = end else { return Ok(None) };
        let mut whole = self.input.split_to(value_end + end_bytes);
        whole.truncate(value_end);
        Ok(Some(whole.split_off(line_bytes).freeze()))
    }

    fn line(&self) -> String {
        let line = self.input[..].split(|byte| *byte == b'\n').next().unwrap_or_default();
        verbatim(line.trim_ascii_end()).into_owned()
    }
}

/// However it ends, no question reaches it any more, and those who wait notice the end of their channels.
impl Drop for Driver {
    fn drop(&mut self) {
        PIPELINES.with_borrow_mut(|pipelines| {
            if let Some(same) = pipelines.get_mut(&self.address) {
                same.retain(|(_, shared)| !Rc::ptr_eq(shared, &self.shared));
                if same.is_empty() {
                    pipelines.remove(&self.address);
                }
            }
        });
        self.shared.state.borrow_mut().queued.clear();
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a scripted server on a thread of its own")]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    /// What a scripted server does with a key.
    enum Does {
        /// Answers with the key as its value.
        Answers,
        /// The same, so much later.
        Late(Duration),
        /// Sends a part of the value, and no more.
        Tears,
        /// Sends a part of the value, and ends the connection.
        Ends,
        /// Sends what is not an answer.
        Raves,
        /// Ends the connection without an answer.
        Hangs,
    }

    fn does(key: &str) -> Does {
        match key.split('-').next().unwrap() {
            "late" => Does::Late(Duration::from_millis(600)),
            "torn" => Does::Tears,
            "end" => Does::Ends,
            "rave" => Does::Raves,
            "hang" => Does::Hangs,
            _ => Does::Answers,
        }
    }

    fn serve(stream: &TcpStream) {
        let mut stream = stream;
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            let key = line.strip_prefix("get ").unwrap();
            let value = format!("VALUE {key} 0 {}\r\n{key}\r\nEND\r\n", key.len());
            let half = &value.as_bytes()[..value.len() - 8];
            let sent = match does(key) {
                Does::Answers => stream.write_all(value.as_bytes()),
                Does::Late(time) => {
                    thread::sleep(time);
                    stream.write_all(value.as_bytes())
                }
                Does::Tears => {
                    let _ = stream.write_all(half);
                    // Until the client has enough of it.
                    let _ = io::copy(&mut &*stream, &mut io::sink());
                    return;
                }
                Does::Ends => {
                    let _ = stream.write_all(half);
                    return;
                }
                Does::Raves => stream.write_all(b"HTTP/1.1 400\r\n"),
                Does::Hangs => return,
            };
            if sent.is_err() {
                return;
            }
        }
    }

    /// A memcached that answers in order; its address, and how many connections it has had.
    fn server() -> (PeerAddress, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = PeerAddress::Tcp(listener.local_addr().unwrap());
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || serve(&stream));
            }
        });
        (address, count)
    }

    const OPTIONS: Options = Options {
        socket: SocketOptions {
            keepalive: false,
            send_bytes: None,
            receive_bytes: None,
            from: None,
            transparent: false,
        },
        connect_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(60),
        patience: limits::PIPELINE_PATIENCE,
    };
    /// Nothing goes to a second pipeline, so that connections can be counted on a machine that is busy.
    const CALM: Options = Options { patience: Duration::MAX, ..OPTIONS };

    /// Asks for all keys at once, or one after the other with pauses; what came of each, and after how long.
    fn ask(
        address: &PeerAddress,
        options: Options,
        timeout: Duration,
        pause: Duration,
        keys: &[String],
    ) -> Vec<(Result<Answer, LineFault>, Duration)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        let all = local.run_until(async {
            let mut tasks = Vec::new();
            for key in keys {
                let (address, key) = (address.clone(), Bytes::from(key.clone()));
                tasks.push(tasks::of_request(async move {
                    let begun = Instant::now();
                    let answer = get(&address, options, key, timeout).await;
                    (answer, begun.elapsed())
                }));
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            let mut answers = Vec::new();
            for task in tasks {
                answers.push(task.await.unwrap());
            }
            answers
        });
        let answers = runtime.block_on(turn::run(all, || {}));
        drop((local, runtime));
        let is_over = PIPELINES.with_borrow(HashMap::is_empty);
        assert!(is_over, "pipelines end with their drivers");
        answers
    }

    fn keys(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn is_value(answer: &Result<Answer, LineFault>, key: &str) -> bool {
        matches!(answer, Ok(Answer { value: Some(value), .. }) if value.body == key.as_bytes())
    }

    const SECOND: Duration = Duration::from_secs(1);
    /// Well below the time of a late answer, well above the patience.
    const SOON: Duration = Duration::from_millis(400);

    #[test]
    fn one_connection_serves_all_as_long_as_nobody_waits() {
        let (address, count) = server();
        let many: Vec<String> = (0..200).map(|number| format!("key-{number}")).collect();
        for (key, (answer, _)) in
            many.iter().zip(ask(&address, CALM, SECOND, Duration::ZERO, &many))
        {
            assert!(is_value(&answer, key), "{key}: {answer:?}");
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_slow_key_holds_no_others_up() {
        let (address, count) = server();
        // In one go behind it, and later.
        for pause in [Duration::ZERO, Duration::from_millis(5)] {
            let all = keys(&["late-a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]);
            let answers = ask(&address, OPTIONS, 2 * SECOND, pause, &all);
            for (key, (answer, time)) in all.iter().zip(&answers) {
                assert!(is_value(answer, key), "{key}: {answer:?}");
                assert!(key == "late-a" || *time < SOON, "{key}: {time:?}");
            }
        }
        assert!(count.load(Ordering::SeqCst) >= 4, "two each");
    }

    #[test]
    fn connections_are_bounded_however_many_keys_are_slow() {
        let (address, count) = server();
        let many: Vec<String> = (0..40).map(|number| format!("late-{number}")).collect();
        let answers = ask(&address, OPTIONS, SECOND, Duration::from_millis(10), &many);
        assert!(answers.iter().any(|(answer, _)| answer.is_ok()));
        assert!(count.load(Ordering::SeqCst) <= 3 * limits::PIPELINES_MAX);
    }

    #[test]
    fn who_waits_behind_a_torn_answer_gets_one() {
        // A machine that is busy may be as slow as a server; a question goes to few pipelines.
        let options = Options { patience: Duration::from_millis(200), ..OPTIONS };
        for (word, fails) in [("torn", "Timeout"), ("end", "Closed"), ("rave", "Invalid")] {
            let (address, _) = server();
            let all = keys(&["a", &format!("{word}-b"), "c", "d", "e"]);
            let answers = ask(&address, options, SECOND, Duration::ZERO, &all);
            for (key, (answer, time)) in all.iter().zip(&answers) {
                if key.starts_with(word) {
                    let fault = format!("{:?}", answer.as_ref().unwrap_err());
                    assert!(fault.starts_with(fails), "{key}: {fault}");
                } else {
                    assert!(is_value(answer, key) && *time < SECOND, "{key}: {answer:?} {time:?}");
                }
            }
        }
    }

    #[test]
    fn innocent_questions_survive_one_that_is_overdue() {
        let (address, _) = server();
        // The second comes while the first holds the only pipeline, and within its patience.
        let all = keys(&["torn-a", "b"]);
        let answers =
            ask(&address, OPTIONS, Duration::from_millis(200), Duration::from_millis(10), &all);
        assert!(matches!(answers[0].0, Err(LineFault::Timeout)), "{:?}", answers[0]);
        assert!(is_value(&answers[1].0, "b"), "{:?}", answers[1]);
    }

    #[test]
    fn a_server_that_ends_connections_is_asked_again_a_few_times() {
        let (address, count) = server();
        let all = keys(&["a", "hang-b", "c"]);
        let answers = ask(&address, CALM, SECOND, Duration::from_millis(5), &all);
        assert!(is_value(&answers[0].0, "a") && is_value(&answers[2].0, "c"), "{answers:?}");
        assert!(matches!(answers[1].0, Err(LineFault::Closed)), "{:?}", answers[1]);
        assert!(count.load(Ordering::SeqCst) <= 4);
        let answers = ask(&address, CALM, SECOND, Duration::ZERO, &keys(&["hang-a", "hang-b"]));
        assert!(answers.iter().all(|(answer, _)| answer.is_err()), "{answers:?}");
    }

    #[test]
    fn innocent_questions_survive_any_number_of_bad_ones_before_them() {
        for word in ["rave", "end", "hang"] {
            let (address, _) = server();
            let bad = (0..5).map(|number| format!("{word}-{number}"));
            let all: Vec<String> = bad.chain(keys(&["a", "b", "c"])).collect();
            for pause in [Duration::ZERO, Duration::from_millis(1)] {
                for (key, (answer, _)) in
                    all.iter().zip(ask(&address, OPTIONS, SECOND, pause, &all))
                {
                    let is_bad = key.starts_with(word);
                    assert!(is_bad == answer.is_err(), "{key}: {answer:?}");
                    assert!(is_bad || is_value(&answer, key), "{key}: {answer:?}");
                }
            }
        }
    }

    #[test]
    fn a_server_that_answers_nobody_is_given_up() {
        let (address, count) = server();
        let many: Vec<String> = (0..100).map(|number| format!("hang-{number}")).collect();
        let answers = ask(&address, CALM, SECOND, Duration::ZERO, &many);
        let is_closed = |answer: &Result<_, _>| matches!(answer, Err(LineFault::Closed));
        assert!(answers.iter().all(|(answer, _)| is_closed(answer)), "{answers:?}");
        assert_eq!(count.load(Ordering::SeqCst), usize::from(BARREN_MAX));
    }
}
