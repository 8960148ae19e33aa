//! What variables show of a client's certificate, in OpenSSL's notation.

use super::certificate::Certificate;
use super::distinguished_name;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The subject's public key, with its kind, in DER.
pub fn public_key(der: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    Some(SubjectPublicKeyInfoDer::from(Certificate::read(der)?.key.to_vec()))
}

/// Whose name is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Who {
    Subject,
    Issuer,
}

impl Who {
    fn of<'a>(self, certificate: &Certificate<'a>) -> &'a [u8] {
        match self {
            Who::Subject => certificate.subject,
            Who::Issuer => certificate.issuer,
        }
    }
}

/// A name as RFC 2253 writes it: `CN=a,O=b`.
pub fn name(der: &CertificateDer<'_>, who: Who) -> Option<String> {
    distinguished_name::rfc2253(who.of(&Certificate::read(der)?))
}

/// A name as OpenSSL wrote it before: `/O=b/CN=a`.
pub fn legacy_name(der: &CertificateDer<'_>, who: Who) -> Option<String> {
    distinguished_name::one_line(who.of(&Certificate::read(der)?))
}

/// The serial number in hexadecimal digits.
pub fn serial(der: &CertificateDer<'_>) -> Option<String> {
    let number = Certificate::read(der)?.serial;
    let is_negative = number.first().is_some_and(|byte| byte & 0x80 != 0);
    let mut digits = number.to_vec();
    if is_negative {
        let mut carry = true;
        for byte in digits.iter_mut().rev() {
            (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
        }
    }
    let start = digits.iter().position(|byte| *byte != 0).unwrap_or(digits.len() - 1);
    let sign = if is_negative { "-" } else { "" };
    Some(format!("{sign}{}", base16ct::upper::encode_string(&digits[start..])))
}

/// SHA-1 of the certificate in hexadecimal digits.
pub fn fingerprint(der: &CertificateDer<'_>) -> String {
    base16ct::lower::encode_string(digest(&SHA1_FOR_LEGACY_USE_ONLY, der).as_ref())
}

/// When it begins and ceases to be valid.
pub fn validity(der: &CertificateDer<'_>) -> Option<(Duration, Duration)> {
    Certificate::read(der)?.validity()
}

/// `Jan  2 03:04:05 2030 GMT`
pub fn date(time: Duration) -> String {
    // `Wed, 02 Jan 2030 03:04:05 GMT`
    let text = yorozu_http::date::format(i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
    let words: Vec<&str> = text.split(' ').collect();
    let [_, day, month, year, clock, zone] = words[..] else { return text };
    let day = day.trim_start_matches('0');
    format!("{month} {day:>2} {clock} {year} {zone}")
}

/// Whole days left.
pub fn days_left(der: &CertificateDer<'_>) -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Some(validity(der)?.1.as_secs().saturating_sub(now) / (24 * 60 * 60))
}

/// As PEM text.
pub fn pem(der: &CertificateDer<'_>) -> Option<String> {
    pkcs8::der::pem::encode_string("CERTIFICATE", pkcs8::LineEnding::LF, der).ok()
}
