//! The PROXY protocol: a header that is read is read the same from its own bytes alone, and none of its
//! beginnings is taken for a whole or a broken one.

use yorozu_wire::proxy_protocol::read;

pub(crate) fn check(input: &[u8]) {
    let Ok(Some((header, length))) = read(input) else { return };
    assert_eq!(read(&input[..length]), Ok(Some((header.clone(), length))));
    for shorter in 0..length {
        assert_eq!(read(&input[..shorter]), Ok(None));
    }
    for name in ["alpn", "ssl_cn", "ssl_verify", "0x20", "nonsense"] {
        let _ = header.tlv(name);
    }
}
