//! `empty_gif`: a picture of one transparent pixel.

use bytes::Bytes;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;

/// The module.
pub const MODULE: Module = Module::new("http_empty_gif", || DIRECTIVES.to_vec());

#[derive(Debug)]
struct EmptyGif;

impl Handler for EmptyGif {
    fn respond(&self, exchange: &mut Exchange) -> Outcome {
        respond(exchange)
    }
}

pub const DIRECTIVES: &[Directive] = &[Directive::row(
    "empty_gif",
    LOCATION,
    Arity::NONE,
    Action::Set(|block, _| {
        block.handle_by(EmptyGif);
        Ok(())
    }),
    "Answers with a GIF of one transparent pixel.",
)];

/// GIF89a: one pixel of a palette of two, transparent.
const PIXEL: &[u8] =
    b"GIF89a\x01\x00\x01\x00\x80\x01\x00\x00\x00\x00\xff\xff\xff\x21\xf9\x04\x01\x00\x00\x01\x00\
    \x2c\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x4c\x01\x00\x3b";
/// When it was last modified, as nginx says: seconds since 1970.
const MODIFIED: i64 = 23_349_600;

/// The picture, for GET and HEAD.
fn respond(exchange: &mut Exchange) -> Outcome {
    if !exchange.request.method.is_get_or_head() {
        return Outcome::Status(405);
    }
    let mut response = Response::with_body(200, Bytes::from_static(b"image/gif"), PIXEL);
    response.last_modified = Some(MODIFIED);
    Outcome::Respond(Box::new(response))
}
