//! Whether a server's certificate is in the name that was asked for.
//!
//! # Sources
//! RFC 9525, which knows alternative names alone. nginx goes by OpenSSL's `X509_check_host`: the common names of a
//! certificate count where it has no alternative name of a host, as those of many private networks.

use super::certificate::Certificate;
use super::distinguished_name::common_names;
use super::restated::Restated;
use rustls::pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

/// Whether a certificate is in a name.
pub(super) fn is_named(der: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    let Some(certificate) = Certificate::read(der) else { return false };
    let restated = Restated::certificate(&certificate);
    let read = CertificateDer::from(restated.as_ref().map_or(&der[..], |found| &found.der));
    let by_alternative_name = EndEntityCert::try_from(&read)
        .is_ok_and(|read| read.verify_is_valid_for_subject_name(name).is_ok());
    let wanted = name.to_str();
    by_alternative_name
        || !certificate.has_host_names()
            && common_names(certificate.subject)
                .iter()
                .any(|found| matches(found, wanted.as_bytes()))
}

/// Whether a common name, in which `*` may stand for the first label of three or more, is the name.
fn matches(common: &[u8], name: &[u8]) -> bool {
    let Some(parent) = common.strip_prefix(b"*.") else { return common.eq_ignore_ascii_case(name) };
    let Some(dot) = memchr::memchr(b'.', name) else { return false };
    dot > 0 && parent.contains(&b'.') && parent.eq_ignore_ascii_case(&name[dot + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_one_whole_label() {
        for (common, name) in [
            ("php.example", "PHP.example"),
            ("127.0.0.1", "127.0.0.1"),
            ("*.example.org", "a.example.org"),
        ] {
            assert!(matches(common.as_bytes(), name.as_bytes()), "{common} {name}");
        }
        for (common, name) in [
            ("php.example", "php.example.org"),
            ("*.example.org", "example.org"),
            ("*.example.org", ".example.org"),
            ("*.example.org", "a.b.example.org"),
            ("*.org", "example.org"),
            ("*", "org"),
            ("a*.example.org", "ab.example.org"),
            ("", "example.org"),
        ] {
            assert!(!matches(common.as_bytes(), name.as_bytes()), "{common} {name}");
        }
    }
}
