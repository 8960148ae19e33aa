//! What a case needs of a server: a folder, ports, an origin, and a configuration that names them.

use crate::case::{Case, Step};
use crate::form::Ports;
use crate::origin::{Origin, silent};
use crate::server::{Kind, SINGLE, Text};
use crate::tls;
use std::fs;
use std::path::{Path, PathBuf};

/// A case's place at a server.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) folder: PathBuf,
    pub(crate) ports: Ports,
    pub(crate) origin: Origin,
    /// The configuration; `$dir` and `$origin` stand in it.
    pub(crate) text: Text,
}

impl Seat {
    /// Puts the case's files into the folder and starts its origin.
    pub(crate) fn new(case: &Case, kind: &Kind, folder: &Path) -> Self {
        for (path, content) in &case.files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let origin = Origin::start(folder);
        if case
            .steps
            .iter()
            .any(|(_, step)| matches!(step, Step::Param(name, _) if name == "KEEPALIVE"))
        {
            origin.look_at_timers();
        }
        let ports = Ports::default();
        let mut text = configuration(case, kind, &ports, &origin);
        if can_be_single(kind, &text) {
            text.main.push_str(SINGLE);
        }
        Self { folder: folder.to_owned(), ports, origin, text }
    }
}

/// What every application is told.
const PARAMS: [(&str, &str); 3] = [
    ("REQUEST_METHOD", "$request_method"),
    ("REQUEST_URI", "$request_uri"),
    ("CONTENT_LENGTH", "$content_length"),
];

/// Whether nothing of the configuration needs more than one process: nginx's caches have processes of their own.
pub(crate) fn can_be_single(kind: &Kind, text: &Text) -> bool {
    text.main.is_empty() && !(*kind == Kind::Nginx && text.http.contains("_cache_path "))
}

/// The server's configuration.
fn configuration(case: &Case, kind: &Kind, ports: &Ports, origin: &Origin) -> Text {
    let mut http = format!(
        "{}\nserver {{ listen 127.0.0.1:$port; root $dir/html;\n{}{}\n}}",
        case.http,
        PARAMS
            .map(|(name, variable)| {
                ["fastcgi", "uwsgi", "scgi"]
                    .map(|gateway| format!("{gateway}_param {name} {variable};\n"))
                    .concat()
            })
            .concat(),
        case.conf
    );
    if !http.replace("_ssl_certificate", "").contains("ssl_certificate ") {
        http.insert_str(
            0,
            "ssl_certificate $certs/server.pem; ssl_certificate_key $certs/server.key;\n",
        );
    }
    let certificates = tls::certificates().display().to_string();
    let all = [&case.main, &case.events, &http].map(String::as_str).concat();
    let mut places = vec![("$web", origin.port)];
    if all.contains("$php") {
        places.push(("$php", origin.listen_fastcgi()));
    }
    if all.contains("$deaf") {
        places.push(("$deaf", silent::deaf()));
    }
    if all.contains("$full") {
        places.push(("$full", silent::full()));
    }
    for (word, certificate) in [("$h2", None), ("$tls_h2", Some("server"))] {
        if all.contains(word) {
            places.push((word, origin.listen_h2(certificate)));
        }
    }
    if all.contains("$uwsgi") {
        places.push(("$uwsgi", origin.listen_uwsgi()));
    }
    for (word, certificate) in
        [("$tls_uwsgi", "server"), ("$revoked_uwsgi", "revoked"), ("$deep_uwsgi", "deep")]
    {
        if all.contains(word) {
            places.push((word, origin.listen_tls_uwsgi(certificate)));
        }
    }
    if all.contains("$scgi") {
        places.push(("$scgi", origin.listen_scgi()));
    }
    if all.contains("$keys") {
        places.push(("$keys", origin.listen_memcached()));
    }
    for (word, certificate) in [
        ("$tls_server", "server"),
        ("$tls_revoked", "revoked"),
        ("$tls_deep", "deep"),
        ("$tls_other", "other"),
    ] {
        if all.contains(word) {
            places.push((word, origin.listen_tls(certificate)));
        }
    }
    let replaced = |text: &str| {
        let text = ports.listen(text, case.has_quic(kind)).replace("$certs", &certificates);
        places
            .iter()
            .fold(text, |text, (word, port)| text.replace(word, &format!("127.0.0.1:{port}")))
    };
    Text::of([&case.main, &case.events, &http].map(|text| replaced(text)))
}
