//! The graph of reads: what each location reads of requests, found in the text of a configuration.
//!
//! A variable of `map`, `split_clients`, `set` or a capture stands for what it is made of, and one that is `set` inside an
//! `if` for what that asks, too; all others are sources. Where the text leaves open which of several lines counts, all do.

use super::scope::{Scope, each_server, inside};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use yorozu_conf::{Directive, Tree};
use yorozu_gateway::cache::{self, settings};
use yorozu_gateway::protocol;
use yorozu_kernel::config::names::is_assignment;
use yorozu_kernel::config::reads::{OfClient, Reads, Sources};
use yorozu_kernel::config::servers::ServerId;
use yorozu_kernel::exchange::conf::{Config, LocationConf};

/// Names of variables, without `$` and in lower case.
type Names = BTreeSet<String>;

/// What each location reads, by its id.
pub(super) fn of(tree: &Tree, config: &Config) -> Vec<Reads> {
    let mut found = vec![Reads::default(); config.locations.len()];
    let mut known = HashSet::new();
    let mut of_http = None;
    each_server(tree, |number, server| {
        let id = ServerId(u32::try_from(number).expect("few servers"));
        let mut places: Places<'_> = HashMap::new();
        let locations = config.locations_of(id);
        let own = config.server(id).conf;
        for location in locations.iter().filter(|location| location.id != own) {
            places
                .entry((Arc::clone(&location.at.file), location.at.line))
                .or_default()
                .push_back(location);
        }
        if locations.iter().any(|location| protocol::of(location).is_some()) {
            let lines = server.outer.map_or(&[][..], |http| http.lines);
            let http = of_http.get_or_insert_with(|| Http::new(lines));
            let server = Server::new(http, server, config);
            server.each_location(places, |location, reads| {
                found[location.id.0 as usize] = reads.noted(&mut known, cache::is_unknown_header);
            });
        }
    });
    found
}

/// As text, for `yorozu -T --reads`: a paragraph for each location whose content is another server's.
pub fn shown(config: &Config) -> String {
    let mut text = String::new();
    for (location, reads) in config.locations.iter().zip(&config.reads) {
        if protocol::of(location).is_none() || location.at.line == 0 {
            continue;
        }
        let name = String::from_utf8_lossy(&location.name);
        let _ = writeln!(text, "location \"{name}\" in {}", location.at);
        for (what, sources) in [
            ("upstream", &reads.told),
            ("refused by", &reads.guards),
            ("key", &reads.key),
            ("bypass, no_cache", &reads.conditions),
            ("logs", &reads.logs),
        ] {
            let _ = writeln!(text, "    {what}: {sources}");
        }
    }
    text
}

/// What the arguments of a directive are for.
#[derive(PartialEq)]
enum Use {
    Key,
    Condition,
    Log,
    /// The response, or whether there is one: nothing that an upstream is told.
    Response,
    /// Where a request goes, or what its upstream is told.
    Told,
}

impl Use {
    fn of(directive: &[u8]) -> Self {
        /// With `set` and blocks like `map`, which count where their variables are used.
        const RESPONSE: [&[u8]; 21] = [
            b"add_header",
            b"add_trailer",
            b"allow",
            b"auth_basic",
            b"auth_request_set",
            b"deny",
            b"error_log",
            b"expires",
            b"geo",
            b"if",
            b"limit_conn_zone",
            b"limit_rate",
            b"limit_req_zone",
            b"map",
            b"more_clear_headers",
            b"more_set_headers",
            b"return",
            b"server_name",
            b"split_clients",
            b"ssl_certificate",
            b"sub_filter",
        ];
        match directive {
            b"access_log" | b"log_format" => Self::Log,
            name if RESPONSE.contains(&name)
                || is_assignment(name)
                || name.ends_with(b"_cache_purge") =>
            {
                Self::Response
            }
            // The zone decides as the key does which page it is.
            name if name.ends_with(b"_cache_key") || name.ends_with(b"_cache") => Self::Key,
            name if settings::is_condition(name) => Self::Condition,
            _ => Self::Told,
        }
    }
}

/// The locations of a server by the places of their blocks; of one line in the order in which they are compiled, a location
/// before those in it, and these before its `if`s.
type Places<'c> = HashMap<(Arc<Path>, u32), VecDeque<&'c LocationConf>>;

/// A line that has an effect where it is.
#[derive(Clone)]
struct Effect<'a> {
    directive: &'a [u8],
    names: Names,
}

impl<'a> Effect<'a> {
    fn of(line: &'a Directive) -> Self {
        Self { directive: &line.name, names: mentioned_in(line) }
    }

    /// Those of the lines of a block that decide what an upstream is told.
    fn all(lines: &'a [Directive]) -> impl Iterator<Item = Self> {
        let is_rule = |name: &[u8]| matches!(name, b"error_page" | b"rewrite" | b"try_files");
        let told = lines.iter().filter(move |line| line.block.is_none() && !is_rule(&line.name));
        told.filter(|line| Use::of(&line.name) == Use::Told)
            .map(Self::of)
            .filter(|effect| !effect.names.is_empty())
    }

    /// Whether it has one where a protocol of this prefix is spoken.
    fn is_for(&self, prefix: &str) -> bool {
        const PREFIXES: [&str; 6] = ["fastcgi", "grpc", "memcached", "proxy", "scgi", "uwsgi"];
        let is_of = |other: &&str| {
            let rest = self.directive.strip_prefix(other.as_bytes());
            rest.is_some_and(|rest| rest.starts_with(b"_"))
        };
        PREFIXES.iter().find(|other| is_of(other)).is_none_or(|other| *other == prefix)
    }
}

/// What variables are made of, each by its name.
#[derive(Default)]
struct Definitions(HashMap<String, Names>);

impl Definitions {
    fn add(&mut self, name: &[u8], of: impl IntoIterator<Item = String>) {
        let name = String::from_utf8_lossy(name.strip_prefix(b"$").unwrap_or(name)).to_lowercase();
        self.0.entry(name).or_default().extend(of);
    }

    /// `map SOURCE $NAME { ROWS }`, and the like.
    fn add_block(&mut self, line: &Directive) {
        let Some((name, subject)) = line.args.split_last() else { return };
        let mut subject: Names = subject.iter().flat_map(|word| mentioned(word)).collect();
        let is_geo = &line.name[..] == b"geo";
        if is_geo && subject.is_empty() {
            subject.insert("remote_addr".to_owned());
        }
        // Values in `geo` hold no variables.
        for row in inside(line).iter().filter(|_| !is_geo) {
            captured(&row.name).for_each(|capture| self.add(capture, subject.clone()));
            self.add(name, mentioned_in(row));
        }
        self.add(name, subject);
    }
}

/// What the http block says for all servers.
struct Http<'a> {
    lines: &'a [Directive],
    definitions: Definitions,
    /// Of `log_format`.
    formats: HashMap<&'a [u8], Names>,
    effects: Vec<Effect<'a>>,
}

impl<'a> Http<'a> {
    fn new(lines: &'a [Directive]) -> Self {
        let mut definitions = Definitions::default();
        let mut formats = HashMap::new();
        let mut effects: Vec<_> = Effect::all(lines).collect();
        for line in lines {
            match (&line.name[..], &line.args[..]) {
                (b"map" | b"split_clients" | b"geo", [.., _]) => definitions.add_block(line),
                (b"log_format", [name, ..]) => _ = formats.insert(&name[..], mentioned_in(line)),
                (b"upstream", _) => effects.extend(Effect::all(inside(line))),
                _ => {}
            }
        }
        Self { lines, definitions, formats, effects }
    }
}

/// One server: what its variables are made of, and the rules that a request may pass on its way to any location.
struct Server<'a, 's, 'c> {
    http: &'s Http<'a>,
    scope: &'s Scope<'a, 's>,
    definitions: Definitions,
    /// What the rules read that lead a request somewhere, in whichever location they are.
    leading: Names,
    /// What those read that refuse one.
    refusing: Names,
    /// The variables that say something of the client itself.
    of_client: Names,
    config: &'c Config,
    has_both_schemes: bool,
}

impl<'a, 's, 'c> Server<'a, 's, 'c> {
    fn new(http: &'s Http<'a>, scope: &'s Scope<'a, 's>, config: &'c Config) -> Self {
        let listens = scope.own("listen");
        let over_tls = listens.iter().filter(|listen| scope.is_tls(listen)).count();
        let has_both_schemes = 0 < over_tls && over_tls < listens.len();
        let mut server = Self {
            http,
            scope,
            config,
            has_both_schemes,
            definitions: Definitions::default(),
            leading: Names::new(),
            refusing: Names::new(),
            of_client: ["uid_got", "uid_set"].map(str::to_owned).into(),
        };
        server.define_in(scope.lines, &Names::new());
        server.collect_rules(scope.lines);
        server
    }

    /// What `set` and captures in these lines and the blocks in them make; `asked`: what the `if`s around them ask.
    fn define_in(&mut self, lines: &[Directive], asked: &Names) {
        for line in lines {
            let is_if = &line.name[..] == b"if";
            let subject = match &line.name[..] {
                b"if" => mentioned_in(line),
                b"server_name" => Names::from(["host".to_owned()]),
                b"location" | b"rewrite" => Names::from(["uri".to_owned()]),
                _ => Names::new(),
            };
            if !subject.is_empty() {
                let captures = line.args.iter().flat_map(|word| captured(word));
                captures.for_each(|capture| self.definitions.add(capture, subject.clone()));
            }
            match (&line.name[..], &line.args[..]) {
                (directive, [name, values @ ..]) if is_assignment(directive) => {
                    let values = values.iter().flat_map(|value| mentioned(value));
                    self.definitions.add(name, values.chain(asked.iter().cloned()));
                }
                // What was said of the client is a source of its own, whatever it was before.
                (b"auth_request_set", [name, _]) => {
                    self.definitions.add(name, mentioned(name));
                    self.of_client.extend(mentioned(name));
                }
                _ => {}
            }
            let within = if is_if { asked | &subject } else { asked.clone() };
            self.define_in(inside(line), &within);
        }
    }

    fn collect_rules(&mut self, lines: &'a [Directive]) {
        for line in lines {
            match self.rule(line) {
                Some(rule) => self.leading.extend(rule.names),
                None if &line.name[..] == b"if" => self.refusing.extend(mentioned_in(line)),
                None => {}
            }
            self.collect_rules(inside(line));
        }
    }

    fn rule(&self, line: &'a Directive) -> Option<Effect<'a>> {
        let is_one = match &line.name[..] {
            b"error_page" | b"rewrite" | b"try_files" => true,
            b"if" => self.leads_elsewhere(line),
            _ => false,
        };
        is_one.then(|| Effect::of(line))
    }

    /// Whether an `if` decides more than that a request is refused, or what variables are.
    fn leads_elsewhere(&self, block: &Directive) -> bool {
        inside(block).iter().any(|line| match (&line.name[..], line.args.first()) {
            (b"return", Some(code)) => {
                has_error_page(self.http.lines, code) || has_error_page(self.scope.lines, code)
            }
            (b"if", _) => self.leads_elsewhere(line),
            (name, _) => Use::of(name) == Use::Told,
        })
    }

    /// Calls `each` for every location with a gateway.
    fn each_location(&self, mut places: Places<'_>, mut each: impl FnMut(&LocationConf, Reads)) {
        let outer: Vec<_> =
            self.http.effects.iter().cloned().chain(self.effects(self.scope.lines)).collect();
        self.walk((self.scope, None), &outer, &mut places, &mut each);
    }

    /// What has an effect in a block, its rules included.
    fn effects(&self, lines: &'a [Directive]) -> impl Iterator<Item = Effect<'a>> {
        Effect::all(lines).chain(lines.iter().filter_map(|line| self.rule(line)))
    }

    /// Walks through the locations of a block, in the order in which they are compiled; `around`: the line of the location
    /// that it is of.
    fn walk(
        &self,
        (scope, around): (&Scope<'a, '_>, Option<&Directive>),
        outer: &[Effect<'a>],
        places: &mut Places<'_>,
        each: &mut dyn FnMut(&LocationConf, Reads),
    ) {
        let named = |name: &'static [u8]| scope.lines.iter().filter(move |line| line.name == name);
        // Those of a server have no location.
        let of_location = |name| named(name).filter(|_| around.is_some());
        let blocks =
            named(b"location").chain(of_location(b"if")).chain(of_location(b"limit_except"));
        for line in blocks {
            let is_around = &line.name[..] == b"limit_except";
            let at = &around.filter(|_| is_around).unwrap_or(line).at;
            let location =
                places.get_mut(&(Arc::clone(&at.file), at.line)).and_then(VecDeque::pop_front);
            let scope = Scope::new(Some(scope), inside(line));
            // As nginx: a block's own lines of a directive take the place of those around it.
            let has_own =
                |effect: &&Effect<'_>| scope.lines.iter().any(|line| line.name == effect.directive);
            let inherited = outer.iter().filter(|effect| !has_own(effect)).cloned();
            let effects: Vec<_> = inherited.chain(self.effects(scope.lines)).collect();
            if let Some(location) = location.filter(|location| protocol::of(location).is_some()) {
                each(location, self.reads(&scope, &effects, location));
            }
            self.walk((&scope, Some(line)), &effects, places, each);
        }
    }

    fn reads(
        &self,
        scope: &Scope<'a, '_>,
        effects: &[Effect<'a>],
        location: &LocationConf,
    ) -> Reads {
        let prefix = protocol::of(location).map_or("", |protocol| protocol.family().prefix);
        let of_lines = |name: &str| {
            let lines = scope.find(name);
            lines.into_iter().flat_map(mentioned_in).collect::<Names>()
        };
        let of_protocol = |name: &str| of_lines(&format!("{prefix}_{name}"));
        let formats = scope.find("access_log").into_iter().filter_map(|line| line.args.get(1));
        let formats =
            formats.filter_map(|format| self.http.formats.get(&format[..])).flatten().cloned();
        let told = effects.iter().filter(|effect| effect.is_for(prefix));
        let in_key = &of_protocol("cache_key") | &of_protocol("cache");
        let told: Names = told.flat_map(|effect| effect.names.iter().cloned()).collect();
        let no_cache = scope.find(&format!("{prefix}_no_cache"));
        let values = no_cache.into_iter().flat_map(|line| &line.args);
        let waits = values.map(|value| self.sources(mentioned(value)).has_response());
        Reads {
            waits_for_response: waits.collect(),
            key_at: scope.find(&format!("{prefix}_cache_key")).last().map(|line| line.at.clone()),
            of_client: self.of_client(scope, &told, &in_key),
            told: self.sources_beyond(&in_key, &told | &self.leading),
            guards: self.sources(self.refusing.iter().cloned()),
            key: self.sources(in_key.iter().cloned()),
            in_key: in_key.into_iter().collect(),
            conditions: self.sources(settings::CONDITIONS.into_iter().flat_map(of_protocol)),
            logs: self.sources(of_lines("access_log").into_iter().chain(formats)),
            has_both_schemes: self.has_both_schemes,
            ..Reads::default()
        }
    }

    /// Those variables that an upstream is told and that say who the client is, or are made of these, unless they stand in the
    /// key.
    fn of_client(&self, scope: &Scope<'_, '_>, told: &Names, in_key: &Names) -> Arc<[OfClient]> {
        // All that a certificate says follows from it.
        const WHOLE: [&str; 4] = ["cert", "escaped_cert", "fingerprint", "raw_cert"];
        let has_certificate =
            WHOLE.iter().any(|what| in_key.contains(&format!("ssl_client_{what}")));
        let is_asked_of_all =
            scope.find("ssl_verify_client").iter().any(|line| line.args[0] == "on");
        let is_of_client = |source: &str| match source.strip_prefix("ssl_client_") {
            Some(_) if has_certificate => false,
            Some("verify") => !is_asked_of_all,
            Some(_) => true,
            None => self.of_client.contains(source),
        };
        (told | &self.leading)
            .difference(in_key)
            .filter_map(|name| {
                let sources = self.sources_beyond(in_key, [name.clone()]);
                let mut found = sources.iter().filter(|source| !in_key.contains(*source));
                let first = found.find(|source| is_of_client(source))?;
                let is_of_cookie = first.starts_with("uid_");
                let is_elsewhere = !told.contains(name);
                let slot = self.config.variable_names.iter().position(|known| known == name);
                let slot = slot.and_then(|slot| u16::try_from(slot).ok());
                Some(OfClient { name: name.as_str().into(), slot, is_of_cookie, is_elsewhere })
            })
            .collect()
    }

    /// Of a variable, by the http block and by this server.
    fn definitions_of(&self, name: &str) -> impl Iterator<Item = &Names> {
        [&self.http.definitions, &self.definitions]
            .into_iter()
            .filter_map(|known| known.0.get(name))
    }

    /// What these variables are made of.
    fn sources(&self, names: impl IntoIterator<Item = String>) -> Sources {
        self.sources_beyond(&Names::new(), names)
    }

    /// As [`Server::sources`], where those in the key stand for themselves.
    fn sources_beyond(&self, in_key: &Names, names: impl IntoIterator<Item = String>) -> Sources {
        let mut seen = Names::new();
        let mut rest: Vec<String> = names.into_iter().collect();
        while let Some(name) = rest.pop() {
            if !seen.contains(&name) && !in_key.contains(&name) {
                rest.extend(self.definitions_of(&name).flatten().cloned());
            }
            seen.insert(name);
        }
        let is_source = |name: &String| {
            let mut of = self.definitions_of(name).peekable();
            in_key.contains(name) || of.peek().is_none() || of.any(|of| of.contains(name))
        };
        seen.into_iter().filter(is_source).collect()
    }
}

/// Whether an `error_page` in these lines, or in blocks in them, is for this status.
fn has_error_page(lines: &[Directive], code: &[u8]) -> bool {
    lines.iter().any(|line| {
        let is_one = &line.name[..] == b"error_page" && line.args.iter().any(|arg| arg == code);
        is_one || has_error_page(inside(line), code)
    })
}

fn mentioned_in(line: &Directive) -> Names {
    line.args.iter().flat_map(|word| mentioned(word)).collect()
}

/// The names of the variables in a text, in lower case; captures by number are none.
pub(super) fn mentioned(text: &[u8]) -> impl Iterator<Item = String> {
    let after = text.split(|byte| *byte == b'$').skip(1);
    let names = after.map(|rest| {
        let rest = rest.strip_prefix(b"{").unwrap_or(rest);
        let is_of_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        let name = rest.iter().take_while(is_of_name);
        name.map(|byte| char::from(byte.to_ascii_lowercase())).collect::<String>()
    });
    names.filter(|name| !name.starts_with(|first: char| first.is_ascii_digit()) && !name.is_empty())
}

/// The names of the captures of a regular expression.
fn captured(pattern: &[u8]) -> impl Iterator<Item = &[u8]> {
    let begins = memchr::memmem::find_iter(pattern, b"(?").map(|at| &pattern[at + 2..]);
    begins.filter_map(|rest| {
        let rest = rest.strip_prefix(b"P").unwrap_or(rest);
        let (quote, rest) = rest.split_first()?;
        let end = match quote {
            b'<' => b'>',
            b'\'' => b'\'',
            _ => return None,
        };
        let name = &rest[..rest.iter().position(|byte| *byte == end)?];
        name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::config;
    use yorozu_kernel::config::reads::Reads;

    /// What the first location with a gateway reads, in a server with these lines below these of `http`.
    fn read(http: &str, server: &str) -> Reads {
        let zone = "proxy_cache_path cache keys_zone=z:1m; proxy_cache z; proxy_cache_key $uri;";
        let text = format!("http {{ {zone} {http} server {{ {server} }} }}");
        let config = config(&text);
        let is_gateway = |at: &usize| super::protocol::of(&config.locations[*at]).is_some();
        let at = (0..config.locations.len()).find(is_gateway).unwrap();
        config.reads[at].clone()
    }

    #[test]
    fn variables_stand_for_what_they_are_made_of() {
        let pass = "proxy_pass http://127.0.0.1:1;";
        for (http, server, told) in [
            ("", format!("location / {{ {pass} }}"), ""),
            ("", format!("location / {{ {pass} proxy_set_header A $http_b; }}"), "$http_b"),
            (
                "map $http_b$c $a { default $arg_d; ~(?<n>x) $n; } map $cookie_e $c { }",
                format!("location / {{ {pass} proxy_set_header A $a; }}"),
                "$arg_d $cookie_e $http_b",
            ),
            (
                "geo $a { }",
                format!("location / {{ {pass} proxy_set_header A ${{a}}; }}"),
                "$remote_addr",
            ),
            (
                "",
                format!(
                    "location / {{ set $a $host; if ($http_b) {{ set $a 1; }} {pass} proxy_set_header A $a; }}"
                ),
                "$host $http_b",
            ),
            // What decides nothing that is asked.
            (
                "",
                format!(
                    "add_header A $http_a; proxy_no_cache $http_b; location / {{ if ($http_c) {{ return 403; }} limit_rate 1; {pass} }}"
                ),
                "",
            ),
            // Rules lead elsewhere, or to another page.
            (
                "",
                format!("location / {{ if ($http_a) {{ rewrite ^ /b break; }} {pass} }}"),
                "$http_a",
            ),
            (
                "",
                format!(
                    "error_page 418 = @b; location / {{ if ($http_a) {{ return 418; }} {pass} }} location @b {{ {pass} }}"
                ),
                "$http_a",
            ),
            (
                "",
                format!("location / {{ {pass} }} location /b {{ rewrite ^ /c$http_a; }}"),
                "$http_a",
            ),
            (
                "upstream u { server 127.0.0.1; hash $http_a; }",
                format!("location / {{ {pass} }}"),
                "$http_a",
            ),
            // Lines of one's own take the place of those around; those of another protocol have no effect.
            (
                "",
                format!(
                    "proxy_set_header A $http_a; fastcgi_param B $http_b; location / {{ {pass} proxy_set_header C $http_c; }}"
                ),
                "$http_c",
            ),
            // What stands in the key stands for itself.
            (
                "map $http_b $a { }",
                format!("location / {{ {pass} proxy_set_header A $a; proxy_cache_key $a; }}"),
                "$a",
            ),
        ] {
            assert_eq!(read(http, &server).told.to_string(), told, "{http} {server}");
        }
    }

    #[test]
    fn blocks_of_one_line_are_told_apart() {
        let text = "http { server { location /a { proxy_set_header A $http_a; if ($http_x) { proxy_pass http://127.0.0.1:1; } limit_except GET { deny all; } location /a/b { proxy_set_header B $http_b; proxy_pass http://127.0.0.1:1; } proxy_pass http://127.0.0.1:1; } location /c { proxy_set_header C $http_c; proxy_pass http://127.0.0.1:1; } } }";
        let config = config(text);
        let gateways = config.locations.iter().zip(&config.reads);
        let gateways = gateways.filter(|(location, _)| super::protocol::of(location).is_some());
        let read: Vec<_> = gateways
            .map(|(location, reads)| {
                format!("{} {}", String::from_utf8_lossy(&location.name), reads.told)
            })
            .collect();
        let wanted = [
            "/a $http_a $http_x",
            "/a/b $http_b $http_x",
            "/a $http_a $http_x",
            "/c $http_c $http_x",
        ];
        assert!(wanted.iter().all(|wanted| read.iter().any(|read| read == wanted)), "{read:?}");
    }

    #[test]
    fn the_key_the_conditions_and_the_log_are_read_apart() {
        let found = read(
            "map $http_a $k { } log_format f $http_l; access_log /dev/null f;",
            "listen 127.0.0.1:8998; listen 127.0.0.1:8999 ssl; ssl_reject_handshake on;
             if ($http_g) { return 403; }
             location / { proxy_pass http://127.0.0.1:1; proxy_cache_key $scheme$k; proxy_cache_bypass $cookie_b;
             proxy_no_cache $cookie_b $upstream_http_n; }",
        );
        let read = [&found.key, &found.in_key, &found.guards, &found.conditions, &found.logs];
        let wanted =
            ["$http_a $scheme", "$k $scheme", "$http_g", "$cookie_b $upstream_http_n", "$http_l"];
        assert_eq!(read.map(ToString::to_string), wanted);
        assert_eq!(*found.waits_for_response, [false, true]);
        assert!(found.has_both_schemes && found.keyed_of_url.scheme && !found.keyed_of_url.host);
        let selecting: Vec<_> = found.selecting.iter().map(|it| (&*it.name, it.is_told)).collect();
        assert_eq!(selecting, [(&b"g"[..], false)]);
    }

    #[test]
    fn what_was_said_of_a_client_must_stand_in_the_key_itself() {
        let count = |lines: &str| {
            let said = "auth_request_set $user $upstream_http_u; auth_request_set $group $upstream_http_g;";
            let map = "map $user $role { default guest; }";
            let server = format!("{said} location / {{ proxy_pass http://127.0.0.1:1; {lines} }}");
            read(map, &server).of_client.len()
        };
        assert_eq!(count(""), 0);
        assert_eq!(count("proxy_set_header A $user;"), 1);
        assert_eq!(count("proxy_set_header A $user; proxy_cache_key $group$uri;"), 1);
        assert_eq!(count("proxy_set_header A $user; proxy_cache_key $user$uri;"), 0);
        assert_eq!(count("proxy_set_header A $role; proxy_cache_key $role$uri;"), 0);
        assert_eq!(
            count("proxy_set_header A $ssl_client_s_dn; proxy_cache_key $ssl_client_verify;"),
            1
        );
        assert_eq!(
            count("proxy_set_header A $ssl_client_s_dn; proxy_cache_key $ssl_client_fingerprint;"),
            0
        );
        assert_eq!(count("proxy_set_header A $uid_set;"), 1);
    }
}
