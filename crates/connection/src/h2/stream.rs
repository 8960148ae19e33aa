//! One request and its response.

use super::streams::Handle;
use super::write;
use crate::head::Refusal;
use crate::respond::{self, Answer, Begun, log};
use crate::send::Sent;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use yorozu_kernel::base::counters::Counted;
use yorozu_kernel::base::{limits, tasks};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_wire::h2::frame::Code;

/// One request and its response.
pub(super) struct Stream {
    pub(super) exchange: Exchange,
    pub(super) handle: Rc<Handle>,
    /// Whether the request is an error of the stream's, beside its answer (RFC 9113, section 8.1.1).
    pub(super) is_malformed: bool,
    pub(super) _writing: Counted,
}

/// What is left of an answer.
pub(super) type Work = Pin<Box<dyn Future<Output = ()>>>;

impl Stream {
    /// Answers at once if nothing has to be waited for; else the rest of the work.
    pub(super) fn start(mut self, refusal: Option<Refusal>) -> Option<Work> {
        match respond::begin(&mut self.exchange, refusal) {
            Begun::Waits(pending) => Some(Box::pin(async move {
                let answer = respond::wait(&mut self.exchange, pending).await;
                if let Some(rest) = self.send(answer) {
                    rest.await;
                }
            })),
            Begun::Done(answer) => self.send(answer),
        }
    }

    fn send(mut self, answer: Answer) -> Option<Work> {
        let response = match answer {
            Ok(response) => *response,
            Err(status) => {
                self.exchange.status = status;
                // As nginx: a client that was too slow is told so by this code.
                let code =
                    if self.exchange.is_content_late { Code::PROTOCOL_ERROR } else { Code::CANCEL };
                self.handle.streams.send_reset(self.handle.id, code);
                self.finish();
                return None;
            }
        };
        match write::begin(&mut self.exchange, &self.handle, response) {
            write::Begun::Done(sent) => {
                self.exchange.is_complete = sent == Sent::Whole;
                self.finish();
                None
            }
            write::Begun::Waits(rest) => Some(Box::pin(async move {
                self.exchange.is_complete = rest.run(&mut self.exchange).await == Sent::Whole;
                self.finish();
            })),
        }
    }

    fn finish(mut self) {
        log(&mut self.exchange);
        if self.is_malformed {
            self.handle.streams.break_off(self.handle.id, Code::PROTOCOL_ERROR);
        }
        let body = std::mem::replace(&mut self.exchange.body, RequestBody::none());
        if !body.is_finished() && !body.is_lent() {
            // The stream stays for a moment: what is wrong with the rest of the request is still reported, and a
            // client that is about to end it is not cut short.
            let handle = Rc::clone(&self.handle);
            tasks::of_request(async move {
                let all = poll_fn(|context| handle.streams.poll_received(handle.id, context));
                let _ = tokio::time::timeout(limits::H2_LINGERING, all).await;
            });
        }
        respond::end(&mut self.exchange);
    }
}
