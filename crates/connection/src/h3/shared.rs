//! What the streams of a connection share.

use super::control::Outbox;
use crate::fields::FieldList;
use crate::quic::Paths;
use quinn::{Connection, SendStream};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use yorozu_kernel::base::counters::{Counted, Present};
use yorozu_kernel::base::limits;
use yorozu_kernel::exchange::Client;
use yorozu_kernel::exchange::engine::Host;
use yorozu_wire::h3::frame::{Broken, Code};
use yorozu_wire::h3::qpack::{Decoder, TABLE_BYTES};

/// What a client may send that is neither fields nor content, in bytes, beside eight times as much of those both ways;
/// as nginx.
const IDLE_TALK_BYTES: u64 = 1024 * 1024;
/// Responses under way that are not looked at; chosen: those of a usual client arrive before there are as many.
const LOOKED_AT: usize = 16;

/// One connection, for what answers on it.
pub(super) struct Shared {
    pub(super) quic: Connection,
    paths: Arc<Paths>,
    pub(super) client: Rc<Client>,
    /// The client as the next request has it, if it moved.
    moved: RefCell<Option<Rc<Client>>>,
    pub(super) worker: Rc<dyn Host>,
    pub(super) decoder: RefCell<Decoder>,
    /// Streams whose fields wait for others, and who reads them.
    pub(super) blocked: RefCell<Vec<(u64, Waker)>>,
    pub(super) outbox: Outbox,
    /// Those of the head that is read; kept for its allocation.
    pub(super) fields: RefCell<FieldList>,
    /// Streams that are answered.
    pub(super) streams: Cell<usize>,
    counted: RefCell<Option<Counted>>,
    /// Those that the client gave up or broke, and requests of it.
    resets: Cell<u64>,
    /// What the client sent, and what of that, and of what it was sent, is fields and content; in bytes.
    bytes: Cell<u64>,
    useful: Cell<u64>,
    /// One above the highest stream that is answered; 0 for none.
    pub(super) next_stream: Cell<u64>,
    /// Why it is over.
    pub(super) failure: Cell<Option<(Code, &'static str)>>,
    /// Told when a stream ends, or the connection has to.
    pub(super) told: Notify,
    /// Whether it begins a stream: it looks what has ended after that, and need not be told.
    pub(super) is_beginning: Cell<bool>,
    /// Responses that were given to the library whole, and of which not all may have arrived.
    pub(super) unacknowledged: RefCell<VecDeque<SendStream>>,
    /// How many there may be before they are looked at.
    looked_at: Cell<usize>,
}

impl Shared {
    /// `streams_max`: how many streams may wait for the client's encoder.
    pub(super) fn new(
        quic: Connection,
        paths: Arc<Paths>,
        client: Rc<Client>,
        worker: Rc<dyn Host>,
        streams_max: usize,
    ) -> Self {
        Self {
            quic,
            paths,
            client,
            moved: RefCell::default(),
            worker,
            decoder: RefCell::new(Decoder::new(TABLE_BYTES, streams_max)),
            blocked: RefCell::default(),
            outbox: Outbox::default(),
            fields: RefCell::default(),
            streams: Cell::new(0),
            counted: RefCell::default(),
            resets: Cell::new(0),
            bytes: Cell::new(0),
            useful: Cell::new(0),
            next_stream: Cell::new(0),
            failure: Cell::new(None),
            told: Notify::new(),
            is_beginning: Cell::new(false),
            unacknowledged: RefCell::default(),
            looked_at: Cell::new(LOOKED_AT),
        }
    }

    /// The client, where it is as a request begins.
    pub(super) fn present_client(&self) -> Rc<Client> {
        if !self.paths.has_moved() {
            return Rc::clone(&self.client);
        }
        let address = self.paths.proved(self.quic.remote_address());
        let mut moved = self.moved.borrow_mut();
        let known = moved.take().filter(|known| known.remote.address == Some(address));
        let client = known.unwrap_or_else(|| Rc::new(self.client.at(address, None)));
        client.requests.set(self.client.requests.get());
        client.listen.set(self.client.listen.get());
        Rc::clone(moved.insert(client))
    }

    /// The connection is over, for what the client does.
    pub(super) fn fail(&self, code: Code, text: &'static str) {
        if self.failure.get().is_none() {
            self.failure.set(Some((code, text)));
            self.told.notify_one();
        }
    }

    pub(super) fn broken(&self, broken: Broken) {
        match broken {
            Broken::Connection(code, text) => self.fail(code, text),
            Broken::Stream(..) => {}
        }
    }

    /// The client gave a stream up, or broke it: not more than every second.
    pub(super) fn note_reset(&self) {
        let resets = self.resets.get() + 1;
        self.resets.set(resets);
        if resets > limits::H2_RESETS_MIN && resets > self.client.requests.get() / 2 {
            self.fail(Code::EXCESSIVE_LOAD, "client gave up too many streams");
        }
    }

    /// The client sent this.
    pub(super) fn note_bytes(&self, count: usize) {
        self.bytes.set(self.bytes.get() + count as u64);
        if self.bytes.get() / 8 > self.useful.get() + IDLE_TALK_BYTES {
            self.fail(Code::EXCESSIVE_LOAD, "http3 flood detected");
        }
    }

    pub(super) fn note_useful(&self, count: usize) {
        self.useful.set(self.useful.get() + count as u64);
    }

    /// Who reads fields that wait for others is woken when those are there.
    pub(super) fn wait_for_fields(&self, id: u64, waker: &Waker) {
        let mut blocked = self.blocked.borrow_mut();
        match blocked.iter_mut().find(|(stream, _)| *stream == id) {
            Some((_, known)) => known.clone_from(waker),
            None => blocked.push((id, waker.clone())),
        }
    }

    pub(super) fn wake_blocked(&self) {
        while let Some(id) = { self.decoder.borrow_mut().ready() } {
            let mut blocked = self.blocked.borrow_mut();
            if let Some(place) = blocked.iter().position(|(stream, _)| *stream == id) {
                blocked.swap_remove(place).1.wake();
            }
        }
    }

    /// Has the client's encoder told what was read.
    pub(super) fn acknowledge(&self) {
        if !self.outbox.acknowledge() {
            self.fail(Code::EXCESSIVE_LOAD, "client does not take what its encoder is told");
        }
    }

    /// Keeps a response until it has arrived: the end of a connection takes what has not. One that the client does not
    /// want any more counts as given up.
    pub(super) fn keep(&self, stream: SendStream) {
        let mut kept = self.unacknowledged.borrow_mut();
        kept.push_back(stream);
        // A look costs as much whether it comes to something or not.
        if kept.len() >= self.looked_at.get() {
            self.forget_arrived(&mut kept);
            self.looked_at.set(LOOKED_AT.max(2 * kept.len()));
        }
    }

    /// Whether there is a response of which not all has arrived.
    pub(super) fn has_unacknowledged(&self) -> bool {
        let mut kept = self.unacknowledged.borrow_mut();
        self.forget_arrived(&mut kept);
        !kept.is_empty()
    }

    fn forget_arrived(&self, kept: &mut VecDeque<SendStream>) {
        let is_open = |stream: &SendStream| {
            let mut context = Context::from_waker(Waker::noop());
            let stopped = pin!(stream.stopped()).poll(&mut context);
            if let Poll::Ready(Ok(Some(_))) = stopped {
                self.note_reset();
            }
            stopped.is_pending()
        };
        kept.retain(is_open);
    }
}

/// A stream that is answered.
pub(super) struct Open {
    shared: Rc<Shared>,
    _counted: Counted,
}

impl Open {
    pub(super) fn new(shared: &Rc<Shared>) -> Self {
        shared.streams.set(shared.streams.get() + 1);
        shared.counted.borrow_mut().get_or_insert_with(|| Counted::of(Present::WithStreams));
        Self { shared: Rc::clone(shared), _counted: Counted::of(Present::Streams) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let left = self.shared.streams.get() - 1;
        self.shared.streams.set(left);
        if left == 0 {
            *self.shared.counted.borrow_mut() = None;
        }
        if !self.shared.is_beginning.get() {
            self.shared.told.notify_one();
        }
    }
}
