//! Which of many expressions may match a subject: those whose texts stand in it, which one search finds for all.

use super::literals;
use super::regex::Regex;
use aho_corasick::AhoCorasick;
use foldhash::fast::RandomState;
use std::borrow::Cow;
use std::collections::HashMap;

/// Fewer expressions are tried one after the other: what each came to is often remembered. Chosen.
const MANY: usize = 16;

/// Knows by their places which expressions of a list are to be tried; the others cannot match.
#[derive(Clone, Debug, Default)]
pub struct RegexSet {
    /// Those of which no text is known that they need.
    always: Box<[u32]>,
    texts: Option<Texts>,
}

/// The texts that expressions need.
#[derive(Clone, Debug)]
struct Texts {
    search: AhoCorasick,
    /// By text, who needs it.
    needed_by: Box<[Box<[u32]>]>,
}

impl RegexSet {
    /// Of a list of expressions.
    pub fn new<'r>(regexes: impl ExactSizeIterator<Item = &'r Regex> + Clone) -> Self {
        Self::of_parts(regexes.clone()).unwrap_or_else(|| Self {
            always: (0_u32..).zip(regexes).map(|(place, _)| place).collect(),
            texts: None,
        })
    }

    /// `None`: a search for texts is not worth it, or not possible.
    fn of_parts<'r>(regexes: impl ExactSizeIterator<Item = &'r Regex>) -> Option<Self> {
        if regexes.len() < MANY {
            return None;
        }
        let mut places: HashMap<Vec<u8>, usize, RandomState> = HashMap::default();
        let (mut needed_by, mut always) = (Vec::<Vec<u32>>::new(), Vec::new());
        for (regex, place) in regexes.zip(0_u32..) {
            let Some(texts) = literals::required(regex.source().as_bytes()) else {
                always.push(place);
                continue;
            };
            for mut text in texts {
                text.make_ascii_lowercase();
                let at = *places.entry(text).or_insert(needed_by.len());
                if at == needed_by.len() {
                    needed_by.push(Vec::new());
                }
                needed_by[at].push(place);
            }
        }
        let mut texts: Vec<(Vec<u8>, usize)> = places.into_iter().collect();
        texts.sort_unstable_by_key(|(_, at)| *at);
        let search = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(texts.iter().map(|(text, _)| text))
            .ok()?;
        let needed_by = needed_by.into_iter().map(Vec::into_boxed_slice).collect();
        Some(Self { always: always.into(), texts: Some(Texts { search, needed_by }) })
    }

    /// The places of those that may match, in order.
    pub fn candidates(&self, subject: &[u8]) -> Cow<'_, [u32]> {
        let Some(texts) = &self.texts else { return Cow::Borrowed(&self.always) };
        let mut found = texts.find(subject);
        if found.is_empty() {
            return Cow::Borrowed(&self.always);
        }
        found.extend_from_slice(&self.always);
        found.sort_unstable();
        found.dedup();
        Cow::Owned(found)
    }
}

impl Texts {
    /// Who needs a text that stands in the subject.
    fn find(&self, subject: &[u8]) -> Vec<u32> {
        let (mut is_found, mut places) = (Vec::new(), Vec::new());
        for hit in self.search.find_overlapping_iter(subject) {
            let at = hit.pattern().as_usize();
            // Each counts once, however often it stands there.
            is_found.resize(self.needed_by.len(), false);
            if !std::mem::replace(&mut is_found[at], true) {
                places.extend_from_slice(&self.needed_by[at]);
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick<'t>(texts: &[&'t str]) -> &'t str {
        texts[fastrand::usize(..texts.len())]
    }

    /// An expression in about all of the syntax, over few letters.
    fn expression(depth: u32) -> String {
        const ATOMS: [&str; 18] = [
            "a",
            "b",
            "ab",
            "ba",
            "abb",
            "c",
            "aB",
            ".",
            "[ab]",
            "[^a]",
            "[]a]",
            r"\.",
            r"\b",
            r"\w",
            "^",
            "$",
            "[[:alpha:]a]",
            r"[\]a]",
        ];
        const ODD: [&str; 9] =
            [r"\x61", r"\Qa.\E", "(?i)", "(?-i)", "(*ACCEPT)", r"\Bb", "(?#ab)", "(?R)?", r"\Ka"];
        let mut all = String::new();
        for _ in 0..fastrand::u32(1..5) {
            if depth > 0 && fastrand::u8(..3) == 0 {
                let open = pick(&[
                    "(", "(?:", "(?=", "(?!", "(?<!", "(?>", "(?i:", "(?<n>", "(?|", "(?x: ",
                ]);
                all += &format!("{open}{})", expression(depth - 1));
            } else {
                all += pick(if fastrand::u8(..20) == 0 { &ODD } else { &ATOMS });
            }
            if fastrand::u8(..3) == 0 {
                let times =
                    ["*", "+", "?", "{2}", "{0,1}", "{0}", "+?", "*+", "??", "{1,}?", "{,2}"];
                all += pick(&times);
            }
            if fastrand::u8(..8) == 0 {
                all.push('|');
            }
        }
        all
    }

    #[test]
    fn what_matches_is_always_a_candidate() {
        let (mut tried, mut left_out) = (0, 0);
        for _ in 0..1500 {
            let regex = |_| loop {
                let caseless = fastrand::bool();
                if let Ok(regex) = Regex::naming(expression(2).as_bytes(), caseless, |_| 0) {
                    return regex;
                }
            };
            let regexes: Vec<Regex> = (0..MANY + fastrand::usize(..10)).map(regex).collect();
            let set = RegexSet::new(regexes.iter());
            for _ in 0..20 {
                let letters =
                    (0..fastrand::usize(..8)).map(|_| pick(&["a", "b", "A", "B", ".", "c", "]"]));
                let subject: String = letters.collect();
                let candidates = set.candidates(subject.as_bytes());
                assert!(candidates.is_sorted_by(|a, b| a < b));
                // Those that are candidates are tried, whatever they come to.
                let others = (0_u32..)
                    .zip(&regexes)
                    .filter(|(place, _)| candidates.binary_search(place).is_err());
                for (_, regex) in others {
                    let is_match = regex.is_match(subject.as_bytes()) == Ok(true);
                    assert!(!is_match, "{regex:?} matches {subject}");
                }
                tried += candidates.len();
                left_out += regexes.len() - candidates.len();
            }
        }
        // Else nothing was tested.
        assert!(left_out * 10 > tried, "{left_out} were left out, {tried} were not");
    }

    #[test]
    fn few_are_all_tried() {
        let regexes = ["abc", "def"].map(|source| Regex::plain(source.as_bytes()).unwrap());
        assert_eq!(*RegexSet::new(regexes.iter()).candidates(b"x"), [0, 1]);
        assert!(RegexSet::default().candidates(b"x").is_empty());
    }
}
