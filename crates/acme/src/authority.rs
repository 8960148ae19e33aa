//! An authority of a site's own, for names that no issuer gives certificates for. Who trusts it trusts it for these names alone.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, NameConstraints, date_time_ymd,
};
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// As long as browsers take a certificate of an authority that was imported.
const DAYS: u32 = 397;
const AUTHORITY_DAYS: u32 = 3650;

/// A certificate with its key, as PEM texts.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// What rcgen says is wrong.
#[expect(clippy::needless_pass_by_value, reason = "what map_err gives")]
fn said(problem: rcgen::Error) -> String {
    problem.to_string()
}

/// Valid from yesterday, for clocks that are late.
fn bound(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let begin = date_time_ymd(1970, 1, 1) + now.saturating_sub(DAY);
    params.not_before = begin;
    params.not_after = begin + DAY * days;
}

/// What an authority says of itself: the same each time it signs.
fn authority_params(name: &str, names: &[String]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let subtree = |name: &String| match name.parse() {
        Ok(IpAddr::V4(ip)) => {
            GeneralSubtree::IpAddress(rcgen::CidrSubnet::V4(ip.octets(), [255; 4]))
        }
        Ok(IpAddr::V6(ip)) => {
            GeneralSubtree::IpAddress(rcgen::CidrSubnet::V6(ip.octets(), [255; 16]))
        }
        Err(_) => GeneralSubtree::DnsName(name.clone()),
    };
    let permitted_subtrees = names.iter().map(subtree).collect();
    params.name_constraints =
        Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    params
}

/// Makes an authority of that name for these hosts and addresses.
///
/// # Errors
/// A name that no certificate can have; no random numbers.
pub fn make(name: &str, names: &[String]) -> Result<Pair, String> {
    let mut params = authority_params(name, names);
    bound(&mut params, AUTHORITY_DAYS);
    let key = KeyPair::generate().map_err(said)?;
    let certificate = params.self_signed(&key).map_err(said)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Makes a certificate for hosts and addresses by the authority of that name that has this key.
///
/// # Errors
/// As [`make`]; a text that is no key.
pub fn issue(name: &str, authority_key: &str, names: &[String]) -> Result<Pair, String> {
    let signing = KeyPair::from_pem(authority_key).map_err(said)?;
    let issuer = Issuer::new(authority_params(name, names), signing);
    let mut params = CertificateParams::new(names.to_vec()).map_err(said)?;
    params.distinguished_name.push(DnType::CommonName, names.first().map_or("", String::as_str));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    bound(&mut params, DAYS);
    let key = KeyPair::generate().map_err(said)?;
    let certificate = params.signed_by(&key, &issuer).map_err(said)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use std::sync::Arc;

    fn der(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
    }

    #[test]
    fn its_certificates_are_good_for_its_names_alone() {
        let names = ["localhost".to_owned(), "shop.test".to_owned(), "127.0.0.1".to_owned()];
        let authority = make("a shop", &names).expect("made");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(der(&authority.certificate)).expect("an authority");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.build().expect("a verifier");
        let judge = |pair: &Pair, name: &str| {
            use rustls::client::danger::ServerCertVerifier as _;
            let name = ServerName::try_from(name.to_owned()).expect("a name");
            verifier
                .verify_server_cert(&der(&pair.certificate), &[], &name, &[], UnixTime::now())
                .is_ok()
        };
        let good = issue("a shop", &authority.key, &names).expect("issued");
        assert!(
            judge(&good, "localhost") && judge(&good, "shop.test") && judge(&good, "127.0.0.1")
        );
        assert!(!judge(&good, "other.test"));
        let stranger = issue("a shop", &authority.key, &["bank.test".to_owned()]).expect("issued");
        assert!(!judge(&stranger, "bank.test"), "the authority is not for that name");
        let other = make("a shop", &names).expect("made");
        let forged = issue("a shop", &other.key, &names).expect("issued");
        assert!(!judge(&forged, "localhost"));
    }
}
