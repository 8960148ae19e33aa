//! Signatures of what is not a certificate on a path, by the algorithms of the TLS library.

use super::provider;
use rustls::DigitallySignedStruct;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use x509_cert::der::asn1::BitString;
use x509_cert::der::{Decode as _, Encode as _, Header, Reader as _, SliceReader};
use x509_cert::spki::{AlgorithmIdentifierOwned, SubjectPublicKeyInfoOwned};

/// Whether the content is signed with the key.
pub fn is_signed(
    content: &[u8],
    algorithm: &AlgorithmIdentifierOwned,
    signature: &BitString,
    key: &SubjectPublicKeyInfoOwned,
) -> bool {
    let (Some(kind), Some(key_kind)) = (inner(algorithm), inner(&key.algorithm)) else {
        return false;
    };
    let known = provider().signature_verification_algorithms.all;
    let known = known.iter().find(|known| {
        *known.signature_alg_id() == kind[..] && *known.public_key_alg_id() == key_kind[..]
    });
    let bits = (key.subject_public_key.as_bytes(), signature.as_bytes());
    let (Some(known), (Some(key), Some(signature))) = (known, bits) else { return false };
    known.verify_signature(key, content, signature).is_ok()
}

/// Whether a peer has signed the messages of a handshake with the key, in a way that TLS 1.2 has (RFC 5246, section 7.4.8).
pub(super) fn is_signed_in_handshake(
    message: &[u8],
    signed: &DigitallySignedStruct,
    key: &SubjectPublicKeyInfoDer<'_>,
) -> bool {
    let Ok(key) = SubjectPublicKeyInfoOwned::from_der(key) else { return false };
    let (Some(kind), Some(bits)) = (inner(&key.algorithm), key.subject_public_key.as_bytes())
    else {
        return false;
    };
    let mapping = provider().signature_verification_algorithms.mapping;
    let known = mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    known.is_some_and(|(_, known)| {
        let mut of_kind = known.iter().filter(|known| *known.public_key_alg_id() == kind[..]);
        of_kind.any(|known| known.verify_signature(bits, message, signed.signature()).is_ok())
    })
}

/// The content of an algorithm's identifier, as the provider names it.
fn inner(algorithm: &AlgorithmIdentifierOwned) -> Option<Vec<u8>> {
    let der = algorithm.to_der().ok()?;
    let mut reader = SliceReader::new(&der).ok()?;
    Header::decode(&mut reader).ok()?;
    let start = usize::try_from(reader.position()).ok()?;
    Some(der[start..].to_vec())
}
