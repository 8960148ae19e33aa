//! The times of a connection.

use crate::first_core;
use std::time::Duration;
use yorozu_kernel::exchange::Client;
use yorozu_kernel::exchange::conf::WorkerConf;

/// How long a client may take, by the server that its handshake named, whichever its requests are for. A connection has its own copy, which holds to its end: the
/// configuration may lose its socket before that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    header: Duration,
    keepalive: Duration,
    pub(crate) send: Duration,
    pub(crate) lingering: Duration,
}

impl Times {
    pub(crate) fn of(conf: &WorkerConf, client: &Client) -> Self {
        let core = first_core(conf, client);
        Self {
            header: core.client_header_timeout,
            keepalive: core.keepalive_timeout.timeout,
            send: core.send_timeout,
            lingering: core.lingering_timeout,
        }
    }

    /// How long there may be no request.
    pub(crate) fn silence(&self, client: &Client) -> Duration {
        match client.requests.get() {
            0 => self.header,
            _ => self.keepalive,
        }
    }
}
