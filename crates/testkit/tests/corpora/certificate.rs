//! Certificates that clients send: with any content, reading ends, and a name is written in printable characters
//! with as many attributes as it has.

#[path = "../../../tls/src/certificate.rs"]
#[allow(
    clippy::module_inception,
    dead_code,
    unreachable_pub,
    reason = "the server uses more of it, and it is its module's name"
)]
mod certificate;
#[path = "../../../tls/src/der.rs"]
#[allow(dead_code, unreachable_pub, reason = "the server uses more of it")]
mod der;
#[path = "../../../tls/src/distinguished_name.rs"]
#[allow(dead_code, unreachable_pub, reason = "the server uses more of it")]
mod distinguished_name;

use certificate::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::name::Name;

/// Separators of attributes in a name of RFC 2253.
fn separators(text: &str) -> usize {
    let mut is_escaped = false;
    let mut is_separator = |character: char| {
        let is_free = !is_escaped;
        is_escaped = is_free && character == '\\';
        is_free && matches!(character, ',' | '+')
    };
    text.chars().filter(|character| is_separator(*character)).count()
}

fn check_name(name: &[u8]) {
    let texts = (distinguished_name::rfc2253(name), distinguished_name::one_line(name));
    for text in [&texts.0, &texts.1].into_iter().flatten() {
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text}");
    }
    let count = Name::from_der(name).map(|name| name.iter().count());
    if let (Some(text), Ok(count @ 1_usize..)) = (texts.0, count) {
        assert_eq!(separators(&text), count - 1, "{text}");
    }
    let _ = (distinguished_name::has_mail_address(name), distinguished_name::may_name_host(name));
}

pub(crate) fn check(input: &[u8]) {
    check_name(input);
    if let Some(found) = Certificate::read(input) {
        check_name(found.subject);
        check_name(found.issuer);
        let _ =
            (found.validity(), found.is_for(certificate::Purpose::Server), found.has_other_names());
        assert!(found.authority_flag().is_none_or(|at| found.content[at] == 0xff));
        assert_eq!(found.is_self_issued(), found.subject == found.issuer);
    }
}
