//! `prometheus all`: the metrics of all modules, as Prometheus reads them.

use bytes::Bytes;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;

#[derive(Debug)]
pub(super) struct Prometheus;

const TEXT: &[u8] = b"text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &[u8] = b"application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Handler for Prometheus {
    fn respond(&self, exchange: &mut Exchange) -> Outcome {
        if !exchange.request.method.is_get_or_head() {
            return Outcome::Status(405);
        }
        let accept = exchange.request.field(b"accept").unwrap_or_default();
        let is_openmetrics = wants_openmetrics(accept);
        let report = (exchange.conf.engine.report)(&exchange.conf);
        let content_type = if is_openmetrics { OPENMETRICS } else { TEXT };
        let text = report.write(is_openmetrics);
        let mut response = Response::with_body(200, Bytes::from_static(content_type), text);
        response.add(Bytes::from_static(b"Cache-Control"), &b"no-store"[..]);
        Outcome::Respond(Box::new(response))
    }

    fn is_alone(&self) -> bool {
        true
    }
}

/// Whether a client names OpenMetrics, and does not say that it takes it not at all.
///
/// # Source
/// RFC 9110, section 12.5.1. Whoever names it prefers it: Prometheus gives it the most weight.
fn wants_openmetrics(accept: &[u8]) -> bool {
    accept.split(|byte| *byte == b',').any(|range| {
        let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let is_it = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case(b"application/openmetrics-text"));
        let is_refused = parts.any(|part| {
            let weight = part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q="));
            weight.is_some_and(|weight| weight.iter().all(|byte| matches!(byte, b'0' | b'.')))
        });
        is_it && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_openmetrics_gets_it() {
        let of_prometheus: &[u8] = b"application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert!(wants_openmetrics(of_prometheus));
        assert!(!wants_openmetrics(b"*/*") && !wants_openmetrics(b""));
        assert!(!wants_openmetrics(b"application/openmetrics-text; q=0.0, text/plain"));
    }
}
