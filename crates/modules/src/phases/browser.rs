//! `modern_browser`, `ancient_browser`: `$modern_browser`, `$ancient_browser` and `$msie` from `User-Agent`.

use bytes::Bytes;
use memchr::memmem;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::LastOf;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::variables::{Row, Variable};

/// The module.
pub const MODULE: Module = Module::new("http_browser", || DIRECTIVES.to_vec())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[
    ("modern_browser", Variable::Builtin(modern)),
    ("ancient_browser", Variable::Builtin(ancient)),
    ("msie", Variable::Builtin(msie)),
];

/// Major, minor and two further numbers of a version.
type Version = [u32; 4];

/// Where a browser says its version.
struct Mark {
    name: &'static str,
    /// Bytes at the start of the field that are not looked at.
    skipped: usize,
    before_version: &'static str,
    /// Bytes from there to the version.
    add: usize,
}

/// In the order in which they are looked for: some claim to be others.
///
/// # Source
/// nginx, `ngx_http_browser_module`.
const MARKS: [Mark; 5] = [
    Mark { name: "opera", skipped: 0, before_version: "Opera", add: 6 },
    Mark { name: "msie", skipped: 25, before_version: "MSIE ", add: 5 },
    Mark { name: "gecko", skipped: 13, before_version: "rv:", add: 3 },
    Mark { name: "safari", skipped: 13, before_version: "Safari/", add: 7 },
    Mark { name: "konqueror", skipped: 25, before_version: "Konqueror/", add: 10 },
];

/// `modern_browser browser version | unlisted`
#[derive(Clone, Debug, Default)]
pub struct Modern {
    /// Least versions, by the browser's place in [`MARKS`].
    least: [Option<Version>; 5],
    is_unlisted: bool,
}

impl Adds for Modern {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        if args.words.len() == 1 {
            if args.word(0) != b"unlisted" {
                return Err(args.invalid_parameter(args.word(0)));
            }
            self.is_unlisted = true;
            return Ok(());
        }
        let name = args.text(0);
        let place = MARKS.iter().position(|mark| mark.name == name);
        let place = place.ok_or_else(|| ValueError(format!("unknown browser name \"{name}\"")))?;
        let text = args.text(1);
        let parts: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        let parts = parts.filter(|parts| parts.len() <= 4);
        let parts =
            parts.ok_or_else(|| ValueError(format!("invalid browser version \"{text}\"")))?;
        let mut version = [0; 4];
        version[..parts.len()].copy_from_slice(&parts);
        self.least[place] = Some(version);
        Ok(())
    }
}

/// `ancient_browser string …`
#[derive(Clone, Debug, Default)]
pub struct Ancient(Vec<Bytes>);

impl Adds for Ancient {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        self.0.extend_from_slice(args.words);
        Ok(())
    }
}

settings! {
    /// The version from which a browser counts as modern; `unlisted`: so do browsers that are not named.
    modern_browser: Modern = none, ONE_OR_TWO, HTTP_SERVER_LOCATION;
    /// Strings whose presence makes a browser ancient; `netscape4`: so are those that call themselves Mozilla 1 to 4.
    ancient_browser: Ancient = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Value of `$modern_browser` for a modern browser.
    modern_browser_value: LastOf<Bytes> = "1", ONE, HTTP_SERVER_LOCATION;
    /// Value of `$ancient_browser` for an ancient browser.
    ancient_browser_value: LastOf<Bytes> = "1", ONE, HTTP_SERVER_LOCATION;
}

fn agent(exchange: &Exchange) -> Option<&[u8]> {
    exchange.request.values(b"user-agent").next()
}

fn is_modern(conf: &Conf, agent: Option<&[u8]>) -> bool {
    let Some(agent) = agent else { return conf.modern_browser.is_unlisted };
    for (mark, least) in MARKS.iter().zip(&conf.modern_browser.least) {
        let Some(least) = least else { continue };
        let looked_at = agent.get(mark.skipped..).unwrap_or_default();
        if let Some(at) = memmem::find(looked_at, mark.before_version.as_bytes()) {
            let version = looked_at.get(at + mark.add..).unwrap_or_default();
            return !version.is_empty() && version_of(version) >= *least;
        }
    }
    let is_old_mozilla = || matches!(agent.strip_prefix(b"Mozilla/"), Some([b'1'..=b'4', ..]));
    let is_ancient = |text: &Bytes| match &text[..] {
        b"netscape4" => is_old_mozilla(),
        text => memmem::find(agent, text).is_some(),
    };
    !conf.ancient_browser.0.iter().any(is_ancient) && conf.modern_browser.is_unlisted
}

/// The version at the start of `text`, up to what is neither digit nor dot.
fn version_of(text: &[u8]) -> Version {
    let mut version = [0_u32; 4];
    let mut place = 0;
    for byte in text {
        match byte {
            b'0'..=b'9' if place < 4 => {
                let digit = u32::from(byte - b'0');
                version[place] = version[place].saturating_mul(10).saturating_add(digit);
            }
            b'.' => place += 1,
            _ => break,
        }
    }
    version
}

/// `$modern_browser`
pub fn modern(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    let is_it = is_modern(conf, agent(exchange));
    put(is_it, &conf.modern_browser_value.0, out)
}

/// `$ancient_browser`
pub fn ancient(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    let is_it = !is_modern(conf, agent(exchange));
    put(is_it, &conf.ancient_browser_value.0, out)
}

/// `$msie`: 1 for any Microsoft Internet Explorer.
pub fn msie(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    put(agent(exchange).is_some_and(is_msie), b"1", out)
}

/// As nginx: with a version behind it, and not Opera, which called itself so, too.
fn is_msie(agent: &[u8]) -> bool {
    let at = memmem::find(agent, b"MSIE ");
    at.is_some_and(|at| agent.len() - at >= b"MSIE 5.0".len())
        && memmem::find(agent, b"Opera").is_none()
}

fn put(is_it: bool, value: &[u8], out: &mut Vec<u8>) -> bool {
    if is_it {
        out.extend_from_slice(value);
    }
    true
}
