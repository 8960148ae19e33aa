//! Cases that share a server: what they say stands in one configuration, each with its own ports, folder, origin and names.
//!
//! A server's start costs more than what most cases ask of it.

use crate::case::Case;
use crate::form::Form;
use crate::run::{passes, run};
use crate::seat::{Seat, can_be_single};
use crate::server::{Folder, Kind, SINGLE, Server, Text, has_at_top, placed};
use crate::words::{mapped, statements};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// How many share one server at most.
const SEATS: usize = 24;

/// What defines something with a name in `http {}`. All else there is a setting, that whoever shares a server has to have alike.
const DEFINITIONS: [&str; 6] =
    ["upstream", "server", "log_format", "limit_req_zone", "limit_conn_zone", "split_clients"];

/// Blocks that define a variable.
const OF_VARIABLES: [&str; 3] = ["map", "geo", "split_clients"];

fn is_definition(name: &str) -> bool {
    DEFINITIONS.contains(&name) || OF_VARIABLES.contains(&name) || name.ends_with("_cache_path")
}

/// A case in forms that follow each other on one server.
#[derive(Clone, Debug)]
pub struct Part {
    /// How a failure names it.
    pub name: String,
    /// What is done.
    pub case: Arc<Case>,
    /// With what.
    pub kind: Kind,
    /// In which forms.
    pub forms: Vec<Form>,
}

/// A part, and its seat at a server if it shares one.
#[derive(Debug)]
pub struct Guest {
    part: Part,
    seat: Option<(Arc<Table>, usize)>,
}

/// Finds the parts that can share servers; in the order in which they are to be run.
pub fn seated(parts: Vec<Part>) -> Vec<Guest> {
    let mut alone = Vec::new();
    let mut groups: BTreeMap<(String, BTreeSet<String>), Vec<Part>> = BTreeMap::new();
    for part in parts {
        match settings(&part.case, &part.kind) {
            Some(settings) => {
                groups.entry((format!("{:?}", part.kind), settings)).or_default().push(part);
            }
            None => alone.push(part),
        }
    }
    let mut guests = Vec::new();
    let mut shared: BTreeMap<usize, Vec<Guest>> = BTreeMap::new();
    for group in groups.into_values() {
        for (round, parts) in group.chunks(SEATS).enumerate() {
            let table = Arc::new(Table::new(parts));
            let seats = parts.iter().enumerate().map(|(number, part)| Guest {
                part: part.clone(),
                seat: (parts.len() > 1).then(|| (Arc::clone(&table), number)),
            });
            shared.entry(round).or_default().extend(seats);
        }
    }
    for mut round in shared.into_values() {
        // Both programs are kept busy at a time.
        round.sort_by_key(|guest| guest.seat.as_ref().map(|(_, number)| *number));
        guests.extend(round);
    }
    guests.extend(alone.into_iter().map(|part| Guest { part, seat: None }));
    guests
}

/// What stands for something that each case has of its own.
const PLACES: [&str; 11] = [
    "$dir", "$port", "$origin", "$web", "$php", "$h2", "$tls_", "$keys", "$scgi", "$uwsgi", "$deaf",
];

/// The settings in `http {}` of a case that can share a server with cases that have the same.
fn settings(case: &Case, kind: &Kind) -> Option<BTreeSet<String>> {
    if case.is_alone || !case.main.is_empty() || !case.events.is_empty() {
        return None;
    }
    // There a purge finds the pages of a URL in all zones.
    if *kind != Kind::Nginx && case.changes_caches() {
        return None;
    }
    let names = Names::of(&case.directives());
    // Clients see those that look like a host.
    if names.upstreams.iter().any(|name| name.contains(|c: char| c == '.' || c.is_uppercase())) {
        return None;
    }
    if names.are_unclear {
        return None;
    }
    let settings: BTreeSet<_> = statements(&case.http)
        .into_iter()
        .filter(|(name, _)| !is_definition(name))
        .map(|(_, text)| text.to_owned())
        .collect();
    let is_own = |text: &String| PLACES.iter().any(|place| text.contains(place));
    // They cannot have the names of one of the cases.
    let is_named = |text: &String| names.with(text, "_") != *text;
    (!settings.iter().any(|text| is_own(text) || is_named(text))).then_some(settings)
}

impl Guest {
    /// The name of the part.
    pub fn name(&self) -> &str {
        &self.part.name
    }

    /// Runs the part at its server, that the first of those who share it starts and the last ends.
    ///
    /// # Errors
    /// The first expectation that was not met: if it is not met without the others either, what came then.
    pub fn run(self) -> Result<(), String> {
        let Part { case, kind, forms, .. } = &self.part;
        let alone = || caught(|| run(case, kind, forms));
        let Some((table, number)) = &self.seat else { return alone() };
        match table.laid() {
            Ok(laid) => caught(|| passes(case, forms, &laid.seats[*number])).map_err(|why| {
                let names = table.names.join("\n    ");
                alone().err().unwrap_or_else(|| {
                    format!("{why}\n  It holds alone, and not on one server with\n    {names}")
                })
            }),
            Err(why) => {
                alone()?;
                // Each of them may be fine, and something is not.
                if table.is_reported.swap(true, Ordering::Relaxed) {
                    Ok(())
                } else {
                    Err(why.clone())
                }
            }
        }
    }
}

fn caught(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|why| Err(said(&*why)))
}

/// What a panic says.
fn said(why: &(dyn Any + Send)) -> String {
    let text = why.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| why.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// A server that is shared.
#[derive(Debug)]
struct Table {
    kind: Kind,
    cases: Vec<Arc<Case>>,
    names: Vec<String>,
    laid: OnceLock<Result<Laid, String>>,
    /// Whether it has been said that it does not start.
    is_reported: AtomicBool,
}

/// The server runs.
#[derive(Debug)]
struct Laid {
    _server: Server,
    seats: Vec<Seat>,
    _folder: Folder,
}

impl Table {
    fn new(parts: &[Part]) -> Self {
        Self {
            kind: parts[0].kind.clone(),
            cases: parts.iter().map(|part| Arc::clone(&part.case)).collect(),
            names: parts.iter().map(|part| part.name.clone()).collect(),
            laid: OnceLock::new(),
            is_reported: AtomicBool::new(false),
        }
    }

    fn laid(&self) -> &Result<Laid, String> {
        self.laid.get_or_init(|| {
            let folder = Folder::new();
            let seat = |(number, case): (usize, &Arc<Case>)| {
                Seat::new(case, &self.kind, &folder.within(&number.to_string()))
            };
            let seats: Vec<_> = self.cases.iter().enumerate().map(seat).collect();
            let ports: Vec<_> = seats.iter().flat_map(|seat| seat.ports.all()).collect();
            let server = Server::try_start(
                &self.kind,
                folder.path(),
                &ports,
                &together(&self.kind, &seats),
            )?;
            Ok(Laid { _server: server, seats, _folder: folder })
        })
    }
}

/// One configuration for all.
fn together(kind: &Kind, seats: &[Seat]) -> Text {
    let (mut settings, mut definitions) = (Vec::new(), String::new());
    for (number, seat) in seats.iter().enumerate() {
        let text = placed(&seat.text.http, &seat.folder);
        let names = Names::of(&text);
        for (name, statement) in statements(&text) {
            if !is_definition(name) {
                if !settings.iter().any(|found| found == statement) {
                    settings.push(statement.to_owned());
                }
                continue;
            }
            let mut statement = names.with(statement, &format!("_{number}"));
            if name == "server" {
                let at = statement.find('{').expect("a server is a block") + 1;
                let inner = &statement[at..];
                if !has_at_top(inner, "error_log") {
                    let folder = seat.folder.display();
                    statement.insert_str(at, &format!(" error_log {folder}/logs/error.log info;"));
                }
            }
            definitions.push_str(&statement);
            definitions.push('\n');
        }
    }
    let http = format!("{}\n{definitions}", settings.join("\n"));
    let mut text = Text::of([String::new(), "worker_connections 2048;".to_owned(), http]);
    if can_be_single(kind, &text) {
        text.main.push_str(SINGLE);
    }
    text
}

/// What a configuration defines that has a name in all of it.
#[derive(Debug, Default)]
struct Names {
    upstreams: BTreeSet<String>,
    zones: BTreeSet<String>,
    formats: BTreeSet<String>,
    variables: BTreeSet<String>,
    /// Whether requests say which zone is theirs, or its path is below that of the server.
    are_unclear: bool,
}

/// What stands before the name of a zone.
const BEFORE_ZONES: [&str; 3] = ["keys_zone=", "zone=", "shared:"];

impl Names {
    fn of(text: &str) -> Self {
        let mut names = Self::default();
        for (_, statement) in statements(text) {
            mapped(statement, |words| {
                let word = words.word;
                let (is_zone, is_path) =
                    (words.first.ends_with("_cache"), words.first.ends_with("_cache_path"));
                names.are_unclear |= words.index == 1
                    && (is_zone && word.starts_with('$')
                        || is_path && !word.starts_with(['$', '/']));
                match (words.first, words.index) {
                    ("upstream", 1) => names.upstreams.insert(word.to_owned()),
                    ("log_format", 1) => names.formats.insert(word.to_owned()),
                    ("zone", 1) => names.zones.insert(word.to_owned()),
                    _ => false,
                };
                for before in BEFORE_ZONES {
                    if let Some((name, _)) =
                        word.strip_prefix(before).and_then(|w| w.split_once(':'))
                    {
                        names.zones.insert(name.to_owned());
                    }
                }
                // The last word before the block.
                if OF_VARIABLES.contains(&words.first) && words.is_last {
                    names.variables.insert(word.trim_start_matches('$').to_owned());
                }
                word.to_owned()
            });
        }
        names
    }

    /// The text with other names.
    fn with(&self, text: &str, suffix: &str) -> String {
        mapped(text, |words| {
            let (first, word) = (words.first, words.word);
            let is_format = matches!((first, words.index), ("log_format", 1) | ("access_log", 2));
            if is_format && self.formats.contains(word) {
                return format!("{word}{suffix}");
            }
            let is_zone = first.ends_with("_cache") || matches!(first, "limit_conn" | "zone");
            if is_zone && words.index == 1 && self.zones.contains(word) {
                return format!("{word}{suffix}");
            }
            for before in BEFORE_ZONES {
                let Some(name) = word.strip_prefix(before) else { continue };
                let (name, rest) = name.split_at(name.find(':').unwrap_or(name.len()));
                if self.zones.contains(name) {
                    return format!("{before}{name}{suffix}{rest}");
                }
            }
            let is_upstream = first == "upstream" || first.ends_with("_pass");
            if is_upstream && words.index == 1 && self.upstreams.contains(word) {
                return format!("{word}{suffix}");
            }
            let mut word = word.to_owned();
            for name in &self.upstreams {
                word = replaced(&word, &format!("//{name}"), suffix);
            }
            for name in &self.variables {
                word = replaced(&word, &format!("${name}"), suffix);
                word = word.replace(&format!("${{{name}}}"), &format!("${{{name}{suffix}}}"));
            }
            word
        })
    }
}

/// The text with the suffix behind each name that is not the beginning of a longer one.
fn replaced(text: &str, name: &str, suffix: &str) -> String {
    let mut parts = text.split(name);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(name);
        if !part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            out.push_str(suffix);
        }
        out.push_str(part);
    }
    out
}
