//! An `acme_issuer` block.

use crate::challenges::Kind;
use crate::identifier::KeyKind;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::Uri;
use rustls::ClientConfig;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_tls::client;
use yorozu_tls::pem::PemFiles;

/// An issuer, as a configuration has it.
#[derive(Debug)]
pub struct Issuer {
    pub name: String,
    pub uri: Uri,
    pub challenge: Kind,
    pub contacts: Vec<String>,
    /// `external_account_key`: the identifier, and the key.
    pub external_account: Option<(String, Secret)>,
    pub profile: Option<Profile>,
    pub accepts_terms: bool,
    pub common_name_in_csr: bool,
    pub folder: Option<PathBuf>,
    /// The account's key where it is a file of the operator's, in PKCS#8.
    pub account_key: Option<Secret>,
    /// Towards the issuer.
    pub tls: Arc<ClientConfig>,
}

/// A key, which no message shows.
pub struct Secret(pub Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// `profile NAME [require]`
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Profile {
    pub name: String,
    pub is_required: bool,
}

/// What its lines have said so far.
#[derive(Default)]
pub(crate) struct Draft {
    uri: Option<Uri>,
    account_key: Option<AccountKey>,
    challenge: Option<Kind>,
    contacts: Vec<String>,
    external_account: Option<(String, Secret)>,
    profile: Option<Profile>,
    accepts_terms: Option<()>,
    common_name_in_csr: Option<bool>,
    folder: Option<Option<PathBuf>>,
    trusted: Option<PathBuf>,
    verifies: Option<bool>,
}

enum AccountKey {
    Made,
    File(Secret),
}

fn once<T>(place: &mut Option<T>, args: &Args<'_>, value: T) -> Result<(), ValueError> {
    match place.replace(value) {
        Some(_) => Err(args.duplicate()),
        None => Ok(()),
    }
}

impl Draft {
    pub(crate) fn read(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        match args.name {
            "uri" => once(&mut self.uri, args, uri(args)?),
            "account_key" => once(&mut self.account_key, args, account_key(args)?),
            "challenge" => once(&mut self.challenge, args, challenge(args)?),
            "contact" => {
                self.contacts.push(contact(args)?);
                Ok(())
            }
            "external_account_key" => {
                once(&mut self.external_account, args, external_account(args)?)
            }
            "profile" => once(&mut self.profile, args, profile(args)?),
            "accept_terms_of_service" => once(&mut self.accepts_terms, args, ()),
            "common_name_in_csr" => {
                once(&mut self.common_name_in_csr, args, bool::from_args(args)?)
            }
            "state_path" => once(&mut self.folder, args, folder(args)?),
            "ssl_trusted_certificate" => {
                let path = args.env.conf_prefix.join(args.text(0));
                once(&mut self.trusted, args, path)
            }
            "ssl_verify" => once(&mut self.verifies, args, bool::from_args(args)?),
            _ => Err(args.invalid_value()),
        }
    }

    /// # Errors
    /// What is missing, or does not go together.
    pub(crate) fn finish(self, name: String, env: &Env) -> Result<Issuer, ValueError> {
        let uri = self.uri.ok_or_else(|| ValueError::new("\"uri\" is missing"))?;
        let is_made = !matches!(self.account_key, Some(AccountKey::File(_)));
        if !is_made && self.external_account.is_some() {
            return Err(ValueError::new(
                "\"account_key\" with a file and \"external_account_key\" exclude each other: the ACME library registers only keys of its own with an external account",
            ));
        }
        let folder = self.folder.unwrap_or_else(|| Some(env.prefix_path(&format!("acme_{name}"))));
        Ok(Issuer {
            uri,
            challenge: self.challenge.unwrap_or_default(),
            contacts: self.contacts,
            external_account: self.external_account,
            profile: self.profile,
            accepts_terms: self.accepts_terms.is_some(),
            common_name_in_csr: self.common_name_in_csr.unwrap_or(false),
            folder,
            account_key: match self.account_key {
                Some(AccountKey::File(key)) => Some(key),
                _ => None,
            },
            tls: tls(self.verifies.unwrap_or(true), self.trusted.as_deref(), &name, env)?,
            name,
        })
    }
}

fn uri(args: &Args<'_>) -> Result<Uri, ValueError> {
    let uri: Uri = args.text(0).parse().map_err(|_| args.invalid_value())?;
    let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
    if is_known && uri.host().is_some() { Ok(uri) } else { Err(args.invalid_value()) }
}

fn account_key(args: &Args<'_>) -> Result<AccountKey, ValueError> {
    const OTHERS: &str = "the ACME library signs with ECDSA over P-256 alone";
    let text = args.text(0);
    match KeyKind::parse(&text)? {
        Some(KeyKind::Ecdsa(256)) => Ok(AccountKey::Made),
        Some(_) => Err(ValueError(format!("\"account_key {text}\" is not supported: {OTHERS}"))),
        None => {
            let path = args.env.conf_prefix.join(&text);
            let files = args.env.shared::<PemFiles>().clone();
            let key = files.key(&path, &[]).map_err(ValueError)?;
            let key = EcdsaKeyPair::from_private_key_der(
                &ECDSA_P256_SHA256_FIXED_SIGNING,
                key.secret_der(),
            );
            let key = key.ok().and_then(|key| key.to_pkcs8v1().ok());
            let refused = || ValueError(format!("cannot load account key \"{text}\": {OTHERS}"));
            Ok(AccountKey::File(Secret(key.ok_or_else(refused)?.as_ref().to_vec())))
        }
    }
}

fn challenge(args: &Args<'_>) -> Result<Kind, ValueError> {
    match args.word(0) {
        b"http" | b"http-01" => Ok(Kind::Http),
        b"tls-alpn" | b"tls-alpn-01" => Ok(Kind::TlsAlpn),
        _ => Err(ValueError(format!("unsupported challenge: {}", args.text(0)))),
    }
}

fn contact(args: &Args<'_>) -> Result<String, ValueError> {
    let text = args.text(0);
    if text.is_empty() {
        return Err(args.invalid_value());
    }
    // RFC 3986, section 3.1.
    let has_scheme = text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    });
    Ok(if has_scheme { text } else { format!("mailto:{text}") })
}

fn external_account(args: &Args<'_>) -> Result<(String, Secret), ValueError> {
    let (name, text) = (args.text(0), args.text(1));
    if name.is_empty() || text.is_empty() {
        return Err(args.invalid_value());
    }
    let encoded = match text.strip_prefix("data:") {
        Some(data) => data.as_bytes().to_vec(),
        None => {
            let path = args.env.conf_prefix.join(&text);
            let files = args.env.shared::<PemFiles>().clone();
            files.bytes(&path, "external account key").map_err(ValueError)?.to_vec()
        }
    };
    let encoded = encoded.trim_ascii();
    let end = encoded.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let key = BASE64_URL_SAFE_NO_PAD.decode(&encoded[..end]);
    let key = key.map_err(|_| {
        ValueError(format!("\"{}\" directive invalid base64url encoded value", args.name))
    })?;
    Ok((name, Secret(key)))
}

fn profile(args: &Args<'_>) -> Result<Profile, ValueError> {
    let is_required = match args.word(1) {
        b"" => false,
        b"require" => true,
        other => return Err(args.invalid_parameter(other)),
    };
    Ok(Profile { name: args.text(0), is_required })
}

fn folder(args: &Args<'_>) -> Result<Option<PathBuf>, ValueError> {
    match args.word(0) {
        b"" => Err(args.invalid_value()),
        b"off" => Ok(None),
        _ => Ok(Some(args.env.prefix_path(&args.text(0)))),
    }
}

/// How the issuer's server is believed.
fn tls(
    verifies: bool,
    trusted: Option<&Path>,
    name: &str,
    env: &Env,
) -> Result<Arc<ClientConfig>, ValueError> {
    let files = env.shared::<PemFiles>().clone();
    if !verifies {
        return client::settings(None).config(None, &files);
    }
    if trusted.is_none() && client::system_authorities(&files).is_none() {
        env.warn(format!(
            "no certificates of authorities on this system: acme issuer \"{name}\" is not believed; name some by \"ssl_trusted_certificate\""
        ));
    }
    client::believing(trusted, &files)
}
