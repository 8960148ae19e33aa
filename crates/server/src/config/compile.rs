//! From drafts to the compiled form: blocks take over what those around them say, locations get their scripts, filters and phases,
//! sockets their servers.

use super::given::{Kept, Request};
use crate::engine::ENGINE;
use crate::filters;
use crate::handlers::Files as FilesHandler;
use crate::phases;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use yorozu_cache::Zone;
use yorozu_conf::{ConfError, Position};
use yorozu_connection::tls::directives::Draft as TlsDraft;
use yorozu_connection::tls::server::ServerTls;
use yorozu_gateway::cache;
use yorozu_gateway::nodes::{self, Nodes};
use yorozu_gateway::upstream;
use yorozu_kernel::config::block::{Block, LocationName};
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::listen::Shown;
use yorozu_kernel::config::place::{AnyConf, Compiled, ModuleConf, Place};
use yorozu_kernel::config::prefixes::Prefixes;
use yorozu_kernel::config::regex_set::RegexSet;
use yorozu_kernel::config::servers::*;
use yorozu_kernel::config::settings::{Compiling, ModuleDraft, SettingsCompiler};
use yorozu_kernel::config::shared::SharedSet;
use yorozu_kernel::config::{http_core, main_core};
use yorozu_kernel::exchange::conf::{Config, LocationConf};
use yorozu_kernel::exchange::handler::Bound;
use yorozu_modules::phases::rewrite;
use yorozu_upstream::Resolver;

fn hostname() -> String {
    nix::unistd::gethostname().unwrap_or_default().to_string_lossy().to_lowercase()
}

/// Turns drafts into the compiled form.
pub(super) struct Compiler<'a> {
    env: &'a Env,
    settings: SettingsCompiler,
    locations: Vec<Option<LocationConf>>,
    /// The script of the many blocks that have none.
    no_script: Arc<rewrite::Script>,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(env: &'a Env) -> Self {
        Self {
            env,
            settings: SettingsCompiler::default(),
            locations: Vec::new(),
            no_script: Arc::default(),
        }
    }

    pub(super) fn config(
        mut self,
        mut main: Block,
        request: &Request,
        kept: &Kept,
    ) -> Result<Config, ConfError> {
        let env = self.env;
        let whole = |error: ValueError| ConfError::Whole { text: error.0 };
        let error_log = main.error_log.clone().unwrap_or_else(|| {
            yorozu_kernel::logging::error_log::ErrorLogs::standard(
                &env.logs,
                request.error_log.as_deref(),
                &env.prefix,
            )
        });
        main.error_log = Some(error_log.clone());
        let settings = of_process(&mut main, env).map_err(whole)?;
        let mut blocks = std::mem::take(&mut main.servers).into_iter();
        let mut servers = Vec::new();
        let mut listens: Vec<(Listen, ServerId, Position)> = Vec::new();
        let mut switched_on = Vec::new();
        let mut resolver = None;
        if let Some(mut http) = blocks.next() {
            http.inherit(&main);
            resolver = resolver_of_http(&http, env).map_err(whole)?;
            for mut server in blocks {
                let id = ServerId(u32::try_from(servers.len()).expect("few servers"));
                server.inherit(&http);
                let at = server.at.clone().expect("server blocks have a place");
                yorozu_kernel::config::listen::default_listen(&mut server, env);
                switched_on.push(is_switched_on(&server)?);
                for listen in &server.listens {
                    listens.push((listen.clone(), id, at.clone()));
                }
                servers.push(self.server(server, id)?);
            }
        }
        let sockets = self.sockets(&listens, &servers, &switched_on)?;
        let names = env.variables.borrow();
        if let Some(name) = names.undefined() {
            return Err(ConfError::Whole { text: format!("unknown \"{name}\" variable") });
        }
        drop(names);
        let (variable_names, own_values) = env.variables.borrow_mut().take();
        let mut computed: Vec<_> = variable_names.iter().map(|_| None).collect();
        for definition in env.definitions.borrow_mut().drain(..) {
            computed[usize::from(definition.slot)] = Some(definition.source);
        }
        upstream::check(env, resolver.as_ref()).map_err(whole)?;
        Ok(Config {
            engine: &ENGINE,
            settings,
            error_log,
            prefix: env.prefix.clone(),
            sockets,
            servers,
            locations: self.locations.into_iter().map(|l| l.expect("every id is filled")).collect(),
            reads: Vec::new(),
            computed,
            own_values,
            variable_names,
            has_sent: env.variables.borrow().has_sent,
            zones: zones(env, kept)?,
            shared: SharedSet::default(),
            in_use: None,
            is_transparent: env.is_transparent.get(),
            is_counted: env.is_counted.get(),
            hostname: hostname(),
            warnings: env.warnings.take(),
            notes: env.notes.take().into_values().collect(),
        })
    }

    /// The sockets of the servers; `switched_on` says which of them say `ssl on`.
    fn sockets(
        &self,
        listens: &[(Listen, ServerId, Position)],
        servers: &[ServerConf],
        switched_on: &[bool],
    ) -> Result<Vec<Socket>, ConfError> {
        let mut sockets = yorozu_kernel::config::listen::sockets(listens, servers, self.env)?;
        yorozu_kernel::config::listen::compare_field_rules(&mut sockets, listens, |id| {
            let place = servers[id.0 as usize].conf.0 as usize;
            let core = &self.locations[place].as_ref().expect("every id is filled").http_core();
            (core.underscores_in_headers, core.ignore_invalid_headers)
        });
        yorozu_kernel::config::listen::check_certificates(&sockets, listens, |id| {
            self.shown(servers, id)
        })?;
        // As nginx, which looks at what the default server says, and for certificates in each server that says it.
        for socket in sockets.iter_mut().filter(|socket| !socket.options.is_control) {
            socket.is_tls |= switched_on[socket.default_server.0 as usize];
        }
        Ok(sockets)
    }

    /// What a server has to say in handshakes.
    fn shown(&self, servers: &[ServerConf], id: ServerId) -> Shown {
        let place = servers[id.0 as usize].conf.0 as usize;
        let tls: &ServerTls = self.locations[place].as_ref().expect("every id is filled").of();
        Shown {
            has_certificate: tls.has_certificate(),
            rejects: tls.rejects,
            has_tls13: tls.has_tls13,
        }
    }

    fn server(&mut self, mut block: Block, id: ServerId) -> Result<ServerConf, ConfError> {
        let at = block.at.clone().expect("server blocks have a place");
        yorozu_acme::directives::bind(&block, id, &at, self.env)?;
        // The control socket has no TLS: the certificates of http are not for it.
        if is_control(&block) {
            drop(block.drafts.take::<TlsDraft>());
        }
        let locations = std::mem::take(&mut block.locations);
        let steps = block.drafts.take::<rewrite::Steps>();
        let names = std::mem::take(&mut block.server_names);
        let first = self.locations.len();
        let script = self.script(steps, &block)?;
        let conf = self.compiled(block.clone(), &at, Some(script))?;
        let locations = self.set(locations, &without_try_files(&block))?;
        let everywhere = first..self.locations.len();
        Ok(ServerConf { names, conf, locations, everywhere, cache_tally: OnceLock::new() })
    }

    /// Compiles a level of locations.
    fn set(&mut self, blocks: Vec<Block>, outer: &Block) -> Result<LocationSet, ConfError> {
        let mut set = LocationSet::default();
        let (mut prefixes, mut folders) = (Vec::new(), Vec::new());
        for mut block in blocks {
            block.inherit(outer);
            let at = block.at.clone().expect("locations have a place");
            let name = block.name.clone();
            let id = self.location(block, &at)?;
            match name {
                LocationName::Exact(path) => {
                    if path.ends_with(b"/") {
                        folders.push((path.clone(), id));
                    }
                    set.exact.insert(path, id);
                }
                LocationName::Prefix { path, .. } => prefixes.push((path, id)),
                LocationName::Regex(regex) => set.regexes.push((regex, id)),
                LocationName::Named(name) => {
                    set.named.insert(name, id);
                }
                LocationName::Unnamed => {}
            }
        }
        set.prefixes = Prefixes::new(prefixes);
        set.exact_folders = Prefixes::new(folders);
        set.regex_set = RegexSet::new(set.regexes.iter().map(|(regex, _)| regex));
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

    fn location(&mut self, block: Block, at: &Position) -> Result<LocationId, ConfError> {
        self.compiled(block, at, None)
    }

    /// Compiles a location, or what a server has outside of its locations: with its script.
    fn compiled(
        &mut self,
        mut block: Block,
        at: &Position,
        of_server: Option<Arc<rewrite::Script>>,
    ) -> Result<LocationId, ConfError> {
        let id = LocationId(u32::try_from(self.locations.len()).expect("few locations"));
        self.locations.push(None);
        let nested = std::mem::take(&mut block.locations);
        let steps = block.drafts.take::<rewrite::Steps>();
        let limit_except = block.limit_except.take();
        let locations = self.set(nested, &without_try_files(&block))?;
        let script = self.script(steps, &block)?;
        let limit_except = self.limit_except(limit_except, &without_try_files(&block), at)?;
        let env = self.env;
        let fail = |error: ValueError| error.at(at);
        let handler = block.handler.clone().unwrap_or_else(|| Arc::new(FilesHandler));
        let handler_at = block.handler_at.as_ref().unwrap_or(at);
        handler.check(&env.collected).map_err(|error| error.at(handler_at))?;
        let compiling = Compiling { env, handler: &handler, name: &block.name };
        let mut scripts: Vec<(&'static Place, AnyConf)> = vec![(rewrite::Steps::place(), script)];
        scripts.extend(of_server.map(|script| (rewrite::server_script(), script as AnyConf)));
        let settings = self.settings.compile(&block.drafts, &env.silent, &compiling, scripts);
        let settings = settings.map_err(fail)?;
        let core: Arc<http_core::Conf> = settings.share(http_core::Conf::place());
        let mut conf = LocationConf {
            id,
            at: at.clone(),
            name: block.name.path(),
            is_exact: matches!(block.name, LocationName::Exact(_)),
            is_regex: matches!(block.name, LocationName::Regex(_)),
            no_regex: matches!(block.name, LocationName::Prefix { no_regex: true, .. }),
            is_named: matches!(block.name, LocationName::Named(_)),
            locations,
            handler,
            error_log: block.error_log.clone().unwrap_or_default(),
            limit_except,
            settings,
            core: Box::new(core),
            filters: Bound::default(),
            filters_within: Bound::default(),
            phases: Bound::default(),
        };
        (conf.filters, conf.filters_within) = filters::bound(&conf);
        conf.phases = phases::bound(&conf);
        self.locations[id.0 as usize] = Some(conf);
        Ok(id)
    }

    /// Compiles the steps of a block, and the blocks of its `if`s.
    fn script(
        &mut self,
        steps: rewrite::Steps,
        outer: &Block,
    ) -> Result<Arc<rewrite::Script>, ConfError> {
        if steps.0.is_empty() {
            return Ok(Arc::clone(&self.no_script));
        }
        Ok(Arc::new(rewrite::Script(self.instructions(steps, outer)?)))
    }

    fn instructions(
        &mut self,
        steps: rewrite::Steps,
        outer: &Block,
    ) -> Result<Vec<rewrite::Instruction>, ConfError> {
        let mut script = Vec::new();
        for step in steps.0 {
            script.push(match step {
                rewrite::InstructionDraft::Plain(instruction) => instruction,
                rewrite::InstructionDraft::If { condition, block } => {
                    let mut block = *block;
                    let at = block.at.clone().expect("if blocks have a place");
                    let inner = block.drafts.take::<rewrite::Steps>();
                    let is_in_server = block.context == SERVER_IF;
                    block.inherit(&without_try_files(outer));
                    block.name = outer.name.clone();
                    if block.handler.is_none() {
                        block.handler.clone_from(&outer.handler);
                    }
                    let then = self.instructions(inner, &block)?;
                    let location =
                        if is_in_server { None } else { Some(self.location(block, &at)?) };
                    rewrite::Instruction::If { condition, then, location }
                }
            });
        }
        Ok(rewrite::Rewrites::gather(script))
    }
}

/// Whether a server says `ssl on`; the control socket has no TLS.
fn is_switched_on(server: &Block) -> Result<bool, ConfError> {
    let tls: Option<&TlsDraft> = server.drafts.written();
    match tls {
        Some(tls) if !is_control(server) => tls.is_switched_on(),
        _ => Ok(false),
    }
}

fn is_control(server: &Block) -> bool {
    server.listens.iter().all(|listen| listen.options.is_control)
}

/// The settings of the main block.
fn of_process(main: &mut Block, env: &Env) -> Result<Compiled, ValueError> {
    let process: main_core::Draft = main.drafts.take();
    let process: AnyConf = Arc::new(main_core::Conf::compile(&process, env)?);
    let mut settings = Compiled::default();
    settings.put(main_core::Conf::place(), process);
    Ok(settings)
}

/// As nginx, which counts listening sockets among the connections: with as few it would answer no one.
pub(super) fn check_connections(config: &Config) -> Result<(), ConfError> {
    let sockets = config.sockets.iter().filter(|socket| !socket.options.is_control);
    let (connections, count) = (config.main().worker_connections, sockets.count());
    if connections > count as u64 {
        return Ok(());
    }
    let text =
        format!("{connections} worker_connections are not enough for {count} listening sockets");
    Err(ConfError::Whole { text })
}

/// `try_files` is taken over by nothing inside its block, an `if` included.
fn without_try_files(block: &Block) -> Block {
    let mut outer = block.clone();
    let core: Option<&http_core::Draft> = outer.drafts.written();
    // Drafts that nothing changes stay shared, and are compiled once.
    if core.is_some_and(|core| core.try_files.written().is_some()) {
        outer.drafts.of::<http_core::Draft>().try_files = Inherit::default();
    }
    outer
}

/// The `resolver` of the http block, for names in `upstream` blocks.
fn resolver_of_http(http: &Block, env: &Env) -> Result<Option<(Resolver, Duration)>, ValueError> {
    let silent = http_core::Draft::default();
    let core = http_core::Conf::compile(http.drafts.written().unwrap_or(&silent), env)?;
    Ok(core.resolver.map(|resolver| (resolver, core.resolver_timeout)))
}

/// Opens the cache zones; a zone whose options did not change is kept with what it holds.
fn zones(env: &Env, kept: &Kept) -> Result<BTreeMap<String, Arc<Zone>>, ConfError> {
    nodes::check(&env.shared::<Nodes>()).map_err(|problem| ConfError::Whole { text: problem.0 })?;
    cache::memory::settle(env);
    let mut zones = BTreeMap::new();
    for (name, wanted) in env.zones.borrow().iter() {
        let is_same = |zone: &&Arc<Zone>| *zone.options() == wanted.options;
        let old = kept.zones.get(name).filter(is_same).filter(|zone| zone.fault().is_none());
        let zone = match old {
            Some(zone) => Arc::clone(zone),
            None => {
                let open = if kept.looks_at_zones { Zone::look } else { Zone::open };
                let opened = open(wanted.options.clone());
                Arc::new(match opened {
                    Err(fault) if !kept.looks_at_zones && !kept.needs_folders => {
                        Zone::without_folder(wanted.options.clone(), fault)
                    }
                    opened => {
                        opened.map_err(|error| ConfError::Whole { text: error.to_string() })?
                    }
                })
            }
        };
        cache::kept::begin(name, &zone);
        zones.insert(name.clone(), zone);
    }
    Ok(zones)
}
