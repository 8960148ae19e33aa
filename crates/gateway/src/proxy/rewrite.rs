//! What `proxy_redirect`, `proxy_cookie_domain`, `proxy_cookie_path` and `proxy_cookie_flags` make of
//! an upstream's fields.

use bytes::Bytes;
use std::borrow::Cow;
use yorozu_kernel::config::directive::{Adds, Args, Setting, ValueError};
use yorozu_kernel::config::regex::Regex;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;

/// What is replaced.
#[derive(Clone, Debug)]
enum Pattern {
    Text(Template),
    Regex(Regex),
}

impl Pattern {
    fn compile(word: &[u8], args: &Args<'_>) -> Result<Self, ValueError> {
        match word.strip_prefix(b"~") {
            None => Template::compile(word, args.env).map(Self::Text),
            Some(regex) => {
                let (regex, caseless) = match regex.strip_prefix(b"*") {
                    Some(regex) => (regex, true),
                    None => (regex, false),
                };
                Regex::compile(regex, caseless, args.env).map(Self::Regex)
            }
        }
    }
}

/// One replacement.
#[derive(Clone, Debug)]
pub struct Rule {
    pattern: Pattern,
    replacement: Template,
}

impl Rule {
    /// A rule for two texts.
    pub fn literal(pattern: Bytes, replacement: Bytes) -> Self {
        let pattern = Pattern::Text(Template::literal(pattern));
        Self { pattern, replacement: Template::literal(replacement) }
    }

    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        if args.words.len() != 2 {
            return Err(wrong_number(args));
        }
        let pattern = Pattern::compile(args.word(0), args)?;
        Ok(Self { pattern, replacement: Template::compile(args.word(1), args.env)? })
    }

    /// As nginx: an expression for domains has no case, and of two texts the leading dots do not count.
    fn of_domains(args: &Args<'_>) -> Result<Self, ValueError> {
        let [domain, replacement] = args.words else { return Err(wrong_number(args)) };
        if let Some(regex) = domain.strip_prefix(b"~") {
            let pattern = Pattern::Regex(Regex::compile(regex, true, args.env)?);
            return Ok(Self { pattern, replacement: Template::compile(replacement, args.env)? });
        }
        let undotted =
            |word: &Bytes| Template::compile(word.strip_prefix(b".").unwrap_or(word), args.env);
        Ok(Self { pattern: Pattern::Text(undotted(domain)?), replacement: undotted(replacement)? })
    }

    /// The value with its beginning replaced, if that matches.
    fn of_prefix(&self, exchange: &mut Exchange, value: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match &self.pattern {
            Pattern::Text(prefix) => {
                let prefix = prefix.value(exchange);
                let rest = value.strip_prefix(&prefix[..])?;
                self.replacement.append(exchange, &mut out);
                out.extend_from_slice(rest);
            }
            // As nginx: a regex replaces all of the value.
            Pattern::Regex(regex) => {
                // In doubt the answer is not sent, whatever it says.
                if regex.matches(value, exchange) != Ok(true) {
                    return None;
                }
                self.replacement.append(exchange, &mut out);
            }
        }
        Some(out)
    }

    /// The replacement, if the whole of `domain` matches. The dot before what a text matches stays.
    fn of_domain(&self, exchange: &mut Exchange, domain: &[u8]) -> Option<Vec<u8>> {
        let (dot, is_match) = match &self.pattern {
            Pattern::Text(text) => {
                let (dot, bare) = domain.split_at(usize::from(domain.starts_with(b".")));
                (dot, text.value(exchange).eq_ignore_ascii_case(bare))
            }
            Pattern::Regex(regex) => (&b""[..], regex.matches(domain, exchange) == Ok(true)),
        };
        is_match.then(|| [dot, &self.replacement.value(exchange)].concat())
    }
}

fn wrong_number(args: &Args<'_>) -> ValueError {
    ValueError(format!("invalid number of arguments in \"{}\"", args.name))
}

/// `proxy_redirect`: its lines, of which the first that fits counts.
#[derive(Clone, Debug, Default)]
pub struct Redirects {
    lines: Vec<Redirect>,
    is_off: bool,
}

/// A line of `proxy_redirect`.
#[derive(Clone, Debug)]
enum Redirect {
    Rule(Rule),
    /// The rule that follows from `proxy_pass` and the location.
    Default,
}

impl Redirects {
    /// The rules in order; `default` is what the default comes to, if to anything.
    pub fn rules(&self, default: impl Fn() -> Option<Rule>) -> Vec<Rule> {
        let rule = |line: &Redirect| match line {
            Redirect::Rule(rule) => Some(rule.clone()),
            Redirect::Default => default(),
        };
        self.lines.iter().filter_map(rule).collect()
    }
}

impl Adds for Redirects {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        match (args.words.len(), args.word(0)) {
            _ if self.is_off => return Err(args.duplicate()),
            (1, b"off") if !self.lines.is_empty() => return Err(args.duplicate()),
            (1, b"off") => self.is_off = true,
            (1, b"default") => self.lines.push(Redirect::Default),
            (1, _) => return Err(args.invalid_parameter(args.word(0))),
            _ => self.lines.push(Redirect::Rule(Rule::from_args(args)?)),
        }
        Ok(())
    }
}

/// One more line of several; `off` stands alone.
///
/// # Errors
/// It is `off` beside others, or behind it; or a word without what replaces it.
fn add_line<T>(
    lines: &mut Vec<T>,
    is_first: bool,
    args: &Args<'_>,
    read: fn(&Args<'_>) -> Result<T, ValueError>,
) -> Result<(), ValueError> {
    match args.words {
        _ if !is_first && lines.is_empty() => return Err(args.duplicate()),
        [word] if &word[..] != b"off" => return Err(args.invalid_parameter(word)),
        [_] if is_first => {}
        [_] => return Err(args.duplicate()),
        _ => lines.push(read(args)?),
    }
    Ok(())
}

/// Types of settings that are lines, read by a function each.
macro_rules! lines {
    ($($(#[$doc:meta])* $name:ident($visibility:vis $of:ty) = $read:path;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub struct $name($visibility Vec<$of>);

        impl Setting for $name {
            fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
                let mut lines = Self::default();
                add_line(&mut lines.0, true, args, $read)?;
                Ok(lines)
            }

            fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
                add_line(&mut self.0, false, args, $read)
            }
        }
    )*};
}

lines! {
    /// `proxy_cookie_domain`
    Domains(pub(super) Rule) = Rule::of_domains;
    /// `proxy_cookie_path`
    Rules(pub(super) Rule) = Rule::from_args;
    /// `proxy_cookie_flags`
    CookieFlags(FlagRule) = FlagRule::from_args;
}

/// What a line of `proxy_cookie_flags` does to a cookie: each attribute is written, taken away, or left alone.
#[derive(Clone, Copy, Debug, Default)]
struct FlagChanges {
    /// `Secure`, `HttpOnly` and the value of `SameSite`: whether it is put in.
    put: [Option<&'static str>; 3],
    /// The same three: whether it is taken away. What is put in as well stays.
    taken: [bool; 3],
}

/// In the order in which nginx appends them.
const FLAGS: [&str; 3] = ["Secure", "HttpOnly", "SameSite"];
/// Of two that are written, the first of these holds.
const SAME_SITE: [&str; 3] = ["Strict", "Lax", "None"];

impl FlagChanges {
    /// Adds what a word says; nginx lets others be.
    fn add(&mut self, word: &[u8]) {
        let word = word.to_ascii_lowercase();
        match &word[..] {
            b"secure" => self.put[0] = Some(""),
            b"nosecure" => self.taken[0] = true,
            b"httponly" => self.put[1] = Some(""),
            b"nohttponly" => self.taken[1] = true,
            b"nosamesite" => self.taken[2] = true,
            _ => {
                let Some(value) = word.strip_prefix(b"samesite=") else { return };
                let rank = |value: &[u8]| {
                    SAME_SITE.iter().position(|known| known.as_bytes().eq_ignore_ascii_case(value))
                };
                let old = self.put[2].and_then(|old| rank(old.as_bytes()));
                let Some(new) = rank(value) else { return };
                self.put[2] = SAME_SITE.get(old.map_or(new, |old| old.min(new))).copied();
            }
        }
    }

    fn is_none(&self) -> bool {
        self.put.iter().all(Option::is_none) && !self.taken.contains(&true)
    }
}

/// One line of `proxy_cookie_flags`.
#[derive(Clone, Debug)]
struct FlagRule {
    cookie: Pattern,
    flags: Vec<Template>,
}

impl FlagRule {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let flags = args.words[1..].iter().map(|word| Template::compile(word, args.env));
        let flags = flags.collect::<Result<_, _>>()?;
        let cookie = match args.word(0).strip_prefix(b"~") {
            // As nginx: without case.
            Some(regex) => Pattern::Regex(Regex::compile(regex, true, args.env)?),
            None => Pattern::Text(Template::compile(args.word(0), args.env)?),
        };
        Ok(Self { cookie, flags })
    }
}

/// `Location` as the client shall see it; `None` if no rule applies.
pub(super) fn location(rules: &[Rule], exchange: &mut Exchange, value: &[u8]) -> Option<Bytes> {
    rules.iter().find_map(|rule| rule.of_prefix(exchange, value)).map(Bytes::from)
}

/// `Refresh: 5; url=…`
pub(super) fn refresh(rules: &[Rule], exchange: &mut Exchange, value: &[u8]) -> Option<Bytes> {
    let lower = value.to_ascii_lowercase();
    let at = memchr::memmem::find(&lower, b"url=")? + b"url=".len();
    let url = rules.iter().find_map(|rule| rule.of_prefix(exchange, &value[at..]))?;
    Some([&value[..at], &url].concat().into())
}

/// The three kinds of rules for cookies.
#[derive(Clone, Copy)]
pub(super) struct CookieRules<'a> {
    pub(super) domain: &'a Domains,
    pub(super) path: &'a Rules,
    pub(super) flags: &'a CookieFlags,
}

/// `Set-Cookie` as the client shall see it; `None` if no rule changes it.
pub(super) fn cookie(
    rules: CookieRules<'_>,
    exchange: &mut Exchange,
    value: &[u8],
) -> Option<Bytes> {
    let CookieRules { domain, path, flags } = rules;
    if domain.0.is_empty() && path.0.is_empty() && flags.0.is_empty() {
        return None;
    }
    let mut attributes = value.split(|byte| *byte == b';').map(Attribute::read);
    // As nginx: what has no value is no cookie.
    let first = attributes.next().filter(|first| first.value.is_some())?;
    let mut attributes: Vec<_> = attributes.collect();
    let mut is_changed = false;
    for attribute in &mut attributes {
        let Some(old) = &attribute.value else { continue };
        let new = if attribute.is_named("domain") {
            domain.0.iter().find_map(|rule| rule.of_domain(exchange, old))
        } else if attribute.is_named("path") {
            path.0.iter().find_map(|rule| rule.of_prefix(exchange, old))
        } else {
            None
        };
        if new.is_some() {
            attribute.value = new.map(Cow::Owned);
            is_changed = true;
        }
    }
    is_changed |= change_flags(flags, exchange, first.name, &mut attributes);
    if !is_changed {
        return None;
    }
    let mut out = Vec::with_capacity(value.len() + 64);
    first.append(&mut out);
    for attribute in attributes {
        out.extend_from_slice(b"; ");
        attribute.append(&mut out);
    }
    Some(out.into())
}

/// What stands between two semicolons, without spaces at its ends and around the first `=`.
struct Attribute<'a> {
    name: &'a [u8],
    value: Option<Cow<'a, [u8]>>,
}

impl<'a> Attribute<'a> {
    fn read(text: &'a [u8]) -> Self {
        match text.iter().position(|byte| *byte == b'=') {
            None => Self { name: without_spaces(text), value: None },
            Some(at) => Self {
                name: without_spaces(&text[..at]),
                value: Some(Cow::Borrowed(without_spaces(&text[at + 1..]))),
            },
        }
    }

    fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }

    fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.name);
        if let Some(value) = &self.value {
            out.push(b'=');
            out.extend_from_slice(value);
        }
    }
}

/// As nginx, which lets tabs be.
fn without_spaces(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| *byte != b' ').unwrap_or(text.len());
    let end = text.iter().rposition(|byte| *byte != b' ').map_or(start, |last| last + 1);
    &text[start..end]
}

/// Whether a rule that says something is for the cookie: then it is written again, changed or not.
fn change_flags(
    flags: &CookieFlags,
    exchange: &mut Exchange,
    cookie: &[u8],
    attributes: &mut Vec<Attribute<'_>>,
) -> bool {
    let rule = flags.0.iter().find(|rule| match &rule.cookie {
        Pattern::Text(text) => text.value(exchange).eq_ignore_ascii_case(cookie),
        Pattern::Regex(regex) => regex.matches(cookie, exchange) == Ok(true),
    });
    let Some(rule) = rule else { return false };
    let mut changes = FlagChanges::default();
    rule.flags.iter().for_each(|flag| changes.add(&flag.value(exchange)));
    if changes.is_none() {
        return false;
    }
    for (place, name) in FLAGS.iter().enumerate() {
        match changes.put[place] {
            Some(value) => put_flag(attributes, name, value),
            None if changes.taken[place] => attributes.retain(|it| !it.is_named(name)),
            None => {}
        }
    }
    true
}

/// Puts an attribute at the end, or its value where it stands.
fn put_flag(attributes: &mut Vec<Attribute<'_>>, name: &'static str, value: &'static str) {
    let is_there = |it: &Attribute<'_>| {
        let has = it.value.as_ref().is_some_and(|old| old.eq_ignore_ascii_case(value.as_bytes()));
        value.is_empty() || has
    };
    let value = (!value.is_empty()).then_some(Cow::Borrowed(value.as_bytes()));
    let new = || Attribute { name: name.as_bytes(), value: value.clone() };
    let mut is_found = false;
    for attribute in attributes.iter_mut().filter(|it| it.is_named(name)) {
        is_found = true;
        if !is_there(attribute) {
            *attribute = new();
        }
    }
    if !is_found {
        attributes.push(new());
    }
}
