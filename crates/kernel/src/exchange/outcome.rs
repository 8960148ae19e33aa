//! What phases and handlers decide, and how far that brings a request.

use super::response::Response;
use bytes::Bytes;
use std::time::Duration;

/// What a phase or handler decided.
#[derive(Debug)]
pub enum Outcome {
    /// The response is made.
    Respond(Box<Response>),
    /// A redirect made here; its location is completed and its page made later.
    Redirect(Box<Response>),
    /// A status whose page is still to be chosen (`error_page`).
    Status(u16),
    /// The same, of a request that does not get what others get for its URL: its page is not that of the URL.
    Refused(u16),
    /// Start over with another path.
    Internal { uri: Vec<u8>, args: Option<Vec<u8>> },
    /// Start over in a named location.
    Named(Bytes),
    /// Something must be awaited first.
    Wait(Pending),
}

impl Outcome {
    /// Starts over with a path that variables may have brought arguments into (`/index.php$request_uri`).
    pub fn internal(mut uri: Vec<u8>, args: Option<&[u8]>) -> Self {
        let Some(at) = memchr::memchr(b'?', &uri) else {
            return Self::Internal { uri, args: Some(args.unwrap_or_default().to_vec()) };
        };
        let mut all = uri.split_off(at + 1);
        uri.truncate(at);
        if let Some(args) = args {
            all.push(b'?');
            all.extend_from_slice(args);
        }
        Self::Internal { uri, args: Some(all) }
    }
}

/// What a request waits for.
#[derive(Clone, Copy, Debug)]
pub enum Pending {
    /// `limit_req`
    Delay(Duration),
    /// `auth_basic`, `auth_request`; with the status that `deny` has for it where one of them suffices.
    Authentication { denied: Option<u16> },
    /// `mirror` wants the request's body.
    Mirror,
    /// The location's handler has to ask another server, or to read something.
    Content,
}

/// What a phase decided.
#[derive(Debug)]
pub enum Step {
    Next,
    /// The status the client gets.
    Refuse(u16),
    /// Next, but later.
    Delay(Duration),
}

/// What a check of the access phase says about a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Permission {
    /// It lets the client in: with `satisfy any` that is enough.
    Allow,
    /// It has nothing to say about the client. That lets no one in whom another check refuses.
    NoOpinion,
    /// The status the client gets.
    Refuse(u16),
}

/// How far a request came without waiting.
pub enum Progress {
    /// The response is ready for the filters.
    Ready(Box<Response>),
    /// Something must be awaited.
    Wait(Pending),
    /// The connection closes without an answer, under this status in the log.
    Close(u16),
}
