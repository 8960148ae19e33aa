//! The outcome of a request whose body could not be read.

use super::Exchange;
use super::outcome::Outcome;
use super::request_body::BodyError;
use crate::logging::error::{self, Level};

/// The status for a request body that could not be read.
pub fn body_failed(exchange: &mut Exchange, problem: BodyError) -> Outcome {
    exchange.keep_alive = false;
    exchange.is_content_late |= matches!(problem, BodyError::Timeout);
    let (level, text, status) = match problem {
        BodyError::Broken => (Level::Info, "client sent invalid chunked body".to_owned(), 400),
        BodyError::Malformed => (Level::Info, "client sent malformed request body".to_owned(), 400),
        BodyError::Closed => (Level::Info, "client prematurely closed connection".to_owned(), 400),
        BodyError::Timeout => (Level::Info, "client timed out".to_owned(), 408),
        BodyError::TooLarge => {
            (Level::Error, "client intended to send too large chunked body".to_owned(), 413)
        }
        BodyError::File(why) => (Level::Crit, why, 500),
        BodyError::Spent => {
            let text = "request body was sent to an upstream already and cannot be read again";
            (Level::Error, text.to_owned(), 500)
        }
    };
    error::request(exchange, level, &text);
    Outcome::Refused(status)
}

/// The refusal of content that nothing asks for and that is wrongly framed, as far as it has arrived. An exchange gets it once, so
/// that the error has its page.
pub fn broken_unasked(exchange: &mut Exchange) -> Option<Outcome> {
    if exchange.body.is_discarded() || !exchange.body.is_broken_at_hand() {
        return None;
    }
    exchange.body.discard();
    Some(body_failed(exchange, BodyError::Broken))
}
