//! Which names of fields are taken: what the server says that a request is for.

use super::head::{self, Bounds, Received};
use yorozu_kernel::exchange::Client;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::request::Request;
use yorozu_kernel::find_config;

/// Reads a head once more if the server it names takes other fields than the one it was read for.
pub(super) fn by_server(
    conf: &WorkerConf,
    client: &Client,
    request: Request,
    read_by: &Bounds,
) -> Received {
    match of_server(conf, client, &request, read_by) {
        None => Received::Request(request),
        Some(bounds) => head::read(request.head, &bounds),
    }
}

/// The bounds of the server that a request names, if it takes other fields than `read_by`.
///
/// # Source
/// nginx, `underscores_in_headers` and `ignore_invalid_headers`: from the `Host` field or `:authority` on the named
/// server's hold.
pub(super) fn of_server(
    conf: &WorkerConf,
    client: &Client,
    request: &Request,
    read_by: &Bounds,
) -> Option<Bounds> {
    let socket = &conf.sockets[client.listen.get()];
    if !socket.has_field_rules {
        return None;
    }
    let server = find_config::named(socket, &request.host).unwrap_or(socket.default_server);
    let own = Bounds::of(conf.location(conf.server(server).conf).http_core());
    let is_same = own.drops_invalid == read_by.drops_invalid
        && own.rules.underscores == read_by.rules.underscores;
    (!is_same).then_some(Bounds { rules: own.rules, drops_invalid: own.drops_invalid, ..*read_by })
}
