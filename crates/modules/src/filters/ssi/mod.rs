//! `ssi`: commands in a page that include other pages, print variables and decide what is shown.

mod parse;
mod run;

use super::compress::gzip::MimeTypes;
use jiff::tz::TimeZone;
use std::rc::Rc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::Size;
use yorozu_kernel::exchange::handler::Filter;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::{Body, Response};
use yorozu_kernel::exchange::variables::{Row, Variable, put};
use yorozu_kernel::exchange::{Exchange, stream};

pub use run::{Page, SsiState};

/// The module.
pub const MODULE: Module =
    Module::new("http_ssi", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]).computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[
    (
        "date_local",
        Variable::Builtin(|ex, out| put(out, time(TIME_FORMAT, ex.now(), true).as_bytes())),
    ),
    (
        "date_gmt",
        Variable::Builtin(|ex, out| put(out, time(TIME_FORMAT, ex.now(), false).as_bytes())),
    ),
];

const CONTEXTS: Contexts = HTTP_SERVER_LOCATION | LOCATION_IF;

settings! {
    /// Whether SSI commands in pages are executed.
    ssi: bool = "off", ONE, CONTEXTS;
    /// Whether `Last-Modified` is kept; if not, `ETag` is removed too.
    ssi_last_modified: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Minimum size of parts sent from a file; accepted, pages are read.
    ssi_min_file_chunk: Size = "1k", ONE, HTTP_SERVER_LOCATION;
    /// Whether nothing is shown in place of a failed command.
    ssi_silent_errors: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Content types, besides `text/html`, in which commands are executed.
    ssi_types: MimeTypes = "text/html", ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Longest value of a parameter.
    ssi_value_length: Size = "256", ONE, HTTP_SERVER_LOCATION;
}

/// nginx's form of a time until `config timefmt` says another one.
pub const TIME_FORMAT: &str = "%A, %d-%b-%Y %H:%M:%S %Z";

/// A time as `timefmt` has it; empty if that is not a format.
pub fn time(form: &str, seconds: i64, is_local: bool) -> String {
    let zone = if is_local { yorozu_kernel::base::zone::local() } else { TimeZone::UTC };
    let Ok(time) = jiff::Timestamp::from_second(seconds) else { return String::new() };
    let form = if is_local { form.to_owned() } else { form.replace("%Z", "GMT") };
    jiff::fmt::strtime::format(&form, &time.to_zoned(zone)).unwrap_or_default()
}

/// Where it has something to do.
pub const FILTER: Filter = Filter::when(|location| location.of::<Conf>().ssi, filter);

/// Carries out the commands.
///
/// # Source
/// nginx, `ngx_http_ssi_filter_module`.
fn filter(exchange: &mut Exchange, response: &mut Response) {
    let config = Rc::clone(&exchange.conf);
    let conf = config.location(exchange.location).of::<Conf>();
    if response.content_length == Some(0) || !conf.ssi_types.has(&response.content_type) {
        return;
    }
    response.remove(b"accept-ranges");
    response.weaken_validators(conf.ssi_last_modified);
    if exchange.request.method == Method::Head && !exchange.is_subrequest() {
        response.forget_length();
        return;
    }
    let content = response.take_stream();
    let page = Page::new(exchange, conf);
    let made = stream::made_by(exchange.body.client_closed(), |sink| page.run(content, sink));
    response.body = Body::Stream(Box::new(made));
}
