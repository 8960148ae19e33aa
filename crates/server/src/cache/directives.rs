//! Values of the cache's directives, and `*_cache_path`.

use crate::config::block::Block;
use crate::config::directive::*;
use crate::config::env::CacheZone;
use crate::config::template::Template;
use bytes::Bytes;
use std::time::Duration;
use yorozu_cache::{DiskOptions, Levels, Pace, ZoneOptions};
use yorozu_conf::value;

/// `*_cache zone | off`; the name may hold variables, and then spell `off` or nothing too.
#[derive(Clone, Debug, Default)]
pub struct CacheZoneName(Option<Template>);

impl CacheZoneName {
    pub fn zone(&self) -> Option<&Template> {
        self.0.as_ref()
    }
}

impl Setting for CacheZoneName {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match args.word(0) {
            b"off" => Ok(Self(None)),
            zone => Template::compile(zone, args.env).map(|zone| Self(Some(zone))),
        }
    }
}

/// `*_cache_methods`: GET and HEAD, and those named.
#[derive(Clone, Debug, Default)]
pub struct CacheMethods(Vec<Bytes>);

impl CacheMethods {
    pub fn admits(&self, method: &[u8]) -> bool {
        method == b"GET" || method == b"HEAD" || self.0.iter().any(|name| name == method)
    }
}

impl Setting for CacheMethods {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        for word in args.words {
            if !matches!(&word[..], b"GET" | b"HEAD" | b"POST") {
                let word = String::from_utf8_lossy(word);
                return Err(ValueError(format!("invalid value \"{word}\"")));
            }
        }
        Ok(Self(args.words.to_vec()))
    }
}

/// `*_cache_valid` lines: the first that names the status, or `any`, counts.
#[derive(Clone, Debug, Default)]
pub struct CacheValid(Vec<(Option<u16>, Duration)>);

impl CacheValid {
    /// The lifetime for a status.
    pub fn lifetime(&self, status: u16) -> Option<Duration> {
        let means = |code: &Option<u16>| match code {
            Some(code) => *code == status,
            None => !super::unkeyed::is_of_request(status),
        };
        let found = self.0.iter().find(|(code, _)| means(code));
        found.map(|(_, time)| *time)
    }
}

impl Setting for CacheValid {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut valid = Self::default();
        valid.again(args)?;
        Ok(valid)
    }
    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let (time, codes) = args.words.split_last().expect("one argument at least");
        let time = value::time(time).ok_or_else(|| {
            ValueError(format!("invalid time value \"{}\"", String::from_utf8_lossy(time)))
        })?;
        if codes.is_empty() {
            self.0.extend([200, 301, 302].map(|code| (Some(code), time)));
        }
        for word in codes {
            let code = match &word[..] {
                b"any" => None,
                digits => {
                    let code = value::number(digits).and_then(|code| u16::try_from(code).ok());
                    let code = code.filter(|code| (100..=599).contains(code));
                    let text = String::from_utf8_lossy(word);
                    Some(code.ok_or_else(|| ValueError(format!("invalid status \"{text}\"")))?)
                }
            };
            self.0.push((code, time));
        }
        Ok(())
    }
}

/// Memory tier of a zone whose line says nothing about it; chosen: a few thousand pages.
const MEMORY_DEFAULT: u64 = 64 << 20;
/// Files per byte of `keys_zone`: nginx stores about 8,000 keys in a megabyte.
const KEYS_PER_MEGABYTE: u64 = 8000;

fn pace<'a>(disk: &'a mut DiskOptions, name: &str) -> &'a mut Pace {
    if name.starts_with("loader") { &mut disk.loader } else { &mut disk.manager }
}

fn time(text: &str) -> Option<Duration> {
    value::time(text.as_bytes())
}

/// `*_cache_path path keys_zone=name:size [parameters]`
///
/// # Errors
/// A parameter that is unknown or malformed, or a zone defined twice.
pub fn cache_path(_: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let mut disk = DiskOptions {
        path: args.env.prefix_path(&args.text(0)),
        levels: Levels::default(),
        max_size: None,
        min_free: None,
        files_max: 0,
        inactive: 600,
        loader: Pace::default(),
        manager: Pace::default(),
    };
    let mut memory_bytes = MEMORY_DEFAULT;
    let mut zone = None;
    for word in &args.words[1..] {
        let text = String::from_utf8_lossy(word).into_owned();
        let (name, argument) = text.split_once('=').ok_or_else(|| args.invalid_parameter(word))?;
        let broken = |what: &str| ValueError(format!("invalid {what} value \"{text}\""));
        let size = || value::offset(argument.as_bytes());
        match name {
            "levels" => {
                disk.levels = Levels::parse(argument)
                    .ok_or_else(|| ValueError(format!("invalid \"levels\" \"{text}\"")))?;
            }
            "keys_zone" => {
                let (name, size) = argument.split_once(':').ok_or_else(|| broken("keys zone"))?;
                let size = value::size(size.as_bytes())
                    .filter(|size| *size >= 2 * 4096 && !name.is_empty());
                let size =
                    size.ok_or_else(|| ValueError(format!("invalid keys zone size \"{text}\"")))?;
                let keys = (size * KEYS_PER_MEGABYTE) >> 20;
                disk.files_max = usize::try_from(keys).unwrap_or(usize::MAX).max(1);
                zone = Some(name.to_owned());
            }
            "inactive" => {
                let time = value::time(argument.as_bytes()).ok_or_else(|| broken("inactive"))?;
                disk.inactive = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
            }
            "max_size" => disk.max_size = Some(size().ok_or_else(|| broken("max_size"))?),
            "min_free" => disk.min_free = Some(size().ok_or_else(|| broken("min_free"))?),
            "memory" => memory_bytes = size().ok_or_else(|| broken("memory"))?,
            "use_temp_path" => {
                // Temporary files always lie in the cache's own folder.
                value::switch(argument.as_bytes()).ok_or_else(|| broken("use_temp_path"))?;
            }
            "manager_files" | "loader_files" => {
                let files = value::number(argument.as_bytes()).filter(|files| *files > 0);
                let files = files.and_then(|files| usize::try_from(files).ok());
                let files = files.ok_or_else(|| broken(name))?;
                pace(&mut disk, name).files = files;
            }
            "manager_sleep" | "loader_sleep" => {
                pace(&mut disk, name).sleep = time(argument).ok_or_else(|| broken(name))?;
            }
            "manager_threshold" | "loader_threshold" => {
                pace(&mut disk, name).threshold = time(argument).ok_or_else(|| broken(name))?;
            }
            "purger_files" => {
                value::number(argument.as_bytes()).ok_or_else(|| broken(name))?;
            }
            _ => return Err(args.invalid_parameter(word)),
        }
    }
    let Some(zone) = zone else {
        return Err(ValueError(format!("\"{}\" must have \"keys_zone\" parameter", args.name)));
    };
    let options = ZoneOptions { memory_bytes, disk };
    let old = args.env.zones.borrow_mut().insert(zone.clone(), CacheZone { options });
    match old {
        Some(_) => Err(ValueError(format!("duplicate zone \"{zone}\""))),
        None => Ok(()),
    }
}
