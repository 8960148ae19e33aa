//! Findings about settings that hold before it is known which server a request is for: those of the socket's default
//! server, not of other servers.

use super::scope::{Finding, inside};
use std::collections::HashMap;
use yorozu_conf::{Directive, Tree};
use yorozu_kernel::config::listen;

/// Such settings with their defaults.
const SETTINGS: [(&str, &str); 5] = [
    ("merge_slashes", "on"),
    ("large_client_header_buffers", "4 8k"),
    ("client_header_buffer_size", "1k"),
    ("client_header_timeout", "60s"),
    ("max_headers", "1000"),
];

/// A server on a socket.
struct Listening<'a> {
    lines: &'a [Directive],
    is_default: bool,
}

/// Where servers that share a socket differ in what only the default server can say.
pub(super) fn of(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for http in tree.directives.iter().filter(|line| &line.name[..] == b"http") {
        let http = inside(http);
        for (address, servers) in sockets(http) {
            let default = servers.iter().position(|server| server.is_default).unwrap_or(0);
            for (name, standard) in SETTINGS {
                let said = |lines: &'_ [Directive]| last(lines, name).map(shown);
                let outer = said(http).unwrap_or_else(|| standard.to_owned());
                let own = |at: usize| said(servers[at].lines).unwrap_or_else(|| outer.clone());
                let holds = own(default);
                let differing = (0..servers.len()).filter(|at| own(*at) != holds);
                for at in differing {
                    let line = last(servers[at].lines, name);
                    let line = line.or_else(|| last(servers[default].lines, name));
                    found.extend(line.map(|line| Finding {
                        text: format!(
                            "servers of {address} differ in \"{name}\", the default server's \"{holds}\" applies to all of them, not \"{}\": move the directive out of the server blocks",
                            own(at)
                        ),
                        at: line.at.clone(),
                    }));
                }
            }
        }
    }
    let mut seen = Vec::new();
    found.retain(|finding| {
        let is_new = !seen.contains(&finding.at);
        seen.push(finding.at.clone());
        is_new
    });
    found
}

/// Addresses with their servers, in the order of the lines. With TLS the name in the handshake says the server.
fn sockets(http: &[Directive]) -> Vec<(String, Vec<Listening<'_>>)> {
    let mut places = HashMap::new();
    let mut sockets: Vec<(String, Vec<Listening<'_>>)> = Vec::new();
    for server in http.iter().filter(|line| &line.name[..] == b"server") {
        let lines = inside(server);
        for line in lines.iter().filter(|line| &line.name[..] == b"listen") {
            let has = |word: &[u8]| line.args.iter().any(|arg| &arg[..] == word);
            let text = line.args.first().map(|text| String::from_utf8_lossy(text));
            let addresses = text.and_then(|text| listen::address(&text, 80).ok());
            for address in addresses.unwrap_or_default().into_iter().filter(|_| !has(b"ssl")) {
                let name = address.to_string();
                let place = *places.entry(address).or_insert_with(|| {
                    sockets.push((name, Vec::new()));
                    sockets.len() - 1
                });
                let is_default = has(b"default_server") || has(b"default");
                sockets[place].1.push(Listening { lines, is_default });
            }
        }
    }
    sockets
}

fn last<'a>(lines: &'a [Directive], name: &str) -> Option<&'a Directive> {
    lines.iter().rfind(|line| line.name == name.as_bytes())
}

/// The arguments of a directive.
fn shown(line: &Directive) -> String {
    let words: Vec<_> = line.args.iter().map(|word| String::from_utf8_lossy(word)).collect();
    words.join(" ").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use yorozu_kernel::config::files::Files;

    fn told(http: &str) -> Vec<String> {
        let source = Files { folder: "/".into() };
        let text = format!("http {{ {http} }}");
        let directives = yorozu_conf::parse_text(&source, &text).unwrap();
        let found = of(&Tree { directives, files: Vec::new() });
        found.into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn servers_of_one_socket_that_differ_are_reported() {
        let table = [
            (
                "server { listen 80; }\nserver { listen 80; merge_slashes off; }",
                2,
                "\"merge_slashes\"",
            ),
            (
                "server { listen 80;\nmerge_slashes off; } server { listen *:80; }",
                2,
                "\"off\" applies to all of them, not \"on\"",
            ),
            (
                "server { listen 80; } server { listen 80 default_server; }\nserver { listen 0.0.0.0:80; client_header_timeout 5s; }",
                2,
                "servers of 0.0.0.0:80 differ in \"client_header_timeout\"",
            ),
            (
                "merge_slashes off; server { listen unix:/a; } server { listen unix:/a;\nmerge_slashes on; }",
                2,
                "servers of unix:/a differ",
            ),
            (
                "server { listen 80; } server { listen 81; listen 80;\nlarge_client_header_buffers 4 16k; }",
                2,
                "\"4 8k\" applies to all of them, not \"4 16k\"",
            ),
        ];
        for (http, line, text) in table {
            let told = told(http);
            assert_eq!(told.len(), 1, "{http}: {told:?}");
            assert!(told[0].contains(text), "{http}: {told:?}");
            assert!(told[0].ends_with(&format!(":{line}")), "{http}: {told:?}");
        }
    }

    #[test]
    fn servers_that_agree_or_share_nothing_are_not_reported() {
        for http in [
            "server { listen 80; merge_slashes off; } server { listen 81; }",
            "server { listen 80; } server { listen 80; merge_slashes on; }",
            "merge_slashes off; server { listen 80; } server { listen 80; }",
            "server { listen 443 ssl; } server { listen 443 ssl; merge_slashes off; }",
            "server { listen 80; underscores_in_headers on; } server { listen 80; }",
            "server { listen 80; client_max_body_size 1; } server { listen 80; }",
            "server { listen 80; merge_slashes OFF; } server { listen 80; merge_slashes off; }",
        ] {
            assert_eq!(told(http), [""; 0], "{http}");
        }
    }
}
