//! Directives that every gateway has under its own prefix: `fastcgi_connect_timeout`, `proxy_connect_timeout`. They are
//! declared once ([`family_settings!`]) and stamped with the prefix of each protocol.

use super::{Protocol, spoken_by};
use std::any::Any;
use std::marker::PhantomData;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::place::Place;
use yorozu_kernel::config::settings::{Compiling, ModuleDraft, Varies};

/// What the directives of one protocol have in common.
#[derive(Debug)]
pub struct Family {
    /// `fastcgi`
    pub prefix: &'static str,
    /// The default of its `*_temp_path`.
    pub temp_path: &'static str,
    /// The defaults of its `*_buffering` and `*_request_buffering`.
    pub buffering: &'static str,
    /// Whether it has a default cache key, where `*_cache_key` is not set.
    pub has_default_key: bool,
    /// Where the settings with its prefix lie: the gateway's, those of the cache in front, and those of TLS.
    pub gateway: Place,
    pub cache: Place,
    pub tls: Place,
}

impl Family {
    pub const fn new(prefix: &'static str, temp_path: &'static str) -> Self {
        Self {
            prefix,
            temp_path,
            buffering: "on",
            has_default_key: false,
            gateway: Place::new(),
            cache: Place::new(),
            tls: Place::new(),
        }
    }

    /// The same with content that passes as it comes, both ways.
    #[must_use]
    pub const fn unbuffered(self) -> Self {
        Self { buffering: "off", ..self }
    }

    /// The same with a default cache key.
    #[must_use]
    pub const fn with_default_key(self) -> Self {
        Self { has_default_key: true, ..self }
    }
}

/// A protocol as its directives know it: by its type.
pub trait Spoken: Protocol + Sized {
    /// The prefix of its directives, and where the settings lie that have it.
    fn family() -> &'static Family;
}

/// [`Spoken::family`] of a protocol that is known by its value alone.
pub trait HasFamily {
    fn family(&self) -> &'static Family;
}

impl<P: Spoken> HasFamily for P {
    fn family(&self) -> &'static Family {
        <P as Spoken>::family()
    }
}

/// A block's half of settings that are stamped.
pub trait FamilyDraft: Any + Clone + Default {
    type Conf: Any + Send + Sync;

    fn place(family: &'static Family) -> &'static Place;

    /// Whether a location that speaks the protocol uses them.
    fn is_used_by(_protocol: &dyn Protocol) -> bool {
        true
    }

    /// Takes over what the enclosing block says where this one is silent.
    fn inherit(&mut self, outer: &Self);

    /// Applies the defaults, and checks what must fit together; `is_used`: as [`FamilyDraft::is_used_by`] says.
    ///
    /// # Errors
    /// What is wrong with the values.
    fn compile(&self, family: &Family, is_used: bool, env: &Env) -> Result<Self::Conf, ValueError>;
}

/// What one block says with the prefix of a protocol.
pub struct Stamped<P, D>(pub D, PhantomData<P>);

impl<P, D: Clone> Clone for Stamped<P, D> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<P, D: Default> Default for Stamped<P, D> {
    fn default() -> Self {
        Self(D::default(), PhantomData)
    }
}

impl<P: Spoken, D: FamilyDraft> ModuleDraft for Stamped<P, D> {
    type Conf = D::Conf;

    fn place() -> &'static Place {
        D::place(<P as Spoken>::family())
    }

    fn inherit(&mut self, outer: &Self) {
        self.0.inherit(&outer.0);
    }

    fn compile(&self, at: &Compiling<'_>) -> Result<D::Conf, ValueError> {
        self.0.compile(<P as Spoken>::family(), is_used::<P, D>(at), at.env)
    }

    fn varies(&self, at: &Compiling<'_>) -> Varies {
        Varies::With(is_used::<P, D>(at))
    }
}

fn is_used<P: Spoken, D: FamilyDraft>(at: &Compiling<'_>) -> bool {
    spoken_by::<P>(&**at.handler).is_some_and(|protocol| D::is_used_by(protocol))
}

/// Declares settings of a family: as `settings!`, with the prefix added to each name. In front of the lines stand the
/// field of [`Family`] where they lie, and what is checked, or `written` and what implements [`FamilyDraft`] by hand; a
/// default in braces is a field of [`Family`], too.
macro_rules! family_settings {
    (at $place:ident, check = $check:path; $($lines:tt)*) => {
        $crate::protocol::family::family_settings! { written Draft; $($lines)* }

        impl $crate::protocol::family::FamilyDraft for Draft {
            type Conf = Conf;

            fn place(
                family: &'static $crate::protocol::family::Family,
            ) -> &'static yorozu_kernel::config::place::Place {
                &family.$place
            }

            fn inherit(&mut self, outer: &Self) {
                Draft::inherit(self, outer);
            }

            fn compile(
                &self,
                family: &$crate::protocol::family::Family,
                is_used: bool,
                env: &yorozu_kernel::config::env::Env,
            ) -> Result<Conf, yorozu_kernel::config::directive::ValueError> {
                let conf = Conf::compile(self, family, env)?;
                $check(&conf, family, is_used, env)?;
                Ok(conf)
            }
        }
    };
    (written $stamped:ident; $( $(#[doc = $doc:literal])+
        $name:ident : $ty:ty = $default:tt, $arity:ident; )*) => {
        /// What one block says about them.
        #[derive(Clone, Default)]
        pub struct Draft { $( pub $name: yorozu_kernel::config::directive::Inherit<$ty>, )* }

        /// The settings in one location.
        #[derive(Clone, Debug)]
        pub struct Conf { $( $(#[doc = $doc])+ pub $name: $ty, )* }

        impl Draft {
            /// Takes over what the enclosing block says where this one is silent.
            pub fn inherit(&mut self, outer: &Self) { $( self.$name.inherit(&outer.$name); )* }
        }

        impl Conf {
            /// Applies the defaults.
            pub fn compile(
                draft: &Draft,
                family: &$crate::protocol::family::Family,
                env: &yorozu_kernel::config::env::Env,
            ) -> Result<Self, yorozu_kernel::config::directive::ValueError> {
                let _ = family;
                Ok(Self { $( $name: $crate::protocol::family::family_default!(
                    draft, env, family, $name, $default
                ), )* })
            }
        }

        /// The rows, with the protocol's prefix.
        pub fn rows<P: $crate::protocol::family::Spoken>()
        -> Vec<yorozu_kernel::config::directive::Directive> {
            use yorozu_kernel::config::directive::{Action, Arity, Directive, HTTP_SERVER_LOCATION};
            let family = <P as $crate::protocol::family::Spoken>::family();
            vec![ $( Directive {
                name: format!("{}_{}", family.prefix, stringify!($name)).into(),
                contexts: HTTP_SERVER_LOCATION,
                arity: Arity::$arity,
                default: $crate::protocol::family::family_default_text!(family, $default),
                doc: concat!($($doc),+),
                action: Action::Set(|block, args| {
                    let draft = block.drafts.of::<$crate::protocol::family::Stamped<P, $stamped>>();
                    draft.0.$name.set(args)
                }),
            }, )* ]
        }
    };
}

macro_rules! family_default {
    ($draft:ident, $env:ident, $family:ident, $name:ident, { $default:ident }) => {
        $draft.$name.or_parse(stringify!($name), $family.$default, $env)?
    };
    ($draft:ident, $env:ident, $family:ident, $name:ident, $default:tt) => {
        yorozu_kernel::config::directive::setting_default!($draft, $env, $name, $default)
    };
}

macro_rules! family_default_text {
    ($family:ident, { $default:ident }) => {
        Some($family.$default)
    };
    ($family:ident, $default:tt) => {
        yorozu_kernel::config::directive::default_text!($default)
    };
}

pub(crate) use {family_default, family_default_text, family_settings};
