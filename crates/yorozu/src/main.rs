//! The program: nginx's options start, test and signal the server; commands ask a running one.

mod cache;
mod command_line;
mod control;
mod generate;
mod log;
mod output;
mod purge;
mod serve;
mod signals;
mod top;
mod usage;
mod warm;

use clap::error::ErrorKind;
use command_line::Options;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use yorozu_kernel::base::readable::harmless;
use yorozu_server::config::load::{Faults, Kept, Loaded, Request, check, load};
use yorozu_server::config::{findings_of, reads};
use yorozu_server::process::{self, daemon, handover, pid, sockets};

/// Threads that free what others made, and buffers of many sizes: measured in docs/decisions.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit status where the command line is wrong.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    // What `yorozu serve` starts, by way of this program.
    if let [_, word, command @ ..] = &args[..]
        && word == "child"
    {
        return ended("", serve::supervise::become_child(command));
    }
    let options = match Options::read(args.clone()) {
        Ok(options) => options,
        Err(problem) => return refuse(&problem, &args),
    };
    if options.shows_version || options.shows_build {
        match options.shows_build {
            true => eprint!("{}", command_line::build()),
            false => eprintln!("{}", command_line::version()),
        }
        if !options.is_test() {
            return ExitCode::SUCCESS;
        }
    }
    if options.shows_directives {
        return ended("", output::show(&yorozu_server::config::manual::markdown()));
    }
    match (&options.command, options.signal()) {
        (Some(command), _) => ended("", command.run(&options)),
        (None, Some(signal)) => match read(&options.request(), &Kept::for_test()) {
            Ok(loaded) => ended("[error] ", send(&loaded, signal)),
            Err(problem) => ended("[emerg] ", Err(problem)),
        },
        (None, None) if options.is_test() => ended("[emerg] ", test(&options)),
        (None, None) => ended("[emerg] ", serve(&options)),
    }
}

/// The exit status; what went wrong is said, with its level where nginx would log it.
fn ended(level: &str, result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            complain(level, &problem);
            ExitCode::FAILURE
        }
    }
}

/// Prints help or the version if that is why nothing else is done, else what is wrong with the command line.
fn refuse(problem: &clap::Error, args: &[std::ffi::OsString]) -> ExitCode {
    match problem.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = problem.print();
            return ExitCode::SUCCESS;
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => _ = problem.print(),
        _ => eprintln!("yorozu: {}", usage::said(problem, args)),
    }
    USAGE.into()
}

fn complain(level: &str, problem: &str) {
    if !problem.is_empty() {
        // It may quote what a server or a page said.
        eprintln!("yorozu: {level}{}", harmless(problem));
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

fn test(options: &Options) -> Result<(), String> {
    let (request, is_dumped) = (options.request(), options.is_dumped);
    let file = request.file.display();
    let failed = |problem: String| {
        complain("[emerg] ", &problem);
        eprintln!("yorozu: configuration file {file} test failed");
        // All is said.
        String::new()
    };
    let loaded = check(&request, &Kept::for_test(), options.omits_unsupported).map_err(
        |Faults { mut errors, warnings }| {
            warnings.iter().for_each(|warning| eprintln!("yorozu: [warn] {warning}"));
            let last = errors.pop().map_or_else(String::new, |error| error.to_string());
            errors.iter().for_each(|error| complain("[emerg] ", &error.to_string()));
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
        output::show(&reads::shown(&config))?;
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

fn send(loaded: &Loaded, signal: Signal) -> Result<(), String> {
    let id = pid::read(&pid::path(&loaded.config))?;
    kill(Pid::from_raw(id), signal).map_err(|problem| {
        format!("kill({id}, {}) failed ({}: {})", signal as i32, problem as i32, problem.desc())
    })
}

fn serve(options: &Options) -> Result<(), String> {
    if process::is_server() {
        return process::run_server(options.request());
    }
    let request = options.request();
    process::give_file(&request.file);
    let detach = |is_wanted| {
        let detaches = is_wanted && !daemon::is_detached() && !handover::is_upgrade();
        if detaches {
            daemon::detach()?;
        }
        Ok(!detaches)
    };
    process::run(request, detach, || {
        if daemon::is_detached() {
            daemon::report_ready();
        }
    })
}
