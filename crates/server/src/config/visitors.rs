//! Finding: a page cache that mixes the pages of known visitors with everyone's.
//!
//! What a configuration does with a cookie is spread over `map`, `set`, `if`, several locations and regular expressions. So it
//! is not read but tried: requests with the cookies that the application tells visitors by ([`applications`]), and with
//! `Authorization`, run through the phases as far as the gateway, dry. Where responses that set cookies are stored, it is tried
//! with a cookie of an application that none knows.

use super::applications::{self, Cookie, Served};
use super::scope::{Finding, Scope, any_word, each_server, is_silenced};
use crate::control::explain;
use crate::handlers;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_cache::{Key, Zone};
use yorozu_conf::{Directive, Position, Tree};
use yorozu_gateway::cache::directives::IgnoreHeaders;
use yorozu_gateway::cache::{key, settings};
use yorozu_gateway::protocol;
use yorozu_kernel::config::servers::{LocationId, LocationSet, ServerId};
use yorozu_kernel::config::types::Templates;
use yorozu_kernel::exchange::Role;
use yorozu_kernel::exchange::conf::{Config, LocationConf, WorkerConf};
use yorozu_kernel::exchange::outcome::Progress;
use yorozu_kernel::find_config;

/// A session of an application that none knows.
const UNHEARD: Visitor = Visitor::Cookie(Cookie("session_of_any_application"));
const AUTHORIZATION: &str = "the header \"Authorization\"";
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
        let used = with_maps(scope.lines, scope.outer.map_or(&[], |http| http.lines));
        let Served { applications, is_certain } = applications::of(scope, &used);
        let mut visitors: Vec<Visitor> = Vec::new();
        for cookie in applications.iter().flat_map(|it| &it.cookies) {
            let visitor = Visitor::Cookie(*cookie);
            if !visitors.contains(&visitor) {
                visitors.push(visitor);
            }
        }
        if !applications.is_empty() {
            visitors.push(Visitor::Authorized);
        }
        let server = ServerId(u32::try_from(number).expect("few servers"));
        let stores_cookies = |location: &LocationConf| {
            let gateway = settings::of(location);
            gateway.is_some_and(|it| it.ignore_headers.contains(IgnoreHeaders::SET_COOKIE))
        };
        let is_tried = |location: &LocationConf| {
            stores_cookies(location) || own_rules(config, location.id).next().is_some()
        };
        if visitors.is_empty() && !config.locations_of(server).iter().any(is_tried) {
            return;
        }
        for mixed in (Trial { conf: &conf, server, visitors, is_certain }).mixed() {
            mixed.tell(scope, &mut found);
        }
    });
    found.retain(|finding| !is_silenced(tree, &finding.at));
    found
}

/// A server's lines, what holds for every cache, and the maps whose variables they use, directly or by way of other
/// maps.
fn with_maps<'a>(server: &'a [Directive], http: &'a [Directive]) -> Vec<&'a [Directive]> {
    let is_map = |line: &&Directive| &line.name[..] == b"map" && line.args.len() == 2;
    let mut maps: Vec<_> = http.iter().filter(is_map).collect();
    let is_of_caches = |line: &&Directive| settings::is_condition(&line.name);
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

fn contains(word: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(&word.to_ascii_lowercase(), &part.to_ascii_lowercase()).is_some()
}

/// Someone who may get pages of their own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Visitor {
    Cookie(Cookie),
    /// With a name and a password, or a token.
    Authorized,
}

impl Visitor {
    /// The lines of the visitor's requests.
    fn fields(self) -> String {
        match self {
            Self::Cookie(cookie) => format!("Cookie: {}\r\n", cookie.example()),
            Self::Authorized => "Authorization: Basic dTpw\r\n".to_owned(),
        }
    }
}

/// What happens to a request at the gateway it comes to.
struct Outcome {
    location: LocationId,
    at: Position,
    family: &'static str,
    zone: Arc<Zone>,
    key: Key,
    is_bypassed: bool,
    is_refused: bool,
    /// Whether responses are stored that set cookies.
    stores_cookies: bool,
}

/// The server whose behaviour is tried.
struct Trial<'a> {
    conf: &'a Rc<WorkerConf>,
    server: ServerId,
    visitors: Vec<Visitor>,
    /// Whether there are no others.
    is_certain: bool,
}

/// A location that mixes pages, and the visitors whose pages it mixes.
struct Mixed {
    at: Position,
    family: &'static str,
    /// Who gets stored pages.
    shown: Vec<Visitor>,
    /// Whose pages are stored.
    stored: Vec<Visitor>,
    /// Whether these may be those that an application sets a cookie for.
    stores_cookies: bool,
    /// Whether a cookie of the configuration's own leads past the cache, and what is fetched then is stored.
    stores_bypassed: bool,
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
    fn ask(&self, url: &str, fields: &str) -> Option<Outcome> {
        let head = explain::head(url, "GET", fields).ok()?;
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
        // What is shared is so by the application's word.
        let wants_shared = gateway.wants_shared(&mut asked);
        let mut is_any =
            |values: &Templates| values.0.iter().any(|value| value.is_true(&mut asked));
        let is_bypassed = wants_shared || is_any(&gateway.cache_bypass);
        let is_refused = wants_shared || is_any(&gateway.no_cache);
        Some(Outcome {
            location: location.id,
            at: location.at.clone(),
            family: family.prefix,
            zone,
            key,
            is_bypassed,
            is_refused,
            stores_cookies: gateway.ignore_headers.contains(IgnoreHeaders::SET_COOKIE),
        })
    }

    /// What is the same for each visitor, and should not be.
    fn compare(&self, url: &str, public: &Outcome) -> Option<Mixed> {
        let (mut shown, mut stored) = (Vec::new(), Vec::new());
        for visitor in &self.visitors {
            let Some(own) = self.ask(url, &visitor.fields()) else { continue };
            // What is never stored cannot be shown either, and the other way round.
            if own.is_shown(public) {
                shown.push(*visitor);
            }
            // What is asked for with a password is stored only where the response says that it is for all.
            if own.is_stored(public) && *visitor != Visitor::Authorized {
                stored.push(*visitor);
            }
        }
        let is_of_any = || {
            let own = self.ask(url, &UNHEARD.fields());
            !self.is_certain && own.is_some_and(|own| own.is_stored(public))
        };
        let stores_cookies = public.stores_cookies && (!stored.is_empty() || is_of_any());
        // Of those of the application more is said.
        let is_known = |name: &str| {
            let is_it = |it: &Visitor| matches!(it, Visitor::Cookie(Cookie(known)) if known.eq_ignore_ascii_case(name));
            self.visitors.iter().any(is_it)
        };
        let own_rules = own_rules(self.conf, public.location);
        let stores_bypassed = own_rules.filter(|name| !is_known(name)).any(|name| {
            let own = self.ask(url, &format!("Cookie: {name}=1\r\n"));
            own.is_some_and(|own| own.is_bypassed && own.is_stored(public))
        });
        let is_any = !shown.is_empty() || !stored.is_empty() || stores_cookies || stores_bypassed;
        let (at, family) = (public.at.clone(), public.family);
        is_any.then_some(Mixed { at, family, shown, stored, stores_cookies, stores_bypassed })
    }
}

/// The cookies that rules of a location's cache name.
fn own_rules(config: &Config, location: LocationId) -> impl Iterator<Item = &str> {
    let reads = config.reads_of(location).into_iter();
    let names = reads.flat_map(|reads| reads.conditions.iter());
    names.filter_map(|name| name.strip_prefix("cookie_"))
}

impl Outcome {
    fn is_apart(&self, public: &Self) -> bool {
        !Arc::ptr_eq(&self.zone, &public.zone) || self.key != public.key
    }

    /// Whether this visitor gets what was stored for `public` ones.
    fn is_shown(&self, public: &Self) -> bool {
        !self.is_apart(public) && !self.is_bypassed && !public.is_refused
    }

    /// Whether `public` visitors get what was stored for this one.
    fn is_stored(&self, public: &Self) -> bool {
        !self.is_apart(public) && !self.is_refused && !public.is_bypassed
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
            self.shown.iter().filter(|it| self.stored.contains(it)).copied().collect();
        let only = |visitors: &[Visitor]| -> Vec<_> {
            visitors.iter().filter(|visitor| !both.contains(visitor)).copied().collect()
        };
        let (shown, stored) = (only(&self.shown), only(&self.stored));
        let mut add = |is_one: bool, at: Position, text: String| {
            let finding = Finding { text, at };
            if is_one && !found.contains(&finding) {
                found.push(finding);
            }
        };
        add(
            !both.is_empty(),
            line(&[&refusal, &bypass, &zone]),
            format!(
                "visitors with {} share stored pages with everyone, in both directions: make \"{bypass}\" and \"{refusal}\" apply to them, as presets/visitor.conf does",
                listed(&both)
            ),
        );
        add(
            !stored.is_empty(),
            line(&[&refusal, &bypass]),
            format!(
                "what visitors with {} get is stored and served to everyone: make \"{refusal}\" apply to them",
                listed(&stored)
            ),
        );
        add(
            !shown.is_empty(),
            line(&[&bypass, &refusal]),
            format!(
                "visitors with {} are served everyone's stored pages: make \"{bypass}\" apply to them",
                listed(&shown)
            ),
        );
        if self.stores_cookies {
            let at = line(&[&name("ignore_headers")]);
            add(true, at, super::findings::stored_with_cookies(self.family));
        }
        if self.stores_bypassed {
            add(true, line(&[&bypass]), super::findings::stored_of_bypassed(self.family));
        }
    }
}

/// `the cookies "a", "b"`, `the header "Authorization"`
fn listed(visitors: &[Visitor]) -> String {
    let cookies: Vec<_> = (visitors.iter())
        .filter_map(|visitor| match visitor {
            Visitor::Cookie(Cookie(name)) => Some(format!("\"{name}\"")),
            Visitor::Authorized => None,
        })
        .collect();
    let word = if cookies.len() == 1 { "cookie" } else { "cookies" };
    let cookies = (!cookies.is_empty()).then(|| format!("the {word} {}", cookies.join(", ")));
    let header = visitors.contains(&Visitor::Authorized).then(|| AUTHORIZATION.to_owned());
    [cookies, header].into_iter().flatten().collect::<Vec<_>>().join(" or ")
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

    /// As [`all_found`], without what is said of `Authorization` alone.
    fn found(http: &str, server: &str) -> Vec<String> {
        let mut found = all_found(http, server);
        found.retain(|text| !text.contains(&format!("visitors with {AUTHORIZATION}")));
        found
    }

    /// What is found in the lines of a server, behind those of `http`, with zones `z` and `y`.
    fn all_found(http: &str, server: &str) -> Vec<String> {
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

    const ALL: &str = "wordpress_logged_in_|wp-postpass_|comment_author_|woocommerce_|wp_woocommerce_session_|edd_|PHPSESSID";

    #[test]
    fn every_way_to_leave_known_visitors_out_is_understood() {
        let map = format!("map $http_cookie $own {{ default 0; \"~(^|; )({ALL})\" 1; }}");
        let both = "fastcgi_cache_bypass $own; fastcgi_no_cache $own;";
        let set = format!("set $own 0; if ($http_cookie ~ ({ALL})) {{ set $own 1; }}");
        let each = "$cookie_PHPSESSID $cookie_woocommerce_items_in_cart $cookie_woocommerce_recently_viewed $cookie_wp_woocommerce_session_0123456789abcdef0123456789abcdef $own";
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
            ("", site("", "").replace("wp-config.php", "config.php")),
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
        let all = ALL
            .replace("|woocommerce_|", "|woocommerce_items_in_cart|woocommerce_recently_viewed|");
        for name in all.split('|') {
            let rest: Vec<_> = all.split('|').filter(|other| *other != name).collect();
            let rest = rest.join("|");
            let map = format!("map $http_cookie $own {{ default 0; \"~(^|; )({rest})\" 1; }}");
            let server = site("", "\nfastcgi_cache_bypass $own;\nfastcgi_no_cache $own;");
            let found = found(&map, &server);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].starts_with("3: visitors with the cookie"), "{name}: {found:?}");
            assert!(found[0].contains(&format!("\"{name}")), "{name}: {found:?}");
            let is_login = name == "wordpress_logged_in_";
            assert_eq!(found[0].matches("_in_*\"").count(), usize::from(is_login));
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
    fn what_stands_in_the_folder_says_which_cookies_count() {
        let folder = std::env::temp_dir().join(format!("yorozu-visitors.{}", std::process::id()));
        let public = folder.join("public");
        std::fs::create_dir_all(&public).unwrap();
        let server = site("", "").replace("wp-config", "config");
        let server = server.replace("/srv/none", &public.display().to_string());
        assert_eq!(all_found("", &server), Vec::<String>::new());
        for (file, named, others) in [
            ("public/wp-load.php", &["wordpress_logged_in_*", "PHPSESSID"][..], "woocommerce"),
            ("public/wp-content/plugins/woocommerce", &["woocommerce_items_in_cart"], "edd_"),
            ("public/bl-kernel", &["BLUDIT-KEY"], "wordpress"),
            // The folder above the root is looked into as well.
            ("artisan", &["*_session"], "BLUDIT"),
        ] {
            let path = folder.join(file);
            std::fs::create_dir_all(&path).unwrap();
            let said = all_found("", &server).join("\n");
            assert!(named.iter().all(|name| said.contains(&format!("\"{name}\""))), "{said}");
            assert!(said.contains(AUTHORIZATION) && !said.contains(others), "{said}");
            if !file.ends_with("load.php") {
                std::fs::remove_dir_all(public.join("wp-load.php")).ok();
                std::fs::remove_dir_all(&path).unwrap();
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn cookies_that_responses_set_are_kept_apart_whatever_they_are_called() {
        let said = |http: &str, lines: &str| {
            let server = site("", &format!("\nfastcgi_ignore_headers Set-Cookie;{lines}"));
            all_found(http, &server.replace("wp-config", "config")).join("\n")
        };
        let rule =
            |names: &str| format!("map $http_cookie $own {{ default 0; \"~(^|; )({names})\" 1; }}");
        let both = "fastcgi_cache_bypass $own; fastcgi_no_cache $own;";
        // A list of names that are known says nothing of the application's.
        for names in ["PHPSESSID", "wordpress_|laravel_session|BLUDIT-KEY"] {
            let said = said(&rule(names), both);
            assert!(said.contains("2: responses that set cookies are stored"), "{names}: {said}");
        }
        assert_eq!(said(&rule("."), both), "");
        assert_eq!(
            said("", "fastcgi_no_cache $http_cookie; fastcgi_cache_bypass $http_cookie;"),
            ""
        );
        // Known by its words, and each of its cookies is left out.
        let server = site("", &format!("fastcgi_ignore_headers Set-Cookie; {both}"));
        assert_eq!(found(&rule(ALL), &server), Vec::<String>::new());
    }

    #[test]
    fn a_cookie_that_leads_past_the_cache_keeps_its_page_out_of_it() {
        let said = |lines: &str| {
            let server = site("", &format!("\n{lines}")).replace("wp-config", "config");
            all_found("", &server).join("\n")
        };
        let both = "fastcgi_cache_bypass $cookie_shop $arg_new; fastcgi_no_cache";
        assert!(
            said(&format!("{both} $cookie_other;"))
                .starts_with("2: responses to visitors who bypass")
        );
        assert_eq!(said(&format!("{both} $cookie_shop;")), "");
        assert_eq!(said(&format!("{both} $http_cookie;")), "");
    }

    #[test]
    fn a_password_in_the_request_is_for_pages_of_its_own() {
        let map = format!("map $http_cookie $own {{ default 0; \"~{ALL}\" 1; }}");
        let lines = |more| format!("\nfastcgi_cache_bypass $own{more}; fastcgi_no_cache $own;");
        let said = all_found(&map, &site("", &lines(""))).join("\n");
        assert!(
            said.starts_with("2: visitors with the header \"Authorization\" are served"),
            "{said}"
        );
        for more in [" $http_authorization", " $remote_user"] {
            assert_eq!(all_found(&map, &site("", &lines(more))), Vec::<String>::new(), "{more}");
        }
    }
}
