//! `*_store`: answers kept as plain files, outside the cache.

use bytes::Bytes;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::files::path;
use yorozu_kernel::files::temporary::{TemporaryFile, folder_for};
use yorozu_kernel::logging::error::{Context, Level, os_error, path_text};

/// `*_store off | on | path`
#[derive(Clone, Debug, Default)]
pub enum Store {
    #[default]
    Off,
    /// Where `root` or `alias` has it.
    On,
    Path(Template),
}

impl Setting for Store {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(match args.word(0) {
            b"off" => Self::Off,
            b"on" => Self::On,
            path => Self::Path(Template::compile(path, args.env)?),
        })
    }
}

/// Bytes of an answer that are written at once; chosen: a thread's turn for a few buffers of an upstream.
const WRITTEN_AT_ONCE: usize = 64 * 1024;

/// An answer on its way into a file: written under a temporary name, renamed when it is whole; by threads that may
/// block.
pub struct Saver {
    /// None: it could not be written.
    file: Option<TemporaryFile>,
    /// What is to be written next.
    pieces: Vec<Bytes>,
    pieces_bytes: usize,
    path: PathBuf,
    mode: u32,
    last_modified: Option<i64>,
    /// Bytes that are still to come, if the upstream said how many.
    left: Option<u64>,
    context: Context,
}

impl Saver {
    /// A saver for the exchange's answer, if the location stores answers.
    pub fn start(exchange: &mut Exchange, conf: &super::Conf, response: &Response) -> Option<Self> {
        // The answer to a HEAD has no content, whatever it says: it would be an empty file for all clients.
        if response.status != 200 || exchange.request.method == Method::Head {
            return None;
        }
        let path = match &conf.store {
            Store::Off => return None,
            Store::On if path::unnamed(exchange).is_some() => return None,
            Store::On => Bytes::from(path::request_filename(exchange)),
            Store::Path(template) => template.value(exchange),
        };
        if exchange.doubt.is_open() {
            return None;
        }
        let context = Context::of(exchange);
        let folder = &conf.temp_path.0;
        match TemporaryFile::named(folder) {
            Ok(file) => Some(Self {
                file: Some(file),
                pieces: Vec::new(),
                pieces_bytes: 0,
                path: Path::new(OsStr::from_bytes(&path)).to_owned(),
                mode: conf.store_access.0,
                last_modified: response.last_modified,
                left: response.content_length,
                context,
            }),
            Err(problem) => {
                let folder = folder.display();
                let text = format!("open() in \"{folder}\" failed ({})", os_error(&problem));
                context.upstream(Level::Crit, &text, None);
                None
            }
        }
    }

    /// Takes the next bytes; `false` if the answer cannot be stored any more. [`Saver::flush`] is due.
    pub fn push(&mut self, bytes: &Bytes) -> bool {
        if let Some(left) = &mut self.left {
            match left.checked_sub(bytes.len() as u64) {
                Some(rest) => *left = rest,
                None => return false,
            }
        }
        self.pieces_bytes += bytes.len();
        self.pieces.push(bytes.clone());
        true
    }

    /// Writes what is too much to be held; `false` if the answer cannot be stored any more.
    ///
    /// # Cancel safety
    /// None: the answer cannot be stored any more.
    pub async fn flush(&mut self) -> bool {
        if self.pieces_bytes < WRITTEN_AT_ONCE {
            return true;
        }
        self.pieces_bytes = 0;
        let (file, pieces) = (self.file.take(), std::mem::take(&mut self.pieces));
        let written = spawn_blocking(move || {
            let file = file.ok_or(io::ErrorKind::NotFound)?;
            pieces.iter().try_for_each(|piece| file.file().as_ref().write_all(piece))?;
            Ok(file)
        });
        match written.await.unwrap_or_else(|why| Err(io::Error::other(why))) {
            Ok(file) => {
                self.file = Some(file);
                true
            }
            Err(problem) => {
                failed(&self.context, "write()", &self.path, &problem);
                false
            }
        }
    }

    /// The answer is at its end: the file gets its name, unless less came than was announced.
    pub async fn finish(self) {
        let Self { file: Some(file), pieces, path, mode, context, last_modified, left, .. } = self
        else {
            return;
        };
        if left.is_some_and(|left| left > 0) {
            return;
        }
        let to = path.clone();
        let put = spawn_blocking(move || put(file, &pieces, &to, mode, last_modified));
        let put = put.await.unwrap_or_else(|why| Err(("write()", io::Error::other(why))));
        if let Err((call, problem)) = put {
            failed(&context, call, &path, &problem);
        }
    }
}

/// Writes the last pieces of a file and gives it its name.
fn put(
    file: TemporaryFile,
    pieces: &[Bytes],
    to: &Path,
    mode: u32,
    last_modified: Option<i64>,
) -> Result<(), (&'static str, io::Error)> {
    let written = pieces.iter().try_for_each(|piece| file.file().as_ref().write_all(piece));
    written.map_err(|problem| ("write()", problem))?;
    let folder = to.parent().unwrap_or(Path::new("/"));
    folder_for(folder, mode).map_err(|problem| ("mkdir()", problem))?;
    file.persist(to, mode, last_modified).map_err(|problem| ("rename()", problem))
}

fn failed(context: &Context, call: &str, path: &Path, problem: &io::Error) {
    let text = format!("{call} \"{}\" failed ({})", path_text(path), os_error(problem));
    context.upstream(Level::Crit, &text, None);
}
