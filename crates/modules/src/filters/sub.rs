//! `sub_filter`: replaces strings in the content.

use super::compress::gzip::MimeTypes;
use aho_corasick::{AhoCorasick, Input, MatchKind};
use bytes::Bytes;
use std::rc::Rc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::handler::Filter;
use yorozu_kernel::exchange::recode::{Rewrite, Rewriting};
use yorozu_kernel::exchange::response::Response;

/// The module.
pub const MODULE: Module = Module::new("http_sub", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// `sub_filter string replacement`
#[derive(Clone, Debug)]
pub struct Replacement {
    string: Template,
    with: Template,
}

impl Setting for Replacement {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        if args.word(0).is_empty() {
            return Err(ValueError::new("empty search pattern"));
        }
        let compile = |index| Template::compile(args.word(index), args.env);
        Ok(Self { string: compile(0)?, with: compile(1)? })
    }
}

settings! {
    /// A string to search for, ignoring case, and its replacement.
    sub_filter: Vec<Replacement> = none, TWO, HTTP_SERVER_LOCATION;
    /// Whether `Last-Modified` is kept; if not, `ETag` is removed too.
    sub_filter_last_modified: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether each string is replaced only once.
    sub_filter_once: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// Content types, besides `text/html`, in which strings are replaced.
    sub_filter_types: MimeTypes = "text/html", ONE_OR_MORE, HTTP_SERVER_LOCATION;
}

/// Where it has something to do.
pub const FILTER: Filter =
    Filter::when(|location| !location.of::<Conf>().sub_filter.is_empty(), filter);

/// Replaces strings.
///
/// # Source
/// nginx, `ngx_http_sub_module`.
fn filter(exchange: &mut Exchange, response: &mut Response) {
    let config = Rc::clone(&exchange.conf);
    let conf = config.location(exchange.location).of::<Conf>();
    if response.content_length == Some(0) || !conf.sub_filter_types.has(&response.content_type) {
        return;
    }
    let pairs = conf.sub_filter.iter();
    let mut value = |text: &Template| text.value_within(exchange, response);
    let pairs = pairs.map(|pair| (value(&pair.string), value(&pair.with)));
    // As nginx: a string that comes out empty is looked for nowhere.
    let pairs: Vec<_> = pairs.filter(|(string, _)| !string.is_empty()).collect();
    if pairs.is_empty() {
        return;
    }
    response.change(Box::new(Rewriting(Replacing::new(pairs, conf.sub_filter_once))));
    response.weaken_validators(conf.sub_filter_last_modified);
}

/// Strings being replaced.
struct Replacing {
    /// What is looked for, and what is put in its place.
    pairs: Vec<(Bytes, Bytes)>,
    finder: Option<AhoCorasick>,
    is_once: bool,
    /// What may be the beginning of a string.
    kept: Vec<u8>,
}

impl Replacing {
    fn new(pairs: Vec<(Bytes, Bytes)>, is_once: bool) -> Self {
        let finder = finder(&pairs);
        Self { pairs, finder, is_once, kept: Vec::new() }
    }

    /// Replaces in what is kept, up to where it may go on to be a string.
    fn run(&mut self, is_end: bool, out: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.kept);
        let settled = if is_end { text.len() } else { self.settled(&text) };
        let mut at = 0;
        while let Some(finder) = &self.finder {
            let found = finder.find(Input::new(&text).range(at..));
            let Some(found) = found.filter(|found| found.start() < settled) else { break };
            out.extend_from_slice(&text[at..found.start()]);
            let pattern = found.pattern().as_usize();
            at = found.end();
            out.extend_from_slice(&self.pairs[pattern].1);
            if self.is_once {
                self.pairs.remove(pattern);
                self.finder = self::finder(&self.pairs);
            }
        }
        let end = settled.max(at);
        out.extend_from_slice(&text[at..end]);
        self.kept = text[end..].to_vec();
    }

    /// Where the first string begins that may go on behind the text.
    fn settled(&self, text: &[u8]) -> usize {
        let longest = self.pairs.iter().map(|(string, _)| string.len()).max().unwrap_or(0);
        let from = text.len().saturating_sub(longest.saturating_sub(1));
        let begins = |at: &usize| {
            let tail = &text[*at..];
            self.pairs.iter().any(|(string, _)| {
                string.len() > tail.len() && string[..tail.len()].eq_ignore_ascii_case(tail)
            })
        };
        (from..text.len()).find(begins).unwrap_or(text.len())
    }
}

/// As nginx: of strings that begin at the same place the one that is written first.
fn finder(pairs: &[(Bytes, Bytes)]) -> Option<AhoCorasick> {
    if pairs.is_empty() {
        return None;
    }
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::LeftmostFirst)
        .build(pairs.iter().map(|(string, _)| string))
        .ok()
}

impl Rewrite for Replacing {
    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.finder.is_none() {
            out.append(&mut self.kept);
            out.extend_from_slice(bytes);
        } else {
            self.kept.extend_from_slice(bytes);
            self.run(false, out);
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        self.run(true, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replace(pairs: &[(&'static str, &'static str)], is_once: bool, text: &str) -> String {
        let pairs = || pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
        let mut results = [1, 3, 1000].map(|piece| {
            let mut replacing = Replacing::new(pairs(), is_once);
            let mut out = Vec::new();
            text.as_bytes().chunks(piece).for_each(|part| replacing.write(part, &mut out));
            replacing.finish(&mut out);
            String::from_utf8(out).unwrap()
        });
        assert_eq!(results[0], results[1]);
        assert_eq!(results[1], results[2]);
        std::mem::take(&mut results[0])
    }

    #[test]
    fn strings_are_replaced_over_pieces() {
        assert_eq!(replace(&[("foo", "bar")], true, "a FOO b foo"), "a bar b foo");
        assert_eq!(replace(&[("foo", "bar")], false, "fofoo foo fo"), "fobar bar fo");
        assert_eq!(replace(&[("aab", "x")], false, "aaab aab"), "ax x");
        assert_eq!(replace(&[("ab", "1"), ("abc", "2")], false, "abc ab"), "1c 1");
        assert_eq!(replace(&[("abc", "2"), ("ab", "1")], false, "abc ab"), "2 1");
        assert_eq!(replace(&[("a", "b"), ("b", "c")], true, "ab ab"), "bc ab");
    }

    #[test]
    fn what_may_go_on_to_be_a_string_waits_and_no_more() {
        let mut replacing = Replacing::new(vec![("<head>".into(), "!".into())], true);
        let mut out = Vec::new();
        replacing.write(b"text <he", &mut out);
        assert_eq!(out, b"text ");
        replacing.write(b"re", &mut out);
        assert_eq!(out, b"text <here");
    }
}
