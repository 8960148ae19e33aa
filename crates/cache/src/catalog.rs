//! What is stored under which key and with which tags: so that a purge by prefix or tag costs what it
//! matches. Kept for memory and disk; filled again from the files after a start.

use crate::Key;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes of a key, shared by all that name it.
type Name = Arc<[u8]>;
/// The tags of a key; a small pointer, for there may be millions without any.
#[allow(clippy::box_collection, reason = "a third of the size")]
type Tags = Option<Box<Vec<Bytes>>>;

#[derive(Debug, Default)]
struct Lists {
    /// Tags of each key; none for most.
    keys: BTreeMap<Name, Tags>,
    tags: HashMap<Bytes, HashSet<Name>>,
    /// What stood before a NUL in any tag: the hosts that tags belong to.
    hosts: BTreeSet<Bytes>,
}

/// The keys of a zone, in their order, and by tag.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    lists: Mutex<Lists>,
}

impl Catalog {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        // A panic in the middle of a change leaves a tag too many or too few, never a wrong page.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a key with the tags it has now.
    pub(crate) fn add(&self, key: &Key, tags: &[Bytes]) {
        let mut lists = self.lists();
        let known = lists.keys.get_key_value(key.as_bytes());
        let name = known.map_or_else(|| Name::from(key.as_bytes()), |(name, _)| Arc::clone(name));
        let new = (!tags.is_empty()).then(|| Box::new(tags.to_vec()));
        let old = lists.keys.insert(Arc::clone(&name), new).flatten();
        for tag in old.iter().flat_map(|old| old.iter()).filter(|tag| !tags.contains(tag)) {
            lists.untag(tag, &name);
        }
        for tag in tags {
            if let Some(at) = host_end(tag) {
                if !lists.hosts.contains(&tag[..at]) {
                    lists.hosts.insert(Bytes::copy_from_slice(&tag[..at]));
                }
            }
            lists.tags.entry(tag.clone()).or_default().insert(Arc::clone(&name));
        }
    }

    /// Forgets a key.
    pub(crate) fn remove(&self, key: &[u8]) {
        let mut lists = self.lists();
        if let Some((name, tags)) = lists.keys.remove_entry(key) {
            for tag in tags.iter().flat_map(|tags| tags.iter()) {
                lists.untag(tag, &name);
            }
        }
    }

    /// The keys that begin with `prefix`.
    pub(crate) fn with_prefix(&self, prefix: &[u8]) -> Vec<Key> {
        let lists = self.lists();
        let range = (Bound::Included(prefix), Bound::Unbounded);
        let found = lists.keys.range::<[u8], _>(range).map(|(name, _)| name);
        found.take_while(|name| name.starts_with(prefix)).map(key).collect()
    }

    /// The keys with `tag`; one that begins with a NUL means that of every host.
    pub(crate) fn with_tag(&self, tag: &[u8]) -> Vec<Key> {
        let lists = self.lists();
        let with = |tag: &[u8]| lists.tags.get(tag).into_iter().flatten().map(key).collect();
        if tag.first() != Some(&0) {
            return with(tag);
        }
        let of_host = |host: &Bytes| -> Vec<Key> { with(&[&host[..], tag].concat()) };
        lists.hosts.iter().flat_map(of_host).collect()
    }

    /// A key and its further variants.
    pub(crate) fn of_page(&self, page: &Key) -> Vec<Key> {
        let mut found = self.with_prefix(&page.variants_prefix());
        if self.lists().keys.contains_key(page.as_bytes()) {
            found.push(page.clone());
        }
        found
    }

    /// How many keys are known.
    pub(crate) fn len(&self) -> usize {
        self.lists().keys.len()
    }

    /// Forgets the keys that `is_kept` does not want.
    pub(crate) fn retain(&self, mut is_kept: impl FnMut(&Key) -> bool) {
        let names: Vec<Name> = self.lists().keys.keys().map(Arc::clone).collect();
        for name in names.iter().filter(|name| !is_kept(&key(name))) {
            self.remove(name);
        }
    }
}

/// Where the host of a tag ends: at a NUL.
pub(crate) fn host_end(tag: &[u8]) -> Option<usize> {
    tag.iter().position(|byte| *byte == 0)
}

fn key(name: &Name) -> Key {
    Key::primary(Bytes::copy_from_slice(name))
}

impl Lists {
    fn untag(&mut self, tag: &Bytes, name: &Name) {
        if let Some(names) = self.tags.get_mut(tag) {
            names.remove(name);
            if names.is_empty() {
                self.tags.remove(tag);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &'static str) -> Key {
        Key::primary(Bytes::from_static(text.as_bytes()))
    }

    fn texts(mut keys: Vec<Key>) -> Vec<String> {
        keys.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
        keys.iter().map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned()).collect()
    }

    #[test]
    fn keys_are_found_by_prefix_page_and_tag() {
        let catalog = Catalog::default();
        let tags = |list: &[&'static str]| -> Vec<Bytes> {
            list.iter().map(|tag| Bytes::from_static(tag.as_bytes())).collect()
        };
        catalog.add(&named("a/1"), &tags(&["home", "post-1"]));
        catalog.add(&named("a/2"), &tags(&["post-2"]));
        catalog.add(&named("a/2").variant(&[7; 16]), &tags(&["post-2"]));
        catalog.add(&named("a/22"), &[]);
        catalog.add(&named("b"), &tags(&["home"]));
        assert_eq!(texts(catalog.with_prefix(b"a/")).len(), 4);
        assert_eq!(texts(catalog.with_prefix(b"a/22")), ["a/22"]);
        assert_eq!(texts(catalog.with_tag(b"home")), ["a/1", "b"]);
        assert_eq!(catalog.of_page(&named("a/2")).len(), 2);
        catalog.add(&named("a/1"), &tags(&["post-1"]));
        assert_eq!(texts(catalog.with_tag(b"home")), ["b"]);
        catalog.remove(b"b");
        catalog.remove(b"b");
        assert!(catalog.with_tag(b"home").is_empty());
        catalog.retain(|key| key.as_bytes() == b"a/1");
        assert_eq!((catalog.len(), catalog.with_tag(b"post-1").len()), (1, 1));
        catalog.add(&named("h/1"), &tags(&["h\0home"]));
        catalog.add(&named("i/1"), &tags(&["i\0home", "i\0home2"]));
        assert_eq!(texts(catalog.with_tag(b"h\0home")), ["h/1"]);
        assert_eq!(texts(catalog.with_tag(b"\0home")), ["h/1", "i/1"]);
    }
}
