//! `mp4`: parts of videos, by the arguments `start` and `end`: the head is made again for the part, and the samples are
//! those of the file.
//!
//! Way through: [`Mp4::respond`] (the arguments) -> [`Scan`] (where `ftyp`, `moov` and `mdat` are, and the first two) ->
//! [`movie::cut`] -> [`track::Cut`].
//!
//! # Sources
//! ISO/IEC 14496-12; nginx, `ngx_http_mp4_module`, as observed.

mod atoms;
mod movie;
mod tables;
mod track;

use super::static_file;
use atoms::{HEAD_BYTES_MAX, Head, Problem};
use bytes::Bytes;
use movie::{Made, Wanted};
use std::fs::File;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_http::field;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::Size;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::{Outcome, Pending};
use yorozu_kernel::exchange::response::Segment;
use yorozu_kernel::files::open::Opened;
use yorozu_kernel::files::{path, read};
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module = Module::new("http_mp4", rows).with(&[silent::<Draft>]);

settings! {
    /// Longest head that is read even if mp4_max_buffer_size is smaller.
    mp4_buffer_size: Size = "512k", ONE, HTTP_SERVER_LOCATION;
    /// Longest head of a video; longer ones get 500.
    mp4_max_buffer_size: Size = "10m", ONE, HTTP_SERVER_LOCATION;
    /// Whether a part begins at the key frame before its start.
    mp4_start_key_frame: bool = "off", ONE, HTTP_SERVER_LOCATION;
}

fn rows() -> Vec<Directive> {
    let mut rows = DIRECTIVES.to_vec();
    rows.push(Directive::row(
        "mp4",
        LOCATION,
        Arity::NONE,
        Action::Set(|block, _| {
            block.handle_by(Mp4);
            Ok(())
        }),
        "Sends the part of a video between the arguments start and end, in seconds.",
    ));
    rows
}

/// Longest `ftyp`; nginx's.
const FTYP_BYTES_MAX: u64 = 1024;
/// Atoms looked at; chosen: a file has a dozen, one in fragments thousands, and those have no such head.
const ATOMS_MAX: u32 = 10_000;

#[derive(Debug)]
struct Mp4;

impl Handler for Mp4 {
    fn respond(&self, exchange: &mut Exchange) -> Outcome {
        if !exchange.request.method.is_get_or_head() {
            return Outcome::Status(405);
        }
        if exchange.uri.ends_with(b"/") {
            return (exchange.conf.engine.files)(exchange);
        }
        Outcome::Wait(Pending::Content)
    }

    fn run(self: Arc<Self>, exchange: &mut Exchange) -> Later<'_, Outcome> {
        Box::pin(respond(exchange))
    }
}

async fn respond(exchange: &mut Exchange) -> Outcome {
    let opened = match static_file::open(exchange) {
        Ok(Some(opened)) => opened,
        // As nginx: what is no file is answered as if this handler were not there.
        Ok(None) => return (exchange.conf.engine.files)(exchange),
        Err(outcome) => return outcome,
    };
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let settings = location.of::<Conf>();
    let made = match wanted(&exchange.args, settings.mp4_start_key_frame) {
        None => None,
        Some(wanted) => match part(&opened, settings, wanted).await {
            Ok(made) => made,
            Err(problem) => {
                let path = path::request_filename(exchange);
                let path = error::verbatim(&path);
                let text = match problem.starts_with("mp4 ") {
                    true => format!("\"{path}\" {problem}"),
                    false => format!("{problem} in \"{path}\""),
                };
                error::request(exchange, Level::Error, &text);
                return Outcome::Status(500);
            }
        },
    };
    let segments = match made {
        None => vec![Segment::File(opened.file, 0..opened.bytes)],
        Some(Made { head, data }) => {
            let mut segments = vec![Segment::Memory(head.into())];
            segments.extend((!data.is_empty()).then(|| Segment::File(opened.file, data)));
            segments
        }
    };
    let mut response = static_file::of_file(exchange, location, segments, opened.modified);
    response.allow_ranges = true;
    Outcome::Respond(Box::new(response))
}

/// What the arguments say; `None`: the file as it is.
fn wanted(args: &[u8], is_from_key: bool) -> Option<Wanted> {
    let time = |name| field::argument(args, name).and_then(milliseconds);
    let end = time(b"end").filter(|end| *end > 0);
    let start = match (time(b"start"), end) {
        (Some(start), _) => start,
        (None, Some(_)) => 0,
        (None, None) => return None,
    };
    let length = end.filter(|end| *end > start).map_or(0, |end| end - start);
    Some(Wanted { start, length, is_from_key })
}

/// Seconds, with decimals of which three count.
fn milliseconds(text: &[u8]) -> Option<u64> {
    let (whole, rest) = match text.iter().position(|byte| *byte == b'.') {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[][..]),
    };
    if text.is_empty() || ![whole, rest].iter().all(|part| part.iter().all(u8::is_ascii_digit)) {
        return None;
    }
    let digit = |byte: u8| u64::from(byte - b'0');
    let put = |number: u64, byte: &u8| number.checked_mul(10)?.checked_add(digit(*byte));
    let whole = whole.iter().try_fold(0, put)?;
    let thousandths = (0..3).map(|at| rest.get(at).copied().unwrap_or(b'0'));
    let thousandths = thousandths.fold(0, |number, byte| number * 10 + digit(byte));
    // As nginx: what does not fit into its numbers is none.
    whole.checked_mul(1000)?.checked_add(thousandths).filter(|time| *time < 1 << 31)
}

/// What was found in a file.
#[derive(Default)]
struct Scan {
    ftyp: Option<Bytes>,
    moov: Option<Bytes>,
    mdat: Option<Range<u64>>,
    /// The whole file is wanted, and can be played as it is.
    is_as_it_is: bool,
}

/// The part; `None`: the file as it is.
async fn part(opened: &Opened, settings: &Conf, wanted: Wanted) -> Result<Option<Made>, Problem> {
    let scan = scan(opened, settings, wanted).await?;
    if scan.is_as_it_is {
        return Ok(None);
    }
    let moov = scan.moov.ok_or_else(|| "no mp4 trak atoms were found".to_owned())?;
    let mdat = scan.mdat.ok_or_else(|| "no mp4 mdat atom was found".to_owned())?;
    let ftyp = scan.ftyp.unwrap_or_default();
    // Not in the event loop: there may be megabytes of it.
    let work = move || movie::cut(&ftyp, &moov, &mdat, &wanted);
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| "mp4 file cannot be read".to_owned())?
        .map(Some)
}

async fn scan(opened: &Opened, settings: &Conf, wanted: Wanted) -> Result<Scan, Problem> {
    let (mut scan, mut at) = (Scan::default(), 0);
    let mut count = 0;
    while scan.moov.is_none() || scan.mdat.is_none() {
        let left = opened.bytes - at;
        let head = bytes(&opened.file, at, left.min(HEAD_BYTES_MAX as u64)).await?;
        let Some(head) = Head::read(&head, left)? else { break };
        count += 1;
        if count > ATOMS_MAX {
            return Err("too many mp4 atoms".to_owned());
        }
        let content = at + head.head_bytes..at + head.bytes;
        let length = content.end - content.start;
        match &head.name {
            b"ftyp" if length > FTYP_BYTES_MAX => {
                return Err(format!("too large mp4 ftyp atom: {length}"));
            }
            b"ftyp" => scan.ftyp = Some(bytes(&opened.file, at, head.bytes).await?),
            b"moov" => {
                let is_all = wanted.start == 0 && wanted.length == 0;
                if is_all && scan.mdat.is_none() {
                    scan.is_as_it_is = true;
                    return Ok(scan);
                }
                let bytes_max = settings.mp4_max_buffer_size.0.max(settings.mp4_buffer_size.0);
                if length > bytes_max {
                    return Err(format!(
                        "mp4 moov atom is too large:{length}, you may want to increase mp4_max_buffer_size"
                    ));
                }
                scan.moov = Some(bytes(&opened.file, content.start, length).await?);
            }
            b"mdat" => scan.mdat = Some(content),
            _ => {}
        }
        at += head.bytes;
    }
    Ok(scan)
}

async fn bytes(file: &Arc<File>, at: u64, length: u64) -> Result<Bytes, Problem> {
    let length = usize::try_from(length).map_err(|_| "mp4 atom too large".to_owned())?;
    let read = read::read(file, at, length).await;
    read.map_err(|problem| format!("mp4 file cannot be read ({})", error::os_error(&problem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_seconds() {
        for (text, time) in [
            ("0", Some(0)),
            ("1.5", Some(1500)),
            ("1.", Some(1000)),
            (".25", Some(250)),
            ("3.1415926535", Some(3141)),
            ("", None),
            ("-1", None),
            ("1e3", None),
            ("1.2.3", None),
            ("99999999999999999999", None),
            ("2147484", None),
        ] {
            assert_eq!(milliseconds(text.as_bytes()), time, "{text:?}");
        }
    }

    #[test]
    fn what_the_arguments_ask_for() {
        let of = |start, length| Some(Wanted { start, length, is_from_key: false });
        for (args, wanted_part) in [
            ("", None),
            ("start=x", None),
            ("start=1", of(1000, 0)),
            ("end=2", of(0, 2000)),
            ("start=1&end=2.5", of(1000, 1500)),
            ("start=2&end=1", of(2000, 0)),
            ("start=1&end=0", of(1000, 0)),
        ] {
            assert_eq!(wanted(args.as_bytes(), false), wanted_part, "{args:?}");
        }
    }
}
