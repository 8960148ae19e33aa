//! What a case expects of an answer.

use crate::case::Expected;
use crate::client::Answer;
use crate::form::{Form, Ports, Version};

/// Fields that an answer over HTTP/2 or HTTP/3 never has. (RFC 9113, section 8.2.2)
const OF_A_CONNECTION: [&str; 3] = ["connection", "keep-alive", "transfer-encoding"];

/// A text of a step with the placeholders of a form replaced.
pub(crate) fn text(text: &str, form: &Form, ports: &Ports) -> String {
    if !text.contains('$') {
        return text.to_owned();
    }
    text.replace("$port", &ports.of(form).to_string())
        .replace("$scheme", form.scheme())
        .replace("$protocol", form.protocol())
}

pub(crate) fn check(
    answer: &Answer,
    expected: &Expected,
    form: &Form,
    ports: &Ports,
) -> Result<(), String> {
    if answer.status != expected.status {
        return Err(format!("status {}, expected {}: {answer:?}", answer.status, expected.status));
    }
    let got = String::from_utf8_lossy(&answer.body);
    if let Some(body) = &expected.body {
        let body = text(body, form, ports);
        if got != body {
            return Err(format!("content {got:?}, expected {body:?}"));
        }
    }
    for (is_in, part) in &expected.parts {
        if got.contains(&text(part, form, ports)) != *is_in {
            return Err(format!("content {got:?}, {part:?} is expected in it: {is_in}"));
        }
    }
    if let Some(length) = expected.piece {
        let longest = answer.pieces.iter().max().copied().unwrap_or_default();
        if longest != length {
            return Err(format!("the longest piece has {longest} bytes, expected {length}"));
        }
    }
    check_fields(answer, expected, form, ports)
}

fn check_fields(
    answer: &Answer,
    expected: &Expected,
    form: &Form,
    ports: &Ports,
) -> Result<(), String> {
    for (name, value) in &expected.fields {
        if form.version != Version::H1
            && OF_A_CONNECTION.iter().any(|found| name.eq_ignore_ascii_case(found))
        {
            continue;
        }
        let got = answer.field(name);
        let value = text(value, form, ports);
        let is_met = match (&got, value.strip_prefix('~')) {
            (Some(got), Some(part)) => got.contains(part),
            (Some(got), None) => value == "*" || *got == value,
            (None, _) => false,
        };
        if !is_met {
            return Err(format!("{name}: {got:?}, expected {value:?}: {answer:?}"));
        }
    }
    let never = OF_A_CONNECTION.iter().filter(|_| form.version != Version::H1).copied();
    for name in expected.absent.iter().map(String::as_str).chain(never) {
        if let Some(value) = answer.field(name) {
            return Err(format!("{name}: {value:?}, expected none"));
        }
    }
    Ok(())
}
