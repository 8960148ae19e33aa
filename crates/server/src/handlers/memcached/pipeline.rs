//! Requests of many clients over one connection: what was asked within one turn of the event loop
//! goes out in one call, and the answers come back in the same order.
//!
//! | state of a pipeline | next |
//! | --- | --- |
//! | opening | open; closed when the server cannot be reached |
//! | open | closed by an error, by the server, or after being idle for so long |
//! | closed | opened anew, once, for questions a connection that had served before left unanswered |
//!
//! # Invariants
//! - An answer belongs to the oldest question that has none, and its key is compared.
//! - A pipeline belongs to one worker; its task ends with its connection.

use bytes::{Bytes, BytesMut};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use yorozu_upstream::{Connection, PeerAddress, SocketOptions};
use yorozu_wire::memcached::{self, Reply};

/// Longest value that is read; memcached's own bound is 1 MB unless it is told otherwise.
const VALUE_BYTES_MAX: u64 = 64 << 20;

/// How a pipeline is opened and how long it is kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Options {
    pub socket: SocketOptions,
    pub connect_timeout: Duration,
    pub idle_timeout: Duration,
}

/// What the server said about a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Answer {
    NotFound,
    Value { flags: u32, body: Bytes },
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum PipelineFault {
    /// The server cannot be reached.
    Connect(Arc<io::Error>),
    /// Not within the connect timeout.
    ConnectTimeout,
    /// The connection ended before the answer.
    Closed,
    /// The server broke its protocol; nginx's words.
    Invalid(String),
}

type Sender = oneshot::Sender<Result<Answer, PipelineFault>>;

/// A question without an answer.
struct Waiting {
    key: Bytes,
    sender: Sender,
    /// Was it asked on a connection that died?
    is_repeated: bool,
}

#[derive(Default)]
struct State {
    /// Not written yet.
    queued: VecDeque<Waiting>,
    is_open: bool,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    state: RefCell<State>,
    wake: Notify,
}

/// The pipelines of a worker, by server and by how their sockets are opened.
type Pipelines = HashMap<PeerAddress, Vec<(SocketOptions, Rc<Shared>)>>;

thread_local! {
    static PIPELINES: RefCell<Pipelines> = RefCell::default();
}

/// Asks for a key, over a pipeline that is open or being opened.
///
/// # Errors
/// [`PipelineFault`]; `None` when there was no answer within `timeout`.
///
/// # Cancel safety
/// The answer is dropped when it comes.
pub async fn get(
    address: &PeerAddress,
    options: Options,
    key: Bytes,
    timeout: Duration,
) -> Option<Result<Answer, PipelineFault>> {
    let (sender, receiver) = oneshot::channel();
    let shared = pipeline(address, options);
    let waiting = Waiting { key, sender, is_repeated: false };
    let is_open = {
        let mut state = shared.state.borrow_mut();
        state.queued.push_back(waiting);
        state.is_open
    };
    shared.wake.notify_one();
    let to_connect = if is_open { Duration::ZERO } else { options.connect_timeout };
    match tokio::time::timeout(timeout + to_connect, receiver).await {
        Ok(Ok(result)) => Some(result),
        Ok(Err(_)) => Some(Err(PipelineFault::Closed)),
        Err(_) => {
            abandon(address);
            None
        }
    }
}

/// Gives connections up on which an answer is overdue: others should not wait behind it.
fn abandon(address: &PeerAddress) {
    let gone = PIPELINES.with_borrow_mut(|pipelines| pipelines.remove(address));
    for (_, shared) in gone.into_iter().flatten() {
        shared.state.borrow_mut().is_closed = true;
        shared.wake.notify_one();
    }
}

/// The worker's pipeline to a server, or a new one.
fn pipeline(address: &PeerAddress, options: Options) -> Rc<Shared> {
    PIPELINES.with_borrow_mut(|pipelines| {
        if !pipelines.contains_key(address) {
            pipelines.insert(address.clone(), Vec::new());
        }
        let same = pipelines.get_mut(address).expect("just made");
        if let Some((_, shared)) = same.iter().find(|(socket, _)| *socket == options.socket) {
            return Rc::clone(shared);
        }
        let shared = Rc::new(Shared::default());
        same.push((options.socket, Rc::clone(&shared)));
        let driver = Driver {
            shared: Rc::clone(&shared),
            address: address.clone(),
            options,
            asked: VecDeque::new(),
            out: Vec::new(),
            input: BytesMut::new(),
            has_served: false,
        };
        tokio::task::spawn_local(driver.run());
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
    /// Has the present connection answered anything?
    has_served: bool,
}

impl Driver {
    async fn run(mut self) {
        loop {
            let fault = self.serve().await;
            // It died while idle, perhaps: a new connection decides.
            let may_repeat = self.has_served && matches!(fault, PipelineFault::Closed);
            let mut left: Vec<Waiting> = self.asked.drain(..).collect();
            left.extend(self.shared.state.borrow_mut().queued.drain(..));
            let (repeated, failed): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|waiting| may_repeat && !waiting.is_repeated);
            for waiting in failed {
                // Who asked may have gone meanwhile.
                let _ = waiting.sender.send(Err(fault.clone()));
            }
            if repeated.is_empty() {
                return self.close();
            }
            let mut state = self.shared.state.borrow_mut();
            state.queued =
                repeated.into_iter().map(|w| Waiting { is_repeated: true, ..w }).collect();
            drop(state);
            self.shared.wake.notify_one();
        }
    }

    fn close(&self) {
        self.shared.state.borrow_mut().is_closed = true;
        PIPELINES.with_borrow_mut(|pipelines| {
            if let Some(same) = pipelines.get_mut(&self.address) {
                same.retain(|(_, shared)| !Rc::ptr_eq(shared, &self.shared));
                if same.is_empty() {
                    pipelines.remove(&self.address);
                }
            }
        });
    }

    /// One connection from its opening to its end.
    async fn serve(&mut self) -> PipelineFault {
        self.has_served = false;
        self.shared.state.borrow_mut().is_open = false;
        self.input.clear();
        self.out.clear();
        let open = Connection::open(&self.address, self.options.socket);
        let connection = match tokio::time::timeout(self.options.connect_timeout, open).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(problem)) => return PipelineFault::Connect(Arc::new(problem)),
            Err(_) => return PipelineFault::ConnectTimeout,
        };
        self.shared.state.borrow_mut().is_open = true;
        loop {
            if self.shared.state.borrow().is_closed {
                return PipelineFault::Closed;
            }
            self.take_queued();
            if !self.out.is_empty() {
                match connection.try_write(&self.out) {
                    Ok(count) => drop(self.out.drain(..count)),
                    Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return PipelineFault::Closed,
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
        for waiting in state.queued.drain(..) {
            memcached::get(&mut self.out, &waiting.key);
            self.asked.push_back(waiting);
        }
    }

    /// Waits for something to do, and reads what has come.
    async fn wait(&mut self, connection: &Connection) -> Result<(), PipelineFault> {
        let is_idle = self.asked.is_empty();
        let is_blocked = !self.out.is_empty();
        let read = tokio::select! {
            biased;
            read = connection.read(&mut self.input) => read,
            () = self.shared.wake.notified() => return Ok(()),
            _ = connection.writable(), if is_blocked => return Ok(()),
            () = tokio::time::sleep(self.options.idle_timeout), if is_idle => {
                return Err(PipelineFault::Closed);
            }
        };
        match read {
            Ok(count) if count > 0 => {
                while !self.asked.is_empty() && self.answer()? {}
                if self.asked.is_empty() && !self.input.is_empty() {
                    return Err(PipelineFault::Invalid("memcached sent data unasked".to_owned()));
                }
                Ok(())
            }
            _ => Err(PipelineFault::Closed),
        }
    }

    /// Hands out the next answer; `false` if it is not whole yet.
    fn answer(&mut self) -> Result<bool, PipelineFault> {
        let invalid = |text: String| Err(PipelineFault::Invalid(text));
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
                Answer::NotFound
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
                    Some(body) => Answer::Value { flags, body },
                }
            }
        };
        self.has_served = true;
        if let Some(waiting) = self.asked.pop_front() {
            // Who asked may have gone meanwhile.
            let _ = waiting.sender.send(Ok(answer));
        }
        Ok(true)
    }

    /// The value behind a line, when all of it has come.
    fn value(&mut self, line_bytes: usize, length: u64) -> Result<Option<Bytes>, PipelineFault> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let value_end = line_bytes + length;
        let Some(rest) = self.input.get(value_end..) else {
            self.input.reserve(value_end - self.input.len());
            return Ok(None);
        };
        let end = memcached::value_end(rest)
            .map_err(|_| PipelineFault::Invalid("memcached sent invalid trailer".to_owned()))?;
        let Some(end_bytes) = end else { return Ok(None) };
        let mut whole = self.input.split_to(value_end + end_bytes);
        whole.truncate(value_end);
        Ok(Some(whole.split_off(line_bytes).freeze()))
    }

    fn line(&self) -> String {
        let line = self.input[..].split(|byte| *byte == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(line.trim_ascii_end()).into_owned()
    }
}
