//! `vhost_traffic_status_display`: the figures in the terms of the third-party module of virtual hosts' traffic, for
//! dashboards that are made for it.

use super::{Conf, TrafficFormat, zones};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use yorozu_kernel::base::counters::{Seen, seen};
use yorozu_kernel::base::report::{Report, Value as Figure};
use yorozu_kernel::base::{NGINX_VERSION, turn};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;

#[derive(Debug)]
pub(super) struct Traffic;

impl Handler for Traffic {
    fn respond(&self, exchange: &mut Exchange) -> Outcome {
        if !exchange.request.method.is_get_or_head() {
            return Outcome::Status(405);
        }
        let conf = exchange.conf.location(exchange.location).of::<Conf>();
        let format = match &exchange.uri {
            uri if uri.ends_with(b"/format/json") => TrafficFormat::Json,
            uri if uri.ends_with(b"/format/prometheus") => TrafficFormat::Prometheus,
            uri if uri.ends_with(b"/format/html") => TrafficFormat::Html,
            _ => conf.vhost_traffic_status_display_format,
        };
        let (content_type, text): (&'static [u8], _) = match format {
            TrafficFormat::Json => (b"application/json", json(exchange)),
            TrafficFormat::Prometheus => {
                (b"text/plain; version=0.0.4; charset=utf-8", prometheus())
            }
            TrafficFormat::Html => (b"text/html; charset=utf-8", html()),
        };
        let mut response = Response::with_body(200, Bytes::from_static(content_type), text);
        response.add(Bytes::from_static(b"Cache-Control"), &b"no-store"[..]);
        Outcome::Respond(Box::new(response))
    }

    fn is_alone(&self) -> bool {
        true
    }
}

fn json(exchange: &Exchange) -> String {
    let Seen { accepted, requests, active, reading, writing, waiting } = seen();
    let zones: Map<_, _> =
        zones::traffic().iter().map(|zone| (zone.name.clone(), zone_json(zone))).collect();
    let value = json!({
        "hostName": exchange.conf.hostname,
        "nginxVersion": NGINX_VERSION,
        "nowMsec": turn::unix_millis(),
        "connections": {
            "active": active, "reading": reading, "writing": writing, "waiting": waiting,
            "accepted": accepted, "handled": accepted, "requests": requests,
        },
        "serverZones": zones,
    });
    value.to_string()
}

fn zone_json(zone: &zones::Traffic) -> Value {
    let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"].map(str::to_owned);
    let classes = classes.into_iter().zip(zone.classes.iter().copied());
    let responses = classes.chain(zone.cached.iter().cloned());
    let responses: Map<_, _> =
        responses.chain([("scarce".to_owned(), 0)]).map(|(name, n)| (name, json!(n))).collect();
    let millis = zone.micros / 1000;
    json!({
        "requestCounter": zone.requests,
        "inBytes": zone.received,
        "outBytes": zone.sent,
        "responses": responses,
        "requestMsecCounter": millis,
        "requestMsec": millis.checked_div(zone.requests).unwrap_or(0),
    })
}

fn prometheus() -> String {
    let (zones, mut report) = (zones::traffic(), Report::default());
    let family = report.counter("nginx_vts_server_requests_total", "Requests by server and class.");
    for zone in &zones {
        for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].iter().zip(&zone.classes) {
            family.count(&[("host", &zone.name), ("code", class)], *count);
        }
        family.count(&[("host", &zone.name), ("code", "total")], zone.requests);
    }
    let family = report.counter("nginx_vts_server_bytes_total", "Bytes by server and direction.");
    for zone in &zones {
        family.count(&[("host", &zone.name), ("direction", "in")], zone.received);
        family.count(&[("host", &zone.name), ("direction", "out")], zone.sent);
    }
    let family =
        report.counter("nginx_vts_server_cache_total", "Answers by server and cache status.");
    for zone in &zones {
        for (status, count) in &zone.cached {
            family.count(&[("host", &zone.name), ("status", status)], *count);
        }
    }
    let family = report
        .counter("nginx_vts_server_request_seconds_total", "Time of requests by server, added up.");
    for zone in &zones {
        #[expect(clippy::cast_precision_loss, reason = "a hundred years have 2^52 microseconds")]
        let seconds = zone.micros as f64 / 1e6;
        family.put(&[("host", &zone.name)], Figure::Number(seconds));
    }
    report.write(false)
}

fn html() -> String {
    let mut out = "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>Traffic</title>\n<table>\n\
        <tr><th>zone<th>requests<th>1xx<th>2xx<th>3xx<th>4xx<th>5xx<th>received<th>sent\n"
        .to_owned();
    for zone in zones::traffic() {
        let name = zone.name.replace('&', "&amp;").replace('<', "&lt;");
        let _ = write!(out, "<tr><td>{name}<td>{}", zone.requests);
        for count in &zone.classes {
            let _ = write!(out, "<td>{count}");
        }
        let _ = writeln!(out, "<td>{}<td>{}", zone.received, zone.sent);
    }
    out + "</table>\n"
}
