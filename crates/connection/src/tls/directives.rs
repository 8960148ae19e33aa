//! The directives of TLS towards clients.

use bytes::Bytes;
use yorozu_conf::{ConfError, Position, value};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::{ConfPath, LongTime, Size, ZONE_BYTES_MIN, word_enum};
use yorozu_tls::commands::Commands;
use yorozu_tls::kept::CertificateCache;
use yorozu_tls::names::{Curves, Protocols};
use yorozu_tls::pem::PasswordFile;

const HTTP_SERVER: Contexts = HTTP | SERVER;

settings! {
    written;
    /// The old way to enable TLS: with on, every address that has this as its default server uses it, as with "listen ... ssl".
    ssl: OldSwitch = "off", ONE, HTTP_SERVER;
    /// Size of the largest record sent: smaller ones arrive sooner, larger ones cost less.
    ssl_buffer_size: Size = "16k", ONE, HTTP_SERVER;
    /// Certificate, followed by its intermediates; once per type of key.
    ssl_certificate: Vec<Template> = none, ONE, HTTP_SERVER;
    /// How many certificates named by variables are kept, and for how long.
    ssl_certificate_cache: CertificateCache = "off", ONE_OR_MORE, HTTP_SERVER;
    /// Key of the certificate at the same position in the block.
    ssl_certificate_key: Vec<Template> = none, ONE, HTTP_SERVER;
    /// Ciphers for TLS 1.2, in OpenSSL's notation.
    ssl_ciphers: Bytes = "HIGH:!aNULL:!MD5", ONE, HTTP_SERVER;
    /// Authorities that clients are verified with, and whose names are sent to them.
    ssl_client_certificate: Option<ConfPath> = none, ONE, HTTP_SERVER;
    /// OpenSSL's own commands: CipherString, Ciphersuites, Groups, MinProtocol, MaxProtocol, Protocol, Options.
    ssl_conf_command: Commands = none, TWO, HTTP_SERVER;
    /// Revoked certificates of clients.
    ssl_crl: Option<ConfPath> = none, ONE, HTTP_SERVER;
    /// Whether requests are accepted before the handshake is complete, only with QUIC: those with methods other than
    /// GET and HEAD get 425, and those of a client that has not proved its address by a token wait.
    ssl_early_data: bool = "off", ONE, HTTP_SERVER;
    /// Groups for key exchange.
    ssl_ecdh_curve: Curves = "auto", ONE, HTTP_SERVER;
    /// Passwords for the keys, one per line.
    ssl_password_file: Option<PasswordFile> = none, ONE, HTTP_SERVER;
    /// Whether the server's cipher order is used instead of the client's.
    ssl_prefer_server_ciphers: bool = "off", ONE, HTTP_SERVER;
    /// TLS versions.
    ssl_protocols: Protocols = "TLSv1.2 TLSv1.3", ONE_OR_MORE, HTTP_SERVER;
    /// Whether handshakes that name this server are refused.
    ssl_reject_handshake: bool = "off", ONE, HTTP_SERVER;
    /// Where sessions are stored for clients that return without a ticket.
    ssl_session_cache: SessionCache = "none", ONE_OR_TWO, HTTP_SERVER;
    /// Ticket keys: the first encrypts, all decrypt; if not set, they are generated and rotated.
    ssl_session_ticket_key: Vec<ConfPath> = none, ONE, HTTP_SERVER;
    /// Whether clients keep their own sessions, encrypted.
    ssl_session_tickets: bool = "on", ONE, HTTP_SERVER;
    /// How long a session can be resumed.
    ssl_session_timeout: LongTime = "5m", ONE, HTTP_SERVER;
    /// Whether the certificate's OCSP response is sent with it.
    ssl_stapling: bool = "off", ONE, HTTP_SERVER;
    /// OCSP response to send, in DER.
    ssl_stapling_file: Option<ConfPath> = none, ONE, HTTP_SERVER;
    /// OCSP responder to query instead of the one that the certificate names.
    ssl_stapling_responder: Option<Bytes> = none, ONE, HTTP_SERVER;
    /// Authorities that clients are verified with, and whose names are not sent to them.
    ssl_trusted_certificate: Option<ConfPath> = none, ONE, HTTP_SERVER;
    /// Whether clients must, or may, present a certificate.
    ssl_verify_client: VerifyClient = "off", ONE, HTTP_SERVER;
    /// Intermediate certificates allowed between a client's and an authority's.
    ssl_verify_depth: u64 = "1", ONE, HTTP_SERVER;
}

word_enum! {
    /// `ssl_verify_client`
    VerifyClient {
        Off = "off",
        On = "on",
        Optional = "optional",
        /// A certificate with any signer.
        OptionalNoCa = "optional_no_ca",
    }
}

/// `ssl`
#[derive(Clone, Debug)]
pub struct OldSwitch {
    is_on: bool,
    /// Its line, for what is missing beside it.
    at: Option<Position>,
}

impl Setting for OldSwitch {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let is_on = bool::from_args(args)?;
        let at = args.env.line.borrow().clone();
        if at.is_some() {
            args.env.warn_here(
                "the \"ssl\" directive is deprecated, use the \"listen ... ssl\" directive instead",
            );
        }
        Ok(Self { is_on, at })
    }
}

impl Draft {
    /// Whether a server with these settings says `ssl on`.
    ///
    /// # Errors
    /// It lacks what it has to show then, in the words of the nginx that had the directive.
    pub fn is_switched_on(&self) -> Result<bool, ConfError> {
        let Some(OldSwitch { is_on: true, at: Some(at) }) = self.ssl.written() else {
            return Ok(false);
        };
        let none = Vec::new();
        let certificates = self.ssl_certificate.written().unwrap_or(&none);
        let keys = self.ssl_certificate_key.written().map_or(0, Vec::len);
        let missing = match certificates.get(keys) {
            None if !certificates.is_empty()
                || self.ssl_reject_handshake.written() == Some(&true) =>
            {
                return Ok(true);
            }
            None => "no \"ssl_certificate\" is defined for".to_owned(),
            Some(_) if keys == 0 => "no \"ssl_certificate_key\" is defined for".to_owned(),
            Some(lonely) => format!(
                "no \"ssl_certificate_key\" is defined for certificate \"{}\" and",
                String::from_utf8_lossy(&lonely.as_literal().unwrap_or_default())
            ),
        };
        Err(ValueError(format!("{missing} the \"ssl\" directive")).at(at))
    }
}

word_enum! {
    /// `ssl_ocsp`
    Ocsp {
        Off = "off",
        On = "on",
        Leaf = "leaf",
    }
}

/// `ssl_session_cache`
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SessionCache {
    /// What the last of `off`, `none` and `builtin` says: the number of sessions, or none.
    builtin: Option<Option<usize>>,
    /// Name and number of sessions.
    shared: Option<(String, usize)>,
}

impl SessionCache {
    /// Name and number of sessions, where any are stored.
    pub fn stored(&self) -> Option<(&str, usize)> {
        let shared = self.shared.as_ref().map(|(name, count)| (name.as_str(), *count));
        match self.builtin {
            // As nginx: whatever stands beside it.
            Some(None) => None,
            Some(Some(count)) => shared.or(Some(("builtin", count))),
            None => shared,
        }
    }
}

/// Sessions in a megabyte, as nginx's manual has it.
const SESSIONS_PER_MEGABYTE: u64 = 4000;
/// Sessions of a cache without a name.
const BUILTIN_SESSIONS: usize = 20_480;

impl Adds for SessionCache {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            let invalid = || {
                let word = String::from_utf8_lossy(word);
                ValueError(format!("invalid session cache \"{word}\""))
            };
            let text = std::str::from_utf8(word).map_err(|_| invalid())?;
            let mut parts = text.split(':');
            match (parts.next(), parts.next(), parts.next(), parts.next()) {
                (Some("off" | "none"), None, ..) => self.builtin = Some(None),
                (Some("builtin"), size, None, _) => {
                    let size = match size {
                        Some(size) => size.parse().map_err(|_| invalid())?,
                        None => BUILTIN_SESSIONS,
                    };
                    self.builtin = Some(Some(size));
                }
                (Some("shared"), Some(name), Some(size), None) if !name.is_empty() => {
                    let bytes = value::size(size.as_bytes()).ok_or_else(invalid)?;
                    if bytes < ZONE_BYTES_MIN {
                        return Err(ValueError(format!("session cache \"{text}\" is too small")));
                    }
                    args.env.named.borrow_mut().zone(name, "ssl_session_cache", bytes)?;
                    let count = bytes.saturating_mul(SESSIONS_PER_MEGABYTE) / (1024 * 1024);
                    let count = usize::try_from(count).unwrap_or(usize::MAX);
                    self.shared = Some((name.to_owned(), count));
                }
                _ => return Err(invalid()),
            }
        }
        Ok(())
    }
}

/// Rows with no effect, or none here.
pub const OTHERS: &[Directive] = &[
    Directive::row(
        "ssl_certificate_compression",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("certificates are sent as they are", once::<bool>),
        "Whether certificates are compressed.",
    ),
    Directive::row(
        "ssl_dhparam",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("the TLS library exchanges keys over curves only", once::<Bytes>),
        "Parameters for key exchange without curves.",
    ),
    Directive::row(
        "ssl_ocsp",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("no responder is queried about clients' certificates", never),
        "Whether an OCSP responder is queried about clients' certificates: must be off.",
    ),
    Directive::row(
        "ssl_ocsp_cache",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("no responder is queried about clients' certificates", once::<Bytes>),
        "Where OCSP responses about clients' certificates are kept.",
    ),
    Directive::row(
        "ssl_ocsp_responder",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("no responder is queried about clients' certificates", once::<Bytes>),
        "OCSP responder to query about clients' certificates, instead of the one that they name.",
    ),
    Directive::row(
        "ssl_stapling_verify",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored(
            "responses are always verified with the certificate's authority",
            once::<bool>,
        ),
        "Whether the responder's responses are verified.",
    ),
];

/// `ssl_ocsp`: who relies on it must not believe that it is done.
fn never(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    match Ocsp::from_args(args)? {
        Ocsp::Off => once::<Bytes>(block, args),
        Ocsp::On | Ocsp::Leaf => Err(ValueError::new(
            "\"ssl_ocsp\" is not supported: use \"ssl_crl\" for lists of revoked certificates",
        )),
    }
}
