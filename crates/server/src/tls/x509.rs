//! What variables show of a client's certificate, in OpenSSL's notation.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use pkcs8::der::asn1::{Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use pkcs8::der::{Decode as _, Encode as _, Tag, Tagged as _};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_cert::Certificate;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::oid::db::DB;
use x509_cert::name::Name;

fn parse(der: &CertificateDer<'_>) -> Option<Certificate> {
    Certificate::from_der(der).ok()
}

/// The subject's public key, with its kind, in DER.
pub fn public_key(der: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let key = parse(der)?.tbs_certificate.subject_public_key_info.to_der().ok()?;
    Some(SubjectPublicKeyInfoDer::from(key))
}

/// Did it sign itself, going by its names?
pub fn is_self_signed(der: &CertificateDer<'_>) -> bool {
    parse(der).is_some_and(|found| {
        let names = (found.tbs_certificate.subject.to_der(), found.tbs_certificate.issuer.to_der());
        matches!(names, (Ok(subject), Ok(issuer)) if subject == issuer)
    })
}

/// Whose name is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Who {
    Subject,
    Issuer,
}

/// A name as RFC 2253 writes it: `CN=a,O=b`.
pub fn name(der: &CertificateDer<'_>, who: Who) -> Option<String> {
    with_name(der, who, |name| Some(name.to_string()))
}

/// A name as OpenSSL wrote it before: `/O=b/CN=a`.
pub fn legacy_name(der: &CertificateDer<'_>, who: Who) -> Option<String> {
    with_name(der, who, |name| {
        let mut out = String::new();
        for attribute in name.0.iter().flat_map(|rdn| rdn.0.iter()) {
            let names = DB.find_names_for_oid(attribute.oid);
            let key = names.min_by_key(|name| name.len()).map(str::to_ascii_uppercase);
            let key = key.unwrap_or_else(|| attribute.oid.to_string());
            let _ = write!(out, "/{key}={}", value(attribute).unwrap_or_default());
        }
        Some(out)
    })
}

fn with_name<T>(
    der: &CertificateDer<'_>,
    who: Who,
    show: impl FnOnce(&Name) -> Option<T>,
) -> Option<T> {
    let found = parse(der)?.tbs_certificate;
    show(match who {
        Who::Subject => &found.subject,
        Who::Issuer => &found.issuer,
    })
}

fn value(attribute: &AttributeTypeAndValue) -> Option<&str> {
    let value = &attribute.value;
    match value.tag() {
        Tag::PrintableString => PrintableStringRef::try_from(value).ok().map(|s| s.as_str()),
        Tag::Utf8String => Utf8StringRef::try_from(value).ok().map(|s| s.as_str()),
        Tag::Ia5String => Ia5StringRef::try_from(value).ok().map(|s| s.as_str()),
        Tag::TeletexString => TeletexStringRef::try_from(value).ok().map(|s| s.as_str()),
        _ => None,
    }
}

/// The serial number in hexadecimal digits.
pub fn serial(der: &CertificateDer<'_>) -> Option<String> {
    let found = parse(der)?;
    let bytes = found.tbs_certificate.serial_number.as_bytes().to_vec();
    let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len() - 1);
    Some(hex(&bytes[start..], true))
}

/// SHA-1 of the certificate in hexadecimal digits.
pub fn fingerprint(der: &CertificateDer<'_>) -> String {
    hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, der).as_ref(), false)
}

/// As hexadecimal digits.
pub fn hex(bytes: &[u8], is_upper: bool) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = if is_upper { write!(out, "{byte:02X}") } else { write!(out, "{byte:02x}") };
        out
    })
}

/// When it begins and ceases to be valid.
pub fn validity(der: &CertificateDer<'_>) -> Option<(Duration, Duration)> {
    let validity = parse(der)?.tbs_certificate.validity;
    Some((validity.not_before.to_unix_duration(), validity.not_after.to_unix_duration()))
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
