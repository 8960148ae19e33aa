//! `charset`: says in which encoding a text is, and converts it by a `charset_map`.

pub mod map;

use super::compress::Coder;
use super::compress::gzip::MimeTypes;
use crate::config::directive::*;
use crate::config::env::Env;
use crate::config::template::Template;
use crate::exchange::Exchange;
use crate::exchange::response::Response;
use crate::logging::error::{self, Level};
use bytes::Bytes;
use map::Recoding;
use std::rc::Rc;

/// `charset charset | off`
#[derive(Clone, Debug, Default)]
pub struct Charset(Option<Template>);

impl Setting for Charset {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(Self(match args.word(0) {
            b"off" => None,
            text => Some(Template::compile(text, args.env)?),
        }))
    }
}

const CONTEXTS: Contexts = HTTP_SERVER_LOCATION | LOCATION_IF;

settings! {
    in charset;
    /// The charset that is added to `Content-Type`.
    charset: Charset = "off", ONE, CONTEXTS;
    /// Types of content, besides `text/html`, to which it is added.
    charset_types: MimeTypes = "text/xml text/plain text/vnd.wap.wml application/javascript application/rss+xml", ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Whether answers of a gateway are converted to it that say another one.
    override_charset: bool = "off", ONE, CONTEXTS;
    /// The charset that texts are in which say none; one that differs from `charset` is converted by a `charset_map`.
    source_charset: Option<Bytes> = none, ONE, CONTEXTS;
}

/// Where the parameter `charset` begins, `;` included (RFC 9110, section 8.3.1).
fn parameter(content_type: &[u8]) -> Option<usize> {
    let lower = content_type.to_ascii_lowercase();
    let mut starts = memchr::memchr_iter(b';', &lower);
    starts.find(|at| lower[at + 1..].trim_ascii_start().starts_with(b"charset="))
}

/// Adds the charset, unless the type has one or there is none.
pub fn complete(content_type: &mut Bytes, charset: &[u8]) {
    if !content_type.is_empty() && parameter(content_type).is_none() {
        *content_type = with_charset(content_type, charset);
    }
}

fn with_charset(content_type: &[u8], charset: &[u8]) -> Bytes {
    [content_type, b"; charset=", charset].concat().into()
}

/// The charset a type says.
fn said(content_type: &Bytes) -> Option<Bytes> {
    let start = parameter(content_type)?;
    let at = start + memchr::memchr(b'=', &content_type[start..])? + 1;
    let value = content_type.slice(at..);
    let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
    let value = value[..end].trim_ascii();
    let value = value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value);
    Some(Bytes::copy_from_slice(value))
}

/// The charset a location wants for the response, if any.
fn wanted(exchange: &mut Exchange, response: &Response, conf: &Conf) -> Option<Bytes> {
    let charset = conf.charset.0.as_ref()?;
    let is_due = match parameter(&response.content_type) {
        Some(_) => conf.override_charset,
        None => conf.charset_types.has(&response.content_type),
    };
    if !is_due {
        return None;
    }
    let charset = charset.value(exchange);
    (!charset.is_empty() && &charset[..] != b"off").then_some(charset)
}

/// Says the charset, and converts to it.
///
/// # Source
/// nginx, `ngx_http_charset_filter_module`.
pub fn filter(exchange: &mut Exchange, response: &mut Response) {
    let config = Rc::clone(&exchange.conf);
    let conf = &config.location(exchange.location).charset;
    if response.content_type.is_empty() {
        return;
    }
    let wanted = match &exchange.charset {
        Some(charset) => Some(charset.clone()),
        None => wanted(exchange, response, conf),
    };
    let Some(charset) = wanted else { return };
    let source = said(&response.content_type).or_else(|| conf.source_charset.clone());
    if !exchange.is_subrequest {
        exchange.charset = Some(charset.clone());
    }
    if let Some(source) = source.filter(|source| !source.eq_ignore_ascii_case(&charset)) {
        if response.field(b"content-encoding").is_some() {
            // It cannot be converted.
            return;
        }
        let key = (source.to_ascii_lowercase().into(), charset.to_ascii_lowercase().into());
        let Some(table) = config.charsets.get(&key) else {
            let [from, to] = [&source, &charset].map(|name| String::from_utf8_lossy(name));
            let text = format!("no \"charset_map\" between the charsets \"{from}\" and \"{to}\"");
            error::request(exchange, Level::Error, &text);
            return;
        };
        let recoder = Coder::rewrite(Recoding::new(table));
        if table.keeps_length() {
            response.recoder = Some(Box::new(recoder));
        } else {
            response.change(recoder);
        }
    }
    let end = parameter(&response.content_type).unwrap_or(response.content_type.len());
    // As nginx: old browsers would take a redirect's charset for that of the next page.
    if !matches!(response.status, 301 | 302) {
        response.content_type = with_charset(&response.content_type[..end], &charset);
    }
}

/// Converts what is left to convert, byte for byte: of ranges only what is sent.
pub fn convert(_: &mut Exchange, response: &mut Response) {
    response.settle_recoding();
}

/// Is there a table where the configuration wants a conversion?
///
/// # Errors
/// There is none.
pub fn check(conf: &Conf, env: &Env) -> Result<(), ValueError> {
    let (Some(source), Some(charset)) = (&conf.source_charset, &conf.charset.0) else {
        return Ok(());
    };
    let Some(charset) = charset.as_literal() else { return Ok(()) };
    let key = (source.to_ascii_lowercase().into(), charset.to_ascii_lowercase().into());
    if source.eq_ignore_ascii_case(&charset) || env.charsets.borrow().contains_key(&key) {
        return Ok(());
    }
    let [from, to] = [source, &charset].map(|name| String::from_utf8_lossy(name));
    Err(ValueError(format!("no \"charset_map\" between the charsets \"{from}\" and \"{to}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_gets_one_charset() {
        let with = |text: &str| with_charset(text.as_bytes(), b"utf-8");
        assert_eq!(with("text/html"), "text/html; charset=utf-8");
        assert!(parameter(b"text/html;Charset=koi8-r").is_some());
        assert!(parameter(b"text/html; a=charset").is_none());
        let said =
            |text: &'static str| said(&Bytes::from_static(text.as_bytes())).unwrap_or_default();
        assert_eq!(said("text/html; charset=\"KOI8-R\"; a=b"), "KOI8-R");
        assert_eq!(said("text/html"), "");
        let error = crate::testing::try_config("http { charset a; source_charset b; server {} }");
        assert!(
            error.unwrap_err().contains("no \"charset_map\" between the charsets \"b\" and \"a\"")
        );
    }
}
