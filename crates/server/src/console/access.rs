//! Who may look at the console, and who may purge with it.
//!
//! | written in its location | who is let in |
//! | --- | --- |
//! | `allow`, `deny`, `auth_basic`, `auth_request` | whom they let in |
//! | `token=FILE` | who knows the token: `Authorization: Bearer`, or the cookie that `/login` gives for it |
//! | both | who satisfies both |
//! | none of them | this machine, and not through a proxy |
//!
//! The cookie is made of the token, and the token cannot be made of the cookie. Both are compared in constant time. Neither
//! stands in a URL, which logs would have.

use crate::control::check_token;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use std::net::IpAddr;
use yorozu_http::field;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::files::read_regular;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::forwarded;
use yorozu_kernel::exchange::outcome::Permission;
use yorozu_kernel::logging::error;
use yorozu_modules::phases::access;

/// Name of the cookie.
const COOKIE: &[u8] = b"yorozu_console";
/// What a `console` line says.
#[derive(Clone, Default)]
pub(super) struct Rights {
    token: Option<Box<[u8]>>,
    may_write: bool,
    shows_args: bool,
}

impl std::fmt::Debug for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rights").field("may_write", &self.may_write).finish_non_exhaustive()
    }
}

impl Rights {
    /// # Errors
    /// An unknown parameter, or a token that cannot be read or is short.
    pub(super) fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut rights = Self::default();
        let mut seen = Vec::new();
        for word in args.words {
            let name = word.split(|byte| *byte == b'=').next().unwrap_or_default();
            if seen.contains(&name) {
                return Err(args.invalid_parameter(word));
            }
            seen.push(name);
            match &word[..] {
                b"write=on" => rights.may_write = true,
                b"args=on" => rights.shows_args = true,
                b"write=off" | b"args=off" => {}
                word => {
                    let Some(file) = word.strip_prefix(b"token=") else {
                        return Err(args.invalid_parameter(word));
                    };
                    rights.token = Some(token(file, args)?);
                }
            }
        }
        Ok(rights)
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether this client may purge and warm: one that was let in by more than being on this machine. A proxy on this
    /// machine that says nothing of whom it passes on looks like one.
    pub(super) fn may_write(&self, exchange: &Exchange) -> bool {
        self.may_write && (self.token.is_some() || is_let_in(exchange))
    }

    pub(super) fn shows_args(&self) -> bool {
        self.shows_args
    }

    /// A browser can be led to this address under a name of another site (DNS rebinding). Where the address alone lets it
    /// in, the name has to be this server's: what a browser knows by heart it does not say under another name.
    ///
    /// # Errors
    /// It is another name.
    pub(super) fn admit_host(&self, exchange: &mut Exchange) -> Result<(), String> {
        // With `satisfy any` the address may have been enough.
        if self.token.is_some() || exchange.pass.is_let_in_by_credentials {
            return Ok(());
        }
        let host = String::from_utf8_lossy(&exchange.request.host).into_owned();
        let is_ip = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let is_local = host == "localhost" || host.ends_with(".localhost") || host.is_empty();
        match is_ip || is_local || crate::control::purge_api::whose_host(exchange).0 {
            true => Ok(()),
            false => Err(format!("\"{host}\" is no server_name of the console's server")),
        }
    }

    /// # Errors
    /// Why the client is not let in.
    pub(super) fn admit(&self, exchange: &Exchange) -> Result<(), &'static str> {
        if let Some(token) = &self.token {
            return match is_known(exchange, token) {
                true => Ok(()),
                false => Err("the token is missing or wrong"),
            };
        }
        match is_let_in(exchange) || forwarded::is_from_here(exchange) {
            true => Ok(()),
            false => Err("only this machine may: allow, auth_basic or token= let others in"),
        }
    }

    /// The cookie for who knows the token.
    ///
    /// # Errors
    /// It is wrong, or there is none.
    pub(super) fn login(&self, exchange: &Exchange, said: &[u8]) -> Result<Vec<u8>, &'static str> {
        let token = self.token.as_ref().ok_or("this console has no token")?;
        if verify_slices_are_equal(said.trim_ascii(), token).is_err() {
            return Err("the token is missing or wrong");
        }
        let path = exchange.uri.strip_suffix(b"login").unwrap_or(b"/");
        let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b';';
        let path = if path.iter().all(is_plain) { path } else { b"/" };
        let secure: &[u8] = if exchange.is_https() { b"; Secure" } else { b"" };
        let value = session(token);
        let rest = b"; HttpOnly; SameSite=Strict; Path=";
        Ok([COOKIE, b"=", value.as_bytes(), rest, path, secure].concat())
    }
}

/// Whether the location lets the client in by a rule of its own; that it forbids others does not.
fn is_let_in(exchange: &Exchange) -> bool {
    let location = exchange.conf.location(exchange.location);
    exchange.pass.is_let_in_by_credentials
        || access::check(exchange, location.of::<access::Conf>()) == Permission::Allow
}

/// The token in a file: its first line.
fn token(file: &[u8], args: &Args<'_>) -> Result<Box<[u8]>, ValueError> {
    let path = args.env.prefix_path(&String::from_utf8_lossy(file));
    let text = read_regular(&path).map_err(|problem| {
        let why = error::os_error(&problem);
        ValueError(format!("cannot read the token in \"{}\" ({why})", path.display()))
    })?;
    let token = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    check_token(token)?;
    Ok(token.into())
}

/// What the cookie says.
fn session(token: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, token);
    base16ct::lower::encode_string(hmac::sign(&key, b"yorozu console, session 1").as_ref())
}

fn is_known(exchange: &Exchange, token: &[u8]) -> bool {
    let said = exchange.request.known(exchange.request.known.authorization);
    if let Some(said) = said.and_then(|value| value.strip_prefix(b"Bearer ")) {
        return verify_slices_are_equal(said, token).is_ok();
    }
    let wanted = session(token);
    let mut cookies = exchange.request.values(b"cookie");
    cookies.any(|line| {
        field::cookie(line, COOKIE)
            .is_some_and(|said| verify_slices_are_equal(said, wanted.as_bytes()).is_ok())
    })
}

/// Whether a browser says that another site's page asks: it cannot read the answer, and shall not take a viewer's place.
///
/// # Errors
/// It does.
pub(super) fn is_not_foreign(exchange: &Exchange) -> Result<(), &'static str> {
    match exchange.request.field(b"sec-fetch-site") {
        Some(site) if site != b"same-origin" && site != b"none" => {
            Err("the request is another site's")
        }
        _ => Ok(()),
    }
}

/// Whether a request that changes something comes from the console's own page, or from a program: what a page of another
/// site has a browser send says where it is from, and cannot have these fields.
///
/// # Errors
/// It does not, or says nothing of it.
pub(super) fn is_from_itself(exchange: &Exchange) -> Result<(), &'static str> {
    const FOREIGN: &str = "the request is another site's";
    let request = &exchange.request;
    if let Some(site) = request.field(b"sec-fetch-site") {
        return if site == b"same-origin" { Ok(()) } else { Err(FOREIGN) };
    }
    if let Some(origin) = request.field(b"origin") {
        let origin = origin.strip_prefix(b"https://").or_else(|| origin.strip_prefix(b"http://"));
        let is_own = origin.is_some_and(|origin| origin.eq_ignore_ascii_case(request.authority()));
        return if is_own { Ok(()) } else { Err(FOREIGN) };
    }
    let authorization = request.known(request.known.authorization);
    match authorization.is_some_and(|value| value.starts_with(b"Bearer ")) {
        true => Ok(()),
        false => Err("the request has neither Sec-Fetch-Site nor Origin"),
    }
}
