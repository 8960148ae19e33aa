//! The rows, and what a line of them says.

use bytes::Bytes;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::NamePattern;

/// What is done to a field.
#[derive(Clone, Debug)]
pub enum Change {
    /// The value takes the place of all there are; an empty one leaves none.
    Set(Template),
    /// The value is added to those there are (`-a`).
    Add(Template),
    Clear,
}

/// One field of a line.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name; of a [`Change::Clear`] perhaps with a `*` behind it.
    pub name: NamePattern,
    pub change: Change,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// `-s`: the statuses it is about; empty for all.
    pub statuses: Vec<u16>,
    /// `-t`: the types of content it is about; empty for all.
    pub types: Vec<Bytes>,
    /// `-r`: only where there is such a field already.
    pub only_replaces: bool,
    pub fields: Vec<Field>,
}

/// The lines of a block for responses, or for requests, in order.
#[derive(Clone, Debug, Default)]
pub struct Lines(pub Vec<Line>);

/// What may not be set or removed: how the message is carried and where its end is, and for requests also the host.
const OF_RESPONSES: [&[u8]; 5] =
    [b"connection", b"content-length", b"keep-alive", b"transfer-encoding", b"upgrade"];
const OF_REQUESTS: [&[u8]; 7] =
    [b"connection", b"content-length", b"expect", b"host", b"te", b"transfer-encoding", b"upgrade"];

impl Adds for Lines {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        self.0.push(Line::read(args)?);
        Ok(())
    }
}

impl Line {
    fn read(args: &Args<'_>) -> Result<Self, ValueError> {
        let is_input = args.name.contains("_input_");
        let is_set = args.name.starts_with("more_set_");
        let mut line = Self {
            statuses: Vec::new(),
            types: Vec::new(),
            only_replaces: false,
            fields: Vec::new(),
        };
        let mut adds = false;
        let mut words = args.words.iter();
        while let Some(word) = words.next() {
            let mut list = || {
                let list = words.next().ok_or_else(|| {
                    ValueError(format!(
                        "\"{}\" expects a list behind \"{}\"",
                        args.name,
                        text(word)
                    ))
                })?;
                let items = list.split(u8::is_ascii_whitespace).filter(|item| !item.is_empty());
                Ok(items.map(Bytes::copy_from_slice).collect::<Vec<_>>())
            };
            match &word[..] {
                b"-t" => line.types.extend(list()?),
                b"-s" if !is_input => {
                    for item in list()? {
                        let status = std::str::from_utf8(&item).ok().and_then(|s| s.parse().ok());
                        let status = status.filter(|status| (100..1000).contains(status));
                        line.statuses.push(status.ok_or_else(|| {
                            ValueError(format!(
                                "invalid status \"{}\", expected a number of three digits",
                                text(&item)
                            ))
                        })?);
                    }
                }
                b"-a" if is_set && !is_input => adds = true,
                b"-r" if is_set && is_input => line.only_replaces = true,
                option if option.starts_with(b"-") => {
                    return Err(ValueError(format!(
                        "invalid option \"{}\" of \"{}\"",
                        text(option),
                        args.name
                    )));
                }
                _ => line.fields.push(Field::read(word, is_set, adds, is_input, args)?),
            }
        }
        match line.fields.is_empty() {
            true => Err(ValueError(format!("\"{}\" names no field", args.name))),
            false => Ok(line),
        }
    }

    /// Whether the line is about content of this type.
    pub fn admits_type(&self, content_type: &[u8]) -> bool {
        let end = content_type.iter().position(|byte| *byte == b';');
        let content_type = content_type[..end.unwrap_or(content_type.len())].trim_ascii();
        self.types.is_empty() || self.types.iter().any(|t| t.eq_ignore_ascii_case(content_type))
    }
}

fn text(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

impl Field {
    fn read(
        word: &Bytes,
        is_set: bool,
        adds: bool,
        is_input: bool,
        args: &Args<'_>,
    ) -> Result<Self, ValueError> {
        let colon = word.iter().position(|byte| *byte == b':');
        let name = word[..colon.unwrap_or(word.len())].trim_ascii();
        let name = if is_set { NamePattern::exact(name) } else { NamePattern::new(name) };
        let is_token =
            name.text().iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(b));
        if !is_token || (name.text().is_empty() && !name.is_prefix()) {
            return Err(ValueError(format!("invalid name of a field \"{}\"", text(word))));
        }
        let kept: &[&[u8]] = if is_input { &OF_REQUESTS } else { &OF_RESPONSES };
        let mut field = Self { name, change: Change::Clear };
        if !field.name.is_prefix() && kept.iter().any(|kept| field.name.matches(kept)) {
            return Err(ValueError(format!(
                "\"{}\" cannot change \"{}\": the server decides how a message is carried",
                args.name,
                text(field.name.text())
            )));
        }
        if is_set {
            let value = colon.map_or(&b""[..], |colon| word[colon + 1..].trim_ascii());
            let value = Template::compile(value, args.env)?;
            field.change = if adds { Change::Add(value) } else { Change::Set(value) };
        }
        Ok(field)
    }

    /// Whether it may change the field `name`, which its `*` may stand for.
    pub fn may_change(&self, name: &[u8], is_input: bool) -> bool {
        let kept: &[&[u8]] = if is_input { &OF_REQUESTS } else { &OF_RESPONSES };
        self.name.matches(name) && !kept.iter().any(|kept| kept.eq_ignore_ascii_case(name))
    }
}

/// The rows.
pub(super) const ROWS: &[Directive] = &[
    Directive::row(
        "more_set_headers",
        CONTEXTS,
        Arity::ONE_OR_MORE,
        Action::Set(|block, args| block.drafts.of::<Draft>().more_headers.set(args)),
        "Sets headers of responses, including those of upstreams; `-s` and `-t` restrict it to statuses and types, `-a` adds.",
    ),
    Directive::row(
        "more_clear_headers",
        CONTEXTS,
        Arity::ONE_OR_MORE,
        Action::Set(|block, args| block.drafts.of::<Draft>().more_headers.set(args)),
        "Removes headers of responses; a `*` at the end of a name matches any ending.",
    ),
    Directive::row(
        "more_set_input_headers",
        CONTEXTS,
        Arity::ONE_OR_MORE,
        Action::Set(|block, args| block.drafts.of::<Draft>().more_input_headers.set(args)),
        "Sets headers of requests; with `-r` only those that are present. A value with a line break is refused (400).",
    ),
    Directive::row(
        "more_clear_input_headers",
        CONTEXTS,
        Arity::ONE_OR_MORE,
        Action::Set(|block, args| block.drafts.of::<Draft>().more_input_headers.set(args)),
        "Removes headers of requests; a `*` at the end of a name matches any ending.",
    ),
];

const CONTEXTS: Contexts = HTTP_SERVER_LOCATION | LOCATION_IF;

settings! {
    inherit = inherit, check = nothing_to_check;
    /// Fields of responses that are set, added (`-a`) or taken away, in order; separate rows fill it.
    more_headers: Lines = none, ONE_OR_MORE, 0;
    /// Fields of requests, likewise.
    more_input_headers: Lines = none, ONE_OR_MORE, 0;
}

/// What the enclosing block says comes first.
fn inherit(draft: &mut Draft, outer: &Draft) {
    let join = |own: &mut Inherit<Lines>, outer: &Inherit<Lines>| {
        let (Some(outer), Some(inner)) = (outer.written(), own.written()) else {
            return own.inherit(outer);
        };
        own.replace(Lines([&outer.0[..], &inner.0[..]].concat()));
    };
    join(&mut draft.more_headers, &outer.more_headers);
    join(&mut draft.more_input_headers, &outer.more_input_headers);
}
