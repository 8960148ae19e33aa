//! Early hints: which fields of an upstream's 103 the client sees.

use super::fetch::Job;
use super::{Settings, shown};
use crate::protocol::Protocol;
use crate::protocol::codec::Head;
use bytes::Bytes;
use std::io;
use yorozu_kernel::exchange::source::Interim;
use yorozu_kernel::logging::error::{Context, Level};

/// Fields that say how a message is carried, which the client's connection has its own of, and those that are changed on
/// the way (`proxy_redirect`, `proxy_cookie_path`): of the answer itself, not of what comes before it.
const OF_THE_ANSWER: [&[u8]; 9] = [
    b"content-length",
    b"location",
    b"proxy-connection",
    b"refresh",
    b"set-cookie",
    b"te",
    b"trailer",
    b"trailers",
    b"upgrade",
];

impl Job<'_> {
    /// `early_hints`: sends the client what the upstream says beforehand.
    pub(super) async fn pass_hints(&self, head: &Head) {
        let settings = super::settings(self.location, self.protocol);
        let fields = of_head(self.protocol, settings, head);
        let Some(client) = self.hinted.as_ref().filter(|_| !fields.is_empty()) else { return };
        let send_timeout = self.location.http_core().send_timeout;
        let sent = client.interim(Interim::EarlyHints(&fields), send_timeout).await;
        // A client that is gone is noticed with the answer itself.
        if sent.is_err_and(|problem| problem.kind() == io::ErrorKind::TimedOut) {
            let text =
                "client timed out (110: Connection timed out) while sending early hints to client";
            Context::of(self.exchange).upstream(Level::Info, text, None);
        }
    }
}

/// The fields of early hints that the client gets.
///
/// # Source
/// RFC 8297, section 2: they are those that the final answer is likely to have; what it hides is hidden here too.
fn of_head(protocol: &dyn Protocol, conf: Settings<'_>, head: &Head) -> Vec<(Bytes, Bytes)> {
    let is_shown = |name: &[u8]| {
        !shown::is_hidden(protocol, conf, name)
            && !shown::is_of_connection(head, name)
            && !OF_THE_ANSWER.iter().any(|other| other.eq_ignore_ascii_case(name))
    };
    head.fields.iter().filter(|(name, _)| is_shown(name)).cloned().collect()
}
