//! An account with an issuer: taken up where there is one, or else registered.

use crate::certificate::Duty;
use crate::client::{Client, Sight};
use crate::issuer::Issuer;
use crate::state::{self, Folder};
use instant_acme::{Account, Error, ExternalAccountKey, Key, NewAccount};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use yorozu_kernel::logging::error::Level;
use yorozu_tls::pem::{PemFiles, key_text};

/// Most characters of what an issuer says that are shown; chosen, above what issuers write.
const SAID_MAX: usize = 1000;

/// Why there is no certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Failure {
    pub text: String,
    /// Whether it stays so until the configuration changes.
    pub is_final: bool,
    /// How long the issuer wants to be left alone.
    pub retry_after: Option<Duration>,
    /// The kind of an issuer's refusal, without `urn:ietf:params:acme:error:`.
    pub kind: Option<String>,
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self { text, is_final: false, retry_after: None, kind: None }
    }
}

impl Failure {
    pub(crate) fn of(error: &Error, sight: &Sight, finals: &[&str]) -> Self {
        const PREFIX: &str = "urn:ietf:params:acme:error:";
        let mut seen = sight.get();
        let Error::Api(problem) = error else {
            let text = match error {
                // What failed is in the text already.
                Error::Other(inner) => inner.to_string(),
                // What came is no answer of an issuer: of a server in front of it, or of another one.
                Error::Json(_) | Error::Str(_) => match seen.answered.take() {
                    Some(answered) => format!("{answered} ({error})"),
                    None => error.to_string(),
                },
                other => other.to_string(),
            };
            return Self { retry_after: seen.retry_after.take(), ..Self::from(plain(&text)) };
        };
        let kind = problem.r#type.as_deref();
        let kind = kind.map(|kind| kind.strip_prefix(PREFIX).unwrap_or(kind).to_owned());
        let mut text = problem.to_string();
        if let (Some("userActionRequired"), Some(terms)) = (kind.as_deref(), &seen.terms) {
            text +=
                &format!("; the terms are at {terms}, \"accept_terms_of_service\" agrees to them");
        }
        let is_final = kind.as_deref().is_some_and(|kind| finals.contains(&kind));
        Self { text: plain(&text), is_final, retry_after: seen.retry_after.take(), kind }
    }
}

/// What an issuer says, for a line of a log: it could be anything.
pub(crate) fn plain(said: &str) -> String {
    let mut rest = said.chars();
    let shown = rest.by_ref().take(SAID_MAX);
    let shown: String = shown.map(|char| if char.is_control() { ' ' } else { char }).collect();
    if rest.next().is_some() { shown + "..." } else { shown }
}

/// Refusals of an account that waiting does not change; nginx's.
const FINAL: [&str; 7] = [
    "badPublicKey",
    "badSignatureAlgorithm",
    "externalAccountRequired",
    "invalidContact",
    "malformed",
    "unsupportedContact",
    "userActionRequired",
];

/// An account that is in use.
pub(crate) struct Session {
    pub account: Account,
    pub sight: Sight,
}

/// Accounts that are on no disk, by issuer.
#[derive(Default)]
pub(crate) struct Accounts(RefCell<HashMap<(String, String), state::Account>>);

impl Accounts {
    fn get(&self, issuer: &Issuer) -> Option<state::Account> {
        self.0.borrow().get(&key_of(issuer)).cloned()
    }

    pub(crate) fn forget(&self, issuer: &Issuer) {
        self.0.borrow_mut().remove(&key_of(issuer));
    }
}

fn key_of(issuer: &Issuer) -> (String, String) {
    (issuer.name.clone(), issuer.uri.to_string())
}

/// Takes up the account with the issuer, or registers one.
///
/// # Errors
/// [`Failure`]
pub(crate) async fn open(
    duty: &Arc<Duty>,
    folder: Option<&Folder>,
    accounts: &Accounts,
) -> Result<Session, Failure> {
    let issuer = &duty.issuer;
    let sight = Sight::default();
    let builder =
        || Account::builder_with_http(Box::new(Client::start(Arc::clone(duty), sight.clone())));
    let uri = issuer.uri.to_string();
    let own = issuer.account_key.as_ref().map(|key| key_text(&key.0));
    let known = match folder {
        Some(folder) => folder.account(&uri, own.as_deref()),
        None => accounts.get(issuer),
    };
    let fail = |error: Error| {
        let mut failure = Failure::of(&error, &sight, &FINAL);
        failure.text += " while creating account";
        failure
    };
    if let Some(known) = known {
        match pkcs8(&known.key) {
            Some(key) => match builder().from_parts(known.url, key, uri.clone()).await {
                Ok(account) => return Ok(Session { account, sight }),
                // A key of nginx's module that is of another kind: a new account is registered.
                Err(Error::KeyRejected) => {}
                Err(error) => return Err(Failure::of(&error, &sight, &[])),
            },
            None => duty.log.process(
                Level::Warn,
                &format!("the account's key cannot be read, acme issuer: \"{}\"", issuer.name),
            ),
        }
    }
    let (account, key) = match &issuer.account_key {
        Some(key) => {
            let key = PrivatePkcs8KeyDer::from(key.0.clone());
            with_key(builder(), issuer, key).await.map_err(fail)?
        }
        None => with_new_key(builder(), issuer).await.map_err(fail)?,
    };
    let (id, name) = (plain(account.id()), &issuer.name);
    let text = format!("account \"{id}\" created, acme issuer: \"{name}\"");
    duty.log.process(Level::Notice, &text);
    let kept = state::Account { key: key_text(&key), url: account.id().to_owned() };
    match folder {
        Some(folder) => folder.keep_account(&uri, &kept, own.is_none())?,
        None => drop(accounts.0.borrow_mut().insert(key_of(issuer), kept)),
    }
    Ok(Session { account, sight })
}

async fn with_new_key(
    builder: instant_acme::AccountBuilder,
    issuer: &Issuer,
) -> Result<(Account, Vec<u8>), Error> {
    let contact: Vec<&str> = issuer.contacts.iter().map(String::as_str).collect();
    let wanted = NewAccount {
        contact: &contact,
        terms_of_service_agreed: issuer.accepts_terms,
        only_return_existing: false,
    };
    let external = issuer.external_account.as_ref();
    let external = external.map(|(name, key)| ExternalAccountKey::new(name.clone(), &key.0));
    let made = builder.create(&wanted, issuer.uri.to_string(), external.as_ref()).await?;
    let key = made.1.private_key().secret_pkcs8_der().to_vec();
    Ok((made.0, key))
}

/// With the operator's key. The library agrees to the terms in its own words then, so that without the operator's only an
/// account that exists is taken.
async fn with_key(
    builder: instant_acme::AccountBuilder,
    issuer: &Issuer,
    key: PrivatePkcs8KeyDer<'static>,
) -> Result<(Account, Vec<u8>), Error> {
    let pair = (Key::from_pkcs8_der(key.clone_key())?, PrivateKeyDer::Pkcs8(key.clone_key()));
    let uri = issuer.uri.to_string();
    let (account, _) = match issuer.accepts_terms {
        true => builder.create_from_key(pair, uri).await?,
        false => builder.from_key(pair, uri).await?,
    };
    let contacts: Vec<&str> = issuer.contacts.iter().map(String::as_str).collect();
    if !contacts.is_empty() {
        account.update_contacts(&contacts).await?;
    }
    Ok((account, key.secret_pkcs8_der().to_vec()))
}

fn pkcs8(pem: &str) -> Option<PrivatePkcs8KeyDer<'static>> {
    let path = PathBuf::from(format!("data:{pem}"));
    match PemFiles::default().key(&path, &[]).ok()? {
        PrivateKeyDer::Pkcs8(key) => Some(key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_issuer_says_is_one_line_of_bounded_length() {
        assert_eq!(plain("caa: ä\r\n\t\u{1b}[31m"), "caa: ä    [31m");
        assert_eq!(plain(&"ä".repeat(SAID_MAX)).chars().count(), SAID_MAX);
        assert_eq!(plain(&"ä".repeat(SAID_MAX + 1)), "ä".repeat(SAID_MAX) + "...");
    }
}
