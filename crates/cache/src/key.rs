//! Keys: what a stored response is found by.

use bytes::Bytes;
use md5::{Digest, Md5};

/// What the key of a URL begins with.
const URL: &[u8] = b"url //";

/// What the tag of a URL begins with. Tags that upstreams give have no spaces.
const URL_TAG: u8 = b' ';

/// Which variant of a varying response: a digest of the request fields that `Vary` names.
pub type VariantId = [u8; 16];

/// What parts the text of a key from what follows it. Targets and fields with NUL are refused, and what has content that
/// brings one into its key (`$request_body`) is not stored.
pub(crate) const SEPARATOR: u8 = 0;
/// What a secondary key begins with.
const SECONDARY: u8 = b'+';
/// Bytes of a secondary key.
const SECONDARY_BYTES: usize = 1 + size_of::<VariantId>();

/// A cache key.
///
/// ```text
/// text of fastcgi_cache_key                                      page
/// text of fastcgi_cache_key NUL "+" secondary key                page of requests that differ beyond the key
/// either of them            NUL variant                          further variant
/// ```
/// The first two are addresses. Secondary key and variant are digests of 16 bytes.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Key(Bytes);

impl Key {
    /// The key of the first variant, and of responses that do not vary.
    pub fn new(text: Bytes) -> Self {
        Self(text)
    }

    /// The key of a further variant.
    #[must_use]
    pub fn variant(&self, id: &VariantId) -> Self {
        self.followed_by(&[], id)
    }

    /// The address of those requests for the page whose secondary key has this digest.
    #[must_use]
    pub fn with_secondary(&self, id: &VariantId) -> Self {
        self.followed_by(&[SECONDARY], id)
    }

    fn followed_by(&self, mark: &[u8], id: &VariantId) -> Self {
        Self([&self.0[..], &[SEPARATOR], mark, id].concat().into())
    }

    /// Where the text of `*_cache_key` ends.
    fn text_bytes(&self) -> usize {
        self.0.iter().position(|byte| *byte == SEPARATOR).unwrap_or(self.0.len())
    }

    /// Where the address ends, and a variant may follow.
    fn address_bytes(&self) -> usize {
        let text = self.text_bytes();
        let is_split = self.0.get(text + 1) == Some(&SECONDARY);
        // A variant may begin with that byte, and is shorter.
        match text + 1 + SECONDARY_BYTES {
            end if is_split && self.0.len() >= end => end,
            _ => text,
        }
    }

    /// The page: the text of `*_cache_key` alone, under which all addresses and variants are purged.
    #[must_use]
    pub fn page(&self) -> Self {
        Self(self.0.slice(..self.text_bytes()))
    }

    /// The key of the first variant.
    #[must_use]
    pub fn address(&self) -> Self {
        Self(self.0.slice(..self.address_bytes()))
    }

    /// Whether the address has a secondary key.
    pub fn has_secondary(&self) -> bool {
        self.address_bytes() > self.text_bytes()
    }

    /// The keys whose purge takes this one: itself, its address, its page. Some may be the same.
    pub(crate) fn purged_with(&self) -> [Self; 3] {
        [self.clone(), self.address(), self.page()]
    }

    /// What the keys of its further addresses and variants begin with.
    pub(crate) fn further_prefix(&self) -> Vec<u8> {
        [&self.0[..], &[SEPARATOR]].concat()
    }

    /// What the keys of its addresses with a secondary key begin with.
    pub(crate) fn addresses_prefix(&self) -> Vec<u8> {
        [&self.0[..], &[SEPARATOR, SECONDARY]].concat()
    }

    /// The key under which pages are purged that bear a URL; no response is stored under it.
    pub fn of_url(host: &[u8], target: &[u8]) -> Self {
        Self([URL, host, target].concat().into())
    }

    /// The tag of a page that bears the URL of this key.
    pub fn to_tag(&self) -> Bytes {
        [&[URL_TAG], &self.0[..]].concat().into()
    }

    /// The key of the URL that a tag names, if it names one.
    pub fn of_tag(tag: &Bytes) -> Option<Self> {
        (tag.first() == Some(&URL_TAG)).then(|| Self(tag.slice(1..)))
    }

    /// The host and the target of the URL that a tag names, if it names one.
    pub(crate) fn url_of_tag(tag: &[u8]) -> Option<&[u8]> {
        Self::url(tag.strip_prefix(&[URL_TAG])?)
    }

    /// The host and the target of a URL's key, or as much of them as the beginning of one holds.
    pub(crate) fn url(key: &[u8]) -> Option<&[u8]> {
        key.strip_prefix(URL)
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
    fn a_page_has_addresses_and_each_of_them_variants() {
        let page = Key::new(Bytes::from_static(b"abc"));
        // One that looks like the beginning of a secondary key.
        let id = [SECONDARY; 16];
        let split = page.with_secondary(&id);
        for (address, has_secondary) in [(&page, false), (&split, true)] {
            for key in [address.clone(), address.variant(&id)] {
                assert_eq!((key.address(), key.page()), (address.clone(), page.clone()));
                assert_eq!(key.has_secondary(), has_secondary);
            }
        }
        assert_ne!(split, page.variant(&id));
    }

    #[test]
    fn variants_have_keys_of_their_own() {
        let key = Key::new(Bytes::from_static(b"abc"));
        let id = Key::variant_id(b"accept:x");
        assert_ne!(key, key.variant(&id));
        assert_ne!(id, Key::variant_id(b"accept:y"));
    }
}
