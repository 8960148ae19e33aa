//! From text to settings: the one door.
//!
//! parse -> tree with positions -> each row's setter writes into a [`Block`] -> every block takes
//! over what the enclosing one says -> compiled [`Config`]. After this nothing parses text or knows
//! a directive's name.

use super::block::{Block, LocationName};
use super::check;
use super::compiled::*;
use super::directive::*;
use super::env::Env;
use super::files::Files;
use super::regex::Regex;
use super::registry;
use super::{http_core, main_core};
use crate::connection::h2;
use crate::filters::compress::{brotli, gunzip, gzip, precompressed, zstd};
use crate::filters::{addition, charset, headers, slice, ssi, sub, userid};
use crate::handlers::{Handler, autoindex, dav, fastcgi, index, memcached, proxy, random_index};
use crate::logging::access as access_log;
use crate::logging::file::LogFiles;
use crate::phases::{
    Limits, access, auth_basic, auth_request, browser, limit_conn, limit_req, mirror, realip,
    referer, rewrite, secure_link,
};
use crate::tls::server::ServerTls;
use crate::tls::tickets::Sessions;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use yorozu_cache::Zone;
use yorozu_conf::{ConfError, Directive as Line, Position, Tree};
use yorozu_upstream::{Loads, Resolver};

/// What the command line says about the configuration.
#[derive(Clone, Debug)]
pub struct Request {
    /// `-p`
    pub prefix: PathBuf,
    /// `-c`, made absolute against the prefix.
    pub file: PathBuf,
    /// `-g`
    pub global: Option<String>,
    /// `-e`
    pub error_log: Option<PathBuf>,
}

/// What outlives a configuration: open logs, cache zones, TLS sessions, requests under way.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    pub logs: Arc<LogFiles>,
    pub zones: BTreeMap<String, Arc<Zone>>,
    pub limits: Limits,
    pub sessions: Arc<Sessions>,
    pub loads: Arc<Loads>,
}

/// A configuration with the text it was made from.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    pub tree: Tree,
}

/// The walk over the tree.
pub struct Loader<'a> {
    pub env: &'a Env,
}

fn hostname() -> String {
    nix::unistd::gethostname().unwrap_or_default().to_string_lossy().to_lowercase()
}

/// Reads and compiles a configuration.
///
/// # Errors
/// The first fault, as one line for the operator.
pub fn load(request: &Request, kept: &Kept) -> Result<Loaded, ConfError> {
    let folder = request.file.parent().unwrap_or(Path::new("/")).to_owned();
    let source = Files { folder: folder.clone() };
    let mut env = Env::new(request.prefix.clone(), folder, Arc::clone(&kept.logs));
    env.sessions = Arc::clone(&kept.sessions);
    env.loads = Arc::clone(&kept.loads);
    let mut main = Block::new(MAIN, None);
    let mut loader = Loader { env: &env };
    if let Some(global) = &request.global {
        loader.walk(&mut main, &yorozu_conf::parse_global(&source, global)?)?;
    }
    let tree = yorozu_conf::parse(&source, &request.file)?;
    loader.walk(&mut main, &tree.directives)?;
    crate::control::add(&mut loader, &mut main, &source)?;
    let config = Compiler::new(&env).config(main, request, kept)?;
    Ok(Loaded { config, tree })
}

impl Loader<'_> {
    /// Reads the directives of one block.
    pub fn walk(&mut self, block: &mut Block, lines: &[Line]) -> Result<(), ConfError> {
        for line in lines {
            self.directive(block, line)?;
        }
        Ok(())
    }

    fn directive(&mut self, block: &mut Block, line: &Line) -> Result<(), ConfError> {
        let (name, at) = (line.name_text(), &line.at);
        let rows = registry::rows(&name);
        if rows.is_empty() {
            return Err(unknown(name, at));
        }
        let Some(row) = rows.iter().find(|row| row.contexts & block.context != 0) else {
            return Err(ConfError::NotAllowedHere { name, at: at.clone() });
        };
        let wants_block = matches!(row.action, Action::Open(_));
        match (&line.block, wants_block) {
            (None, true) => return Err(ConfError::NoOpeningBrace { name, at: at.clone() }),
            (Some(_), false) => return Err(ConfError::NotTerminated { name, at: at.clone() }),
            _ => {}
        }
        if !row.arity.admits(line.args.len()) {
            return Err(ConfError::ArgumentCount { name, at: at.clone() });
        }
        match row.action {
            Action::Set(set) => {
                let args = Args { name: &name, words: &line.args, env: self.env };
                set(block, &args).map_err(|error| error.at(at))?;
                if let Some(why) = registry::without_effect(&name, &line.args) {
                    self.note(&name, why, at);
                }
                Ok(())
            }
            Action::Open(open) => open(self, block, line),
            Action::Ignored(why) => {
                self.note(&name, why, at);
                Ok(())
            }
            Action::Refused(why) => {
                Err(ValueError(format!("\"{name}\" is not supported: {why}")).at(at))
            }
        }
    }

    /// Said once per directive.
    fn note(&self, name: &str, why: &str, at: &Position) {
        let text = || format!("\"{name}\" is accepted without effect: {why}, in {at}");
        self.env.notes.borrow_mut().entry(name.to_owned()).or_insert_with(text);
    }

    fn child(&mut self, context: Contexts, line: &Line) -> Result<Block, ConfError> {
        let mut block = Block::new(context, Some(line.at.clone()));
        self.walk(&mut block, line.block.as_deref().unwrap_or_default())?;
        Ok(block)
    }
}

/// A name without a row: nginx's, or nobody's.
pub fn unknown(name: String, at: &Position) -> ConfError {
    match super::unsupported::module(&name) {
        Some(module) => ValueError(format!(
            "\"{name}\" is not supported by this version (nginx's module {module})"
        ))
        .at(at),
        None => ConfError::UnknownDirective { name, at: at.clone() },
    }
}

/// `events {}`
pub fn events(loader: &mut Loader<'_>, block: &mut Block, line: &Line) -> Result<(), ConfError> {
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
    let is_same = |other: &Block| match (&other.name, &name) {
        (LocationName::Exact(a), LocationName::Exact(b))
        | (LocationName::Named(a), LocationName::Named(b))
        | (LocationName::Prefix { path: a, .. }, LocationName::Prefix { path: b, .. }) => a == b,
        _ => false,
    };
    if block.locations.iter().any(is_same) {
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
        (
            LocationName::Prefix { path: outer, .. },
            LocationName::Exact(path) | LocationName::Prefix { path, .. },
        ) if !path.starts_with(outer) => {
            refuse(format!("location \"{inner}\" is outside location \"{}\"", shown(outer)))
        }
        _ => Ok(()),
    }
}

/// `limit_except METHOD … {}`
pub fn limit_except(
    loader: &mut Loader<'_>,
    block: &mut Block,
    line: &Line,
) -> Result<(), ConfError> {
    let mut methods = line.args.clone();
    if methods.iter().any(|method| &method[..] == b"GET") {
        methods.push(Bytes::from_static(b"HEAD"));
    }
    let inner = loader.child(LIMIT_EXCEPT, line)?;
    if block.limit_except.replace(Box::new((methods, inner))).is_some() {
        return Err(ValueError::new("\"limit_except\" directive is duplicate").at(&line.at));
    }
    Ok(())
}

/// Turns drafts into the compiled form.
pub struct Compiler<'a> {
    env: &'a Env,
    locations: Vec<Option<LocationConf>>,
}

impl<'a> Compiler<'a> {
    fn new(env: &'a Env) -> Self {
        Self { env, locations: Vec::new() }
    }

    fn config(
        mut self,
        mut main: Block,
        request: &Request,
        kept: &Kept,
    ) -> Result<Config, ConfError> {
        let env = self.env;
        let whole = |error: ValueError| ConfError::Whole { text: error.0 };
        let error_log = main.error_log.clone().unwrap_or_else(|| {
            crate::logging::error::ErrorLogs::standard(
                &env.logs,
                request.error_log.as_deref(),
                &env.prefix,
            )
        });
        main.error_log = Some(error_log.clone());
        let mut blocks = std::mem::take(&mut main.servers).into_iter();
        let mut servers = Vec::new();
        let mut listens: Vec<(Listen, ServerId, Position)> = Vec::new();
        let mut resolver = None;
        if let Some(mut http) = blocks.next() {
            http.inherit(&main);
            resolver = resolver_of_http(&http, env).map_err(whole)?;
            for mut server in blocks {
                let id = ServerId(u32::try_from(servers.len()).expect("few servers"));
                server.inherit(&http);
                let at = server.at.clone().expect("server blocks have a place");
                super::listen::default_listen(&mut server, env);
                for listen in &server.listens {
                    listens.push((listen.clone(), id, at.clone()));
                }
                servers.push(self.server(server)?);
            }
        }
        let mut sockets = super::listen::sockets(&listens, &servers, env)?;
        super::listen::compare_field_rules(&mut sockets, &listens, |id| {
            let place = servers[id.0 as usize].conf.0 as usize;
            let core = &self.locations[place].as_ref().expect("every id is filled").http_core;
            (core.underscores_in_headers, core.ignore_invalid_headers)
        });
        super::listen::check_certificates(&sockets, &listens, &servers)?;
        let names = env.variables.borrow();
        if let Some(name) = names.undefined() {
            return Err(ConfError::Whole { text: format!("unknown \"{name}\" variable") });
        }
        drop(names);
        let has_sent = env.variables.borrow().has_sent;
        let variable_names = std::mem::take(&mut *env.variables.borrow_mut()).into_names();
        let mut computed: Vec<_> = variable_names.iter().map(|_| None).collect();
        for definition in env.definitions.borrow_mut().drain(..) {
            computed[usize::from(definition.slot)] = Some(definition.source);
        }
        let upstreams = env.upstreams.take();
        crate::handlers::upstream::resolve::check(&upstreams, resolver.as_ref()).map_err(whole)?;
        Ok(Config {
            main: main_core::Conf::compile(&main.main, env).map_err(whole)?,
            error_log,
            prefix: env.prefix.clone(),
            sockets,
            servers,
            locations: self.locations.into_iter().map(|l| l.expect("every id is filled")).collect(),
            computed,
            variable_names,
            has_sent,
            zones: zones(env, kept)?,
            limits: env.limits.take().going_on(&kept.limits),
            charsets: env.charsets.take(),
            upstreams,
            in_use: None,
            is_transparent: env.is_transparent.get(),
            hostname: hostname(),
            warnings: env.warnings.take(),
            notes: env.notes.take().into_values().collect(),
        })
    }

    fn server(&mut self, mut block: Block) -> Result<ServerConf, ConfError> {
        let at = block.at.clone().expect("server blocks have a place");
        let locations = std::mem::take(&mut block.locations);
        let script = std::mem::take(&mut block.rewrite.script);
        let names = std::mem::take(&mut block.server_names);
        let conf = self.location(block.clone(), &at)?;
        let locations = self.set(locations, &without_try_files(&block))?;
        let script = self.script(script, &block)?;
        let tls = ServerTls::compile(&block.tls, self.env).map_err(|error| error.at(&at))?;
        Ok(ServerConf { names, conf, script, locations, tls })
    }

    /// Compiles a level of locations.
    fn set(&mut self, blocks: Vec<Block>, outer: &Block) -> Result<LocationSet, ConfError> {
        let mut set = LocationSet::default();
        for mut block in blocks {
            block.inherit(outer);
            let at = block.at.clone().expect("locations have a place");
            let name = block.name.clone();
            let id = self.location(block, &at)?;
            match name {
                LocationName::Exact(path) => {
                    set.exact.insert(path, id);
                }
                LocationName::Prefix { path, .. } => set.prefixes.push((path, id)),
                LocationName::Regex(regex) => set.regexes.push((regex, id)),
                LocationName::Named(name) => {
                    set.named.insert(name, id);
                }
                LocationName::Unnamed => {}
            }
        }
        set.prefixes.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Ok(set)
    }

    /// Compiles a block with everything in it.
    /// The methods that `limit_except` does not concern, and what holds for others.
    fn limit_except(
        &mut self,
        limit: Option<Box<(Vec<Bytes>, Block)>>,
        outer: &Block,
        at: &Position,
    ) -> Result<Option<(Vec<Bytes>, LocationId)>, ConfError> {
        let Some(limit) = limit else { return Ok(None) };
        let (methods, mut inner) = *limit;
        inner.inherit(outer);
        if inner.handler.is_none() {
            inner.handler.clone_from(&outer.handler);
        }
        inner.name = outer.name.clone();
        Ok(Some((methods, self.location(inner, at)?)))
    }

    fn location(&mut self, mut block: Block, at: &Position) -> Result<LocationId, ConfError> {
        let id = LocationId(u32::try_from(self.locations.len()).expect("few locations"));
        self.locations.push(None);
        let nested = std::mem::take(&mut block.locations);
        let script = std::mem::take(&mut block.rewrite.script);
        let limit_except = block.limit_except.take();
        let locations = self.set(nested, &without_try_files(&block))?;
        let script = self.script(script, &block)?;
        let limit_except = self.limit_except(limit_except, &block, at)?;
        let env = self.env;
        let fail = |error: ValueError| error.at(at);
        let handler = block.handler.clone().unwrap_or(Handler::Files);
        resolve_target(&handler, env).map_err(fail)?;
        let fastcgi = fastcgi::Conf::compile(&block.fastcgi, env).map_err(fail)?;
        let name = block.name.path();
        let (proxy, ssl) = (&block.proxy, &block.proxy_ssl);
        let proxy = proxy::Conf::compile(proxy, ssl, env, &handler, &name).map_err(fail)?;
        let conf = LocationConf {
            id,
            at: at.clone(),
            name,
            is_exact: matches!(block.name, LocationName::Exact(_)),
            is_regex: matches!(block.name, LocationName::Regex(_)),
            no_regex: matches!(block.name, LocationName::Prefix { no_regex: true, .. }),
            is_named: matches!(block.name, LocationName::Named(_)),
            locations,
            script,
            handler,
            error_log: block.error_log.clone().unwrap_or_default(),
            limit_except,
            http_core: http_core::Conf::compile(&block.http_core, env).map_err(fail)?,
            access: access::Conf::compile(&block.access, env).map_err(fail)?,
            auth_basic: auth_basic::Conf::compile(&block.auth_basic, env).map_err(fail)?,
            auth_request: auth_request::Conf::compile(&block.auth_request, env).map_err(fail)?,
            limit_conn: limit_conn::Conf::compile(&block.limit_conn, env).map_err(fail)?,
            limit_req: limit_req::Conf::compile(&block.limit_req, env).map_err(fail)?,
            referer: referer::Conf::compile(&block.referer, env).map_err(fail)?,
            secure_link: secure_link::Conf::compile(&block.secure_link, env).map_err(fail)?,
            autoindex: autoindex::Conf::compile(&block.autoindex, env).map_err(fail)?,
            fastcgi,
            http2: h2::Conf::compile(&block.http2, env).map_err(fail)?,
            gzip: gzip::Conf::compile(&block.gzip, env).map_err(fail)?,
            brotli: brotli::Conf::compile(&block.brotli, env).map_err(fail)?,
            zstd: zstd::Conf::compile(&block.zstd, env).map_err(fail)?,
            gunzip: gunzip::Conf::compile(&block.gunzip, env).map_err(fail)?,
            precompressed: precompressed::Conf::compile(&block.precompressed, env).map_err(fail)?,
            charset: charset::Conf::compile(&block.charset, env).map_err(fail)?,
            dav: dav::Conf::compile(&block.dav, env).map_err(fail)?,
            slice: slice::Conf::compile(&block.slice, env).map_err(fail)?,
            userid: userid::Conf::compile(&block.userid, env).map_err(fail)?,
            random_index: random_index::Conf::compile(&block.random_index, env).map_err(fail)?,
            browser: browser::Conf::compile(&block.browser, env).map_err(fail)?,
            mirror: mirror::Conf::compile(&block.mirror, env).map_err(fail)?,
            ssi: ssi::Conf::compile(&block.ssi, env).map_err(fail)?,
            addition: addition::Conf::compile(&block.addition, env).map_err(fail)?,
            sub: sub::Conf::compile(&block.sub, env).map_err(fail)?,
            headers: headers::Conf::compile(&block.headers, env).map_err(fail)?,
            index: index::Conf::compile(&block.index, env).map_err(fail)?,
            memcached: memcached::Conf::compile(&block.memcached, env).map_err(fail)?,
            memcached_gateway: memcached::gateway_conf(&block.memcached_gateway, env)
                .map_err(fail)?,
            proxy,
            log: access_log::Conf::compile(&block.log, env).map_err(fail)?,
            rewrite: rewrite::Conf::compile(&block.rewrite, env).map_err(fail)?,
            realip: realip::Conf::compile(&block.realip, env).map_err(fail)?,
        };
        check::location(&conf, env).map_err(fail)?;
        self.locations[id.0 as usize] = Some(conf);
        Ok(id)
    }

    fn script(
        &mut self,
        drafts: Vec<rewrite::InstructionDraft>,
        outer: &Block,
    ) -> Result<Vec<rewrite::Instruction>, ConfError> {
        let mut script = Vec::new();
        for draft in drafts {
            script.push(match draft {
                rewrite::InstructionDraft::Plain(instruction) => instruction,
                rewrite::InstructionDraft::If { condition, block } => {
                    let mut block = *block;
                    let at = block.at.clone().expect("if blocks have a place");
                    let inner = std::mem::take(&mut block.rewrite.script);
                    let is_in_server = block.context == SERVER_IF;
                    block.inherit(&without_try_files(outer));
                    block.name = outer.name.clone();
                    if block.handler.is_none() {
                        block.handler.clone_from(&outer.handler);
                    }
                    let then = self.script(inner, &block)?;
                    let location =
                        if is_in_server { None } else { Some(self.location(block, &at)?) };
                    rewrite::Instruction::If { condition, then, location }
                }
            });
        }
        Ok(script)
    }
}

/// Finds the upstream that a handler goes to, where its name is written.
fn resolve_target(handler: &Handler, env: &Env) -> Result<(), ValueError> {
    match handler {
        Handler::Gateway(protocol) => {
            protocol.target().map_or(Ok(()), |target| target.resolve(env))
        }
        _ => Ok(()),
    }
}

/// `try_files` is taken over by nothing inside its block, an `if` included.
fn without_try_files(block: &Block) -> Block {
    let mut outer = block.clone();
    outer.http_core.try_files = Inherit::default();
    outer
}

/// The `resolver` of the http block, for names in `upstream` blocks.
fn resolver_of_http(http: &Block, env: &Env) -> Result<Option<(Resolver, Duration)>, ValueError> {
    let core = http_core::Conf::compile(&http.http_core, env)?;
    Ok(core.resolver.map(|resolver| (resolver, core.resolver_timeout)))
}

/// Opens the cache zones; a zone whose options did not change is kept with what it holds.
fn zones(env: &Env, kept: &Kept) -> Result<BTreeMap<String, Arc<Zone>>, ConfError> {
    let mut zones = BTreeMap::new();
    for (name, wanted) in env.zones.borrow().iter() {
        let old = kept.zones.get(name).filter(|zone| *zone.options() == wanted.options);
        let zone = match old {
            Some(zone) => Arc::clone(zone),
            None => Arc::new(
                Zone::open(wanted.options.clone())
                    .map_err(|error| ConfError::Whole { text: error.to_string() })?,
            ),
        };
        zones.insert(name.clone(), zone);
    }
    Ok(zones)
}
