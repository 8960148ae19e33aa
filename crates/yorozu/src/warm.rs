//! `yorozu warm`: has the running server make pages before visitors come for them.

use crate::control::{Ask, Control, field, url};
use crate::output::show;
use clap::Args;
use flate2::read::GzDecoder;
use quick_xml::events::Event;
use serde_json::json;
use std::collections::HashSet;
use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use yorozu_kernel::base::readable::harmless;
use yorozu_server::control;

/// Pages made at once where nothing else is said: few enough for PHP to have time for visitors.
const JOBS: u16 = 4;
const JOBS_MAX: i64 = 256;
/// Sitemaps of sitemaps, and pages; sitemaps.org allows 50,000 of each in one file.
const SITEMAPS_MAX: usize = 1000;
const PAGES_MAX: usize = 1_000_000;
/// Most bytes of a sitemap when it is unpacked (sitemaps.org).
const SITEMAP_BYTES_MAX: u64 = 50 * 1024 * 1024;

/// What is to be warmed, and how.
#[derive(Debug, Args)]
pub(crate) struct Warm {
    /// Address of a page, of a sitemap (.xml, .xml.gz), or - for addresses from standard input, one per line
    #[arg(value_name = "URL", required = true, value_parser = source)]
    urls: Vec<String>,
    /// Pages to make at once
    #[arg(long, value_name = "N", default_value_t = JOBS, value_parser = clap::value_parser!(u16).range(1..=JOBS_MAX))]
    jobs: u16,
    /// Only without compression
    #[arg(long = "no-codings")]
    has_no_codings: bool,
    /// Header of the requests, such as one that a proxy in front adds; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = field)]
    fields: Vec<String>,
}

/// A page, a sitemap, or `-`.
///
/// # Errors
/// It is no URL.
pub(crate) fn source(text: &str) -> Result<String, String> {
    if text == "-" { Ok(text.to_owned()) } else { url(text) }
}

/// The outcome for a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Became {
    /// It was missing or stale, and is stored now.
    Made,
    /// It was there.
    Fresh,
    /// It is made, but not for others.
    NotStored,
}

/// The server's answer about one request.
#[derive(Debug)]
struct Answer {
    status: u16,
    cache: String,
    content: Vec<u8>,
}

impl Ask for Warm {
    /// Asks for each page, and says how it went.
    fn run(&self, control: &Control, is_json: bool) -> Result<(), String> {
        let begun = Instant::now();
        let pages = self.pages(control)?;
        let progress = Progress::new(pages.len());
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..usize::from(self.jobs).min(pages.len()) {
                scope.spawn(|| {
                    while let Some(url) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
                        progress.note(url, self.page(control, url));
                    }
                });
            }
        });
        progress.end(begun.elapsed(), is_json)
    }
}

impl Warm {
    /// Pages and sitemaps, in the usual way.
    pub(crate) fn of(urls: Vec<String>) -> Self {
        Self { urls, jobs: JOBS, has_no_codings: false, fields: Vec::new() }
    }

    /// Asks for one page, in each coding.
    fn page(&self, control: &Control, url: &str) -> Result<Became, String> {
        let first = self.request(control, url, None, false)?;
        if !(200..400).contains(&first.status) {
            return Err(format!("status {}", first.status));
        }
        let mut again = None;
        for coding in ["gzip", "br", "zstd"].iter().filter(|_| !self.has_no_codings) {
            again = Some(self.request(control, url, Some(coding), false)?.cache);
        }
        let again = match (again, first.cache.as_str()) {
            (Some(cache), _) => cache,
            (None, "MISS") => self.request(control, url, None, false)?.cache,
            (None, cache) => cache.to_owned(),
        };
        Ok(match (first.cache.as_str(), again.as_str()) {
            ("HIT", _) => Became::Fresh,
            ("MISS", "MISS") | ("-" | "BYPASS", _) => Became::NotStored,
            _ => Became::Made,
        })
    }

    /// The pages that are meant, each once, in their order.
    fn pages(&self, control: &Control) -> Result<Vec<String>, String> {
        let mut found = Found::default();
        for url in &self.urls {
            if url == "-" {
                for line in std::io::stdin().lock().lines() {
                    let line = line.map_err(|problem| format!("standard input: {problem}"))?;
                    let line = line.trim();
                    if !line.is_empty() {
                        control::head(line, "GET", "")?;
                        found.add(line.to_owned(), &found_host(line))?;
                    }
                }
            } else {
                found.add(url.clone(), &found_host(url))?;
            }
        }
        let mut read = 0;
        while let Some(url) = found.sitemaps.get(read).cloned() {
            read += 1;
            let host = found_host(&url);
            let text =
                self.sitemap(control, &url).map_err(|problem| format!("{url}: {problem}"))?;
            for url in locations(&text).map_err(|problem| format!("{url}: {problem}"))? {
                found.add(url, &host)?;
            }
        }
        if found.foreign > 0 {
            eprintln!("yorozu: {} URLs of other hosts in sitemaps are skipped", found.foreign);
        }
        Ok(found.pages)
    }

    /// The text of a sitemap, unpacked.
    fn sitemap(&self, control: &Control, url: &str) -> Result<String, String> {
        let answer = self.request(control, url, None, true)?;
        if answer.status != 200 {
            return Err(format!("status {}", answer.status));
        }
        let mut text = Vec::new();
        let unpacked = match answer.content.starts_with(&[0x1f, 0x8b]) {
            true => {
                GzDecoder::new(&answer.content[..]).take(SITEMAP_BYTES_MAX).read_to_end(&mut text)
            }
            false => (&answer.content[..]).read_to_end(&mut text),
        };
        unpacked.map_err(|problem| problem.to_string())?;
        String::from_utf8(text).map_err(|_| "not UTF-8".to_owned())
    }

    fn request(
        &self,
        control: &Control,
        url: &str,
        coding: Option<&str>,
        is_content_wanted: bool,
    ) -> Result<Answer, String> {
        let coding = coding.map_or_else(String::new, |name| format!("Accept-Encoding: {name}\r\n"));
        let head = control::head(
            url,
            "GET",
            &format!("User-Agent: yorozu warm\r\n{coding}{}", self.fields.concat()),
        )?;
        let target = if is_content_wanted { "/cache/warm?content=1" } else { "/cache/warm" };
        let mut answer = control.ask("POST", target, &head)?;
        let end = answer.iter().position(|byte| *byte == b'\n').unwrap_or(answer.len());
        let content = answer.split_off((end + 1).min(answer.len()));
        let line = String::from_utf8_lossy(&answer);
        let mut words = line.split_ascii_whitespace();
        let status = words.next().and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| format!("unexpected answer \"{}\"", line.trim()))?;
        Ok(Answer { status, cache: words.next().unwrap_or("-").to_owned(), content })
    }
}

#[derive(Default)]
struct Found {
    known: HashSet<String>,
    pages: Vec<String>,
    sitemaps: Vec<String>,
    /// URLs that a sitemap of another host named.
    foreign: usize,
}

impl Found {
    fn add(&mut self, url: String, host: &str) -> Result<(), String> {
        if found_host(&url) != host {
            self.foreign += 1;
            return Ok(());
        }
        if !self.known.insert(url.clone()) {
            return Ok(());
        }
        let path = url.split(['?', '#']).next().unwrap_or_default();
        let is_sitemap = path.ends_with(".xml") || path.ends_with(".xml.gz");
        let (list, max) = if is_sitemap {
            (&mut self.sitemaps, SITEMAPS_MAX)
        } else {
            (&mut self.pages, PAGES_MAX)
        };
        list.push(url);
        let what = if is_sitemap { "sitemaps" } else { "pages" };
        if list.len() > max { Err(format!("more than {max} {what}")) } else { Ok(()) }
    }
}

/// `host:port` of a URL.
fn found_host(url: &str) -> String {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default().to_lowercase()
}

/// The `<loc>` of every page or sitemap (sitemaps.org).
fn locations(text: &str) -> Result<Vec<String>, String> {
    let invalid = |problem: &dyn std::fmt::Display| format!("not a sitemap: {problem}");
    let mut reader = quick_xml::Reader::from_str(text);
    let (mut found, mut current, mut is_root_known) = (Vec::new(), None::<String>, false);
    loop {
        match reader.read_event().map_err(|problem| invalid(&problem))? {
            Event::Start(tag) if !is_root_known => {
                is_root_known = true;
                let name = tag.local_name();
                if !matches!(name.as_ref(), b"urlset" | b"sitemapindex") {
                    let name = String::from_utf8_lossy(name.as_ref()).into_owned();
                    return Err(invalid(&format!("<{name}>, expected <urlset> or <sitemapindex>")));
                }
            }
            Event::Start(tag) if tag.name().as_ref() == b"loc" => current = Some(String::new()),
            Event::Text(part) => {
                if let Some(url) = &mut current {
                    *url += &part.decode().map_err(|problem| invalid(&problem))?;
                }
            }
            Event::CData(part) => {
                if let Some(url) = &mut current {
                    *url += &part.decode().map_err(|problem| invalid(&problem))?;
                }
            }
            Event::GeneralRef(name) => {
                if let Some(url) = &mut current {
                    let name = name.decode().map_err(|problem| invalid(&problem))?;
                    let text = format!("&{name};");
                    *url += &quick_xml::escape::unescape(&text).map_err(|p| invalid(&p))?;
                }
            }
            Event::End(tag) if tag.name().as_ref() == b"loc" => {
                let url = current.take().unwrap_or_default();
                control::head(url.trim(), "GET", "")?;
                found.push(url.trim().to_owned());
            }
            Event::Eof if is_root_known => return Ok(found),
            Event::Eof => return Err(invalid(&"it is empty")),
            _ => {}
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    made: usize,
    fresh: usize,
    not_stored: usize,
    failed: usize,
}

/// Counts, and on a terminal a bar.
struct Progress {
    all: usize,
    counts: Mutex<Counts>,
    is_terminal: bool,
}

impl Progress {
    fn new(all: usize) -> Self {
        Self { all, counts: Mutex::default(), is_terminal: std::io::stderr().is_terminal() }
    }

    fn note(&self, url: &str, became: Result<Became, String>) {
        let mut counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match became {
            Ok(Became::Made) => counts.made += 1,
            Ok(Became::Fresh) => counts.fresh += 1,
            Ok(Became::NotStored) => counts.not_stored += 1,
            Err(problem) => {
                counts.failed += 1;
                let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
                eprintln!("{clear}{}", harmless(&format!("{url}: {problem}")));
            }
        }
        if self.is_terminal {
            /// Places of the bar.
            const WIDTH: usize = 30;
            let done = counts.made + counts.fresh + counts.not_stored + counts.failed;
            let filled = WIDTH * done / self.all.max(1);
            let bar = format!("{}{}", "#".repeat(filled), " ".repeat(WIDTH - filled));
            eprint!("\r\x1b[K[{bar}] {done}/{}  made {}", self.all, counts.made);
            let _ = std::io::stderr().flush();
        }
    }

    fn end(self, took: Duration, is_json: bool) -> Result<(), String> {
        let counts = self.counts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
        let Counts { made, fresh, not_stored, failed } = counts;
        let (all, seconds) = (self.all, took.as_secs_f64());
        let line = match is_json {
            true => json!({ "pages": all, "seconds": seconds, "made": made, "fresh": fresh, "not_stored": not_stored, "failed": failed }).to_string(),
            false => format!(
                "{all} pages in {seconds:.1} s: {made} made, {fresh} fresh, {not_stored} not stored, {failed} failed"
            ),
        };
        show(&(line + "\n"))?;
        if failed > 0 { Err(format!("{failed} pages failed")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sitemaps_are_read_and_what_is_none_is_refused() {
        let map = "<?xml version='1.0'?><!-- x --><urlset xmlns='y'><url><loc> https://h/a?b=1&amp;c=&#50;\n</loc>\
                   <image:loc>http://h/i.png</image:loc></url><url><loc><![CDATA[http://h/<]]></loc></url></urlset>";
        assert_eq!(locations(map).unwrap(), ["https://h/a?b=1&c=2", "http://h/<"]);
        let error = |text: &str| locations(text).unwrap_err();
        assert!(error("<html><body>").contains("<html>, expected <urlset>"));
        assert!(error("").contains("it is empty"));
        assert!(error("<urlset><url></wrong></urlset>").contains("not a sitemap"));
        assert!(error("<urlset><url><loc>no url</loc></url></urlset>").contains("invalid URL"));
    }

    #[test]
    fn pages_are_told_from_sitemaps_and_taken_once() {
        let mut found = Found::default();
        let urls =
            ["http://h/a", "http://h/a", "http://h/s.xml?x", "http://other/", "http://h/t.xml.gz"];
        for url in urls {
            found.add(url.to_owned(), "h").unwrap();
        }
        assert_eq!((found.pages.len(), found.sitemaps.len(), found.foreign), (1, 2, 1));
    }
}
