//! `api`: figures as JSON, read-only, in the shape of nginx's commercial API.
//!
//! | path behind the location's | answer |
//! | --- | --- |
//! | `/` | the versions |
//! | `/9/`, `/9/http/` | names of what is below |
//! | `/9/http/caches` | a value for each name; only some of its fields with `?fields=a,b`, its names alone with `?fields=` |
//! | `/9/http/caches/NAME` | one of them |

use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use yorozu_http::field::argument;
use yorozu_http::uri::unescape;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::figures::Section;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;

#[derive(Debug)]
pub(super) struct Api;

/// Those that nginx has. What one of them lacks is shown all the same.
const VERSIONS: std::ops::RangeInclusive<u8> = 1..=9;

/// An error: the status, its text and its code, as nginx's.
type Problem = (u16, &'static str, &'static str);

const NO_PATH: Problem = (404, "path not found", "PathNotFound");

impl Handler for Api {
    fn respond(&self, exchange: &mut Exchange) -> Outcome {
        let (status, value) = match find(exchange) {
            Ok(value) => (200, value),
            Err((status, text, code)) => {
                let id = base16ct::lower::encode_string(exchange.id());
                let error = json!({ "status": status, "text": text, "code": code });
                let href = "https://nginx.org/en/docs/http/ngx_http_api_module.html";
                (status, json!({ "error": error, "request_id": id, "href": href }))
            }
        };
        let content_type = Bytes::from_static(b"application/json");
        let mut response = Response::with_body(status, content_type, value.to_string());
        response.add(Bytes::from_static(b"Cache-Control"), &b"no-store"[..]);
        if status == 405 {
            response.add(Bytes::from_static(b"Allow"), &b"GET, HEAD"[..]);
        }
        Outcome::Respond(Box::new(response))
    }

    fn is_alone(&self) -> bool {
        true
    }
}

fn find(exchange: &Exchange) -> Result<Value, Problem> {
    if !exchange.request.method.is_get_or_head() {
        return Err(match exchange.request.method_text() {
            b"POST" | b"PATCH" | b"DELETE" => (405, "method disabled", "MethodDisabled"),
            _ => (405, "method not allowed", "MethodNotAllowed"),
        });
    }
    let path = exchange.path_behind_location();
    let (version, path) = path.split_once('/').unwrap_or((&path, ""));
    if version.is_empty() {
        return Ok(VERSIONS.collect());
    }
    if !version.parse().is_ok_and(|version| VERSIONS.contains(&version)) {
        return Err((404, "unknown version", "UnknownVersion"));
    }
    let sections = (exchange.conf.engine.sections)();
    let below = |section: &&Section| {
        path.strip_prefix(section.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let Some(section) = sections.iter().copied().find(below) else {
        return names_below(&sections, path);
    };
    let name = path[section.path.len()..].trim_start_matches('/');
    let fields = argument(&exchange.args, b"fields").map(|fields| {
        String::from_utf8_lossy(&unescape(fields)).split(',').map(str::to_owned).collect::<Vec<_>>()
    });
    chosen((section.figures)(&exchange.conf), section, name, fields.as_deref())
}

/// The names of what is below a path.
fn names_below(sections: &[&Section], path: &str) -> Result<Value, Problem> {
    let below = |section: &&Section| {
        let rest = match path {
            "" => section.path,
            _ => section.path.strip_prefix(path)?.strip_prefix('/')?,
        };
        rest.split('/').next().map(str::to_owned)
    };
    let names: BTreeSet<_> = sections.iter().filter_map(below).collect();
    if names.is_empty() { Err(NO_PATH) } else { Ok(names.into_iter().collect()) }
}

/// Of what a section shows: one name, some fields.
fn chosen(
    mut all: Value,
    section: &Section,
    name: &str,
    fields: Option<&[String]>,
) -> Result<Value, Problem> {
    let only = |value: Value| match (value, fields) {
        (Value::Object(mut map), Some(fields)) => {
            map.retain(|name, _| fields.contains(name));
            Value::Object(map)
        }
        (value, _) => value,
    };
    match (section.missing, name) {
        (None, "") => Ok(only(all)),
        (None, _) => Err(NO_PATH),
        (Some(_), "") => {
            let Value::Object(map) = all else { return Ok(all) };
            if fields.is_some_and(|fields| fields == [""]) {
                return Ok(map.into_iter().map(|(name, _)| name).collect());
            }
            let each = map.into_iter().map(|(name, value)| (name, only(value)));
            Ok(each.collect::<Map<_, _>>().into())
        }
        (Some((text, code)), name) => {
            let found = all.get_mut(name).map(Value::take);
            found.map(only).ok_or((404, text, code))
        }
    }
}
