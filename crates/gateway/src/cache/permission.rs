//! Pages that depend on who the client is: on what was said of it when it was let in, and on its certificate.

use std::rc::Rc;
use yorozu_kernel::base::limits;
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::variables::Variable;

/// Whether the upstream is told, or led by, what is known of this client and does not stand in the key as it is: what it makes
/// of that is for this client. A part of it in the key does not do, for the others of a group are not this client.
pub(super) fn is_of_client(exchange: &mut Exchange) -> bool {
    let config = Rc::clone(&exchange.conf);
    let Some(reads) = config.reads_of(exchange.location) else { return false };
    let is_of_args = |variable: &Variable| matches!(variable, Variable::Args);
    if exchange.said_of_client.iter().any(is_of_args) && !reads.in_key.has("args") {
        return true;
    }
    let is_known = !exchange.said_of_client.is_empty() || exchange.client.has_certificate();
    let was_led = exchange.redirects.left != limits::URI_CHANGES_MAX;
    let candidates = reads
        .of_client
        .iter()
        .filter(|found| (is_known || found.is_of_cookie) && (was_led || !found.is_elsewhere));
    candidates.into_iter().any(|found| {
        let of_server = || (config.engine.variable)(&found.name).cloned();
        let Some(variable) = found.slot.map(Variable::Slot).or_else(of_server) else { return true };
        let mut value = Scratch::take();
        variable.append(exchange, &mut value) && !value.is_empty()
    })
}
