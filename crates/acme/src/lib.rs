//! Certificates by themselves (ACME, RFC 8555), in the words of nginx's module: `acme_issuer`, `acme_certificate`,
//! `$acme_certificate`.
//!
//! Way through: a load binds each server's `acme_certificate` to a [`Certificate`], which outlives the configuration
//! ([`config`]). The server process takes up what lies on disk ([`state`]) before it serves, and has one thread tend the
//! certificates ([`keeper`], [`tend`]): it orders them ([`order`]) over connections of our own ([`client`]), answers the
//! issuer's questions ([`challenges`]), and renews them in time ([`schedule`]).
//!
//! # Invariants
//! - No fault of an issuer, a network or a disk keeps the server from serving.
//! - Of the processes that share a folder one orders; the others read what it writes.
//! - A key is on disk before a certificate is asked for with it; a file has its name only when it is whole.

#![expect(missing_docs, reason = "public for the server's crates alone; fields say what they are")]

pub mod authority;
pub mod certificate;
pub mod challenges;
mod client;
pub mod config;
pub mod directives;
pub mod identifier;
pub mod issuer;
pub mod keeper;
mod names;
mod order;
mod schedule;
mod session;
mod state;
pub mod status;
mod tend;

use bytes::Bytes;
pub use certificate::Certificate;
pub use config::Acme;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::shared::SharedType;
use yorozu_kernel::exchange::variables::{Row, Variable};
use yorozu_kernel::exchange::{Exchange, conf::Config};

/// The module.
pub const MODULE: Module =
    Module::new("http_acme", || [directives::DIRECTIVES, directives::OTHERS].concat())
        .with(&[silent::<directives::Draft>])
        .sharing(&[SharedType::of::<Acme>()])
        .computing(VARIABLES)
        .showing(status::report, &[]);

/// Two variables, for `ssl_certificate` and `ssl_certificate_key`: PEM texts, as nginx's.
pub const CERTIFICATE: &str = "$acme_certificate";
pub const CERTIFICATE_KEY: &str = "$acme_certificate_key";

const VARIABLES: &[Row] = &[
    ("acme_certificate", Variable::OfTexts(|exchange| text(exchange, |shown| &shown.chain))),
    ("acme_certificate_key", Variable::OfTexts(|exchange| text(exchange, |shown| &shown.key))),
];

fn text(exchange: &Exchange, part: fn(&certificate::Shown) -> &str) -> Option<Bytes> {
    let shown = of_server(&exchange.conf.config, exchange.server.0)?.shown()?;
    Some(format!("data:{}", part(&shown)).into())
}

/// The certificate of a server, by the server's number.
pub fn of_server(config: &Config, server: u32) -> Option<&Certificate> {
    config.shared.of::<Acme>().of_server(server)
}
