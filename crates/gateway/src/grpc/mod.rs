//! `grpc_pass`: requests of gRPC to their servers. They go as those of `proxy_http_version 2`, and content passes as it
//! comes, both ways: a call may be a conversation.

pub mod directives;

use super::pass::{self, Shared};
use super::protocol::call::Call;
use super::protocol::family::{Family, Spoken};
use super::protocol::target::Target;
use super::protocol::{Protocol, tls};
use crate::cache::settings;
use crate::proxy::destination::{Destination, Going, Scheme};
use crate::proxy::request::{self, Fields, Rules};
use crate::proxy::{HttpVersion, SetHeader};
use crate::upstream::Upstream;
use bytes::Bytes;
use std::sync::Arc;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::place::{ModuleConf, Place, place};
use yorozu_kernel::config::settings::{Compiling, ModuleDraft, silent};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::exchange::variables::{Row, Variable};
use yorozu_upstream::TlsOptions;

/// The module.
pub const MODULE: Module = Module::new("http_grpc", rows)
    .with(&[
        silent::<directives::Draft>,
        silent::<tls::Shared<Grpc>>,
        silent::<settings::Shared<Grpc>>,
        silent::<Shared<Grpc>>,
    ])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[
    ("grpc_internal_host", Variable::Builtin(grpc_internal_host)),
    ("grpc_internal_trailers", Variable::Builtin(grpc_internal_trailers)),
];

/// What its directives have in common with those of other gateways.
pub static FAMILY: Family = Family::new("grpc", "grpc_temp").unbuffered();

/// Those of the directives that all gateways have which nginx has here.
const COMMON: [&str; 15] = [
    "bind",
    "buffer_size",
    "connect_timeout",
    "hide_header",
    "ignore_headers",
    "intercept_errors",
    "next_upstream",
    "next_upstream_timeout",
    "next_upstream_tries",
    "pass_header",
    "read_timeout",
    "send_timeout",
    "socket_keepalive",
    "socket_rcvbuf",
    "socket_sndbuf",
];

/// Every row of the module.
pub fn rows() -> Vec<Directive> {
    let mut rows = pass::rows_of::<Grpc>();
    rows.retain(|row| row.name.strip_prefix("grpc_").is_some_and(|name| COMMON.contains(&name)));
    rows.extend(tls::rows::<Grpc>());
    rows.extend_from_slice(directives::DIRECTIVES);
    rows.push(Directive::row(
        "grpc_pass",
        LOCATION | LOCATION_IF,
        Arity::ONE,
        Action::Set(pass),
        "Address of the gRPC server, with or without grpc:// or grpcs:// (TLS), or the name of an upstream block.",
    ));
    rows
}

fn pass(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    pass::handle_by(block, Grpc(Going::from_args(args, Destination::of_grpc)?), args)
}

/// The module's settings in one location.
#[derive(Clone)]
pub struct Conf {
    /// What `grpc_set_header` and its defaults say.
    fields: Fields,
}

impl ModuleDraft for directives::Draft {
    type Conf = Conf;

    fn place() -> &'static Place {
        place!()
    }

    fn inherit(&mut self, outer: &Self) {
        Self::inherit(self, outer);
    }

    fn compile(&self, at: &Compiling<'_>) -> Result<Conf, ValueError> {
        let own = directives::Conf::compile(self, at.env)?;
        let host = Template::compile(b"$grpc_internal_host", at.env)?;
        // A server may refuse a call of a client that takes no trailers.
        let trailers = SetHeader {
            name: Bytes::from_static(b"TE"),
            value: Template::compile(b"$grpc_internal_trailers", at.env)?,
        };
        Ok(Conf { fields: Fields::new(&own.grpc_set_header, &host, &[trailers]) })
    }
}

impl ModuleConf for Conf {
    fn place() -> &'static Place {
        directives::Draft::place()
    }
}

impl Conf {
    const fn rules(&self) -> Rules<'_> {
        Rules {
            family: &FAMILY,
            fields: &self.fields,
            version: HttpVersion::V2,
            method: None,
            body: None,
            converts_head: false,
        }
    }
}

/// `$grpc_internal_host`: where the call goes.
fn grpc_internal_host(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    exchange.pass.of::<Arc<Destination>>().is_some_and(|destination| {
        out.extend_from_slice(&destination.host);
        true
    })
}

/// `$grpc_internal_trailers`: `trailers`, if the client takes them.
fn grpc_internal_trailers(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let takes = |value| yorozu_http::field::list_has(value, b"trailers");
    if exchange.request.values(b"te").any(takes) {
        out.extend_from_slice(b"trailers");
    }
    true
}

/// What `grpc_pass` says.
#[derive(Debug)]
pub struct Grpc(Going);

impl Spoken for Grpc {
    fn family() -> &'static Family {
        &FAMILY
    }
}

impl Protocol for Grpc {
    fn target(&self) -> Option<&Target> {
        self.0.target()
    }

    fn upstream<'a>(&'a self, exchange: &'a mut Exchange) -> Later<'a, Result<Arc<Upstream>, u16>> {
        self.0.upstream(exchange)
    }

    fn scheme(&self) -> &'static str {
        self.0.known_scheme().unwrap_or(Scheme::Grpc).text()
    }

    fn judges_conditions(&self) -> bool {
        true
    }

    fn resolve(&self, exchange: &mut Exchange) -> Result<(), u16> {
        let destination = self.0.resolved(exchange)?;
        // `$grpc_internal_host` looks for it there.
        exchange.pass.put_for_shadows(destination);
        Ok(())
    }

    fn may_keep(&self, _location: &LocationConf) -> bool {
        true
    }

    fn has_sessions(&self, _location: &LocationConf) -> bool {
        true
    }

    fn may_use_tls(&self) -> bool {
        self.0.known_scheme() != Some(Scheme::Grpc)
    }

    fn tls(&self, location: &LocationConf) -> Option<TlsOptions> {
        let conf = tls::of::<Self>(location);
        self.0.tls(conf).map(|options| conf.for_h2(options))
    }

    fn takes_chunked(&self, _location: &LocationConf) -> bool {
        true
    }

    /// A call's outcome stands there.
    fn passes_trailers(&self, _location: &LocationConf) -> bool {
        true
    }

    fn hidden(&self) -> &'static [&'static [u8]] {
        &[b"date", b"server"]
    }

    fn call(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        content: Content,
    ) -> Result<Call, u16> {
        let destination = self.0.destination(exchange)?;
        let rules = location.of::<Conf>().rules();
        let made = request::make(exchange, location, rules, &destination, content);
        let talk = made.session(exchange, rules, destination.scheme);
        let tls = destination.scheme.is_encrypted().then(|| tls::of::<Self>(location));
        let call = made.call(exchange, tls, &destination, talk)?;
        // As nginx: its messages name the server alone.
        Ok(Call { uri: 0..0, ..call })
    }
}
