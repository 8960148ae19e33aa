//! `yorozu purge`: removes stored pages of the running server.

use crate::control::{Ask, Control, parsed};
use crate::output::table;
use crate::warm::Warm;
use clap::{ArgGroup, Args};
use serde_json::{Value, json};
use yorozu_server::control;

/// What is purged, and what is warmed then.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").args(["urls", "tags", "is_all"]).required(true).multiple(true))]
#[command(group = ArgGroup::new("of a zone").args(["tags", "is_all"]).multiple(true))]
pub(crate) struct Purge {
    /// Address of a page; //HOST/PATH stands for http and https, a * at the end for all that begins so
    #[arg(value_name = "URL", value_parser = pattern)]
    urls: Vec<String>,
    /// Pages with this tag (Surrogate-Key, Cache-Tag, xkey); may be repeated
    #[arg(long = "tag", value_name = "NAME")]
    tags: Vec<String>,
    /// Limit --tag to this host [default: all]
    #[arg(long, value_name = "NAME", requires = "tags")]
    host: Option<String>,
    /// Limit --tag and --all to this zone [default: all]
    #[arg(long, value_name = "NAME", requires = "of a zone")]
    zone: Option<String>,
    /// All pages
    #[arg(long = "all")]
    is_all: bool,
    /// Serve each page once more, while it is refreshed
    #[arg(long = "soft")]
    is_soft: bool,
    /// Then regenerate this page, or what is missing of this sitemap's; may be repeated
    #[arg(long, value_name = "URL", value_parser = crate::warm::source)]
    warm: Vec<String>,
}

/// A URL of a page, or what many have in common.
///
/// # Errors
/// It is neither.
fn pattern(text: &str) -> Result<String, String> {
    let scheme = if text.starts_with("//") { "http:" } else { "" };
    control::head(&format!("{scheme}{text}"), "GET", "").map(|_| text.to_owned())
}

impl Purge {
    fn content(&self) -> String {
        let mut batch = json!({ "urls": self.urls, "tags": self.tags });
        for (name, value) in [("host", &self.host), ("zone", &self.zone)] {
            if let Some(value) = value {
                batch[name] = value.clone().into();
            }
        }
        for (name, is_set) in [("all", self.is_all), ("soft", self.is_soft)] {
            if is_set {
                batch[name] = true.into();
            }
        }
        batch.to_string()
    }
}

impl Ask for Purge {
    fn run(&self, control: &Control, is_json: bool) -> Result<(), String> {
        control.show(("POST", "/cache/purge", &self.content()), is_json, |text| {
            Ok(shown(&parsed(text)?))
        })?;
        match self.warm.is_empty() {
            true => Ok(()),
            false => Warm::of(self.warm.clone()).run(control, is_json),
        }
    }
}

/// An answer as people read it.
fn shown(answer: &Value) -> String {
    let counts = |what: &str| answer[what].as_object().into_iter().flatten();
    let tags = counts("tags").map(|(name, count)| [count.to_string(), format!("tag {name}")]);
    let urls = counts("urls").map(|(url, count)| [count.to_string(), url.clone()]);
    let rows: Vec<_> = tags.chain(urls).collect();
    let mut out = if rows.len() > 1 { table(["PAGES", "PURGED BY"], &rows) } else { String::new() };
    let purged = answer["purged"].as_u64().unwrap_or_default();
    out += &format!("{purged} page{} purged", if purged == 1 { "" } else { "s" });
    match answer["bus"].as_str() {
        Some("queued") => out += "; the bus cannot be reached, other nodes are told later",
        Some(_) => out += "; other nodes are told",
        None => {}
    }
    let late = answer["late"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let late: Vec<_> = late.collect();
    if !late.is_empty() {
        out += &format!("; these did not confirm it yet: {}", late.join(", "));
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_purged_is_counted_by_what_named_it() {
        let text = r#"{"purged":12,"tags":{"home":11,"post-17":1},"urls":{"//h/feed/":0},"bus":"sent","late":["b"]}"#;
        let shown = |text| super::shown(&parsed(text).unwrap());
        assert_eq!(
            shown(text),
            "PAGES  PURGED BY\n11     tag home\n1      tag post-17\n0      //h/feed/\n\
             12 pages purged; other nodes are told; these did not confirm it yet: b\n"
        );
        assert_eq!(shown(r#"{"purged":1,"urls":{"http://h/a":1},"tags":{}}"#), "1 page purged\n");
    }
}
