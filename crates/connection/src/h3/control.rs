//! Streams in one direction: the client's settings, what its encoder says, and what it is told (RFC 9114, section 6.2;
//! RFC 9204, section 4.2).

use super::{Shared, number};
use quinn::{ReadError, RecvStream, SendStream};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::Notify;
use yorozu_kernel::base::tasks;
use yorozu_wire::h3::control::Reader;
use yorozu_wire::h3::frame::{
    Broken, Code, put_control_start, put_goaway, put_integer, read_integer, stream_kind,
};
use yorozu_wire::h3::qpack::{Acknowledgments, TABLE_BYTES};

/// Bytes of a client's read at once; chosen.
const CHUNK_BYTES: usize = 16 * 1024;
/// Streams of unknown types on one connection; chosen: clients open one to keep the protocol open.
const UNKNOWN_MAX: u32 = 16;
/// What the client's encoder may be about to be told, some bytes each; chosen.
const UNTOLD_MAX: usize = 16 * 1024;

/// What is to be said on the streams of our own.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    more: Notify,
    /// For the control stream.
    control: RefCell<Vec<u8>>,
    /// Types of streams that the client has opened.
    taken: RefCell<Vec<u64>>,
    unknown: Cell<u32>,
    /// What the client's encoder is to be told.
    untold: Cell<usize>,
}

impl Outbox {
    /// Says that no stream from this one on will be answered.
    pub(super) fn go_away(&self, stream: u64) {
        put_goaway(&mut self.control.borrow_mut(), stream);
        self.more.notify_one();
    }

    /// Has the client's encoder told what was read; `false` if it does not listen.
    pub(super) fn acknowledge(&self) -> bool {
        self.untold.set(self.untold.get() + 1);
        self.more.notify_one();
        self.untold.get() <= UNTOLD_MAX
    }
}

/// Opens our control stream, and says what there is to be said.
pub(super) fn start(shared: &Rc<Shared>) {
    {
        let mut out = shared.outbox.control.borrow_mut();
        let blocked_max = {
            let conf = crate::current_conf(&shared.client, &shared.worker);
            conf.map_or(0, |conf| {
                super::settings(&conf, &shared.client).http3_max_concurrent_streams
            })
        };
        let before = out.len();
        let mut first = Vec::new();
        put_control_start(&mut first, TABLE_BYTES as u64, blocked_max);
        out.splice(0..0, first);
        debug_assert!(out.len() > before, "settings come first");
    }
    // Gone when the connection is, since writing fails then.
    tasks::of_request(say(Rc::clone(shared)));
}

async fn say(shared: Rc<Shared>) {
    let Ok(mut control) = shared.quic.open_uni().await else { return };
    let mut decoder: Option<SendStream> = None;
    let closed = shared.quic.closed();
    let mut closed = std::pin::pin!(closed);
    loop {
        let bytes = shared.outbox.control.take();
        if control.write_all(&bytes).await.is_err() {
            return;
        }
        let mut said = Vec::new();
        shared.outbox.untold.set(0);
        shared.decoder.borrow_mut().take_acknowledgments(&mut said);
        if !said.is_empty() {
            if decoder.is_none() {
                let Ok(stream) = shared.quic.open_uni().await else { return };
                let mut first = Vec::new();
                put_integer(&mut first, stream_kind::DECODER);
                first.append(&mut said);
                said = first;
                decoder = Some(stream);
            }
            let stream = decoder.as_mut().expect("just opened");
            if stream.write_all(&said).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = shared.outbox.more.notified() => {}
            // Until then the streams are held: their end would be the connection's.
            _ = &mut closed => return,
        }
    }
}

/// Reads a stream that the client opened.
pub(super) fn take(shared: &Rc<Shared>, mut recv: RecvStream, is_hq: bool) {
    if is_hq {
        let _ = recv.stop(number(Code::STREAM_CREATION_ERROR));
        return;
    }
    let shared = Rc::clone(shared);
    tasks::of_request(async move {
        if let Err(broken) = read(&shared, &mut recv).await {
            match broken {
                Broken::Connection(code, text) => shared.fail(code, text),
                Broken::Stream(code, _) => _ = recv.stop(number(code)),
            }
        }
    });
}

async fn read(shared: &Rc<Shared>, recv: &mut RecvStream) -> Result<(), Broken> {
    let mut begin: Vec<u8> = Vec::new();
    let (kind, length) = loop {
        match read_integer(&begin) {
            Some(found) => break found,
            None => match chunk(shared, recv).await? {
                Some(more) => begin.extend_from_slice(&more),
                // It ended before it said what it is: nothing is known of it.
                None => return Ok(()),
            },
        }
    };
    let rest = &begin[length..];
    let is_critical =
        matches!(kind, stream_kind::CONTROL | stream_kind::ENCODER | stream_kind::DECODER);
    if is_critical {
        let mut taken = shared.outbox.taken.borrow_mut();
        if taken.contains(&kind) {
            let text = "client opened a second stream of its kind";
            return Err(Broken::Connection(Code::STREAM_CREATION_ERROR, text));
        }
        taken.push(kind);
    }
    match kind {
        stream_kind::CONTROL => control(shared, recv, rest).await,
        stream_kind::ENCODER => encoder(shared, recv, rest).await,
        stream_kind::DECODER => decoder(shared, recv, rest).await,
        stream_kind::PUSH => {
            Err(Broken::Connection(Code::STREAM_CREATION_ERROR, "client opened a push stream"))
        }
        _ => {
            let unknown = shared.outbox.unknown.get() + 1;
            shared.outbox.unknown.set(unknown);
            match unknown > UNKNOWN_MAX {
                true => Err(Broken::Connection(
                    Code::EXCESSIVE_LOAD,
                    "client opened too many streams of unknown types",
                )),
                false => Err(Broken::Stream(Code::STREAM_CREATION_ERROR, "unknown type")),
            }
        }
    }
}

/// What has arrived; `None` at the end.
async fn chunk(shared: &Shared, recv: &mut RecvStream) -> Result<Option<bytes::Bytes>, Broken> {
    match recv.read_chunk(CHUNK_BYTES, true).await {
        Ok(Some(chunk)) => {
            shared.note_bytes(chunk.bytes.len());
            Ok(Some(chunk.bytes))
        }
        Ok(None) | Err(ReadError::Reset(_)) => Ok(None),
        // No client is left to be told.
        Err(_) => Err(Broken::Stream(Code::NO_ERROR, "client is gone")),
    }
}

fn closed() -> Broken {
    Broken::Connection(Code::CLOSED_CRITICAL_STREAM, "client closed a stream that must stay")
}

async fn control(shared: &Shared, recv: &mut RecvStream, first: &[u8]) -> Result<(), Broken> {
    let mut reader = Reader::default();
    let mut bytes = bytes::Bytes::copy_from_slice(first);
    loop {
        let mut rest = &bytes[..];
        // None of it changes anything here: no pushes are sent, and responses have no table.
        while reader.next(&mut rest)?.is_some() {}
        bytes = chunk(shared, recv).await?.ok_or_else(closed)?;
    }
}

async fn encoder(shared: &Shared, recv: &mut RecvStream, first: &[u8]) -> Result<(), Broken> {
    let mut bytes = bytes::Bytes::copy_from_slice(first);
    loop {
        shared.decoder.borrow_mut().encoder_stream(&bytes)?;
        shared.note_useful(bytes.len());
        shared.wake_blocked();
        shared.acknowledge();
        bytes = chunk(shared, recv).await?.ok_or_else(closed)?;
    }
}

async fn decoder(shared: &Shared, recv: &mut RecvStream, first: &[u8]) -> Result<(), Broken> {
    let mut reader = Acknowledgments::default();
    let mut bytes = bytes::Bytes::copy_from_slice(first);
    loop {
        reader.read(&bytes)?;
        bytes = chunk(shared, recv).await?.ok_or_else(closed)?;
    }
}
