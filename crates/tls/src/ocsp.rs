//! What is said to and by a responder for the states of certificates, as far as we say and read it.
//!
//! # Source
//! RFC 6960, appendix B.1, with its names.

use der::asn1::{BitString, GeneralizedTime, Null, ObjectIdentifier, OctetString};
use der::{Any, Choice, Enumerated, Sequence};
use x509_cert::Certificate;
use x509_cert::ext::Extensions;
use x509_cert::ext::pkix::CrlReason;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::AlgorithmIdentifierOwned;

#[derive(Debug, Sequence)]
pub struct OcspRequest {
    pub tbs_request: TbsRequest,
}

#[derive(Debug, Sequence)]
pub struct TbsRequest {
    pub request_list: Vec<Request>,
}

#[derive(Debug, Sequence)]
pub struct Request {
    pub req_cert: CertId,
}

#[derive(Clone, Debug, Eq, PartialEq, Sequence)]
pub struct CertId {
    pub hash_algorithm: AlgorithmIdentifierOwned,
    pub issuer_name_hash: OctetString,
    pub issuer_key_hash: OctetString,
    pub serial_number: SerialNumber,
}

#[derive(Debug, Sequence)]
pub struct OcspResponse {
    pub response_status: OcspResponseStatus,
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub response_bytes: Option<ResponseBytes>,
}

#[derive(Clone, Copy, Debug, Enumerated, Eq, PartialEq)]
#[repr(u32)]
pub enum OcspResponseStatus {
    Successful = 0,
    MalformedRequest = 1,
    InternalError = 2,
    TryLater = 3,
    SigRequired = 5,
    Unauthorized = 6,
}

#[derive(Debug, Sequence)]
pub struct ResponseBytes {
    pub response_type: ObjectIdentifier,
    pub response: OctetString,
}

#[derive(Debug, Sequence)]
pub struct BasicOcspResponse {
    pub tbs_response_data: ResponseData,
    pub signature_algorithm: AlgorithmIdentifierOwned,
    pub signature: BitString,
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub certs: Option<Vec<Certificate>>,
}

#[derive(Debug, Sequence)]
pub struct ResponseData {
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub version: Option<u8>,
    /// A name or a hash of a key; the signer is found by trying.
    pub responder_id: Any,
    pub produced_at: GeneralizedTime,
    pub responses: Vec<SingleResponse>,
    #[asn1(context_specific = "1", optional = "true", tag_mode = "EXPLICIT")]
    pub response_extensions: Option<Extensions>,
}

#[derive(Debug, Sequence)]
pub struct SingleResponse {
    pub cert_id: CertId,
    pub cert_status: CertStatus,
    pub this_update: GeneralizedTime,
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub next_update: Option<GeneralizedTime>,
    #[asn1(context_specific = "1", optional = "true", tag_mode = "EXPLICIT")]
    pub single_extensions: Option<Extensions>,
}

#[derive(Choice, Clone, Debug)]
pub enum CertStatus {
    #[asn1(context_specific = "0", tag_mode = "IMPLICIT")]
    Good(Null),
    #[asn1(context_specific = "1", tag_mode = "IMPLICIT", constructed = "true")]
    Revoked(RevokedInfo),
    #[asn1(context_specific = "2", tag_mode = "IMPLICIT")]
    Unknown(Null),
}

#[derive(Clone, Debug, Sequence)]
pub struct RevokedInfo {
    pub revocation_time: GeneralizedTime,
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub revocation_reason: Option<CrlReason>,
}
