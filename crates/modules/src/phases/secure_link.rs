//! `secure_link`: links that only the site can make, and that expire.

use bytes::Bytes;
use md5::{Digest as _, Md5};
use std::rc::Rc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::credentials::decode_base64;
use yorozu_kernel::exchange::variables::{Row, Variable};

/// The module.
pub const MODULE: Module = Module::new("http_secure_link", || DIRECTIVES.to_vec())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[
    ("secure_link", Variable::OfTexts(value)),
    ("secure_link_expires", Variable::OfTexts(expires)),
];

settings! {
    inherit = inherit, check = check;
    /// The link's checksum and, after a comma, when it expires, in seconds since 1970.
    secure_link: Option<Template> = none, ONE, HTTP_SERVER_LOCATION;
    /// What the checksum is computed from.
    secure_link_md5: Option<Template> = none, ONE, HTTP_SERVER_LOCATION;
    /// The secret of links of the form `/prefix/checksum/link`.
    secure_link_secret: Option<Bytes> = none, ONE, HTTP_SERVER_LOCATION;
}

/// Takes over what the enclosing block says; as nginx, nothing that is of the other form of link than the block's own.
pub fn inherit(draft: &mut Draft, outer: &Draft) {
    if draft.secure_link_secret.written().is_some() {
        return;
    }
    draft.secure_link.inherit(&outer.secure_link);
    draft.secure_link_md5.inherit(&outer.secure_link_md5);
    if draft.secure_link.written().is_none() && draft.secure_link_md5.written().is_none() {
        draft.secure_link_secret.inherit(&outer.secure_link_secret);
    }
}

fn check(conf: &Conf, _: &Env) -> Result<(), ValueError> {
    let is_newer = conf.secure_link.is_some() || conf.secure_link_md5.is_some();
    if conf.secure_link_secret.is_none() || !is_newer {
        return Ok(());
    }
    Err(ValueError::new(
        "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"",
    ))
}

/// `$secure_link`; `None`: not found, the link is not genuine.
///
/// # Source
/// nginx, `ngx_http_secure_link_module`: `1`, `0` if it has expired; with a secret the link itself.
pub fn value(exchange: &mut Exchange) -> Option<Bytes> {
    let config = Rc::clone(&exchange.conf);
    let conf = config.location(exchange.location).of::<Conf>();
    if let Some(secret) = &conf.secure_link_secret {
        return old_form(exchange, secret);
    }
    let (link, of) = (conf.secure_link.as_ref()?, conf.secure_link_md5.as_ref()?);
    let said = link.value(exchange);
    let mut parts = said.splitn(2, |byte| *byte == b',');
    let sum = decode_base64(parts.next().unwrap_or_default())?;
    let expires = match parts.next() {
        Some(digits) => Some(seconds(digits)?),
        None => None,
    };
    let wanted = Md5::digest(of.value(exchange));
    if sum.len() != wanted.len() || sum[..] != wanted[..] {
        return None;
    }
    let is_over = expires.is_some_and(|expires| expires < exchange.now());
    Some(Bytes::from_static(if is_over { b"0" } else { b"1" }))
}

/// `$secure_link_expires`
pub fn expires(exchange: &mut Exchange) -> Option<Bytes> {
    let config = Rc::clone(&exchange.conf);
    let said = config.location(exchange.location).of::<Conf>().secure_link.as_ref()?;
    let said = said.value(exchange);
    let at = said.iter().position(|byte| *byte == b',')?;
    seconds(&said[at + 1..]).map(|_| said.slice(at + 1..))
}

fn seconds(digits: &[u8]) -> Option<i64> {
    let seconds = yorozu_conf::value::number(digits)?;
    i64::try_from(seconds).ok().filter(|seconds| *seconds > 0)
}

/// `/prefix/checksum/link`, the checksum being of the link and the secret.
fn old_form(exchange: &Exchange, secret: &[u8]) -> Option<Bytes> {
    // As it was sent, with its arguments: what is not signed counts for nothing.
    let uri = exchange.request.target();
    let start = uri.iter().skip(1).position(|byte| *byte == b'/')? + 2;
    let rest = uri.get(start..)?;
    let end = rest.iter().position(|byte| *byte == b'/')?;
    let (sum, link) = (&rest[..end], &rest[end + 1..]);
    if sum.len() != 32 || link.is_empty() {
        return None;
    }
    let wanted = Md5::new().chain_update(link).chain_update(secret).finalize();
    let shown = base16ct::lower::encode_string(&wanted);
    sum.eq_ignore_ascii_case(shown.as_bytes()).then(|| Bytes::copy_from_slice(link))
}
