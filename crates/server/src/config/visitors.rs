//! Finding: a page cache in front of WordPress that mixes the pages of known visitors with everybody's.
//!
//! What a configuration does with a cookie is spread over `map`, `set`, `if`, several locations and
//! regular expressions. So it is not read but tried: requests with the cookies that WordPress,
//! WooCommerce and PHP tell visitors by run through the phases as far as the gateway, dry.

use super::scope::{Finding, Scope, each_server, is_silenced, mentions_cookies};
use crate::control::explain;
use crate::handlers;
use memchr::memmem::Finder;
use std::collections::HashSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use yorozu_cache::{Key, Zone};
use yorozu_conf::{Directive, Position, Tree};
use yorozu_gateway::cache::{key, settings};
use yorozu_gateway::protocol;
use yorozu_kernel::config::servers::{LocationSet, ServerId};
use yorozu_kernel::exchange::Role;
use yorozu_kernel::exchange::conf::{Config, LocationConf, WorkerConf};
use yorozu_kernel::exchange::outcome::Progress;
use yorozu_kernel::find_config;

/// How a cookie begins, and what browsers send. The cookie of wp-admin never comes alone.
const COOKIES: [(&str, &str); 8] = [
    ("wordpress_logged_in_", "wordpress_logged_in_0123456789abcdef0123456789abcdef=admin%7C1%7Ca"),
    (
        "wordpress_sec_",
        "wordpress_sec_0123456789abcdef0123456789abcdef=admin%7C1%7Ca; wordpress_logged_in_0123456789abcdef0123456789abcdef=admin%7C1%7Ca",
    ),
    ("wp-postpass_", "wp-postpass_0123456789abcdef0123456789abcdef=%24P%24Ba"),
    ("comment_author_", "comment_author_0123456789abcdef0123456789abcdef=Visitor"),
    ("woocommerce_items_in_cart", "woocommerce_items_in_cart=1"),
    ("woocommerce_cart_hash", "woocommerce_cart_hash=0123456789abcdef0123456789abcdef"),
    (
        "wp_woocommerce_session_",
        "wp_woocommerce_session_0123456789abcdef0123456789abcdef=t_1%7C%7C2%7C%7C3",
    ),
    ("PHPSESSID", "PHPSESSID=0123456789abcdef0123456789"),
];
/// Words that tell a configuration for WordPress, beside names that begin with `wp-`.
const SIGNS: [&[u8]; 3] = [b"wordpress", b"woocommerce", b"comment_author"];
/// Files that tell its folder.
const FILES: [&str; 2] = ["wp-load.php", "wp-settings.php"];
/// Addresses that are tried in each server, beside those of its locations.
const PATHS: [&str; 6] =
    ["/a-page/", "/", "/index.php", "/2026/11/a-page/", "/feed/", "/wp-json/wp/v2/posts"];
/// Locations of a server whose addresses are tried; chosen.
const LOCATIONS_MAX: usize = 200;

/// The findings about what a configuration does, beside those about its text.
pub(super) fn of(tree: &Tree, config: &Arc<Config>) -> Vec<Finding> {
    // Nothing is stored: no pages are mixed.
    if config.zones.is_empty() {
        return Vec::new();
    }
    let conf = Rc::new(WorkerConf::new(Arc::clone(config), || {}));
    let mut found = Vec::new();
    each_server(tree, |number, scope| {
        if !is_wordpress(scope.lines, scope.outer.map_or(&[], |http| http.lines)) {
            return;
        }
        let id = ServerId(u32::try_from(number).expect("few servers"));
        for mixed in (Trial { conf: &conf, server: id }).mixed() {
            mixed.tell(scope, &mut found);
        }
    });
    found.retain(|finding| !is_silenced(tree, &finding.at));
    found
}

/// Whether a server's lines, the maps it uses, or its folder show a WordPress. Other programs use `index.php` in the same
/// way: that counts only if no cookie is looked at.
fn is_wordpress(server: &[Directive], http: &[Directive]) -> bool {
    let is_folder = |line: &Directive| {
        let folder = String::from_utf8_lossy(line.args.first().map_or(&b""[..], |word| word));
        &line.name[..] == b"root"
            && FILES.iter().any(|file| Path::new(&*folder).join(file).exists())
    };
    let used = with_maps(server, http);
    let has = |is_meant: &dyn Fn(&[u8]) -> bool| used.iter().any(|lines| any_word(lines, is_meant));
    has(&is_sign)
        || any_line(server, &is_folder)
        || has(&|word| word.ends_with(b"/index.php?$args")) && !has(&mentions_cookies)
}

/// A server's lines, what holds for every cache, and the maps whose variables they use, directly or by way of other
/// maps.
fn with_maps<'a>(server: &'a [Directive], http: &'a [Directive]) -> Vec<&'a [Directive]> {
    let is_map = |line: &&Directive| &line.name[..] == b"map" && line.args.len() == 2;
    let mut maps: Vec<_> = http.iter().filter(is_map).collect();
    let is_of_caches = |line: &&Directive| {
        line.name.ends_with(b"_cache_bypass") || line.name.ends_with(b"_no_cache")
    };
    let mut used = vec![server];
    used.extend(http.iter().filter(is_of_caches).map(std::slice::from_ref));
    let mut at = 0;
    while let Some(lines) = used.get(at).copied() {
        let is_used = |map: &&Directive| {
            // Most words of a long map name no variable.
            any_word(lines, &|word| word.contains(&b'$') && contains(word, &map.args[1]))
        };
        let (now, later): (Vec<_>, Vec<_>) = maps.into_iter().partition(is_used);
        used.extend(now.into_iter().map(std::slice::from_ref));
        maps = later;
        at += 1;
    }
    used
}

fn is_sign(word: &[u8]) -> bool {
    let is_name = |at: usize| at == 0 || !word[at - 1].is_ascii_alphanumeric();
    static FINDERS: LazyLock<Vec<Finder<'_>>> =
        LazyLock::new(|| SIGNS.iter().map(|sign| Finder::new(*sign)).collect());
    let lower = word.to_ascii_lowercase();
    FINDERS.iter().any(|sign| sign.find(&lower).is_some())
        || memchr::memmem::find_iter(word, b"wp-").any(is_name)
}

fn contains(word: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(&word.to_ascii_lowercase(), &part.to_ascii_lowercase()).is_some()
}

fn any_line(lines: &[Directive], is_meant: &dyn Fn(&Directive) -> bool) -> bool {
    lines.iter().any(|line| {
        is_meant(line) || line.block.as_ref().is_some_and(|block| any_line(block, is_meant))
    })
}

fn any_word(lines: &[Directive], is_meant: &dyn Fn(&[u8]) -> bool) -> bool {
    any_line(lines, &|line| is_meant(&line.name) || line.args.iter().any(|word| is_meant(word)))
}

/// What happens to a request at the gateway it comes to.
struct Outcome {
    at: Position,
    family: &'static str,
    zone: Arc<Zone>,
    key: Key,
    is_bypassed: bool,
    is_refused: bool,
}

/// The server whose behaviour is tried.
struct Trial<'a> {
    conf: &'a Rc<WorkerConf>,
    server: ServerId,
}

/// A location that mixes pages, and the visitors whose pages it mixes.
struct Mixed {
    at: Position,
    family: &'static str,
    /// Cookies whose visitors get stored pages.
    shown: Vec<&'static str>,
    /// Cookies whose visitors' pages are stored.
    stored: Vec<&'static str>,
}

impl Trial<'_> {
    fn mixed(&self) -> Vec<Mixed> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        for scheme in self.schemes() {
            for path in self.paths() {
                let url = format!("{scheme}://{}{path}", self.host());
                let Some(public) = self.ask(&url, "") else { continue };
                // Nothing is stored: there is nothing to mix.
                if public.is_bypassed && public.is_refused {
                    continue;
                }
                if !seen.insert((scheme, public.at.file.clone(), public.at.line)) {
                    continue;
                }
                found.extend(self.compare(&url, &public));
            }
        }
        found
    }

    /// Those of the sockets that are public.
    fn schemes(&self) -> Vec<&'static str> {
        let has = |is_tls| self.conf.sockets.iter().any(|socket| socket.is_tls == is_tls);
        [("http", false), ("https", true)]
            .into_iter()
            .filter_map(|(scheme, is_tls)| has(is_tls).then_some(scheme))
            .collect()
    }

    fn host(&self) -> String {
        let name = self.conf.server(self.server).name().replace('*', "www");
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if name.is_empty() || !name.bytes().all(is_plain) { "localhost".into() } else { name }
    }

    fn paths(&self) -> Vec<String> {
        let mut paths: Vec<_> = PATHS.map(str::to_owned).into();
        self.paths_of(&self.conf.server(self.server).locations, &mut paths);
        paths
    }

    /// The addresses of locations, and one below each.
    fn paths_of(&self, locations: &LocationSet, paths: &mut Vec<String>) {
        for id in locations.exact.values().chain(locations.prefixes.values()) {
            let location = self.conf.location(*id);
            let path = String::from_utf8_lossy(&location.name).into_owned();
            if path.starts_with('/') && paths.len() < LOCATIONS_MAX {
                if !location.is_exact {
                    let slash = if path.ends_with('/') { "" } else { "/" };
                    paths.push(format!("{path}{slash}a-page/"));
                }
                paths.push(path);
            }
            self.paths_of(&location.locations, paths);
        }
    }

    /// `None`: the request comes to no gateway that stores.
    fn ask(&self, url: &str, cookie: &str) -> Option<Outcome> {
        let fields =
            if cookie.is_empty() { String::new() } else { format!("Cookie: {cookie}\r\n") };
        let head = explain::head(url, "GET", &fields).ok()?;
        let mut asked = explain::asked(self.conf, head.as_bytes()).ok()?;
        find_config::begin(&mut asked).ok()?;
        asked.server = self.server;
        asked.location = self.conf.server(self.server).conf;
        asked.role = Role::Question { supposes_scripts: true };
        let Progress::Wait(_) = handlers::start(&mut asked) else { return None };
        let location: &LocationConf = self.conf.location(asked.location);
        let family = protocol::of(location)?.family();
        let gateway = settings::with_prefix(location, family);
        if !gateway.cache_methods.admits(b"GET") {
            return None;
        }
        let zone = key::zone(&mut asked, gateway).ok()??;
        let key = key::primary(&mut asked, gateway);
        let is_bypassed = gateway.cache_bypass.0.iter().any(|value| value.is_true(&mut asked));
        let is_refused = gateway.no_cache.0.iter().any(|value| value.is_true(&mut asked));
        Some(Outcome {
            at: location.at.clone(),
            family: family.prefix,
            zone,
            key,
            is_bypassed,
            is_refused,
        })
    }

    /// What is different with each cookie, and should be.
    fn compare(&self, url: &str, public: &Outcome) -> Option<Mixed> {
        let (mut shown, mut stored) = (Vec::new(), Vec::new());
        for (name, cookie) in COOKIES {
            let Some(own) = self.ask(url, cookie) else { continue };
            let is_apart = !Arc::ptr_eq(&own.zone, &public.zone) || own.key != public.key;
            // What is never stored cannot be shown either, and the other way round.
            if !is_apart && !own.is_bypassed && !public.is_refused {
                shown.push(name);
            }
            if !is_apart && !own.is_refused && !public.is_bypassed {
                stored.push(name);
            }
        }
        let is_any = !shown.is_empty() || !stored.is_empty();
        let (at, family) = (public.at.clone(), public.family);
        is_any.then_some(Mixed { at, family, shown, stored })
    }
}

impl Mixed {
    /// Puts it into words, at the lines that decide it.
    fn tell(&self, scope: &Scope<'_, '_>, found: &mut Vec<Finding>) {
        let name = |name: &str| format!("{}_{name}", self.family);
        let (bypass, refusal) = (name("cache_bypass"), name("no_cache"));
        let line = |names: &[&str]| {
            let lines = |scope: &Scope<'_, '_>| {
                let mut lines = names.iter().filter_map(|name| scope.find(name).last().copied());
                lines.next().map(|line| line.at.clone())
            };
            let at = within(scope, &self.at, self.family, &lines);
            let at = at.unwrap_or_else(|| lines(scope));
            at.unwrap_or_else(|| self.at.clone())
        };
        let zone = name("cache");
        let both: Vec<_> =
            self.shown.iter().filter(|name| self.stored.contains(name)).copied().collect();
        let only = |names: &[&'static str]| -> Vec<_> {
            names.iter().filter(|name| !both.contains(name)).copied().collect()
        };
        let (shown, stored) = (only(&self.shown), only(&self.stored));
        let mut add = |cookies: &[&str], at: Position, text: String| {
            let finding = Finding { text, at };
            if !cookies.is_empty() && !found.contains(&finding) {
                found.push(finding);
            }
        };
        add(
            &both,
            line(&[&refusal, &bypass, &zone]),
            format!(
                "visitors with {} share stored pages with everyone, in both directions: make \"{bypass}\" and \"{refusal}\" apply to them, as presets/visitor.conf does",
                listed(&both)
            ),
        );
        add(
            &stored,
            line(&[&refusal, &bypass]),
            format!(
                "what visitors with {} get is stored and served to everyone: make \"{refusal}\" apply to them",
                listed(&stored)
            ),
        );
        add(
            &shown,
            line(&[&bypass, &refusal]),
            format!(
                "visitors with {} are served everyone's stored pages: make \"{bypass}\" apply to them",
                listed(&shown)
            ),
        );
    }
}

/// `the cookies "a", "b"`
fn listed(cookies: &[&str]) -> String {
    let word = if cookies.len() == 1 { "cookie" } else { "cookies" };
    format!("the {word} \"{}\"", cookies.join("\", \""))
}

/// Looks, from the block that begins at `at`, outwards: of several on one line, from one that asks a
/// gateway.
fn within<'a, T>(
    scope: &Scope<'a, '_>,
    at: &Position,
    family: &str,
    look: &dyn Fn(&Scope<'a, '_>) -> T,
) -> Option<T> {
    let pass = format!("{family}_pass");
    let inner = |line: &'a Directive| -> Option<T> {
        let inner = Scope::new(Some(scope), line.block.as_deref()?);
        if line.at == *at && !inner.own(&pass).is_empty() {
            return Some(look(&inner));
        }
        within(&inner, at, family, look)
    };
    scope.lines.iter().find_map(inner)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files of a test")]
mod tests {
    use super::*;
    use crate::testing;

    /// What is found in the lines of a server, behind those of `http`, with zones `z` and `y`.
    fn found(http: &str, server: &str) -> Vec<String> {
        let text = format!(
            "http {{ fastcgi_cache_path cache/z keys_zone=z:1m; fastcgi_cache_path cache/y keys_zone=y:1m; {http} server {{ listen 127.0.0.1:8999; {server} }} }}"
        );
        let loaded = testing::try_load(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let found = of(&loaded.tree, &Arc::new(loaded.config));
        found.iter().map(|finding| format!("{}: {}", finding.at.line, finding.text)).collect()
    }

    /// The locations of a site, with what is said where PHP's answers are stored.
    fn site(before: &str, inside: &str) -> String {
        format!(
            "root /srv/none; index index.php; {before} location ~ /wp-config.php {{ deny all; }} location / {{ try_files $uri $uri/ /index.php?$args; }} location ~ \\.php$ {{ if (!-f $document_root$fastcgi_script_name) {{ return 404; }} fastcgi_cache z; fastcgi_cache_key $host$request_uri; fastcgi_pass unix:/php; {inside} }}"
        )
    }

    const ALL: &str = "wordpress_logged_in_|wordpress_sec_|wp-postpass_|comment_author_|woocommerce_|wp_woocommerce_session_|PHPSESSID";

    #[test]
    fn every_way_to_leave_known_visitors_out_is_understood() {
        let map = format!("map $http_cookie $own {{ default 0; \"~(^|; )({ALL})\" 1; }}");
        let both = "fastcgi_cache_bypass $own; fastcgi_no_cache $own;";
        let set = format!("set $own 0; if ($http_cookie ~ ({ALL})) {{ set $own 1; }}");
        let each = "$cookie_PHPSESSID $cookie_woocommerce_items_in_cart $cookie_woocommerce_cart_hash $cookie_wp_woocommerce_session_0123456789abcdef0123456789abcdef $own";
        let direct = format!("fastcgi_cache_bypass {each}; fastcgi_no_cache {each};");
        let named = format!(
            "location @php {{ fastcgi_pass unix:/php; }} {}",
            site(
                "",
                &format!("error_page 418 = @php; if ($http_cookie ~ ({ALL})) {{ return 418; }}")
            )
        );
        let before = format!(
            "error_page 418 = @php; location @php {{ fastcgi_pass unix:/php; }} if ($http_cookie ~ ({ALL})) {{ return 418; }}"
        );
        let zone = format!("map $http_cookie $zone {{ default z; \"~{ALL}\" off; }}");
        let other = format!("map $http_cookie $zone {{ default z; \"~{ALL}\" y; }}");
        let of_zone = site("", "").replace("fastcgi_cache z", "fastcgi_cache $zone");
        for (http, server) in [
            (&map[..], site("", both)),
            (&map, site(both, "")),
            (
                &format!("{map} map \"$own:$http_authorization\" $mine {{ default 1; \"0:\" 0; }}"),
                site("", "fastcgi_cache_bypass $mine; fastcgi_no_cache $mine;"),
            ),
            ("", site(&set, both)),
            ("", site("", &format!("{set} {both}"))),
            (&map, site("", &direct)),
            ("", named),
            ("", site(&before, "")),
            (&zone, of_zone.clone()),
            (&other, of_zone),
            ("", site("", "").replace("$host$request_uri", "$host$request_uri$http_cookie")),
            ("", site("", "fastcgi_no_cache 1; fastcgi_cache_bypass 1;")),
            ("", site("", "fastcgi_cache off;").replace("fastcgi_cache z;", "")),
            // Nothing here is WordPress's.
            (
                "",
                site("", "")
                    .replace("wp-config.php", "config.php")
                    .replace("$args", "$query_string"),
            ),
            (
                "",
                site("", "fastcgi_no_cache $cookie_other;").replace("wp-config.php", "config.php"),
            ),
            ("", site("", "").replace("fastcgi_cache z;", "fastcgi_cache z; # yorozu: intended\n")),
        ] {
            assert_eq!(found(http, &server), Vec::<String>::new(), "{http} {server}");
        }
    }

    #[test]
    fn each_cookie_that_is_left_out_is_named() {
        for (name, _) in COOKIES.iter().filter(|(name, _)| *name != "wordpress_sec_") {
            let rest =
                ALL.replace("|woocommerce_|", "|woocommerce_items_in_cart|woocommerce_cart_hash|");
            let rest: Vec<_> = rest.split('|').filter(|other| other != name).collect();
            let rest = rest.join("|").replace("wordpress_sec_|", "");
            let rest =
                if *name == "wordpress_logged_in_" { rest.replace("wordpress", "x") } else { rest };
            let map = format!("map $http_cookie $own {{ default 0; \"~(^|; )({rest})\" 1; }}");
            let server = site("", "\nfastcgi_cache_bypass $own;\nfastcgi_no_cache $own;");
            let found = found(&map, &server);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].starts_with("3: visitors with the cookie"), "{name}: {found:?}");
            assert!(found[0].contains(&format!("\"{name}\"")), "{name}: {found:?}");
            assert_eq!(
                found[0].matches("_in_\"").count(),
                usize::from(*name == "wordpress_logged_in_")
            );
        }
    }

    #[test]
    fn what_is_wrong_is_reported_where_it_is() {
        let map = format!("map $http_cookie $own {{ default 0; \"~{ALL}\" 1; }}");
        for (http, server, part, line) in [
            // No visitor is left out.
            (
                "",
                site("", "").replace("fastcgi_cache z", "\nfastcgi_cache z"),
                "share stored pages",
                2,
            ),
            (
                "",
                site("", "")
                    .replace("fastcgi_cache z", "\nfastcgi_cache z")
                    .replace("wp-config", "config"),
                "share stored pages",
                2,
            ),
            // Those who are left out are stored, or shown the others' pages.
            (
                &map[..],
                site("", "\nfastcgi_cache_bypass $own;"),
                "is stored and served to everyone",
                2,
            ),
            (&map, site("", "\nfastcgi_no_cache $own;"), "are served everyone's", 2),
            // A condition in a location through which these requests never come.
            (
                &map,
                site("location /other { fastcgi_no_cache $own; }", "\nfastcgi_cache_key $uri;")
                    .replace("fastcgi_cache_key $host$request_uri;", ""),
                "share stored pages",
                1,
            ),
            // Behind another name and in the value it is not a login.
            (
                "map $http_cookie $own { default 0; \"~=wordpress_logged_in_\" 1; }",
                site("", "\nfastcgi_cache_bypass $own;\nfastcgi_no_cache $own;"),
                "wordpress_logged_in_",
                3,
            ),
            // A proxy, as it stands in front of WordPress, and a separate folder.
            (
                "",
                "location /blog/ {\nproxy_cache z; proxy_pass http://127.0.0.1:1/wp-content/; }"
                    .to_owned(),
                "\"proxy_cache_bypass\"",
                2,
            ),
            // Only the pages of one address.
            (
                "",
                site("location = /shop {\nfastcgi_cache y; fastcgi_pass unix:/php; }", "")
                    .replace("fastcgi_cache z;", ""),
                "share stored pages",
                2,
            ),
        ] {
            let found = found(http, &server);
            assert_eq!(found.len(), 1, "{http} {server}: {found:?}");
            let place = format!("{line}: ");
            assert!(found[0].starts_with(&place) && found[0].contains(part), "{server}: {found:?}");
        }
    }

    #[test]
    fn a_folder_with_wordpress_in_it_is_a_sign() {
        let folder = std::env::temp_dir().join(format!("yorozu-visitors.{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let server = site("", "").replace("wp-config", "config").replace("$args", "$query_string");
        let server = server.replace("/srv/none", &folder.display().to_string());
        assert_eq!(found("", &server), Vec::<String>::new());
        std::fs::write(folder.join("wp-load.php"), "").unwrap();
        assert_eq!(found("", &server).len(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
