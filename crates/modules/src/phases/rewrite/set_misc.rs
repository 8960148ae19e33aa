//! What the module set-misc has beside `set`: the five of its directives that are in most configurations.

use super::{Instruction, STEP_CONTEXTS, Step, step, value};
use md5::{Digest as _, Md5};
use yorozu_conf::value::number;
use yorozu_http::uri::{Escape, escape_into, unescape_unsafe};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::target;
use yorozu_kernel::config::names::VariableNames;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::variables::Variable;

/// A variable that is given a value made of others.
#[derive(Clone, Debug)]
pub struct Make {
    target: Variable,
    how: How,
    source: Template,
}

#[derive(Clone, Debug)]
enum How {
    Escaped,
    Unescaped,
    Md5,
    /// The source, if the variable has no value.
    IfEmpty,
    /// A number between the source and this one.
    Random(Template),
}

/// The module's rows.
pub(super) const ROWS: &[Directive] = &[
    row(
        "set_escape_uri",
        Arity::ONE_OR_TWO,
        |block, args| add(block, args, How::Escaped),
        "Gives a variable a value, escaped as part of a URL.",
    ),
    row(
        "set_if_empty",
        Arity::TWO,
        |block, args| add(block, args, How::IfEmpty),
        "Gives a variable a value if it has none.",
    ),
    row(
        "set_md5",
        Arity::ONE_OR_TWO,
        |block, args| add(block, args, How::Md5),
        "Gives a variable the MD5 digest of a value, in hexadecimal.",
    ),
    row(
        "set_random",
        Arity::THREE,
        random,
        "Gives a variable a random number between two limits, inclusive.",
    ),
    row(
        "set_unescape_uri",
        Arity::ONE_OR_TWO,
        |block, args| add(block, args, How::Unescaped),
        "Gives a variable a value, unescaped as a URL argument.",
    ),
];

const fn row(name: &'static str, arity: Arity, set: Setter, doc: &'static str) -> Directive {
    Directive::row(name, STEP_CONTEXTS, arity, Action::Set(set), doc)
}

/// Without a source the variable itself is it.
fn add(block: &mut Block, args: &Args<'_>, how: How) -> Result<(), ValueError> {
    let target = target(&args.words[0], args.env, VariableNames::define_by_set)?;
    let source = Template::compile(args.words.get(1).unwrap_or(&args.words[0]), args.env)?;
    step(block, Instruction::Make(Box::new(Make { target, how, source })))
}

fn random(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    add(block, args, How::Random(Template::compile(args.word(2), args.env)?))
}

impl Make {
    pub(super) fn apply(&self, exchange: &mut Exchange, escapes_captures: bool) -> Step {
        let source = value(exchange, &self.source, escapes_captures);
        let made = match &self.how {
            How::Escaped => {
                let mut out = Vec::new();
                escape_into(&mut out, &source, Escape::SetMisc);
                out.into()
            }
            How::Unescaped => {
                let spaced = |byte: &u8| if *byte == b'+' { b' ' } else { *byte };
                unescape_unsafe(&source.iter().map(spaced).collect::<Vec<_>>()).into()
            }
            How::Md5 => Md5::digest(&source)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
                .into(),
            How::IfEmpty => {
                let mut now = Vec::new();
                self.target.append(exchange, &mut now);
                if now.is_empty() { source } else { return Step::Next }
            }
            How::Random(other) => {
                let other = value(exchange, other, escapes_captures);
                let (Some(one), Some(other)) = (number(&source), number(&other)) else {
                    // As the module.
                    return Step::Done(Outcome::Status(500));
                };
                fastrand::u64(one.min(other)..=one.max(other)).to_string().into()
            }
        };
        self.target.assign(exchange, made);
        Step::Next
    }
}
