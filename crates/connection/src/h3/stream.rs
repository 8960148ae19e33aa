//! One request and its response.

use super::incoming::{Head, Incoming, NoHead};
use super::outgoing::Outgoing;
use super::{Open, Shared, stream_number, write};
use crate::head::{Bounds, Refusal};
use crate::respond::{self, Begun, log};
use crate::send::Sent;
use crate::{current_conf, fields, first_core, rules};
use quinn::{RecvStream, SendStream};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use yorozu_kernel::base::counters::{self, Counted, Happened, Present};
use yorozu_kernel::base::timer;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::source::{Frames, RequestSource};
use yorozu_wire::h1::Version;
use yorozu_wire::h3::frame::{Broken, Code};

/// The work on a stream.
pub(super) type Work = Pin<Box<dyn Future<Output = ()>>>;

/// Reads a request, and answers it.
pub(super) async fn answer(shared: Rc<Shared>, open: Open, send: SendStream, recv: RecvStream) {
    let _open = open;
    let id = stream_number(send.id());
    let outgoing = Outgoing::new(Rc::clone(&shared), send);
    let incoming = Incoming::new(Rc::clone(&shared), id, recv);
    let Some(exchange) = receive(&shared, &outgoing, incoming).await else { return };
    respond(exchange, &outgoing, write::Form::Frames).await;
}

/// The worker's configuration. One that no longer has the connection's socket answers nothing: the client may ask elsewhere.
pub(super) fn conf(shared: &Shared, outgoing: &Outgoing) -> Option<Rc<WorkerConf>> {
    let conf = current_conf(&shared.client, &shared.worker);
    if conf.is_none() {
        outgoing.reset(Code::REQUEST_REJECTED);
    }
    conf
}

/// A request, and why it is refused, if it is. Boxed, as it is passed on some times.
pub(super) type Received = (Box<Exchange>, Option<Refusal>);

/// Reads a request's head; `None` if it gets no answer.
async fn receive(
    shared: &Rc<Shared>,
    outgoing: &Rc<Outgoing>,
    mut incoming: Incoming,
) -> Option<Received> {
    let (bounds, timeout) = {
        let conf = conf(shared, outgoing)?;
        let core = first_core(&conf, &shared.client);
        let timeout = core.client_header_timeout;
        (Bounds::of_streams(core), timeout)
    };
    let head = match timer::within(timeout, incoming.head(&bounds)).await {
        Some(Ok(head)) => head,
        Some(Err(why)) => {
            give_up(shared, outgoing, &mut incoming, &why);
            return None;
        }
        None => {
            let late = Broken::Stream(Code::REQUEST_CANCELLED, "client timed out");
            give_up(shared, outgoing, &mut incoming, &late.into());
            return None;
        }
    };
    // The configuration of the moment in which the head was whole.
    let conf = conf(shared, outgoing)?;
    let mut read = read(shared, &conf, &head, &bounds);
    if read.is_malformed {
        incoming.stop_code = Code::MESSAGE_ERROR;
    }
    let is_whole = match incoming.ends_here(read.request.content_length).await {
        Ok(is_whole) => is_whole,
        Err(_) if read.is_malformed => true,
        // RFC 9114, section 4.1.2: a malformed request may be answered before its stream ends.
        Err(NoHead::Broken(Broken::Stream(code, text))) => {
            incoming.stop_code = code;
            shared.note_reset();
            read.refusal.get_or_insert((400, text.to_owned()));
            true
        }
        Err(why) => {
            give_up(shared, outgoing, &mut incoming, &why);
            return None;
        }
    };
    Some(begin(shared, outgoing, incoming, is_whole, read, conf))
}

/// Reads the fields of a head; what they ask for, and why it is refused, if it is.
fn read(shared: &Shared, conf: &WorkerConf, head: &Head, bounds: &Bounds) -> fields::Read {
    let list = shared.fields.borrow();
    let mut read = fields::read(&list, Version::V30, bounds);
    if let Some(bounds) = rules::of_server(conf, &shared.client, &read.request, bounds) {
        read = fields::read(&list, Version::V30, &bounds);
    }
    if head.is_too_large {
        read.refusal = Some((494, "client sent too large header".to_owned()));
    }
    read.request.sent_bytes = head.length as u64;
    read
}

fn begin(
    shared: &Shared,
    outgoing: &Rc<Outgoing>,
    incoming: Incoming,
    is_whole: bool,
    read: fields::Read,
    conf: Rc<WorkerConf>,
) -> Received {
    let fields::Read { mut request, mut refusal, .. } = read;
    let length = request.content_length;
    request.is_chunked = length.is_none() && !is_whole;
    let may_be_early = matches!(request.method, Method::Get | Method::Head);
    if incoming.is_early() && !may_be_early && refusal.is_none() && is_unconfirmed(shared) {
        refusal = Some((425, "client sent request in early data".to_owned()));
    }
    let frames = (!is_whole).then(|| Box::new(incoming) as Box<dyn Frames>);
    let source = Rc::clone(outgoing) as Rc<dyn RequestSource>;
    let body = RequestBody::of_stream(source, frames, length);
    counters::count(Happened::Request);
    let (place, client) = (Box::new_uninit(), shared.present_client());
    (Box::write(place, Exchange::new(conf, client, request, body)), refusal)
}

/// Whether the handshake is still under way: what comes now may be another's, who sends it once more (RFC 8470).
fn is_unconfirmed(shared: &Shared) -> bool {
    crate::tls::session::of(&shared.client).is_some_and(|session| session.is_early.get())
}

/// Ends a stream that gets no answer.
fn give_up(shared: &Shared, outgoing: &Outgoing, incoming: &mut Incoming, why: &NoHead) {
    match why {
        NoHead::Gone => outgoing.reset(Code::REQUEST_CANCELLED),
        NoHead::Broken(Broken::Stream(code, _)) => {
            incoming.stop_code = *code;
            outgoing.reset(*code);
            shared.note_reset();
        }
        NoHead::Broken(broken) => shared.broken(*broken),
    }
}

/// Answers a request that was read.
pub(super) async fn respond(
    (mut exchange, refusal): Received,
    outgoing: &Rc<Outgoing>,
    form: write::Form,
) {
    let _writing = Counted::of(Present::Writing);
    let answer = match respond::begin(&mut exchange, refusal) {
        Begun::Waits(pending) => respond::wait(&mut exchange, pending).await,
        Begun::Done(answer) => answer,
    };
    match answer {
        Ok(response) => {
            let sent = write::send(&mut exchange, outgoing, *response, form).await;
            exchange.is_complete = sent == Sent::Whole;
        }
        Err(status) => {
            exchange.status = status;
            outgoing.reset(Code::REQUEST_CANCELLED);
        }
    }
    log(&mut exchange);
}
