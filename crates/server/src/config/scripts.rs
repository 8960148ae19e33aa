//! Findings about PHP: scripts that run although a location seems to refuse them, or that are sent as they are, and uploads that
//! come to it empty.

use super::scope::{Finding, Scope, each_server, inside, is_silenced};
use crate::control::explain;
use crate::handlers;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_conf::{Directive, Tree};
use yorozu_kernel::config::regex::Regex;
use yorozu_kernel::config::servers::ServerId;
use yorozu_kernel::exchange::conf::{Config, WorkerConf};
use yorozu_kernel::exchange::outcome::Progress;
use yorozu_kernel::exchange::{Exchange, Role};
use yorozu_kernel::find_config;
use yorozu_modules::phases::access;

/// A script, and what stands behind its name for it to read.
const WITH_PATH: &[u8] = b"/a.php/b";
/// The end of a pattern that such a path does not match.
const NAME_ALONE: &str = r"\.php$";
/// Scripts that tell most if they are sent; any other is looked for, too.
const TELLING: [&str; 3] = ["wp-config.php", "config.php", "index.php"];
/// A client that no rule is about by itself (RFC 5737).
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Names of a folder that are looked at; chosen.
const NAMES_MAX: usize = 1000;

pub(super) fn of(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    each_server(tree, |_, server| {
        refused_by_name_alone(server, &mut found);
        uploads(server, &mut found);
    });
    found
}

fn pattern(location: &Directive) -> Option<&[u8]> {
    match &location.args[..] {
        [modifier, pattern] if modifier.starts_with(b"~") => Some(pattern),
        _ => None,
    }
}

fn refuses(location: &Directive) -> bool {
    inside(location).iter().any(|line| match (&line.name[..], &line.args[..]) {
        (b"deny", [whom]) => whom == "all",
        (b"return", [status, ..]) => status.starts_with(b"4"),
        _ => false,
    })
}

fn runs_scripts(location: &Directive) -> bool {
    let passes = |line: &Directive| {
        matches!(&line.name[..], b"fastcgi_pass" | b"proxy_pass" | b"scgi_pass" | b"uwsgi_pass")
    };
    let is_with_path = |pattern: &[u8]| {
        Regex::plain(pattern).is_ok_and(|regex| regex.is_match(WITH_PATH).unwrap_or_default())
    };
    inside(location).iter().any(passes) && pattern(location).is_some_and(is_with_path)
}

/// Locations that refuse a script by its name's end, before one that also takes what stands behind the name.
fn refused_by_name_alone(server: &Scope<'_, '_>, found: &mut Vec<Finding>) {
    let locations = server.own("location");
    for (number, location) in locations.iter().enumerate().filter(|(_, l)| refuses(l)) {
        let Some(pattern) = pattern(location).map(String::from_utf8_lossy) else { continue };
        let Some(start) = pattern.strip_suffix(NAME_ALONE) else { continue };
        let Some(later) = locations[number..].iter().find(|later| runs_scripts(later)) else {
            continue;
        };
        let text = format!(
            "scripts that \"{pattern}\" is to refuse run with a path behind their name (\"x.php/y\"), in line {}: write \"{start}\\.php\\b\"",
            later.at.line
        );
        found.push(Finding { text, at: location.at.clone() });
    }
}

/// Where PHP gets a body of unknown length, which it takes for none.
fn uploads(scope: &Scope<'_, '_>, found: &mut Vec<Finding>) {
    if !scope.own("fastcgi_pass").is_empty() {
        let line = scope.find("fastcgi_request_buffering").into_iter().next_back();
        let line =
            line.filter(|line| line.args.iter().any(|word| word.eq_ignore_ascii_case(b"off")));
        if let Some(line) = line {
            let text = "an upload whose length the client does not say is empty to PHP: write \"fastcgi_request_buffering chunked\", which reads such a one first";
            let finding = Finding { text: text.to_owned(), at: line.at.clone() };
            if !found.contains(&finding) {
                found.push(finding);
            }
        }
    }
    for line in scope.lines.iter().filter(|line| line.name == "location" || line.name == "if") {
        uploads(&Scope::new(Some(scope), inside(line)), found);
    }
}

/// The findings about what a configuration sends.
pub(super) fn sent(tree: &Tree, config: &Arc<Config>) -> Vec<Finding> {
    let conf = Rc::new(WorkerConf::new(Arc::clone(config), || {}));
    let ids = (0..).map(ServerId).take(config.servers.len());
    let mut found: Vec<_> = ids.filter_map(|id| of_server(&conf, id)).collect();
    found.dedup();
    found.retain(|finding| !is_silenced(tree, &finding.at));
    found
}

fn of_server(conf: &Rc<WorkerConf>, id: ServerId) -> Option<Finding> {
    let root = conf.location(conf.server(id).conf).http_core().root.path.as_literal()?;
    let name = script_in(Path::new(&*String::from_utf8_lossy(&root)))?;
    let head = explain::head(&format!("http://localhost/{name}"), "GET", "").ok()?;
    let mut asked = explain::asked(conf, head.as_bytes()).ok()?;
    find_config::begin(&mut asked).ok()?;
    asked.server = id;
    asked.location = conf.server(id).conf;
    asked.role = Role::Question { supposes_scripts: false };
    let is_refused =
        |asked: &Exchange| conf.location(asked.location).of::<access::Conf>().refuses(STRANGER);
    match handlers::start(&mut asked) {
        Progress::Ready(response) if response.status == 200 && !is_refused(&asked) => {
            let text = format!(
                "\"/{name}\" is sent as it is, its source for all to read: pass \".php\" to PHP (\"fastcgi_pass\"), or refuse it"
            );
            Some(Finding { text, at: conf.location(asked.location).at.clone() })
        }
        _ => None,
    }
}

/// A script in a folder, if there is one.
#[expect(clippy::disallowed_methods, reason = "no worker waits for it")]
fn script_in(folder: &Path) -> Option<String> {
    if let Some(name) = TELLING.iter().find(|name| folder.join(name).is_file()) {
        return Some((*name).to_owned());
    }
    let names = fs::read_dir(folder).ok()?.take(NAMES_MAX).flatten();
    let mut names = names.filter_map(|item| item.file_name().into_string().ok());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    names.find(|name| name.ends_with(".php") && name.bytes().all(is_plain))
}
