//! Regular expressions of the configuration: PCRE, with named captures as variables.

use super::value_error::ValueError;
use crate::base::limits;
use bytes::Bytes;
use foldhash::fast::RandomState;
use std::cell::RefCell;
use std::fmt;
use std::hash::BuildHasher as _;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A compiled expression; clones share it.
#[derive(Clone)]
pub struct Regex {
    inner: Arc<Inner>,
}

struct Inner {
    /// Unlike any other's of the process, and not 0.
    number: u64,
    source: String,
    is_caseless: bool,
    /// Made for its first search: of many expressions most are never tried.
    compiled: OnceLock<Result<pcre2::bytes::Regex, Undecided>>,
    /// How many groups it captures, the whole match not counted.
    groups: usize,
    /// The groups with names.
    names: Box<[(usize, String)]>,
    /// Slots of variables that take the named groups.
    named: Box<[(usize, u16)]>,
}

impl Inner {
    /// `is_kept`: searched by at once.
    fn new(source: &[u8], is_caseless: bool, is_kept: bool) -> Result<Self, ValueError> {
        let text = std::str::from_utf8(source).map_err(|_| {
            ValueError(format!("regex \"{}\" is not UTF-8", String::from_utf8_lossy(source)))
        })?;
        let compiled = compile(text, is_caseless, is_kept).map_err(|error| {
            let rest = error.offset().and_then(|at| text.get(at..)).filter(|rest| !rest.is_empty());
            let at = rest.map_or_else(String::new, |rest| format!(" at \"{rest}\""));
            let error = error.to_string();
            // PCRE's own words, as nginx shows them.
            let reason = error.split_once("offset ").and_then(|(_, rest)| rest.split_once(": "));
            let reason = reason.map_or(&*error, |(_, reason)| reason);
            ValueError(format!("pcre2_compile() failed: {reason} in \"{text}\"{at}"))
        })?;
        let names = compiled.capture_names().iter().cloned().enumerate();
        let names = names.filter_map(|(group, name)| Some((group, name?))).collect();
        let groups = compiled.captures_len() - 1;
        Ok(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            source: text.to_owned(),
            is_caseless,
            compiled: if is_kept { OnceLock::from(Ok(compiled)) } else { OnceLock::new() },
            groups,
            names,
            named: Box::default(),
        })
    }

    /// To search by; what was compiled before is compiled again.
    fn compiled(&self) -> Result<&pcre2::bytes::Regex, Undecided> {
        let make = || compile(&self.source, self.is_caseless, true);
        self.compiled.get_or_init(|| make().map_err(Undecided::from)).as_ref().map_err(|why| *why)
    }

    /// Searches with machine code, and without it where that lacks room for what it has to come back to. That takes
    /// longer and finds the same.
    fn search<T>(
        &self,
        search: impl Fn(&pcre2::bytes::Regex) -> Result<T, pcre2::Error>,
    ) -> Result<T, Undecided> {
        match search(self.compiled()?) {
            Err(error) if error.code() == JIT_STACK_LIMIT => {
                // Made for each such search: kept, it would keep the memory that it needed.
                let source = format!("(*LIMIT_HEAP={}){}", limits::REGEX_HEAP_KIB, self.source);
                Ok(search(&compile(&source, self.is_caseless, false)?)?)
            }
            found => Ok(found?),
        }
    }

    fn is_match(&self, subject: &[u8]) -> Result<bool, Undecided> {
        self.search(|regex| regex.is_match(subject))
    }

    /// The groups of a match, the whole of it first.
    fn spans(&self, subject: &[u8]) -> Result<Option<Spans>, Undecided> {
        self.search(|regex| {
            let mut locations = regex.capture_locations();
            if regex.captures_read(&mut locations, subject)?.is_none() {
                return Ok(None);
            }
            let span = |group| locations.get(group).map(|(start, end)| start..end);
            Ok(Some((0..locations.len()).map(span).collect()))
        })
    }
}

/// PCRE's number (`PCRE2_ERROR_JIT_STACKLIMIT`): machine code had no more room.
const JIT_STACK_LIMIT: i32 = -46;

/// A search that came to no end: whether the subject matches is not known. That is no "no", as what is denied would be
/// let through then.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Undecided {
    /// PCRE's number of the reason.
    pub code: i32,
}

impl From<pcre2::Error> for Undecided {
    fn from(error: pcre2::Error) -> Self {
        Self { code: error.code() }
    }
}

/// `is_fast`: with machine code, which takes longer to make.
fn compile(
    source: &str,
    is_caseless: bool,
    is_fast: bool,
) -> Result<pcre2::bytes::Regex, pcre2::Error> {
    let mut builder = pcre2::bytes::RegexBuilder::new();
    builder.caseless(is_caseless).jit_if_available(is_fast).build(source)
}

static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Where the groups of a match are in its subject.
pub type Spans = Rc<[Option<Range<usize>>]>;

/// The groups of the last regular expression that matched.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    subject: Bytes,
    /// `None` where there was no match.
    spans: Option<Spans>,
}

impl Captures {
    pub fn new(subject: Bytes, spans: Spans) -> Self {
        Self { subject, spans: Some(spans) }
    }

    fn span(&self, group: usize) -> Option<Range<usize>> {
        self.spans.as_ref()?.get(group)?.clone()
    }

    pub fn get(&self, group: usize) -> Option<&[u8]> {
        Some(&self.subject[self.span(group)?])
    }

    /// The group's bytes, shared; empty if it took no part.
    pub fn group(&self, group: usize) -> Bytes {
        self.span(group).map_or_else(Bytes::new, |span| self.subject.slice(span))
    }

    pub fn append(&self, group: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(self.get(group).unwrap_or_default());
    }
}

/// What a search came to.
#[derive(Clone, Default)]
enum Found {
    #[default]
    Nothing,
    /// A match; its groups were not asked for.
    Match,
    Groups(Spans),
    Undecided(Undecided),
}

/// One search and what it came to.
#[derive(Default)]
struct Known {
    regex: u64,
    subject: Bytes,
    found: Found,
}

/// What this worker's last searches came to, each in the place that its hash says. A search depends on
/// the expression and its subject alone, and most requests bring the subjects of others before them.
struct Memo {
    hasher: RandomState,
    known: Vec<Known>,
}

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::new(Memo {
        hasher: RandomState::default(),
        known: std::iter::repeat_with(Known::default).take(limits::REGEX_MEMO).collect(),
    });
}

impl Memo {
    /// What is known of the search, which is made where nothing is.
    fn find(&mut self, regex: &Inner, subject: &[u8], wants_groups: bool) -> &Known {
        let hash = self.hasher.hash_one((regex.number, subject));
        let at = usize::try_from(hash % limits::REGEX_MEMO as u64).unwrap_or(0);
        let known = &mut self.known[at];
        if known.regex != regex.number || known.subject != subject {
            let found = match regex.is_match(subject) {
                Ok(true) => Found::Match,
                Ok(false) => Found::Nothing,
                Err(why) => Found::Undecided(why),
            };
            let subject = Bytes::copy_from_slice(subject);
            *known = Known { regex: regex.number, subject, found };
        }
        if let (Found::Match, true) = (&known.found, wants_groups) {
            known.found = match regex.spans(subject) {
                Ok(spans) => spans.map_or(Found::Nothing, Found::Groups),
                Err(why) => Found::Undecided(why),
            };
        }
        known
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.inner.source)
    }
}

impl Regex {
    /// Compiles `source`; `define` says which slots the variables of named groups have.
    ///
    /// # Errors
    /// nginx's `pcre2_compile() failed` with the expression and the position.
    pub fn naming(
        source: &[u8],
        caseless: bool,
        mut define: impl FnMut(&str) -> u16,
    ) -> Result<Self, ValueError> {
        let mut inner = Inner::new(source, caseless, false)?;
        inner.named = inner.names.iter().map(|(group, name)| (*group, define(name))).collect();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Compiles what is not part of the configuration.
    ///
    /// # Errors
    /// As [`Regex::naming`].
    pub fn plain(source: &[u8]) -> Result<Self, ValueError> {
        Ok(Self { inner: Arc::new(Inner::new(source, false, true)?) })
    }

    /// The groups with names.
    pub fn names(&self) -> &[(usize, String)] {
        &self.inner.names
    }

    /// How many groups it captures, the whole match not counted.
    pub fn groups(&self) -> usize {
        self.inner.groups
    }

    /// The groups with names, and the slots of their variables.
    pub fn named(&self) -> &[(usize, u16)] {
        &self.inner.named
    }

    /// As written.
    pub fn source(&self) -> &str {
        &self.inner.source
    }

    /// Whether it matches.
    ///
    /// # Errors
    /// The search came to no end.
    pub fn is_match(&self, subject: &[u8]) -> Result<bool, Undecided> {
        if subject.len() > limits::REGEX_MEMO_BYTES {
            return self.inner.is_match(subject);
        }
        MEMO.with_borrow_mut(|memo| match memo.find(&self.inner, subject, false).found {
            Found::Nothing => Ok(false),
            Found::Match | Found::Groups(_) => Ok(true),
            Found::Undecided(why) => Err(why),
        })
    }

    /// The groups of a match.
    ///
    /// # Errors
    /// As [`Regex::is_match`].
    pub fn captures(&self, subject: &[u8]) -> Result<Option<Captures>, Undecided> {
        if subject.len() > limits::REGEX_MEMO_BYTES {
            let spans = self.inner.spans(subject)?;
            return Ok(spans.map(|spans| Captures::new(Bytes::copy_from_slice(subject), spans)));
        }
        MEMO.with_borrow_mut(|memo| match memo.find(&self.inner, subject, true) {
            Known { found: Found::Groups(spans), subject, .. } => {
                Ok(Some(Captures::new(subject.clone(), Rc::clone(spans))))
            }
            Known { found: Found::Undecided(why), .. } => Err(*why),
            Known { found: Found::Nothing | Found::Match, .. } => Ok(None),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_that_are_remembered_are_told_apart() {
        let (one, other) = (Regex::plain(b"^/(a+)").unwrap(), Regex::plain(b"^/(b+)").unwrap());
        let group = |regex: &Regex, subject: &str| {
            let captures = regex.captures(subject.as_bytes()).unwrap()?;
            captures.get(1).map(<[u8]>::to_vec)
        };
        let long = format!("/{}", "a".repeat(limits::REGEX_MEMO_BYTES));
        for _ in 0..2 {
            assert_eq!((one.is_match(b"/aa"), other.is_match(b"/aa")), (Ok(true), Ok(false)));
            assert_eq!(group(&one, "/aab").as_deref(), Some(&b"aa"[..]));
            assert_eq!(group(&other, "/aab"), None);
            assert_eq!(group(&other, "/b").as_deref(), Some(&b"b"[..]));
            assert_eq!(group(&one, &long).as_deref(), Some(&long.as_bytes()[1..]));
            assert_eq!(one.is_match(b""), Ok(false));
        }
    }

    #[test]
    fn what_machine_code_has_no_room_for_is_matched_without_it() {
        let regex = Regex::plain(br"^/(?:\w|/)*\.(bak)$").unwrap();
        for bytes in [2_000, 8_000, 60_000] {
            let path = |end| [b"/", "a".repeat(bytes).as_bytes(), end].concat();
            assert_eq!(regex.is_match(&path(b".bak")), Ok(true), "{bytes}");
            assert_eq!(regex.is_match(&path(b".txt")), Ok(false), "{bytes}");
            let captures = regex.captures(&path(b".bak")).unwrap().unwrap();
            assert_eq!(captures.get(1), Some(&b"bak"[..]), "{bytes}");
            assert!(regex.captures(&path(b".txt")).unwrap().is_none(), "{bytes}");
        }
    }

    #[test]
    fn a_search_without_an_end_is_no_no() {
        const MATCH_LIMIT: Undecided = Undecided { code: -47 };
        let endless = Regex::plain(b"^(?:(?:a+)+)+[!.]$").unwrap();
        let long = "a".repeat(limits::REGEX_MEMO_BYTES + 1);
        // The second time it is remembered of the shorter one.
        for subject in [&long[..40], &long[..40], &long] {
            assert_eq!(endless.is_match(subject.as_bytes()), Err(MATCH_LIMIT));
            assert_eq!(endless.captures(subject.as_bytes()).err(), Some(MATCH_LIMIT));
        }
        // More than the memory for what is matched without machine code.
        let deep = Regex::plain(br"^(?:(\w)|/)*[!.]$").unwrap();
        const HEAP_LIMIT: Undecided = Undecided { code: -63 };
        assert_eq!(deep.is_match("a".repeat(2_000_000).as_bytes()), Err(HEAP_LIMIT));
    }
}
