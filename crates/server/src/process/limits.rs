//! Limits of the server process: `worker_rlimit_*`.

use super::rights;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::{self, Level};

/// A limit, with the name that people know, in files or bytes.
pub(super) type Limit = (Resource, &'static str, u64);

/// What a configuration says.
pub(super) fn of(config: &Config) -> Vec<Limit> {
    let main = config.main();
    let files = main.worker_rlimit_nofile.map(|files| (Resource::Nofile, "RLIMIT_NOFILE", files));
    let core = main.worker_rlimit_core.map(|bytes| (Resource::Core, "RLIMIT_CORE", bytes.0));
    let space = main.worker_rlimit_as.map(|bytes| (Resource::As, "RLIMIT_AS", bytes.0));
    files.into_iter().chain(core).chain(space).collect()
}

fn both(value: u64) -> Rlimit {
    Rlimit { current: Some(value), maximum: Some(value) }
}

/// Sets those of another process: as root also above the hard limit.
pub(super) fn set(limits: &[Limit], id: u32) {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw);
    for (resource, _, value) in limits {
        // Without the right to do so, the process tries itself, and says what is refused.
        let _ = prlimit(id, *resource, both(*value));
    }
}

/// Sets those of this process that the master could not set.
pub(super) fn set_own(config: &Config) {
    if config.main().worker_rlimit_core.is_some_and(|bytes| bytes.0 > 0) {
        rights::allow_core_files();
    }
    for (resource, name, value) in of(config) {
        if getrlimit(resource) == both(value) {
            continue;
        }
        if let Err(problem) = setrlimit(resource, both(value)) {
            let problem = std::io::Error::from(problem);
            let text = format!("setrlimit({name}, {value}) failed ({})", error::os_error(&problem));
            error::process(config, Level::Alert, &text);
        }
    }
}
