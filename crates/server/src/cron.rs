//! `cron`: requests that the server makes by itself.
//!
//! ```text
//! server { cron /wp-cron.php?doing_wp_cron 30s; }
//! ```
//! What an application does with its next visitor's request, as WordPress publishes what is scheduled, is never done where
//! all visitors have hits.

use crate::control::explain;
use crate::handlers;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use yorozu_kernel::base::faults;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::servers::{ListenAddress, ServerId, ServerName, Socket};
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::find_config;
use yorozu_kernel::logging::error::Level;

/// The module.
pub(crate) const MODULE: Module =
    Module::new("cron", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// The least interval; chosen.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// How long an answer is waited for; chosen: what takes longer goes on by itself.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// `cron uri interval`
#[derive(Clone, Debug)]
pub(crate) struct Errand {
    uri: String,
    interval: Duration,
    /// Held by the worker that asks.
    turn: Arc<Mutex<()>>,
}

impl Setting for Errand {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let uri = args.text(0);
        let is_uri = uri.starts_with('/') && uri.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_uri {
            let expected = "expected a path that begins with \"/\", as clients send it";
            return Err(ValueError(format!("invalid value \"{uri}\", {expected}")));
        }
        let interval = yorozu_conf::value::time(args.word(1));
        let interval = interval.filter(|interval| *interval >= INTERVAL_MIN).ok_or_else(|| {
            ValueError(format!(
                "invalid value \"{}\", expected a time of at least 1s",
                args.text(1)
            ))
        })?;
        Ok(Self { uri, interval, turn: Arc::default() })
    }
}

settings! {
    /// A request that the server itself makes to this host, at startup and then at an interval: path and arguments, and the interval.
    cron: Vec<Errand> = none, TWO, SERVER;
}

/// Starts the requests of a configuration; one worker makes them for all.
pub(crate) fn start(conf: &Rc<WorkerConf>) {
    for id in (0..).map(ServerId).take(conf.servers.len()) {
        for errand in &conf.location(conf.server(id).conf).of::<Conf>().cron {
            let Some(head) = head(conf, id, &errand.uri) else { continue };
            let (of_task, head, errand) = (Rc::clone(conf), Rc::<str>::from(head), errand.clone());
            conf.tasks.keep("cron", move || {
                keep(Rc::clone(&of_task), id, errand.clone(), Rc::clone(&head))
            });
        }
    }
}

/// The head of the request, as [`explain::asked`] has it; `None` where clients reach the server by no address.
fn head(conf: &WorkerConf, id: ServerId, uri: &str) -> Option<String> {
    let is_exact = |name: &&ServerName| matches!(name, ServerName::Text(text) if name.is_real() && !text.starts_with('.') && !text.contains('*'));
    let name = conf.server(id).names.iter().find(is_exact);
    let host = match name {
        Some(ServerName::Text(text)) => text,
        _ => "localhost",
    };
    let leads_here = |socket: &&Socket| {
        let named = find_config::named(socket, host.as_bytes()).ok().flatten();
        named.unwrap_or(socket.default_server) == id
    };
    let port = |socket: &Socket| match &socket.address {
        ListenAddress::Tcp(address) => Some((address.port(), socket.is_tls)),
        _ => None,
    };
    let (port, is_tls) = conf.sockets.iter().filter(leads_here).find_map(port)?;
    let scheme = if is_tls { "https" } else { "http" };
    let agent = concat!("User-Agent: yorozu/", env!("CARGO_PKG_VERSION"), "; cron\r\n");
    explain::head(&format!("{scheme}://{host}:{port}{uri}"), "GET", agent).ok()
}

/// Makes one of the requests again and again, once no other worker does.
async fn keep(conf: Rc<WorkerConf>, id: ServerId, errand: Errand, head: Rc<str>) {
    let _turn = errand.turn.lock().await;
    loop {
        faults::point("cron");
        let done = tokio::time::timeout(ANSWER_MAX, ask(&conf, &head)).await;
        let problem = match done {
            Ok(done) => done.err(),
            Err(_) => Some(format!("no answer in {} s", ANSWER_MAX.as_secs())),
        };
        if let Some(problem) = problem {
            let log = &conf.location(conf.server(id).conf).error_log;
            log.process(Level::Error, &format!("cron \"{}\": {problem}", errand.uri));
        }
        tokio::time::sleep(errand.interval).await;
    }
}

/// Asks, and reads the answer to its end.
async fn ask(conf: &Rc<WorkerConf>, head: &str) -> Result<(), String> {
    let mut asked = explain::asked(conf, head.as_bytes())?;
    find_config::begin(&mut asked)?;
    let response = handlers::whole(&mut asked).await;
    let mut response = response.map_err(|status| format!("status {status}"))?;
    if response.status >= 400 {
        return Err(format!("status {}", response.status));
    }
    let mut stream = response.take_stream();
    while stream.next().await.map_err(|_| "the response is incomplete")?.is_some() {}
    Ok(())
}
