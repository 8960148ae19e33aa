//! A directive as a row: name, contexts, arity, default, manual text, and what it sets.

use super::block::Block;
use super::env::Env;
use super::loader::Loader;
pub use super::value_error::ValueError;
use bytes::Bytes;
use std::borrow::Cow;
use yorozu_conf::ConfError;

/// Blocks a directive may stand in, as a set of bits.
pub type Contexts = u16;
/// Top level.
pub const MAIN: Contexts = 1;
/// `events {}`
pub const EVENTS: Contexts = 1 << 1;
/// `http {}`
pub const HTTP: Contexts = 1 << 2;
/// `server {}`
pub const SERVER: Contexts = 1 << 3;
/// `location {}`
pub const LOCATION: Contexts = 1 << 4;
/// `if {}` in a server
pub const SERVER_IF: Contexts = 1 << 5;
/// `if {}` in a location
pub const LOCATION_IF: Contexts = 1 << 6;
/// `limit_except {}`
pub const LIMIT_EXCEPT: Contexts = 1 << 7;
/// `upstream {}`
pub const UPSTREAM: Contexts = 1 << 8;
/// `acme_issuer {}`
pub const ACME_ISSUER: Contexts = 1 << 9;
/// The three contexts most directives have.
pub const HTTP_SERVER_LOCATION: Contexts = HTTP | SERVER | LOCATION;

/// How many arguments a directive takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Arity {
    min: usize,
    max: usize,
}

impl Arity {
    pub const NONE: Self = Self { min: 0, max: 0 };
    pub const ONE: Self = Self { min: 1, max: 1 };
    pub const TWO: Self = Self { min: 2, max: 2 };
    pub const THREE: Self = Self { min: 3, max: 3 };
    pub const ONE_OR_TWO: Self = Self { min: 1, max: 2 };
    pub const TWO_OR_THREE: Self = Self { min: 2, max: 3 };
    pub const ONE_TO_FOUR: Self = Self { min: 1, max: 4 };
    pub const UP_TO_ONE: Self = Self { min: 0, max: 1 };
    pub const UP_TO_TWO: Self = Self { min: 0, max: 2 };
    pub const UP_TO_THREE: Self = Self { min: 0, max: 3 };
    pub const ONE_OR_MORE: Self = Self { min: 1, max: usize::MAX };
    pub const TWO_OR_MORE: Self = Self { min: 2, max: usize::MAX };
    pub const ANY: Self = Self { min: 0, max: usize::MAX };

    pub fn admits(self, count: usize) -> bool {
        (self.min..=self.max).contains(&count)
    }
}

/// Writes a value into the block that is being read.
pub type Setter = fn(&mut Block, &Args<'_>) -> Result<(), ValueError>;
/// Reads a block directive with its children.
pub type Opener = fn(&mut Loader<'_>, &mut Block, &yorozu_conf::Directive) -> Result<(), ConfError>;

/// What a directive does when it is read.
#[derive(Clone, Copy)]
pub enum Action {
    /// A simple directive.
    Set(Setter),
    /// A block directive.
    Open(Opener),
    /// Read and checked, so that it is refused where nginx refuses it; has no effect here, for the reason given.
    Ignored(&'static str, Setter),
    /// nginx has it, this server does not, for the reason given.
    Refused(&'static str),
}

/// Checks a value that has no effect, of a directive that may stand once in a block.
///
/// # Errors
/// It stands there a second time, or is no such value.
pub fn once<T: Setting>(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    if !block.ignored.insert(args.name.to_owned()) {
        return Err(args.duplicate());
    }
    T::from_args(args).map(drop)
}

/// Checks nothing of a value that has no effect.
///
/// # Errors
/// None.
pub fn anything(_: &mut Block, _: &Args<'_>) -> Result<(), ValueError> {
    Ok(())
}

/// One row of the table of directives.
#[derive(Clone)]
pub struct Directive {
    /// As written in nginx.conf.
    pub name: Cow<'static, str>,
    /// Where it may stand.
    pub contexts: Contexts,
    /// How many arguments it takes.
    pub arity: Arity,
    /// nginx's notation of the default; `None` for none.
    pub default: Option<&'static str>,
    /// One paragraph for the manual.
    pub doc: &'static str,
    /// What it does.
    pub action: Action,
}

impl Directive {
    /// A row for a block directive or one that sets by hand.
    pub const fn row(
        name: &'static str,
        contexts: Contexts,
        arity: Arity,
        action: Action,
        doc: &'static str,
    ) -> Self {
        Self { name: Cow::Borrowed(name), contexts, arity, default: None, doc, action }
    }
}

/// The arguments of one directive, with what setters need to know.
pub struct Args<'a> {
    /// The directive's name, for messages.
    pub name: &'a str,
    /// The words after the name.
    pub words: &'a [Bytes],
    /// The load under way.
    pub env: &'a Env,
}

impl<'a> Args<'a> {
    /// The `index`-th argument; an empty one where the arity allows it to be missing.
    pub fn word(&self, index: usize) -> &'a [u8] {
        self.words.get(index).map(|word| &word[..]).unwrap_or_default()
    }

    /// The `index`-th argument as text for messages and paths.
    pub fn text(&self, index: usize) -> String {
        String::from_utf8_lossy(self.word(index)).into_owned()
    }

    /// nginx's message for most broken values.
    pub fn invalid_value(&self) -> ValueError {
        ValueError(format!("\"{}\" directive invalid value", self.name))
    }

    /// nginx's message for what is no number.
    pub fn invalid_number(&self) -> ValueError {
        ValueError(format!("\"{}\" directive invalid number", self.name))
    }

    /// A broken value where a set of words is known.
    pub fn invalid_value_must_be(&self, got: &[u8], expected: &str) -> ValueError {
        let got = String::from_utf8_lossy(got);
        ValueError(format!(
            "invalid value \"{got}\" in \"{}\" directive, it must be {expected}",
            self.name
        ))
    }

    /// nginx's warning about a word of a set that is there already.
    pub fn duplicate_value(&self, word: &[u8]) {
        self.env.warn_here(&format!("duplicate value \"{}\"", String::from_utf8_lossy(word)));
    }

    /// A broken parameter among several.
    pub fn invalid_parameter(&self, got: &[u8]) -> ValueError {
        ValueError(format!("invalid parameter \"{}\"", String::from_utf8_lossy(got)))
    }

    /// The same directive twice where that has no meaning.
    pub fn duplicate(&self) -> ValueError {
        ValueError(format!("\"{}\" directive is duplicate", self.name))
    }
}

/// A value that a directive's arguments spell.
pub trait Setting: Sized + Clone {
    /// Reads the arguments.
    ///
    /// # Errors
    /// What is wrong with them.
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError>;

    /// The directive stands a second time in the same block.
    ///
    /// # Errors
    /// It is a duplicate, unless the type collects.
    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        Err(args.duplicate())
    }

    /// Of values that a directive collects: whether this one may not stand beside an earlier one.
    fn repeats(&self, _earlier: &Self) -> bool {
        false
    }

    /// Of values with several parts: takes over those of the enclosing block's value that it does not say itself.
    fn complete(&mut self, _outer: &Self) {}
}

/// A value to which each line adds; the first one to the default.
pub trait Adds: Default + Clone {
    /// Adds what a line says.
    ///
    /// # Errors
    /// What is wrong with it.
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError>;
}

impl<T: Adds> Setting for T {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut value = Self::default();
        value.add(args)?;
        Ok(value)
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        self.add(args)
    }
}

/// What one block says; unset follows the enclosing block.
#[derive(Clone, Debug)]
pub struct Inherit<T>(Option<T>);

impl<T> Default for Inherit<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Setting> Inherit<T> {
    pub fn set(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        match &mut self.0 {
            None => self.0 = Some(T::from_args(args)?),
            Some(value) => value.again(args)?,
        }
        Ok(())
    }

    pub fn inherit(&mut self, outer: &Self) {
        match (&mut self.0, &outer.0) {
            (Some(own), Some(outer)) => own.complete(outer),
            (Some(_), None) => {}
            (own @ None, outer) => own.clone_from(outer),
        }
    }

    pub fn written(&self) -> Option<&T> {
        self.0.as_ref()
    }

    /// Changes what is written, if anything is.
    pub fn change(&mut self, change: impl FnOnce(&mut T)) {
        if let Some(value) = &mut self.0 {
            change(value);
        }
    }

    pub fn replace(&mut self, value: T) {
        self.0 = Some(value);
    }

    /// The value, or what the text of the default spells.
    pub fn or_parse(&self, name: &str, default: &str, env: &Env) -> Result<T, ValueError> {
        match &self.0 {
            Some(value) => Ok(value.clone()),
            None => {
                let words: Vec<Bytes> = default
                    .split_ascii_whitespace()
                    .map(|w| Bytes::copy_from_slice(w.as_bytes()))
                    .collect();
                // No line says it.
                let line = env.line.take();
                let value = T::from_args(&Args { name, words: &words, env });
                *env.line.borrow_mut() = line;
                value
            }
        }
    }

    pub fn or_default(&self) -> T
    where
        T: Default,
    {
        self.0.clone().unwrap_or_default()
    }
}

/// Declares a module's settings: the rows, the draft of one block, and the compiled form.
///
/// Each line is `/// manual text`, then `name: Type = default, ARITY, contexts;` where the default
/// is nginx's notation or `none` (then the type's `Default`). The default's text is parsed by the
/// type itself, so that what the manual says and what the server does cannot differ.
///
/// In front of the lines may stand `in FIELD;`, for a draft that has its own field in the block; `written;`, where
/// the module says by hand what the draft is compiled to; or `inherit = FUNCTION, check = FUNCTION;` with what is done
/// in place of the usual inheritance, and after the defaults are applied.
#[macro_export]
macro_rules! settings {
    (in $block:ident; $($lines:tt)*) => {
        $crate::config::directive::settings! { @types $($lines)* }
        $crate::config::directive::settings! { @rows (|block| &mut block.$block) $($lines)* }
    };
    (written; $($lines:tt)*) => {
        $crate::config::directive::settings! { @types $($lines)* }
        $crate::config::directive::settings! { @rows (|block| block.drafts.of::<Draft>()) $($lines)* }
    };
    (inherit = $inherit:path, check = $check:path; $($lines:tt)*) => {
        $crate::config::directive::settings! { written; $($lines)* }

        impl $crate::config::settings::ModuleDraft for Draft {
            type Conf = Conf;

            fn place() -> &'static $crate::config::place::Place {
                $crate::config::place::place!()
            }

            fn inherit(&mut self, outer: &Self) {
                $inherit(self, outer);
            }

            fn compile(
                &self,
                at: &$crate::config::settings::Compiling<'_>,
            ) -> Result<Conf, $crate::config::directive::ValueError> {
                let conf = Conf::compile(self, at.env)?;
                $check(&conf, at.env)?;
                Ok(conf)
            }
        }

        impl $crate::config::place::ModuleConf for Conf {
            fn place() -> &'static $crate::config::place::Place {
                <Draft as $crate::config::settings::ModuleDraft>::place()
            }
        }
    };
    (@types $( $(#[doc = $doc:literal])+
        $name:ident : $ty:ty = $default:tt, $arity:ident, $contexts:expr; )*) => {
        /// What one block says about this module.
        #[derive(Clone, Default)]
        pub struct Draft { $( pub $name: $crate::config::directive::Inherit<$ty>, )* }

        impl Draft {
            /// Takes over what the enclosing block says where this one is silent.
            pub fn inherit(&mut self, outer: &Self) { $( self.$name.inherit(&outer.$name); )* }
        }

        /// The module's settings in one location.
        #[derive(Clone, Debug)]
        pub struct Conf { $( $(#[doc = $doc])+ pub $name: $ty, )* }

        impl Conf {
            /// Applies the defaults.
            pub fn compile(
                draft: &Draft,
                env: &$crate::config::env::Env,
            ) -> Result<Self, $crate::config::directive::ValueError> {
                let _ = env;
                Ok(Self { $( $name: $crate::config::directive::setting_default!(draft, env, $name, $default), )* })
            }
        }
    };
    (@rows (|$block:ident| $draft:expr) $( $(#[doc = $doc:literal])+
        $name:ident : $ty:ty = $default:tt, $arity:ident, $contexts:expr; )*) => {
        /// The rows.
        pub const DIRECTIVES: &[$crate::config::directive::Directive] = &[ $(
            $crate::config::directive::Directive {
                name: std::borrow::Cow::Borrowed(stringify!($name)),
                contexts: $contexts,
                arity: $crate::config::directive::Arity::$arity,
                default: $crate::config::directive::default_text!($default),
                doc: concat!($($doc),+),
                action: $crate::config::directive::Action::Set(|$block, args| {
                    let draft = $draft;
                    draft.$name.set(args)
                }),
            },
        )* ];
    };
    ($($lines:tt)*) => {
        $crate::config::directive::settings! {
            inherit = Draft::inherit, check = $crate::config::directive::nothing_to_check; $($lines)*
        }
    };
}

/// The check of settings whose values need not fit together.
///
/// # Errors
/// None.
pub fn nothing_to_check<C>(_: &C, _: &Env) -> Result<(), ValueError> {
    Ok(())
}

#[macro_export]
macro_rules! setting_default {
    ($draft:ident, $env:ident, $name:ident, none) => {
        $draft.$name.or_default()
    };
    ($draft:ident, $env:ident, $name:ident, $default:literal) => {
        $draft.$name.or_parse(stringify!($name), $default, $env)?
    };
}

#[macro_export]
macro_rules! default_text {
    (none) => {
        None
    };
    ($default:literal) => {
        Some($default)
    };
}

pub use {default_text, setting_default, settings};
