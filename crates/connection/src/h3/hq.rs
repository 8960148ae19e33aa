//! HTTP/0.9 over QUIC, as tests between implementations speak it: a line in, content out.

use super::outgoing::Outgoing;
use super::{Open, Shared, number, stream, write};
use crate::first_core;
use crate::head::{Bounds, Received, read};
use bytes::BytesMut;
use quinn::{RecvStream, SendStream};
use std::rc::Rc;
use yorozu_kernel::base::counters::{self, Happened};
use yorozu_kernel::base::timer;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::source::RequestSource;
use yorozu_wire::h3::frame::Code;

/// Reads a request, and answers it.
pub(super) async fn answer(shared: Rc<Shared>, open: Open, send: SendStream, mut recv: RecvStream) {
    let _open = open;
    let outgoing = Outgoing::new(Rc::clone(&shared), send);
    let Some(conf) = stream::conf(&shared, &outgoing) else { return };
    let bounds = Bounds::of(first_core(&conf, &shared.client));
    let timeout = first_core(&conf, &shared.client).client_header_timeout;
    drop(conf);
    let line = timer::within(timeout, line(&mut recv, bounds.line_bytes_max)).await;
    let Some(Some(line)) = line else {
        outgoing.reset(Code::REQUEST_CANCELLED);
        return;
    };
    let _ = recv.stop(number(Code::NO_ERROR));
    let Some(conf) = stream::conf(&shared, &outgoing) else { return };
    let (request, refusal) = match read(line.freeze(), &bounds) {
        Received::Request(request) => (request, None),
        Received::Bad { status, text, request } => (request, Some((status, text))),
        Received::Partial => {
            outgoing.reset(Code::REQUEST_CANCELLED);
            return;
        }
    };
    let source = Rc::clone(&outgoing) as Rc<dyn RequestSource>;
    let body = RequestBody::of_stream(source, None, None);
    counters::count(Happened::Request);
    let exchange = Box::new(Exchange::new(conf, shared.present_client(), request, body));
    stream::respond((exchange, refusal), &outgoing, write::Form::Bare).await;
}

/// The first line, with its end.
async fn line(recv: &mut RecvStream, bytes_max: usize) -> Option<BytesMut> {
    let mut line = BytesMut::new();
    loop {
        if let Some(end) = memchr::memchr(b'\n', &line) {
            line.truncate(end + 1);
            return Some(line);
        }
        if line.len() > bytes_max {
            return None;
        }
        match recv.read_chunk(bytes_max, true).await {
            Ok(Some(chunk)) => line.extend_from_slice(&chunk.bytes),
            // A request may end without one.
            Ok(None) if !line.is_empty() => line.extend_from_slice(b"\r\n"),
            _ => return None,
        }
    }
}
