//! The pages: what the origin has at the moment, what may still be served, and what a body must be.

use bytes::Bytes;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

pub(crate) const SECTIONS: usize = 4;
/// Languages that `Vary: X-Lang` tells apart.
pub(crate) const LANGUAGES: [&str; 3] = ["none", "de", "ja"];
/// How often in its bytes a body says what it is.
const RECORD_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Vary {
    Nothing,
    Language,
    /// The origin compresses by itself.
    Coding,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Validator {
    Etag,
    Modified,
    Nothing,
}

/// What may be served to a request now: the least version, without and with a soft copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floors {
    pub(crate) hard: u64,
    pub(crate) any: u64,
    /// The last purge after which a request had a fresh hit: what it left has been renewed by then.
    pub(crate) renewed: u64,
}

#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) number: usize,
    pub(crate) section: usize,
    bytes: usize,
    pub(crate) vary: Vary,
    pub(crate) validator: Validator,
    pub(crate) is_chunked: bool,
    pub(crate) is_slow: bool,
    /// Its origin breaks off, or fails, now and then.
    pub(crate) is_troubled: bool,
    pub(crate) is_short_lived: bool,
    /// Compressed by the server.
    pub(crate) is_text: bool,
    version: AtomicU64,
    hard: AtomicU64,
    any: AtomicU64,
    renewed: Mutex<HashMap<Variant, u64>>,
    purges: Mutex<Vec<String>>,
    last: Bodies,
}

/// What is stored by itself: the method, if it is HEAD, the language, and the codings that are taken.
type Variant = (bool, usize, Vec<&'static str>);

/// The bodies that were asked for last, by version and language.
#[derive(Default)]
struct Bodies(Mutex<Vec<(u64, usize, Bytes)>>);

impl std::fmt::Debug for Bodies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}

impl Page {
    fn new(number: usize, draw: &mut fastrand::Rng) -> Self {
        let bytes = match draw.u8(..20) {
            0 => draw.usize(500_000..2_500_000),
            1..3 => draw.usize(60_000..400_000),
            3..8 => draw.usize(2_000..40_000),
            _ => draw.usize(100..800),
        };
        let vary = match draw.u8(..8) {
            0..2 => Vary::Language,
            2 if bytes < 100_000 => Vary::Coding,
            _ => Vary::Nothing,
        };
        let validator = match draw.u8(..6) {
            0..4 => Validator::Etag,
            4 => Validator::Modified,
            _ => Validator::Nothing,
        };
        let one_in = |draw: &mut fastrand::Rng, count| draw.u8(..count) == 0;
        Self {
            number,
            section: number % SECTIONS,
            bytes,
            vary,
            validator,
            is_chunked: one_in(draw, 3),
            is_slow: one_in(draw, 3),
            is_troubled: one_in(draw, 8),
            is_short_lived: one_in(draw, 2),
            is_text: bytes < 100_000 && !one_in(draw, 3),
            version: AtomicU64::new(1),
            hard: AtomicU64::new(0),
            any: AtomicU64::new(0),
            renewed: Mutex::default(),
            purges: Mutex::default(),
            last: Bodies::default(),
        }
    }

    pub(crate) fn path(&self) -> String {
        format!("/s{}/p{:05}", self.section, self.number)
    }

    pub(crate) fn tags(&self) -> String {
        format!("all s{} p{}", self.section, self.number)
    }

    /// The origin's version.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// The origin has another version from here on.
    pub(crate) fn raise(&self) -> u64 {
        self.version.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// A purge has answered that was asked for when the origin had `version`.
    pub(crate) fn purged(&self, version: u64, is_soft: bool, how: &str) {
        /// What is reported of a page that went wrong.
        const TOLD: usize = 3;
        let mut purges = self.purges.lock().unwrap();
        purges.push(format!("{version} by {how}"));
        let more = purges.len().saturating_sub(TOLD);
        purges.drain(..more);
        drop(purges);
        if !is_soft {
            self.hard.fetch_max(version, Ordering::SeqCst);
        }
        self.any.fetch_max(version, Ordering::SeqCst);
    }

    fn variant(&self, method: &str, language: usize, codings: &[&'static str]) -> Variant {
        let codings = if self.vary == Vary::Coding { codings.to_vec() } else { Vec::new() };
        (method == "HEAD", self.language(language), codings)
    }

    pub(crate) fn floors(&self, method: &str, language: usize, codings: &[&'static str]) -> Floors {
        let load = |number: &AtomicU64| number.load(Ordering::SeqCst);
        let renewed = self.renewed.lock().unwrap();
        let renewed = renewed.get(&self.variant(method, language, codings)).copied();
        Floors { renewed: renewed.unwrap_or(0), hard: load(&self.hard), any: load(&self.any) }
    }

    pub(crate) fn was_fresh(
        &self,
        method: &str,
        language: usize,
        codings: &[&'static str],
        purged: u64,
    ) {
        let mut renewed = self.renewed.lock().unwrap();
        let last = renewed.entry(self.variant(method, language, codings)).or_default();
        *last = purged.max(*last);
    }

    pub(crate) fn length(&self, version: u64) -> usize {
        // Unlike in each version, so that parts of two never fit.
        self.bytes + 7 * usize::try_from(version % 13).unwrap()
    }

    /// Its language for requests that ask for one.
    pub(crate) fn language(&self, asked: usize) -> usize {
        if self.vary == Vary::Language { asked } else { 0 }
    }

    pub(crate) fn body(&self, version: u64, language: usize) -> Bytes {
        const KEPT: usize = 4;
        let mut last = self.last.0.lock().unwrap();
        if let Some((.., body)) = last.iter().find(|(v, l, _)| (*v, *l) == (version, language)) {
            return body.clone();
        }
        let length = self.length(version);
        let mut text = String::with_capacity(length + RECORD_BYTES);
        let mut record = 0;
        while text.len() < length {
            let begin = text.len();
            let (number, language) = (self.number, LANGUAGES[language]);
            let _ = write!(text, "page {number} version {version} in {language} record {record} ");
            let filler = ["lorem ", "ipsum ", "dolor "][(record + number) % 3];
            text.push_str(&filler.repeat((RECORD_BYTES - (text.len() - begin)) / 6));
            text.push('\n');
            record += 1;
        }
        text.truncate(length);
        let body = Bytes::from(text);
        last.insert(0, (version, language, body.clone()));
        last.truncate(KEPT);
        body
    }

    pub(crate) fn etag(&self, version: u64, language: usize, is_coded: bool) -> String {
        let coded = if is_coded { "z" } else { "" };
        format!("\"v{version}.{}.{}{coded}\"", self.number, LANGUAGES[language])
    }

    pub(crate) fn modified(version: u64) -> String {
        httpdate::fmt_http_date(
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000 + version),
        )
    }
}

/// The version that a validator of [`Page::etag`] or [`Page::modified`] names.
pub(crate) fn version_of(validator: &str) -> Option<u64> {
    if let Ok(time) = httpdate::parse_http_date(validator) {
        return Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs() - 1_600_000_000);
    }
    let digits = validator.split_once("\"v")?.1.split('.').next()?;
    digits.parse().ok()
}

#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) pages: Vec<Page>,
}

impl Site {
    pub(crate) fn new(count: usize, draw: &mut fastrand::Rng) -> Self {
        Self { pages: (0..count).map(|number| Page::new(number, draw)).collect() }
    }

    /// A few pages are asked for often, so that there are always requests for them.
    pub(crate) fn any(&self, draw: &mut fastrand::Rng) -> &Page {
        let few = self.pages.len().min(8);
        let end = if draw.bool() { few } else { self.pages.len() };
        &self.pages[draw.usize(..end)]
    }

    /// The page of a path.
    pub(crate) fn at(&self, path: &str) -> Option<&Page> {
        self.pages.get(path.rsplit_once("/p")?.1.parse::<usize>().ok()?)
    }
}
