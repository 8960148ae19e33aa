//! The directives.

use crate::certificate::Order;
use crate::config::Acme;
use crate::identifier::{self, Identifier, KeyKind};
use crate::issuer;
use std::sync::Arc;
use yorozu_conf::{ConfError, Directive as Line, Position};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::loader::Loader;
use yorozu_kernel::config::servers::{ServerId, ServerName};
use yorozu_kernel::config::types::name_and_size;

settings! {
    /// A certificate from an issuer for this server: for the names that follow, or else those of `server_name`; key= sets the type of its key (ecdsa:256, 384, 521; rsa:2048, 3072, 4096).
    acme_certificate: Option<Wish> = none, ONE_OR_MORE, SERVER;
}

/// `acme_certificate`
#[derive(Clone, Debug)]
pub struct Wish {
    issuer: String,
    identifiers: Vec<Identifier>,
    key: KeyKind,
}

impl Setting for Wish {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let issuer = args.text(0);
        if issuer.is_empty() {
            return Err(ValueError(format!("\"{}\" directive \"issuer\" is missing", args.name)));
        }
        let (mut identifiers, mut key) = (Vec::new(), KeyKind::default());
        for word in args.words.iter().skip(1) {
            let text = std::str::from_utf8(word).map_err(|_| args.invalid_value())?;
            if let Some(kind) = text.strip_prefix("key=") {
                let invalid =
                    || ValueError(format!("\"{}\" directive invalid \"key\" value", args.name));
                key = KeyKind::parse(kind)?.ok_or_else(invalid)?;
            } else if text.is_empty() {
                return Err(args.invalid_value());
            } else if text.starts_with("*.") {
                return Err(ValueError(format!("invalid server name: \"{text}\": {NO_WILDCARDS}")));
            } else {
                identifier::add(text, &mut identifiers)?;
            }
        }
        Ok(Self { issuer, identifiers, key })
    }
}

const NO_WILDCARDS: &str =
    "certificates for all names of a domain need the challenge dns-01, which is not supported";

/// These are read by [`open`]; their rows make them known and give them their place.
const READ_WITH_BLOCK: Action = Action::Set(|_, args| Err(args.invalid_value()));

const fn row(
    name: &'static str,
    arity: Arity,
    default: Option<&'static str>,
    doc: &'static str,
) -> Directive {
    let name = std::borrow::Cow::Borrowed(name);
    Directive { name, contexts: ACME_ISSUER, arity, default, doc, action: READ_WITH_BLOCK }
}

/// Rows that are read by hand, or not at all.
pub const OTHERS: &[Directive] = &[
    Directive::row(
        "acme_issuer",
        HTTP,
        Arity::ONE,
        Action::Open(open),
        "Names a certificate issuer (ACME).",
    ),
    Directive::row(
        "acme_shared_zone",
        HTTP,
        Arity::ONE,
        Action::Set(shared_zone),
        "Memory for the state of certificates; here it is allocated as needed.",
    ),
    row("uri", Arity::ONE, None, "URL of the issuer's directory."),
    row(
        "account_key",
        Arity::ONE,
        Some("ecdsa:256"),
        "Key of the account with the issuer: generated, or a file. Only ecdsa:256: the ACME library signs with no other.",
    ),
    row(
        "challenge",
        Arity::ONE,
        Some("http-01"),
        "How the issuer verifies that a name is this server's: http-01 over port 80, tls-alpn-01 over port 443.",
    ),
    row("contact", Arity::ONE, None, "Where the issuer can reach the operator; may be repeated."),
    row(
        "external_account_key",
        Arity::TWO,
        None,
        "Name and key, in base64url, of an external account that the issuer knows: in a file, or after data:.",
    ),
    Directive::row(
        "preferred_chain",
        ACME_ISSUER,
        Arity::ONE,
        Action::Refused(
            "the ACME library takes the chain that the issuer sends first, and no other",
        ),
        "Which of the issuer's chains is used.",
    ),
    row(
        "profile",
        Arity::ONE_OR_TWO,
        None,
        "Certificate profile, one of those that the issuer lists; with require, nothing is ordered if it is not listed.",
    ),
    row(
        "common_name_in_csr",
        Arity::ONE,
        Some("off"),
        "Whether the first name is also the subject's common name.",
    ),
    row(
        "ssl_trusted_certificate",
        Arity::ONE,
        None,
        "Authorities that the issuer's server is verified with; if not set, the system's.",
    ),
    row("ssl_verify", Arity::ONE, Some("on"), "Whether the issuer's server is verified."),
    row(
        "state_path",
        Arity::ONE,
        None,
        "Folder for the account, keys and certificates; if not set, acme_NAME; off: they are lost when the process ends.",
    ),
    row("accept_terms_of_service", Arity::NONE, None, "Agrees to the issuer's terms."),
];

fn shared_zone(_: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let Some(zone) = args.word(0).strip_prefix(b"zone=") else {
        return Err(ValueError(format!("\"{}\" must have \"zone\" parameter", args.name)));
    };
    let zone = String::from_utf8_lossy(zone);
    let is_size = |size: &str| yorozu_conf::value::size(size.as_bytes()).is_some();
    if !zone.split_once(':').is_some_and(|(name, size)| !name.is_empty() && is_size(size)) {
        return Err(ValueError(format!("invalid zone size \"{zone}\"")));
    }
    name_and_size(&zone)?;
    let mut acme = args.env.shared::<Acme>();
    if std::mem::replace(&mut acme.has_zone, true) { Err(args.duplicate()) } else { Ok(()) }
}

/// `acme_issuer NAME {}`
fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let env = loader.env;
    let name = String::from_utf8_lossy(&line.args[0]).into_owned();
    let fail = |text: &str| ValueError(format!("\"acme_issuer\" directive {text}")).at(&line.at);
    if name.is_empty() || name.contains('/') {
        return Err(fail("invalid value"));
    }
    if env.shared::<Acme>().issuers.contains_key(&name) {
        return Err(fail("is duplicate"));
    }
    let mut draft = issuer::Draft::default();
    for row in line.block.iter().flatten() {
        if let Action::Refused(why) = loader.row(ACME_ISSUER, row)?.action {
            let text = format!("\"{}\" is not supported: {why}", row.name_text());
            return Err(ValueError(text).at(&row.at));
        }
        let args = Args { name: &row.name_text(), words: &row.args, env };
        draft.read(&args).map_err(|error| error.at(&row.at))?;
    }
    let issuer = draft.finish(name.clone(), env).map_err(|error| error.at(&line.at))?;
    env.shared::<Acme>().issuers.insert(name, Arc::new(issuer));
    Ok(())
}

/// Binds a server to the certificate that it wants, once all issuers and names are known.
///
/// # Errors
/// The issuer is missing, or there is no name.
pub fn bind(server: &Block, id: ServerId, at: &Position, env: &Env) -> Result<(), ConfError> {
    let wish = server.drafts.written::<Draft>().and_then(|draft| draft.acme_certificate.written());
    let Some(Some(wish)) = wish else { return Ok(()) };
    let mut identifiers = wish.identifiers.clone();
    if identifiers.is_empty() {
        of_names(&server.server_names, &mut identifiers, env).map_err(|error| error.at(at))?;
    }
    let fail = |text: String| Err(ValueError(text).at(at));
    if identifiers.is_empty() {
        return fail("no identifiers found for \"acme_certificate\"".to_owned());
    }
    let mut acme = env.shared::<Acme>();
    let Some(issuer) = acme.issuers.get(&wish.issuer) else {
        return fail(format!("issuer \"{}\" is missing", wish.issuer));
    };
    let order = Order {
        issuer: wish.issuer.clone(),
        uri: issuer.uri.to_string(),
        folder: issuer.folder.clone(),
        identifiers,
        key: wish.key,
    };
    acme.bind(id.0, order);
    Ok(())
}

fn of_names(
    names: &[ServerName],
    identifiers: &mut Vec<Identifier>,
    env: &Env,
) -> Result<(), ValueError> {
    for name in names {
        match name {
            ServerName::Regex(_, text) => env.warn(format!(
                "\"acme_certificate\": unsupported regular expression in server_name: {text}"
            )),
            ServerName::Text(text) if text.is_empty() => {}
            ServerName::Text(text) if text.starts_with("*.") => env.warn(format!(
                "\"acme_certificate\": \"{text}\" in server_name is left out: {NO_WILDCARDS}"
            )),
            ServerName::Text(text) => identifier::add(text, identifiers)?,
        }
    }
    Ok(())
}
