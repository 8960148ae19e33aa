//! The command line, as nginx's: `-?hvVtTq`, `-s signal`, `-p prefix`, `-c file`, `-e file`, `-g
//! directives`.

mod cache;
mod command_line;
mod log;
mod serve;
mod signals;
mod top;
mod warm;

use command_line::{Action, Notice, Options};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use yorozu_server::config::load::{Faults, Kept, Loaded, Request, check, load};
use yorozu_server::config::{findings_of, reads};
use yorozu_server::process::{self, daemon, handover, pid, sockets};

/// Threads that free what others made, and buffers of many sizes: measured in docs/decisions.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(problem) => return fail(&problem),
    };
    if let Some(notice) = options.notice {
        match notice {
            Notice::Help => print!("{}", command_line::HELP),
            Notice::Version => eprintln!("{}", command_line::version()),
            Notice::Build => eprint!("{}", command_line::build()),
        }
        if !matches!(options.action, Action::Test { .. }) {
            return ExitCode::SUCCESS;
        }
    }
    let result = match &options.action {
        Action::Acme(None) => {
            print!("{}", cache::ACME_HELP);
            Ok(())
        }
        Action::Cache(None) => {
            print!("{}", cache::HELP);
            Ok(())
        }
        Action::Purge(None) => {
            print!("{}", cache::PURGE_HELP);
            Ok(())
        }
        Action::Warm(None) => {
            print!("{}", warm::HELP);
            Ok(())
        }
        Action::Log(None) => {
            print!("{}", log::HELP);
            Ok(())
        }
        Action::Application(None) => {
            print!("{}", serve::HELP);
            Ok(())
        }
        Action::Top(None) => {
            print!("{}", top::HELP);
            Ok(())
        }
        Action::Acme(Some(command)) | Action::Cache(Some(command)) => command.run(&options),
        Action::Log(Some(log)) => log.run(&options),
        Action::Application(Some(application)) => application.run(),
        Action::Top(Some(top)) => top.run(&options),
        Action::Purge(Some((command, warm))) => command
            .run(&options)
            .and_then(|()| warm.as_ref().map_or(Ok(()), |warm| warm.run(&options))),
        Action::Warm(Some(warm)) => warm.run(&options),
        Action::Directives => {
            print!("{}", yorozu_server::config::manual::markdown());
            Ok(())
        }
        Action::Test { is_dumped } => test(&options, *is_dumped),
        Action::Signal(signal) => send(&options, *signal),
        Action::Serve => serve(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(&problem),
    }
}

fn fail(problem: &str) -> ExitCode {
    complain(problem);
    ExitCode::FAILURE
}

fn complain(problem: &str) {
    if !problem.is_empty() {
        eprintln!("yorozu: [emerg] {problem}");
    }
    if problem.starts_with("host not found in upstream") {
        eprintln!(
            "yorozu: [notice] \"resolve_later on;\" in \"http\" starts all the same, and answers 502 for a name that is not there yet; \"server NAME resolve;\" in an \"upstream\" with \"zone\" and \"resolver\" also follows its changes"
        );
    }
}

fn read(request: &Request, kept: &Kept) -> Result<Loaded, String> {
    load(request, kept).map_err(|problem| problem.to_string())
}

fn test(options: &Options, is_dumped: bool) -> Result<(), String> {
    let request = options.request();
    let file = request.file.display();
    let failed = |problem: String| {
        complain(&problem);
        eprintln!("yorozu: configuration file {file} test failed");
        // All is said.
        String::new()
    };
    let loaded = check(&request, &Kept::for_test(), options.omits_unsupported).map_err(
        |Faults { mut errors, warnings }| {
            warnings.iter().for_each(|warning| eprintln!("yorozu: [warn] {warning}"));
            let last = errors.pop().map_or_else(String::new, |error| error.to_string());
            errors.iter().for_each(|error| complain(&error.to_string()));
            failed(last)
        },
    )?;
    for warning in &loaded.config.warnings {
        eprintln!("yorozu: [warn] {warning}");
    }
    let Loaded { config, tree } = loaded;
    let config = Arc::new(config);
    for finding in findings_of(&tree, &config) {
        eprintln!("yorozu: [warn] {finding}");
    }
    if !options.is_quiet {
        for note in &config.notes {
            eprintln!("yorozu: [notice] {note}");
        }
        eprintln!("yorozu: the configuration file {file} syntax is ok");
    }
    pid::look(&pid::path(&config)).and_then(|()| sockets::look(&config)).map_err(failed)?;
    if !options.is_quiet {
        eprintln!("yorozu: configuration file {file} test is successful");
    }
    if is_dumped && options.shows_reads {
        print!("{}", reads::shown(&config));
    } else if is_dumped && options.omits_unsupported {
        let written = std::io::stdout().write_all(&yorozu_conf::write(&tree.directives));
        written.map_err(|problem| problem.to_string())?;
    } else if is_dumped {
        let mut out = std::io::stdout().lock();
        for file in &tree.files {
            let written = writeln!(out, "# configuration file {}:", file.path.display())
                .and_then(|()| out.write_all(&file.text))
                .and_then(|()| writeln!(out));
            written.map_err(|problem| problem.to_string())?;
        }
    }
    // The process ends: to take a large configuration apart would be half of the time.
    std::mem::forget((tree, config));
    Ok(())
}

fn send(options: &Options, signal: Signal) -> Result<(), String> {
    let loaded = read(&options.request(), &Kept::for_test())?;
    let id = pid::read(&pid::path(&loaded.config))?;
    kill(Pid::from_raw(id), signal).map_err(|problem| {
        format!("kill({id}, {}) failed ({}: {})", signal as i32, problem as i32, problem.desc())
    })
}

fn serve(options: &Options) -> Result<(), String> {
    if process::is_server() {
        return process::run_server(options.request());
    }
    let detach = |is_wanted| {
        let detaches = is_wanted && !daemon::is_detached() && !handover::is_upgrade();
        if detaches {
            daemon::detach()?;
        }
        Ok(!detaches)
    };
    process::run(options.request(), detach, || {
        if daemon::is_detached() {
            daemon::report_ready();
        }
    })
}
