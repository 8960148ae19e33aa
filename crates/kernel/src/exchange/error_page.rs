//! `error_page`, the server's own pages, and redirects.

use crate::config::http_core::{ErrorPage, ServerTokens};
use crate::exchange::Exchange;
use crate::exchange::outcome::Outcome;
use crate::exchange::request::Method;
use crate::exchange::response::Response;
use crate::files::path;
use bytes::Bytes;
use std::rc::Rc;
use yorozu_http::status::reason;
use yorozu_wire::h1::Version;

/// Where `error_page` sends this status; `None` for the server's own page.
pub fn find(exchange: &mut Exchange, status: u16) -> Option<Outcome> {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    if exchange.redirects.has_error_page {
        return None;
    }
    let pages = &location.http_core().error_page;
    let page = pages.iter().find(|page| page.codes.contains(&status))?;
    // As nginx: where there is no way out, no page for the error is looked for.
    if exchange.redirects.is_cycle {
        return None;
    }
    exchange.redirects.is_led = true;
    // As nginx: the location that sends a request there says whether it was the last time.
    exchange.redirects.has_error_page = !location.http_core().recursive_error_pages;
    Some(follow(exchange, page, status))
}

fn follow(exchange: &mut Exchange, page: &ErrorPage, status: u16) -> Outcome {
    if closes(status) {
        exchange.keep_alive = false;
    }
    // nginx's own statuses are sent under 400.
    let sent = if (494..=497).contains(&status) { 400 } else { status };
    // 0: the page's own status counts.
    exchange.redirects.error_status = Some(page.overwrite.unwrap_or(sent));
    let target = page.target.value(exchange);
    if target.starts_with(b"/") {
        if exchange.request.method != Method::Head {
            exchange.request.become_get();
        }
        let args = page.args.as_ref().map(|args| args.value(exchange));
        return Outcome::internal(target.to_vec(), args.as_deref());
    }
    if target.starts_with(b"@") {
        return Outcome::Named(target);
    }
    // As nginx: others than these lead nowhere.
    let leads = |status: &u16| matches!(status, 301..=303 | 307 | 308);
    let status = page.overwrite.filter(leads).unwrap_or(302);
    exchange.redirects.error_status = None;
    let mut response = Response::new(status);
    response.location = Some(target);
    Outcome::Respond(redirect(exchange, &response))
}

/// Gives a redirect its page and its full location.
pub fn redirect(exchange: &mut Exchange, response: &Response) -> Box<Response> {
    let location = response.location.as_ref().map(|location| absolute(exchange, location));
    let mut page = standard(exchange, response.status);
    page.location = location;
    Box::new(page)
}

/// `absolute_redirect`, `server_name_in_redirect`, `port_in_redirect`.
pub fn absolute(exchange: &Exchange, location: &Bytes) -> Bytes {
    let conf = &exchange.conf;
    let core = conf.location(exchange.location).http_core();
    if !location.starts_with(b"/") || !core.absolute_redirect {
        return location.clone();
    }
    let server = conf.server(exchange.server);
    let host = if core.server_name_in_redirect && !server.name().is_empty() {
        server.name().as_bytes().to_vec()
    } else if exchange.request.host.is_empty() {
        let local = exchange.client.local.map(|local| local.ip().to_string());
        local.unwrap_or_default().into_bytes()
    } else {
        exchange.request.host.to_vec()
    };
    let port = match exchange.remote.scheme {
        None => exchange.client.local.map(|local| local.port()),
        // Where a proxy listens, only its clients say.
        Some(_) => {
            std::str::from_utf8(&exchange.request.port).ok().and_then(|port| port.parse().ok())
        }
    };
    let usual = if exchange.is_https() { 443 } else { 80 };
    let port = port.filter(|port| core.port_in_redirect && *port != usual);
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    [exchange.scheme(), b"://", &host[..], port.as_bytes(), location].concat().into()
}

/// The server's own page for a status.
pub fn standard(exchange: &mut Exchange, status: u16) -> Response {
    if closes(status) {
        exchange.keep_alive = false;
    }
    // As nginx: no pieces are cut of it, whatever the answer said that led here.
    exchange.accel_fields.retain(|(name, _)| !name.eq_ignore_ascii_case(b"accept-ranges"));
    let shown = exchange.final_status().unwrap_or(status);
    // nginx's own statuses are sent under 400.
    let sent = if (494..=497).contains(&shown) { 400 } else { shown };
    if !yorozu_http::status::has_content(sent) || status < 300 {
        let mut response = Response::new(sent);
        response.content_length = Some(0);
        if status < 300 {
            let conf = Rc::clone(&exchange.conf);
            let location = conf.location(exchange.location);
            response.content_type = path::content_type(exchange, location);
        }
        return response;
    }
    let Some(title) = title(status) else {
        // As nginx: a status it has no page for gets no content.
        let mut response = Response::new(sent);
        response.content_length = Some(0);
        return response;
    };
    let conf = Rc::clone(&exchange.conf);
    let core = conf.location(exchange.location).http_core();
    let name = server_name(core.server_tokens);
    // Those of a broken request say what is wrong below the status that is sent.
    let is_special = (494..=497).contains(&status);
    let heading = if is_special { "400 Bad Request" } else { &title };
    let mut page = format!(
        "<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{heading}</h1></center>\r\n"
    );
    if is_special {
        let detail = title.trim_start_matches("400 ");
        page.push_str(&format!("<center>{detail}</center>\r\n"));
    }
    page.push_str(&format!("<hr><center>{name}</center>\r\n</body>\r\n</html>\r\n"));
    if core.msie_padding && status >= 400 && is_msie(exchange) {
        let line = "<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n";
        page.push_str(&line.repeat(6));
    }
    Response::with_body(sent, Bytes::from_static(b"text/html"), page.into_bytes())
}

fn is_msie(exchange: &Exchange) -> bool {
    let agent = exchange.request.known(exchange.request.known.user_agent).unwrap_or_default();
    let find = |needle: &[u8]| yorozu_http::field::find_ignore_case(agent, needle).is_some();
    exchange.request.version >= Version::V10
        && (find(b"MSIE ") || find(b"Chrome/"))
        && !find(b"Opera")
}

/// What `Server` says.
pub fn server_name(tokens: ServerTokens) -> &'static str {
    match tokens {
        ServerTokens::Off => "yorozu",
        ServerTokens::On | ServerTokens::Build => concat!("yorozu/", env!("CARGO_PKG_VERSION")),
    }
}

/// After these the connection's bytes cannot be trusted to be a next request.
fn closes(status: u16) -> bool {
    matches!(status, 400 | 413 | 414 | 494..=497 | 500 | 501)
}

fn title(status: u16) -> Option<String> {
    let known = matches!(status, 301..=303 | 307 | 308 | 400..=416 | 421 | 429 | 494..=497 | 500..=505 | 507);
    let (number, text) = match status {
        494 => (400, "Request Header Or Cookie Too Large"),
        495 => (400, "The SSL certificate error"),
        496 => (400, "No required SSL certificate was sent"),
        497 => (400, "The plain HTTP request was sent to HTTPS port"),
        302 => (302, "Found"),
        401 => (401, "Authorization Required"),
        303 => (303, "See Other"),
        other => (other, reason(other)),
    };
    known.then(|| format!("{number} {text}"))
}
