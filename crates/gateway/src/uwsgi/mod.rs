//! uwsgi: the mapping from an exchange to the protocol, and its own directives.

use super::cgi::params::{Own, Pairs, each_set, put};
use super::cgi::{Param, Plain};
use super::pass::{self, Shared};
use super::protocol::call::Call;
use super::protocol::family::{Family, Spoken};
use super::protocol::target::Target;
use super::protocol::{Protocol, SetTo, tls};
use crate::cache::settings;
use crate::upstream::Upstream;
use bytes::Bytes;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_upstream::TlsOptions;
use yorozu_wire::uwsgi::Packet;

/// The module.
pub const MODULE: Module = Module::new("http_uwsgi", rows).with(&[
    silent::<Draft>,
    silent::<tls::Shared<Uwsgi>>,
    silent::<settings::Shared<Uwsgi>>,
    silent::<Shared<Uwsgi>>,
]);

/// What its directives have in common with those of other gateways.
pub static FAMILY: Family = Family::new("uwsgi", "uwsgi_temp");

/// A byte of a packet's head.
#[derive(Clone, Copy, Debug)]
pub struct Modifier(u8);

impl Setting for Modifier {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let number = yorozu_conf::value::number(args.word(0));
        let number = number.ok_or_else(|| args.invalid_number())?;
        u8::try_from(number)
            .map(Self)
            .map_err(|_| ValueError::new("value must be between 0 and 255"))
    }
}

settings! {
    /// First byte of a packet's header: which of the server's plugins is used.
    uwsgi_modifier1: Modifier = "0", ONE, HTTP_SERVER_LOCATION;
    /// Last byte of a packet's header.
    uwsgi_modifier2: Modifier = "0", ONE, HTTP_SERVER_LOCATION;
    /// A parameter for the application.
    uwsgi_param: Vec<Param> = none, TWO_OR_THREE, HTTP_SERVER_LOCATION;
}

/// Every row of the module.
pub fn rows() -> Vec<Directive> {
    let mut rows = pass::rows_of::<Uwsgi>();
    // nginx has none.
    rows.retain(|row| row.name != "uwsgi_send_lowat");
    rows.extend(tls::rows::<Uwsgi>());
    rows.extend_from_slice(DIRECTIVES);
    rows.push(Directive::row(
        "uwsgi_pass",
        LOCATION | LOCATION_IF,
        Arity::ONE,
        Action::Set(pass),
        "Address of the uwsgi server, with or without uwsgi:// or suwsgi:// (TLS), or the name of an upstream block.",
    ));
    rows
}

fn pass(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let url = Template::compile(args.word(0), args.env)?;
    let pass = match url.as_literal() {
        None => Uwsgi::Spelled { url, target: Target::new(Template::default(), 0) },
        Some(text) => {
            let destination = Destination::parse(&text);
            let address = Template::literal(destination.address.clone());
            Uwsgi::Fixed { destination, target: Target::new(address, 0) }
        }
    };
    pass::handle_by(block, pass, args)
}

/// An address as `uwsgi_pass` names it.
#[derive(Clone, Debug)]
pub struct Destination {
    has_tls: bool,
    /// `host:port`, `unix:path`, or a group's name.
    address: Bytes,
}

impl Destination {
    /// Reads `[uwsgi://|suwsgi://]address`; no scheme is uwsgi.
    fn parse(url: &Bytes) -> Self {
        let behind = |scheme: &str| {
            let start = url.get(..scheme.len())?;
            start.eq_ignore_ascii_case(scheme.as_bytes()).then(|| url.slice(scheme.len()..))
        };
        match (behind(PLAIN), behind(ENCRYPTED)) {
            (Some(address), _) => Self { has_tls: false, address },
            (None, Some(address)) => Self { has_tls: true, address },
            (None, None) => Self { has_tls: false, address: url.clone() },
        }
    }

    fn scheme(&self) -> &'static str {
        if self.has_tls { ENCRYPTED } else { PLAIN }
    }
}

const PLAIN: &str = "uwsgi://";
const ENCRYPTED: &str = "suwsgi://";

/// What `uwsgi_pass` says.
#[derive(Debug)]
pub enum Uwsgi {
    /// An address without variables.
    Fixed { destination: Destination, target: Target },
    /// One that variables spell.
    Spelled { url: Template, target: Target },
}

impl Uwsgi {
    /// Where this exchange goes, found out once for each pass.
    fn destination(&self, exchange: &mut Exchange) -> Rc<Destination> {
        if let Some(destination) = exchange.pass.of::<Rc<Destination>>() {
            return Rc::clone(destination);
        }
        let destination = Rc::new(match self {
            Self::Fixed { destination, .. } => destination.clone(),
            Self::Spelled { url, .. } => Destination::parse(&url.value(exchange)),
        });
        exchange.pass.put_for_shadows(Rc::clone(&destination));
        destination
    }
}

impl Spoken for Uwsgi {
    fn family() -> &'static Family {
        &FAMILY
    }
}

impl Protocol for Uwsgi {
    fn target(&self) -> Option<&Target> {
        match self {
            Self::Fixed { target, .. } => Some(target),
            Self::Spelled { .. } => None,
        }
    }

    fn upstream<'a>(&'a self, exchange: &'a mut Exchange) -> Later<'a, Result<Arc<Upstream>, u16>> {
        Box::pin(async {
            match self {
                Self::Fixed { target, .. } => target.upstream(exchange).await,
                Self::Spelled { target, .. } => {
                    let destination = self.destination(exchange);
                    target.spelled(exchange, &destination.address, 0).await
                }
            }
        })
    }

    fn scheme(&self) -> &'static str {
        match self {
            Self::Fixed { destination, .. } => destination.scheme(),
            Self::Spelled { .. } => PLAIN,
        }
    }

    /// The end of the answer is the close.
    fn may_keep(&self, _location: &LocationConf) -> bool {
        false
    }

    fn may_use_tls(&self) -> bool {
        !matches!(self, Self::Fixed { destination: Destination { has_tls: false, .. }, .. })
    }

    fn tls(&self, location: &LocationConf) -> Option<TlsOptions> {
        match self {
            Self::Fixed { destination, .. } if destination.has_tls => {
                tls::fixed_options(tls::of::<Self>(location), &destination.address)
            }
            _ => None,
        }
    }

    fn each_set(
        &self,
        location: &LocationConf,
        name: &[u8],
        each: &mut dyn FnMut(SetTo<'_>),
    ) -> bool {
        let params = &location.of::<Conf>().uwsgi_param[..];
        each_set(&Own { family: &FAMILY, params }, location, name, each)
    }

    fn call(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        content: Content,
    ) -> Result<Call, u16> {
        let conf = location.of::<Conf>();
        let own = Own { family: &FAMILY, params: &conf.uwsgi_param[..] };
        let mut packet = Packet::new(conf.uwsgi_modifier1.0, conf.uwsgi_modifier2.0);
        let validates = put(exchange, location, &own, &content, &mut packet);
        let request = packet.finish().map_err(|bytes| {
            let text = format!("uwsgi request is too big: {bytes}");
            error::request(exchange, Level::Alert, &text);
            500u16
        })?;
        let destination = self.destination(exchange);
        let tls = match destination.has_tls {
            false => None,
            true => {
                let conf = tls::of::<Self>(location);
                Some(tls::options(exchange, conf, &destination.address)?)
            }
        };
        let plain = Plain { request, validates, content, tls, scheme: destination.scheme() };
        Ok(plain.call(exchange, location, &FAMILY))
    }
}

impl Pairs<Param> for Packet {
    fn put(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool) {
        self.pair_with(name, write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_a_scheme() {
        for (text, has_tls, address) in [
            ("a:3031", false, "a:3031"),
            ("uwsgi://a:3031", false, "a:3031"),
            ("SUWSGI://unix:/a.sock", true, "unix:/a.sock"),
            ("http://a", false, "http://a"),
        ] {
            let found = Destination::parse(&Bytes::from_static(text.as_bytes()));
            assert_eq!((found.has_tls, &found.address[..]), (has_tls, address.as_bytes()));
        }
    }
}
