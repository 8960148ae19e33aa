//! `set`, `if`, `rewrite`, `return`, `break`: the small program a server or location runs first.

mod file_test;
mod many;
mod set_misc;
mod steps;

pub use file_test::FileTest;
pub use many::Rewrites;
pub use steps::{Script, Steps, server_script};

use bytes::Bytes;
use std::rc::Rc;
use yorozu_conf::{ConfError, Directive as Line, value};
use yorozu_http::uri::{Escape, escape_into, unescape_redirect};
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::target;
use yorozu_kernel::config::loader::Loader;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::names::VariableNames;
use yorozu_kernel::config::regex::{Captures, Regex, Undecided};
use yorozu_kernel::config::servers::LocationId;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::body_failed::broken_unasked;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::variables::Variable;
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module =
    Module::new("http_rewrite", || [DIRECTIVES, OTHERS, set_misc::ROWS].concat())
        .with(&[silent::<Draft>]);

settings! {
    /// Whether matches of `rewrite` are logged at `notice`.
    rewrite_log: bool = "off", ONE, HTTP_SERVER_LOCATION | SERVER_IF | LOCATION_IF;
}

/// One step as written; `if` still holds its block.
#[derive(Clone)]
pub enum InstructionDraft {
    Plain(Instruction),
    If { condition: Condition, block: Box<Block> },
}

/// One step.
#[derive(Clone, Debug)]
pub enum Instruction {
    Break,
    If {
        condition: Condition,
        then: Vec<Instruction>,
        /// Settings of the `if` block in a location.
        location: Option<LocationId>,
    },
    Return(Return),
    Rewrite(Box<Rewrite>),
    /// Many of them in a row.
    Rewrites(Box<Rewrites>),
    Set {
        target: Variable,
        value: Template,
    },
    Make(Box<set_misc::Make>),
}

/// What an `if` asks.
#[derive(Clone, Debug)]
pub enum Condition {
    /// Neither empty nor `0`.
    True(Variable),
    Equals {
        left: Variable,
        right: Template,
        is_negated: bool,
    },
    Matches {
        subject: Variable,
        regex: Regex,
        is_negated: bool,
    },
    File {
        path: Template,
        test: FileTest,
        is_negated: bool,
    },
}

/// `return code [text]`
#[derive(Clone, Debug)]
pub struct Return {
    pub status: u16,
    pub text: Option<Template>,
}

/// `rewrite regex replacement [flag]`
#[derive(Clone, Debug)]
pub struct Rewrite {
    regex: Regex,
    /// The part before `?`.
    path: Template,
    /// The part after it.
    args: Option<Template>,
    /// The request's own arguments are appended.
    keeps_args: bool,
    flag: Flag,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flag {
    None,
    Last,
    Break,
    Redirect(u16),
}

/// What a script says about the way on.
pub enum Verdict {
    /// Nothing: the next phase.
    Continue,
    /// The path changed: find another location.
    UriChanged,
    /// The response is decided.
    Done(Outcome),
}

/// Where the steps may stand.
const STEP_CONTEXTS: Contexts = SERVER | LOCATION | SERVER_IF | LOCATION_IF;

/// Adds a step to the block's script.
fn step(block: &mut Block, instruction: Instruction) -> Result<(), ValueError> {
    block.drafts.of::<Steps>().0.push(InstructionDraft::Plain(instruction));
    Ok(())
}

pub const OTHERS: &[Directive] = &[
    Directive::row(
        "break",
        STEP_CONTEXTS,
        Arity::NONE,
        Action::Set(|block, _| step(block, Instruction::Break)),
        "Ends the steps of this module.",
    ),
    Directive::row(
        "if",
        SERVER | LOCATION,
        Arity::ONE_OR_MORE,
        Action::Open(open_if),
        "Steps and settings that apply under a condition.",
    ),
    Directive::row(
        "return",
        STEP_CONTEXTS,
        Arity::ONE_OR_TWO,
        Action::Set(|block, args| step(block, Instruction::Return(Return::from_args(args)?))),
        "Answers with a status, and a text or a URL.",
    ),
    Directive::row(
        "rewrite",
        STEP_CONTEXTS,
        Arity::TWO_OR_THREE,
        Action::Set(|block, args| {
            step(block, Instruction::Rewrite(Box::new(Rewrite::from_args(args)?)))
        }),
        "Changes the path by a regular expression, or redirects.",
    ),
    Directive::row(
        "set",
        STEP_CONTEXTS,
        Arity::TWO,
        Action::Set(|block, args| step(block, set(args)?)),
        "Gives a variable a value.",
    ),
    Directive::row(
        "uninitialized_variable_warn",
        HTTP_SERVER_LOCATION | SERVER_IF | LOCATION_IF,
        Arity::ONE,
        Action::Ignored("uninitialized variables are not logged", once::<bool>),
        "Logs uses of variables without a value.",
    ),
];

fn set(args: &Args<'_>) -> Result<Instruction, ValueError> {
    let target = target(&args.words[0], args.env, VariableNames::define_by_set)?;
    Ok(Instruction::Set { target, value: Template::compile(args.word(1), args.env)? })
}

impl Return {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let first = args.word(0);
        let status = value::number(first).filter(|status| *status <= 999);
        let Some(status) = status.and_then(|status| u16::try_from(status).ok()) else {
            let is_url =
                [&b"http://"[..], b"https://", b"$scheme"].iter().any(|s| first.starts_with(s));
            if args.words.len() > 1 || !is_url {
                return Err(ValueError(format!("invalid return code \"{}\"", args.text(0))));
            }
            return Ok(Self { status: 302, text: Some(Template::compile(first, args.env)?) });
        };
        let text = match args.words.get(1) {
            Some(text) => Some(Template::compile(text, args.env)?),
            None => None,
        };
        Ok(Self { status, text })
    }
}

/// `rewrite_log`
fn is_logged(exchange: &Exchange) -> bool {
    exchange.conf.location(exchange.location).of::<Conf>().rewrite_log
}

fn note(exchange: &Exchange, text: impl FnOnce() -> String) {
    if is_logged(exchange) {
        error::request(exchange, Level::Notice, &text());
    }
}

impl Rewrite {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let replacement = args.word(1);
        let is_url =
            [&b"http://"[..], b"https://", b"$scheme"].iter().any(|s| replacement.starts_with(s));
        let flag = match args.word(2) {
            b"" if is_url => Flag::Redirect(302),
            b"" => Flag::None,
            b"last" if is_url => Flag::Redirect(302),
            b"last" => Flag::Last,
            b"break" if is_url => Flag::Redirect(302),
            b"break" => Flag::Break,
            b"redirect" => Flag::Redirect(302),
            b"permanent" => Flag::Redirect(301),
            other => return Err(args.invalid_parameter(other)),
        };
        if replacement.is_empty() {
            return Err(ValueError::new("empty replacement"));
        }
        // A `?` at the end keeps the request's arguments from being appended.
        let (replacement, keeps_args) = match replacement.strip_suffix(b"?") {
            Some(replacement) => (replacement, false),
            None => (replacement, true),
        };
        let at = replacement.iter().position(|byte| *byte == b'?');
        let query = at.map(|at| &replacement[at + 1..]);
        Ok(Self {
            regex: Regex::compile(args.word(0), false, args.env)?,
            path: Template::compile(&replacement[..at.unwrap_or(replacement.len())], args.env)?,
            args: query.map(|query| Template::compile(query, args.env)).transpose()?,
            keeps_args,
            flag,
        })
    }
}

fn open_if(loader: &mut Loader<'_>, block: &mut Block, line: &Line) -> Result<(), ConfError> {
    let condition = condition(&line.args, loader.env).map_err(|error| error.at(&line.at))?;
    let context = if block.context == SERVER { SERVER_IF } else { LOCATION_IF };
    let mut inner = Block::new(context, Some(line.at.clone()));
    loader.walk(&mut inner, line.block.as_deref().unwrap_or_default())?;
    block.drafts.of::<Steps>().0.push(InstructionDraft::If { condition, block: Box::new(inner) });
    Ok(())
}

/// The words between the parentheses; those may touch the first and last word.
fn condition(
    args: &[Bytes],
    env: &yorozu_kernel::config::env::Env,
) -> Result<Condition, ValueError> {
    let shown = |word: &[u8]| {
        ValueError(format!("invalid condition \"{}\"", String::from_utf8_lossy(word)))
    };
    let mut words: Vec<Bytes> = args.to_vec();
    let first = words[0].clone();
    let Some(opened) = first.strip_prefix(b"(") else { return Err(shown(&first)) };
    words[0] = Bytes::copy_from_slice(opened);
    let last = words.last().expect("one argument at least").clone();
    let Some(closed) = last.strip_suffix(b")") else { return Err(shown(&last)) };
    let at = words.len() - 1;
    words[at] =
        if at == 0 { words[0].slice(..words[0].len() - 1) } else { Bytes::copy_from_slice(closed) };
    // Parentheses may stand alone; an empty text in quotes may not be lost with them.
    if words[0].is_empty() {
        words.remove(0);
    }
    if words.len() > 1 && last.len() == 1 {
        words.pop();
    }
    let Some((head, rest)) = words.split_first() else { return Err(shown(&first)) };
    if let Some(name) = head.strip_prefix(b"$") {
        return variable_condition(name, rest, env).ok_or_else(|| shown(head))?;
    }
    let (test, is_negated) = match head.strip_prefix(b"!") {
        Some(test) => (test, true),
        None => (&head[..], false),
    };
    let test = match test {
        b"-f" => FileTest::File,
        b"-d" => FileTest::Folder,
        b"-e" => FileTest::Exists,
        b"-x" => FileTest::Executable,
        _ => return Err(shown(head)),
    };
    let [path] = rest else { return Err(shown(head)) };
    Ok(Condition::File { path: Template::compile(path, env)?, test, is_negated })
}

fn variable_condition(
    name: &[u8],
    rest: &[Bytes],
    env: &yorozu_kernel::config::env::Env,
) -> Option<Result<Condition, ValueError>> {
    let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
    let name = name.strip_prefix('{').and_then(|n| n.strip_suffix('}')).unwrap_or(&name);
    if name.is_empty() {
        return None;
    }
    let subject = env.variables.borrow_mut().resolve(name);
    let [operator, right] = rest else {
        return rest.is_empty().then_some(Ok(Condition::True(subject)));
    };
    let regex = |caseless, is_negated| {
        Regex::compile(right, caseless, env).map(|regex| Condition::Matches {
            subject: subject.clone(),
            regex,
            is_negated,
        })
    };
    let equals = |is_negated| {
        Template::compile(right, env).map(|right| Condition::Equals {
            left: subject.clone(),
            right,
            is_negated,
        })
    };
    Some(match &operator[..] {
        b"=" => equals(false),
        b"!=" => equals(true),
        b"~" => regex(false, false),
        b"~*" => regex(true, false),
        b"!~" => regex(false, true),
        b"!~*" => regex(true, true),
        other => Err(ValueError(format!(
            "unexpected \"{}\" in condition",
            String::from_utf8_lossy(other)
        ))),
    })
}

/// Runs the script of the server the exchange is in.
pub fn in_server(exchange: &mut Exchange) -> Verdict {
    let conf = Rc::clone(&exchange.conf);
    let server = conf.location(conf.server(exchange.server).conf);
    run(exchange, &server.at::<Script>(server_script()).0)
}

/// Runs the script of the location the exchange is in.
pub fn in_location(exchange: &mut Exchange) -> Verdict {
    let conf = Rc::clone(&exchange.conf);
    run(exchange, &conf.location(exchange.location).of::<Script>().0)
}

fn run(exchange: &mut Exchange, script: &[Instruction]) -> Verdict {
    if script.is_empty() {
        return Verdict::Continue;
    }
    let was_in_location = exchange.is_uri_in_location;
    let mut run = Run { is_changed: false, escapes_captures: true };
    match steps(exchange, script, &mut run) {
        Step::Done(outcome) => Verdict::Done(outcome),
        Step::Next | Step::Stop if run.is_changed => {
            exchange.is_uri_in_location = was_in_location;
            Verdict::UriChanged
        }
        Step::Next | Step::Stop => Verdict::Continue,
    }
}

/// One way through a script.
struct Run {
    /// Another location is to be found.
    is_changed: bool,
    /// As nginx: until a `rewrite` has matched, what `set` and `if` take by `$1` of an escaped path is escaped again.
    escapes_captures: bool,
}

enum Step {
    Next,
    Stop,
    Done(Outcome),
}

impl From<Undecided> for Step {
    fn from(_: Undecided) -> Self {
        Self::Done(Outcome::Status(500))
    }
}

fn steps(exchange: &mut Exchange, script: &[Instruction], run: &mut Run) -> Step {
    for instruction in script {
        let step = match instruction {
            Instruction::Break => {
                // As nginx: what was rewritten stays in this location.
                run.is_changed = false;
                Step::Stop
            }
            Instruction::Set { target, value } => {
                let value = self::value(exchange, value, run.escapes_captures);
                target.assign(exchange, value);
                Step::Next
            }
            Instruction::Make(make) => make.apply(exchange, run.escapes_captures),
            Instruction::If { condition, then, location } => match condition.holds(exchange, run) {
                Ok(true) if !exchange.doubt.is_open() => {
                    if let Some(location) = location {
                        exchange.location = *location;
                    }
                    steps(exchange, then, run)
                }
                Ok(_) => Step::Next,
                Err(why) => why.into(),
            },
            Instruction::Return(text) => Step::Done(text.outcome(exchange)),
            Instruction::Rewrite(rewrite) => match rewrite.apply(exchange, run) {
                Ok(step) => step.unwrap_or(Step::Next),
                Err(why) => why.into(),
            },
            Instruction::Rewrites(rewrites) => rewrites.apply(exchange, run),
        };
        if exchange.doubt.is_open() {
            // Nothing that follows may go by it.
            return Step::Done(Outcome::Status(500));
        }
        if !matches!(step, Step::Next) {
            return step;
        }
    }
    Step::Next
}

impl Condition {
    fn holds(&self, exchange: &mut Exchange, run: &Run) -> Result<bool, Undecided> {
        let mut subject = Scratch::take();
        Ok(match self {
            Self::True(variable) => {
                variable.append(exchange, &mut subject);
                !subject.is_empty() && subject[..] != *b"0"
            }
            Self::Equals { left, right, is_negated } => {
                left.append(exchange, &mut subject);
                let right = value(exchange, right, run.escapes_captures);
                (subject[..] == right[..]) != *is_negated
            }
            Self::Matches { subject: variable, regex, is_negated } => {
                variable.append(exchange, &mut subject);
                let is_match = regex.matches(&subject, exchange)?;
                log(exchange, regex, is_match, &subject);
                if !is_match {
                    // As nginx: in scripts, what does not match takes the groups of what did.
                    exchange.captures = Captures::default();
                }
                is_match != *is_negated
            }
            Self::File { path, test, is_negated } => {
                subject.extend_from_slice(&value(exchange, path, run.escapes_captures));
                test.holds(exchange, &subject) != *is_negated
            }
        })
    }
}

/// Whether a `return` of this status says that the client may not have the page, or not now. By others configurations jump to
/// a named location that makes it (`error_page 418 = @app`).
fn is_refusal(status: u16) -> bool {
    matches!(status, 401..=404 | 407 | 429 | 503)
}

impl Return {
    fn outcome(&self, exchange: &mut Exchange) -> Outcome {
        exchange.status = self.status;
        let value = match &self.text {
            Some(text) => text.value(exchange),
            // As nginx: only what is an error has a page.
            None if is_refusal(self.status) => return Outcome::Refused(self.status),
            None if self.status >= 400 => return Outcome::Status(self.status),
            None => Bytes::new(),
        };
        if matches!(self.status, 301 | 302 | 303 | 307 | 308) {
            if let Some(refusal) = broken_unasked(exchange) {
                return refusal;
            }
            let mut response = Response::new(self.status);
            response.location = Some(value);
            return Outcome::Redirect(Box::new(response));
        }
        if self.status == 444 {
            return Outcome::Status(444);
        }
        let conf = Rc::clone(&exchange.conf);
        let content_type =
            yorozu_kernel::files::path::content_type(exchange, conf.location(exchange.location));
        Outcome::Respond(Box::new(Response::with_body(self.status, content_type, value)))
    }
}

/// A value in a script. As nginx: of a path that was escaped, what a redirect, an argument or `set` takes by `$1` is so again.
fn value(exchange: &mut Exchange, template: &Template, is_escaped: bool) -> Bytes {
    let was_escaped = |path| memchr::memchr2(b'%', b'+', path).is_some();
    if !is_escaped || !template.has_captures() || !was_escaped(exchange.request.path_as_sent()) {
        return template.value(exchange);
    }
    let mut out = Vec::new();
    template.append_with_captures(exchange, &mut out, |capture, out| {
        escape_into(out, capture, Escape::Args);
    });
    out.into()
}

/// `rewrite_log`: whether an expression of `rewrite` or `if` matches.
fn log(exchange: &Exchange, regex: &Regex, is_match: bool, subject: &[u8]) {
    let verdict = if is_match { "matches" } else { "does not match" };
    note(exchange, || format!("\"{}\" {verdict} \"{}\"", regex.source(), error::verbatim(subject)));
}

impl Rewrite {
    /// `None`: it does not match.
    fn apply(&self, exchange: &mut Exchange, run: &mut Run) -> Result<Option<Step>, Undecided> {
        let uri = std::mem::take(&mut exchange.uri);
        let is_match = self.regex.matches(&uri, exchange);
        exchange.uri = uri;
        let is_match = is_match?;
        log(exchange, &self.regex, is_match, &exchange.uri);
        if !is_match {
            exchange.captures = Captures::default();
            return Ok(None);
        }
        Ok(Some(self.rewrite(exchange, run)))
    }

    /// What follows from a match.
    fn rewrite(&self, exchange: &mut Exchange, run: &mut Run) -> Step {
        let is_redirect = matches!(self.flag, Flag::Redirect(_));
        let path = value(exchange, &self.path, is_redirect);
        let mut args = self.args.as_ref().map(|args| value(exchange, args, true).to_vec());
        run.escapes_captures = false;
        if self.keeps_args && !exchange.args.is_empty() {
            match &mut args {
                Some(args) => {
                    args.push(b'&');
                    args.extend_from_slice(&exchange.args);
                }
                None => args = Some(exchange.args.clone()),
            }
        }
        if let Flag::Redirect(status) = self.flag {
            let mut location = unescape_redirect(&path);
            if let Some(args) = args {
                location.push(b'?');
                location.extend_from_slice(&args);
            }
            note(exchange, || format!("rewritten redirect: \"{}\"", error::verbatim(&location)));
            let mut response = Response::new(status);
            response.location = Some(location.into());
            return Step::Done(Outcome::Redirect(Box::new(response)));
        }
        exchange.set_uri(path.to_vec());
        exchange.is_internal = true;
        // Until another location is found the path has nothing of this one's prefix.
        exchange.is_uri_in_location = false;
        exchange.has_set_args |= args.is_some() || exchange.has_args();
        exchange.args = args.unwrap_or_default();
        note(exchange, || {
            let [uri, args] = [&exchange.uri, &exchange.args].map(|text| error::verbatim(text));
            format!("rewritten data: \"{uri}\", args: \"{args}\"")
        });
        if exchange.uri.is_empty() {
            error::request(exchange, Level::Error, "the rewritten URI has a zero length");
            return Step::Done(Outcome::Status(500));
        }
        match self.flag {
            Flag::Break => {
                run.is_changed = false;
                Step::Stop
            }
            Flag::Last => {
                run.is_changed = true;
                Step::Stop
            }
            _ => {
                run.is_changed = true;
                Step::Next
            }
        }
    }
}
