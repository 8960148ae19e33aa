//! What is stored under which key and with which tags and URLs: so that a purge costs what it matches. Kept for memory
//! and disk; filled again from the files after a start.

use crate::key::SEPARATOR;
use crate::{Key, VariantId};
use bytes::Bytes;
use slab::Slab;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The place of a tag in [`Lists::tags`].
type TagId = u32;

const TAG_ID_BYTES: usize = size_of::<TagId>();
const RANGE_BYTES: usize = 2 * size_of::<u32>();
/// What a key takes beside its text, a tag beside its own, a key's having a tag, its having a URL, and one that it ends with:
/// measured as resident memory of some hundred thousand, with the room that tables leave free and take while they grow.
const NAME_BYTES: usize = 96;
const TAG_BYTES: usize = 400;
const LINK_BYTES: usize = 48;
const URL_BYTES: usize = 60;
const LED_URL_BYTES: usize = 16;
/// What may stand before the URLs of keys: as many texts are looked up one by one. Chosen: scheme and method of some servers.
const LEADS_MAX: usize = 64;
/// Tables that are not worth being made smaller.
const SMALL_TABLE: usize = 1024;

/// A key, its tags and its URLs in one piece, for there may be millions. Shared by all that name it; equal and in order by
/// the key alone.
///
/// ```text
/// key | URLs that do not stand in it | start and end of each URL, u32 | places of tags, u32
///     | bytes of the key, u32 | number of URLs, u16 | number of tags, u16
/// ```
#[derive(Clone, Debug)]
struct Name(Arc<[u8]>);

/// What a [`Name`] ends with: bytes of the key, number of URLs, number of tags.
const COUNTS_BYTES: usize = size_of::<u32>() + 2 * size_of::<u16>();

impl Name {
    /// Far fewer URLs and tags fit into the longest response head than can be counted, and what is beyond is left out.
    fn new(key: &[u8], urls: &[&[u8]], tags: &[TagId]) -> Self {
        let count = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX).to_le_bytes();
        let (url_count, tag_count) = (count(urls.len()), count(tags.len()));
        let mut bytes = key.to_vec();
        let mut ranges = Vec::with_capacity(urls.len() * RANGE_BYTES);
        for url in urls.iter().take(url_count.into()) {
            // Most keys hold the URL of their page.
            let in_key = key.windows(url.len().max(1)).rposition(|part| part == *url);
            let start = in_key.unwrap_or_else(|| {
                bytes.extend_from_slice(url);
                bytes.len() - url.len()
            });
            ranges.extend(place(start));
            ranges.extend(place(start + url.len()));
        }
        bytes.append(&mut ranges);
        bytes.extend(tags.iter().take(tag_count.into()).flat_map(|tag| tag.to_le_bytes()));
        bytes.extend(place(key.len()));
        bytes.extend(url_count.to_le_bytes());
        bytes.extend(tag_count.to_le_bytes());
        Self(bytes.into())
    }

    /// What stands before the counts, and these.
    fn counts(&self) -> (&[u8], [usize; 3]) {
        let (rest, counts) = self.0.split_last_chunk::<COUNTS_BYTES>().unwrap_or((&[], &[0; _]));
        let [a, b, c, d, e, f, g, h] = *counts;
        let key = u32::from_le_bytes([a, b, c, d]) as usize;
        (rest, [key, u16::from_le_bytes([e, f]).into(), u16::from_le_bytes([g, h]).into()])
    }

    fn key(&self) -> &[u8] {
        let (rest, [key, ..]) = self.counts();
        &rest[..key]
    }

    fn bytes(&self) -> usize {
        let (rest, [_, urls, tags]) = self.counts();
        let texts = rest.len() - urls * RANGE_BYTES - tags * TAG_ID_BYTES;
        let led = (0..self.url_count()).filter(|at| self.lead(*at).is_some()).count();
        let urls = led * LED_URL_BYTES + (urls - led) * URL_BYTES;
        texts + NAME_BYTES + urls + tags * LINK_BYTES
    }

    fn tags(&self) -> impl Iterator<Item = TagId> + '_ {
        let (rest, [.., tags]) = self.counts();
        let ids = &rest[rest.len() - tags * TAG_ID_BYTES..];
        let ids = ids.chunks_exact(TAG_ID_BYTES).filter_map(<[u8]>::first_chunk);
        ids.map(|id| TagId::from_le_bytes(*id))
    }

    fn url_count(&self) -> u16 {
        let (_, [_, urls, _]) = self.counts();
        u16::try_from(urls).unwrap_or(u16::MAX)
    }

    fn range(&self, at: u16) -> Range<usize> {
        let (rest, [_, urls, tags]) = self.counts();
        let ranges = rest.len() - tags * TAG_ID_BYTES - urls * RANGE_BYTES;
        let range = rest[ranges + usize::from(at) * RANGE_BYTES..].first_chunk::<RANGE_BYTES>();
        let [a, b, c, d, e, f, g, h] = range.copied().unwrap_or_default();
        let place = |bytes| u32::from_le_bytes(bytes) as usize;
        place([a, b, c, d])..place([e, f, g, h])
    }

    fn url(&self, at: u16) -> &[u8] {
        self.0.get(self.range(at)).unwrap_or_default()
    }

    /// What stands in the key before a URL that the text of `*_cache_key` ends with.
    fn lead(&self, at: u16) -> Option<&[u8]> {
        let (key, range) = (self.key(), self.range(at));
        let is_end = match key.get(range.end) {
            Some(byte) => *byte == SEPARATOR && !key[range.clone()].contains(&SEPARATOR),
            None => range.end == key.len(),
        };
        is_end.then(|| &key[..range.start])
    }
}

/// A URL that a name bears, by its number; in the order of URLs.
#[derive(Clone, Debug)]
struct Borne(Name, u16);

impl Borne {
    /// What comes before all names that bear a URL, or one that it is the beginning of.
    fn first(url: &[u8]) -> Self {
        Self(Name::new(b"", &[url], &[]), 0)
    }

    fn url(&self) -> &[u8] {
        self.0.url(self.1)
    }
}

impl PartialEq for Borne {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Borne {}

impl PartialOrd for Borne {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Borne {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.url(), &self.0).cmp(&(other.url(), &other.0))
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

#[derive(Debug)]
struct Tag {
    text: Arc<[u8]>,
    names: HashSet<Name>,
}

#[derive(Debug, Default)]
struct Lists {
    names: BTreeSet<Name>,
    tags: Slab<Tag>,
    tag_ids: HashMap<Arc<[u8]>, TagId>,
    /// The URLs, but for those that keys end with: of these what stands before them, and how many such keys there are.
    urls: BTreeSet<Borne>,
    leads: BTreeMap<Arc<[u8]>, usize>,
    /// What stands before a NUL in any tag: the hosts that tags belong to, and how many tags each has.
    hosts: BTreeMap<Bytes, usize>,
    /// What names and tags take.
    bytes: usize,
}

/// The keys of a zone: in their order, by tag, and in the order of the URLs that they bear.
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
        let _ = self.add_within(u64::MAX, key, tags);
    }

    /// As [`Catalog::add`]; `false`: they are new, and other names take more than `bytes_max` already.
    pub(crate) fn add_within(&self, bytes_max: u64, key: &Key, tags: &[Bytes]) -> bool {
        let mut lists = self.lists();
        let old = lists.names.get(key.as_bytes());
        if old.is_some_and(|name| lists.is_tagged(name, tags)) {
            return true;
        }
        if (lists.bytes - old.map_or(0, Name::bytes)) as u64 > bytes_max {
            return false;
        }
        lists.remove(key.as_bytes());
        let urls: Vec<&[u8]> = borne(tags).collect();
        let ids: Vec<TagId> = given(tags).filter_map(|tag| lists.tag_id(tag)).collect();
        let name = Name::new(key.as_bytes(), &urls, &ids);
        (0..name.url_count()).for_each(|at| lists.add_url(&name, at));
        for id in name.tags() {
            if let Some(tag) = lists.tags.get_mut(id as usize) {
                tag.names.insert(name.clone());
            }
        }
        lists.bytes += name.bytes();
        lists.names.insert(name);
        true
    }

    /// Forgets a key.
    pub(crate) fn remove(&self, key: &[u8]) {
        self.lists().remove(key);
    }

    /// The keys that begin with `prefix`, or bear a URL that does.
    pub(crate) fn beginning(&self, prefix: &[u8]) -> Vec<Key> {
        match Key::url(prefix) {
            Some(url) => self.with_url(url, |found, url| found.starts_with(url)),
            None => self.with_prefix(prefix),
        }
    }

    /// The keys that bear a URL which begins with `url` and `fits` it.
    fn with_url(&self, url: &[u8], fits: fn(&[u8], &[u8]) -> bool) -> Vec<Key> {
        let lists = self.lists();
        let borne = lists.urls.range(Borne::first(url)..);
        let borne = borne.take_while(|borne| fits(borne.url(), url));
        let mut found: Vec<Key> = borne.map(|borne| key(&borne.0)).collect();
        for lead in lists.leads.keys() {
            let text = [lead, url].concat();
            // What may follow the URL of a key is the mark of an address or variant.
            let fits = |name: &&Name| {
                let key = name.key();
                let end = key.iter().position(|byte| *byte == SEPARATOR).unwrap_or(key.len());
                key.starts_with(&text) && fits(&key[lead.len()..end], url)
            };
            let names =
                lists.names.range::<[u8], _>((Bound::Included(&text[..]), Bound::Unbounded));
            let is_led = |name: &&Name| lists.is_led(name, lead);
            found.extend(names.take_while(fits).filter(is_led).map(key));
        }
        found
    }

    /// The keys that begin with `prefix`.
    pub(crate) fn with_prefix(&self, prefix: &[u8]) -> Vec<Key> {
        let lists = self.lists();
        let range = (Bound::Included(prefix), Bound::Unbounded);
        let found = lists.names.range::<[u8], _>(range);
        found.take_while(|name| name.key().starts_with(prefix)).map(key).collect()
    }

    /// The keys with `tag`; one that begins with a NUL means that of every host.
    pub(crate) fn with_tag(&self, tag: &[u8]) -> Vec<Key> {
        let lists = self.lists();
        let with = |tag: &[u8]| lists.with_tag(tag).map(key).collect();
        if tag.first() != Some(&0) {
            return with(tag);
        }
        let of_host = |host: &Bytes| -> Vec<Key> { with(&[&host[..], tag].concat()) };
        lists.hosts.keys().flat_map(of_host).collect()
    }

    /// A key, its further addresses and variants; of a URL the keys that bear it.
    pub(crate) fn of_page(&self, page: &Key) -> Vec<Key> {
        if let Some(url) = Key::url(page.as_bytes()) {
            return self.with_url(url, |borne, url| borne == url);
        }
        let mut found = self.with_prefix(&page.further_prefix());
        if self.lists().names.contains(page.as_bytes()) {
            found.push(page.clone());
        }
        found
    }

    /// Whether an address with a secondary key is known, or its page has fewer than `max` of them.
    pub(crate) fn has_room_for(&self, address: &Key, max: usize) -> bool {
        let lists = self.lists();
        if lists.names.contains(address.as_bytes()) {
            return true;
        }
        let start = address.page().addresses_prefix();
        let from = (Bound::Included(&start[..]), Bound::Unbounded);
        let names = lists.names.range::<[u8], _>(from).map(Name::key);
        let of_page = names.take_while(|name| name.starts_with(&start));
        // The others are variants.
        let addresses = of_page.filter(|name| name.len() == start.len() + size_of::<VariantId>());
        addresses.take(max).count() < max
    }

    /// How many keys are known.
    pub(crate) fn len(&self) -> usize {
        self.lists().names.len()
    }

    /// Bytes that keys and tags take in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.lists().bytes as u64
    }
}

impl Lists {
    fn add_url(&mut self, name: &Name, at: u16) {
        let has_room =
            |lead: &&[u8]| self.leads.len() < LEADS_MAX || self.leads.contains_key(*lead);
        match name.lead(at).filter(has_room) {
            Some(lead) => match self.leads.get_mut(lead) {
                Some(count) => *count += 1,
                None => drop(self.leads.insert(lead.into(), 1)),
            },
            None => drop(self.urls.insert(Borne(name.clone(), at))),
        }
    }

    fn remove_url(&mut self, name: &Name, at: u16) {
        let is_led = !self.urls.remove(&Borne(name.clone(), at));
        let Some(lead) = name.lead(at).filter(|_| is_led) else { return };
        let Some(count) = self.leads.get_mut(lead) else { return };
        *count -= 1;
        if *count == 0 {
            self.leads.remove(lead);
        }
    }

    /// Whether it bears a URL behind a lead, and is not in the list of URLs by that: the lead may have come later.
    fn is_led(&self, name: &Name, lead: &[u8]) -> bool {
        (0..name.url_count())
            .any(|at| name.lead(at) == Some(lead) && !self.urls.contains(&Borne(name.clone(), at)))
    }

    fn is_tagged(&self, name: &Name, tags: &[Bytes]) -> bool {
        let has = name.tags().map(|id| self.tags.get(id as usize).map(|tag| &tag.text[..]));
        has.eq(given(tags).map(|tag| Some(&tag[..])))
            && (0..name.url_count()).map(|at| name.url(at)).eq(borne(tags))
    }

    fn with_tag(&self, tag: &[u8]) -> impl Iterator<Item = &Name> {
        let tag = self.tag_ids.get(tag).and_then(|id| self.tags.get(*id as usize));
        tag.into_iter().flat_map(|tag| &tag.names)
    }

    /// The place of a tag, a new one if it has none; none is left after four thousand million.
    fn tag_id(&mut self, text: &Bytes) -> Option<TagId> {
        if let Some(id) = self.tag_ids.get(&text[..]) {
            return Some(*id);
        }
        let id = TagId::try_from(self.tags.vacant_key()).ok()?;
        // A copy, so that the head it came from is not kept.
        let text: Arc<[u8]> = Arc::from(&text[..]);
        self.tags.insert(Tag { text: Arc::clone(&text), names: HashSet::new() });
        self.tag_ids.insert(Arc::clone(&text), id);
        self.bytes += text.len() + TAG_BYTES;
        if let Some(at) = host_end(&text) {
            match self.hosts.get_mut(&text[..at]) {
                Some(tags) => *tags += 1,
                None => {
                    self.hosts.insert(Bytes::copy_from_slice(&text[..at]), 1);
                }
            }
        }
        Some(id)
    }

    /// A tag is gone; its host goes with its last one.
    fn remove_from_host(&mut self, tag: &[u8]) {
        let Some(host) = host_end(tag).map(|at| &tag[..at]) else { return };
        let Some(tags) = self.hosts.get_mut(host) else { return };
        *tags -= 1;
        if *tags == 0 {
            self.hosts.remove(host);
        }
    }

    fn remove(&mut self, key: &[u8]) {
        let Some(name) = self.names.take(key) else { return };
        self.bytes -= name.bytes();
        (0..name.url_count()).for_each(|at| self.remove_url(&name, at));
        for id in name.tags() {
            let Some(tag) = self.tags.get_mut(id as usize) else { continue };
            tag.names.remove(key);
            if tag.names.is_empty() {
                let tag = self.tags.remove(id as usize);
                self.tag_ids.remove(&tag.text);
                self.remove_from_host(&tag.text);
                self.bytes -= tag.text.len() + TAG_BYTES;
            } else if is_sparse(tag.names.len(), tag.names.capacity()) {
                tag.names.shrink_to_fit();
            }
        }
        if is_sparse(self.tag_ids.len(), self.tag_ids.capacity()) {
            self.tag_ids.shrink_to_fit();
        }
        // Places do not move: only an empty table can be given back for certain.
        if self.tags.is_empty() && is_sparse(0, self.tags.capacity()) {
            self.tags = Slab::new();
        }
    }
}

/// Whether a table is so empty that its room is worth giving back: an eighth, so that this happens seldom.
fn is_sparse(len: usize, capacity: usize) -> bool {
    capacity > SMALL_TABLE && len < capacity / 8
}

/// Where the host of a tag ends: at a NUL.
pub(crate) fn host_end(tag: &[u8]) -> Option<usize> {
    tag.iter().position(|byte| *byte == 0)
}

/// The tags that upstreams gave.
fn given(tags: &[Bytes]) -> impl Iterator<Item = &Bytes> {
    tags.iter().filter(|tag| Key::url_of_tag(tag).is_none())
}

/// The URLs among tags.
fn borne(tags: &[Bytes]) -> impl Iterator<Item = &[u8]> {
    tags.iter().filter_map(|tag| Key::url_of_tag(tag))
}

fn key(name: &Name) -> Key {
    Key::new(Bytes::copy_from_slice(name.key()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &'static str) -> Key {
        Key::new(Bytes::from_static(text.as_bytes()))
    }

    fn texts(mut keys: Vec<Key>) -> Vec<String> {
        keys.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
        keys.iter().map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned()).collect()
    }

    #[test]
    fn the_addresses_of_a_page_are_counted_apart_from_its_variants() {
        let catalog = Catalog::default();
        let (page, other) = (named("a"), named("ab"));
        let address =
            |page: &Key, text: &str| page.with_secondary(&Key::variant_id(text.as_bytes()));
        catalog.add(&page, &[]);
        for text in ["1", "2"] {
            catalog.add(&address(&page, text), &[]);
            catalog.add(&address(&page, text).variant(&[1; 16]), &[]);
            catalog.add(&address(&other, text), &[]);
        }
        catalog.add(&page.variant(&[b'+'; 16]), &[]);
        assert!(catalog.has_room_for(&address(&page, "3"), 3));
        assert!(!catalog.has_room_for(&address(&page, "3"), 2));
        assert!(catalog.has_room_for(&address(&page, "2"), 2), "it is there");
        assert_eq!(catalog.of_page(&address(&page, "1")).len(), 2);
        assert_eq!(catalog.of_page(&page).len(), 6);
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
        let others = catalog.with_prefix(b"a/2");
        others.iter().for_each(|key| catalog.remove(key.as_bytes()));
        assert_eq!((catalog.len(), catalog.with_tag(b"post-1").len()), (1, 1));
        catalog.add(&named("h/1"), &tags(&["h\0home"]));
        catalog.add(&named("i/1"), &tags(&["i\0home", "i\0home2"]));
        assert_eq!(texts(catalog.with_tag(b"h\0home")), ["h/1"]);
        assert_eq!(texts(catalog.with_tag(b"\0home")), ["h/1", "i/1"]);
        catalog.with_prefix(b"").iter().for_each(|key| catalog.remove(key.as_bytes()));
        assert_eq!((catalog.len(), catalog.bytes()), (0, 0));
    }

    #[test]
    fn keys_are_found_by_the_urls_that_they_bear() {
        let catalog = Catalog::default();
        let url = |target: &str| Key::of_url(b"a", target.as_bytes());
        catalog.add(&named("httpGETa/1"), &[url("/1").to_tag()]);
        catalog.add(&named("a/1-mobile"), &[url("/1").to_tag(), url("/one").to_tag()]);
        catalog.add(&named("m/2"), &[Bytes::from_static(b"t"), url("/2").to_tag()]);
        catalog.add(&named("m/22"), &[url("/22").to_tag()]);
        assert_eq!(texts(catalog.of_page(&url("/1"))), ["a/1-mobile", "httpGETa/1"]);
        assert_eq!(texts(catalog.of_page(&url("/2"))), ["m/2"]);
        assert!(catalog.of_page(&url("/")).is_empty());
        assert_eq!(texts(catalog.beginning(url("/2").as_bytes())), ["m/2", "m/22"]);
        assert_eq!(texts(catalog.with_tag(b"t")), ["m/2"]);
        catalog.add(&named("m/2"), &[Bytes::from_static(b"t"), url("/3").to_tag()]);
        assert_eq!(texts(catalog.beginning(url("/2").as_bytes())), ["m/22"]);
        assert_eq!(texts(catalog.of_page(&url("/3"))), ["m/2"]);
        let sizes = |catalog: &Catalog| {
            let lists = catalog.lists();
            (lists.urls.len(), lists.leads.values().sum::<usize>(), lists.bytes)
        };
        let (urls, led, _) = sizes(&catalog);
        assert_eq!((urls, led), (4, 1));
        catalog.with_prefix(b"").iter().for_each(|key| catalog.remove(key.as_bytes()));
        assert_eq!(sizes(&catalog), (0, 0, 0));
    }

    #[test]
    fn what_may_stand_before_a_url_is_counted() {
        let catalog = Catalog::default();
        let url = |number: usize| Key::of_url(b"a", format!("/{number}").as_bytes());
        let key = |lead: usize, number: usize| Key::new(format!("{lead}:a/{number}").into());
        for lead in 0..LEADS_MAX + 9 {
            for number in [1, 11, 2] {
                catalog.add(&key(lead, number), &[url(number).to_tag()]);
            }
        }
        let variant = key(3, 1).variant(&[7; 16]);
        catalog.add(&variant, &[url(1).to_tag()]);
        assert_eq!(catalog.lists().urls.len(), 9 * 3);
        assert_eq!(catalog.of_page(&url(1)).len(), LEADS_MAX + 9 + 1);
        assert_eq!(catalog.beginning(url(1).as_bytes()).len(), (LEADS_MAX + 9) * 2 + 1);
        // One makes room for another: what was there before stays where it is.
        [1, 11, 2].iter().for_each(|number| catalog.remove(key(0, *number).as_bytes()));
        catalog.add(&key(LEADS_MAX, 3), &[url(3).to_tag()]);
        assert_eq!(catalog.of_page(&url(1)).len(), LEADS_MAX + 9);
        assert_eq!(catalog.of_page(&url(3)).len(), 1);
        catalog.with_prefix(b"").iter().for_each(|key| catalog.remove(key.as_bytes()));
        let lists = catalog.lists();
        assert_eq!((lists.urls.len(), lists.leads.len(), lists.bytes), (0, 0, 0));
    }

    #[test]
    fn a_url_that_stands_in_its_key_takes_no_text() {
        let urls: [&[u8]; 2] = [b"a/1", b"*s/1"];
        let name = Name::new(b"httpGETa/1m", &urls, &[7, 9]);
        assert_eq!(name.key(), b"httpGETa/1m");
        assert_eq!([name.url(0), name.url(1)], urls);
        assert_eq!(name.tags().collect::<Vec<_>>(), [7, 9]);
        assert_eq!(name.0.len(), 11 + 4 + 2 * RANGE_BYTES + 2 * TAG_ID_BYTES + COUNTS_BYTES);
    }

    #[test]
    fn tables_are_given_back_with_what_stood_in_them() {
        let catalog = Catalog::default();
        let shared = Bytes::from_static(b"h\0all");
        for number in 0..20_000 {
            let (key, tag) = (format!("k{number}"), format!("h\0own-{number}"));
            catalog.add(&Key::new(key.into()), &[shared.clone(), tag.into()]);
        }
        let all = catalog.bytes();
        catalog.with_prefix(b"").iter().skip(10).for_each(|key| catalog.remove(key.as_bytes()));
        assert!(catalog.bytes() < all / 1000, "{} of {all}", catalog.bytes());
        let lists = catalog.lists();
        let shared = lists.tags.get(lists.tag_ids[&shared[..]] as usize).unwrap();
        let places = [lists.tag_ids.capacity(), shared.names.capacity()];
        assert!(places.iter().all(|places| *places < 5000), "{places:?}");
        drop(lists);
        catalog.with_prefix(b"").iter().for_each(|key| catalog.remove(key.as_bytes()));
        assert_eq!(catalog.lists().tags.capacity(), 0);
    }
}
