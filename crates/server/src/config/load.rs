//! From text to settings: the one door.
//!
//! parse -> tree with positions -> each row's setter writes into a [`Block`] -> every block takes
//! over what the enclosing one says -> compiled [`Config`]. After this nothing parses text or knows
//! a directive's name.

use super::compile::{Compiler, check_connections};
pub use super::given::{Kept, Request};
use super::scope::holds_rows;
use super::{findings, reads};
use crate::modules::MODULES;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use yorozu_conf::{ConfError, Directive, Tree};
use yorozu_kernel::base::texts::{self, Texts};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::files::Files;
use yorozu_kernel::config::loader::{self, Loader};
use yorozu_kernel::exchange::conf::Config;

/// A configuration with the text it was made from.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    pub tree: Tree,
}

/// What is wrong with a configuration.
#[derive(Debug)]
pub struct Faults {
    /// One at least.
    pub errors: Vec<ConfError>,
    /// What is said of it beside.
    pub warnings: Vec<String>,
}

/// Reads and compiles a configuration, on a new thread: what a thread that has ended allocated goes back to the
/// system as soon as it is freed, by whichever worker is the last to use it; that of one which only waits would stay.
///
/// # Errors
/// The first fault, as one line for the operator.
pub fn load(request: &Request, kept: &Kept) -> Result<Loaded, ConfError> {
    on_a_thread(&|| load_here(request, kept))
}

/// As [`load`], and goes on behind lines that are refused. With `omits_unsupported`, those of modules that this version lacks
/// are left out, of the tree too, with a warning for each.
///
/// # Errors
/// Each line that is refused; of what only shows when all are put together, the first.
pub fn check(request: &Request, kept: &Kept, omits_unsupported: bool) -> Result<Loaded, Faults> {
    on_a_thread(&|| load_noting(request, kept, Some(Vec::new()), omits_unsupported))
}

/// As [`load`], with all that was read.
///
/// # Errors
/// As [`load`].
pub fn load_and_keep_texts(request: &Request, kept: &Kept) -> Result<(Loaded, Texts), ConfError> {
    on_a_thread(&|| {
        let (loaded, read) = texts::keep(|| load_here(request, kept));
        Ok((loaded?, read))
    })
}

/// As [`load`], from what another process read.
///
/// # Errors
/// As [`load`].
pub fn load_from_texts(request: &Request, kept: &Kept, read: &Texts) -> Result<Loaded, ConfError> {
    on_a_thread(&|| texts::give(read.clone(), || load_here(request, kept)))
}

fn on_a_thread<T: Send>(load: &(dyn Fn() -> T + Sync)) -> T {
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().name("configuration".to_owned());
        match reader.spawn_scoped(scope, load) {
            Ok(reader) => reader.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => load(),
        }
    })
}

fn load_here(request: &Request, kept: &Kept) -> Result<Loaded, ConfError> {
    load_noting(request, kept, None, false).map_err(|mut faults| faults.errors.swap_remove(0))
}

/// `faults`: as [`Loader::faults`].
fn load_noting(
    request: &Request,
    kept: &Kept,
    faults: Option<Vec<ConfError>>,
    omits_unsupported: bool,
) -> Result<Loaded, Faults> {
    let (source, env) = begin(request, kept);
    let mut loader = Loader { env: &env, faults };
    let (mut tree, parsed) = yorozu_conf::parse_to_fault(&source, &request.file);
    if omits_unsupported {
        omit_unsupported(&env, &mut tree.directives);
    }
    match read(&mut loader, &source, (&tree, parsed), request, kept) {
        Ok(config) => {
            let shared = env.finish_shared(&kept.shared);
            Ok(Loaded { config: Config { shared, ..config }, tree })
        }
        Err(last) => {
            let Some(mut errors) = loader.faults.take() else {
                return Err(Faults { errors: vec![last], warnings: Vec::new() });
            };
            // What comes of them is none of its own.
            if errors.is_empty() {
                errors.push(last);
            }
            let mut warnings = env.warnings.take();
            warnings.extend(findings::of(&tree).iter().map(ToString::to_string));
            Err(Faults { errors, warnings })
        }
    }
}

/// Takes out the lines of modules that this version lacks, and notes each as a warning.
fn omit_unsupported(env: &Env, lines: &mut Vec<Directive>) {
    lines.retain_mut(|line| {
        let has_rows = holds_rows(line);
        let Some(why) = loader::unsupported(env, line) else {
            if let Some(block) = line.block.as_mut().filter(|_| !has_rows) {
                omit_unsupported(env, block);
            }
            return true;
        };
        env.warnings.borrow_mut().push(format!("omitted: {why} in {}", line.at));
        false
    });
}

fn read(
    loader: &mut Loader<'_>,
    source: &Files,
    (tree, parsed): (&Tree, Result<(), ConfError>),
    request: &Request,
    kept: &Kept,
) -> Result<Config, ConfError> {
    let env = loader.env;
    let mut main = Block::new(MAIN, None);
    if let Some(global) = &request.global {
        loader.walk(&mut main, &yorozu_conf::parse_global(source, global)?)?;
    }
    if let Err(fault) = parsed {
        // As nginx, which acts on each line before it reads the next.
        loader.check_places(MAIN, &tree.directives)?;
        return Err(fault);
    }
    env.variables.borrow_mut().note_definitions(&tree.directives);
    loader.walk(&mut main, &tree.directives)?;
    if let Some(fault) = loader.faults.as_mut().and_then(|faults| faults.first().cloned()) {
        return Err(fault);
    }
    if !main.has_events {
        let text = "no \"events\" section in configuration".to_owned();
        return Err(ConfError::Whole { text });
    }
    env.named.borrow().check_pools()?;
    crate::control::add(loader, &mut main, source)?;
    let config = Compiler::new(env).config(main, request, kept)?;
    check_connections(&config)?;
    let reads = reads::of(tree, &config);
    Ok(Config { reads, ..config })
}

/// Where the control socket is, by what the main block says. Nothing else is looked at: neither keys nor logs nor caches.
///
/// # Errors
/// The text is no configuration, or has no control socket.
pub fn control_socket(request: &Request) -> Result<PathBuf, ConfError> {
    let kept = Kept::for_test();
    let (source, env) = begin(request, &kept);
    let mut main = Block::new(MAIN, None);
    let mut loader = Loader { env: &env, faults: None };
    let mut lines = match &request.global {
        Some(global) => yorozu_conf::parse_global(&source, global)?,
        None => Vec::new(),
    };
    lines.extend(yorozu_conf::parse(&source, &request.file)?.directives);
    let is_asked = |line: &&yorozu_conf::Directive| matches!(&line.name[..], b"pid" | b"control");
    for line in lines.iter().filter(is_asked) {
        loader.walk(&mut main, std::slice::from_ref(line))?;
    }
    let none = "the configuration has no control socket: write \"control PATH;\"";
    let path = crate::control::place(&main.drafts.take(), &env);
    path.ok_or_else(|| ConfError::Whole { text: none.to_owned() })
}

fn begin(request: &Request, kept: &Kept) -> (Files, Env) {
    let folder = request.file.parent().unwrap_or(Path::new("/")).to_owned();
    let folders = (request.prefix.clone(), folder.clone());
    let mut env = Env::new(&MODULES, folders, Arc::clone(&kept.logs), &kept.shared);
    env.loads = Arc::clone(&kept.loads);
    (Files { folder }, env)
}
