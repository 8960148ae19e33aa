//! Names of subjects and issuers as OpenSSL writes them, which nginx shows in `$ssl_client_s_dn`
//! and its kin. Maps grant rights by this text, so what a name holds never reads as
//! another attribute.
//!
//! # Sources
//! RFC 2253; OpenSSL's `X509_NAME_print_ex` with `XN_FLAG_RFC2253`, and `X509_NAME_oneline`.

use super::der::{BIT_STRING, Element, OBJECT_IDENTIFIER, SEQUENCE, SET};
use std::borrow::Cow;
use std::fmt::Write as _;

// Kinds of text (X.680, table 1).
const UTF8_STRING: u8 = 12;
const NUMERIC_STRING: u8 = 18;
const PRINTABLE_STRING: u8 = 19;
const TELETEX_STRING: u8 = 20;
const IA5_STRING: u8 = 22;
const UTC_TIME: u8 = 23;
const GENERALIZED_TIME: u8 = 24;
const VISIBLE_STRING: u8 = 26;
const UNIVERSAL_STRING: u8 = 28;
const BMP_STRING: u8 = 30;

/// `CN`
const COMMON_NAME: &str = "2.5.4.3";
/// `emailAddress`
const EMAIL_ADDRESS: &str = "1.2.840.113549.1.9.1";

/// One attribute of a name.
struct Attribute<'a> {
    /// In numbers.
    id: String,
    value: Element<'a>,
    /// Which of the name's sets it is in; most have one.
    set: usize,
}

/// The attributes of a name; `None` if it is none.
fn attributes(name: &[u8]) -> Option<Vec<Attribute<'_>>> {
    let mut found = Vec::new();
    for (number, set) in Element::only(name, SEQUENCE)?.inside()?.into_iter().enumerate() {
        if set.tag != SET {
            return None;
        }
        for attribute in set.inside()? {
            let mut parts = (attribute.tag == SEQUENCE).then_some(attribute.content)?;
            let id = Element::take_tagged(&mut parts, OBJECT_IDENTIFIER)?.numbers()?;
            let value = Element::take(&mut parts).filter(|_| parts.is_empty())?;
            found.push(Attribute { id, value, set: number });
        }
    }
    Some(found)
}

/// Whether a mail address is among the attributes; also `true` where they cannot be read.
pub(super) fn has_mail_address(name: &[u8]) -> bool {
    attributes(name).is_none_or(|found| found.iter().any(|found| found.id == EMAIL_ADDRESS))
}

/// Whether there is a `CN` with a dot, as in a host's name; also `true` where it cannot be read.
pub(super) fn may_name_host(name: &[u8]) -> bool {
    let has_dot =
        |found: &Attribute<'_>| found.id == COMMON_NAME && found.value.content.contains(&b'.');
    attributes(name).is_none_or(|found| found.iter().any(has_dot))
}

/// The common names that are text; none where the name cannot be read.
pub(super) fn common_names(name: &[u8]) -> Vec<Vec<u8>> {
    let found = attributes(name).unwrap_or_default();
    let names = found.iter().filter(|found| found.id == COMMON_NAME);
    names.filter_map(|found| Some(characters(&found.value)??.into_owned())).collect()
}

/// A name as RFC 2253 writes it, the last attribute first: `CN=a,O=b`.
pub(super) fn rfc2253(name: &[u8]) -> Option<String> {
    let mut out = String::new();
    let mut before = None;
    for Attribute { id, value, set } in attributes(name)?.iter().rev() {
        match before.replace(set) {
            None => {}
            Some(before) if before == set => out.push('+'),
            Some(_) => out.push(','),
        }
        let known = short_name(id);
        let _ = write!(out, "{}=", known.unwrap_or(id));
        match characters(value).filter(|_| known.is_some()) {
            Some(characters) => put_escaped(&mut out, &characters?),
            None => {
                out.push('#');
                out.push_str(&base16ct::upper::encode_string(value.whole));
            }
        }
    }
    Some(out)
}

/// A name as OpenSSL wrote it before: `/O=b/CN=a`.
pub(super) fn one_line(name: &[u8]) -> Option<String> {
    let mut out = String::new();
    let mut before = None;
    for Attribute { id, value, set } in &attributes(name)? {
        out.push(if before.replace(set) == Some(set) { '+' } else { '/' });
        let known = short_name(id);
        let _ = write!(out, "{}=", known.unwrap_or(id));
        let bytes = match value.tag {
            BIT_STRING => value.content.get(1..)?,
            SEQUENCE => value.whole,
            _ => value.content,
        };
        for byte in bytes {
            match byte {
                b'/' | b'+' => {
                    out.push('\\');
                    out.push(char::from(*byte));
                }
                b' '..=b'~' => out.push(char::from(*byte)),
                _ => put_hex(&mut out, "\\x", *byte),
            }
        }
    }
    Some(out)
}

/// The text of a value in UTF-8. `None` for what is not text, `Some(None)` for broken text.
fn characters<'a>(value: &Element<'a>) -> Option<Option<Cow<'a, [u8]>>> {
    let wide = |width: usize, number: fn(&[u8]) -> u32| {
        let is_whole = value.content.len().is_multiple_of(width);
        is_whole.then(|| in_utf8(value.content.chunks_exact(width).map(number)))
    };
    Some(match value.tag {
        UTF8_STRING => Some(Cow::Borrowed(value.content)),
        NUMERIC_STRING | PRINTABLE_STRING | TELETEX_STRING | IA5_STRING | UTC_TIME
        | GENERALIZED_TIME | VISIBLE_STRING => {
            Some(in_utf8(value.content.iter().map(|byte| u32::from(*byte))))
        }
        BMP_STRING => wide(2, big_endian),
        UNIVERSAL_STRING => wide(4, big_endian),
        _ => return None,
    })
}

fn big_endian(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// What is not a character is left out.
fn in_utf8(numbers: impl Iterator<Item = u32>) -> Cow<'static, [u8]> {
    Cow::Owned(numbers.filter_map(char::from_u32).collect::<String>().into_bytes())
}

fn put_escaped(out: &mut String, text: &[u8]) {
    for (at, byte) in text.iter().enumerate() {
        let is_last = at + 1 == text.len();
        let is_escaped = match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' => true,
            b' ' => at == 0 || is_last,
            // OpenSSL takes one that stands alone for the last character, not the first.
            b'#' => at == 0 && !is_last,
            _ => false,
        };
        match byte {
            b' '..=b'~' => {
                if is_escaped {
                    out.push('\\');
                }
                out.push(char::from(*byte));
            }
            _ => put_hex(out, "\\", *byte),
        }
    }
}

fn put_hex(out: &mut String, before: &str, byte: u8) {
    let _ = write!(out, "{before}{byte:02X}");
}

/// OpenSSL's short name of a kind of attribute.
fn short_name(id: &str) -> Option<&'static str> {
    let (arc, number) = id.rsplit_once('.')?;
    let names: &[&'static str] = match arc {
        "2.5.4" => &DIRECTORY,
        "0.9.2342.19200300.100.1" => &PILOT,
        "1.2.840.113549.1.9" => &PKCS_9,
        "1.3.6.1.4.1.311.60.2.1" => &JURISDICTION,
        _ => return None,
    };
    let number: usize = number.parse().ok()?;
    names.get(number).copied().filter(|name| !name.is_empty())
}

/// `2.5.4.*`
const DIRECTORY: [&str; 101] = [
    "",
    "",
    "",
    "CN",
    "SN",
    "serialNumber",
    "C",
    "L",
    "ST",
    "street",
    "O",
    "OU",
    "title",
    "description",
    "searchGuide",
    "businessCategory",
    "postalAddress",
    "postalCode",
    "postOfficeBox",
    "physicalDeliveryOfficeName",
    "telephoneNumber",
    "telexNumber",
    "teletexTerminalIdentifier",
    "facsimileTelephoneNumber",
    "x121Address",
    "internationaliSDNNumber",
    "registeredAddress",
    "destinationIndicator",
    "preferredDeliveryMethod",
    "presentationAddress",
    "supportedApplicationContext",
    "member",
    "owner",
    "roleOccupant",
    "seeAlso",
    "userPassword",
    "userCertificate",
    "cACertificate",
    "authorityRevocationList",
    "certificateRevocationList",
    "crossCertificatePair",
    "name",
    "GN",
    "initials",
    "generationQualifier",
    "x500UniqueIdentifier",
    "dnQualifier",
    "enhancedSearchGuide",
    "protocolInformation",
    "distinguishedName",
    "uniqueMember",
    "houseIdentifier",
    "supportedAlgorithms",
    "deltaRevocationList",
    "dmdName",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "pseudonym",
    "",
    "",
    "",
    "",
    "",
    "",
    "role",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "organizationIdentifier",
    "c3",
    "n3",
    "dnsName",
];
/// `0.9.2342.19200300.100.1.*`
const PILOT: [&str; 57] = [
    "",
    "UID",
    "textEncodedORAddress",
    "mail",
    "info",
    "favouriteDrink",
    "roomNumber",
    "photo",
    "userClass",
    "host",
    "manager",
    "documentIdentifier",
    "documentTitle",
    "documentVersion",
    "documentAuthor",
    "documentLocation",
    "",
    "",
    "",
    "",
    "homeTelephoneNumber",
    "secretary",
    "otherMailbox",
    "lastModifiedTime",
    "lastModifiedBy",
    "DC",
    "aRecord",
    "pilotAttributeType27",
    "mXRecord",
    "nSRecord",
    "sOARecord",
    "cNAMERecord",
    "",
    "",
    "",
    "",
    "",
    "associatedDomain",
    "associatedName",
    "homePostalAddress",
    "personalTitle",
    "mobileTelephoneNumber",
    "pagerTelephoneNumber",
    "friendlyCountryName",
    "uid",
    "organizationalStatus",
    "janetMailbox",
    "mailPreferenceOption",
    "buildingName",
    "dSAQuality",
    "singleLevelQuality",
    "subtreeMinimumQuality",
    "subtreeMaximumQuality",
    "personalSignature",
    "dITRedirect",
    "audio",
    "documentPublisher",
];
/// `1.2.840.113549.1.9.*`
const PKCS_9: [&str; 10] = [
    "",
    "emailAddress",
    "unstructuredName",
    "contentType",
    "messageDigest",
    "signingTime",
    "countersignature",
    "challengePassword",
    "unstructuredAddress",
    "extendedCertificateAttributes",
];
/// `1.3.6.1.4.1.311.60.2.1.*`
const JURISDICTION: [&str; 4] = ["", "jurisdictionL", "jurisdictionST", "jurisdictionC"];

#[cfg(test)]
mod tests {
    use super::*;

    /// A name of one attribute.
    fn name(id: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        let wrap = |tag: u8, content: &[u8]| {
            [&[tag, u8::try_from(content.len()).unwrap()][..], content].concat()
        };
        let parts = [wrap(OBJECT_IDENTIFIER, id), wrap(tag, value)].concat();
        wrap(SEQUENCE, &wrap(SET, &wrap(SEQUENCE, &parts)))
    }

    #[test]
    fn nothing_in_a_value_reads_as_another_attribute() {
        const CN: &[u8] = &[0x55, 4, 3];
        let texts = [
            (UTF8_STRING, &b"bob"[..], "CN=bob", "/CN=bob"),
            (UTF8_STRING, b"bob,CN=admin", "CN=bob\\,CN=admin", "/CN=bob,CN=admin"),
            (UTF8_STRING, b"bob/CN=admin", "CN=bob/CN=admin", "/CN=bob\\/CN=admin"),
            (UTF8_STRING, b"bob+CN=admin", "CN=bob\\+CN=admin", "/CN=bob\\+CN=admin"),
            (UTF8_STRING, b"a\nb\0", "CN=a\\0Ab\\00", "/CN=a\\x0Ab\\x00"),
            (UTF8_STRING, b" a ", "CN=\\ a\\ ", "/CN= a "),
            (UTF8_STRING, b"#", "CN=#", "/CN=#"),
            (TELETEX_STRING, b"\xfc", "CN=\\C3\\BC", "/CN=\\xFC"),
            (BMP_STRING, b"\0\xfc", "CN=\\C3\\BC", "/CN=\\x00\\xFC"),
            (UNIVERSAL_STRING, b"\0\0\0a", "CN=a", "/CN=\\x00\\x00\\x00a"),
            (BIT_STRING, b"\0\xab", "CN=#030200AB", "/CN=\\xAB"),
        ];
        for (tag, value, wanted, legacy) in texts {
            let name = name(CN, tag, value);
            assert_eq!(rfc2253(&name).as_deref(), Some(wanted));
            assert_eq!(one_line(&name).as_deref(), Some(legacy));
        }
        assert_eq!(rfc2253(&name(CN, BMP_STRING, b"odd")), None);
        let unknown = name(&[0x2a, 3, 4], UTF8_STRING, b"x");
        assert_eq!(rfc2253(&unknown).as_deref(), Some("1.2.3.4=#0C0178"));
        assert_eq!(one_line(&unknown).as_deref(), Some("/1.2.3.4=x"));
    }
}
