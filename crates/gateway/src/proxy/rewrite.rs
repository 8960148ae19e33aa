//! What `proxy_redirect`, `proxy_cookie_domain`, `proxy_cookie_path` and `proxy_cookie_flags` make of
//! an upstream's fields.

use bytes::Bytes;
use yorozu_kernel::config::directive::{Args, Setting, ValueError};
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

    /// Appends what the rule is for this request, where variables spell it.
    pub(super) fn append(&self, exchange: &mut Exchange, out: &mut Vec<u8>) {
        if let Pattern::Text(text) = &self.pattern {
            text.append(exchange, out);
        }
        out.push(b' ');
        self.replacement.append(exchange, out);
        out.push(b'\n');
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
                if !regex.matches(value, exchange) {
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
            Pattern::Regex(regex) => (&b""[..], regex.matches(domain, exchange)),
        };
        is_match.then(|| [dot, &self.replacement.value(exchange)].concat())
    }
}

fn wrong_number(args: &Args<'_>) -> ValueError {
    ValueError(format!("invalid number of arguments in \"{}\"", args.name))
}

/// `proxy_redirect`: the rules, and whether the default is among them.
#[derive(Clone, Debug, Default)]
pub struct Redirects {
    pub rules: Vec<Rule>,
    pub has_default: bool,
    is_off: bool,
}

impl Setting for Redirects {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut redirects = Self::default();
        redirects.again(args)?;
        Ok(redirects)
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        match (args.words.len(), args.word(0)) {
            _ if self.is_off => return Err(args.duplicate()),
            (1, b"off") if self.has_default || !self.rules.is_empty() => {
                return Err(args.duplicate());
            }
            (1, b"off") => *self = Self { is_off: true, ..Self::default() },
            (1, b"default") => self.has_default = true,
            (1, _) => return Err(args.invalid_parameter(args.word(0))),
            _ => self.rules.push(Rule::from_args(args)?),
        }
        Ok(())
    }
}

/// `proxy_cookie_domain`
#[derive(Clone, Debug, Default)]
pub struct Domains(pub(super) Vec<Rule>);

impl Setting for Domains {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match (args.words.len(), args.word(0)) {
            (1, b"off") => Ok(Self::default()),
            _ => Ok(Self(vec![Rule::of_domains(args)?])),
        }
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        self.0.push(Rule::of_domains(args)?);
        Ok(())
    }
}

/// `proxy_cookie_path`
#[derive(Clone, Debug, Default)]
pub struct Rules(pub(super) Vec<Rule>);

impl Setting for Rules {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match (args.words.len(), args.word(0)) {
            (1, b"off") => Ok(Self::default()),
            _ => Ok(Self(vec![Rule::from_args(args)?])),
        }
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        self.0.push(Rule::from_args(args)?);
        Ok(())
    }
}

/// What `proxy_cookie_flags` does to one attribute.
#[derive(Clone, Debug)]
struct FlagChange {
    name: &'static str,
    /// `None`: taken away.
    attribute: Option<&'static str>,
}

/// One line of `proxy_cookie_flags`.
#[derive(Clone, Debug)]
struct FlagRule {
    cookie: Pattern,
    flags: Vec<Template>,
}

/// `proxy_cookie_flags`
#[derive(Clone, Debug, Default)]
pub struct CookieFlags(Vec<FlagRule>);

impl Setting for CookieFlags {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut flags = Self::default();
        match args.words {
            [word] if &word[..] == b"off" => {}
            [word] => return Err(args.invalid_parameter(word)),
            _ => flags.add(args)?,
        }
        Ok(flags)
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        // `off` stands alone.
        match self.0.is_empty() {
            true => Err(args.duplicate()),
            false if args.words.len() == 1 && args.word(0) == b"off" => Err(args.duplicate()),
            false if args.words.len() == 1 => Err(args.invalid_parameter(args.word(0))),
            false => self.add(args),
        }
    }
}

impl CookieFlags {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let mut flags = Vec::new();
        for word in &args.words[1..] {
            let flag = Template::compile(word, args.env)?;
            if flag.as_literal().is_some_and(|text| flag_change(&text).is_none()) {
                return Err(args.invalid_parameter(word));
            }
            flags.push(flag);
        }
        let cookie = match args.word(0).strip_prefix(b"~") {
            // As nginx: without case.
            Some(regex) => Pattern::Regex(Regex::compile(regex, true, args.env)?),
            None => Pattern::Text(Template::compile(args.word(0), args.env)?),
        };
        self.0.push(FlagRule { cookie, flags });
        Ok(())
    }
}

fn flag_change(text: &[u8]) -> Option<FlagChange> {
    let (name, attribute) = match text.to_ascii_lowercase().as_slice() {
        b"secure" => ("secure", Some("Secure")),
        b"nosecure" => ("secure", None),
        b"httponly" => ("httponly", Some("HttpOnly")),
        b"nohttponly" => ("httponly", None),
        b"samesite=strict" => ("samesite", Some("SameSite=Strict")),
        b"samesite=lax" => ("samesite", Some("SameSite=Lax")),
        b"samesite=none" => ("samesite", Some("SameSite=None")),
        b"nosamesite" => ("samesite", None),
        _ => return None,
    };
    Some(FlagChange { name, attribute })
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

/// `Set-Cookie` as the client shall see it; `None` if there are no rules.
pub(super) fn cookie(
    rules: CookieRules<'_>,
    exchange: &mut Exchange,
    value: &[u8],
) -> Option<Bytes> {
    let CookieRules { domain, path, flags } = rules;
    if domain.0.is_empty() && path.0.is_empty() && flags.0.is_empty() {
        return None;
    }
    let mut parts = value.split(|byte| *byte == b';').map(<[u8]>::to_vec);
    let first = parts.next().unwrap_or_default();
    let mut attributes: Vec<Vec<u8>> = parts.collect();
    for attribute in &mut attributes {
        let text = attribute.trim_ascii_start();
        let indent = attribute.len() - text.len();
        let Some(equals) = text.iter().position(|byte| *byte == b'=') else { continue };
        let (name, old) = (&text[..equals], &text[equals + 1..]);
        let new = if name.eq_ignore_ascii_case(b"domain") {
            domain.0.iter().find_map(|rule| rule.of_domain(exchange, old))
        } else if name.eq_ignore_ascii_case(b"path") {
            path.0.iter().find_map(|rule| rule.of_prefix(exchange, old))
        } else {
            None
        };
        if let Some(new) = new {
            attribute.truncate(indent + equals + 1);
            attribute.extend_from_slice(&new);
        }
    }
    change_flags(flags, exchange, &first, &mut attributes);
    let mut out = first;
    for attribute in attributes {
        out.push(b';');
        out.extend_from_slice(&attribute);
    }
    Some(out.into())
}

fn change_flags(
    flags: &CookieFlags,
    exchange: &mut Exchange,
    first: &[u8],
    attributes: &mut Vec<Vec<u8>>,
) {
    let name = first.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
    let rule = flags.0.iter().find(|rule| match &rule.cookie {
        Pattern::Text(text) => text.value(exchange).eq_ignore_ascii_case(name),
        Pattern::Regex(regex) => regex.matches(name, exchange),
    });
    let Some(rule) = rule else { return };
    let changes: Vec<FlagChange> =
        rule.flags.iter().filter_map(|flag| flag_change(&flag.value(exchange))).collect();
    for change in changes {
        attributes.retain(|attribute| {
            let name = attribute.split(|byte| *byte == b'=').next().unwrap_or_default();
            !name.trim_ascii().eq_ignore_ascii_case(change.name.as_bytes())
        });
        if let Some(attribute) = change.attribute {
            attributes.push(format!(" {attribute}").into_bytes());
        }
    }
}
