//! The text of a configuration as findings look at it: blocks with those around them, and what is said about a line.

use std::cell::OnceCell;
use std::collections::HashMap;
use yorozu_conf::{Directive, Position, Tree};

/// What silences the findings about a line.
const SILENCER: &[u8] = b"yorozu: intended";
/// As many lines of a block are looked up by their names; chosen.
const LINES_MANY: usize = 100;

/// One finding: what happens, and what to write instead.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    pub text: String,
    pub at: Position,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {}", self.text, self.at)
    }
}

pub(super) fn is_silenced(tree: &Tree, at: &Position) -> bool {
    let file = tree.files.iter().find(|file| *file.path == *at.file);
    let index = usize::try_from(at.line).unwrap_or(0).saturating_sub(1);
    let line = file.and_then(|file| file.text.split(|byte| *byte == b'\n').nth(index));
    let comment = line.and_then(|line| memchr::memchr(b'#', line).map(|at| &line[at..]));
    comment.is_some_and(|comment| memchr::memmem::find(comment, SILENCER).is_some())
}

/// A block with those around it.
pub(super) struct Scope<'a, 'o> {
    pub outer: Option<&'o Scope<'a, 'o>>,
    pub lines: &'a [Directive],
    /// They are asked for by each block inside, of which there may be thousands.
    by_name: OnceCell<HashMap<&'a [u8], Vec<&'a Directive>>>,
}

impl<'a, 'o> Scope<'a, 'o> {
    pub(super) fn new(outer: Option<&'o Scope<'a, 'o>>, lines: &'a [Directive]) -> Self {
        Self { outer, lines, by_name: OnceCell::new() }
    }

    pub(super) fn own(&self, name: &str) -> Vec<&'a Directive> {
        if self.lines.len() < LINES_MANY {
            return self.lines.iter().filter(|line| line.name == name.as_bytes()).collect();
        }
        let sorted = || {
            let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
            for line in self.lines {
                by_name.entry(&line.name[..]).or_default().push(line);
            }
            by_name
        };
        self.by_name.get_or_init(sorted).get(name.as_bytes()).cloned().unwrap_or_default()
    }

    /// What holds here: the block's own lines, else those of the next block around it that has any.
    pub(super) fn find(&self, name: &str) -> Vec<&'a Directive> {
        let own = self.own(name);
        match self.outer {
            Some(outer) if own.is_empty() => outer.find(name),
            _ => own,
        }
    }

    /// Whether a `listen` line of a server is one with TLS.
    pub(super) fn is_tls(&self, listen: &Directive) -> bool {
        let is_on =
            |line: &&Directive| line.args.iter().any(|word| word.eq_ignore_ascii_case(b"on"));
        listen.args.iter().any(|word| word == "ssl" || word == "quic")
            || self.find("ssl").iter().any(is_on)
    }
}

/// What a block holds.
pub(super) fn inside(line: &Directive) -> &[Directive] {
    line.block.as_deref().unwrap_or_default()
}

/// Calls `each` for every server, with its number.
pub(super) fn each_server<'a>(tree: &'a Tree, mut each: impl FnMut(usize, &Scope<'a, '_>)) {
    let root = Scope::new(None, &tree.directives);
    for http in root.own("http") {
        let http = Scope::new(Some(&root), inside(http));
        for (number, server) in http.own("server").into_iter().enumerate() {
            each(number, &Scope::new(Some(&http), inside(server)));
        }
    }
}

/// Calls `each` for every line, blocks and what is in them included.
pub(super) fn each_line(lines: &[Directive], each: &mut dyn FnMut(&Directive)) {
    for line in lines {
        each(line);
        each_line(inside(line), each);
    }
}

/// Whether a name or an argument in these lines is meant, or in the blocks in them.
pub(super) fn any_word(lines: &[Directive], is_meant: &dyn Fn(&[u8]) -> bool) -> bool {
    lines.iter().any(|line| {
        is_meant(&line.name)
            || line.args.iter().any(|word| is_meant(word))
            || any_word(inside(line), is_meant)
    })
}

/// Whether rows stand in the line's block, and no directives; there may be many.
pub(super) fn holds_rows(line: &Directive) -> bool {
    matches!(&line.name[..], b"charset_map" | b"geo" | b"map" | b"split_clients" | b"types")
}

pub(super) fn mentions_cookies(text: &[u8]) -> bool {
    const NAMES: [&[u8]; 3] = [b"$http_cookie", b"$cookie_", b"$cache_cookies"];
    NAMES.iter().any(|name| memchr::memmem::find(text, name).is_some())
}
