//! Checks what a request was given.

use super::origin::gzip;
use super::site::{Floors, LANGUAGES, Page, Vary, version_of};

/// A request for a page.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) language: usize,
    pub(crate) codings: Vec<&'static str>,
    pub(crate) range: Option<String>,
    pub(crate) if_range: Option<String>,
    pub(crate) condition: Option<(&'static str, String)>,
    pub(crate) floors: Floors,
}

#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) is_whole: bool,
    /// How it broke off, where the protocol says it.
    pub(crate) problem: Option<String>,
}

impl Answer {
    /// By the name in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| &**value)
    }
}

/// What can be said of a good answer.
#[derive(Debug)]
pub(crate) struct Good {
    pub(crate) kind: &'static str,
    /// The validator to ask with next.
    pub(crate) validator: Option<String>,
}

/// # Errors
/// What is wrong with it.
pub(crate) fn check(page: &Page, ask: &Ask, answer: &Answer) -> Result<Good, String> {
    let version = match answer.status {
        200 | 206 => answer.field("x-version").and_then(|text| text.parse().ok()),
        304 => {
            let asked = ask.condition.as_ref().map(|(_, value)| &**value);
            let said = answer.field("etag").or(answer.field("last-modified"));
            said.or(asked).and_then(version_of)
        }
        416 if ask.range.is_some() => return Ok(Good { kind: "unsatisfiable", validator: None }),
        500 | 502 if page.is_troubled => return Ok(Good { kind: "trouble", validator: None }),
        status => return Err(format!("status {status}")),
    };
    let version: u64 = version.ok_or("no version")?;
    check_age(page, ask, answer, version)?;
    let kind = match answer.status {
        304 => check_304(ask, answer, version)?,
        _ => check_content(page, ask, answer, version)?,
    };
    let validator = answer.field("etag").or(answer.field("last-modified"));
    Ok(Good { kind, validator: validator.map(str::to_owned) })
}

fn check_age(page: &Page, ask: &Ask, answer: &Answer, version: u64) -> Result<(), String> {
    let Floors { hard, any, renewed } = ask.floors;
    let cache = answer.field("x-cache").unwrap_or("-");
    let is_stale = matches!(cache, "STALE" | "UPDATING");
    if version < hard || (version < any && !is_stale) {
        return Err(format!("of before a purge: version {version} ({cache}), {:?}", ask.floors));
    }
    if version < any && renewed >= any {
        return Err(format!(
            "a copy of before a soft purge comes back: {version}, {:?}",
            ask.floors
        ));
    }
    if version > page.version() {
        return Err(format!("version {version} is not there yet"));
    }
    Ok(())
}

fn check_304(ask: &Ask, answer: &Answer, version: u64) -> Result<&'static str, String> {
    let Some((_, asked)) = &ask.condition else { return Err("304 unasked".to_owned()) };
    if version_of(asked) != Some(version) {
        return Err(format!("304 of version {version} for {asked}"));
    }
    if !answer.body.is_empty() {
        return Err("304 with content".to_owned());
    }
    Ok("not modified")
}

fn check_content(
    page: &Page,
    ask: &Ask,
    answer: &Answer,
    version: u64,
) -> Result<&'static str, String> {
    let language = page.language(ask.language);
    let said = (answer.field("x-page"), answer.field("x-language"));
    if said != (Some(&*page.number.to_string()), Some(LANGUAGES[language])) {
        return Err(format!("the head of another page or variant: {said:?}"));
    }
    for name in ["etag", "last-modified"] {
        let said = answer.field(name).map(version_of);
        if said.is_some_and(|said| said != Some(version)) {
            return Err(format!("{name} {:?} of version {version}", answer.field(name)));
        }
    }
    let coding = answer.field("content-encoding").unwrap_or("identity");
    if coding != "identity" && !ask.codings.contains(&coding) {
        return Err(format!("{coding}, where {:?} is taken", ask.codings));
    }
    let mut wanted = page.body(version, language);
    let is_by_origin = page.vary == Vary::Coding && coding == "gzip";
    if answer.status == 206 {
        if is_by_origin {
            wanted = gzip(&wanted);
        } else if coding != "identity" {
            return Err(format!("a part in {coding}"));
        }
        return check_part(ask, answer, version, &wanted).map(|()| "part");
    }
    if ask.method == "HEAD" {
        let length = answer.field("content-length").and_then(|text| text.parse::<usize>().ok());
        let is_own = coding == "identity" && length.is_some_and(|length| wanted.len() != length);
        if is_own || !answer.body.is_empty() {
            return Err(format!("HEAD with {length:?} of {} bytes", wanted.len()));
        }
        return Ok("head");
    }
    let (body, kind) = match coding {
        "identity" => (answer.body.clone(), "identity"),
        _ if !answer.is_whole => return Ok("broken"),
        "gzip" => (read(flate2::read::GzDecoder::new(&*answer.body))?, "gzip"),
        "br" => (read(brotli::Decompressor::new(&*answer.body, 4096))?, "br"),
        "zstd" => (zstd::decode_all(&*answer.body).map_err(|problem| problem.to_string())?, "zstd"),
        other => return Err(format!("coding {other}")),
    };
    match answer.is_whole {
        false if wanted.starts_with(&body) => Ok("broken"),
        true if wanted == body => Ok(kind),
        _ => Err(difference(&body, &wanted, version)),
    }
}

fn read(mut decoder: impl std::io::Read) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    decoder.read_to_end(&mut out).map_err(|problem| format!("cannot be decoded: {problem}"))?;
    Ok(out)
}

fn check_part(ask: &Ask, answer: &Answer, version: u64, whole: &[u8]) -> Result<(), String> {
    let Some(asked) = &ask.range else { return Err("206 unasked".to_owned()) };
    if let Some(condition) = &ask.if_range {
        if condition.starts_with("W/") || version_of(condition) != Some(version) {
            return Err(format!("a part of version {version} for If-Range {condition}"));
        }
    }
    let said = answer.field("content-range").unwrap_or_default();
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("Content-Range {said}"));
    let (range, total) =
        said.strip_prefix("bytes ").and_then(|said| said.split_once('/')).ok_or(said)?;
    let (first, last) = range.split_once('-').ok_or(said)?;
    let (first, last, total) = (number(first)?, number(last)?, number(total)?);
    let wanted = match asked.strip_prefix("bytes=").and_then(|asked| asked.split_once('-')) {
        Some(("", count)) => total.saturating_sub(number(count)?)..total,
        Some((from, "")) => number(from)?..total,
        Some((from, to)) => number(from)?..total.min(number(to)? + 1),
        None => return Err(format!("{asked}?")),
    };
    if total != whole.len() || wanted != (first..last + 1) {
        return Err(format!("{said} for {asked} of {} bytes of version {version}", whole.len()));
    }
    let part = &whole[wanted];
    match answer.is_whole {
        false if part.starts_with(&answer.body) => Ok(()),
        true if part == answer.body => Ok(()),
        _ => Err(difference(&answer.body, part, version)),
    }
}

fn difference(body: &[u8], wanted: &[u8], version: u64) -> String {
    let at = body.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    let around = |bytes: &[u8]| {
        let near = &bytes[at.saturating_sub(60).min(bytes.len())..bytes.len().min(at + 60)];
        String::from_utf8_lossy(near).into_owned()
    };
    format!(
        "{} bytes instead of {} of version {version}, unlike at {at}: {:?}, not {:?}",
        body.len(),
        wanted.len(),
        around(body),
        around(wanted),
    )
}
