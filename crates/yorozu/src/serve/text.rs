//! The configuration that a site is served with, as files of one folder: what `--print` shows and `--write` leaves behind.

use super::application::{Found, Pages};
use super::listen::Listens;
use super::php::Php;
use super::sizes::Sizes;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use yorozu_conf::write_word as word;

/// Files beside `nginx.conf` that are the same for every site.
const COMMON: [(&str, &str); 7] = [
    ("mime.types", include_str!("../../../../presets/mime.types")),
    ("fastcgi_params", include_str!("../../../../presets/fastcgi_params")),
    ("php.conf", include_str!("../../../../presets/php.conf")),
    ("refused.conf", include_str!("../../../../presets/refused.conf")),
    ("compression.conf", include_str!("../../../../presets/compression.conf")),
    ("visitor.conf", include_str!("../../../../presets/visitor.conf")),
    ("campaigns.conf", include_str!("../../../../presets/campaigns.conf")),
];
const FRAME: &str = include_str!("nginx.conf");
/// With another folder, other sizes and times.
const PAGE_CACHE: &str = include_str!("../../../../presets/page-cache.conf");
/// How long a request of PHP goes on when its pool is reloaded or ends. New ones wait for the slowest meanwhile.
const REQUEST_ENDS_WITHIN: &str = "10s";
/// The files, below the state's folder, with the line that knows the token for purges, and with the console's token.
pub(super) const TOKEN: &str = "token.conf";
pub(super) const CONSOLE_TOKEN: &str = "console-token";
/// Where the console is, for those who know its token.
pub(super) const CONSOLE_PATH: &str = "/.console/";
/// Where the application purges.
pub(super) const PURGE_PATH: &str = "/.purge";
/// How long it is kept at most that a page is missing.
const MISSING_KEPT: Duration = Duration::from_secs(60);
/// The socket of a pool of the site's own.
pub(super) const PHP_SOCKET: &str = "php.sock";
/// Longest upload, also PHP's own.
const UPLOAD_MB: u64 = 256;

/// A user by name, for whom the server and PHP work where root starts them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Worker {
    pub(super) user: String,
    pub(super) group: String,
}

/// Where certificates come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Tls {
    None,
    /// By an authority of the site's own: `site.crt` and `site.key` in this folder.
    Own(PathBuf),
    /// By an issuer: the URL of its directory, and whom it may write to.
    Issued {
        directory: String,
        contact: Option<String>,
    },
}

/// All that a site's configuration says.
pub(super) struct Site<'a> {
    pub(super) folder: &'a Path,
    pub(super) found: &'a Found,
    pub(super) php: Option<&'a Php>,
    pub(super) sizes: Sizes,
    pub(super) cores: u64,
    /// Where temporary files, certificates and pages are.
    pub(super) state: &'a Path,
    /// Where sockets are.
    pub(super) sockets: &'a Path,
    pub(super) worker: Option<&'a Worker>,
    pub(super) listens: &'a Listens,
    /// Names of the site; any, if there are none.
    pub(super) names: &'a [String],
    pub(super) tls: &'a Tls,
    /// How long pages are kept; `None`: not at all.
    pub(super) pages: Option<&'a str>,
    /// Proxies in front.
    pub(super) proxies: &'a [String],
    /// The Redis that nodes share, and what this node is called there.
    pub(super) shared: Option<(&'a str, String)>,
    /// Whether that was asked for: no page is older.
    pub(super) is_strict: bool,
    pub(super) is_json: bool,
    /// Whether a change of a script counts at once, and not after the two seconds of opcache.
    pub(super) is_watched: bool,
}

fn indented(text: &str, by: usize) -> String {
    let indent = " ".repeat(by);
    let lines = text.trim_end().lines();
    let lines: Vec<_> = lines
        .map(|line| if line.is_empty() { String::new() } else { format!("{indent}{line}") })
        .collect();
    lines.join("\n")
}

impl Site<'_> {
    /// Where PHP listens, as `server` of an `upstream` says it.
    fn php_address(&self) -> Option<String> {
        Some(match self.php? {
            Php::Own { .. } => format!("unix:{}", self.sockets.join(PHP_SOCKET).display()),
            Php::Running(address) => address.clone(),
        })
    }

    /// The lines of `http` about the machines before this one and beside it.
    fn others_lines(&self) -> String {
        let mut out = String::new();
        for proxy in self.proxies {
            let _ = writeln!(out, "set_real_ip_from {proxy};");
        }
        if !self.proxies.is_empty() {
            out += "real_ip_header X-Forwarded-For;\nreal_ip_recursive on;\nreal_ip_scheme X-Forwarded-Proto;\n";
        }
        if let Some((redis, node)) = &self.shared {
            let _ = writeln!(out, "cache_purge_bus {} node={node};", word(redis));
        }
        out
    }

    /// The lines of `http` that PHP and the page cache need.
    fn php_lines(&self) -> String {
        let Some(address) = self.php_address() else { return String::new() };
        let mut out = format!("upstream php {{\n    server {};\n}}\n", word(&address));
        if self.pages.is_some() {
            out += "\ninclude visitor.conf;\ninclude page-cache.conf;\ninclude campaigns.conf;\nfastcgi_cache pages;\n";
        }
        out
    }

    /// `page-cache.conf`, where pages are kept.
    fn page_cache(&self) -> Option<String> {
        let time = self.pages?;
        let is_short =
            yorozu_conf::value::time(time.as_bytes()).is_some_and(|it| it < MISSING_KEPT);
        let missing = if is_short { time } else { "1m" };
        let shared = self.shared.as_ref().map(|(redis, _)| word(&format!("shared={redis}")));
        let memory = format!("memory={}m", self.sizes.cache_mb);
        let memory = shared.map_or(memory.clone(), |shared| format!("{memory} {shared}"));
        let mut changes = vec![
            ("/var/cache/yorozu/pages", word(&self.state.join("pages").display().to_string())),
            ("memory=64m", memory),
            ("200 301 10m", format!("200 301 {time}")),
            ("404 410 1m", format!("404 410 {missing}")),
        ];
        if self.is_strict {
            changes.push(("use_stale updating ", "use_stale ".to_owned()));
            changes.push(("fastcgi_cache_background_update on;\n", String::new()));
        }
        if self.names.is_empty() {
            // The site is whatever its visitors call it, with the port that they see.
            changes.push(("$request_method$host$", "$request_method$http_host$".to_owned()));
        }
        let mut text = PAGE_CACHE.to_owned();
        for (default, value) in changes {
            assert!(text.contains(default), "page-cache.conf has no {default}");
            text = text.replace(default, &value);
        }
        Some(text)
    }

    /// The lines of the site's server about its pages, where any are kept, and for who looks after it.
    fn own_lines(&self) -> String {
        let mut out = String::new();
        if self.php.is_some() && self.pages.is_some() {
            // A pattern may match nothing: without the file there is no token, and no purge.
            let token = self.state.join(TOKEN).display().to_string().replace(".conf", ".con[f]");
            let _ = write!(
                out,
                "add_header X-Cache $upstream_cache_status always;\n\
                 # The application purges its pages here (docs/purge.md) with a token that PHP has as YOROZU_TOKEN.\n\
                 location = {PURGE_PATH} {{\n    include {};\n}}\n",
                word(&token)
            );
        }
        if self.listens.are_local() && self.proxies.is_empty() {
            let token = self.state.join(CONSOLE_TOKEN).display().to_string();
            let _ = write!(
                out,
                "# Why requests were no hits, live (docs/console.md).\nlocation ^~ {CONSOLE_PATH} {{\n    console write=on {};\n    access_log off;\n}}\n",
                word(&format!("token={token}"))
            );
        }
        out
    }

    /// The lines of `http` about an issuer, and the server that leads to HTTPS what comes without it.
    fn issuer_lines(&self) -> String {
        let Tls::Issued { directory, contact } = self.tls else { return String::new() };
        let contact =
            contact.as_ref().map_or_else(String::new, |to| format!("    contact {};\n", word(to)));
        let listens: String =
            self.listens.plain.iter().map(|it| format!("    listen {it};\n")).collect();
        format!(
            "acme_issuer issuer {{\n    uri {};\n{contact}    state_path {}/certificates;\n    accept_terms_of_service;\n}}\n\
             server {{\n{listens}    server_name {};\n    access_log off;\n    return 301 https://$host$request_uri;\n}}\n",
            word(directory),
            self.state.display(),
            self.names.join(" "),
        )
    }

    /// The lines of the site's server about where it listens.
    fn listen_lines(&self) -> String {
        let plain = self.listens.plain.iter().filter(|_| !matches!(self.tls, Tls::Issued { .. }));
        let mut lines: Vec<_> = plain.map(|it| format!("listen {it};")).collect();
        if *self.tls == Tls::None {
            return lines.join("\n");
        }
        for address in &self.listens.secure {
            lines.push(format!("listen {address} ssl;"));
            lines.push(format!("listen {address} quic reuseport;"));
        }
        lines.push("http2 on;".to_owned());
        let port =
            self.listens.secure.first().map_or("443", |it| it.rsplit(':').next().unwrap_or("443"));
        lines.push(format!("add_header Alt-Svc 'h3=\":{port}\"; ma=86400';"));
        lines.extend(match self.tls {
            Tls::Own(folder) => {
                let file = |name: &str| word(&folder.join(name).display().to_string());
                vec![
                    format!("ssl_certificate {};", file("site.crt")),
                    format!("ssl_certificate_key {};", file("site.key")),
                ]
            }
            _ => vec![
                "acme_certificate issuer;".to_owned(),
                "ssl_certificate $acme_certificate;".to_owned(),
                "ssl_certificate_key $acme_certificate_key;".to_owned(),
            ],
        });
        lines.push("ssl_session_cache shared:tls:10m;".to_owned());
        lines.join("\n")
    }

    /// `nginx.conf`
    pub(super) fn server(&self) -> String {
        let name = self.found.application.name;
        let what = format!("{name} in {}", self.folder.display());
        let user = self.worker.map(|it| format!("user {} {};", word(&it.user), word(&it.group)));
        let names = match self.names {
            [] => String::new(),
            names => format!("        server_name {};\n", names.join(" ")),
        };
        // A path that is no file goes to the front script, if there is one.
        let has_front = self.found.root.join("index.php").is_file();
        let fallback = if has_front { "/index.php?$query_string" } else { "=404" };
        let rules = self.found.application.rules.replace("$fallback", fallback);
        let state = self.state.display().to_string();
        let mut text = FRAME.to_owned();
        for (mark, value) in [
            ("@WHAT@", what),
            ("@CORES@", self.cores.to_string()),
            ("@FILES@", self.sizes.files.to_string()),
            ("@CONNECTIONS@", self.sizes.connections.to_string()),
            ("@STATE@", state),
            ("@SOCKETS@", self.sockets.display().to_string()),
            ("@USER@\n", user.map_or_else(String::new, |line| line + "\n")),
            ("@LOG@", if self.is_json { "json".to_owned() } else { "people".to_owned() }),
            ("@UPLOAD@", format!("{UPLOAD_MB}m")),
            ("@OTHERS@\n", indented(&self.others_lines(), 4) + "\n"),
            ("@PHP@", indented(&self.php_lines(), 4)),
            ("@ISSUER@\n", indented(&self.issuer_lines(), 4)),
            ("@LISTEN@", indented(&self.listen_lines(), 8)),
            ("@NAMES@\n", names),
            ("@ROOT@", word(&self.found.root.display().to_string())),
            ("@OWN@", indented(&self.own_lines(), 8)),
            ("@RULES@", indented(&rules, 8)),
        ] {
            text = text.replace(mark, &value);
        }
        text
    }

    /// `php-fpm.conf`, for a pool of the site's own.
    pub(super) fn pool(&self) -> Option<String> {
        let Some(Php::Own { .. }) = self.php else { return None };
        let socket = self.sockets.join(PHP_SOCKET);
        let mut out = format!(
            "[global]\nerror_log = /proc/self/fd/2\nlog_level = warning\nprocess_control_timeout = {REQUEST_ENDS_WITHIN}\ndaemonize = no\n\n[site]\nlisten = {socket}\nlisten.mode = 0600\nlisten.backlog = 511\n",
            socket = socket.display()
        );
        if let Some(Worker { user, group }) = self.worker {
            let _ = write!(
                out,
                "user = {user}\ngroup = {group}\nlisten.owner = {user}\nlisten.group = {group}\n"
            );
        }
        let children = self.sizes.children;
        let spare = children.min(self.cores * 2).max(1);
        let _ = write!(
            out,
            "pm = dynamic\npm.max_children = {children}\npm.start_servers = {start}\npm.min_spare_servers = 1\npm.max_spare_servers = {spare}\npm.max_requests = 500\n\
             catch_workers_output = yes\ndecorate_workers_output = no\nclear_env = no\n\
             php_admin_value[upload_max_filesize] = {UPLOAD_MB}M\nphp_admin_value[post_max_size] = {UPLOAD_MB}M\nphp_admin_value[realpath_cache_size] = 4M\n\
             php_admin_flag[log_errors] = on\n",
            start = spare.min(2),
        );
        if self.is_watched {
            out += "php_admin_value[opcache.revalidate_freq] = 0\n";
        }
        Some(out)
    }

    /// All files by name.
    pub(super) fn files(&self) -> Vec<(&'static str, String)> {
        let mut files = vec![("nginx.conf", self.server())];
        files.extend(self.pool().map(|text| ("php-fpm.conf", text)));
        files.extend(self.page_cache().map(|text| ("page-cache.conf", text)));
        files.extend(COMMON.iter().map(|(name, text)| (*name, (*text).to_owned())));
        files
    }
}

/// How long pages of an application are kept, by what was asked for.
pub(super) fn pages(asked: Option<&str>, pages: Pages) -> Option<&str> {
    match (asked, pages) {
        (_, Pages::Files) | (Some("off"), _) | (None, Pages::Asked) => None,
        (Some(time), _) => Some(time),
        (None, Pages::Kept(time)) => Some(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_they_have_to_be() {
        assert_eq!(word("/var/www/shop-1"), "/var/www/shop-1");
        assert_eq!(word("/home/Ann's \"site\";"), "\"/home/Ann's \\\"site\\\";\"");
        assert_eq!(word(""), "\"\"");
    }

    #[test]
    fn what_is_asked_for_goes_before_what_is_known() {
        assert_eq!(pages(None, Pages::Kept("10m")), Some("10m"));
        assert_eq!(pages(Some("off"), Pages::Kept("10m")), None);
        assert_eq!(pages(None, Pages::Asked), None);
        assert_eq!(pages(Some("30s"), Pages::Asked), Some("30s"));
        assert_eq!(pages(Some("30s"), Pages::Files), None);
    }
}
