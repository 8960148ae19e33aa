//! `charset`: says in which encoding a text is. Nothing is converted.

use super::compress::gzip::MimeTypes;
use crate::config::directive::*;
use crate::config::template::Template;
use crate::exchange::Exchange;
use crate::exchange::response::Response;
use bytes::Bytes;
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
    /// Whether answers are converted to it that say another one; needs a `charset_map`, which there is not.
    override_charset: bool = "off", ONE, CONTEXTS;
    /// The charset that texts are in; one that differs from `charset` would need a conversion, which there is not.
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

/// Adds the charset.
///
/// # Source
/// nginx, `ngx_http_charset_filter_module`.
pub fn filter(exchange: &mut Exchange, response: &mut Response) {
    let config = Rc::clone(&exchange.conf);
    let conf = &config.location(exchange.location).charset;
    let Some(charset) = &conf.charset.0 else { return };
    if response.content_type.is_empty() {
        return;
    }
    // One that is said already stays: nothing is converted, so another one would be wrong.
    let is_said = parameter(&response.content_type).is_some();
    if is_said || !conf.charset_types.has(&response.content_type) {
        return;
    }
    let charset = charset.value(exchange);
    if !charset.is_empty() && &charset[..] != b"off" {
        response.content_type = with_charset(&response.content_type, &charset);
    }
}

/// Would a conversion be needed?
///
/// # Errors
/// It would.
pub fn check(conf: &Conf) -> Result<(), ValueError> {
    let (Some(source), Some(charset)) = (&conf.source_charset, &conf.charset.0) else {
        return Ok(());
    };
    match charset.as_literal() {
        Some(charset) if !charset.eq_ignore_ascii_case(source) => {
            let [from, to] =
                [source, &charset].map(|name| String::from_utf8_lossy(name).into_owned());
            let text = format!("no \"charset_map\" between the charsets \"{from}\" and \"{to}\"");
            Err(ValueError(text))
        }
        _ => Ok(()),
    }
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
        let error = crate::testing::try_config("http { charset a; source_charset b; server {} }");
        assert!(
            error.unwrap_err().contains("no \"charset_map\" between the charsets \"b\" and \"a\"")
        );
    }
}
