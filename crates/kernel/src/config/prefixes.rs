//! Texts by which others begin, found by bisection: many cost hardly more than few.

use bytes::Bytes;
use std::cmp::Ordering;

/// Texts, each with a value.
#[derive(Debug)]
pub struct Prefixes<T> {
    sorted: Box<[Prefix<T>]>,
}

#[derive(Debug)]
struct Prefix<T> {
    text: Bytes,
    value: T,
    /// The place of the longest other one by which this one begins.
    outer: Option<u32>,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self { sorted: Box::default() }
    }
}

impl<T> Prefixes<T> {
    /// Of texts that are all different.
    pub fn new(mut all: Vec<(Bytes, T)>) -> Self {
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut sorted: Vec<Prefix<T>> = Vec::with_capacity(all.len());
        // In order, what a text begins by stands before it, and between them only what begins by that, too.
        let mut open: Vec<u32> = Vec::new();
        for (place, (text, value)) in (0..).zip(all) {
            while open.pop_if(|at| !text.starts_with(&sorted[*at as usize].text)).is_some() {}
            sorted.push(Prefix { text, value, outer: open.last().copied() });
            open.push(place);
        }
        Self { sorted: sorted.into() }
    }

    /// The values, in the order of the texts.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.sorted.iter().map(|prefix| &prefix.value)
    }

    /// The value of the longest text by which `subject` begins.
    pub fn longest(&self, subject: &[u8]) -> Option<&T> {
        let behind = self.sorted.partition_point(|prefix| prefix.text[..] <= *subject);
        let mut prefix = &self.sorted[behind.checked_sub(1)?];
        // What they have in common is what those around it can begin by.
        let pairs = prefix.text.iter().zip(subject);
        let common = pairs.take_while(|(a, b)| a == b).count();
        while prefix.text.len() > common {
            prefix = &self.sorted[prefix.outer? as usize];
        }
        Some(&prefix.value)
    }

    /// The value of a text.
    pub fn get(&self, text: &[u8]) -> Option<&T> {
        self.find(|found| found.cmp(text))
    }

    /// The value of a text with a slash behind it.
    pub fn get_with_slash(&self, text: &[u8]) -> Option<&T> {
        self.find(|found| match found.split_at_checked(text.len()) {
            Some((head, tail)) => head.cmp(text).then_with(|| tail.cmp(b"/")),
            None => found.cmp(text),
        })
    }

    fn find(&self, compare: impl Fn(&[u8]) -> Ordering) -> Option<&T> {
        let place = self.sorted.binary_search_by(|prefix| compare(&prefix.text)).ok()?;
        Some(&self.sorted[place].value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn text() -> Vec<u8> {
        (0..fastrand::usize(..7)).map(|_| b"/ab"[fastrand::usize(..3)]).collect()
    }

    #[test]
    fn texts_are_found_as_by_comparing_each() {
        for _ in 0..2000 {
            let all: BTreeSet<Vec<u8>> = (0..fastrand::usize(..20)).map(|_| text()).collect();
            let pairs = all.iter().map(|text| (Bytes::from(text.clone()), text.clone()));
            let prefixes = Prefixes::new(pairs.collect());
            for _ in 0..20 {
                let subject = text();
                let beginnings = all.iter().filter(|text| subject.starts_with(text));
                let naive = beginnings.max_by_key(|text| text.len());
                assert_eq!(prefixes.longest(&subject), naive, "{subject:?} in {all:?}");
                assert_eq!(prefixes.get(&subject), all.get(&subject));
                let with_slash = [&subject[..], b"/"].concat();
                assert_eq!(prefixes.get_with_slash(&subject), all.get(&with_slash));
            }
        }
    }
}
