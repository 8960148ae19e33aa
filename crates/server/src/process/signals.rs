//! Signals. The master process: HUP reload, USR1 open logs again, USR2 start a new binary, WINCH let it serve, QUIT finish,
//! TERM and INT stop. The server process: QUIT and WINCH finish, TERM and INT stop; the others are the master's.

use std::{fs, io};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Word {
    Reload,
    Reopen,
    Upgrade,
    Rest,
    Quit,
    /// With the signal's number and name.
    Stop(&'static str),
}

/// Whether a terminal sends the process what is meant for who looks at it: its size changes, and SIGWINCH says so.
#[expect(
    clippy::disallowed_methods,
    reason = "it is in memory, and asked for when a window has another size"
)]
fn is_at_terminal() -> bool {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return false };
    // proc(5): state, parent, process group, session, terminal, and the group that is in its foreground.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let mut fields = fields.split(' ').skip(2);
    let group = fields.next();
    group.is_some() && fields.nth(2) == group
}

/// The handlers. Installed before the process can be found: a signal that comes while it
/// starts is served as soon as it runs, instead of ending it.
pub(super) struct Signals([(Signal, Word); 7]);

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// As the system refuses them.
    pub(super) fn install(runtime: &Runtime) -> io::Result<Self> {
        let _guard = runtime.enter();
        // What who started this process has blocked is no matter of its own.
        let _ = nix::sys::signal::SigSet::all().thread_unblock();
        Ok(Self([
            (signal(SignalKind::hangup())?, Word::Reload),
            (signal(SignalKind::user_defined1())?, Word::Reopen),
            (signal(SignalKind::user_defined2())?, Word::Upgrade),
            (signal(SignalKind::window_change())?, Word::Rest),
            (signal(SignalKind::quit())?, Word::Quit),
            (signal(SignalKind::terminate())?, Word::Stop("15 (SIGTERM)")),
            (signal(SignalKind::interrupt())?, Word::Stop("2 (SIGINT)")),
        ]))
    }

    /// The next word.
    ///
    /// # Cancel safety
    /// None is lost.
    pub(super) async fn next(&mut self) -> Word {
        std::future::poll_fn(|context| {
            for (signal, word) in &mut self.0 {
                if signal.poll_recv(context).is_ready()
                    && !(*word == Word::Rest && is_at_terminal())
                {
                    return std::task::Poll::Ready(*word);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
