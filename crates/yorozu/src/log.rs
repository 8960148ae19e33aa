//! `yorozu log`: requests as they come, and the error log that is kept in memory.

use crate::cache::{Command, escape, open, socket};
use crate::command_line::Options;
use lexopt::prelude::*;
use serde_json::Value;
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::time::Duration;
use yorozu_kernel::base::readable::{harmless, harmless_json};
use yorozu_kernel::live::filter::Filter;
use yorozu_kernel::logging::clock;

/// The text of `yorozu log -h`.
pub(crate) const HELP: &str = "\
Usage: yorozu [-p prefix] [-c filename] log [OPTION ...]

Prints requests as they come, until Ctrl-C: the time, what the cache did, why it was no hit, the status, how long it took,
and the request, with the header that did it if one did. At most 1000 a second are shown. The words for why are those of $cache_detail and Cache-Status.

Options:
  --miss        : only what the cache did not answer
  --host NAME   : only this host
  --uri TEXT    : only paths that contain this
  --reason WORD : only this reason, such as set-cookie
  --status CODE : only this status, such as 404 or 5xx
  --slow MS     : only what took as many milliseconds
  --args        : with arguments, which are left out otherwise
  --json        : each as JSON
  --error       : instead, what is kept of the error log in memory (error_log memory:SIZE), the oldest line first
";

/// How often a server that ended is looked for again, and for how long: a reload is no end.
const AGAIN: Duration = Duration::from_millis(250);
const TRIES: u32 = 20;

/// What follows `log`.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Log {
    is_error: bool,
    is_json: bool,
    query: String,
}

impl Log {
    /// Reads what follows `log`; `None`: help is wanted.
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub(crate) fn parse(parser: &mut lexopt::Parser) -> Result<Option<Self>, String> {
        let mut log = Self::default();
        while let Some(argument) = parser.next().map_err(|problem| problem.to_string())? {
            match argument {
                Short('h' | '?') | Long("help") => return Ok(None),
                Long("error") => log.is_error = true,
                Long("json") => log.is_json = true,
                Long(name @ ("miss" | "args")) => log.query += &format!("&{name}=1"),
                Long(name @ ("host" | "uri" | "reason" | "status" | "slow")) => {
                    let name = name.to_owned();
                    let value = parser.value().map_err(|problem| problem.to_string())?;
                    log.query += &format!("&{name}={}", escape(&value.to_string_lossy()));
                }
                other => return Err(other.unexpected().to_string()),
            }
        }
        Filter::of(log.query.as_bytes())?;
        Ok(Some(log))
    }

    /// Prints until the server or the reader ends.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub(crate) fn run(&self, options: &Options) -> Result<(), String> {
        if self.is_error {
            let target = "/log/error".to_owned();
            return Command { method: "GET", target, content: String::new() }.run(options);
        }
        let path = socket(options)?;
        let mut lines = self.open(&path)?;
        loop {
            let mut line = String::new();
            match lines.read_line(&mut line) {
                Ok(1..) => {
                    let shown = if self.is_json { harmless_json(&line) } else { shown(&line) };
                    let mut out = std::io::stdout().lock();
                    if out.write_all(shown.as_bytes()).and_then(|()| out.flush()).is_err() {
                        return Ok(());
                    }
                }
                Ok(0) | Err(_) => lines = self.open_again(&path)?,
            }
        }
    }

    fn open(
        &self,
        path: &Path,
    ) -> Result<std::io::BufReader<std::os::unix::net::UnixStream>, String> {
        open(path, &format!("/log/live?{}", self.query))
    }

    /// After a reload there is another configuration, after an upgrade another process.
    fn open_again(
        &self,
        path: &Path,
    ) -> Result<std::io::BufReader<std::os::unix::net::UnixStream>, String> {
        let mut tries = 0;
        loop {
            match self.open(path) {
                Err(_) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(AGAIN);
                }
                opened => return opened,
            }
        }
    }
}

/// A line as people read it.
fn shown(line: &str) -> String {
    let value: Value = serde_json::from_str(line).unwrap_or_default();
    if let Some(left_out) = value["left_out"].as_u64() {
        return format!("... {left_out} more\n");
    }
    let text = |name: &str| value[name].as_str().unwrap_or_default();
    let number = |name: &str| value[name].as_u64().unwrap_or_default();
    let at = value["at"].as_i64().unwrap_or_default();
    let cache = value["cache"].as_str().unwrap_or("-");
    let reason = value["reason"][1].as_str().unwrap_or("-");
    let micros = number("micros");
    let header = value["header"].as_str().map_or_else(String::new, |name| format!("  by {name}"));
    let url = format!("{}://{}{}{}", text("scheme"), text("host"), text("path"), text("args"));
    format!(
        "{}.{:03}  {cache:<11} {reason:<15} {:>3} {:>6}.{} ms  {} {}{}\n",
        clock::time_of_day(at.div_euclid(1000)),
        at.rem_euclid(1000),
        number("status"),
        micros / 1000,
        micros / 100 % 10,
        harmless(text("method")),
        harmless(&url),
        harmless(&header),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_a_query_and_wrong_ones_are_refused_at_once() {
        let parse = |words: &[&str]| Log::parse(&mut lexopt::Parser::from_args(words));
        assert_eq!(parse(&["-h"]), Ok(None));
        let log = parse(&["--miss", "--uri", "/a&b", "--status", "5xx"]).unwrap().unwrap();
        assert_eq!(log.query, "&miss=1&uri=%2Fa%26b&status=5xx");
        assert!(parse(&["--error"]).unwrap().unwrap().is_error);
        assert!(parse(&["--status", "7"]).unwrap_err().contains("expected one like 404 or 5xx"));
        assert!(parse(&["--reason", "x"]).unwrap_err().contains("unknown reason"));
        assert!(parse(&["--other"]).is_err());
    }

    #[test]
    fn what_a_client_sends_does_not_reach_the_terminal_as_orders() {
        let line = r#"{"at":1500,"method":"GET","scheme":"http","host":"h","path":"/\u001b[2J\u009b\u202e","args":"",
            "status":200,"cache":"MISS","reason":[7,"set-cookie"],"micros":12345}"#;
        let shown = shown(line);
        assert!(shown.ends_with("GET http://h/\\u{1b}[2J\\u{9b}\\u{202e}\n"), "{shown}");
        assert!(shown.contains("MISS        set-cookie      200     12.3 ms"), "{shown}");
        let by_header = line.replace("\"micros\"", "\"header\":\"x-odd\",\"micros\"");
        assert!(super::shown(&by_header).ends_with("  by x-odd\n"));
        assert_eq!(super::shown(r#"{"left_out":7}"#), "... 7 more\n");
    }
}
