//! `geoip2`: variables with what a database of MaxMind's says about an address.
//!
//! A database is read whole, with the configuration; each configuration has its own. With `auto_reload` a request sees to it, once in the
//! interval, that the file is looked at on a thread that may block, and goes on with what there is.
//!
//! # Source
//! The documentation of ngx_http_geoip2_module; MaxMind DB File Format Specification 2.0.

use arc_swap::ArcSwap;
use bytes::Bytes;
use maxminddb::{PathElement, Reader};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt::{self, Formatter};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use yorozu_conf::{ConfError, Directive as Line, value};
use yorozu_kernel::base::turn::{self, unix_seconds_of};
use yorozu_kernel::base::{address, tasks};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::{Env, define, join};
use yorozu_kernel::config::files::read_regular;
use yorozu_kernel::config::loader::Loader;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::names::Definition;
use yorozu_kernel::config::network::Network;
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::regex::Undecided;
use yorozu_kernel::config::shared::{Shared, SharedType};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::variables::Computed;
use yorozu_kernel::exchange::{Exchange, forwarded};
use yorozu_kernel::files::open::metadata;
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module =
    Module::new("http_geoip2", || DIRECTIVES.to_vec()).sharing(&[SharedType::of::<Proxies>()]);

/// `geoip2_proxy` and `geoip2_proxy_recursive`
#[derive(Debug, Default)]
struct Proxies {
    networks: Vec<Network>,
    is_recursive: Option<bool>,
}

impl Shared for Proxies {
    fn place() -> &'static Place {
        place!()
    }
}

pub const DIRECTIVES: &[Directive] = &[
    Directive::row(
        "geoip2",
        HTTP,
        Arity::ONE,
        Action::Open(open),
        "Variables with data about an address from a MaxMind database: $name [default=] [source=] path …, $name metadata …, auto_reload.",
    ),
    Directive::row(
        "geoip2_proxy",
        HTTP,
        Arity::ONE,
        Action::Set(proxy),
        "Proxies whose X-Forwarded-For the address is taken from.",
    ),
    Directive::row(
        "geoip2_proxy_recursive",
        HTTP,
        Arity::ONE,
        Action::Set(proxy_recursive),
        "Whether the last address in X-Forwarded-For that is not a proxy's is used.",
    ),
];

fn proxy(_: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let network = Network::parse(&args.text(0));
    let network =
        network.ok_or_else(|| ValueError(format!("invalid network \"{}\"", args.text(0))))?;
    args.env.shared::<Proxies>().networks.push(network);
    Ok(())
}

fn proxy_recursive(_: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let is_recursive = bool::from_args(args)?;
    match args.env.shared::<Proxies>().is_recursive.replace(is_recursive) {
        None => Ok(()),
        Some(_) => Err(args.duplicate()),
    }
}

/// A file as it was read.
struct Content {
    reader: Reader<Bytes>,
    /// When the file was changed, as far as it is known, in seconds since 1970.
    changed: i64,
}

impl Content {
    fn read(path: &Path, changed: i64) -> Result<Self, String> {
        let failed = |why: String| format!("MMDB_open(\"{}\") failed - {why}", path.display());
        let text = read_regular(path).map_err(|problem| failed(error::os_error(&problem)))?;
        let reader = Reader::from_source(text).map_err(|problem| failed(problem.to_string()))?;
        Ok(Self { reader, changed })
    }
}

/// A database of the configuration.
struct Database {
    path: PathBuf,
    content: ArcSwap<Content>,
    /// When the file was looked at, in seconds since 1970.
    checked: AtomicI64,
    /// `auto_reload` in seconds; 0 for never.
    interval: i64,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Database {
    /// Has the file looked at, if it is time to.
    fn keep_fresh(self: &Arc<Self>, exchange: &Exchange) {
        let (now, checked) = (exchange.now(), self.checked.load(Ordering::Relaxed));
        let is_due = self.interval > 0 && now >= checked + self.interval;
        let claims = || {
            let claimed =
                self.checked.compare_exchange(checked, now, Ordering::Relaxed, Ordering::Relaxed);
            claimed.is_ok()
        };
        if !is_due || !claims() {
            return;
        }
        let (database, conf) = (Arc::clone(self), Rc::clone(&exchange.conf));
        tasks::of_request(async move {
            let work = move || database.read_again();
            match tokio::task::spawn_blocking(work).await.map_err(io::Error::other) {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(text))) => error::process(&conf.config, Level::Info, &text),
                Ok(Err(text)) => error::process(&conf.config, Level::Error, &text),
                Err(problem) => error::process(&conf.config, Level::Error, &problem.to_string()),
            }
        });
    }

    /// Reads the file if it changed; what is to be said about that.
    fn read_again(&self) -> Result<Option<String>, String> {
        let shown = self.path.display();
        let metadata = metadata(self.path.as_os_str().as_encoded_bytes()).map_err(|problem| {
            format!("stat(\"{shown}\") failed ({})", error::os_error(&problem))
        })?;
        let changed = metadata.modified().map_or(0, unix_seconds_of);
        if changed <= self.content.load().changed {
            return Ok(None);
        }
        self.content.store(Arc::new(Content::read(&self.path, changed)?));
        Ok(Some(format!("reload MMDB \"{shown}\"")))
    }
}

/// A variable of a database.
#[derive(Debug)]
struct Lookup {
    database: Arc<Database>,
    what: What,
}

#[derive(Debug)]
enum What {
    BuildEpoch,
    LastCheck,
    LastChange,
    Data {
        default: Bytes,
        /// The address that is looked at; the client's without it.
        source: Option<Template>,
        path: Vec<Step>,
    },
}

/// A word of a path.
#[derive(Debug)]
enum Step {
    Key(String),
    /// The place in a list, from its end if it is negative.
    Index(i32),
}

impl Computed for Lookup {
    fn value(&self, exchange: &mut Exchange) -> Result<Bytes, Undecided> {
        self.database.keep_fresh(exchange);
        let content = self.database.content.load();
        let (source, path, default) = match &self.what {
            What::BuildEpoch => {
                return Ok(content.reader.metadata().build_epoch.to_string().into());
            }
            What::LastCheck => {
                return Ok(self.database.checked.load(Ordering::Relaxed).to_string().into());
            }
            What::LastChange => return Ok(content.changed.to_string().into()),
            What::Data { source, path, default } => (source.as_ref(), path, default),
        };
        let found = address(exchange, source).and_then(|address| {
            let steps: Vec<_> = path.iter().map(Step::element).collect();
            content.reader.lookup(address).ok()?.decode_path::<Text>(&steps).ok()??.0
        });
        Ok(found.unwrap_or_else(|| default.clone()))
    }
}

impl Step {
    fn read(word: &[u8]) -> Self {
        let text = String::from_utf8_lossy(word).into_owned();
        text.parse().map_or(Self::Key(text), Self::Index)
    }

    fn element(&self) -> PathElement<'_> {
        match self {
            Self::Key(key) => PathElement::Key(key),
            Self::Index(index) => PathElement::from(*index),
        }
    }
}

fn address(exchange: &mut Exchange, source: Option<&Template>) -> Option<IpAddr> {
    if let Some(source) = source {
        return address::ip(&source.value(exchange));
    }
    let address = exchange.remote.ip()?;
    let proxies = exchange.conf.shared.of::<Proxies>();
    let is_proxy = |address: IpAddr| proxies.networks.iter().any(|one| one.matches(Some(address)));
    if !is_proxy(address) {
        return Some(address);
    }
    let is_recursive = proxies.is_recursive.unwrap_or(false);
    let named = forwarded::named(exchange, b"x-forwarded-for", is_recursive, is_proxy);
    Some(named.map_or(address, |named| named.ip()))
}

/// A value of a database as text; `None` for what has other values inside.
struct Text(Option<Bytes>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AsText)
    }
}

struct AsText;

impl<'de> Visitor<'de> for AsText {
    type Value = Text;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Text, E> {
        Ok(Text(Some(Bytes::from_static(if value { b"1" } else { b"0" }))))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Text, E> {
        Ok(Text(Some(value.to_string().into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Text, E> {
        Ok(Text(Some(value.to_string().into())))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Text, E> {
        Ok(Text(Some(format!("0x{value:032x}").into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Text, E> {
        Ok(Text(Some(format!("{value:.5}").into())))
    }

    fn visit_str<E>(self, value: &str) -> Result<Text, E> {
        Ok(Text(Some(Bytes::copy_from_slice(value.as_bytes()))))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Text, E> {
        Ok(Text(Some(Bytes::copy_from_slice(value))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }
}

fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let env = loader.env;
    let path = join(&env.conf_prefix, &String::from_utf8_lossy(&line.args[0]));
    let rows = line.block.as_deref().unwrap_or_default();
    let mut interval = 0;
    for row in rows.iter().filter(|row| row.name == "auto_reload") {
        let time = match &row.args[..] {
            [time] => value::time(time).map(|time| i64::try_from(time.as_secs())),
            _ => {
                return Err(
                    ValueError::new("invalid number of arguments in \"auto_reload\"").at(&row.at)
                );
            }
        };
        let Some(Ok(seconds)) = time else {
            return Err(ValueError::new("invalid interval for auto_reload").at(&row.at));
        };
        interval = seconds;
    }
    let now = turn::unix_seconds();
    let content = Content::read(&path, now).map_err(|text| ValueError(text).at(&line.at))?;
    let (content, checked) = (ArcSwap::from_pointee(content), AtomicI64::new(now));
    let database = Arc::new(Database { path, content, checked, interval });
    for row in rows.iter().filter(|row| row.name != "auto_reload") {
        variable(env, &database, row).map_err(|problem| problem.at(&row.at))?;
    }
    Ok(())
}

/// `$name [default=text] [source=$variable] path …`, `$name metadata what`
fn variable(env: &Env, database: &Arc<Database>, row: &Line) -> Result<(), ValueError> {
    if !row.name.starts_with(b"$") {
        return Err(ValueError(format!("invalid setting \"{}\"", row.name_text())));
    }
    let what = match &row.args[..] {
        [] => return Err(ValueError::new("invalid number of arguments in \"geoip2\" directive")),
        [word, what] if word == "metadata" => match &what[..] {
            b"build_epoch" => What::BuildEpoch,
            b"last_check" => What::LastCheck,
            b"last_change" => What::LastChange,
            other => {
                let other = String::from_utf8_lossy(other);
                return Err(ValueError(format!("unsupported metadata \"{other}\"")));
            }
        },
        words => data(env, words)?,
    };
    let slot = define(&row.name, env)?;
    let lookup = Lookup { database: Arc::clone(database), what };
    env.definitions.borrow_mut().push(Definition { slot, source: Box::new(lookup) });
    Ok(())
}

fn data(env: &Env, words: &[Bytes]) -> Result<What, ValueError> {
    let (mut default, mut source, mut used) = (None, None, 0);
    for word in words {
        let is_again = if let Some(text) = word.strip_prefix(b"default=") {
            default.replace(word.slice_ref(text)).is_some()
        } else if let Some(text) = word.strip_prefix(b"source=") {
            if !text.starts_with(b"$") {
                return Err(ValueError::new("\"source\" must be a variable"));
            }
            source.replace(Template::compile(text, env)?).is_some()
        } else {
            break;
        };
        if is_again {
            let word = String::from_utf8_lossy(word);
            return Err(ValueError(format!("duplicate parameter \"{word}\"")));
        }
        used += 1;
    }
    let path = words[used..].iter().map(|word| Step::read(word)).collect();
    Ok(What::Data { default: default.unwrap_or_default(), source, path })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test may wait for its disk")]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::{Duration, UNIX_EPOCH};

    /// A database that says the same letter of all addresses of version 4.
    fn database(letter: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, 17, 0, 0, 17];
        bytes.extend([0; 16]);
        bytes.extend([0x41, letter]);
        bytes.extend(b"\xab\xcd\xefMaxMind.com");
        let fields: [(&str, &[u8]); 9] = [
            ("binary_format_major_version", &[0xa1, 2]),
            ("binary_format_minor_version", &[0xa0]),
            ("build_epoch", &[0x01, 2, 7]),
            ("database_type", &[0x41, b'T']),
            ("description", &[0xe0]),
            ("ip_version", &[0xa1, 4]),
            ("languages", &[0x00, 4]),
            ("node_count", &[0xc1, 1]),
            ("record_size", &[0xa1, 24]),
        ];
        bytes.push(0xe9);
        for (name, value) in fields {
            let short = u8::try_from(name.len()).unwrap();
            bytes.extend(if short < 29 { vec![0x40 | short] } else { vec![0x5d, short - 29] });
            bytes.extend(name.as_bytes());
            bytes.extend(value);
        }
        bytes
    }

    fn said(database: &Database) -> Bytes {
        let content = database.content.load();
        let found = content.reader.lookup(IpAddr::from([127, 0, 0, 1])).unwrap();
        found.decode::<Text>().unwrap().unwrap().0.unwrap()
    }

    #[test]
    fn a_file_is_read_again_once_it_changed_and_only_if_it_is_a_database() {
        let path = std::env::temp_dir().join(format!("yorozu-geoip2.{}", std::process::id()));
        let write = |bytes: &[u8], seconds: u64| {
            std::fs::write(&path, bytes).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        write(&database(b'a'), 100);
        let content = ArcSwap::from_pointee(Content::read(&path, 100).unwrap());
        let checked = AtomicI64::new(100);
        let known = Database { path: path.clone(), content, checked, interval: 1 };
        assert_eq!(&said(&known)[..], b"a");
        write(&database(b'b'), 100);
        assert_eq!(known.read_again(), Ok(None));
        assert_eq!(&said(&known)[..], b"a");
        write(&database(b'b'), 200);
        assert!(known.read_again().unwrap().unwrap().starts_with("reload MMDB"));
        assert_eq!(&said(&known)[..], b"b");
        write(b"torn", 300);
        assert!(known.read_again().unwrap_err().contains("failed - "));
        assert_eq!(&said(&known)[..], b"b");
        std::fs::remove_file(&path).unwrap();
        assert!(known.read_again().unwrap_err().starts_with("stat("));
    }
}
