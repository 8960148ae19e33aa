//! What `yorozu top` shows: figures in, rows of text out.

use serde_json::Value;
use std::collections::VecDeque;
use std::fmt::Write as _;
use yorozu_kernel::base::readable::{harmless, size};
use yorozu_kernel::live::reason::Reason;
use yorozu_kernel::live::times;
use yorozu_kernel::logging::clock;

/// Figures that are kept, of a second each: the minute that rates are of.
const KEPT: usize = 61;
/// Most rows of a list.
const LIST: usize = 8;
/// Longest bar.
const BAR: usize = 24;

/// Purges that are shown.
const PURGES: usize = 5;

/// The figures of the last minute, and the last purges, the latest first.
#[derive(Debug, Default)]
pub(super) struct Screen {
    figures: VecDeque<Value>,
    purges: VecDeque<String>,
    /// Whether the server is asked again, as it ended or has another configuration.
    pub(super) is_lost: bool,
}

/// What was counted between two figures.
struct Span<'a> {
    now: &'a Value,
    then: &'a Value,
}

impl Span<'_> {
    fn of(&self, pointer: &str) -> u64 {
        let count = |value: &Value| value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        count(self.now).saturating_sub(count(self.then))
    }

    fn hits(&self) -> u64 {
        ["HIT", "STALE", "UPDATING"]
            .iter()
            .map(|status| self.of(&format!("/answers/{status}")))
            .sum()
    }

    /// Answers of caches that were asked, but for those that must not be stored.
    fn storable(&self) -> u64 {
        let statuses = ["EXPIRED", "HIT", "MISS", "REVALIDATED", "STALE", "UPDATING"];
        let asked: u64 = statuses.iter().map(|status| self.of(&format!("/answers/{status}"))).sum();
        asked.saturating_sub(self.of("/unstorable"))
    }

    /// The time within which this part of a hundred requests was answered.
    fn percentile(&self, part: u64) -> String {
        let steps: Vec<u64> =
            (0..times::CELLS).map(|step| self.of(&format!("/times/{step}"))).collect();
        let all: u64 = steps.iter().sum();
        let mut below = 0;
        let found = steps.iter().position(|count| {
            below += count;
            all > 0 && below * 100 >= part * all
        });
        found.map_or("-".to_owned(), |step| millis(times::end(step)))
    }
}

fn millis(micros: u64) -> String {
    match micros {
        ..1000 => "<1 ms".to_owned(),
        1000..10_000 => format!("{}.{} ms", micros / 1000, micros / 100 % 10),
        10_000..10_000_000 => format!("{} ms", micros / 1000),
        _ => duration(micros / 1_000_000),
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// A part of a whole in per cent, with one digit behind the point.
fn percent(part: u64, all: u64) -> String {
    match (part * 1000).checked_div(all) {
        None => "-".to_owned(),
        Some(permille) => format!("{}.{} %", permille / 10, permille % 10),
    }
}

impl Screen {
    /// Another second's figures. Of another process they begin again.
    pub(super) fn take(&mut self, figures: Value) {
        if self.figures.back().is_some_and(|last| last["begun"] != figures["begun"]) {
            self.figures.clear();
        }
        self.figures.push_back(figures);
        while self.figures.len() > KEPT {
            self.figures.pop_front();
        }
    }

    /// Purges that were done.
    pub(super) fn take_purges(&mut self, purges: &Value) {
        for purge in purges.as_array().into_iter().flatten() {
            let text = |name: &str| purge[name].as_str().unwrap_or_default();
            let at = clock::time_of_day(purge["at"].as_i64().unwrap_or(0) / 1000);
            let soft = if purge["soft"] == true { ", served once more" } else { "" };
            let pages = purge["pages"].as_u64().unwrap_or(0);
            let line = format!("  {at}  {} {}: {pages} stored{soft}", text("kind"), text("what"));
            self.purges.push_front(line);
        }
        self.purges.truncate(PURGES);
    }

    /// The whole screen, for a terminal of that many columns and rows.
    pub(super) fn draw(&self, (columns, rows): (usize, usize)) -> String {
        let mut out = "\x1b[H".to_owned();
        let lines = self.lines();
        for (number, line) in lines.iter().take(rows).enumerate() {
            let line: String = harmless(line).chars().take(columns).collect();
            let end = if number + 1 < rows.min(lines.len()) { "\r\n" } else { "" };
            let _ = write!(out, "{line}\x1b[K{end}");
        }
        out + "\x1b[J"
    }

    fn lines(&self) -> Vec<String> {
        let (Some(now), Some(first)) = (self.figures.back(), self.figures.front()) else {
            return vec!["yorozu top: waiting for the first figures".to_owned()];
        };
        let mut lines = Vec::new();
        let nothing = Value::Null;
        heads(&Span { now, then: first }, &Span { now, then: &nothing }, &mut lines);
        if self.is_lost {
            lines[0] += "   reconnecting";
        }
        reasons(&Span { now, then: first }, &Span { now, then: &nothing }, &mut lines);
        pages(now, &mut lines);
        upstreams(now, &mut lines);
        zones(now, &mut lines);
        lines.extend([String::new(), "PURGES".to_owned()]);
        lines.extend(self.purges.iter().cloned());
        lines
    }
}

fn heads(minute: &Span<'_>, all: &Span<'_>, lines: &mut Vec<String>) {
    let now = minute.now;
    let at = now["now"].as_i64().unwrap_or(0);
    lines.push(format!("yorozu top  {}  q ends", clock::time_of_day(at / 1000)));
    lines.push(String::new());
    let both = |of: fn(&Span<'_>) -> (u64, u64)| {
        let (lately, ever) = (of(minute), of(all));
        format!("{:>8}  since start {:>8}", percent(lately.0, lately.1), percent(ever.0, ever.1))
    };
    let of_all = both(|span| (span.hits(), span.of("/requests")));
    let of_able = both(|span| (span.hits(), span.storable()));
    let seconds = (minute.of("/now") / 1000).max(1);
    let rate = minute.of("/requests") * 10 / seconds;
    let saved = duration(all.of("/saved_ms") / 1000);
    let names = ["hit rate, all requests", "hit rate, cacheable requests"];
    let rate = format!("requests/s  {}.{}", rate / 10, rate % 10);
    lines.push(format!("{:<28} {of_all}    {rate}", names[0]));
    lines.push(format!("{:<28} {of_able}    PHP saved   {saved}", names[1]));
    let [p50, p95, p99] = [50, 95, 99].map(|part| minute.percentile(part));
    let connections =
        (now["connections"]["active"].as_u64(), now["connections"]["waiting"].as_u64());
    let (active, waiting) = (connections.0.unwrap_or(0), connections.1.unwrap_or(0));
    lines.push(format!(
        "time  p50 {p50}  p95 {p95}  p99 {p99}      connections {active}, {waiting} idle"
    ));
}

fn title(number: &str) -> &'static str {
    let number = number.parse().unwrap_or(usize::MAX);
    Reason::all().nth(number).map_or("?", |reason| reason.words().0)
}

fn reasons(minute: &Span<'_>, all: &Span<'_>, lines: &mut Vec<String>) {
    let counts = |span: &Span<'_>| {
        let names = span.now["reasons"].as_object().into_iter().flatten().map(|(name, _)| name);
        let counts = names.map(|name| (name.clone(), span.of(&format!("/reasons/{name}"))));
        let mut counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
        counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        counts
    };
    let (lately, ever) = (counts(minute), counts(all));
    let (shown, when) =
        if lately.is_empty() { (ever, "since start") } else { (lately, "the last minute") };
    let sum: u64 = shown.iter().map(|(_, count)| count).sum();
    lines.extend([String::new(), format!("WHY REQUESTS MISSED THE CACHE, {when}")]);
    if shown.is_empty() {
        lines.push("  none".to_owned());
    }
    for (number, count) in shown.iter().take(LIST) {
        let length = usize::try_from(*count * BAR as u64 / sum.max(1)).unwrap_or(0).max(1);
        let bar = "#".repeat(length);
        lines.push(format!(
            "  {:>7} {count:>8}  {bar:<BAR$}  {}",
            percent(*count, sum),
            title(number)
        ));
    }
}

fn pages(now: &Value, lines: &mut Vec<String>) {
    lines.extend([String::new(), "MOST EXPENSIVE PAGES".to_owned()]);
    lines.push(format!("  {:>12} {:>8} {:>8}  {:<28} page", "total", "each", "requests", "why"));
    for page in now["pages"].as_array().into_iter().flatten().take(LIST) {
        let (micros, times) =
            (page["micros"].as_u64().unwrap_or(0), page["requests"].as_u64().unwrap_or(0));
        let why = title(&page["reason"].to_string());
        let (host, path) =
            (page["host"].as_str().unwrap_or(""), page["path"].as_str().unwrap_or(""));
        let each = millis(micros / times.max(1));
        lines
            .push(format!("  {:>12} {each:>8} {times:>8}  {why:<28} {host}{path}", millis(micros)));
    }
}

fn upstreams(now: &Value, lines: &mut Vec<String>) {
    lines.extend([String::new(), "UPSTREAMS".to_owned()]);
    for (name, group) in now["upstreams"].as_object().into_iter().flatten().take(LIST) {
        for peer in group["peers"].as_array().into_iter().flatten().take(LIST) {
            let count = |name: &str| peer[name].as_u64().unwrap_or(0);
            let mean = count("micros").checked_div(count("answers"));
            let mean = mean.map_or("-".to_owned(), millis);
            lines.push(format!(
                "  {:<11} active {:>4}  requests {:>8}  failed {:>6}  mean {mean:>8}  {name}: {}",
                peer["state"].as_str().unwrap_or("?"),
                count("active"),
                count("requests"),
                count("fails"),
                peer["server"].as_str().unwrap_or("?"),
            ));
        }
    }
}

fn zones(now: &Value, lines: &mut Vec<String>) {
    lines.extend([String::new(), "ZONES".to_owned()]);
    for (name, zone) in now["caches"].as_object().into_iter().flatten().take(LIST) {
        let of = |tier: &str| {
            let tier = &zone[tier];
            let number = |name: &str| tier[name].as_u64().unwrap_or(0);
            let max =
                tier["max"].as_u64().map_or(String::new(), |max| format!(" of {}", size(max)));
            format!("{} in {} pages{max}", size(number("bytes")), number("pages"))
        };
        let evicted: u64 = zone["evicted"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, count)| count.as_u64())
            .sum();
        lines.push(format!(
            "  {name}: memory {}; disk {}; evicted {evicted}; purged {}",
            of("memory"),
            of("disk"),
            zone["purged"]
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn figures(second: u64, requests: u64) -> Value {
        json!({
            "now": second * 1000, "begun": 1, "requests": requests,
            "answers": { "HIT": requests / 2, "MISS": requests / 4, "BYPASS": requests / 4 },
            "reasons": { "7": requests / 4, "1": requests / 4 }, "times": [0, requests], "saved_ms": 61_000, "unstorable": requests / 8,
            "pages": [{ "host": "h", "path": "/\u{1b}[2J", "requests": 2, "micros": 3_000_000, "reason": 7 }],
            "connections": { "active": 3, "waiting": 2 },
            "upstreams": { "web": { "peers": [{ "server": "127.0.0.1:9", "state": "up", "requests": 5, "answers": 2, "micros": 40_000 }] } },
            "caches": { "pages": { "memory": { "bytes": 1, "pages": 1, "max": 4096 }, "disk": { "bytes": 0, "pages": 0 }, "evicted": {}, "purged": 0 } },
        })
    }

    #[test]
    fn figures_become_rates_and_rows() {
        let mut screen = Screen::default();
        assert!(screen.draw((80, 24)).contains("waiting for the first figures"));
        screen.take(figures(1, 0));
        screen.take(figures(11, 400));
        let purges = [json!({ "at": 1, "kind": "tag", "what": "a.example home", "pages": 3 })];
        screen.take_purges(&json!(purges));
        let text = screen.draw((120, 60));
        for part in [
            "50.0 %",
            "80.0 %",
            "requests/s  40.0",
            "1 min 1 s",
            "Bypassed by a rule",
            "The page sets a cookie",
            "web: 127.0.0.1:9",
            "mean    20 ms",
            "tag a.example home: 3 stored",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("/\u{1b}[2J"), "what a client sent is no order");
    }

    #[test]
    fn no_more_is_drawn_than_there_is_room_for() {
        let mut screen = Screen::default();
        screen.take(figures(1, 100));
        for (columns, rows) in [(80, 24), (20, 5), (1, 1), (300, 100)] {
            let text = screen.draw((columns, rows));
            assert!(text.matches('\n').count() < rows, "{rows} rows");
            let drawn = text.replace("\x1b[H", "").replace("\x1b[J", "").replace("\x1b[K", "");
            assert!(
                drawn.lines().all(|line| line.trim_end_matches('\r').chars().count() <= columns)
            );
        }
        screen.take(json!({ "begun": 2 }));
        assert_eq!(screen.figures.len(), 1, "of another process they begin again");
    }
}
