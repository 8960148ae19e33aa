//! For unit tests: configurations and exchanges without sockets.

#![expect(clippy::disallowed_methods, reason = "a folder for a test")]

use crate::config::load::{Kept, Loaded, Request as LoadRequest, load};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use yorozu_connection::head::{self, Bounds, Received};
use yorozu_kernel::exchange::conf::{Config, WorkerConf};
use yorozu_kernel::exchange::request::Request;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::{Client, Exchange, Remote};

/// A configuration from its text.
pub(crate) fn config(text: &str) -> Arc<Config> {
    Arc::new(try_config(text).unwrap_or_else(|error| panic!("{error}")))
}

/// A configuration, or the message that refuses it, with the file's name cut off.
pub(crate) fn try_config(text: &str) -> Result<Config, String> {
    try_load(text).map(|loaded| loaded.config)
}

/// A configuration with its tree.
pub(crate) fn try_load(text: &str) -> Result<Loaded, String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let prefix = std::env::temp_dir().join(format!("yorozu-conf.{}.{number}", std::process::id()));
    std::fs::create_dir_all(prefix.join("logs")).unwrap();
    let file = prefix.join("nginx.conf");
    let events = if text.contains("events") { "" } else { "events {} " };
    std::fs::write(&file, format!("{events}{text}")).unwrap();
    let request =
        LoadRequest { prefix: prefix.clone(), file: file.clone(), global: None, error_log: None };
    let result = load(&request, &Kept::default());
    std::fs::remove_dir_all(&prefix).unwrap();
    let (shown, folder) = (file.display().to_string(), prefix.display().to_string());
    result.map_err(|error| error.to_string().replace(&shown, "conf").replace(&folder, "DIR"))
}

/// An exchange on the first socket of a configuration.
pub(crate) fn exchange(config: Arc<Config>, _head: &str) -> Exchange {
    let address = config.sockets[0].address.clone();
    let conf = Rc::new(WorkerConf::new(config, || {}));
    let client = Client::new(1, address, Rc::new(Remote::of(None)), None, Instant::now());
    client.requests.set(1);
    Exchange::new(conf, Rc::new(client), Request::unread(bytes::Bytes::new()), RequestBody::none())
}

/// A request from the text of its head, under the default bounds.
pub(crate) fn request(head: &str) -> Request {
    let config = config("http { server { } }");
    let bounds = Bounds::of(config.locations[0].http_core());
    match head::read(bytes::Bytes::copy_from_slice(head.as_bytes()), &bounds) {
        Received::Request(request) => request,
        _ => panic!("no request: {head}"),
    }
}
