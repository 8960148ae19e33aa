//! The listing as a page, as XML, as JSON.

use super::{Conf, Item};
use jiff::{Timestamp, tz::TimeZone};
use std::io::Write as _;
use yorozu_http::uri::{Escape, escape_into};
use yorozu_kernel::base::zone;
use yorozu_kernel::files::open::Kind;

/// A page as nginx writes it.
pub(super) fn html(uri: &[u8], items: &[Item], settings: &Conf) -> Vec<u8> {
    const NAME_WIDTH: usize = 50;
    let title = [b"Index of ", &escape_html(uri)[..]].concat();
    let mut page = Vec::new();
    page.extend_from_slice(b"<html>\r\n<head><title>");
    page.extend_from_slice(&title);
    page.extend_from_slice(b"</title></head>\r\n<body>\r\n<h1>");
    page.extend_from_slice(&title);
    page.extend_from_slice(b"</h1><hr><pre><a href=\"../\">../</a>\r\n");
    for item in items {
        page.extend_from_slice(b"<a href=\"");
        escape_into(&mut page, &item.name, Escape::Component);
        let slash: &[u8] = if item.is_folder() { b"/" } else { b"" };
        page.extend_from_slice(slash);
        page.extend_from_slice(b"\">");
        let width = ends(&item.name).count();
        if width > NAME_WIDTH {
            let short = ends(&item.name).take(NAME_WIDTH - 3).last().unwrap_or(0);
            page.extend_from_slice(&escape_html(&item.name[..short]));
            page.extend_from_slice(b"..&gt;</a>");
        } else {
            // A slash for which there is no room is left out.
            let rest = NAME_WIDTH - width;
            let slash = &slash[..slash.len().min(rest)];
            page.extend_from_slice(&escape_html(&item.name));
            page.extend_from_slice(slash);
            page.extend_from_slice(b"</a>");
            page.extend_from_slice(" ".repeat(rest - slash.len()).as_bytes());
        }
        let size = if item.is_folder() {
            "-".to_owned()
        } else {
            size(item.bytes, settings.autoindex_exact_size)
        };
        let column = if settings.autoindex_exact_size { 19 } else { 7 };
        let line =
            format!(" {} {size:>column$}\r\n", date(item.modified, settings.autoindex_localtime));
        page.extend_from_slice(line.as_bytes());
    }
    page.extend_from_slice(b"</pre><hr></body>\r\n</html>\r\n");
    page
}

/// Where each character of a name ends. A byte that is none, in a name that is not UTF-8, stands for one.
fn ends(name: &[u8]) -> impl Iterator<Item = usize> {
    let lengths = name.utf8_chunks().flat_map(|chunk| {
        let characters = chunk.valid().chars().map(char::len_utf8);
        characters.chain(chunk.invalid().iter().map(|_| 1))
    });
    lengths.scan(0, |end, length| {
        *end += length;
        Some(*end)
    })
}

fn date(unix_seconds: i64, is_local: bool) -> String {
    let zone = if is_local { zone::local() } else { TimeZone::UTC };
    let time = Timestamp::from_second(unix_seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(zone);
    time.strftime("%d-%b-%Y %H:%M").to_string()
}

fn size(bytes: u64, is_exact: bool) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    // To the nearest whole; half of one counts as one.
    let rounded = |unit| bytes / unit + u64::from(bytes % unit >= unit / 2);
    match bytes {
        _ if is_exact => bytes.to_string(),
        0..10_000 => bytes.to_string(),
        10_000..MIB => format!("{}K", rounded(KIB)),
        MIB..GIB => format!("{}M", rounded(MIB)),
        GIB.. => format!("{}G", rounded(GIB)),
    }
}

fn escape_html(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'<' => out.extend(b"&lt;"),
            b'>' => out.extend(b"&gt;"),
            b'&' => out.extend(b"&amp;"),
            b'"' => out.extend(b"&quot;"),
            _ => out.push(byte),
        }
    }
    out
}

/// `<list>` of `<directory>`, `<file>` and `<other>`.
pub(super) fn xml(items: &[Item]) -> Vec<u8> {
    let mut out = b"<?xml version=\"1.0\"?>\r\n<list>\r\n".to_vec();
    for item in items {
        let kind = item.type_name();
        let time = timestamp(item.modified).strftime("%Y-%m-%dT%H:%M:%SZ");
        let _ = write!(out, "<{kind} mtime=\"{time}\"");
        if item.kind == Kind::File {
            let _ = write!(out, " size=\"{}\"", item.bytes);
        }
        out.push(b'>');
        out.extend_from_slice(&escape_html(&item.name));
        let _ = write!(out, "</{kind}>\r\n");
    }
    out.extend_from_slice(b"</list>\r\n");
    out
}

/// A list of objects.
pub(super) fn json(items: &[Item]) -> Vec<u8> {
    let mut out = b"[".to_vec();
    for (index, item) in items.iter().enumerate() {
        out.extend_from_slice(if index > 0 { b",\r\n" } else { b"\r\n" });
        out.extend_from_slice(b"{ \"name\":\"");
        escape_json(&mut out, &item.name);
        let kind = item.type_name();
        let time = yorozu_http::date::format(item.modified);
        let _ = write!(out, "\", \"type\":\"{kind}\", \"mtime\":\"{time}\"");
        if item.kind == Kind::File {
            let _ = write!(out, ", \"size\":{}", item.bytes);
        }
        out.extend_from_slice(b" }");
    }
    out.extend_from_slice(b"\r\n]");
    out
}

/// JSON as a call of `callback`, plain without one; `None` if that is not a name and nothing more.
pub(super) fn jsonp(items: &[Item], callback: &[u8]) -> Option<(&'static str, Vec<u8>)> {
    let is_name = callback.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_.$".contains(byte));
    if !is_name {
        return None;
    }
    if callback.is_empty() {
        return Some(("application/json", json(items)));
    }
    Some(("application/javascript", [callback, b"(", &json(items), b");"].concat()))
}

fn escape_json(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            0..32 => {
                let _ = write!(out, "\\u{byte:04X}");
            }
            _ => out.push(byte),
        }
    }
}

fn timestamp(unix_seconds: i64) -> jiff::Zoned {
    Timestamp::from_second(unix_seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(TimeZone::UTC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_sizes_are_as_nginx_has_them() {
        let table = [
            (9_999, "9999"),
            (10_000, "10K"),
            (10_751, "10K"),
            (10_752, "11K"),
            (1_048_063, "1023K"),
            (1_048_064, "1024K"),
            (1_048_575, "1024K"),
            (1_048_576, "1M"),
            (1_572_863, "1M"),
            (1_572_864, "2M"),
            (1_073_741_823, "1024M"),
            (1_073_741_824, "1G"),
            (1_610_612_735, "1G"),
            (1_610_612_736, "2G"),
            (10_484_711_423, "10G"),
            (1 << 41, "2048G"),
        ];
        for (bytes, expected) in table {
            assert_eq!(size(bytes, false), expected, "{bytes}");
            assert_eq!(size(bytes, true), bytes.to_string());
        }
    }

    #[test]
    fn what_is_not_utf_8_counts_byte_by_byte() {
        let ends = |name: &[u8]| ends(name).collect::<Vec<_>>();
        assert_eq!(ends("aé€".as_bytes()), [1, 3, 6]);
        assert_eq!(ends(b"\xc3\xa9\xffa\xe2\x82"), [2, 3, 4, 5, 6]);
        assert!(ends(b"").is_empty());
    }
}
