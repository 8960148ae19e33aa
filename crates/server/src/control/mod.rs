//! The control socket: what `yorozu cache …` asks a running server.
//!
//! A Unix socket beside the pid file, `nginx.pid` with `.sock` behind it, which only the server's own user
//! and root may open. It is a server of the configuration like any other, written by [`add`], whose one
//! location answers with [`respond`].
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /cache/stat` | a line of figures for each zone |
//! | `GET /cache/ls?zone=NAME&prefix=TEXT&limit=N` | a line for each stored page |
//! | `POST /cache/purge`, content: JSON | what was purged, as JSON |
//! | `POST /cache/explain`, content: `SCHEME PORT` and a request's head | what would become of the request |
//! | `POST /cache/warm`, content: the same | what became of it: `STATUS CACHE CODING BYTES`, with `?content` what was sent |
//!
//! A request's content has a bound of its own, [`limits::CONTROL_BYTES_MAX`].

mod batch;
pub(crate) mod explain;
mod list;
mod purge;
mod warm;

pub use explain::head;
pub use purge::by_answer;

use crate::config::block::Block;
use crate::config::directive::*;
use crate::config::load::{self, Loader};
use crate::connection::body::{BodyError, Content};
use crate::connection::read_file;
use crate::exchange::Exchange;
use crate::exchange::response::Response;
use crate::handlers::{Handler, Outcome};
use crate::limits;
use crate::logging::error::{self, Level};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use yorozu_conf::{ConfError, Source};

pub const DIRECTIVES: &[Directive] = &[
    Directive::row(
        "control_api",
        LOCATION,
        Arity::NONE,
        Action::Set(|block, _| {
            block.handler = Some(Handler::Control(Access::All));
            Ok(())
        }),
        "Answers `yorozu cache …`; the control socket does so by itself.",
    ),
    Directive::row(
        "cache_purge_api",
        LOCATION,
        Arity::ONE,
        Action::Set(|block, args| {
            block.handler = Some(Handler::Control(Access::from_args(args)?));
            Ok(())
        }),
        "Takes batches of purges for the site's own host from whoever knows the token; GET: figures.",
    ),
];

/// Who may ask, and for what.
#[derive(Clone, Debug)]
pub enum Access {
    /// Everything.
    All,
    /// Purges of the request's own host, with this token.
    Site(Bytes),
}

/// Shortest token: sixteen letters and digits are beyond guessing over a network.
const TOKEN_BYTES_MIN: usize = 16;

impl Setting for Access {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let token = args.word(0).strip_prefix(b"token=").ok_or_else(|| {
            ValueError(format!("invalid parameter \"{}\", expected token=SECRET", args.text(0)))
        })?;
        if token.len() < TOKEN_BYTES_MIN {
            let text = format!("the token has {} bytes, {TOKEN_BYTES_MIN} are needed", token.len());
            return Err(ValueError(text));
        }
        Ok(Self::Site(Bytes::copy_from_slice(token)))
    }
}

/// `control path | off`
#[derive(Clone, Debug)]
pub struct ControlSocket(pub Option<PathBuf>);

impl Setting for ControlSocket {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(match args.word(0) {
            b"off" => Self(None),
            _ => Self(Some(args.env.prefix_path(&args.text(0)))),
        })
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

/// Where the control socket of a running server is.
///
/// # Errors
/// The configuration has none.
pub fn path(config: &crate::config::compiled::Config) -> Result<PathBuf, String> {
    let mut sockets = config.sockets.iter().filter(|socket| socket.options.is_control);
    match sockets.next().map(|socket| &socket.address) {
        Some(crate::config::compiled::ListenAddress::Unix(path)) => Ok(path.clone()),
        _ => Err("the configuration has no control socket: write \"control PATH;\"".to_owned()),
    }
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
    let pid = main.main.pid.written().cloned().flatten();
    let pid = pid.map_or_else(|| loader.env.prefix_path("logs/nginx.pid"), |pid| pid.0);
    let path = match main.main.control.written().and_then(Option::as_ref) {
        Some(ControlSocket(None)) => return Ok(()),
        Some(ControlSocket(Some(path))) => path.clone(),
        None => beside(&pid),
    };
    // Quoting knows no other way to write these.
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"'\\$;{}".contains(byte);
    let text = path.to_string_lossy();
    if main.servers.is_empty()
        || text.len() > PATH_BYTES_MAX
        || !text.as_bytes().iter().all(is_plain)
    {
        return Ok(());
    }
    let text = format!(
        "server {{ listen unix:{text} control; access_log off; location / {{ control_api; }} }}"
    );
    for line in yorozu_conf::parse_global(source, &text)? {
        load::server(loader, main, &line)?;
    }
    Ok(())
}

/// Answers need files to be read: they are made by [`run`].
pub fn respond(_: &mut Exchange) -> Outcome {
    Outcome::Gateway
}

/// Why a request is refused: the status, and what is wrong.
struct Problem(u16, String);

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self(400, text)
    }
}

/// Answers a request to the control socket, or for purges to a site.
pub async fn run(exchange: &mut Exchange, access: &Access) -> Outcome {
    let (content_type, made): (&'static [u8], _) = match (access, &exchange.uri[..]) {
        (Access::Site(token), _) => (b"application/json", purge::for_site(exchange, token).await),
        (Access::All, b"/cache/stat") => (TEXT, Ok(list::stat(&exchange.conf))),
        (Access::All, b"/cache/ls") => (TEXT, list::ls(exchange).await.map_err(Problem::from)),
        (Access::All, b"/cache/explain") => (TEXT, explain::explain(exchange).await),
        (Access::All, b"/cache/purge") => (TEXT, purge::run(exchange).await),
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
        Err(Problem(status, text)) => {
            if matches!(access, Access::Site(_)) {
                error::request(exchange, Level::Error, &format!("purge refused: {text}"));
            }
            answer(status, TEXT, text + "\n")
        }
    }
}

const TEXT: &[u8] = b"text/plain";

/// What a request says.
async fn content(exchange: &mut Exchange) -> Result<Bytes, Problem> {
    let content = whole_content(exchange).await;
    content.map_err(|problem| {
        // What follows may be the rest of it.
        exchange.keep_alive = false;
        let (status, text) = match problem {
            BodyError::TooLarge => {
                let most = limits::CONTROL_BYTES_MAX;
                (413, format!("the content is longer than the {most} bytes that are read"))
            }
            BodyError::Timeout => (408, "the content did not come in time".to_owned()),
            BodyError::Broken | BodyError::Closed => (400, "the content broke off".to_owned()),
            BodyError::Spent => (500, "the content was sent on elsewhere".to_owned()),
            BodyError::File(why) => (500, why),
        };
        Problem(status, text)
    })
}

async fn whole_content(exchange: &mut Exchange) -> Result<Bytes, BodyError> {
    let conf = Rc::clone(&exchange.conf);
    let core = &conf.location(exchange.location).http_core;
    let most = limits::CONTROL_BYTES_MAX;
    exchange.body.read(core, most, most as u64).await?;
    match exchange.body.content(false) {
        Content::None | Content::Live { .. } => Ok(Bytes::new()),
        Content::Memory(bytes) => Ok(bytes),
        // Somebody else had it read before, or it shall be in a file.
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
    Outcome::Respond(Box::new(Response::with_body(status, Bytes::from_static(content_type), text)))
}
