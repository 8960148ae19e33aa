//! `yorozu cache …` and `yorozu acme …`: asks the running server about its cache and its certificates, over its control
//! socket.

use crate::command_line::Options;
use crate::warm::Warm;
use lexopt::prelude::*;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use yorozu_server::config::load::control_socket;
use yorozu_server::control;

/// The text of `yorozu cache -h`.
pub(crate) const HELP: &str = "\
Usage: yorozu [-p prefix] [-c filename] cache COMMAND

Commands:
  stat                              : how full each zone is
  ls [ZONE] [--prefix KEY] [--limit N]
                                    : stored pages: zone, state, status, bytes, key
  explain [-X METHOD] [-H 'NAME: VALUE'] URL
                                    : how a request would be answered, and why; the upstream is not contacted
";

/// The text of `yorozu acme -h`.
pub(crate) const ACME_HELP: &str = "\
Usage: yorozu [-p prefix] [-c filename] acme status

A line for each certificate that an issuer gives, in fields with a tab between them: issuer, names, state, expiry, next step,
last error.
";

/// The text of `yorozu purge -h`.
pub(crate) const PURGE_HELP: &str = "\
Usage: yorozu [-p prefix] [-c filename] purge [OPTION ...] [URL ...]

Removes stored pages, all their variants, from memory and disk. A URL that ends with * means all with that prefix,
one without a scheme, //HOST/PATH, means http and https.

Options:
  --tag NAME    : pages with this tag (Surrogate-Key, Cache-Tag, xkey); may be repeated
  --host NAME   : the host whose tags are meant; all hosts' without it
  --zone NAME   : the zone whose tags, or all pages, are meant; all zones without it
  --all         : all pages
  --soft        : pages are served once more while they are refreshed
  --warm URL    : then makes what is missing of this page, or of a sitemap's pages: see yorozu warm -h
";

/// A request to the control socket.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Command {
    pub(crate) method: &'static str,
    pub(crate) target: String,
    pub(crate) content: String,
}

/// The line of a header that follows `-H`.
///
/// # Errors
/// It is none.
pub(crate) fn field(parser: &mut lexopt::Parser) -> Result<String, String> {
    let field = parser.value().map_err(|problem| problem.to_string())?;
    let field = field.to_string_lossy();
    match field.contains(':') && !field.contains(['\r', '\n']) {
        true => Ok(format!("{field}\r\n")),
        false => Err(format!("invalid field \"{field}\", expected \"Name: value\"")),
    }
}

impl Command {
    /// Reads what follows `cache`; `None`: help is wanted.
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub(crate) fn parse(parser: &mut lexopt::Parser) -> Result<Option<Self>, String> {
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        let (mut words, mut fields) = (Vec::new(), String::new());
        let (mut method, mut query) = ("GET".to_owned(), String::new());
        while let Some(argument) = parser.next().map_err(|problem| problem.to_string())? {
            match argument {
                Short('h' | '?') | Long("help") => return Ok(None),
                Short('X') => method = text(parser.value().map_err(|p| p.to_string())?),
                Short('H') => fields += &field(parser)?,
                Long(name @ ("prefix" | "limit")) => {
                    let name = name.to_owned();
                    let value = text(parser.value().map_err(|p| p.to_string())?);
                    query += &format!("&{name}={}", escape(&value));
                }
                Value(word) => words.push(text(word)),
                other => return Err(other.unexpected().to_string()),
            }
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let get = |target: String| Ok(Some(Self { method: "GET", target, content: String::new() }));
        match words[..] {
            ["stat"] => get("/cache/stat".to_owned()),
            ["ls"] => get(format!("/cache/ls?{query}")),
            ["ls", zone] => get(format!("/cache/ls?zone={}{query}", escape(zone))),
            ["explain", url] => {
                let content = control::head(url, &method, &fields)?;
                Ok(Some(Self { method: "POST", target: "/cache/explain".to_owned(), content }))
            }
            ["explain"] => Err("\"cache explain\" needs a URL".to_owned()),
            [] => Err("\"cache\" needs a command: stat, ls or explain".to_owned()),
            [other, ..] => {
                Err(format!("invalid cache command \"{other}\", expected stat, ls or explain"))
            }
        }
    }

    /// Reads what follows `acme`; `None`: help is wanted.
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub(crate) fn parse_acme(parser: &mut lexopt::Parser) -> Result<Option<Self>, String> {
        let mut command = None;
        while let Some(argument) = parser.next().map_err(|problem| problem.to_string())? {
            match argument {
                Short('h' | '?') | Long("help") => return Ok(None),
                Value(word) if word == "status" && command.is_none() => {
                    let target = "/acme/status".to_owned();
                    command = Some(Self { method: "GET", target, content: String::new() });
                }
                Value(word) => {
                    let word = word.to_string_lossy();
                    return Err(format!("invalid acme command \"{word}\", expected status"));
                }
                other => return Err(other.unexpected().to_string()),
            }
        }
        command.map(Some).ok_or_else(|| "\"acme\" needs a command: status".to_owned())
    }

    /// Reads what follows `purge`, and what is to be warmed then; `None`: help is wanted.
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub(crate) fn parse_purge(
        parser: &mut lexopt::Parser,
    ) -> Result<Option<(Self, Option<Warm>)>, String> {
        let (mut urls, mut tags) = (Vec::new(), Vec::new());
        let mut warm = Vec::new();
        let mut batch = serde_json::Map::new();
        while let Some(argument) = parser.next().map_err(|problem| problem.to_string())? {
            match argument {
                Short('h' | '?') | Long("help") => return Ok(None),
                Long(name @ ("soft" | "all")) => _ = batch.insert(name.to_owned(), true.into()),
                Long("warm") => {
                    let url = parser.value().map_err(|p| p.to_string())?;
                    warm.push(url.to_string_lossy().into_owned());
                }
                Long(name @ ("tag" | "host" | "zone")) => {
                    let name = name.to_owned();
                    let value = parser.value().map_err(|p| p.to_string())?;
                    let value = value.to_string_lossy().into_owned();
                    match &*name {
                        "tag" => tags.push(value),
                        _ => _ = batch.insert(name, value.into()),
                    }
                }
                Value(url) => {
                    let url = url.to_string_lossy().into_owned();
                    let scheme = if url.starts_with("//") { "http:" } else { "" };
                    control::head(&format!("{scheme}{url}"), "GET", "")?;
                    urls.push(url);
                }
                other => return Err(other.unexpected().to_string()),
            }
        }
        if urls.is_empty() && tags.is_empty() && !batch.contains_key("all") {
            return Err("\"purge\" needs a URL, --tag NAME or --all".to_owned());
        }
        batch.insert("urls".to_owned(), urls.into());
        batch.insert("tags".to_owned(), tags.into());
        let content = serde_json::Value::from(batch).to_string();
        let warm = if warm.is_empty() { None } else { Some(Warm::of(warm)?) };
        let command = Self { method: "POST", target: "/cache/purge".to_owned(), content };
        Ok(Some((command, warm)))
    }

    /// Asks the server and prints its answer.
    ///
    /// # Errors
    /// It cannot be reached, or refuses.
    pub(crate) fn run(&self, options: &Options) -> Result<(), String> {
        let content = ask(&socket(options)?, self.method, &self.target, &self.content)?;
        print!("{}", String::from_utf8_lossy(&content));
        Ok(())
    }
}

/// Where the control socket is, by the configuration.
///
/// # Errors
/// The configuration cannot be read or has none.
pub(crate) fn socket(options: &Options) -> Result<PathBuf, String> {
    control_socket(&options.request()).map_err(|problem| problem.to_string())
}

/// Asks the server; its answer's content.
///
/// # Errors
/// It cannot be reached, or refuses.
pub(crate) fn ask(
    path: &Path,
    method: &str,
    target: &str,
    content: &str,
) -> Result<Vec<u8>, String> {
    let mut socket = send(path, method, target, content)?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).map_err(|p| failed("read() from", path, &p))?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let content = answer.split_off(end.map_or(answer.len(), |end| end + 4));
    if answer.starts_with(b"HTTP/1.1 200 ") {
        return Ok(content);
    }
    let status = answer.split(|byte| *byte == b'\r').next().unwrap_or(b"");
    let explained = [&b"HTTP/1.1 400 "[..], b"HTTP/1.1 413 ", b"HTTP/1.1 500 "];
    let is_explained = explained.iter().any(|status| answer.starts_with(status));
    let text = String::from_utf8_lossy(if is_explained { &content } else { status });
    Err(text.trim().to_owned())
}

fn failed(what: &str, path: &Path, problem: &std::io::Error) -> String {
    let (path, why) = (path.display(), yorozu_conf::os_error(problem));
    format!("{what} \"{path}\" failed ({why}), is the server running?")
}

fn send(path: &Path, method: &str, target: &str, content: &str) -> Result<UnixStream, String> {
    let mut socket = UnixStream::connect(path).map_err(|p| failed("connect() to", path, &p))?;
    let length = content.len();
    let request = format!(
        "{method} {target} HTTP/1.0\r\nHost: control\r\nContent-Length: {length}\r\n\r\n{content}"
    );
    socket.write_all(request.as_bytes()).map_err(|p| failed("write() to", path, &p))?;
    Ok(socket)
}

/// Asks for what has no end; its content from here on.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) fn open(path: &Path, target: &str) -> Result<BufReader<UnixStream>, String> {
    let mut reader = BufReader::new(send(path, "GET", target, "")?);
    let mut line = || {
        let mut line = String::new();
        let read = reader.read_line(&mut line).map_err(|p| failed("read() from", path, &p))?;
        if read == 0 { Err("the server ended".to_owned()) } else { Ok(line) }
    };
    let status = line()?;
    while !line()?.trim().is_empty() {}
    if status.starts_with("HTTP/1.1 200 ") {
        return Ok(reader);
    }
    let mut text = String::new();
    let _ = reader.take(1000).read_to_string(&mut text);
    Err(if text.trim().is_empty() { status } else { text }.trim().to_owned())
}

pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(byte.into());
            }
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Command>, String> {
        Command::parse(&mut lexopt::Parser::from_args(words))
    }

    #[test]
    fn commands_become_requests() {
        let target = |words: &[&str]| parse(words).map(|found| found.unwrap().target);
        assert_eq!(target(&["stat"]).unwrap(), "/cache/stat");
        assert_eq!(target(&["ls", "a b", "--limit", "5"]).unwrap(), "/cache/ls?zone=a%20b&limit=5");
        assert!(target(&["purge"]).unwrap_err().contains("expected stat, ls or explain"));
        assert_eq!(parse(&["-h"]), Ok(None));
        let explain =
            parse(&["explain", "-H", "Cookie: a=b", "https://h:8443/x?y#z"]).unwrap().unwrap();
        assert_eq!(
            explain.content,
            "https 8443\nGET /x?y HTTP/1.1\r\nHost: h:8443\r\nCookie: a=b\r\n\r\n"
        );
        let acme = |words: &[&str]| Command::parse_acme(&mut lexopt::Parser::from_args(words));
        assert_eq!(acme(&["status"]).unwrap().unwrap().target, "/acme/status");
        assert_eq!(acme(&["status", "-h"]), Ok(None));
        assert!(acme(&["renew"]).unwrap_err().contains("expected status"));
        assert!(acme(&[]).unwrap_err().contains("needs a command"));
        let purge = |words: &[&str]| Command::parse_purge(&mut lexopt::Parser::from_args(words));
        let (found, warm) = purge(&["--soft", "--tag", "a", "http://h/x*"]).unwrap().unwrap();
        assert_eq!(warm, None);
        assert_eq!(found.content, r#"{"soft":true,"tags":["a"],"urls":["http://h/x*"]}"#);
        assert!(purge(&["--soft"]).unwrap_err().contains("needs a URL"));
        assert!(parse(&["explain", "h/x"]).unwrap_err().contains("expected http://"));
        assert!(parse(&["explain", "http://h/a b"]).is_err());
    }
}
