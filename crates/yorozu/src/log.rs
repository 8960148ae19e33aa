//! `yorozu log`: requests as they come, and the error log that is kept in memory.

use crate::control::{Ask, Control, escape};
use crate::output::show;
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use yorozu_kernel::base::readable::{harmless, harmless_json};
use yorozu_kernel::live::filter::Filter;
use yorozu_kernel::live::reason::Reason;
use yorozu_kernel::logging::clock;

/// How often a server that ended is looked for again, and for how long: a reload is no end.
const AGAIN: Duration = Duration::from_millis(250);
const TRIES: u32 = 20;

/// Which requests are followed.
#[derive(Debug, Args)]
pub(crate) struct Log {
    /// Only what the cache did not answer
    #[arg(long)]
    miss: bool,
    /// Only this host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Only paths that contain this
    #[arg(long, value_name = "TEXT")]
    uri: Option<String>,
    /// Only this reason, such as set-cookie
    #[arg(long, value_name = "REASON", hide_possible_values = true,
        value_parser = PossibleValuesParser::new(Reason::all().map(Reason::name)))]
    reason: Option<String>,
    /// Only this status, such as 404 or 5xx
    #[arg(long, value_name = "CODE", value_parser = status)]
    status: Option<String>,
    /// Only requests that took at least this long, in milliseconds
    #[arg(long, value_name = "MS")]
    slow: Option<u64>,
    /// Show arguments, which are left out otherwise
    #[arg(long)]
    args: bool,
    /// Instead, print what is kept of the error log in memory (error_log memory:SIZE), the oldest line first
    #[arg(long = "error", conflicts_with_all = ["miss", "host", "uri", "reason", "status", "slow", "args", "is JSON"])]
    is_error: bool,
}

/// A status, or a class of them.
///
/// # Errors
/// It is neither.
fn status(text: &str) -> Result<String, String> {
    Filter::of(format!("status={}", escape(text)).as_bytes()).map(|_| text.to_owned())
}

impl Ask for Log {
    fn run(&self, control: &Control, is_json: bool) -> Result<(), String> {
        if self.is_error {
            return show(&control.text("GET", "/log/error", "")?);
        }
        let mut lines = self.open(control)?;
        loop {
            let mut line = String::new();
            match lines.read_line(&mut line) {
                Ok(1..) => {
                    let shown = if is_json { harmless_json(&line) } else { shown(&line) };
                    let mut out = std::io::stdout().lock();
                    if out.write_all(shown.as_bytes()).and_then(|()| out.flush()).is_err() {
                        return Ok(());
                    }
                }
                Ok(0) | Err(_) => lines = self.open_again(control)?,
            }
        }
    }
}

impl Log {
    fn target(&self) -> String {
        let mut query = String::new();
        for (name, is_set) in [("miss", self.miss), ("args", self.args)] {
            query += &if is_set { format!("&{name}=1") } else { String::new() };
        }
        let slow = self.slow.map(|slow| slow.to_string());
        let values = [
            ("host", &self.host),
            ("uri", &self.uri),
            ("reason", &self.reason),
            ("status", &self.status),
            ("slow", &slow),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                query += &format!("&{name}={}", escape(value));
            }
        }
        format!("/log/live?{query}")
    }

    fn open(&self, control: &Control) -> Result<BufReader<UnixStream>, String> {
        control.open(&self.target())
    }

    /// After a reload there is another configuration, after an upgrade another process.
    fn open_again(&self, control: &Control) -> Result<BufReader<UnixStream>, String> {
        let mut tries = 0;
        loop {
            match self.open(control) {
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
