//! `charset`: says in which encoding a text is, and converts it by a `charset_map`.

pub mod map;

use super::compress::gzip::MimeTypes;
use bytes::Bytes;
use map::Recoding;
use std::rc::Rc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::shared::SharedType;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::content_type::{parameter, with_charset};
use yorozu_kernel::exchange::recode::Rewriting;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module = Module::new("http_charset", || [DIRECTIVES, map::DIRECTIVES].concat())
    .with(&[silent::<Draft>])
    .sharing(&[SharedType::of::<map::Tables>()]);

/// `charset charset | off`
#[derive(Clone, Debug, Default)]
pub struct Charset(Option<Template>);

impl Setting for Charset {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(Self(match args.word(0) {
            b"off" => None,
            _ => Some(SourceCharset::from_args(args)?.0),
        }))
    }
}

/// `source_charset charset`
#[derive(Clone, Debug)]
pub struct SourceCharset(Template);

impl Setting for SourceCharset {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        // As nginx: a variable is all of it, or there is none.
        let charset = match args.word(0) {
            name @ [b'$', ..] => Template::compile(name, args.env)?,
            name => Template::literal(Bytes::copy_from_slice(name)),
        };
        if let Some(name) = charset.as_literal() {
            args.env.shared::<map::Tables>().name(&name);
        }
        Ok(Self(charset))
    }
}

const CONTEXTS: Contexts = HTTP_SERVER_LOCATION | LOCATION_IF;

settings! {
    inherit = Draft::inherit, check = check;
    /// The charset that is added to `Content-Type`.
    charset: Charset = "off", ONE, CONTEXTS;
    /// Content types, besides `text/html`, to which it is added.
    charset_types: MimeTypes = "text/xml text/plain text/vnd.wap.wml application/javascript application/rss+xml", ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Whether upstream responses that state another charset are converted to it.
    override_charset: bool = "off", ONE, CONTEXTS;
    /// The charset of texts that state none; if it differs from `charset`, they are converted by a `charset_map`.
    source_charset: Option<SourceCharset> = none, ONE, CONTEXTS;
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
    let charset = charset.value_within(exchange, response);
    (!charset.is_empty() && &charset[..] != b"off").then_some(charset)
}

/// Says the charset, and converts to it.
///
/// # Source
/// nginx, `ngx_http_charset_filter_module`.
pub fn filter(exchange: &mut Exchange, response: &mut Response) {
    let config = Rc::clone(&exchange.conf);
    let conf = config.location(exchange.location).of::<Conf>();
    if response.content_type.is_empty() {
        return;
    }
    let of_upstream = response.charset.take().filter(|_| !exchange.is_subrequest());
    let wanted = match (of_upstream, &exchange.charset) {
        // As nginx: an upstream may choose among those that the configuration names somewhere.
        (Some(charset), _) if !config.shared.of::<map::Tables>().is_named(&charset) => {
            let name = String::from_utf8_lossy(&charset);
            let text = format!("unknown charset \"{name}\" to override");
            error::request(exchange, Level::Error, &text);
            None
        }
        (Some(charset), _) => Some(charset),
        (None, Some(charset)) => Some(charset.clone()),
        (None, None) => wanted(exchange, response, conf),
    };
    let Some(charset) = wanted else { return };
    let source = said(&response.content_type).or_else(|| {
        conf.source_charset.as_ref().map(|source| source.0.value_within(exchange, response))
    });
    if !exchange.is_subrequest() {
        exchange.charset = Some(charset.clone());
    }
    if let Some(source) = source.filter(|source| !source.eq_ignore_ascii_case(&charset)) {
        if response.field(b"content-encoding").is_some() {
            // It cannot be converted.
            return;
        }
        let key = (source.to_ascii_lowercase().into(), charset.to_ascii_lowercase().into());
        let Some(table) = config.shared.of::<map::Tables>().by_names.get(&key) else {
            let [from, to] = [&source, &charset].map(|name| String::from_utf8_lossy(name));
            let text = format!("no \"charset_map\" between the charsets \"{from}\" and \"{to}\"");
            error::request(exchange, Level::Error, &text);
            return;
        };
        let recoder = Box::new(Rewriting(Recoding::new(table)));
        if table.keeps_length() {
            response.recoder = Some(recoder);
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
    response.apply_recoder();
}

/// Checks that there is a table where the configuration wants a conversion.
///
/// # Errors
/// There is none.
pub fn check(conf: &Conf, env: &Env) -> Result<(), ValueError> {
    let (Some(source), Some(charset)) = (&conf.source_charset, &conf.charset.0) else {
        return Ok(());
    };
    let (Some(source), Some(charset)) = (source.0.as_literal(), charset.as_literal()) else {
        return Ok(());
    };
    let key = (source.to_ascii_lowercase().into(), charset.to_ascii_lowercase().into());
    if source.eq_ignore_ascii_case(&charset)
        || env.shared::<map::Tables>().by_names.contains_key(&key)
    {
        return Ok(());
    }
    let [from, to] = [&source, &charset].map(|name| String::from_utf8_lossy(name));
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
    }
}
