//! `yorozu cache`, `yorozu explain` and `yorozu acme`: what a running server says of its cache and its certificates.

use crate::control::{Ask, Control, escape, field, method, parsed, url};
use crate::output::table;
use clap::Args;
use serde_json::Value;
use yorozu_kernel::base::readable::size;
use yorozu_server::control;

/// Figures of each zone.
#[derive(Debug, Args)]
pub(crate) struct Stat;

impl Ask for Stat {
    fn run(&self, control: &Control, is_json: bool) -> Result<(), String> {
        control.show(("GET", "/cache/stat", ""), is_json, zones)
    }
}

/// A row for each zone.
fn zones(text: &str) -> Result<String, String> {
    let found = parsed(text)?;
    let of = |place: &Value, what: &str, most: &str| match place[most].as_u64() {
        Some(most) => format!("{} of {}", bytes(&place[what]), size(most)),
        None => bytes(&place[what]),
    };
    let zones = found["zones"].as_object().into_iter().flatten();
    let rows: Vec<_> = zones
        .map(|(name, zone)| {
            let (memory, disk) = (&zone["memory"], &zone["disk"]);
            [
                name.clone(),
                memory["pages"].to_string(),
                of(memory, "bytes", "bytes_max"),
                format!("{} of {}", disk["pages"], disk["pages_max"]),
                of(disk, "bytes", "bytes_max"),
                disk["unwritten"].to_string(),
                of(&zone["names"], "bytes", "bytes_max"),
                text_of(&disk["path"]),
            ]
        })
        .collect();
    let heads = ["ZONE", "IN MEMORY", "MEMORY", "ON DISK", "DISK", "UNWRITTEN", "NAMES", "FOLDER"];
    Ok(table(heads, &rows))
}

/// Stored pages, and which of them are wanted.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Zone to list [default: all]
    zone: Option<String>,
    /// Only keys that begin with this
    #[arg(long, value_name = "KEY")]
    prefix: Option<String>,
    /// Most pages to list
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
}

impl List {
    fn target(&self) -> String {
        let add = |name: &str, value: &Option<String>| {
            value.as_ref().map_or_else(String::new, |value| format!("&{name}={}", escape(value)))
        };
        let (zone, prefix) = (add("zone", &self.zone), add("prefix", &self.prefix));
        format!("/cache/ls?limit={}{zone}{prefix}", self.limit)
    }
}

impl Ask for List {
    fn run(&self, control: &Control, is_json: bool) -> Result<(), String> {
        control.show(("GET", &self.target(), ""), is_json, |text| self.shown(text))
    }
}

impl List {
    /// A row for each page.
    fn shown(&self, text: &str) -> Result<String, String> {
        let (mut rows, mut is_whole) = (Vec::new(), true);
        for line in text.lines() {
            let page = parsed(line)?;
            if page["key"].is_null() {
                is_whole = false;
                continue;
            }
            let state = format!("{} {}s", text_of(&page["state"]), page["seconds"]);
            let (zone, key) = (text_of(&page["zone"]), text_of(&page["key"]));
            rows.push([zone, state, page["status"].to_string(), bytes(&page["bytes"]), key]);
        }
        if !is_whole {
            eprintln!("yorozu: the first {} are shown; ask for more with --limit", self.limit);
        }
        Ok(table(["ZONE", "STATE", "STATUS", "SIZE", "KEY"], &rows))
    }
}

/// A request that is asked about.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Address of the page
    #[arg(value_parser = url)]
    url: String,
    /// Method of the request
    #[arg(short = 'X', long, default_value = "GET", value_parser = method)]
    method: String,
    /// Header of the request, such as 'Cookie: name=value'; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = field)]
    fields: Vec<String>,
}

impl Ask for Explain {
    fn run(&self, control: &Control, is_json: bool) -> Result<(), String> {
        let head = control::head(&self.url, &self.method, &self.fields.concat())?;
        control.show(("POST", "/cache/explain", &head), is_json, |text| {
            let rows = parsed(text)?;
            let rows = rows.as_array().into_iter().flatten();
            Ok(rows.map(|row| format!("{:<10} {}\n", text_of(&row[0]), text_of(&row[1]))).collect())
        })
    }
}

/// Certificates that issuers give.
#[derive(Debug, Args)]
pub(crate) struct Certificates;

impl Ask for Certificates {
    fn run(&self, control: &Control, is_json: bool) -> Result<(), String> {
        control.show(("GET", "/acme/status", ""), is_json, certificates)
    }
}

/// A row for each certificate.
fn certificates(text: &str) -> Result<String, String> {
    let found = parsed(text)?;
    let or = |value: &Value, other: &str| value.as_str().unwrap_or(other).to_owned();
    let rows: Vec<_> = found
        .as_array()
        .into_iter()
        .flatten()
        .map(|it| {
            let names: Vec<_> = it["names"].as_array().into_iter().flatten().collect();
            [
                names.into_iter().map(text_of).collect::<Vec<_>>().join(","),
                text_of(&it["state"]),
                or(&it["expires"], "-"),
                text_of(&it["next"]),
                text_of(&it["issuer"]),
                or(&it["error"], "-"),
            ]
        })
        .collect();
    if rows.is_empty() {
        eprintln!("yorozu: no \"acme_certificate\" in the configuration");
        return Ok(String::new());
    }
    Ok(table(["NAMES", "STATE", "EXPIRES", "NEXT", "ISSUER", "LAST ERROR"], &rows))
}

fn bytes(value: &Value) -> String {
    size(value.as_u64().unwrap_or_default())
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
