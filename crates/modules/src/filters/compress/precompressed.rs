//! `gzip_static`, `brotli_static`, `zstd_static`: files that lie compressed beside the plain ones.

use super::{Coding, gzip};
use yorozu_http::negotiation::weight;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::word_enum;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::response::Response;

/// The module.
pub const MODULE: Module =
    Module::new("http_gzip_static", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

word_enum! {
    /// Which clients get the compressed file.
    Static {
        Off = "off",
        /// Those that take it.
        On = "on",
        /// All.
        Always = "always",
    }
}

settings! {
    /// Whether `file.br` is sent in place of `file`.
    brotli_static: Static = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether `file.gz` is sent in place of `file`.
    gzip_static: Static = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether `file.zst` is sent in place of `file`.
    zstd_static: Static = "off", ONE, HTTP_SERVER_LOCATION;
}

/// A compressed file that may be sent in place of the plain one.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub coding: Coding,
    /// What its name ends with.
    pub suffix: &'static [u8],
}

/// What the names of files end with that some clients get.
pub fn chosen(location: &LocationConf) -> impl Iterator<Item = &'static [u8]> {
    let conf = location.of::<Conf>();
    let rows: [(&'static [u8], _); 3] =
        [(b".br", conf.brotli_static), (b".zst", conf.zstd_static), (b".gz", conf.gzip_static)];
    rows.into_iter().filter(|(_, mode)| *mode == Static::On).map(|(suffix, _)| suffix)
}

/// The files to look for, the one the client likes best first; and whether clients get different ones.
pub fn candidates(exchange: &Exchange) -> (Vec<Candidate>, bool) {
    let location = exchange.conf.location(exchange.location);
    let conf = location.of::<Conf>();
    let request = &exchange.request;
    let accepted = request.known(request.known.accept_encoding).unwrap_or_default();
    let rows = [
        (Coding::Brotli, &b".br"[..], conf.brotli_static),
        (Coding::Zstd, b".zst", conf.zstd_static),
        (Coding::Gzip, b".gz", conf.gzip_static),
    ];
    let mut found = Vec::new();
    let mut differs = false;
    for (coding, suffix, mode) in rows {
        differs |= mode == Static::On;
        let is_let = || {
            let nothing = Response::new(200);
            coding != Coding::Gzip || gzip::is_let(exchange, &nothing, location.of::<gzip::Conf>())
        };
        let weight = match mode {
            Static::Off => None,
            Static::Always => Some(weight(accepted, coding.token()).unwrap_or(0)),
            Static::On => weight(accepted, coding.token()).filter(|_| is_let()),
        };
        if let Some(weight) = weight {
            found.push((weight, Candidate { coding, suffix }));
        }
    }
    found.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    (found.into_iter().map(|(_, candidate)| candidate).collect(), differs)
}
