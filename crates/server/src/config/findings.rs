//! Findings about a configuration that is right by its grammar and probably not what was meant: for
//! `-t`, as warnings. A comment `# yorozu: intended` on the line silences them.

use super::scope::Finding;
use super::scope::{Scope, each_server, holds_rows, is_silenced, mentions_cookies};
use bytes::Bytes;
use std::collections::HashSet;
use std::time::Duration;
use yorozu_conf::{Directive, Tree, value};
use yorozu_kernel::config::names::is_assignment;

/// Longest time for which an answer of any status may be stored without being noticed.
const ANY_VALID_MAX: Duration = Duration::from_secs(5 * 60);
/// nginx's default of `inactive`.
const INACTIVE: Duration = Duration::from_secs(10 * 60);
/// Extensions before which a dot is meant as one.
const EXTENSIONS: [&[u8]; 14] = [
    b"php", b"html", b"htm", b"xml", b"json", b"js", b"css", b"txt", b"jpg", b"jpeg", b"png",
    b"gif", b"svg", b"ico",
];

/// The findings about a configuration, in the order of its lines.
pub(super) fn of(tree: &Tree) -> Vec<Finding> {
    let personal = depending(&tree.directives, &mentions_cookies);
    let mut search = Search { tree, found: Vec::new(), personal };
    search.block(&Scope::new(None, &tree.directives));
    search.zones_of_several_names();
    let mut found = search.found;
    found.append(&mut super::cycles::of(tree));
    found.append(&mut super::shared_sockets::of(tree));
    found.append(&mut super::omitted::of(tree));
    found.append(&mut super::issued::of(tree));
    found.append(&mut super::scripts::of(tree));
    found.append(&mut super::path_info::of(tree));
    found.retain(|finding| !is_silenced(tree, &finding.at));
    found
}

struct Search<'a> {
    tree: &'a Tree,
    found: Vec<Finding>,
    /// Variables that depend on cookies.
    personal: HashSet<Bytes>,
}

fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

fn mentions_host(text: &[u8]) -> bool {
    const HOSTS: [&[u8]; 5] =
        [b"$host", b"$http_host", b"$server_name", b"$ssl_server_name", b"$proxy_host"];
    HOSTS.iter().any(|name| memchr::memmem::find(text, name).is_some())
}

fn mentions_one(text: &[u8], variables: &HashSet<Bytes>) -> bool {
    variables.iter().any(|name| memchr::memmem::find(text, name).is_some())
}

/// Variables that `map` makes from what is meant, or that `set` changes where it was looked at; and
/// those made from these.
fn depending(lines: &[Directive], is_meant: &dyn Fn(&[u8]) -> bool) -> HashSet<Bytes> {
    let mut known = HashSet::new();
    loop {
        let count = known.len();
        collect_depending(lines, false, is_meant, &mut known);
        if known.len() == count {
            return known;
        }
    }
}

fn collect_depending(
    lines: &[Directive],
    is_in_condition: bool,
    is_meant: &dyn Fn(&[u8]) -> bool,
    known: &mut HashSet<Bytes>,
) {
    for line in lines {
        let name = &line.name[..];
        let depends = |word: &Bytes| is_meant(word) || mentions_one(word, known);
        let is_condition = name == b"if" && line.args.iter().any(depends);
        let made = match (name, &line.args[..]) {
            (b"map", [source, variable]) => depends(source).then_some(variable),
            (name, [variable, values @ ..]) if is_assignment(name) => {
                (is_in_condition || values.iter().any(depends)).then_some(variable)
            }
            _ => None,
        };
        known.extend(made.cloned());
        if let Some(block) = &line.block {
            collect_depending(block, is_condition, is_meant, known);
        }
    }
}

impl<'a> Search<'a> {
    fn add(&mut self, line: &Directive, text: String) {
        let finding = Finding { text, at: line.at.clone() };
        if !self.found.contains(&finding) {
            self.found.push(finding);
        }
    }

    fn is_personal(&self, text: &[u8]) -> bool {
        mentions_cookies(text)
            || memchr::memmem::find(text, b"$http_authorization").is_some()
            || mentions_one(text, &self.personal)
    }

    fn block(&mut self, scope: &Scope<'a, '_>) {
        for line in scope.lines {
            self.line(line);
            match (&line.name[..], &line.block) {
                (_, None) => {}
                (b"map", Some(block)) => {
                    for row in block.iter().filter(|row| row.name.starts_with(b"~")) {
                        self.dots(row, &row.name);
                    }
                }
                (_, Some(_)) if holds_rows(line) => {}
                (_, Some(block)) => self.block(&Scope::new(Some(scope), block)),
            }
        }
        for family in ["fastcgi", "proxy"] {
            if !scope.own(&format!("{family}_pass")).is_empty() {
                self.cache(scope, family);
            }
        }
    }

    fn line(&mut self, line: &'a Directive) {
        match (&line.name[..], &line.args[..]) {
            (b"location", [modifier, pattern]) if modifier.starts_with(b"~") => {
                self.dots(line, pattern);
            }
            (b"rewrite", [pattern, ..]) => self.dots(line, pattern),
            (b"server_name", names) => {
                for name in names.iter().filter(|name| name.starts_with(b"~")) {
                    self.dots(line, name);
                }
            }
            (b"if", [subject, operator, operand, ..]) => {
                if operator.ends_with(b"~") || operator.ends_with(b"~*") {
                    self.dots(line, operand);
                }
                if &operator[..] == b"!="
                    && subject.starts_with(b"($cookie_")
                    && !matches!(&operand[..], b"" | b")")
                {
                    self.absent_cookie(line, subject, operand);
                }
            }
            (b"try_files", [first @ .., _]) => {
                for name in first.iter().filter(|name| name.starts_with(b"@")) {
                    self.add(
                        line,
                        format!(
                            "\"{0}\" names a location only as the last argument of \"try_files\", here it is looked up as a file: write the file itself",
                            shown(name)
                        ),
                    );
                }
            }
            _ => {}
        }
    }

    /// A dot before a known extension that stands for any character.
    fn dots(&mut self, line: &Directive, pattern: &[u8]) {
        let Some(extension) = loose_extension(pattern) else { return };
        let extension = shown(extension);
        self.add(
            line,
            format!(
                "the dot before \"{extension}\" in \"{}\" matches any character: write \"\\.{extension}\"",
                shown(pattern)
            ),
        );
    }

    fn absent_cookie(&mut self, line: &Directive, subject: &[u8], operand: &[u8]) {
        let (name, operand) = (shown(&subject[1..]), shown(operand));
        let operand = operand.trim_end_matches(')');
        self.add(
            line,
            format!(
                "visitors without the cookie match as well: \"{name}\" is then empty, which differs from \"{operand}\": test \"{name} ~ .\" or the values that are meant"
            ),
        );
    }

    /// What holds where a gateway is asked and its answers are stored.
    fn cache(&mut self, scope: &Scope<'a, '_>, family: &str) {
        let find = |name: &str| scope.find(&format!("{family}_{name}"));
        let zone = find("cache").last().and_then(|line| line.args.first());
        let Some(zone) = zone.filter(|zone| &zone[..] != b"off") else { return };
        let is_refused = !find("no_cache").is_empty();
        let ignored = find("ignore_headers")
            .into_iter()
            .find(|line| line.args.iter().any(|arg| arg.eq_ignore_ascii_case(b"set-cookie")));
        if let Some(line) = ignored.filter(|_| !is_refused) {
            self.add(line, stored_with_cookies(family));
        } else if !is_refused {
            for line in find("cache_bypass") {
                if line.args.iter().any(|arg| self.is_personal(arg)) {
                    self.add(line, stored_of_bypassed(family));
                }
            }
        }
        for line in find("cache_valid") {
            self.validity(line, family);
        }
        self.methods_and_key(scope, family);
        self.inactive(scope, family, zone);
    }

    fn validity(&mut self, line: &Directive, family: &str) {
        let Some((time, statuses)) = line.args.split_last() else { return };
        let time = value::time(time).unwrap_or_default();
        for status in statuses {
            let is_failure = matches!(value::number(status), Some(499..=599)) && !time.is_zero();
            let is_any = &status[..] == b"any" && time > ANY_VALID_MAX;
            if is_failure || is_any {
                self.add(
                    line,
                    format!(
                        "errors are stored and served for {} seconds after they are over: remove \"{}\", and let \"{family}_cache_use_stale\" answer meanwhile",
                        time.as_secs(),
                        shown(status)
                    ),
                );
            }
        }
    }

    fn methods_and_key(&mut self, scope: &Scope<'a, '_>, family: &str) {
        let key = scope.find(&format!("{family}_cache_key"));
        let Some((line, key)) = key.last().and_then(|line| Some((*line, line.args.first()?)))
        else {
            return;
        };
        let has = |name: &[u8]| memchr::memmem::find(key, name).is_some();
        for methods in scope.find(&format!("{family}_cache_methods")) {
            let stores_post = methods.args.iter().any(|arg| arg.eq_ignore_ascii_case(b"post"));
            if stores_post && !has(b"$request_body") {
                self.add(
                    methods,
                    "the response to one POST is served for all others with the same URL: add \"$request_body\" to the key, or remove POST".to_owned(),
                );
            }
        }
        if let Some(name) = client_field(key) {
            self.add(
                line,
                format!(
                    "every client can create entries of its own by sending another value of \"{name}\": remove it, or \"map\" it to the few values that matter"
                ),
            );
        }
        let listens = scope.find("listen");
        let is_tls = |line: &&Directive| scope.is_tls(line);
        let is_mixed = listens.iter().any(is_tls) && !listens.iter().all(is_tls);
        let tells_scheme =
            [&b"$scheme"[..], b"$https", b"$server_port"].iter().any(|name| has(name));
        if is_mixed && !tells_scheme {
            self.add(
                line,
                "pages made for http are served over https and vice versa, redirects between them may loop: add \"$scheme\" to the key".to_owned(),
            );
        }
    }

    /// `inactive` is shorter than pages are valid.
    fn inactive(&mut self, scope: &Scope<'a, '_>, family: &str, zone: &[u8]) {
        let valid = scope.find(&format!("{family}_cache_valid"));
        let valid = valid.iter().filter_map(|line| value::time(line.args.last()?)).max();
        let Some(valid) = valid else { return };
        for line in scope.find(&format!("{family}_cache_path")) {
            let names_zone = |arg: &Bytes| {
                let rest = arg.strip_prefix(b"keys_zone=").and_then(|rest| rest.strip_prefix(zone));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b":"))
            };
            let written = line.args.iter().find_map(|arg| arg.strip_prefix(b"inactive="));
            let inactive = written.and_then(value::time).unwrap_or(INACTIVE);
            if line.args.iter().any(names_zone) && inactive < valid {
                self.add(
                    line,
                    format!(
                        "pages that are not requested for {} seconds are removed though they are valid for {} seconds: make \"inactive=\" as long",
                        inactive.as_secs(),
                        valid.as_secs()
                    ),
                );
            }
        }
    }

    /// Keys without a host in zones that several names use.
    fn zones_of_several_names(&mut self) {
        let tree = self.tree;
        let hosts = depending(&tree.directives, &mentions_host);
        let mut uses = Vec::new();
        each_server(tree, |number, server| keys_below(server, number, &mut uses));
        for Use { zone, server, has_names, key: line } in &uses {
            let is_other = |other: &Use<'_>| other.zone == *zone && other.server != *server;
            let sharing = match (uses.iter().any(is_other), has_names) {
                (true, _) => "servers",
                (false, true) => "names of the server",
                (false, false) => continue,
            };
            let key = line.args.first().map(|key| &key[..]).unwrap_or_default();
            if !mentions_host(key) && !mentions_one(key, &hosts) {
                self.add(
                    line,
                    format!(
                        "{sharing} that share the zone \"{}\" serve each other's pages and redirects: add \"$host\" to the key",
                        shown(zone)
                    ),
                );
            }
        }
    }
}

/// Of `*_ignore_headers Set-Cookie` where that is a fault.
pub(super) fn stored_with_cookies(family: &str) -> String {
    format!(
        "responses that set cookies are stored with them and served to everyone: remove \"Set-Cookie\", or exclude visitors with cookies of their own by \"{family}_cache_bypass\" and \"{family}_no_cache\""
    )
}

/// Of `*_cache_bypass` without `*_no_cache`.
pub(super) fn stored_of_bypassed(family: &str) -> String {
    format!(
        "responses to visitors who bypass the cache are stored and served to the others: add \"{family}_no_cache\" with the same arguments"
    )
}

/// Where answers are stored, and under which key.
struct Use<'a> {
    zone: Bytes,
    server: usize,
    /// Whether the server has several names.
    has_names: bool,
    key: &'a Directive,
}

/// All uses below a server's block.
fn keys_below<'a>(scope: &Scope<'a, '_>, server: usize, uses: &mut Vec<Use<'a>>) {
    for family in ["fastcgi", "proxy"] {
        if scope.own(&format!("{family}_pass")).is_empty() {
            continue;
        }
        let zones = scope.find(&format!("{family}_cache"));
        let keys = scope.find(&format!("{family}_cache_key"));
        if let (Some(zone), Some(key)) = (zones.last(), keys.last()) {
            let names = scope.find("server_name").into_iter().flat_map(|line| &line.args);
            let is_several = |name: &Bytes| name.starts_with(b"~") || name.contains(&b'*');
            let count: usize = names.map(|name| if is_several(name) { 2 } else { 1 }).sum();
            let has_names = count > 1;
            uses.extend(zone.args.first().map(|zone| Use {
                zone: zone.clone(),
                server,
                has_names,
                key,
            }));
        }
    }
    for line in scope.lines {
        if let Some(block) = &line.block {
            keys_below(&Scope::new(Some(scope), block), server, uses);
        }
    }
}

/// The first `$http_…` of a key that is not the host.
fn client_field(key: &[u8]) -> Option<String> {
    memchr::memmem::find_iter(key, b"$http_").find_map(|at| {
        let name = &key[at + 1..];
        let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        let name = &name[..name.iter().take_while(is_name).count()];
        (name != b"http_host").then(|| format!("${}", shown(name)))
    })
}

/// The extension behind a dot that is neither escaped, nor in a class, nor repeated.
fn loose_extension(pattern: &[u8]) -> Option<&[u8]> {
    let (mut is_escaped, mut is_in_class) = (false, false);
    for (at, byte) in pattern.iter().enumerate() {
        match byte {
            _ if is_escaped => {
                is_escaped = false;
                continue;
            }
            b'\\' => is_escaped = true,
            b'[' => is_in_class = true,
            b']' => is_in_class = false,
            b'.' if !is_in_class => {
                let rest = &pattern[at + 1..];
                let is_end = |rest: &[u8]| {
                    rest.first().is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
                };
                let found = EXTENSIONS
                    .iter()
                    .find(|extension| rest.strip_prefix(**extension).is_some_and(is_end));
                if let Some(extension) = found {
                    return Some(&rest[..extension.len()]);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files of a test")]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};
    use yorozu_kernel::config::files::Files;

    struct Text(&'static str);

    impl yorozu_conf::Source for Text {
        fn read(&self, _: &Path) -> std::io::Result<Bytes> {
            Ok(Bytes::from_static(self.0.as_bytes()))
        }
        fn glob(&self, _: &str) -> std::io::Result<Vec<PathBuf>> {
            Ok(Vec::new())
        }
        fn resolve(&self, path: &str) -> PathBuf {
            path.into()
        }
    }

    fn found(text: &'static str) -> Vec<String> {
        let tree = yorozu_conf::parse(&Text(text), Path::new("conf")).unwrap();
        of(&tree).iter().map(ToString::to_string).collect()
    }

    /// A configuration in which a part of a sentence is found on a line; none for an empty part.
    const TABLE: &[(&str, &str, u32)] = &[
        ("location ~ .php$ {}", "write \"\\.php\"", 1),
        ("if ($request_uri ~* \"index.php|x\") {}", "before \"php\"", 1),
        ("rewrite ^/a.html$ /b;", "before \"html\"", 1),
        ("map $uri $a {\n ~/wp-login.php 1; }", "before \"php\"", 2),
        ("location ~ \\.php$ {}", "", 0),
        ("location ~ [.]php$ {}", "", 0),
        ("location ~ /a.*php {}", "", 0),
        ("location ~ /a.phpx {}", "", 0),
        ("location ~ .php$ {} # yorozu: intended", "", 0),
        ("try_files @a $uri =404;", "only as the last", 1),
        (
            "fastcgi_split_path_info ^(.+?\\.php)(/.*)$; location / { try_files $fastcgi_script_name =404;\nfastcgi_param PATH_INFO $fastcgi_path_info; }",
            "PATH_INFO\" is always empty",
            2,
        ),
        (
            "fastcgi_split_path_info ^(.+?\\.php)(/.*)$; location / { try_files $fastcgi_script_name =404; set $path_info $fastcgi_path_info; fastcgi_param PATH_INFO $path_info; }",
            "",
            0,
        ),
        (
            "fastcgi_split_path_info ^(.+?\\.php)(/.*)$; location / { try_files $uri =404; fastcgi_param PATH_INFO $fastcgi_path_info; }",
            "",
            0,
        ),
        ("try_files $uri @a;", "", 0),
        ("if ($cookie_cart != \"0\") {}", "without the cookie match", 1),
        ("if ($cookie_cart != \"\") {}", "", 0),
        (
            "fastcgi_cache z;\nfastcgi_ignore_headers Set-Cookie;\nfastcgi_pass a;",
            "served to everyone",
            2,
        ),
        (
            "fastcgi_cache z;fastcgi_ignore_headers Set-Cookie;fastcgi_no_cache $x;fastcgi_pass a;",
            "",
            0,
        ),
        ("fastcgi_cache off;fastcgi_ignore_headers Set-Cookie;fastcgi_pass a;", "", 0),
        ("proxy_ignore_headers Set-Cookie;", "", 0),
        (
            "set $skip 0; if ($http_cookie ~ x) { set $skip 1; }\nproxy_cache_bypass $skip; proxy_cache z; proxy_pass a;",
            "stored and served to the others",
            2,
        ),
        ("proxy_cache_bypass $http_pragma; proxy_cache z; proxy_pass a;", "", 0),
        (
            "proxy_cache_bypass $cookie_a; proxy_no_cache $cookie_a; proxy_cache z; proxy_pass a;",
            "",
            0,
        ),
        ("proxy_cache z; proxy_pass a;\nproxy_cache_valid 200 502 1m;", "remove \"502\"", 2),
        ("proxy_cache z; proxy_pass a; proxy_cache_valid any 1h;", "remove \"any\"", 1),
        ("proxy_cache z; proxy_pass a; proxy_cache_valid any 1m;", "", 0),
        ("proxy_cache z; proxy_pass a; proxy_cache_key $host$http_origin;", "\"$http_origin\"", 1),
        ("proxy_cache z; proxy_pass a; proxy_cache_key $http_host$uri;", "", 0),
        (
            "proxy_cache z; proxy_pass a; proxy_cache_key $host$uri; proxy_cache_methods GET POST;",
            "$request_body",
            1,
        ),
        (
            "listen 80; listen 443 ssl; location / {\nproxy_cache z; proxy_pass a; proxy_cache_key $host$uri; }",
            "add \"$scheme\"",
            2,
        ),
        (
            "proxy_cache_path /a keys_zone=z:1m;\nproxy_cache z; proxy_pass a; proxy_cache_valid 1h;",
            "valid for 3600 seconds",
            1,
        ),
        (
            "proxy_cache_path /a keys_zone=z:1m inactive=1m; proxy_cache z; proxy_pass a; proxy_cache_valid 1h;",
            "not requested for 60 seconds",
            1,
        ),
        (
            "proxy_cache_path /a keys_zone=z:1m inactive=1h; proxy_cache z; proxy_pass a; proxy_cache_valid 200 1h; proxy_cache_valid 404 1m;",
            "",
            0,
        ),
        (
            "proxy_cache_path /a keys_zone=z:1m inactive=1m; proxy_cache z; proxy_pass a; proxy_cache_valid 1h; # yorozu: intended",
            "",
            0,
        ),
        (
            "http { proxy_cache z; proxy_cache_key $uri; server { location / { proxy_pass a; } } server { proxy_pass b; } }",
            "each other's pages",
            1,
        ),
        (
            "http { proxy_cache z; proxy_cache_key $uri; server { location / { proxy_pass a; } } }",
            "",
            0,
        ),
        (
            "http { proxy_cache z; map $uri $a { default 1; } server { server_name a.b www.a.b;\nproxy_cache_key $a$uri; location / { proxy_pass a; } } }",
            "names of the server",
            2,
        ),
        (
            "http { proxy_cache z; proxy_cache_key $uri; server { server_name *.a.b; location / { proxy_pass a; } } }",
            "names of the server",
            1,
        ),
        (
            "http { proxy_cache z; map $host $a { default 1; } map $a $b { default 1; } server { server_name a.b www.a.b; proxy_cache_key $b$uri; location / { proxy_pass a; } } }",
            "",
            0,
        ),
        (
            "http { map $http_cookie $a { default 0; ~x 1; }\nmap $a $b { default 0; 1 1; } server {\nproxy_cache_bypass $b; proxy_cache z; location / { proxy_pass a; } } }",
            "stored and served to the others",
            3,
        ),
    ];

    #[test]
    fn each_fault_is_found_where_it_is_and_nothing_else() {
        for (text, part, line) in TABLE {
            let found = found(text);
            if part.is_empty() {
                assert_eq!(found, Vec::<String>::new(), "{text}");
                continue;
            }
            let place = format!(" in conf:{line}");
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains(part) && found[0].ends_with(&place), "{text}: {found:?}");
        }
    }

    #[test]
    fn the_presets_are_as_they_are_meant() {
        let presets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../presets");
        let mut count = 0;
        let folders = std::fs::read_dir(&presets).unwrap().flatten().map(|item| item.path());
        for folder in folders.chain([presets]) {
            let file = folder.join("nginx.conf");
            if file.exists() {
                let tree = yorozu_conf::parse(&Files { folder }, &file).unwrap();
                assert_eq!(of(&tree), Vec::new());
                count += 1;
            }
        }
        assert!(count >= 6);
    }
}
