//! One order: from the names to a certificate.

use crate::certificate::{Certificate, Duty, Shown, now};
use crate::challenges::{Challenges, Expectation, Kind};
use crate::identifier::{Identifier, KeyKind};
use crate::session::{Failure, Session};
use crate::state::Folder;
use instant_acme::{
    AuthorizationStatus, ChallengeStatus, ChallengeType, Error, Identifier as Asked, NewOrder,
    Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, RsaKeySize};
use std::sync::Arc;
use std::time::Duration;
use yorozu_kernel::logging::error::Level;
use yorozu_tls::x509::date;

/// How the issuer is asked whether it is done.
const PATIENCE: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(180));

/// Refusals of an order that waiting does not change; nginx's.
const FINAL: [&str; 6] =
    ["badCSR", "caa", "invalidProfile", "malformed", "rejectedIdentifier", "unsupportedIdentifier"];
/// Refusals that have nothing to do with the certificate that an order says it replaces.
const NOT_OF_REPLACES: [&str; 7] = [
    "badNonce",
    "caa",
    "invalidProfile",
    "rateLimited",
    "rejectedIdentifier",
    "unsupportedIdentifier",
    "userActionRequired",
];

/// What an order needs.
pub(crate) struct Ordering<'a> {
    pub certificate: &'a Certificate,
    pub duty: &'a Duty,
    pub session: &'a Session,
    pub folder: Option<&'a Folder>,
    pub challenges: &'a Arc<Challenges>,
}

impl Ordering<'_> {
    fn failure(&self, error: &Error) -> Failure {
        Failure::of(error, &self.session.sight, &FINAL)
    }

    /// Gets a certificate, and keeps it.
    ///
    /// # Errors
    /// [`Failure`]
    ///
    /// # Cancel safety
    /// The order is taken up again where it is.
    pub(crate) async fn run(&self) -> Result<Shown, Failure> {
        let mut order = self.begin().await?;
        let got = self.finish(&mut order).await;
        // One that the issuer refuses is over, while one that could not be asked for may go on.
        let is_over = got.as_ref().is_err_and(|failure| failure.kind.is_some());
        if let Some(folder) = self.folder.filter(|_| is_over) {
            folder.forget_order(&self.certificate.order);
        }
        got
    }

    async fn finish(&self, order: &mut Order) -> Result<Shown, Failure> {
        if order.state().status == OrderStatus::Pending {
            let _expected = self.authorize(order).await?;
            match order.poll_ready(&PATIENCE).await {
                Ok(OrderStatus::Ready) => {}
                Ok(_) | Err(Error::Api(_)) => return Err(self.why_invalid(order).await),
                Err(error) => return Err(self.failure(&error)),
            }
        }
        let key = self.key(order.state().status)?;
        if order.state().status == OrderStatus::Ready {
            let csr = self.request(&key).map_err(|problem| problem.to_string())?;
            order.finalize_csr(&csr).await.map_err(|error| self.failure(&error))?;
        }
        let chain = match order.poll_certificate(&PATIENCE).await {
            Ok(chain) => chain,
            // The issuer need not say why.
            Err(Error::Str(_)) if order.state().status == OrderStatus::Invalid => {
                return Err(self.why_invalid(order).await);
            }
            Err(error) => return Err(self.failure(&error)),
        };
        let shown = Shown::read(chain, key.serialize_pem(), true)
            .map_err(|why| format!("what the issuer sent is no certificate ({why})"))?;
        if let Some(missing) =
            self.certificate.order.identifiers.iter().find(|name| !shown.is_for(name))
        {
            let text = format!("the issuer's certificate is not for \"{missing}\"");
            return Err(Failure { kind: Some(String::new()), ..Failure::from(text) });
        }
        // By a clock that is wrong, here or there.
        let is_good = |shown: &Shown| shown.is_valid(now());
        let has_good =
            || self.certificate.shown().is_some_and(|old| old.is_issued && is_good(&old));
        if !is_good(&shown) && has_good() {
            let (begin, end) = (date(shown.validity.0), date(shown.validity.1));
            let text = format!(
                "the issuer's certificate is valid from {begin} to {end}, which is not now, and the one in use is kept"
            );
            return Err(Failure { kind: Some(String::new()), ..Failure::from(text) });
        }
        if let Some(folder) = self.folder {
            folder.keep(&self.certificate.order, &shown.chain)?;
        }
        Ok(shown)
    }

    /// The order that an interrupted process left, or a new one.
    async fn begin(&self) -> Result<Order, Failure> {
        let wanted = &self.certificate.order;
        if let Some((folder, url)) =
            self.folder.and_then(|folder| Some((folder, folder.order(wanted)?)))
        {
            match self.session.account.order(url).await {
                Ok(mut order) => match order.state().status {
                    OrderStatus::Pending | OrderStatus::Ready => return Ok(order),
                    OrderStatus::Processing | OrderStatus::Valid
                        if folder.next_key(wanted).is_some() =>
                    {
                        return Ok(order);
                    }
                    _ => folder.forget_order(wanted),
                },
                Err(Error::Api(_)) => folder.forget_order(wanted),
                Err(error) => return Err(self.failure(&error)),
            }
        }
        let order = self.new_order().await?;
        if let Some(folder) = self.folder {
            folder.keep_order(wanted, order.url())?;
        }
        Ok(order)
    }

    async fn new_order(&self) -> Result<Order, Failure> {
        let wanted = &self.certificate.order;
        let asked = |identifier: &Identifier| match identifier {
            Identifier::Dns(name) => Asked::Dns(name.clone()),
            Identifier::Ip(address) => Asked::Ip(*address),
        };
        let identifiers: Vec<_> = wanted.identifiers.iter().map(asked).collect();
        let profile = self.profile()?;
        let order = || {
            let order = NewOrder::new(&identifiers);
            match profile {
                Some(profile) => order.profile(profile),
                None => order,
            }
        };
        let replaced = self.certificate.shown().filter(|shown| shown.is_issued);
        if let Some(replaced) = replaced.and_then(|shown| shown.identifier()) {
            match self.session.account.new_order(&order().replaces(replaced)).await {
                Ok(order) => return Ok(order),
                Err(Error::Unsupported(_)) => {}
                Err(error) => {
                    let failure = self.failure(&error);
                    let is_other = failure.kind.as_deref().map_or(
                        // Nothing came back, or not what was asked for.
                        !failure.text.starts_with("replaces"),
                        |kind| NOT_OF_REPLACES.contains(&kind),
                    );
                    if is_other {
                        return Err(failure);
                    }
                    let text = format!(
                        "{} while replacing certificate; retrying without \"replaces\"",
                        failure.text
                    );
                    self.certificate.log(Level::Info, &text);
                }
            }
        }
        self.session.account.new_order(&order()).await.map_err(|error| self.failure(&error))
    }

    /// The profile to ask for: one that the issuer lists.
    fn profile(&self) -> Result<Option<&str>, Failure> {
        let Some(profile) = &self.duty.issuer.profile else { return Ok(None) };
        if self.session.account.profiles().any(|listed| listed.name == profile.name) {
            return Ok(Some(&profile.name));
        }
        let text = format!("the issuer does not list the profile \"{}\"", profile.name);
        if profile.is_required {
            return Err(Failure { is_final: true, ..Failure::from(text) });
        }
        self.certificate.log(Level::Warn, &format!("{text}: the usual certificate is ordered"));
        Ok(None)
    }

    /// Has the issuer look at every name that it has not seen yet; what it will ask is expected as long as the result lives.
    async fn authorize(&self, order: &mut Order) -> Result<Vec<Expectation>, Failure> {
        let mut expected = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|error| self.failure(&error))?;
            let identifier = match authorization.identifier().identifier {
                Asked::Dns(name) => Identifier::Dns(name.clone()),
                Asked::Ip(address) => Identifier::Ip(*address),
                _ => {
                    return Err(Failure::from(
                        "the issuer asks for what was not ordered".to_owned(),
                    ));
                }
            };
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => {
                    let text = format!("unexpected authorization status {status:?}");
                    return Err(Failure { kind: Some(String::new()), ..Failure::from(text) });
                }
            }
            let kind = self.duty.issuer.challenge;
            let mut challenge = authorization.challenge(type_of(kind)).ok_or_else(|| {
                let text = format!("no supported challenges for \"{identifier}\"");
                Failure { is_final: true, kind: Some(String::new()), ..Failure::from(text) }
            })?;
            if !is_token(&challenge.token) {
                let text =
                    format!("the issuer's challenge for \"{identifier}\" has no valid token");
                return Err(Failure { kind: Some(String::new()), ..Failure::from(text) });
            }
            let answer = challenge.key_authorization();
            expected.push(match kind {
                Kind::Http => self.challenges.expect_http(&challenge.token, answer.as_str()),
                Kind::TlsAlpn => {
                    self.challenges.expect_alpn(&identifier, answer.digest().as_ref())?
                }
            });
            // Of an order that is taken up again the issuer may be at it.
            if challenge.status == ChallengeStatus::Pending {
                challenge.set_ready().await.map_err(|error| self.failure(&error))?;
            }
        }
        Ok(expected)
    }

    /// What the issuer found wrong with the names.
    async fn why_invalid(&self, order: &mut Order) -> Failure {
        let mut problems = Vec::new();
        let mut failure = match &order.state().error {
            Some(problem) => self.failure(&Error::Api(problem.clone())),
            None => Failure::from("unexpected order status Invalid".to_owned()),
        };
        failure.kind.get_or_insert_default();
        let mut authorizations = order.authorizations();
        while let Some(Ok(authorization)) = authorizations.next().await {
            for problem in authorization.challenges.iter().filter_map(|it| it.error.as_ref()) {
                let of_one = self.failure(&Error::Api(problem.clone()));
                problems.push(format!("\"{}\": {}", authorization.identifier(), of_one.text));
                failure.is_final |= of_one.is_final;
            }
        }
        if !problems.is_empty() {
            failure.text = problems.join("; ");
        }
        failure
    }

    /// The key of the certificate: of an order that goes on the one it began with.
    fn key(&self, status: OrderStatus) -> Result<KeyPair, Failure> {
        let wanted = &self.certificate.order;
        let kept = self.folder.and_then(|folder| folder.next_key(wanted));
        let kept = kept.and_then(|text| KeyPair::from_pem(&text).ok());
        if let Some(kept) = kept.filter(|_| status != OrderStatus::Invalid) {
            return Ok(kept);
        }
        let made = generate(wanted.key).map_err(|problem| problem.to_string())?;
        if let Some(folder) = self.folder {
            folder.keep_next_key(wanted, &made.serialize_pem())?;
        }
        Ok(made)
    }

    /// The certificate request, in DER.
    fn request(&self, key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
        let identifiers = &self.certificate.order.identifiers;
        let names: Vec<_> = identifiers.iter().map(Identifier::to_string).collect();
        let mut params = CertificateParams::new(names.clone())?;
        params.distinguished_name = DistinguishedName::new();
        if self.duty.issuer.common_name_in_csr {
            let is_dns = |identifier: &&Identifier| matches!(identifier, Identifier::Dns(_));
            let first = identifiers.iter().find(is_dns).map(Identifier::to_string);
            let first = first.or_else(|| names.first().cloned());
            params.distinguished_name.push(DnType::CommonName, first.unwrap_or_default());
        }
        Ok(params.serialize_request(key)?.der().to_vec())
    }
}

fn type_of(kind: Kind) -> ChallengeType {
    match kind {
        Kind::Http => ChallengeType::Http01,
        Kind::TlsAlpn => ChallengeType::TlsAlpn01,
    }
}

fn generate(kind: KeyKind) -> Result<KeyPair, rcgen::Error> {
    match kind {
        KeyKind::Ecdsa(384) => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
        KeyKind::Ecdsa(521) => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512),
        KeyKind::Ecdsa(_) => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        KeyKind::Rsa(bits) => {
            let size = match bits {
                4096 => RsaKeySize::_4096,
                3072 => RsaKeySize::_3072,
                _ => RsaKeySize::_2048,
            };
            KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size)
        }
    }
}

/// Whether it is base64url (RFC 8555, section 8.3): clients are answered with it.
fn is_token(token: &str) -> bool {
    let is_of_it = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    !token.is_empty() && token.bytes().all(is_of_it)
}

#[cfg(test)]
mod tests {
    use super::is_token;

    #[test]
    fn a_token_is_base64url() {
        assert!(is_token("evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr_oA"));
        for other in ["", "<script>", "a\r\nX: y", "a b", "a=", "../a", "ä"] {
            assert!(!is_token(other), "{other}");
        }
    }
}
