//! Which names of fields are taken: what the server says that a request is for.

use super::head::{self, Arrived, Bounds, Received};
use yorozu_kernel::exchange::Client;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::request::Request;
use yorozu_kernel::find_config;

/// Reads a head once more if the server it names takes other fields than the one it was read for.
pub(super) fn by_server(
    conf: &WorkerConf,
    client: &Client,
    request: &mut Request,
    read_by: &Bounds,
) -> Arrived {
    let Some(bounds) = of_server(conf, client, request, read_by) else { return Arrived::Request };
    let head = std::mem::take(&mut request.head);
    let (again, arrived) = match head::read(head, &bounds) {
        Received::Request(again) => (again, Arrived::Request),
        Received::Bad { status, text, request } => (request, Arrived::Bad { status, text }),
        Received::Partial => return Arrived::Closed,
    };
    *request = again;
    arrived
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
    let socket = conf.socket(client);
    if !socket.has_field_rules {
        return None;
    }
    // A request for a name in doubt is refused later.
    let named = find_config::named(socket, &request.host).unwrap_or_default();
    let server = named.unwrap_or(socket.default_server);
    let own = Bounds::of(conf.location(conf.server(server).conf).http_core());
    let is_same = own.drops_invalid == read_by.drops_invalid
        && own.rules.underscores == read_by.rules.underscores;
    (!is_same).then_some(Bounds { rules: own.rules, drops_invalid: own.drops_invalid, ..*read_by })
}
