//! Those who purge, by every way there is.

use super::Round;
use super::reader::Connection;
use super::server::TOKEN;
use super::site::{Page, SECTIONS};
use std::sync::Arc;
use std::time::Duration;

/// What is purged at once.
struct Wanted<'a> {
    kind: &'static str,
    pages: Vec<&'a Page>,
    tags: Vec<String>,
    /// As paths; those that end with `*` are prefixes.
    urls: Vec<String>,
    is_soft: bool,
}

fn any_wanted<'a>(round: &'a Round, draw: &mut fastrand::Rng) -> Wanted<'a> {
    let pages = &round.site.pages;
    let one = round.site.any(draw);
    let section = draw.usize(..SECTIONS);
    let of_section = || pages.iter().filter(|page| page.section == section).collect::<Vec<_>>();
    let is_soft = draw.u8(..3) == 0;
    let url = |page: &Page| page.path();
    let mut wanted =
        Wanted { kind: "", pages: vec![one], tags: Vec::new(), urls: Vec::new(), is_soft };
    match draw.u8(..33) {
        0..12 => (wanted.kind, wanted.urls) = ("url", vec![url(one)]),
        12..24 => (wanted.kind, wanted.tags) = ("tag", vec![format!("p{}", one.number)]),
        24..26 => {
            (wanted.kind, wanted.pages) = ("tag of a section", of_section());
            wanted.tags = vec![format!("s{section}")];
        }
        26..28 => {
            (wanted.kind, wanted.pages) = ("prefix", of_section());
            wanted.urls = vec![format!("/s{section}/*")];
        }
        28..31 => {
            let end = draw.usize(1..=pages.len().min(5000));
            (wanted.kind, wanted.pages) = ("batch", pages[..end].iter().collect());
            for page in &wanted.pages {
                match draw.bool() {
                    true => wanted.urls.push(url(page)),
                    false => wanted.tags.push(format!("p{}", page.number)),
                }
            }
        }
        31 => (wanted.kind, wanted.pages) = ("all", pages.iter().collect()),
        _ => {
            (wanted.kind, wanted.pages) = ("tag of all", pages.iter().collect());
            wanted.tags = vec!["all".to_owned()];
        }
    }
    wanted
}

impl Wanted<'_> {
    /// The arguments of `yorozu purge`.
    fn words(&self) -> Vec<String> {
        let mut words = vec!["purge".to_owned()];
        words.extend(self.is_soft.then(|| "--soft".to_owned()));
        words.extend(self.tags.iter().flat_map(|tag| ["--tag".to_owned(), tag.clone()]));
        words.extend(self.urls.iter().map(|url| format!("http://a.test{url}")));
        if self.kind == "all" {
            words.push("--all".to_owned());
        }
        words
    }

    fn json(&self) -> String {
        let list = |items: &[String]| {
            items.iter().map(|item| format!("\"{item}\"")).collect::<Vec<_>>().join(",")
        };
        let (tags, urls, soft) = (list(&self.tags), list(&self.urls), self.is_soft);
        match self.tags.is_empty() || self.urls.is_empty() {
            true => format!("{{\"tags\":[{tags}],\"urls\":[{urls}],\"soft\":{soft}}}"),
            false => format!(
                "[{{\"tags\":[{tags}],\"soft\":{soft}}},{{\"urls\":[{urls}],\"soft\":{soft}}}]"
            ),
        }
    }

    fn field(&self) -> String {
        let tags = self.tags.iter().map(|tag| format!("tag={tag}"));
        let urls = self.urls.iter().map(|url| format!("url={url}"));
        let soft = self.is_soft.then(|| "soft".to_owned());
        tags.chain(urls).chain(soft).collect::<Vec<_>>().join(", ")
    }
}

/// Sends one request; returns whether it succeeded.
async fn ask(
    round: &Round,
    method: &str,
    path: &str,
    field: (&str, String),
    content: &[u8],
) -> bool {
    let asked = async {
        let mut connection = Connection::open(round.server.port).await?;
        connection.send(method, path, &[field], content).await?;
        connection.answer(false, usize::MAX, Duration::ZERO).await
    };
    let Some(answer) = asked.await.filter(|answer| answer.is_whole) else { return false };
    // 412: nothing was stored. A troubled page's POST does nothing.
    let is_done = matches!(answer.status, 200 | 412);
    if !is_done && method != "POST" || answer.status == 403 {
        round.wrong(format!("{method} {path}: {answer:?}"));
    }
    is_done
}

/// The way, and whether it was acknowledged; `None` if there is no such way for it.
async fn perform(
    round: &Round,
    wanted: &Wanted<'_>,
    draw: &mut fastrand::Rng,
) -> Option<(&'static str, bool)> {
    let is_one_url = wanted.urls.len() == 1 && wanted.tags.is_empty();
    let url = wanted.urls.first().map_or("", |url| url);
    let nothing = || ("x-none", String::new());
    Some(match draw.u8(..10) {
        0..3 if is_one_url && !wanted.is_soft => {
            ("PURGE", ask(round, "PURGE", url, nothing(), b"").await)
        }
        3 if is_one_url && !wanted.is_soft && wanted.kind == "url" => {
            let one = wanted.pages[0];
            // The lifetime is the page's own, so that a POST is said to change it.
            ("POST", ask(round, "POST", &one.path(), nothing(), b"x").await)
        }
        4..6 => ("command", round.server.command(&wanted.words()).await),
        6 if wanted.kind != "all" && wanted.pages.len() < 100 => {
            ("answer", ask(round, "GET", "/do", ("x-do", wanted.field()), b"").await)
        }
        _ if wanted.kind != "all" => {
            let token = ("authorization", format!("Bearer {TOKEN}"));
            ("site", ask(round, "POST", "/.purge", token, wanted.json().as_bytes()).await)
        }
        _ => return None,
    })
}

pub(crate) async fn purge(round: Arc<Round>, mut draw: fastrand::Rng) {
    while !round.is_over() {
        tokio::time::sleep(Duration::from_millis(draw.u64(..100))).await;
        let wanted = any_wanted(&round, &mut draw);
        // No process learns what another one purges while it takes over.
        let _gate = round.server.gate.read().await;
        let versions: Vec<u64> = wanted.pages.iter().map(|page| page.raise()).collect();
        let before = round.server.disturbance();
        let Some((way, is_done)) = perform(&round, &wanted, &mut draw).await else { continue };
        if !is_done {
            if before.is_multiple_of(2) && round.server.disturbance() == before && way != "POST" {
                round.count("purges not acknowledged");
            }
            continue;
        }
        let how = format!("{} by {way}", wanted.kind);
        for (page, version) in wanted.pages.iter().zip(versions) {
            page.purged(version, wanted.is_soft, &how);
        }
        round.count_purge(how, wanted.is_soft, wanted.pages.len());
    }
}
