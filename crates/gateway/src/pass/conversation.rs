//! One request on one connection, until the head of its answer is read.

use super::fetch::{CLOSED_EARLY, Job};
use super::pump::{ANSWERS, Source};
use super::upload::{self, Sending, UploadFault, Uploaded};
use crate::protocol::call::{Begun, Outgoing, Talk};
use crate::protocol::codec::{Codec, CodecError, Head};
use crate::protocol::fault::Fault;
use bytes::{Buf as _, Bytes, BytesMut};
use std::any::Any;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_kernel::base::batch::{self, Written};
use yorozu_kernel::base::spare::Spare;
use yorozu_kernel::base::timer;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::logging::error::{Level, os_error, verbatim};
use yorozu_upstream::{Connection, Peer};

/// One request on one connection, until the head of its answer is read.
pub(super) struct Conversation {
    connection: Rc<Connection>,
    codec: Box<dyn Codec>,
    input: BytesMut,
    sending: Sending,
    /// Bytes of the request that were sent, but for those of an upload under way.
    sent: u64,
    pub(super) received: usize,
    /// Whether the connection was kept for it.
    is_kept: bool,
    /// Why the request could not be sent, while an answer may still come.
    trouble: Option<io::Error>,
}

impl Conversation {
    /// One in which nothing was said; `is_kept`: over a connection that was kept.
    #[inline]
    pub(super) fn new(connection: Rc<Connection>, codec: Box<dyn Codec>, is_kept: bool) -> Self {
        Self {
            codec,
            input: ANSWERS.with(Spare::take),
            sending: Sending::Done,
            sent: 0,
            connection,
            received: 0,
            is_kept,
            trouble: None,
        }
    }

    /// Bytes of the request that were sent.
    pub(super) fn sent(&self) -> u64 {
        match &self.sending {
            Sending::UnderWay(upload) => upload.sent.get(),
            Sending::Done | Sending::Waiting(_) | Sending::Broken => self.sent,
        }
    }

    pub(super) fn into_source(self) -> Source {
        let Self { connection, codec, input, sending, .. } = self;
        Source::new(Some(connection), codec, input, sending)
    }

    /// Whether its end, if it ended, is that of a connection that was kept and closed meanwhile.
    fn was_closed(&self) -> bool {
        self.is_kept && self.received == 0
    }
}

/// What a request begins with.
pub(super) struct Opening {
    head: Bytes,
    /// Content in memory that could not go with it.
    rest: Bytes,
    outgoing: Option<Rc<dyn Outgoing>>,
}

impl Job<'_> {
    /// Sends what the request begins with, or leaves it to be sent with those of others.
    pub(super) async fn begin(&self, talk: &mut Conversation, mut opening: Opening) {
        // The first piece of a body shares a call with the head.
        if !matches!(self.call.content, Content::None | Content::Memory(_)) {
            talk.sending = self.send(&talk.connection, opening, 0);
            return;
        }
        let head = std::mem::take(&mut opening.head);
        let written = match batch::write_upstream(&talk.connection, head) {
            Ok(written) => written,
            Err(ticket) if opening.outgoing.is_none() => {
                talk.sending = Sending::Waiting(ticket);
                return;
            }
            // What it says next has to come behind.
            Err(ticket) => poll_fn(|context| ticket.poll(context)).await,
        };
        (talk.sending, talk.sent) = self.send_rest(&talk.connection, opening, written);
    }

    /// Goes on behind what was sent at once; how many bytes that was.
    fn send_rest(
        &self,
        connection: &Rc<Connection>,
        mut opening: Opening,
        written: Written,
    ) -> (Sending, u64) {
        let sent = written.count.unwrap_or(0);
        opening.head = written.body;
        opening.head.advance(sent);
        (self.send(connection, opening, sent), sent as u64)
    }

    /// A reader for the answer, and what is sent before it; `memory` is what the conversation before left.
    pub(super) fn opening(&self, memory: Option<Box<dyn Any>>) -> (Box<dyn Codec>, Opening) {
        match &self.call.talk {
            Talk::Apart(reader) => {
                let head = self.call.request.clone();
                (reader.codec(), Opening { head, rest: Bytes::new(), outgoing: None })
            }
            Talk::Within(session) => {
                let Begun { request, rest, codec, outgoing } = session.begin(memory);
                (codec, Opening { head: request, rest, outgoing: Some(outgoing) })
            }
        }
    }

    /// Leaves what is behind the `count` bytes that were sent to an upload, if there is anything.
    fn send(&self, connection: &Rc<Connection>, opening: Opening, count: usize) -> Sending {
        let Opening { head, rest, outgoing } = opening;
        let live = self.live.borrow_mut().take();
        let source = match (live, &self.call.content) {
            (Some(body), _) => {
                let core = self.location.http_core();
                let bounds = core.piece_bounds(self.conf.buffer_size.bytes());
                upload::Source::Live(Box::new(body), bounds)
            }
            (None, Content::File(file, length)) => upload::Source::File(Arc::clone(file), *length),
            // Its body went with an earlier attempt: this one cannot be whole.
            (None, Content::Live { .. }) => return Sending::Broken,
            (None, _) if !rest.is_empty() => upload::Source::Memory(rest),
            (None, _) if head.is_empty() => return Sending::Done,
            (None, _) => upload::Source::None,
        };
        let framing = match outgoing {
            Some(outgoing) => upload::Frames::Within(outgoing),
            None => upload::Frames::Apart(self.call.framing),
        };
        Sending::UnderWay(upload::start(upload::Plan {
            connection: Rc::clone(connection),
            head,
            source,
            framing,
            send_timeout: self.conf.send_timeout,
            sent: Rc::new(Cell::new(count as u64)),
        }))
    }

    pub(super) async fn read_head(
        &self,
        talk: &mut Conversation,
        peer: &Peer,
    ) -> Result<Head, Fault> {
        loop {
            let head = talk.codec.read_head(&mut talk.input);
            if let Some(text) = talk.codec.take_stderr() {
                self.log_head(Level::Error, &talk.codec.in_nginx_words(&text), peer);
                let is_caught = |caught: &Bytes| memchr::memmem::find(&text, caught).is_some();
                if self.call.catch_stderr.iter().any(is_caught) {
                    return Err(Fault::InvalidHead);
                }
            }
            match head {
                Ok(Some(head)) if head.status == 103 => {
                    Box::pin(self.pass_hints(&head)).await;
                    continue;
                }
                Ok(Some(mut head)) => {
                    for (name, value) in head.drop_repeated() {
                        let text = verbatim;
                        let line = format!("{}: {}", text(&name), text(&value));
                        let why = "upstream sent duplicate header line";
                        self.log_at(Level::Warn, &format!("{why}: \"{line}\", ignored"), peer);
                    }
                    return Ok(head);
                }
                Ok(None) => {}
                Err(problem) => {
                    let level = match &problem {
                        // A new connection decides.
                        CodecError::Refused(_) if talk.is_kept && !self.is_live => Level::Info,
                        _ => Level::Error,
                    };
                    let text = problem.text(&*talk.codec);
                    match &problem {
                        CodecError::HeadTooBig => self.log_bound(&text, peer),
                        _ => self.log_head(level, &text, peer),
                    }
                    return Err(problem.into());
                }
            }
            self.read_more(talk, peer).await?;
        }
    }

    /// Waits for bytes of the answer, while the request may still be on its way.
    async fn read_more(&self, talk: &mut Conversation, peer: &Peer) -> Result<(), Fault> {
        let read = loop {
            let Sending::UnderWay(upload) = &mut talk.sending else {
                let output = talk.codec.take_output();
                if !output.is_empty() {
                    Box::pin(self.say(talk, &output, peer)).await?;
                }
                match timer::within(self.conf.read_timeout, self.read(talk)).await {
                    Some(Some(read)) => break read,
                    Some(None) => continue,
                    None => {
                        self.timed_out("reading response header from upstream", peer);
                        return Err(Fault::Timeout);
                    }
                }
            };
            let uploaded = tokio::select! {
                biased;
                uploaded = &mut upload.work => uploaded,
                read = talk.connection.read(&mut talk.input) => break read,
            };
            talk.sent = upload.sent.get();
            talk.sending = Sending::of(&uploaded.result);
            self.uploaded(talk, uploaded, peer)?;
        };
        match read {
            Ok(0) => {
                let problem = talk.trouble.take().filter(|_| !self.reconnects(talk));
                if let Some(problem) = problem {
                    return Err(self.not_sent(UploadFault::Peer(problem), peer));
                }
                self.log_head(self.end_level(talk), CLOSED_EARLY, peer);
                Err(Fault::Error)
            }
            Err(problem) => {
                let why = os_error(&talk.trouble.take().unwrap_or(problem));
                self.log_head(self.end_level(talk), &format!("recv() failed ({why})"), peer);
                Err(Fault::Error)
            }
            Ok(count) => {
                talk.received += count;
                Ok(())
            }
        }
    }

    /// Whether a new connection decides, now that this one ended.
    pub(super) fn reconnects(&self, talk: &Conversation) -> bool {
        talk.was_closed() && self.may_reconnect()
    }

    /// How serious an end before the answer is: hardly, if a new connection decides.
    fn end_level(&self, talk: &Conversation) -> Level {
        if self.reconnects(talk) { Level::Info } else { Level::Error }
    }

    /// Reads what the peer says once the request is sent; `None` if it could not be sent at once.
    async fn read(&self, talk: &mut Conversation) -> Option<io::Result<usize>> {
        if let Sending::Waiting(ticket) = &talk.sending {
            let written = poll_fn(|context| {
                let written = ticket.poll(context);
                // By the first byte of its answer the request is sent: the task need not be woken before.
                if written.is_pending() && talk.connection.poll_readable(context).is_pending() {
                    ticket.be_quiet();
                }
                written
            });
            let opening = Opening { head: Bytes::new(), rest: Bytes::new(), outgoing: None };
            let (sending, sent) = self.send_rest(&talk.connection, opening, written.await);
            (talk.sending, talk.sent) = (sending, sent);
            if !talk.sending.is_done() {
                return None;
            }
        }
        Some(talk.connection.read(&mut talk.input).await)
    }

    /// Says what the peer has to know before it says more.
    async fn say(&self, talk: &mut Conversation, output: &[u8], peer: &Peer) -> Result<(), Fault> {
        let write = talk.connection.write_all(output);
        match timer::within(self.conf.send_timeout, write).await {
            Some(Ok(())) => Ok(()),
            // What it said before may be all of its answer.
            Some(Err(problem)) => {
                talk.trouble.get_or_insert(problem);
                Ok(())
            }
            None => Err(self.not_sent(UploadFault::Peer(io::ErrorKind::TimedOut.into()), peer)),
        }
    }

    fn uploaded(
        &self,
        talk: &mut Conversation,
        uploaded: Uploaded,
        peer: &Peer,
    ) -> Result<(), Fault> {
        *self.live.borrow_mut() = uploaded.body;
        match uploaded.result {
            Ok(()) => {
                self.is_uploaded.set(true);
                Ok(())
            }
            // An early answer may say why the peer takes no more: it is read first.
            Err(UploadFault::Peer(problem)) if problem.kind() != io::ErrorKind::TimedOut => {
                talk.trouble = Some(problem);
                Ok(())
            }
            Err(problem) => Err(self.not_sent(problem, peer)),
        }
    }
}
