//! How certificates stand, for the operator.

use crate::certificate::{Certificate, Next, now};
use crate::config::Acme;
use crate::identifier::Identifier;
use serde_json::{Value, json};
use std::time::Duration;
use yorozu_kernel::base::report::Report;
use yorozu_kernel::exchange::conf::Config;
use yorozu_tls::x509::date;

/// The certificates: issuer, names, state, expiry, next step, last error, as a list of objects in JSON.
pub fn json(config: &Config) -> String {
    let mut all = Vec::new();
    for (_, certificate) in config.shared.of::<Acme>().certificates() {
        let order = &certificate.order;
        let names: Vec<_> = order.identifiers.iter().map(Identifier::to_string).collect();
        let (state, expires) = state(&certificate, now());
        let standing = certificate.standing();
        let next = match standing.next {
            Next::Nothing => "not looked at yet".to_owned(),
            Next::Ordering => "being ordered".to_owned(),
            Next::Order(at) => format!("next attempt {}", date(at)),
            Next::Renew(at) => format!("renewal {}", date(at)),
            Next::Reload => "not tried again before a reload".to_owned(),
            Next::Other => "ordered by another process".to_owned(),
        };
        all.push(json!({
            "issuer": order.issuer, "names": names, "state": state, "expires": expires, "next": next,
            "error": standing.last_error,
        }));
    }
    format!("{}\n", Value::Array(all))
}

/// Adds when the issued certificates cease to be valid.
pub fn report(config: &Config, report: &mut Report) {
    let help = "When a server's certificate ceases to be valid, in seconds since 1970.";
    let family = report.gauge("yorozu_certificate_expiry_seconds", help);
    for (_, certificate) in config.shared.of::<Acme>().certificates() {
        let order = &certificate.order;
        let name = order.identifiers.first().map(Identifier::to_string).unwrap_or_default();
        if let Some(shown) = certificate.shown().filter(|shown| shown.is_issued) {
            // Several may have the first name, and others besides or another key.
            let file_name = order.file_name();
            let labels =
                [("name", name.as_str()), ("issuer", &order.issuer), ("order", &file_name)];
            family.count(&labels, shown.validity.1.as_secs());
        }
    }
}

/// What there is of a certificate, and when an authority's ceases to be valid.
fn state(certificate: &Certificate, now: Duration) -> (&'static str, Option<String>) {
    match certificate.shown() {
        None => ("none", None),
        Some(shown) => {
            let is_similar = shown.certified.cert.len() > 1 || shown.identifier().is_some();
            let state = match (shown.is_issued, shown.is_valid(now)) {
                (true, true) => "issued",
                (true, false) => "expired",
                (false, _) if is_similar => "of an earlier order",
                (false, _) => return ("self-signed", None),
            };
            (state, Some(date(shown.validity.1)))
        }
    }
}
