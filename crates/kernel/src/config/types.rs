//! Types of directive values that several modules share.

use super::block::Block;
use super::directive::{Adds, Args, HTTP, SERVER, Setting, ValueError, once};
use super::template::Template;
use crate::logging::error::Level;
use bitflags::Flags;
use bytes::Bytes;
use std::path::PathBuf;
use std::time::Duration;
use yorozu_conf::value;

impl Setting for bool {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let word = args.word(0);
        value::switch(word).ok_or_else(|| args.invalid_value_must_be(word, "\"on\" or \"off\""))
    }
}

/// A plain number.
impl Setting for u64 {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        value::number(args.word(0)).ok_or_else(|| args.invalid_number())
    }
}

/// A size of a hash table that this program does not have: nginx builds none of size 0.
#[derive(Clone)]
pub struct HashSize;

impl Setting for HashSize {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        if u64::from_args(args)? > 0 {
            return Ok(Self);
        }
        let name = args.name;
        let table = name.split_inclusive("_hash").next().unwrap_or(name);
        Err(ValueError(format!("could not build {table}, you should increase {name}: 0")))
    }
}

/// Checks the size of a hash table that a location has only where it says something of its own.
///
/// # Errors
/// It is a duplicate, or no size.
pub fn hash_size(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    match block.context {
        HTTP | SERVER => once::<HashSize>(block, args),
        _ => once::<u64>(block, args),
    }
}

/// A time that is counted in milliseconds: as nginx, without months and years.
impl Setting for Duration {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        value::short_time(args.word(0)).ok_or_else(|| args.invalid_value())
    }
}

/// A time that nginx counts in seconds, which may be years.
#[derive(Clone, Copy, Debug)]
pub struct LongTime(pub Duration);

impl Setting for LongTime {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        value::time(args.word(0)).map(Self).ok_or_else(|| args.invalid_value())
    }
}

/// A size in bytes, `k` and `m` allowed.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Size(pub u64);

impl Size {
    /// For lengths in memory.
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl Setting for Size {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        value::size(args.word(0)).map(Self).ok_or_else(|| args.invalid_value())
    }
}

/// A length of content or files, `k`, `m` and `g` allowed.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Offset(pub u64);

impl Setting for Offset {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        value::offset(args.word(0)).map(Self).ok_or_else(|| args.invalid_value())
    }
}

/// A number and a size: `8 4k`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Buffers {
    pub count: u64,
    pub size: u64,
}

impl Buffers {
    /// All of them together, in bytes.
    pub fn total(self) -> usize {
        usize::try_from(self.count.saturating_mul(self.size)).unwrap_or(usize::MAX)
    }
}

impl Setting for Buffers {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let count = value::number(args.word(0)).filter(|count| *count > 0);
        let size = value::size(args.word(1)).filter(|size| *size > 0);
        count
            .zip(size)
            .map(|(count, size)| Self { count, size })
            .ok_or_else(|| args.invalid_value())
    }
}

/// One word as it stands.
impl Setting for Bytes {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(args.words.first().cloned().unwrap_or_default())
    }
}

/// Every argument as it stands.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Words(pub Vec<Bytes>);

impl Words {
    pub fn has(&self, word: &[u8]) -> bool {
        self.0.iter().any(|found| &found[..] == word)
    }
}

impl Setting for Words {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(Self(args.words.to_vec()))
    }
}

/// One value, absent by default.
impl<T: Setting> Setting for Option<T> {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        T::from_args(args).map(Some)
    }
    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        match self {
            Some(value) => value.again(args),
            None => Err(args.duplicate()),
        }
    }
}

/// A status of refusals, 400 to 599.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Status(pub u16);

impl Setting for Status {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let number = value::number(args.word(0)).ok_or_else(|| args.invalid_number())?;
        let status = u16::try_from(number).ok().filter(|status| (400..600).contains(status));
        status.map(Self).ok_or_else(|| ValueError::new("value must be between 400 and 599"))
    }
}

/// The level of what is logged about refusals.
impl Setting for Level {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match &args.word(0).to_ascii_lowercase()[..] {
            b"info" => Ok(Self::Info),
            b"notice" => Ok(Self::Notice),
            b"warn" => Ok(Self::Warn),
            b"error" => Ok(Self::Error),
            _ => {
                let expected = "\"info\", \"notice\", \"warn\" or \"error\"";
                Err(args.invalid_value_must_be(args.word(0), expected))
            }
        }
    }
}

/// Values of a directive that may stand several times in one block.
impl<T: Setting> Adds for Vec<T> {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let value = T::from_args(args)?;
        if self.iter().any(|earlier| value.repeats(earlier)) {
            return Err(args.duplicate());
        }
        self.push(value);
        Ok(())
    }
}

/// The first argument with its variables.
impl Setting for Template {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Template::compile(args.word(0), args.env)
    }
}

/// Every argument with its variables.
#[derive(Clone, Debug, Default)]
pub struct Templates(pub Vec<Template>);

impl Adds for Templates {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            self.0.push(Template::compile(word, args.env)?);
        }
        Ok(())
    }
}

/// A path below the prefix, without variables.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PrefixPath(pub PathBuf);

impl Setting for PrefixPath {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(Self(args.env.prefix_path(&args.text(0))))
    }
}

/// A path below the folder of the configuration file, without variables.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ConfPath(pub PathBuf);

impl Setting for ConfPath {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(Self(args.env.conf_prefix.join(args.text(0))))
    }
}

/// A folder for temporary files with up to three levels, which are accepted and not used.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TempPath(pub PathBuf);

impl Setting for TempPath {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        // nginx's, of all levels together.
        const DIGITS_MAX: u64 = 10;
        let level = |word: &Bytes| {
            let digits = value::number(word).filter(|digits| (1..=DIGITS_MAX).contains(digits));
            digits.ok_or_else(|| args.invalid_value())
        };
        let levels = args.words[1..].iter().map(level).collect::<Result<Vec<u64>, _>>()?;
        if levels.iter().sum::<u64>() > DIGITS_MAX {
            return Err(args.invalid_value());
        }
        let path = args.env.prefix_path(&args.text(0));
        // Without a line it is a default.
        let line = args.env.line.borrow();
        if let Some(at) = &*line {
            args.env.named.borrow_mut().folder(&path, false, levels, at)?;
        }
        Ok(Self(path))
    }
}

/// Adds the words of a line to a set, each known by name in whatever case.
///
/// # Errors
/// A word is unknown.
pub fn add_word_flags<F: Flags + Copy>(
    flags: &mut F,
    args: &Args<'_>,
    known: &[(&str, F)],
) -> Result<(), ValueError> {
    for word in args.words {
        let found = known.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        let (_, flag) = found.ok_or_else(|| {
            ValueError(format!("invalid value \"{}\"", String::from_utf8_lossy(word)))
        })?;
        if flags.contains(*flag) {
            args.duplicate_value(word);
        }
        flags.insert(*flag);
    }
    Ok(())
}

/// A value of which the last one in a block holds.
#[derive(Clone, Debug, Default)]
pub struct LastOf<T>(pub T);

impl<T: Setting> Setting for LastOf<T> {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        T::from_args(args).map(Self)
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        *self = Self::from_args(args)?;
        Ok(())
    }
}

/// Declares an enum of words.
#[macro_export]
macro_rules! word_enum {
    ($(#[$meta:meta])* $name:ident { $( $(#[$vmeta:meta])* $variant:ident = $word:literal, )+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum $name { $( $(#[$vmeta])* $variant, )+ }

        impl $crate::config::directive::Setting for $name {
            fn from_args(
                args: &$crate::config::directive::Args<'_>,
            ) -> Result<Self, $crate::config::directive::ValueError> {
                let word = args.word(0);
                $( if word.eq_ignore_ascii_case($word.as_bytes()) { return Ok(Self::$variant); } )+
                let known: &[&str] = &[$( concat!("\"", $word, "\"") ),+];
                Err(args.invalid_value_must_be(word, &known.join(" or ")))
            }
        }
    };
}

pub use word_enum;

/// A name, or with a `*` behind it what begins so; case does not count.
#[derive(Clone, Debug)]
pub struct NamePattern {
    text: Bytes,
    is_prefix: bool,
}

impl NamePattern {
    pub fn new(word: &[u8]) -> Self {
        let text = word.strip_suffix(b"*");
        Self { text: Bytes::copy_from_slice(text.unwrap_or(word)), is_prefix: text.is_some() }
    }

    /// A name in which a `*` is a letter like any other.
    pub fn exact(name: &[u8]) -> Self {
        Self { text: Bytes::copy_from_slice(name), is_prefix: false }
    }

    /// The name, without the `*`.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    pub fn is_prefix(&self) -> bool {
        self.is_prefix
    }

    pub fn matches(&self, name: &[u8]) -> bool {
        self.matches_as(name, <[u8]>::eq_ignore_ascii_case)
    }

    /// As [`NamePattern::matches`], where names are compared by `is_same`.
    pub fn matches_as(&self, name: &[u8], is_same: impl FnOnce(&[u8], &[u8]) -> bool) -> bool {
        let start = if self.is_prefix { name.get(..self.text.len()) } else { Some(name) };
        start.is_some_and(|start| is_same(start, &self.text))
    }
}

/// `*_store_access`: `user:rw group:r all:r`
#[derive(Clone, Copy, Debug)]
pub struct StoreAccess(pub u32);

impl Setting for StoreAccess {
    /// As nginx: each word is of one class alone, and the owner's rights are as said, if they are.
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let (mut mode, mut of_user) = (0, 0o600);
        for word in args.words {
            let broken =
                || ValueError(format!("invalid value \"{}\"", String::from_utf8_lossy(word)));
            let text = std::str::from_utf8(word).map_err(|_| broken())?;
            let (who, rights) = text.split_once(':').ok_or_else(broken)?;
            let bits = match rights {
                "r" => 0o4,
                "rw" => 0o6,
                _ => return Err(broken()),
            };
            mode |= match who {
                "user" => {
                    of_user = 0;
                    bits << 6
                }
                "group" => bits << 3,
                "all" => bits,
                _ => return Err(broken()),
            };
        }
        Ok(Self(mode | of_user))
    }
}

/// The least size of a zone of shared memory in bytes; nginx's: eight pages.
pub const ZONE_BYTES_MIN: u64 = 8 * 4096;

/// `name:size` of a zone.
pub fn name_and_size(text: &str) -> Result<(String, u64), ValueError> {
    let wrong = || ValueError(format!("invalid zone size \"zone={text}\""));
    let (name, size) = text.split_once(':').ok_or_else(wrong)?;
    let bytes = value::size(size.as_bytes()).ok_or_else(wrong)?;
    if bytes < ZONE_BYTES_MIN {
        return Err(ValueError(format!("zone \"{name}\" is too small")));
    }
    Ok((name.to_owned(), bytes))
}
