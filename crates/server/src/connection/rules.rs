//! Which names of fields are taken: what the server says that a request is for.

use super::head::{self, Bounds, Received};
use crate::config::compiled::WorkerConf;
use crate::exchange::Client;
use crate::exchange::request::Request;
use crate::find_config;

/// Reads a head once more if the server it names takes other fields than the one it was read for.
///
/// # Source
/// nginx, `underscores_in_headers` and `ignore_invalid_headers`: from the `Host` field on the named server's hold.
pub(super) fn by_server(
    conf: &WorkerConf,
    client: &Client,
    request: Request,
    read_by: &Bounds,
) -> Received {
    let socket = &conf.sockets[client.listen.get()];
    if !socket.has_field_rules {
        return Received::Request(request);
    }
    let server = find_config::named(socket, &request.host).unwrap_or(socket.default_server);
    let own = Bounds::of(&conf.location(conf.server(server).conf).http_core);
    let is_same = own.drops_invalid == read_by.drops_invalid
        && own.rules.underscores == read_by.rules.underscores;
    match is_same {
        true => Received::Request(request),
        false => {
            let bounds = Bounds { rules: own.rules, drops_invalid: own.drops_invalid, ..*read_by };
            head::read(request.head, &bounds)
        }
    }
}
