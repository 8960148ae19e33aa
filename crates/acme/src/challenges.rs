//! What issuers ask of a server to see that it has a name: http-01 (RFC 8555, section 8.3) and tls-alpn-01 (RFC 8737).

use crate::config::Acme;
use crate::identifier::Identifier;
use bytes::Bytes;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, crypto::CryptoProvider};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::{Exchange, Role};
use yorozu_tls::provider;

/// Where http-01 asks.
const PATH: &[u8] = b"/.well-known/acme-challenge/";
/// The protocol that tls-alpn-01 asks for.
pub const PROTOCOL: &[u8] = b"acme-tls/1";

/// How an issuer sees that a name is this server's.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Kind {
    #[default]
    Http,
    TlsAlpn,
}

/// The questions that are expected.
#[derive(Debug, Default)]
pub struct Challenges {
    /// How many there are: usually none, and nothing is locked.
    count: AtomicUsize,
    expected: Mutex<Expected>,
}

#[derive(Debug, Default)]
struct Expected {
    /// Answers by token.
    http: Answers<Bytes>,
    /// Settings for a handshake, by the name that is asked for.
    alpn: Answers<Arc<ServerConfig>>,
    /// How many questions were expected so far.
    serial: u64,
}

/// Answers by what is asked. Several may expect the same: an issuer may have two orders share an authorization, and its
/// token. Each is numbered, and the last one is given.
#[derive(Debug)]
struct Answers<T>(HashMap<String, Vec<(u64, T)>>);

impl<T> Default for Answers<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> Answers<T> {
    fn put(&mut self, asked: String, number: u64, answer: T) {
        self.0.entry(asked).or_default().push((number, answer));
    }

    fn get(&self, asked: &[u8]) -> Option<T> {
        let (_, answer) = self.0.get(std::str::from_utf8(asked).ok()?)?.last()?;
        Some(answer.clone())
    }

    fn remove(&mut self, asked: &str, number: u64) {
        if let Some(answers) = self.0.get_mut(asked) {
            answers.retain(|(its, _)| *its != number);
            if answers.is_empty() {
                self.0.remove(asked);
            }
        }
    }
}

/// A question that is expected as long as this lives.
#[derive(Debug)]
pub(crate) struct Expectation {
    challenges: Arc<Challenges>,
    kind: Kind,
    asked: String,
    number: u64,
}

impl Drop for Expectation {
    fn drop(&mut self) {
        let mut expected = self.challenges.lock();
        match self.kind {
            Kind::Http => expected.http.remove(&self.asked, self.number),
            Kind::TlsAlpn => expected.alpn.remove(&self.asked, self.number),
        }
        self.challenges.count.fetch_sub(1, Ordering::Release);
    }
}

impl Challenges {
    fn lock(&self) -> MutexGuard<'_, Expected> {
        // What a panic between two steps leaves is an answer too many.
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(
        self: &Arc<Self>,
        kind: Kind,
        asked: String,
        put: impl FnOnce(&mut Expected, String, u64),
    ) -> Expectation {
        let mut expected = self.lock();
        expected.serial += 1;
        let number = expected.serial;
        put(&mut expected, asked.clone(), number);
        self.count.fetch_add(1, Ordering::Release);
        Expectation { challenges: Arc::clone(self), kind, asked, number }
    }

    /// Answers http-01 from now on.
    pub(crate) fn expect_http(self: &Arc<Self>, token: &str, answer: &str) -> Expectation {
        let answer = Bytes::copy_from_slice(answer.as_bytes());
        self.note(Kind::Http, token.to_owned(), |expected, token, number| {
            expected.http.put(token, number, answer);
        })
    }

    /// Answers tls-alpn-01 from now on, with a certificate that holds the digest. The issuer says a name and no more, so
    /// that of two orders with a name one waits for the other ([`Names`](crate::names::Names)).
    ///
    /// # Errors
    /// The certificate cannot be made.
    pub(crate) fn expect_alpn(
        self: &Arc<Self>,
        identifier: &Identifier,
        digest: &[u8],
    ) -> Result<Expectation, String> {
        let settings = Arc::new(alpn_settings(identifier, digest)?);
        Ok(self.note(Kind::TlsAlpn, asked_name(identifier), |expected, name, number| {
            expected.alpn.put(name, number, settings);
        }))
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Settings for a handshake of tls-alpn-01 with a client that asks for a name.
    pub fn alpn(&self, name: &[u8]) -> Option<Arc<ServerConfig>> {
        if self.is_empty() {
            return None;
        }
        self.lock().alpn.get(name)
    }

    fn http(&self, token: &[u8]) -> Option<Bytes> {
        if self.is_empty() {
            return None;
        }
        self.lock().http.get(token)
    }
}

/// The answer to http-01, whatever the server's phases are: as nginx's module, for GET alone, and only for a token that is
/// expected.
pub fn answer(exchange: &Exchange) -> Option<Outcome> {
    let token = exchange.uri.strip_prefix(PATH)?;
    let is_asked = exchange.request.method == Method::Get
        && exchange.role == Role::Request
        && !exchange.is_internal;
    if !is_asked {
        return None;
    }
    let answer = exchange.conf.shared.of::<Acme>().challenges().http(token)?;
    let response = Response::with_body(200, Bytes::from_static(b"text/plain"), answer);
    Some(Outcome::Respond(Box::new(response)))
}

/// The name that tls-alpn-01 asks for: of an address the one of its reverse look-up (RFC 8738, section 6).
fn asked_name(identifier: &Identifier) -> String {
    match identifier {
        Identifier::Dns(name) => name.clone(),
        Identifier::Ip(IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Identifier::Ip(IpAddr::V6(address)) => {
            let digits = address.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            let digits: String = digits.map(|digit| format!("{digit:x}.")).collect();
            format!("{digits}ip6.arpa")
        }
    }
}

fn alpn_settings(identifier: &Identifier, digest: &[u8]) -> Result<ServerConfig, String> {
    let text = |problem: rcgen::Error| problem.to_string();
    let mut params = CertificateParams::new([identifier.to_string()]).map_err(text)?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate().map_err(text)?;
    let certificate = params.self_signed(&key).map_err(text)?;
    let secret = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let used: &Arc<CryptoProvider> = provider();
    let signer = used.key_provider.load_private_key(secret).map_err(|why| why.to_string())?;
    let shown = CertifiedKey::new(vec![certificate.der().clone()], signer);
    let builder = ServerConfig::builder_with_provider(Arc::clone(used));
    let builder = builder.with_safe_default_protocol_versions().map_err(|why| why.to_string())?;
    let mut settings =
        builder.with_no_client_auth().with_cert_resolver(Arc::new(Only(Arc::new(shown))));
    settings.alpn_protocols = vec![PROTOCOL.to_vec()];
    settings.send_tls13_tickets = 0;
    Ok(settings)
}

/// One certificate for every client.
#[derive(Debug)]
struct Only(Arc<CertifiedKey>);

impl ResolvesServerCert for Only {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_asked_for_by_their_reverse_names() {
        let name = |text: &str| asked_name(&Identifier::Ip(text.parse().unwrap()));
        assert_eq!(name("192.0.2.1"), "1.2.0.192.in-addr.arpa");
        assert!(name("2001:db8::1").starts_with("1.0.0.0.0."));
        assert!(name("2001:db8::1").ends_with("8.b.d.0.1.0.0.2.ip6.arpa"));
    }

    #[test]
    fn questions_are_expected_as_long_as_they_are_asked() {
        let challenges = Arc::new(Challenges::default());
        let first = challenges.expect_http("token", "answer");
        let identifier = Identifier::Dns("a.example".to_owned());
        let second = challenges.expect_alpn(&identifier, &[7; 32]).unwrap();
        assert_eq!(challenges.http(b"token").as_deref(), Some(&b"answer"[..]));
        assert_eq!(challenges.http(b"other"), None);
        assert!(challenges.alpn(b"a.example").is_some());
        drop((first, second));
        assert!(challenges.is_empty());
        assert_eq!(challenges.http(b"token"), None);
        assert!(challenges.alpn(b"a.example").is_none());
    }

    #[test]
    fn what_two_expect_is_expected_until_both_are_done() {
        let challenges = Arc::new(Challenges::default());
        let first = challenges.expect_http("token", "one");
        let second = challenges.expect_http("token", "two");
        assert_eq!(challenges.http(b"token").as_deref(), Some(&b"two"[..]));
        drop(second);
        assert_eq!(challenges.http(b"token").as_deref(), Some(&b"one"[..]));
        let again = challenges.expect_http("token", "three");
        drop(first);
        assert_eq!(challenges.http(b"token").as_deref(), Some(&b"three"[..]));
        drop(again);
        assert!(challenges.is_empty());
    }
}
