//! `gzip`, `brotli`, `zstd`: compresses responses; a stored page is compressed once per coding and kept
//! in that form. `gunzip`: the way back for clients that take none.

pub mod brotli;
mod coder;
pub mod gunzip;
pub mod gzip;
pub mod precompressed;
pub mod zstd;

pub use coder::{Coder, compress};

use bytes::Bytes;
use std::io::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_cache::{Zone, on_disk, on_disk_behind};
use yorozu_http::conditional;
use yorozu_http::negotiation::weight;
use yorozu_kernel::base::{limits, tasks};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::coding::Coding;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::handler::Filter;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::{Body, Response, StoredPage};
use yorozu_upstream::{Gauge, Taken};

/// How a body is compressed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Effort {
    pub coding: Coding,
    pub level: u8,
    /// Of Brotli's window, the logarithm.
    pub window: u32,
}

impl Effort {
    /// Gzip, for what is not a response.
    pub fn gzip(level: u8) -> Self {
        Self { coding: Coding::Gzip, level, window: 0 }
    }

    /// What a location says about a coding; `None` if it is off or does not concern the response.
    fn of(coding: Coding, location: &LocationConf, response: &Response) -> Option<Self> {
        let length = response.content_length;
        let fits = |min: u64| length.is_none_or(|length| length >= min);
        let content_type = &response.content_type;
        let (is_on, level, window) = match coding {
            Coding::Gzip => {
                let conf = location.of::<gzip::Conf>();
                let fits = fits(conf.gzip_min_length.0) && conf.gzip_types.has(content_type);
                (conf.gzip && fits, conf.gzip_comp_level.0, 0)
            }
            Coding::Brotli => {
                let conf = location.of::<brotli::Conf>();
                let fits = fits(conf.brotli_min_length.0) && conf.brotli_types.has(content_type);
                (conf.brotli && fits, conf.brotli_comp_level.0, conf.brotli_window.0)
            }
            Coding::Zstd => {
                let conf = location.of::<zstd::Conf>();
                let fits = fits(conf.zstd_min_length.0) && conf.zstd_types.has(content_type);
                (conf.zstd && fits, conf.zstd_comp_level.0, 0)
            }
        };
        is_on.then_some(Self { coding, level, window })
    }
}

/// Whether the location wants any coding.
fn is_on(location: &LocationConf) -> bool {
    location.of::<gzip::Conf>().gzip
        || location.of::<brotli::Conf>().brotli
        || location.of::<zstd::Conf>().zstd
}

/// Where it has something to do.
pub const FILTER: Filter = Filter::when(is_on, filter);

/// Compresses the response if the location and the client want it.
fn filter(exchange: &mut Exchange, response: &mut Response) {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let may_compress =
        matches!(response.status, 200 | 403 | 404) && response.field(b"content-encoding").is_none();
    if !may_compress {
        return;
    }
    let possible = Coding::ALL.map(|coding| Effort::of(coding, location, response));
    if possible.iter().all(Option::is_none) {
        return;
    }
    response.vary_encoding = location.of::<gzip::Conf>().gzip_vary;
    let Some(wished) = chosen(exchange, response, location, possible) else { return };
    let effort = match response.is_unchanged {
        true => Some(wished),
        false => coded(exchange, response, location, possible, wished),
    };
    let Some(effort) = effort else { return };
    response.remove(b"accept-ranges");
    let token = Bytes::from_static(effort.coding.token());
    response.add(Bytes::from_static(b"Content-Encoding"), token);
    response.etag = conditional::weaken(&response.etag).unwrap_or_default().into();
}

/// Codes the content: how it was done, or `None` where it is sent as it is.
fn coded(
    exchange: &mut Exchange,
    response: &mut Response,
    location: &LocationConf,
    possible: [Option<Effort>; 3],
    effort: Effort,
) -> Option<Effort> {
    let is_head = exchange.request.method == Method::Head;
    response.apply_recoder();
    let length = response.content_length;
    match std::mem::replace(&mut response.body, Body::empty()) {
        tunnel @ Body::Tunnel(_) => response.body = tunnel,
        Body::Memory(bytes) => {
            let stored = response.stored_page.take();
            match compressed(stored, &bytes, effort) {
                Some(compressed) => {
                    exchange.coded_bytes =
                        Some((effort.coding, bytes.len() as u64, compressed.len() as u64));
                    response.allow_ranges = false;
                    response.content_length =
                        (!is_head || !bytes.is_empty()).then_some(compressed.len() as u64);
                    response.body = Body::Memory(compressed);
                }
                None => {
                    response.body = Body::Memory(bytes);
                    return None;
                }
            }
        }
        body => {
            response.body = body;
            match kept_beside_file(response, effort) {
                Beside::Kept(compressed) => {
                    let bytes = (length.unwrap_or(0), compressed.len() as u64);
                    exchange.coded_bytes = Some((effort.coding, bytes.0, bytes.1));
                    response.allow_ranges = false;
                    response.content_length = Some(bytes.1);
                    response.body = Body::Memory(compressed);
                }
                Beside::Later => return None,
                Beside::Never => {
                    let (instead, coder) = on_its_way(exchange, response, location, possible)?;
                    response.change(Box::new(coder));
                    return Some(instead);
                }
            }
        }
    }
    Some(effort)
}

/// The coding the client likes best among the possible ones.
fn chosen(
    exchange: &Exchange,
    response: &Response,
    location: &LocationConf,
    possible: [Option<Effort>; 3],
) -> Option<Effort> {
    let request = &exchange.request;
    let accepted = request.known(request.known.accept_encoding)?;
    let mut best: Option<(u16, Effort)> = None;
    for effort in possible.into_iter().flatten() {
        let Some(weight) = weight(accepted, effort.coding.token()) else { continue };
        let is_let = effort.coding != Coding::Gzip
            || gzip::is_let(exchange, response, location.of::<gzip::Conf>());
        if is_let && best.is_none_or(|(other, _)| weight > other) {
            best = Some((weight, effort));
        }
    }
    best.map(|(_, effort)| effort)
}

/// What codes a response while it is sent, in the coding the client likes best among those that there is room for.
fn on_its_way(
    exchange: &Exchange,
    response: &Response,
    location: &LocationConf,
    mut possible: [Option<Effort>; 3],
) -> Option<(Effort, Coder)> {
    loop {
        let effort = chosen(exchange, response, location, possible)?;
        if let Some(coder) = Coder::new(effort) {
            return Some((effort, coder));
        }
        possible = possible.map(|other| other.filter(|other| *other != effort));
    }
}

/// The kept form of a stored page, or one made now.
///
/// The first request compresses a small page on the worker: its client has waited for PHP just now or will get the
/// page uncompressed later anyway. What takes longer is compressed beside the worker, by few at a time, and until
/// then sent as it is.
fn compressed(stored: Option<StoredPage>, bytes: &Bytes, effort: Effort) -> Option<Bytes> {
    let Some(stored) = stored else { return Some(compress(bytes, effort)) };
    let form = &stored.entry.forms[effort.coding.place()];
    match form.made() {
        Some((level, _)) if *level != effort.level && is_quick(bytes, effort) => {
            return Some(compress(bytes, effort));
        }
        Some((_, kept)) => return Some(kept.bytes()),
        None => {}
    }
    let claim = Claim::of(stored, effort)?;
    if is_quick(bytes, effort) {
        let made = compress(bytes, effort);
        let stored = claim.keep(made.clone());
        // Where too many wait for the disk its file has no such form, as if the disk refused it.
        if let Ok(place) = stored.zone.queue(&stored.entry) {
            tasks::of_request(async move {
                write_again(stored).await;
                drop(place);
            });
        }
        return Some(made);
    }
    let place = Gauge::take_below(&UNDER_WAY, limits::COMPRESSIONS_MAX)?;
    let bytes = bytes.clone();
    tasks::of_request(async move { make_beside(claim, bytes, effort, place).await });
    None
}

/// The form of a page whose body is in its file.
enum Beside {
    Kept(Bytes),
    /// It is being made, or too many slow clients have one: the page is sent as it is.
    Later,
    /// It is compressed while it is sent.
    Never,
}

/// The kept form of a stored page whose body is in its file, if it is one that may be in memory for a while.
fn kept_beside_file(response: &mut Response, effort: Effort) -> Beside {
    let is_stored = |stored: &StoredPage| {
        let length = stored.entry.head.body_bytes;
        length <= stored.zone.share() && response.body.length() == Some(length)
    };
    if !response.stored_page.as_ref().is_some_and(is_stored) {
        return Beside::Never;
    }
    let Some(stored) = response.stored_page.take() else { return Beside::Never };
    if let Some((_, kept)) = stored.entry.forms[effort.coding.place()].made() {
        return stored.zone.lend(kept).map_or(Beside::Later, Beside::Kept);
    }
    let Some((claim, place)) =
        Claim::of(stored, effort).zip(Gauge::take_below(&UNDER_WAY, limits::COMPRESSIONS_MAX))
    else {
        return Beside::Later;
    };
    tasks::of_request(async move {
        // One that cannot be read gives its claim back.
        if let Some(bytes) = claim.body().await {
            make_beside(claim, bytes, effort, place).await;
        }
    });
    Beside::Later
}

/// Makes a form beside the worker.
async fn make_beside(claim: Claim, bytes: Bytes, effort: Effort, place: Taken<&'static Gauge>) {
    let made = tokio::task::spawn_blocking(move || claim.keep(compress(&bytes, effort))).await;
    drop(place);
    if let Ok(stored) = made {
        write_again(stored).await;
    }
}

/// A form that its holder makes; dropped without [`Claim::keep`], it goes to the next request.
struct Claim {
    stored: Option<StoredPage>,
    effort: Effort,
}

impl Claim {
    /// `None`: another request makes it.
    fn of(stored: StoredPage, effort: Effort) -> Option<Self> {
        if !stored.entry.forms[effort.coding.place()].claim() {
            // No claim may be made here, not even to be dropped: that would give back the other's.
            return None;
        }
        Some(Self { stored: Some(stored), effort })
    }

    /// What is to be compressed.
    async fn body(&self) -> Option<Bytes> {
        let stored = self.stored.as_ref()?;
        let entry = Arc::clone(&stored.entry);
        on_disk(&stored.zone, move |_| Zone::body(&entry)).await?.ok()
    }

    fn keep(mut self, compressed: Bytes) -> StoredPage {
        let stored = self.stored.take().expect("a claim is kept once");
        let compressed = stored.zone.hold(compressed);
        stored.entry.forms[self.effort.coding.place()].keep(self.effort.level, compressed);
        stored.zone.reweigh(&stored.key, &stored.entry);
        stored
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(stored) = &self.stored {
            stored.entry.forms[self.effort.coding.place()].give_back();
        }
    }
}

/// The compressions beside the workers.
static UNDER_WAY: Gauge = Gauge::new();

/// Gzip of a page up to here is made on the worker, in about a millisecond; chosen.
const INLINE_BYTES_MAX: usize = 64 * 1024;

/// Whether it may be compressed on the worker.
fn is_quick(bytes: &Bytes, effort: Effort) -> bool {
    let cost = match effort.coding {
        Coding::Gzip => 1,
        Coding::Zstd if effort.level <= 9 => 1,
        Coding::Brotli if effort.level <= 6 => 2,
        _ => 64,
    };
    bytes.len() * cost <= INLINE_BYTES_MAX
}

/// Writes the new form into the page's file. A disk that refuses costs only the making of the form
/// after the next start.
async fn write_again(stored: StoredPage) {
    let now = yorozu_kernel::base::turn::unix_seconds_of(std::time::SystemTime::now());
    let StoredPage { zone, key, entry } = stored;
    let _ = on_disk_behind(&zone, move |zone| zone.rewrite(&key, &entry, now)).await;
}

/// How many times smaller a coding made the content.
fn put_ratio(exchange: &Exchange, wanted: Coding, out: &mut Vec<u8>) -> bool {
    match exchange.coded_bytes {
        Some((coding, input, output)) if coding == wanted && output > 0 => {
            let hundredths = input * 100 / output;
            write!(out, "{}.{:02}", hundredths / 100, hundredths % 100).is_ok()
        }
        _ => false,
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files of a test")]
mod tests {
    use super::*;
    use yorozu_cache::{DiskOptions, EntryHead, Key, Levels, Pace, ZoneOptions};

    #[test]
    fn who_gets_no_claim_gives_none_back() {
        let path = std::env::temp_dir().join(format!("yorozu-claim.{}", std::process::id()));
        let disk = DiskOptions {
            path: path.clone(),
            levels: Levels::parse("1:2").unwrap(),
            max_size: None,
            min_free: None,
            files_max: 100,
            inactive: 600,
            loader: Pace::default(),
            manager: Pace::default(),
        };
        let zone = Arc::new(Zone::open(ZoneOptions { memory_bytes: 1 << 20, disk }).unwrap());
        let entry = zone.seal(EntryHead::default(), Bytes::from_static(b"page"), 0);
        let page =
            StoredPage { zone, key: Key::new(Bytes::from_static(b"a")), entry: Arc::new(entry) };
        let stored = || StoredPage {
            zone: Arc::clone(&page.zone),
            key: page.key.clone(),
            entry: Arc::clone(&page.entry),
        };
        let effort = Effort { coding: Coding::Gzip, level: 1, window: 0 };
        let first = Claim::of(stored(), effort).unwrap();
        for _ in 0..3 {
            assert!(Claim::of(stored(), effort).is_none());
        }
        drop(first);
        assert!(Claim::of(stored(), effort).is_some());
        std::fs::remove_dir_all(path).unwrap();
    }
}
