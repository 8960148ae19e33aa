//! `flv`: Flash videos from any place on.

use super::static_file;
use bytes::Bytes;
use std::rc::Rc;
use yorozu_conf::value;
use yorozu_http::field;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Segment;

/// The module.
pub const MODULE: Module = Module::new("http_flv", || DIRECTIVES.to_vec());

#[derive(Debug)]
struct Flv;

impl Handler for Flv {
    fn respond(&self, exchange: &mut Exchange) -> Outcome {
        respond(exchange)
    }
}

pub const DIRECTIVES: &[Directive] = &[Directive::row(
    "flv",
    LOCATION,
    Arity::NONE,
    Action::Set(|block, _| {
        block.handle_by(Flv);
        Ok(())
    }),
    "Sends a file from the byte given by the argument start, after a header of its own.",
)];

/// Version 1, with audio and video; nine bytes, and no tag before the first.
const HEADER: &[u8] = b"FLV\x01\x05\0\0\0\x09\0\0\0\0";

fn respond(exchange: &mut Exchange) -> Outcome {
    if !exchange.request.method.is_get_or_head() {
        return Outcome::Status(405);
    }
    let opened = match static_file::open(exchange) {
        Ok(Some(opened)) => opened,
        // As nginx: what is no file is answered as if this handler were not there.
        Ok(None) => return (exchange.conf.engine.files)(exchange),
        Err(outcome) => return outcome,
    };
    let mut segments = Vec::with_capacity(2);
    let start = field::argument(&exchange.args, b"start").and_then(value::number);
    let start = start.filter(|start| (1..opened.bytes).contains(start)).unwrap_or(0);
    if start > 0 {
        segments.push(Segment::Memory(Bytes::from_static(HEADER)));
    }
    segments.push(Segment::File(opened.file, start..opened.bytes));
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let mut response = static_file::of_file(exchange, location, segments, opened.modified);
    response.allow_ranges = true;
    Outcome::Respond(Box::new(response))
}
