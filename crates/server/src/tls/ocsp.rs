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
pub(super) struct OcspRequest {
    pub(super) tbs_request: TbsRequest,
}

#[derive(Debug, Sequence)]
pub(super) struct TbsRequest {
    pub(super) request_list: Vec<Request>,
}

#[derive(Debug, Sequence)]
pub(super) struct Request {
    pub(super) req_cert: CertId,
}

#[derive(Clone, Debug, Eq, PartialEq, Sequence)]
pub(super) struct CertId {
    pub(super) hash_algorithm: AlgorithmIdentifierOwned,
    pub(super) issuer_name_hash: OctetString,
    pub(super) issuer_key_hash: OctetString,
    pub(super) serial_number: SerialNumber,
}

#[derive(Debug, Sequence)]
pub(super) struct OcspResponse {
    pub(super) response_status: OcspResponseStatus,
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub(super) response_bytes: Option<ResponseBytes>,
}

#[derive(Clone, Copy, Debug, Enumerated, Eq, PartialEq)]
#[repr(u32)]
pub(super) enum OcspResponseStatus {
    Successful = 0,
    MalformedRequest = 1,
    InternalError = 2,
    TryLater = 3,
    SigRequired = 5,
    Unauthorized = 6,
}

#[derive(Debug, Sequence)]
pub(super) struct ResponseBytes {
    pub(super) response_type: ObjectIdentifier,
    pub(super) response: OctetString,
}

#[derive(Debug, Sequence)]
pub(super) struct BasicOcspResponse {
    pub(super) tbs_response_data: ResponseData,
    pub(super) signature_algorithm: AlgorithmIdentifierOwned,
    pub(super) signature: BitString,
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub(super) certs: Option<Vec<Certificate>>,
}

#[derive(Debug, Sequence)]
pub(super) struct ResponseData {
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub(super) version: Option<u8>,
    /// A name or a hash of a key; whose signature it is, we find by trying.
    pub(super) responder_id: Any,
    pub(super) produced_at: GeneralizedTime,
    pub(super) responses: Vec<SingleResponse>,
    #[asn1(context_specific = "1", optional = "true", tag_mode = "EXPLICIT")]
    pub(super) response_extensions: Option<Extensions>,
}

#[derive(Debug, Sequence)]
pub(super) struct SingleResponse {
    pub(super) cert_id: CertId,
    pub(super) cert_status: CertStatus,
    pub(super) this_update: GeneralizedTime,
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub(super) next_update: Option<GeneralizedTime>,
    #[asn1(context_specific = "1", optional = "true", tag_mode = "EXPLICIT")]
    pub(super) single_extensions: Option<Extensions>,
}

#[derive(Choice, Clone, Debug)]
pub(super) enum CertStatus {
    #[asn1(context_specific = "0", tag_mode = "IMPLICIT")]
    Good(Null),
    #[asn1(context_specific = "1", tag_mode = "IMPLICIT", constructed = "true")]
    Revoked(RevokedInfo),
    #[asn1(context_specific = "2", tag_mode = "IMPLICIT")]
    Unknown(Null),
}

#[derive(Clone, Debug, Sequence)]
pub(super) struct RevokedInfo {
    pub(super) revocation_time: GeneralizedTime,
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub(super) revocation_reason: Option<CrlReason>,
}
