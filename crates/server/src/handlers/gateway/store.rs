//! `*_store`: answers kept as plain files, outside the cache.

use crate::config::directive::*;
use crate::config::template::Template;
use crate::exchange::Exchange;
use crate::exchange::request::Method;
use crate::exchange::response::Response;
use crate::exchange::temporary::{
    NamedFile, crosses_devices, folder_for, named_file, private_folder,
};
use crate::handlers::static_file;
use crate::logging::error::{Context, Level, os_error};
use crate::tasks;
use bytes::Bytes;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use tokio::task::spawn_blocking;

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

/// `*_store_access`: `user:rw group:r all:r`
#[derive(Clone, Copy, Debug)]
pub struct StoreAccess(pub u32);

impl Setting for StoreAccess {
    /// As nginx: each word is of one class alone, and the owner's rights are as said, if they are.
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let (mut mode, mut of_user) = (0, 0o600);
        for word in args.words {
            let broken = || args.invalid_parameter(word);
            let text = std::str::from_utf8(word).map_err(|_| broken())?;
            let (who, rights) = text.split_once(':').ok_or_else(broken)?;
            let bits = match rights {
                "r" => 0o4,
                "rw" => 0o6,
                _ => return Err(broken()),
            };
            mode |= match who {
                "user" => {
                    of_user = 0;
                    bits << 6
                }
                "group" => bits << 3,
                "all" => bits,
                _ => return Err(broken()),
            };
        }
        Ok(Self(mode | of_user))
    }
}

/// An answer on its way into a file: written under a temporary name, renamed when it is whole.
pub struct Saver {
    file: NamedFile,
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
        // The answer to a HEAD has no content, whatever it says: it would be an empty file for everybody.
        if response.status != 200 || exchange.request.method == Method::Head {
            return None;
        }
        let path = match &conf.store {
            Store::Off => return None,
            Store::On => Bytes::from(static_file::path(exchange)),
            Store::Path(template) => template.value(exchange),
        };
        let context = Context::of(exchange);
        let folder = &conf.temp_path.0;
        match private_folder(folder).and_then(|()| named_file(folder, "")) {
            Ok(file) => Some(Self {
                file,
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

    /// Takes the next bytes; `false` if the answer cannot be stored any more.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        if let Some(left) = &mut self.left {
            match left.checked_sub(bytes.len() as u64) {
                Some(rest) => *left = rest,
                None => return false,
            }
        }
        let result = self.file.file.write_all(bytes);
        if let Err(problem) = &result {
            failed(&self.context, "write()", &self.path, problem);
        }
        result.is_ok()
    }

    /// The answer is at its end: the file gets its name, unless less came than was announced.
    pub fn finish(self) {
        if self.left.is_some_and(|left| left > 0) {
            return;
        }
        let Self { file, path, mode, context, .. } = self;
        if let Some(time) = self.last_modified.and_then(|time| u64::try_from(time).ok()) {
            let _ = file.file.set_modified(UNIX_EPOCH + Duration::from_secs(time));
        }
        if let Err(problem) = folder_for(path.parent().unwrap_or(Path::new("/")), mode) {
            return failed(&context, "mkdir()", &path, &problem);
        }
        match file.put(&path, mode) {
            Ok(()) => {}
            Err((problem, file)) if crosses_devices(&problem) => {
                tasks::of_request(async move {
                    let to = path.clone();
                    let carried = spawn_blocking(move || file.carry(&to, mode)).await;
                    if let Err(problem) = carried.unwrap_or_else(|why| Err(io::Error::other(why))) {
                        failed(&context, "rename()", &path, &problem);
                    }
                });
            }
            Err((problem, _)) => failed(&context, "rename()", &path, &problem),
        }
    }
}

fn failed(context: &Context, call: &str, path: &Path, problem: &io::Error) {
    let text = format!("{call} \"{}\" failed ({})", path.display(), os_error(problem));
    context.upstream(Level::Crit, &text, None);
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn rights_are_read_as_nginx_reads_them() {
        let access = |words: &str| {
            let config = testing::try_config(&format!("http {{ proxy_store_access {words}; }}"));
            config.map(|config| config.locations[0].proxy.gateway.store_access.0)
        };
        for (words, mode) in [
            ("user:rw", 0o600),
            ("user:r", 0o400),
            ("group:rw", 0o660),
            ("group:rw all:r", 0o664),
            ("all:r", 0o604),
            ("user:rw group:r all:rw", 0o646),
        ] {
            assert_eq!(access(words), Ok(mode), "{words}");
        }
        for words in ["user:x", "others:r", "rw", "user:"] {
            assert!(access(words).unwrap_err().contains("invalid"), "{words}");
        }
    }
}
