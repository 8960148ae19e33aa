//! `htaccess_deny`: what an application's `.htaccess` files refuse to all clients on Apache is refused here, too.
//!
//! ```text
//! Require all denied                          # data/.htaccess
//! <Files "user.css">
//!     Require all granted
//! </Files>
//! ```
//! Applications and their plugins protect files of theirs like this, also in folders that come to be while the site is served. Of
//! all that such a file says nothing else counts: who is let in by a password or an address is neither refused nor asked.

#![expect(
    clippy::disallowed_methods,
    reason = "as with Apache: what a folder has is asked of the system where the request is, and remembered"
)]

use foldhash::fast::RandomState;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use yorozu_http::uri;
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::base::turn;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::http_core::Root;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::regex::Regex;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::{Exchange, Role};
use yorozu_kernel::files::open::{self, Kind};
use yorozu_kernel::files::path;
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module =
    Module::new("http_htaccess", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

settings! {
    /// Whether 403 is sent where an `.htaccess` in the file's folder, or in one above it up to `root`, refuses access by `Require all denied` or `Deny from all`, also in `<Files>` and `<FilesMatch>`, or by a `RewriteRule` with `[F]`, `[G]` or `[R=404]` and without a condition. Nothing else in it counts, and a stored page is served until it is refreshed.
    htaccess_deny: bool = "off", ONE, HTTP_SERVER_LOCATION;
}

/// How long what was seen of a folder is believed, and then of a URL's: a second in all.
const BELIEVED: Duration = Duration::from_millis(500);
/// Folders that a worker remembers.
const FOLDERS_MAX: usize = 4096;
/// Longest file that is read; one that is longer refuses.
const BYTES_MAX: u64 = 1 << 20;

/// Folders by their paths, and when each was looked at.
type Seen = HashMap<Box<[u8]>, (Instant, Folder), RandomState>;

/// Folders of URLs of which nothing is said, by the number of the location, and when that was seen.
type Quiet = HashMap<u32, HashMap<Box<[u8]>, Instant, RandomState>, RandomState>;

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::default();
    static QUIET: RefCell<Quiet> = RefCell::default();
}

/// What is at a path, as far as it matters to who asks for something below it.
#[derive(Clone, Debug)]
enum Folder {
    /// It has no such file.
    Silent,
    /// It is none, but a file or nothing: what follows in the path names nothing.
    Other,
    Says(Rc<Rules>),
}

/// What an `.htaccess` says.
#[derive(Debug, Default)]
struct Rules {
    /// Of all that is in the folder and below.
    all: Access,
    /// Of files by their names.
    files: Vec<(Option<Regex>, Access)>,
    /// Whether it has `RewriteEngine on`, and no file above counts for rewriting.
    rewrites: bool,
    /// Paths below the folder that are refused.
    refused: Vec<Regex>,
}

/// What lines of one section say.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Access {
    /// `Require all`: granted, or denied.
    required: Option<bool>,
    /// `Allow from all`, `Deny from all`.
    allows: bool,
    denies: bool,
    /// `Order`: whether `Allow` has the last word, and what neither names is granted.
    allow_is_last: Option<bool>,
}

impl Access {
    fn take(&mut self, line: &str) {
        let line = line.to_ascii_lowercase();
        match *line.split_whitespace().collect::<Vec<_>>() {
            ["require", "all", "denied"] => self.required = Some(false),
            ["require", "all", "granted"] => self.required = Some(true),
            ["allow", "from", "all"] => self.allows = true,
            ["deny", "from", "all"] => self.denies = true,
            ["order", "allow,deny"] => self.allow_is_last = Some(false),
            ["order", "deny,allow"] => self.allow_is_last = Some(true),
            _ => {}
        }
    }

    /// Whether all clients are let in, or none; `None`: nothing is said of them all.
    fn granted(self) -> Option<bool> {
        if self.required.is_some() {
            return self.required;
        }
        match (self.allows, self.denies, self.allow_is_last) {
            (false, false, None | Some(true)) => None,
            (true, true, last) => Some(last.unwrap_or(true)),
            (allows, denies, _) => Some(allows && !denies),
        }
    }
}

/// A section that is open.
enum Section {
    /// One whose lines count as if it were not there, or may: those for older and newer versions say the same twice.
    Transparent,
    /// Its place among the sections about files.
    Files(usize),
    /// One about some requests alone.
    Skipped,
}

impl Rules {
    /// Those of one that cannot be read: as with Apache, no client gets what it may protect.
    fn unreadable() -> Self {
        Self { all: Access { required: Some(false), ..Access::default() }, ..Self::default() }
    }

    fn parse(text: &str) -> Self {
        let (mut rules, mut open) = (Self::default(), Vec::<Section>::new());
        let mut has_condition = false;
        let text = text.replace("\\\r\n", " ").replace("\\\n", " ");
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if line.starts_with("</") {
                open.pop();
            } else if let Some(head) = line.strip_prefix('<') {
                open.push(rules.section(head.trim_end_matches('>')));
            } else if !open.iter().any(|section| matches!(section, Section::Skipped)) {
                let files = open.iter().rev().find_map(|section| match section {
                    Section::Files(at) => Some(*at),
                    _ => None,
                });
                match files {
                    Some(at) => rules.files[at].1.take(line),
                    None => {
                        rules.all.take(line);
                        has_condition = rules.rewrite(line, has_condition);
                    }
                }
            }
        }
        rules
    }

    /// Takes what a line says about rewriting; whether the next rule has a condition.
    fn rewrite(&mut self, line: &str, has_condition: bool) -> bool {
        let mut words = line.split_whitespace();
        match words.next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "rewriteengine" => {
                self.rewrites = words.next().is_some_and(|word| word.eq_ignore_ascii_case("on"));
                has_condition
            }
            "rewritecond" => true,
            "rewriterule" => {
                let (pattern, flags) = (words.next().unwrap_or_default(), words.last());
                let flags = flags.unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
                let has = |wanted: &[&str]| flags.split(',').any(|flag| wanted.contains(&flag));
                let refuses = has(&["f", "forbidden", "g", "gone", "r=403", "r=404", "r=410"]);
                // One that holds for what does not match refuses nearly everything: it has exceptions of its own elsewhere.
                if refuses && !has_condition && !pattern.starts_with('!') {
                    let caseless = if has(&["nc", "nocase"]) { "(?i)" } else { "" };
                    let pattern = caseless.to_owned() + unquoted(pattern);
                    self.refused.extend(Regex::plain(pattern.as_bytes()));
                }
                false
            }
            _ => has_condition,
        }
    }

    fn section(&mut self, head: &str) -> Section {
        let (kind, rest) = head.split_once(char::is_whitespace).unwrap_or((head, ""));
        let rest = rest.trim();
        let names = match kind.to_ascii_lowercase().as_str() {
            "ifmodule" | "ifversion" | "ifdefine" | "requireall" | "requireany" => {
                return Section::Transparent;
            }
            "files" => match rest.strip_prefix('~') {
                Some(expression) => unquoted(expression.trim()).to_owned(),
                None => expression_of(unquoted(rest)),
            },
            "filesmatch" => unquoted(rest).to_owned(),
            _ => return Section::Skipped,
        };
        // One that PCRE does not know names nothing.
        self.files.push((Regex::plain(names.as_bytes()).ok(), Access::default()));
        Section::Files(self.files.len() - 1)
    }
}

fn unquoted(text: &str) -> &str {
    text.trim_matches(['"', '\''])
}

/// The expression of a pattern with `*` and `?`.
fn expression_of(pattern: &str) -> String {
    let mut out = "^".to_owned();
    for sign in pattern.chars() {
        match sign {
            '*' => out.push_str(".*"),
            '?' => out.push('.'),
            '[' | ']' | '-' => out.push(sign),
            sign if sign.is_alphanumeric() || sign == '_' => out.push(sign),
            sign => out.extend(['\\', sign]),
        }
    }
    out + "$"
}

/// What the folder of a path that ends with a slash has.
fn look(folder: &[u8]) -> Folder {
    let now = turn::instant();
    let is_believed = |seen: &&(Instant, Folder)| now.saturating_duration_since(seen.0) < BELIEVED;
    let known =
        SEEN.with_borrow(|seen| seen.get(folder).filter(is_believed).map(|it| it.1.clone()));
    known.unwrap_or_else(|| {
        let found = read(folder);
        SEEN.with_borrow_mut(|seen| {
            if seen.len() >= FOLDERS_MAX {
                seen.clear();
            }
            seen.insert(folder.into(), (now, found.clone()));
        });
        found
    })
}

fn read(folder: &[u8]) -> Folder {
    let name = [folder, b".htaccess"].concat();
    let opened = std::fs::File::open(Path::new(OsStr::from_bytes(&name)));
    let mut text = Vec::new();
    match opened.and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut text)) {
        Ok(_) if text.len() as u64 > BYTES_MAX => Folder::Says(Rc::new(Rules::unreadable())),
        Ok(_) => Folder::Says(Rc::new(Rules::parse(&String::from_utf8_lossy(&text)))),
        Err(why) if why.kind() == ErrorKind::NotADirectory => Folder::Other,
        Err(why) if why.kind() != ErrorKind::NotFound => Folder::Says(Rc::new(Rules::unreadable())),
        Err(_) if open::kind(folder) == Some(Kind::Folder) => Folder::Silent,
        Err(_) => Folder::Other,
    }
}

/// Whether an `.htaccess` refuses, to all clients, the file that the request came to or the one that its client asked for. It says
/// nothing about pages of errors, and as with Apache's `X-Sendfile` nothing about what an application sends instead of a page.
///
/// To be asked before a file is opened and before an upstream is asked, and not for a stored page.
pub fn refuses(exchange: &Exchange) -> bool {
    let location = exchange.conf.location(exchange.location);
    let core = location.http_core();
    // A subrequest was let in with its parent, and no client asks for what is internal.
    let is_asked = exchange.role == Role::Request && !core.internal.0;
    if !location.of::<Conf>().htaccess_deny || !is_asked {
        return false;
    }
    let is_refused = match asked_for(exchange) {
        Some(_) if exchange.redirects.is_led => false,
        Some(asked) if is_refused(exchange, &core.root, &asked) => true,
        _ => is_refused(exchange, &core.root, &exchange.uri),
    };
    if is_refused {
        error::request(exchange, Level::Error, "access forbidden by .htaccess");
    }
    is_refused
}

/// The path that the client asked for, where that became another one.
fn asked_for(exchange: &Exchange) -> Option<Vec<u8>> {
    if exchange.is_uri_as_sent {
        return None;
    }
    let asked = uri::normalize(exchange.request.target(), true).ok()?.path;
    (asked != exchange.uri).then_some(asked)
}

/// Whether a folder on the way to the file of a path refuses it.
fn is_refused(exchange: &Exchange, root: &Root, uri: &[u8]) -> bool {
    let end = memchr::memrchr(b'/', uri).map_or(0, |at| at + 1);
    // Where the URL alone says which folders these are.
    let folder = (!root.is_alias && root.path.as_literal().is_some()).then(|| &uri[..end]);
    let now = turn::instant();
    let is_quiet = |folder: &[u8]| {
        QUIET.with_borrow(|quiet| {
            let seen = quiet.get(&exchange.location.0).and_then(|folders| folders.get(folder));
            seen.is_some_and(|seen| now.saturating_duration_since(*seen) < BELIEVED)
        })
    };
    if folder.is_some_and(is_quiet) {
        return false;
    }
    let (mut top, mut path) = (Scratch::take(), Scratch::take());
    path::append_file_in(root, exchange, uri, &mut path);
    path::append_folder(root, exchange, &mut top);
    let top = top.strip_suffix(b"/").unwrap_or(&top).len();
    let (mut told, mut is_rewritten) = (Vec::new(), false);
    // Where the file's name begins: behind the last folder.
    let mut name = top;
    for (at, _) in path.iter().enumerate().skip(top).filter(|(_, byte)| **byte == b'/') {
        match look(&path[..=at]) {
            Folder::Other => break,
            Folder::Silent => {}
            Folder::Says(rules) => {
                // As with Apache: of several files that rewrite, the innermost does.
                if rules.rewrites {
                    let below = path.get(at + 1..).unwrap_or_default();
                    is_rewritten =
                        rules.refused.iter().any(|it| it.is_match(below).unwrap_or(true));
                }
                told.push(rules);
            }
        }
        name = at + 1;
    }
    if let Some(folder) = folder.filter(|_| told.is_empty()) {
        QUIET.with_borrow_mut(|quiet| {
            let folders = quiet.entry(exchange.location.0).or_default();
            if folders.len() >= FOLDERS_MAX {
                folders.clear();
            }
            folders.insert(folder.into(), now);
        });
        return false;
    }
    let file = path.get(name..).unwrap_or_default();
    let file = &file[..memchr::memchr(b'/', file).unwrap_or(file.len())];
    is_rewritten || granted(&told, file) == Some(false)
}

/// What files say of one of this name, from the outermost folder on. As with Apache: what is said of files counts after what is said
/// of folders.
fn granted(told: &[Rc<Rules>], file: &[u8]) -> Option<bool> {
    let is_named = |names: &Regex| !file.is_empty() && names.is_match(file).unwrap_or(false);
    let of_file = told.iter().flat_map(|rules| &rules.files);
    let of_file = of_file.filter(|(names, _)| names.as_ref().is_some_and(is_named));
    let said = told.iter().map(|rules| rules.all).chain(of_file.map(|(_, access)| *access));
    said.filter_map(Access::granted).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(text: &str, file: &str) -> Option<bool> {
        super::granted(&[Rc::new(Rules::parse(text))], file.as_bytes())
    }

    #[test]
    fn what_refuses_all_clients_is_found_however_it_is_written() {
        for text in [
            "Require all denied",
            "deny from ALL",
            "Order allow,deny\nDeny from all",
            "Order Deny,Allow\nDeny from all\nAllow from 127.0.0.1",
            "order allow,deny",
            "<IfModule mod_authz_core.c>\n\tRequire all denied\n</IfModule>\n<IfModule !mod_authz_core.c>\n\tDeny from all\n</IfModule>",
            "<IfVersion < 2.4>\nAllow from none\nDeny from all\n</IfVersion>\n<IfVersion >= 2.4>\nRequire all denied\n</IfVersion>",
            "<Files *>\nOrder Allow,Deny\nDeny from All\n</Files>",
            "<FilesMatch \"\\.(zip|txt)$\">\nRequire all denied\n</FilesMatch>",
            "<Files ~ \"\\.zip$\">\nRequire \\\n all denied\n</Files>",
            "<RequireAll>\nRequire all denied\n</RequireAll>",
        ] {
            assert_eq!(granted(text, "a.zip"), Some(false), "{text}");
        }
    }

    #[test]
    fn rules_that_refuse_whatever_else_holds_are_found() {
        let rules = Rules::parse(
            "RewriteEngine On\nRewriteRule ^content/(pages|tmp)/.*$ - [R=404,L]\nRewriteRule \\.(YAML|md)$ error [NC,F]\n\
             RewriteCond %{REMOTE_ADDR} !^10\\.\nRewriteRule ^admin - [F]\nRewriteRule ^old$ /new [R=301,L]\nRewriteRule !^index - [F]\nRewriteRule ^( - [F]\n",
        );
        let refuses =
            |path: &str| rules.refused.iter().any(|it| it.is_match(path.as_bytes()).unwrap());
        assert!(rules.rewrites);
        for (path, is) in [
            ("content/pages/a/index.txt", true),
            ("user/a.yaml", true),
            ("content/uploads/a.jpg", false),
            ("admin/x", false),
            ("old", false),
            ("a", false),
        ] {
            assert_eq!(refuses(path), is, "{path}");
        }
        assert!(!Rules::parse("RewriteRule ^a - [F]").rewrites);
    }

    #[test]
    fn what_refuses_some_or_lets_all_in_is_none() {
        for (text, is) in [
            ("", None),
            ("# Require all denied", None),
            ("AuthType Basic\nRequire valid-user", None),
            ("Order deny,allow\nAllow from 10.0.0.1", None),
            ("Options -Indexes\nRewriteEngine On\nRewriteRule ^x - [F]", None),
            ("<Limit POST>\nDeny from all\n</Limit>", None),
            ("<If \"%{HTTP_HOST} == 'x'\">\nRequire all denied\n</If>", None),
            ("<Files other.zip>\nRequire all denied\n</Files>", None),
            ("<FilesMatch (>\nRequire all denied\n</FilesMatch>", None),
            ("Order deny,allow\nDeny from all\nAllow from all", Some(true)),
            ("Order allow,deny\nAllow from all", Some(true)),
            ("Deny from all\n<Files \"a.*\">\nAllow from all\n</Files>", Some(true)),
            (
                "Require all denied\n<FilesMatch \"^a\\.(zip|css)$\">\nRequire all granted\n</FilesMatch>",
                Some(true),
            ),
        ] {
            assert_eq!(granted(text, "a.zip"), is, "{text}");
        }
    }
}
