//! SCGI: the mapping from an exchange to the protocol, and its own directives.

use super::cgi::params::{Own, Pairs, each_set, put};
use super::cgi::{Param, Plain};
use super::pass::{self, Shared};
use super::protocol::call::Call;
use super::protocol::family::{Family, Spoken};
use super::protocol::target::Target;
use super::protocol::{Protocol, SetTo};
use crate::cache::settings;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_wire::scgi::Headers;

/// The module.
pub const MODULE: Module = Module::new("http_scgi", rows).with(&[
    silent::<Draft>,
    silent::<settings::Shared<Scgi>>,
    silent::<Shared<Scgi>>,
]);

/// What its directives have in common with those of other gateways.
pub static FAMILY: Family = Family::new("scgi", "scgi_temp");

settings! {
    /// A parameter for the application.
    scgi_param: Vec<Param> = none, TWO_OR_THREE, HTTP_SERVER_LOCATION;
}

/// Every row of the module.
pub fn rows() -> Vec<Directive> {
    let mut rows = pass::rows_of::<Scgi>();
    // nginx has none.
    rows.retain(|row| row.name != "scgi_send_lowat");
    rows.extend_from_slice(DIRECTIVES);
    rows.push(Directive::row(
        "scgi_pass",
        LOCATION | LOCATION_IF,
        Arity::ONE,
        Action::Set(pass),
        "Address of the SCGI server, or the name of an upstream block.",
    ));
    rows
}

fn pass(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let address = Template::compile(args.word(0), args.env)?;
    pass::handle_by(block, Scgi(Target::new(address, 0)), args)
}

/// What `scgi_pass` says.
#[derive(Debug)]
pub struct Scgi(Target);

impl Spoken for Scgi {
    fn family() -> &'static Family {
        &FAMILY
    }
}

const SCHEME: &str = "scgi://";

impl Protocol for Scgi {
    fn target(&self) -> Option<&Target> {
        Some(&self.0)
    }

    fn scheme(&self) -> &'static str {
        SCHEME
    }

    /// The end of the answer is the close.
    fn may_keep(&self, _location: &LocationConf) -> bool {
        false
    }

    fn each_set(
        &self,
        location: &LocationConf,
        name: &[u8],
        each: &mut dyn FnMut(SetTo<'_>),
    ) -> bool {
        let params = &location.of::<Conf>().scgi_param[..];
        each_set(&Own { family: &FAMILY, params }, location, name, each)
    }

    fn hidden(&self) -> &'static [&'static [u8]] {
        &[b"status"]
    }

    fn call(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        content: Content,
    ) -> Result<Call, u16> {
        let params = &location.of::<Conf>().scgi_param[..];
        let own = Own { family: &FAMILY, params };
        let mut headers = Headers::new(content.length().unwrap_or(0));
        let validates = put(exchange, location, &own, &content, &mut headers);
        let Some(request) = headers.finish() else {
            let text = "a parameter for the SCGI server has a zero byte";
            error::request(exchange, Level::Error, text);
            return Err(500);
        };
        let plain = Plain { request, validates, content, tls: None, scheme: SCHEME };
        Ok(plain.call(exchange, location, &FAMILY))
    }
}

impl Pairs<Param> for Headers {
    fn put(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool) {
        self.pair_with(name, write);
    }
}
