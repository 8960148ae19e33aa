//! Findings about certificates of issuers: shown and not ordered, or ordered and not shown.

use super::scope::{Finding, Scope, each_server};
use yorozu_acme::CERTIFICATE;
use yorozu_conf::{Directive, Tree};

pub(super) fn of(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    each_server(tree, |_, server| found.extend(of_server(server)));
    found
}

fn of_server(server: &Scope<'_, '_>) -> Option<Finding> {
    let finding = |text: String, line: &Directive| Some(Finding { text, at: line.at.clone() });
    let shown = server.find("ssl_certificate");
    let is_issued =
        |line: &&&Directive| line.args.iter().any(|word| word == CERTIFICATE.as_bytes());
    let shows = shown.iter().find(is_issued);
    let tls = |line: &&Directive| server.is_tls(line);
    match (server.own("acme_certificate").first(), shows) {
        (None, Some(line)) => {
            let socket = server.own("listen").into_iter().find(tls)?;
            // Where it is said for all servers, the line of the one that lacks it helps more.
            let at = if server.own("ssl_certificate").is_empty() { socket } else { line };
            finding(
                format!(
                    "\"{CERTIFICATE}\" is empty in a server without \"acme_certificate\": its handshakes fail"
                ),
                at,
            )
        }
        (Some(order), None) if shown.iter().all(|line| line.args.iter().all(is_file)) => finding(
            format!(
                "the certificate is ordered and not used: add \"ssl_certificate {CERTIFICATE};\" and its key"
            ),
            order,
        ),
        _ => None,
    }
}

/// Whether a word has no variable, which could be made of anything.
fn is_file(word: &bytes::Bytes) -> bool {
    !word.contains(&b'$')
}
