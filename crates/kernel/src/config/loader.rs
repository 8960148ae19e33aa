//! The walk over the text: each line to the row of its name, each block to its lines.

use super::block::{Block, LocationName};
use super::directive::*;
use super::env::Env;
use super::regex::Regex;
use super::unsupported;
use bytes::Bytes;
use yorozu_conf::{ConfError, Directive as Line, Position};

/// The walk over the tree.
pub struct Loader<'a> {
    pub env: &'a Env,
    /// Where lines are noted that are refused, and the walk goes on behind them; else it ends at the first.
    pub faults: Option<Vec<ConfError>>,
}

impl Loader<'_> {
    /// Reads the directives of one block.
    ///
    /// # Errors
    /// The first line that is refused, unless such lines are noted.
    pub fn walk(&mut self, block: &mut Block, lines: &[Line]) -> Result<(), ConfError> {
        for line in lines {
            match (self.directive(block, line), &mut self.faults) {
                (Err(fault), Some(faults)) => faults.push(fault),
                (done, _) => done?,
            }
        }
        Ok(())
    }

    /// Looks for the first line that cannot stand where it does, whatever its arguments mean: a block that ends too
    /// early or too late is often that of a line that is none.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_places(&self, context: Contexts, lines: &[Line]) -> Result<(), ConfError> {
        for line in lines {
            if self.is_switched_off(line) {
                continue;
            }
            self.row(context, line)?;
            let inner = match &line.name[..] {
                b"http" => HTTP,
                b"server" if context == HTTP => SERVER,
                b"location" => {
                    // As nginx: before what stands in it. An unquoted brace ends a pattern too early.
                    location_name(self.env, &line.args).map_err(|error| error.at(&line.at))?;
                    LOCATION
                }
                b"if" if context == SERVER => SERVER_IF,
                b"if" => LOCATION_IF,
                _ => continue,
            };
            self.check_places(inner, line.block.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }

    /// Whether a line asks for what this version does: not to do what a module that is not here would.
    fn is_switched_off(&self, line: &Line) -> bool {
        let is_off =
            line.block.is_none() && matches!(&line.args[..], [word] if &word[..] == b"off");
        let name = line.name_text();
        is_off && self.env.modules.rows(&name).is_empty() && unsupported::refusal(&name).is_some()
    }

    /// The row of a line, which may stand where it does, with as many arguments as it takes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn row(&self, context: Contexts, line: &Line) -> Result<&Directive, ConfError> {
        let (name, at) = (line.name_text(), &line.at);
        let rows = self.env.modules.rows(&name);
        if rows.is_empty() {
            return Err(unknown(&name, at));
        }
        let Some(row) = rows.iter().find(|row| row.contexts & context != 0) else {
            return Err(ConfError::NotAllowedHere { name: name.into_owned(), at: at.clone() });
        };
        let fails = |fault: fn(String, Position) -> ConfError| {
            Err(fault(name.clone().into_owned(), at.clone()))
        };
        let wants_block = matches!(row.action, Action::Open(_));
        match (&line.block, wants_block) {
            (None, true) => return fails(|name, at| ConfError::NoOpeningBrace { name, at }),
            (Some(_), false) => return fails(|name, at| ConfError::NotTerminated { name, at }),
            _ => {}
        }
        if !row.arity.admits(line.args.len()) {
            return fails(|name, at| ConfError::ArgumentCount { name, at });
        }
        Ok(row)
    }

    fn directive(&mut self, block: &mut Block, line: &Line) -> Result<(), ConfError> {
        let (name, at) = (line.name_text(), &line.at);
        if self.is_switched_off(line) {
            self.note(&name, "what it switches off is not here", at);
            return Ok(());
        }
        let action = self.row(block.context, line)?.action;
        match action {
            Action::Set(set) => {
                self.set(set, block, line)?;
                if block.has_two_handlers {
                    let text =
                        format!("\"{name}\" cannot be in a location that has another handler");
                    return Err(ValueError(text).at(at));
                }
                if block.handler.is_some() && block.handler_at.is_none() {
                    block.handler_at = Some(at.clone());
                }
                if let Some(why) = self.env.modules.without_effect(&name, &line.args) {
                    self.note(&name, why, at);
                }
                Ok(())
            }
            Action::Open(open) => open(self, block, line),
            Action::Ignored(why, check) => {
                self.set(check, block, line)?;
                self.note(&name, why, at);
                Ok(())
            }
            Action::Refused(why) => Err(ValueError(refused(&name, why)).at(at)),
        }
    }

    fn set(&self, set: Setter, block: &mut Block, line: &Line) -> Result<(), ConfError> {
        *self.env.line.borrow_mut() = Some(line.at.clone());
        let args = Args { name: &line.name_text(), words: &line.args, env: self.env };
        set(block, &args).map_err(|error| error.at(&line.at))
    }

    /// Said once per directive.
    fn note(&self, name: &str, why: &str, at: &Position) {
        let text = || format!("\"{name}\" is accepted but ignored: {why}, in {at}");
        self.env.notes.borrow_mut().entry(name.to_owned()).or_insert_with(text);
    }

    fn child(&mut self, context: Contexts, line: &Line) -> Result<Block, ConfError> {
        let mut block = Block::new(context, Some(line.at.clone()));
        self.walk(&mut block, line.block.as_deref().unwrap_or_default())?;
        Ok(block)
    }
}

/// The lines of a block like `map`, which are no directives: none has a block of its own.
///
/// # Errors
/// One has.
pub fn rows(line: &Line) -> Result<&[Line], ConfError> {
    let rows = line.block.as_deref().unwrap_or_default();
    match rows.iter().find(|row| row.block.is_some()) {
        Some(row) => Err(ValueError::new("unexpected \"{\"").at(&row.at)),
        None => Ok(rows),
    }
}

/// The error about a name without a row: one of nginx's or of a module for it, or unknown to them as well.
pub fn unknown(name: &str, at: &Position) -> ConfError {
    match unsupported::refusal(name) {
        Some(why) => ValueError(why).at(at),
        None => ConfError::UnknownDirective { name: name.to_owned(), at: at.clone() },
    }
}

fn refused(name: &str, why: &str) -> String {
    format!("\"{name}\" is not supported: {why}")
}

/// Why a line is refused whatever its arguments: its module is not part of this version.
pub fn unsupported(env: &Env, line: &Line) -> Option<String> {
    let name = line.name_text();
    match env.modules.rows(&name) {
        [] => unsupported::refusal(&name),
        rows => rows.iter().find_map(|row| match row.action {
            Action::Refused(why) => Some(refused(&name, why)),
            _ => None,
        }),
    }
}

/// `events {}`
pub fn events(loader: &mut Loader<'_>, block: &mut Block, line: &Line) -> Result<(), ConfError> {
    if std::mem::replace(&mut block.has_events, true) {
        return Err(ValueError::new("\"events\" directive is duplicate").at(&line.at));
    }
    let context = std::mem::replace(&mut block.context, EVENTS);
    loader.walk(block, line.block.as_deref().unwrap_or_default())?;
    block.context = context;
    Ok(())
}

/// `http {}`
pub fn http(loader: &mut Loader<'_>, block: &mut Block, line: &Line) -> Result<(), ConfError> {
    if !block.servers.is_empty() {
        return Err(ValueError::new("\"http\" directive is duplicate").at(&line.at));
    }
    let mut http = loader.child(HTTP, line)?;
    let servers = std::mem::take(&mut http.servers);
    // The http block itself goes first: what it says is every server's outer block.
    block.servers = std::iter::once(http).chain(servers).collect();
    Ok(())
}

/// `server {}`
pub fn server(loader: &mut Loader<'_>, block: &mut Block, line: &Line) -> Result<(), ConfError> {
    let server = loader.child(SERVER, line)?;
    block.servers.push(server);
    Ok(())
}

/// `location … {}`
pub fn location(loader: &mut Loader<'_>, block: &mut Block, line: &Line) -> Result<(), ConfError> {
    let name = location_name(loader.env, &line.args).map_err(|error| error.at(&line.at))?;
    check_nesting(block, &name, line)?;
    let key = match &name {
        LocationName::Exact(path)
        | LocationName::Named(path)
        | LocationName::Prefix { path, .. } => Some((std::mem::discriminant(&name), path.clone())),
        LocationName::Regex(_) | LocationName::Unnamed => None,
    };
    if key.is_some_and(|key| !block.location_names.insert(key)) {
        let text = String::from_utf8_lossy(line.args.last().expect("one argument at least"));
        return Err(ValueError(format!("duplicate location \"{text}\"")).at(&line.at));
    }
    let mut child = Block::new(LOCATION, Some(line.at.clone()));
    child.name = name;
    loader.walk(&mut child, line.block.as_deref().unwrap_or_default())?;
    block.locations.push(child);
    Ok(())
}

fn location_name(env: &Env, args: &[Bytes]) -> Result<LocationName, ValueError> {
    let (modifier, pattern) = match args {
        [pattern] => split_modifier(pattern),
        [modifier, pattern] => (&modifier[..], pattern.clone()),
        _ => unreachable!("the arity admits one or two arguments"),
    };
    Ok(match modifier {
        b"=" => LocationName::Exact(pattern),
        b"^~" => LocationName::Prefix { path: pattern, no_regex: true },
        b"~" => LocationName::Regex(Regex::compile(&pattern, false, env)?),
        b"~*" => LocationName::Regex(Regex::compile(&pattern, true, env)?),
        b"" if pattern.starts_with(b"@") => LocationName::Named(pattern),
        // A condition, to newer nginx; an access rule in it must not be silently off.
        b"" if pattern.starts_with(b"$") => {
            let text = String::from_utf8_lossy(&pattern);
            return Err(ValueError(format!(
                "predicate locations are not supported: write \"if ({text})\" for \"location {text}\""
            )));
        }
        b"" => LocationName::Prefix { path: pattern, no_regex: false },
        other => {
            let other = String::from_utf8_lossy(other);
            return Err(ValueError(format!("invalid location modifier \"{other}\"")));
        }
    })
}

/// `location =/a` and the like: the modifier may touch the pattern.
fn split_modifier(word: &Bytes) -> (&'static [u8], Bytes) {
    const MODIFIERS: [&[u8]; 4] = [b"=", b"^~", b"~*", b"~"];
    let found = MODIFIERS.into_iter().find(|modifier| word.starts_with(modifier));
    found.map_or((b"", word.clone()), |modifier| (modifier, word.slice(modifier.len()..)))
}

fn check_nesting(block: &Block, name: &LocationName, line: &Line) -> Result<(), ConfError> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let inner = shown(line.args.last().expect("one argument at least"));
    let refuse = |text: String| Err(ValueError(text).at(&line.at));
    if block.context == SERVER {
        return Ok(());
    }
    match (&block.name, name) {
        (LocationName::Exact(outer), _) => refuse(format!(
            "location \"{inner}\" cannot be inside the exact location \"{}\"",
            shown(outer)
        )),
        (LocationName::Named(outer), _) => refuse(format!(
            "location \"{inner}\" cannot be inside the named location \"{}\"",
            shown(outer)
        )),
        (_, LocationName::Named(_)) => {
            refuse(format!("named location \"{inner}\" can be on the server level only"))
        }
        // As nginx, to which a pattern is a name here: what it would match does not count.
        (
            LocationName::Prefix { .. } | LocationName::Regex(_),
            LocationName::Exact(path) | LocationName::Prefix { path, .. },
        ) if !path.starts_with(&block.name.path()) => refuse(format!(
            "location \"{inner}\" is outside location \"{}\"",
            shown(&block.name.path())
        )),
        _ => Ok(()),
    }
}

/// Whether nginx knows the method, in whatever case.
fn is_limited(method: &[u8]) -> bool {
    const METHODS: [&str; 14] = [
        "COPY",
        "DELETE",
        "GET",
        "HEAD",
        "LOCK",
        "MKCOL",
        "MOVE",
        "OPTIONS",
        "PATCH",
        "POST",
        "PROPFIND",
        "PROPPATCH",
        "PUT",
        "UNLOCK",
    ];
    METHODS.iter().any(|known| method.eq_ignore_ascii_case(known.as_bytes()))
}

/// `limit_except METHOD … {}`
pub fn limit_except(
    loader: &mut Loader<'_>,
    block: &mut Block,
    line: &Line,
) -> Result<(), ConfError> {
    if let Some(method) = line.args.iter().find(|method| !is_limited(method)) {
        let method = String::from_utf8_lossy(method);
        return Err(ValueError(format!("invalid method \"{method}\"")).at(&line.at));
    }
    let mut methods: Vec<Bytes> =
        line.args.iter().map(|one| one.to_ascii_uppercase().into()).collect();
    if methods.iter().any(|method| &method[..] == b"GET") {
        methods.push(Bytes::from_static(b"HEAD"));
    }
    let inner = loader.child(LIMIT_EXCEPT, line)?;
    if block.limit_except.replace(Box::new((methods, inner))).is_some() {
        return Err(ValueError::new("\"limit_except\" directive is duplicate").at(&line.at));
    }
    Ok(())
}
