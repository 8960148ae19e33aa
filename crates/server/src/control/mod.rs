//! The control socket: what `yorozu cache …` asks a running server.
//!
//! A Unix socket beside the pid file, `nginx.pid` with `.sock` behind it, which only the server's own user
//! and root may open. It is a server of the configuration like any other, written by [`add`], whose one
//! location answers with [`respond`].
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /acme/status` | the certificates that issuers give, as JSON |
//! | `GET /cache/stat` | the zones' figures, as JSON |
//! | `GET /cache/ls?zone=NAME&prefix=TEXT&limit=N` | a line of JSON for each stored page |
//! | `POST /cache/purge`, content: JSON | what was purged, as JSON |
//! | `POST /cache/explain`, content: `SCHEME PORT` and a request's head | what the cache would do with the request: a list of names and texts, as JSON |
//! | `GET /console/events` | what the console's page is sent, as a stream of events |
//! | `GET /console/figures` | its figures, as JSON |
//! | `GET /log/error` | the lines of `error_log memory:`, the oldest first |
//! | `GET /log/live?miss=1&host=NAME&uri=TEXT&…` | requests as they come, each a line of JSON, without end |
//! | `POST /cache/warm`, content: the same | its outcome: `STATUS CACHE CODING BYTES`, with `?content` what was sent |
//!
//! A request's content is bounded by [`limits::CONTROL_BYTES_MAX`].

mod batch;
pub(crate) mod explain;
mod list;
pub(crate) mod purge_api;
pub(crate) mod warm;

pub use explain::head;
pub use purge_api::by_answer;

use crate::live::{events, figures};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use yorozu_conf::{ConfError, Source};
use yorozu_connection::read_file;
use yorozu_gateway::{fastcgi, proxy, scgi, uwsgi};
use yorozu_kernel::base::limits;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::loader::{self, Loader};
use yorozu_kernel::config::main_core::{self, ControlSocket};
use yorozu_kernel::config::module::Module;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::{Outcome, Pending};
use yorozu_kernel::exchange::request_body::{BodyError, BodyRules};
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::live::viewers::Of;
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module = Module::new("control", || DIRECTIVES.to_vec());

pub const DIRECTIVES: &[Directive] = &[
    Directive::row(
        "control_api",
        LOCATION,
        Arity::NONE,
        Action::Set(|block, _| {
            block.handle_by(Control(Access::All));
            Ok(())
        }),
        "Answers `yorozu cache …`; the control socket does so without it.",
    ),
    Directive::row(
        "cache_purge_api",
        LOCATION,
        Arity::ONE,
        Action::Set(|block, args| {
            let access = Access::from_args(args)?;
            // Its figures say why requests were no hits.
            args.env.is_counted.set(true);
            block.handle_by(Control(access));
            Ok(())
        }),
        "Accepts batches of purges for the site's own host from clients that know the token; GET returns figures.",
    ),
];

#[derive(Debug)]
struct Control(Access);

impl Handler for Control {
    /// Answers need files to be read.
    fn respond(&self, _exchange: &mut Exchange) -> Outcome {
        Outcome::Wait(Pending::Content)
    }

    fn run(self: Arc<Self>, exchange: &mut Exchange) -> Later<'_, Outcome> {
        Box::pin(async move { run(exchange, &self.0).await })
    }

    fn bounds_bodies(&self) -> bool {
        true
    }

    fn is_for_viewers(&self) -> bool {
        matches!(self.0, Access::All)
    }
}

/// Which clients may ask, and for what.
#[derive(Clone, Debug)]
pub enum Access {
    /// Everything.
    All,
    /// Purges of the request's own host, with this token.
    Site(Bytes),
}

/// Shortest token: sixteen letters and digits are beyond guessing over a network.
const TOKEN_BYTES_MIN: usize = 16;

/// Refuses a token that is too short.
///
/// # Errors
/// How many bytes it has, and how many are needed.
pub(crate) fn check_token(token: &[u8]) -> Result<(), ValueError> {
    match token.len() {
        TOKEN_BYTES_MIN.. => Ok(()),
        bytes => {
            Err(ValueError(format!("the token has {bytes} bytes, {TOKEN_BYTES_MIN} are needed")))
        }
    }
}

impl Setting for Access {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let token = args.word(0).strip_prefix(b"token=").ok_or_else(|| {
            ValueError(format!("invalid parameter \"{}\", expected token=SECRET", args.text(0)))
        })?;
        check_token(token)?;
        Ok(Self::Site(Bytes::copy_from_slice(token)))
    }
}

/// Longest path of a Unix socket, its final zero not counted (`unix(7)`).
const PATH_BYTES_MAX: usize = 107;

/// The socket beside a pid file.
pub fn beside(pid: &Path) -> PathBuf {
    let mut path = pid.as_os_str().to_owned();
    path.push(".sock");
    path.into()
}

/// Where the control socket of a server is, by its main block; `None` if that says `control off`, or a path that no socket
/// can have.
pub fn place(process: &main_core::Draft, env: &Env) -> Option<PathBuf> {
    let path = match process.control.written().and_then(Option::as_ref) {
        Some(ControlSocket(path)) => path.clone()?,
        None => {
            let pid = process.pid.written().and_then(Option::as_ref);
            beside(&main_core::pid_path(pid, &env.prefix))
        }
    };
    // Quoting knows no other way to write these.
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"'\\$;{}".contains(byte);
    let bytes = path.as_os_str().as_encoded_bytes();
    let is_possible = bytes.len() <= PATH_BYTES_MAX && bytes.iter().all(is_plain);
    is_possible.then_some(path)
}

/// Adds the control socket's server to a configuration that has others.
///
/// # Errors
/// None but for a fault of this program.
pub fn add(
    loader: &mut Loader<'_>,
    main: &mut Block,
    source: &dyn Source,
) -> Result<(), ConfError> {
    let Some(path) = place(main.drafts.of(), loader.env) else { return Ok(()) };
    if main.servers.is_empty() {
        return Ok(());
    }
    // What a configuration without servers says of buffers is nothing that nginx looks at.
    let buffers: String = [&proxy::FAMILY, &fastcgi::FAMILY, &uwsgi::FAMILY, &scgi::FAMILY]
        .map(|family| {
            let of = |name: &str, value: &str| format!("{}_{name} {value};", family.prefix);
            [
                of("buffer_size", "8k"),
                of("buffers", "8 8k"),
                of("busy_buffers_size", "16k"),
                of("temp_file_write_size", "16k"),
                of("max_temp_file_size", "0"),
            ]
            .concat()
        })
        .concat();
    let text = format!(
        "server {{ listen unix:{} control; access_log off; status_zone off; {buffers} location / {{ control_api; }} }}",
        path.display()
    );
    // Nor does anyone want to read that these have no effect.
    let notes = loader.env.notes.borrow().clone();
    for line in yorozu_conf::parse_text(source, &text)? {
        loader::server(loader, main, &line)?;
    }
    *loader.env.notes.borrow_mut() = notes;
    Ok(())
}

/// Why a request is refused: the status, and what is wrong.
pub(crate) struct Problem(pub(crate) u16, pub(crate) String);

impl Problem {
    fn level(&self) -> Level {
        if self.0 >= 500 { Level::Crit } else { Level::Error }
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self(400, text)
    }
}

/// Answers a request to the control socket, or for purges to a site.
async fn run(exchange: &mut Exchange, access: &Access) -> Outcome {
    let (content_type, made): (&'static [u8], _) = match (access, &exchange.uri[..]) {
        (Access::Site(token), _) => (JSON, purge_api::for_site(exchange, token).await),
        (Access::All, b"/log/error") => return error_log(&exchange.conf),
        (Access::All, b"/log/live") => return respond(events::log(exchange)),
        (Access::All, b"/console/events") => {
            return respond(events::events(exchange, Of::Control, false));
        }
        (Access::All, b"/console/figures") => (JSON, Ok(figures::of(&exchange.conf).to_string())),
        (Access::All, b"/acme/status") => (JSON, Ok(yorozu_acme::status::json(&exchange.conf))),
        (Access::All, b"/cache/stat") => (JSON, Ok(list::stat(&exchange.conf))),
        (Access::All, b"/cache/ls") => (JSON, list::ls(exchange).await.map_err(Problem::from)),
        (Access::All, b"/cache/explain") => (JSON, explain::explain(exchange).await),
        (Access::All, b"/cache/purge") => (JSON, purge_api::run(exchange).await),
        (Access::All, b"/cache/warm") => {
            return match Box::pin(warm::warm(exchange)).await {
                Ok(content) => answer(200, b"application/octet-stream", content),
                Err(Problem(status, text)) => answer(status, TEXT, text + "\n"),
            };
        }
        (Access::All, _) => return Outcome::Status(404),
    };
    match made {
        Ok(text) => answer(200, content_type, text),
        Err(problem) => {
            let level = problem.level();
            let Problem(status, text) = problem;
            if level == Level::Crit {
                error::request(exchange, level, &text);
            } else if matches!(access, Access::Site(_)) {
                error::request(exchange, level, &format!("purge refused: {text}"));
            }
            answer(status, TEXT, text + "\n")
        }
    }
}

/// What is kept of error logs in memory; each once, however many blocks write to it.
fn error_log(config: &Config) -> Outcome {
    let of_locations = config.locations.iter().flat_map(|location| location.error_log.rings());
    let rings = config.error_log.rings().chain(of_locations);
    // By their size, as one size is one log.
    let rings: BTreeMap<_, _> = rings.map(|ring| (ring.bytes_max(), ring)).collect();
    if rings.is_empty() {
        let text = "the configuration has no \"error_log memory:SIZE\"\n";
        return answer(400, TEXT, text);
    }
    let lines: Vec<_> = rings.values().map(|ring| ring.text()).collect();
    answer(200, TEXT, lines.concat())
}

const TEXT: &[u8] = b"text/plain";
const JSON: &[u8] = b"application/json";

/// What a request says.
async fn content(exchange: &mut Exchange) -> Result<Bytes, Problem> {
    content_within(exchange, limits::CONTROL_BYTES_MAX).await
}

/// The same, of `most` bytes.
///
/// # Errors
/// It is longer, or did not come whole.
pub(crate) async fn content_within(exchange: &mut Exchange, most: usize) -> Result<Bytes, Problem> {
    let content = whole_content(exchange, most).await;
    content.map_err(|problem| {
        // What follows may be the rest of it.
        exchange.keep_alive = false;
        let (status, text) = match problem {
            BodyError::TooLarge => (413, format!("the content is longer than {most} bytes")),
            BodyError::Timeout => (408, "the content was not received in time".to_owned()),
            BodyError::Broken | BodyError::Malformed | BodyError::Closed => {
                (400, "the content is incomplete".to_owned())
            }
            BodyError::Spent => (500, "the content was already sent elsewhere".to_owned()),
            BodyError::File(why) => (500, why),
        };
        Problem(status, text)
    })
}

async fn whole_content(exchange: &mut Exchange, most: usize) -> Result<Bytes, BodyError> {
    let conf = Rc::clone(&exchange.conf);
    let core = conf.location(exchange.location).http_core();
    let rules = BodyRules { buffer_bytes: most, body_bytes_max: most as u64, ..core.body_rules() };
    exchange.body.read_all(rules).await?;
    match exchange.body.content(false) {
        Content::None | Content::Live { .. } => Ok(Bytes::new()),
        Content::Memory(bytes) => Ok(bytes),
        // It was read before, or shall be in a file.
        Content::File(file, bytes) => {
            let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= most);
            let read = read_file(&file, 0, bytes.ok_or(BodyError::TooLarge)?).await;
            read.map_err(|_| {
                BodyError::File("reading a request body from its file failed".to_owned())
            })
        }
    }
}

fn answer(status: u16, content_type: &'static [u8], text: impl Into<Bytes>) -> Outcome {
    respond(Response::with_body(status, Bytes::from_static(content_type), text))
}

fn respond(response: Response) -> Outcome {
    Outcome::Respond(Box::new(response))
}
