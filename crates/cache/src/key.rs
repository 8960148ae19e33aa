//! Keys: what a stored response is found by.

use bytes::Bytes;
use md5::{Digest, Md5};

/// What an alias begins with.
const ALIAS: u8 = b' ';

/// What the key of a URL begins with.
pub(crate) const URL: &[u8] = b"url //";

/// Which variant of a varying response: a digest of the request fields that `Vary` names.
pub type VariantId = [u8; 16];

/// A cache key: the text of `fastcgi_cache_key`, or that text and a [`VariantId`].
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Key(Bytes);

impl Key {
    /// The key of the first variant, and of responses that do not vary.
    pub fn new(text: Bytes) -> Self {
        Self(text)
    }

    /// The key of a further variant.
    ///
    /// The separator is a NUL, so no primary key equals a variant's: targets and fields with NUL are refused, and what has
    /// content that brings one into its key (`$request_body`) is not stored.
    #[must_use]
    pub fn variant(&self, id: &VariantId) -> Self {
        let mut text = Vec::with_capacity(self.0.len() + 1 + id.len());
        text.extend_from_slice(&self.0);
        text.push(0);
        text.extend_from_slice(id);
        Self(text.into())
    }

    /// The key of the first variant.
    #[must_use]
    pub fn page(&self) -> Self {
        match self.0.iter().position(|byte| *byte == 0) {
            Some(at) => Self(self.0.slice(..at)),
            None => self.clone(),
        }
    }

    /// What the keys of further variants begin with.
    pub(crate) fn variants_prefix(&self) -> Vec<u8> {
        [&self.0[..], b"\0"].concat()
    }

    /// The tag of a response that is stored under another key, and purged under this one as well. Tags that upstreams give
    /// have no spaces.
    pub fn alias(&self) -> Bytes {
        [&[ALIAS], &self.0[..]].concat().into()
    }

    /// The key that no response is stored under, and that is an alias of what a URL led to: it is purged beside the
    /// keys that the URL has.
    pub fn of_url(host: &[u8], target: &[&[u8]]) -> Self {
        Self([URL, host, &target.concat()].concat().into())
    }

    /// The key that an [`alias`](Key::alias) names.
    pub fn of_alias(tag: &Bytes) -> Option<Self> {
        (tag.first() == Some(&ALIAS)).then(|| Self(tag.slice(1..)))
    }

    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// MD5, as nginx names its cache files; not a security property.
    pub fn digest(&self) -> [u8; 16] {
        Md5::digest(&self.0).into()
    }
}

impl Key {
    /// Digest of what tells the variants of a response apart: the request fields that `Vary` names,
    /// in a form of the caller's.
    pub fn variant_id(selecting: &[u8]) -> VariantId {
        Md5::digest(selecting).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_nginx_s() {
        // nginx, ngx_http_proxy_module, proxy_cache_path: the file name is MD5 of the key.
        let key = Key::new(Bytes::from_static(b"abc"));
        assert_eq!(key.digest()[..4], [0x90, 0x01, 0x50, 0x98]);
    }

    #[test]
    fn variants_have_keys_of_their_own() {
        let key = Key::new(Bytes::from_static(b"abc"));
        let id = Key::variant_id(b"accept:x");
        assert_ne!(key, key.variant(&id));
        assert_ne!(id, Key::variant_id(b"accept:y"));
    }
}
