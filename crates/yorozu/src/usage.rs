//! What is wrong with a command line, in one line; nginx's words where it has some.

use crate::command_line::description;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error as _;
use std::ffi::OsString;
use yorozu_kernel::base::readable::harmless;

/// What clap found wrong.
struct Wrong<'a>(&'a clap::Error);

impl Wrong<'_> {
    fn text(&self, kind: ContextKind) -> String {
        match self.0.get(kind) {
            Some(ContextValue::String(text)) => text.clone(),
            Some(ContextValue::Strings(list)) => list.join(", "),
            Some(ContextValue::StyledStr(text)) => text.to_string(),
            Some(ContextValue::StyledStrs(list)) => {
                list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
            _ => String::new(),
        }
    }

    /// The option or the operand, as it is described.
    fn argument(&self) -> String {
        self.text(ContextKind::InvalidArg)
    }

    /// Its name alone.
    fn name(&self) -> String {
        let argument = self.argument();
        match argument.starts_with('-') {
            true => argument.split([' ', '<', '.']).next().unwrap_or_default().to_owned(),
            false => argument.trim_matches(['<', '>', '[', ']', '.']).to_owned(),
        }
    }

    /// What was probably meant.
    fn meant(&self, kind: ContextKind) -> String {
        // A letter or two is like anything.
        let is_short = kind == ContextKind::SuggestedArg && self.argument().len() <= 3;
        match self.text(kind) {
            text if text.is_empty() || is_short => String::new(),
            text => format!(", did you mean \"{text}\"?"),
        }
    }

    fn said(&self, command: &str) -> String {
        let argument = self.argument();
        match self.0.kind() {
            ErrorKind::UnknownArgument if argument.starts_with("--") => {
                format!("invalid option: \"{argument}\"{}", self.meant(ContextKind::SuggestedArg))
            }
            ErrorKind::UnknownArgument if argument.starts_with('-') => {
                format!("invalid option: \"{}\"", argument.trim_start_matches('-'))
            }
            ErrorKind::UnknownArgument => format!("unexpected \"{argument}\""),
            ErrorKind::InvalidSubcommand => {
                let named = self.text(ContextKind::InvalidSubcommand);
                format!(
                    "unknown command \"{named}\"{}",
                    self.meant(ContextKind::SuggestedSubcommand)
                )
            }
            ErrorKind::MissingRequiredArgument => {
                format!("\"{command}\" needs {}", argument.trim_end_matches('.'))
            }
            ErrorKind::InvalidValue | ErrorKind::ValueValidation => self.said_of_value(),
            _ => {
                let text = self.0.to_string();
                let line = text.lines().next().unwrap_or_default();
                line.trim_start_matches("error: ").to_owned()
            }
        }
    }

    fn said_of_value(&self) -> String {
        let (argument, name) = (self.argument(), self.name());
        let value = self.text(ContextKind::InvalidValue);
        if self.0.kind() == ErrorKind::ValueValidation {
            return match self.0.source() {
                Some(why) if why.to_string().contains('"') => why.to_string(),
                why => {
                    let why = why.map(ToString::to_string).unwrap_or_default();
                    format!("invalid {name} \"{value}\": {why}")
                }
            };
        }
        if value.is_empty() {
            let what = match &*name {
                "-p" => "directory name",
                "-c" | "-e" => "file name",
                "-s" | "-g" => "parameter",
                _ => argument
                    .split_once('<')
                    .map_or("a value", |(_, rest)| rest.trim_end_matches('>')),
            };
            return format!("option \"{name}\" requires {what}");
        }
        let valid = self.text(ContextKind::ValidValue);
        match self.meant(ContextKind::SuggestedValue) {
            _ if name == "-s" => format!("invalid option: \"-s {value}\", expected {valid}"),
            meant if meant.is_empty() => format!("invalid {name} \"{value}\", expected {valid}"),
            meant => format!("invalid {name} \"{value}\"{meant}"),
        }
    }
}

/// The line for arguments that were refused, and where help is.
pub(crate) fn said(problem: &clap::Error, args: &[OsString]) -> String {
    let command = command_of(args);
    let said = harmless(&Wrong(problem).said(&command));
    let space = if command.is_empty() { "" } else { " " };
    let end = if said.ends_with('?') { "" } else { "." };
    format!("{said}{end} See \"yorozu{space}{command} --help\"")
}

/// The names of the command that arguments are for.
fn command_of(args: &[OsString]) -> String {
    let mut names = Vec::new();
    let mut at = &description();
    for word in args.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(found) = at.find_subcommand(word) {
            names.push(word);
            at = found;
        }
    }
    names.join(" ")
}
