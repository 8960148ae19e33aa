//! What `POST /cache/purge` and `cache_purge_api` are sent. It is read as it stands: even if it is invalid, no
//! more is held than the purges that came before.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;
use yorozu_cache::PurgeMode;
use yorozu_gateway::cache::url::Scope;
use yorozu_http::uri::split_authority;

/// Most purges of one request.
pub(super) const PURGES_MAX: usize = 10_000;
/// Longest message about what is wrong, in characters: it may quote the content.
const PROBLEM_MAX: usize = 300;
/// What an object may hold.
const MEMBERS: &str = "urls, tags, host, zone, all, soft";

/// What is asked for.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) urls: Vec<String>,
    pub(super) tags: Vec<String>,
    pub(super) host: String,
    pub(super) zone: Option<String>,
    pub(super) all: bool,
    pub(super) mode: PurgeMode,
    /// Not said by what is sent: who is asked decides.
    pub(super) scope: Scope,
}

/// One or more batches, and whether they came as a list.
#[derive(Debug)]
pub(super) struct Batches(pub(super) Vec<Batch>, pub(super) bool);

impl Batches {
    /// # Errors
    /// What is wrong, and what was expected.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let count = Count(Cell::new(0));
        let mut json = serde_json::Deserializer::from_slice(text);
        let batches = json.deserialize_any(BatchesVisitor(&count));
        let batches = batches.and_then(|batches| json.end().map(|()| batches));
        batches.map_err(|problem| {
            let text = format!("invalid JSON: {problem}");
            match text.char_indices().nth(PROBLEM_MAX) {
                Some((at, _)) => format!("{}...", &text[..at]),
                None => text,
            }
        })
    }
}

/// The purges of one request.
struct Count(Cell<usize>);

impl Count {
    fn add<E: Error>(&self) -> Result<(), E> {
        self.0.set(self.0.get() + 1);
        if self.0.get() > PURGES_MAX {
            return Err(E::custom(format_args!(
                "more than the {PURGES_MAX} purges that one request may have"
            )));
        }
        Ok(())
    }
}

/// A batch or a list of them.
struct BatchesVisitor<'a>(&'a Count);

impl<'de> Visitor<'de> for BatchesVisitor<'_> {
    type Value = Batches;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object or a list of them")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Batches, A::Error> {
        Ok(Batches(vec![BatchVisitor(self.0).visit_map(map)?], false))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Batches, A::Error> {
        let mut batches = Vec::new();
        while let Some(batch) = list.next_element_seed(BatchVisitor(self.0))? {
            batches.push(batch);
        }
        Ok(Batches(batches, true))
    }
}

struct BatchVisitor<'a>(&'a Count);

impl<'de> DeserializeSeed<'de> for BatchVisitor<'_> {
    type Value = Batch;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Batch, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for BatchVisitor<'_> {
    type Value = Batch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Batch, A::Error> {
        let (mut urls, mut tags, mut all, mut soft) = (None, None, None, None);
        let (mut host, mut zone) = (None::<Option<String>>, None);
        while let Some(name) = map.next_key::<String>()? {
            let is_first = match &*name {
                "urls" => urls.replace(map.next_value_seed(Strings(self.0))?).is_none(),
                "tags" => tags.replace(map.next_value_seed(Strings(self.0))?).is_none(),
                "host" => host.replace(map.next_value()?).is_none(),
                "zone" => zone.replace(map.next_value()?).is_none(),
                "all" => all.replace(map.next_value()?).is_none(),
                "soft" => soft.replace(map.next_value()?).is_none(),
                _ => {
                    let name: String = name.chars().take(PROBLEM_MAX / 2).collect();
                    return Err(A::Error::custom(format_args!(
                        "unknown member \"{name}\", expected one of: {MEMBERS}"
                    )));
                }
            };
            if !is_first {
                return Err(A::Error::custom(format_args!("duplicate member \"{name}\"")));
            }
        }
        let batch = Batch {
            urls: urls.unwrap_or_default(),
            tags: tags.unwrap_or_default(),
            host: host.flatten().map(as_requests_name_it).transpose()?.unwrap_or_default(),
            zone: zone.flatten(),
            all: all.unwrap_or(false),
            mode: if soft.unwrap_or(false) { PurgeMode::Soft } else { PurgeMode::Hard },
            scope: Scope::default(),
        };
        if batch.all {
            self.0.add()?;
        }
        if batch.urls.is_empty() && batch.tags.is_empty() && !batch.all {
            let text = "nothing to purge: expected \"urls\", \"tags\" or \"all\"";
            return Err(A::Error::custom(text));
        }
        Ok(batch)
    }
}

/// A host in the form that tags have it in: that of requests, without port or dot at the end.
fn as_requests_name_it<E: Error>(host: String) -> Result<String, E> {
    if host.is_empty() {
        return Ok(host);
    }
    let found = split_authority(host.as_bytes());
    let found = found.and_then(|(host, _)| String::from_utf8(host.into_owned()).ok());
    found.ok_or_else(|| {
        let host: String = host.chars().take(PROBLEM_MAX / 2).collect();
        E::custom(format_args!("\"{host}\" is not a host"))
    })
}

/// What is to be purged: each counts.
struct Strings<'a>(&'a Count);

impl<'de> DeserializeSeed<'de> for Strings<'_> {
    type Value = Vec<String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Vec<String>, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Strings<'_> {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<String>, A::Error> {
        let mut strings = Vec::new();
        while let Some(string) = list.next_element()? {
            self.0.add()?;
            strings.push(string);
        }
        Ok(strings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use yorozu_kernel::base::limits;

    fn error(text: &str) -> String {
        Batches::parse(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(error("{").starts_with("invalid JSON"));
        assert!(error("").starts_with("invalid JSON"));
        assert!(error("7").contains("expected a JSON object or a list of them"));
        assert!(error("[7]").contains("expected a JSON object at"));
        assert!(error("{}").contains("nothing to purge"));
        assert!(error(r#"{"url": []}"#).contains("unknown member \"url\", expected one of"));
        assert!(error(r#"{"urls": "a"}"#).contains("expected a list of strings"));
        assert!(error(r#"{"tags": ["a", 1]}"#).contains("expected a string at"));
        assert!(error(r#"{"all": 1}"#).contains("expected a boolean"));
        assert!(error(r#"{"all": true} x"#).contains("trailing characters"));
        assert!(error(r#"{"tags": ["a"], "tags": ["b"]}"#).contains("duplicate member \"tags\""));
    }

    #[test]
    fn batches_are_read() {
        let soft = r#"{"tags": ["a"], "host": "WWW.x", "zone": null, "soft": true}"#;
        let Batches(one, is_list) = Batches::parse(soft.as_bytes()).unwrap();
        assert_eq!((one[0].host.as_str(), one[0].mode), ("www.x", PurgeMode::Soft));
        let host = |text: &str| {
            Batches::parse(format!(r#"{{"tags": ["a"], "host": "{text}"}}"#).as_bytes())
        };
        assert_eq!(host("Www.x.:8080").unwrap().0[0].host, "www.x");
        assert!(host("a/b").unwrap_err().contains("\"a/b\" is not a host"));
        assert_eq!((one[0].zone.as_ref(), is_list), (None, false));
        let list = format!(r#"[{soft}, {{"urls": ["/"]}}]"#);
        assert!(
            matches!(Batches::parse(list.as_bytes()), Ok(Batches(all, true)) if all.len() == 2)
        );
    }

    #[test]
    fn as_many_purges_as_are_allowed_are_read_and_no_more() {
        let of = |count: usize| {
            let url = format!("\"http://www.example.com/{}\"", "%E3%81%82".repeat(40));
            format!("[{{\"all\":true}},{{\"urls\":[{}]}}]", vec![&*url; count - 1].join(","))
        };
        let most = of(PURGES_MAX);
        assert!(most.len() < limits::CONTROL_BYTES_MAX);
        assert_eq!(Batches::parse(most.as_bytes()).unwrap().0[1].urls.len(), PURGES_MAX - 1);
        assert!(error(&of(PURGES_MAX + 1)).contains("more than the 10000 purges"));
        let many = format!("[{}]", vec![r#"{"all":true}"#; PURGES_MAX + 1].join(","));
        assert!(error(&many).contains("more than the 10000 purges"));
    }

    #[test]
    fn bombs_are_refused_early_with_a_short_message() {
        let long = 1 << 20;
        let bombs = [
            "[".repeat(long),
            "{\"urls\":".repeat(long / 8),
            format!("{{\"tags\":{}", "[".repeat(long)),
            format!("{{\"host\":{}", "[[".repeat(long / 2)),
            format!("{{\"zone\":{{\"a\":{}", "{\"a\":".repeat(long / 5)),
            format!("{{\"all\":{}}}", "9".repeat(long)),
            format!("{{\"all\":1e{}}}", "9".repeat(long)),
            format!("{{\"all\":\"{}\"}}", "x".repeat(long)),
            format!("{{\"{}\":1}}", "y".repeat(long)),
            format!("{{\"urls\":[{}]}}", vec!["\"\""; long / 3].join(",")),
            format!("{{\"urls\":[{}]}}", vec!["0"; long / 2].join(",")),
            format!("{{{}}}", vec!["\"soft\":true"; long / 12].join(",")),
            format!("[{}]", vec!["{}"; long / 3].join(",")),
            "\u{0}".repeat(long),
            "\"\\ud800\"".repeat(long / 8),
        ];
        for bomb in bombs {
            let text = error(&bomb);
            assert!(text.len() < 4 * PROBLEM_MAX, "{} bytes", text.len());
        }
    }
}
