//! Texts without which an expression cannot match, read off its source.
//!
//! PCRE's syntax is large, and what is not known here for sure has no such text: then the expression is tried.

/// Texts of which each match has at least one somewhere, if such are known; the case of letters does not count.
pub(super) fn required(source: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut parser = Parser { rest: source, depth: 0 };
    let found = parser.alternatives().ok()?;
    if parser.rest.is_empty() { found } else { None }
}

/// Shorter texts are in most subjects.
const BYTES_MIN: usize = 2;
/// More would cost as much as what they save; chosen.
const TEXTS_MAX: usize = 64;
/// Groups in groups; PCRE's own bound is 250.
const DEPTH_MAX: usize = 50;

/// What is not known for sure.
struct Unknown;

type Texts = Option<Vec<Vec<u8>>>;

struct Parser<'a> {
    rest: &'a [u8],
    depth: usize,
}

/// What one item of a sequence is.
enum Item {
    /// One byte that stands for itself.
    Byte(u8),
    /// Something that takes no part in a text, with the texts that it needs.
    Other(Texts),
}

/// The best of what the items of a sequence need.
#[derive(Default)]
struct Best(Texts);

impl Best {
    fn offer(&mut self, texts: Vec<Vec<u8>>) {
        let shortest = |texts: &[Vec<u8>]| texts.iter().map(Vec::len).min().unwrap_or(0);
        let is_better = match &self.0 {
            None => true,
            Some(best) => shortest(&texts) > shortest(best),
        };
        if is_better && texts.len() <= TEXTS_MAX && shortest(&texts) >= BYTES_MIN {
            self.0 = Some(texts);
        }
    }

    fn offer_run(&mut self, run: &mut Vec<u8>) {
        self.offer(vec![std::mem::take(run)]);
    }
}

impl Parser<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip(&mut self, text: &[u8]) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Up to the end of the group or the source: one of the alternatives matches, so each has to need something.
    fn alternatives(&mut self) -> Result<Texts, Unknown> {
        let mut all = self.sequence()?;
        while self.skip(b"|") {
            let other = self.sequence()?;
            all = all.zip(other).map(|(all, other)| [all, other].concat());
        }
        Ok(all.filter(|texts| texts.len() <= TEXTS_MAX))
    }

    fn sequence(&mut self) -> Result<Texts, Unknown> {
        let (mut best, mut run) = (Best::default(), Vec::new());
        while !matches!(self.rest.first(), None | Some(b'|' | b')')) {
            let item = self.item()?;
            let repeats = self.quantifier()?;
            match item {
                Item::Byte(byte) => match repeats {
                    None => run.push(byte),
                    Some(least) => {
                        if least > 0 {
                            run.push(byte);
                        }
                        best.offer_run(&mut run);
                    }
                },
                Item::Other(texts) => {
                    best.offer_run(&mut run);
                    if let Some(texts) = texts.filter(|_| repeats != Some(0)) {
                        best.offer(texts);
                    }
                }
            }
        }
        best.offer_run(&mut run);
        Ok(best.0)
    }

    fn item(&mut self) -> Result<Item, Unknown> {
        match self.next().ok_or(Unknown)? {
            b'.' | b'^' | b'$' => Ok(Item::Other(None)),
            b'[' => self.class(),
            b'(' => self.group(),
            b'\\' => self.escape(),
            // At this place they are no quantifiers, but errors or characters.
            b'*' | b'+' | b'?' | b'{' => Err(Unknown),
            byte => Ok(Item::Byte(byte)),
        }
    }

    fn escape(&mut self) -> Result<Item, Unknown> {
        match self.next().ok_or(Unknown)? {
            b'd' | b'D' | b'w' | b'W' | b's' | b'S' | b'h' | b'H' | b'v' | b'V' | b'R' | b'b'
            | b'B' | b'A' | b'z' | b'Z' | b't' | b'n' | b'r' | b'f' => Ok(Item::Other(None)),
            byte if byte.is_ascii_alphanumeric() => Err(Unknown),
            byte => Ok(Item::Byte(byte)),
        }
    }

    /// The rest of a class of characters.
    fn class(&mut self) -> Result<Item, Unknown> {
        self.skip(b"^");
        // There it stands for itself.
        self.skip(b"]");
        loop {
            match self.next().ok_or(Unknown)? {
                b']' => return Ok(Item::Other(None)),
                // `[:alpha:]`, or something that looks like it.
                b'[' if matches!(self.rest.first(), Some(b':' | b'.' | b'=')) => self.posix()?,
                b'\\' if matches!(self.next().ok_or(Unknown)?, b'Q' | b'E' | b'c') => {
                    return Err(Unknown);
                }
                _ => {}
            }
        }
    }

    fn posix(&mut self) -> Result<(), Unknown> {
        let kind = self.next().ok_or(Unknown)?;
        self.skip(b"^");
        while self.rest.first().is_some_and(u8::is_ascii_alphabetic) {
            self.next();
        }
        if self.skip(&[kind, b']']) { Ok(()) } else { Err(Unknown) }
    }

    /// The rest of a group.
    fn group(&mut self) -> Result<Item, Unknown> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Unknown);
        }
        // The case of letters does not count here anyway.
        if self.skip(b"?i)") {
            self.depth -= 1;
            return Ok(Item::Other(None));
        }
        // `(*ACCEPT)` ends a match before its end, `(*UTF)` changes what a character is.
        let is_verb = self.rest.starts_with(b"*");
        let is_looking = [&b"?="[..], b"?!", b"?<=", b"?<!"].iter().any(|sign| self.skip(sign));
        let is_known = is_looking || !self.rest.starts_with(b"?") || self.kind()?;
        if is_verb || !is_known {
            return Err(Unknown);
        }
        let texts = self.alternatives()?;
        if !self.skip(b")") {
            return Err(Unknown);
        }
        self.depth -= 1;
        Ok(Item::Other(texts.filter(|_| !is_looking)))
    }

    /// Whether a group whose `?` comes next is one that matches what is in it.
    fn kind(&mut self) -> Result<bool, Unknown> {
        if [&b"?:"[..], b"?>", b"?i:"].iter().any(|sign| self.skip(sign)) {
            return Ok(true);
        }
        let end = if self.skip(b"?<") || self.skip(b"?P<") {
            b'>'
        } else if self.skip(b"?'") {
            b'\''
        } else {
            return Ok(false);
        };
        loop {
            match self.next().ok_or(Unknown)? {
                byte if byte == end => return Ok(true),
                byte if byte.is_ascii_alphanumeric() || byte == b'_' => {}
                _ => return Err(Unknown),
            }
        }
    }

    /// How often the item before it matches at least, if that is said.
    fn quantifier(&mut self) -> Result<Option<u32>, Unknown> {
        let mut least: Option<u32> = None;
        loop {
            let this = match self.rest.first() {
                Some(b'*' | b'?') => 0,
                Some(b'+' | b'{') => 1,
                _ => return Ok(least),
            };
            let this = if self.next() == Some(b'{') { self.counted()? } else { this };
            // How eagerly.
            let _ = self.skip(b"?") || self.skip(b"+");
            least = Some(least.map_or(this, |least| least.min(this)));
        }
    }

    /// The rest of `{2}`, `{2,}` or `{2,5}`: 1 for any number but 0.
    fn counted(&mut self) -> Result<u32, Unknown> {
        let end = self.rest.iter().position(|byte| *byte == b'}').ok_or(Unknown)?;
        let (inside, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        let (least, most) = match inside.iter().position(|byte| *byte == b',') {
            Some(comma) => (&inside[..comma], &inside[comma + 1..]),
            None => (inside, &b""[..]),
        };
        if least.is_empty() || ![least, most].concat().iter().all(u8::is_ascii_digit) {
            return Err(Unknown);
        }
        Ok(u32::from(least.iter().any(|digit| *digit != b'0')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_that_no_match_can_lack() {
        let table: &[(&str, &[&str])] = &[
            ("^/old7/(.*)$", &["/old7/"]),
            (r"\.php$", &[".php"]),
            (r"(?:\b)badbot7x(?:\b|)", &["badbot7x"]),
            ("googlebot|bingbot", &["googlebot", "bingbot"]),
            ("/(?:alpha|beta)/x", &["alpha", "beta"]),
            ("(?i)wget", &["wget"]),
            ("abc?def+g", &["def"]),
            ("(long text)?short", &["short"]),
            ("(long text)+short", &["long text"]),
            ("(?!long text)short", &["short"]),
            ("(?<name>page)-x", &["page"]),
            ("abcd{2,3}ef", &["abcd"]),
            ("abcd{0,3}ef", &["abc"]),
            ("[]a]bc[^]x]", &["bc"]),
            (r"[[:alpha:]\]]de", &["de"]),
            ("caf\u{e9}s", &["caf\u{e9}s"]),
        ];
        for (source, expected) in table {
            let expected: Vec<_> = expected.iter().map(|text| text.as_bytes().to_vec()).collect();
            assert_eq!(required(source.as_bytes()), Some(expected), "{source}");
        }
    }

    #[test]
    fn nothing_is_required_where_it_is_not_sure() {
        let unknown = [
            "",
            "a",
            ".*",
            "abc|",
            "abc|d",
            "(abc|d)",
            "(abc)?",
            "(abc){0}",
            r"abc\Q.*\E",
            "(*ACCEPT)abc",
            "abc(*ACCEPT)",
            "(?x)a b c",
            "(?#abc)",
            r"\x61bc",
            "(?(1)abc)",
            "(?-i)abc",
            "abc)",
            "(abc",
            "abc[",
            r"[a\Q]\Ebc]",
            "abc{x}",
            "(?=abc)",
            "(?<!abc)",
            "(?R)abc",
            "abc{,2}",
        ];
        for source in unknown {
            assert_eq!(required(source.as_bytes()), None, "{source}");
        }
        assert_eq!(required("(".repeat(10_000).as_bytes()), None);
    }
}
