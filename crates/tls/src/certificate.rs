//! What is read of a certificate besides its path: of any version, and with any text in its names.
//! Whether it is any good is not said here.

use super::der::{
    BIT_STRING, BOOLEAN, Element, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE,
};
use std::time::Duration;
use x509_cert::der::Decode as _;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::oid::db::rfc5280::{
    ID_CE_BASIC_CONSTRAINTS, ID_CE_EXT_KEY_USAGE, ID_CE_KEY_USAGE, ID_CE_NAME_CONSTRAINTS,
    ID_CE_SUBJECT_ALT_NAME, ID_KP_CLIENT_AUTH, ID_KP_SERVER_AUTH,
};
use x509_cert::time::Validity;

/// netscape-cert-type, which OpenSSL heeds too.
const NETSCAPE_TYPE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.113730.1.1");

/// Bits of keyUsage (RFC 5280, section 4.2.1.3).
const DIGITAL_SIGNATURE: u8 = 0x80;
const KEY_ENCIPHERMENT: u8 = 0x20;
const KEY_AGREEMENT: u8 = 0x08;
const KEY_CERT_SIGN: u8 = 0x04;
const CRL_SIGN: u8 = 0x02;
/// Bits of [`NETSCAPE_TYPE`].
const NETSCAPE_CLIENT: u8 = 0x80;
const NETSCAPE_SERVER: u8 = 0x40;

/// Who shows a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    Client,
    Server,
}

/// A certificate's parts, in DER (RFC 5280, section 4.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct Certificate<'a> {
    /// What is signed, with its tag and length, and without.
    pub content: &'a [u8],
    pub inside: &'a [u8],
    /// The signature and its algorithm, as they stand behind it.
    pub behind: &'a [u8],
    pub signature: &'a [u8],
    is_first_version: bool,
    /// Two's complement.
    pub serial: &'a [u8],
    pub issuer: &'a [u8],
    validity: &'a [u8],
    pub subject: &'a [u8],
    /// The subject's public key, with its kind.
    pub key: &'a [u8],
    extensions: &'a [u8],
}

impl<'a> Certificate<'a> {
    pub(super) fn read(der: &'a [u8]) -> Option<Self> {
        const VERSION: u8 = 0xa0;
        const EXTENSIONS: u8 = 0xa3;
        let mut whole = Element::only(der, SEQUENCE)?.content;
        let signed = Element::take_tagged(&mut whole, SEQUENCE)?;
        let behind = whole;
        Element::take_tagged(&mut whole, SEQUENCE)?;
        let (_unused_bits, signature) = Element::only(whole, BIT_STRING)?.content.split_first()?;
        let mut content = signed.content;
        let mut serial = Element::take(&mut content)?;
        let is_first_version = serial.tag != VERSION;
        if !is_first_version {
            serial = Element::take(&mut content)?;
        }
        let mut sequence = || Some(Element::take_tagged(&mut content, SEQUENCE)?.whole);
        let _algorithm = sequence()?;
        let (issuer, validity, subject, key) = (sequence()?, sequence()?, sequence()?, sequence()?);
        let mut extensions = &[][..];
        while !content.is_empty() {
            // Before them stand identifiers that are not used.
            let part = Element::take(&mut content)?;
            if part.tag == EXTENSIONS && content.is_empty() {
                let list = Element::only(part.content, SEQUENCE)?;
                // What cannot be read shall not be taken for absent.
                let is_whole = list.inside()?.iter().all(|one| one.tag == SEQUENCE);
                extensions = is_whole.then_some(list.content)?;
            }
        }
        let serial = (serial.tag == INTEGER && !serial.content.is_empty()).then_some(serial)?;
        Some(Self {
            content: signed.whole,
            inside: signed.content,
            behind,
            signature,
            is_first_version,
            serial: serial.content,
            issuer,
            validity,
            subject,
            key,
            extensions,
        })
    }

    /// Whether it is of the first version of X.509.
    pub(super) fn is_first_version(&self) -> bool {
        self.is_first_version
    }

    /// Where in the content it is said that this is an authority's, if it is.
    pub(super) fn authority_flag(&self) -> Option<usize> {
        let mut rest = self.extensions;
        while let Some(extension) = Element::take_tagged(&mut rest, SEQUENCE) {
            let mut parts = extension.content;
            let id = Element::take_tagged(&mut parts, OBJECT_IDENTIFIER)?;
            if id.content == ID_CE_BASIC_CONSTRAINTS.as_bytes() {
                let value = std::iter::from_fn(|| Element::take(&mut parts)).last()?;
                if !parts.is_empty() {
                    // It is broken: nothing is at the end then.
                    return None;
                }
                let mut constraints = Element::only(value.content, SEQUENCE)?.content;
                // All of them end where the extension does, and the list of extensions where the
                // content does.
                let end = self.content.len() - rest.len();
                let start = end - constraints.len();
                let flag = Element::take_tagged(&mut constraints, BOOLEAN)?;
                return (flag.whole == [BOOLEAN, 1, 0xff]).then_some(start + 2);
            }
        }
        None
    }

    /// When it begins and ceases to be valid, since 1970.
    pub(super) fn validity(&self) -> Option<(Duration, Duration)> {
        let validity: Validity = Validity::from_der(self.validity).ok()?;
        Some((validity.not_before.to_unix_duration(), validity.not_after.to_unix_duration()))
    }

    /// Whether it signed itself, going by its names.
    pub(super) fn is_self_issued(&self) -> bool {
        self.subject == self.issuer
    }

    /// Whether it may be shown by a client, or by a server. What says nothing of its use is for any.
    pub(super) fn is_for(&self, purpose: Purpose) -> bool {
        let (usage, netscape_type, wanted) = match purpose {
            Purpose::Client => {
                (DIGITAL_SIGNATURE | KEY_AGREEMENT, NETSCAPE_CLIENT, ID_KP_CLIENT_AUTH)
            }
            Purpose::Server => (
                DIGITAL_SIGNATURE | KEY_ENCIPHERMENT | KEY_AGREEMENT,
                NETSCAPE_SERVER,
                ID_KP_SERVER_AUTH,
            ),
        };
        self.has_any(&ID_CE_KEY_USAGE, usage)
            && self.has_any(&NETSCAPE_TYPE, netscape_type)
            && self.extension(&ID_CE_EXT_KEY_USAGE).is_none_or(|value| {
                let purposes = Element::only(value, SEQUENCE).and_then(|list| list.inside());
                let is_wanted = |purpose: &Element<'_>| purpose.content == wanted.as_bytes();
                purposes.is_some_and(|purposes| purposes.iter().any(is_wanted))
            })
    }

    /// Whether its key may sign certificates, according to its keyUsage.
    pub(super) fn may_sign_certificates(&self) -> bool {
        self.has_any(&ID_CE_KEY_USAGE, KEY_CERT_SIGN)
    }

    /// Whether its key may sign lists of revoked certificates.
    pub(super) fn may_sign_lists(&self) -> bool {
        self.has_any(&ID_CE_KEY_USAGE, CRL_SIGN)
    }

    /// Whether it has alternative names of a kind defined elsewhere (otherName); also `true` where they cannot
    /// be read.
    pub(super) fn has_other_names(&self) -> bool {
        const OTHER_NAME: u8 = 0xa0;
        self.has_alternative_names(OTHER_NAME)
    }

    /// Whether it has hosts' names among its alternative names; also `true` where they cannot be read.
    pub(super) fn has_host_names(&self) -> bool {
        const DNS_NAME: u8 = 0x82;
        self.has_alternative_names(DNS_NAME)
    }

    /// Whether alternative names of a kind stand in it (RFC 5280, section 4.2.1.6).
    fn has_alternative_names(&self, kind: u8) -> bool {
        self.extension(&ID_CE_SUBJECT_ALT_NAME).is_some_and(|value| {
            let names = Element::only(value, SEQUENCE).and_then(|list| list.inside());
            names.is_none_or(|names| names.iter().any(|name| name.tag == kind))
        })
    }

    pub(super) fn constrains_names(&self) -> bool {
        self.extension(&ID_CE_NAME_CONSTRAINTS).is_some()
    }

    /// Whether one of the `wanted` bits is set; also `true` without the extension. What cannot be read has none set.
    fn has_any(&self, extension: &ObjectIdentifier, wanted: u8) -> bool {
        self.extension(extension).is_none_or(|value| {
            // The first byte counts the bits unused in the last one.
            let bits = Element::only(value, BIT_STRING).and_then(|bits| bits.content.get(1));
            bits.is_some_and(|bits| bits & wanted != 0)
        })
    }

    /// The value of an extension.
    fn extension(&self, wanted: &ObjectIdentifier) -> Option<&'a [u8]> {
        let mut rest = self.extensions;
        while let Some(extension) = Element::take_tagged(&mut rest, SEQUENCE) {
            let mut parts = extension.content;
            let id = Element::take_tagged(&mut parts, OBJECT_IDENTIFIER)?;
            if id.content == wanted.as_bytes() {
                let parts = std::iter::from_fn(|| Element::take(&mut parts));
                return Some(parts.last().filter(|last| last.tag == OCTET_STRING)?.content);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::der::element;
    use super::*;

    fn certificate(extensions: &[&[u8]]) -> Vec<u8> {
        let empty = element(SEQUENCE, &[]);
        let extensions = element(0xa3, &[&element(SEQUENCE, extensions)]);
        let content = [&[2, 1, 7][..], &empty, &empty, &empty, &empty, &empty, &extensions];
        let content = element(SEQUENCE, &content);
        element(SEQUENCE, &[&content, &empty, &element(BIT_STRING, &[&[0, 1, 2]])])
    }

    fn extension(id: &ObjectIdentifier, value: &[u8]) -> Vec<u8> {
        let id = element(OBJECT_IDENTIFIER, &[id.as_bytes()]);
        element(SEQUENCE, &[&id, &[1, 1, 0xff], &element(OCTET_STRING, &[value])])
    }

    #[test]
    fn use_is_what_extensions_say_and_nothing_if_they_are_broken() {
        let usage = |value: &[u8]| {
            let der = certificate(&[&extension(&ID_CE_KEY_USAGE, value)]);
            let found = Certificate::read(&der).unwrap();
            let may_sign = [found.may_sign_certificates(), found.may_sign_lists()];
            let is_servers = found.is_for(Purpose::Server);
            assert!(is_servers || !found.is_for(Purpose::Client));
            [found.is_for(Purpose::Client), may_sign[0], may_sign[1]]
        };
        assert_eq!(usage(&[3, 2, 7, 0x80]), [true, false, false]);
        assert_eq!(usage(&[3, 2, 3, 0x08]), [true, false, false]);
        assert_eq!(usage(&[3, 2, 1, 0x06]), [false, true, true]);
        assert_eq!(usage(&[3, 2, 2, 0x04]), [false, true, false]);
        for broken in [&[][..], &[3], &[3, 0], &[3, 1, 0], &[4, 2, 7, 0xff], &[3, 2, 7, 0x80, 0]] {
            assert_eq!(usage(broken), [false; 3], "{broken:?}");
        }
        let none = certificate(&[]);
        let none = Certificate::read(&none).unwrap();
        assert!(none.is_for(Purpose::Client) && none.is_for(Purpose::Server));
        assert!(none.may_sign_certificates() && none.may_sign_lists());
        assert_eq!((none.serial, none.signature), (&[7][..], &[1, 2][..]));
    }

    #[test]
    fn the_flag_of_an_authority_is_found_where_it_stands() {
        let usage = extension(&ID_CE_KEY_USAGE, &[3, 2, 1, 0x06]);
        let authority = |value: &[u8]| extension(&ID_CE_BASIC_CONSTRAINTS, value);
        let flag = |extensions: &[&[u8]]| {
            let der = certificate(extensions);
            let found = Certificate::read(&der).unwrap();
            found.authority_flag().map(|at| found.content[at..] == [&[0xff][..], &usage].concat())
        };
        assert_eq!(flag(&[&usage, &authority(&[0x30, 3, 1, 1, 0xff]), &usage]), Some(true));
        for value in [&[0x30, 0][..], &[0x30, 3, 1, 1, 0], &[0x30, 3, 2, 1, 0xff], &[1, 1, 0xff]] {
            assert_eq!(flag(&[&authority(value), &usage]), None, "{value:?}");
        }
    }

    #[test]
    fn an_extension_that_cannot_be_read_hides_no_other() {
        let usage = extension(&ID_CE_KEY_USAGE, &[3, 2, 1, 0x06]);
        for broken in [&[0x30, 0x85, 0, 0, 0, 0, 0][..], &[0x31, 0], &[0x1f, 0], &[0x30]] {
            assert!(Certificate::read(&certificate(&[broken, &usage])).is_none(), "{broken:?}");
        }
    }

    #[test]
    fn every_cut_of_a_certificate_is_refused() {
        let whole = certificate(&[&extension(&ID_CE_KEY_USAGE, &[3, 2, 1, 0x06])]);
        for length in 0..whole.len() {
            assert!(Certificate::read(&whole[..length]).is_none(), "{length}");
        }
        assert!(Certificate::read(&[&whole[..], &[0]].concat()).is_none());
    }
}
