//! What is made of the description of the command line: completions for shells, and manual pages.

use crate::command_line::description;
use crate::output::show;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::Path;

/// A command line, and what it does.
type Example = (&'static str, &'static str);

/// Examples of each command, by its names.
pub(crate) const EXAMPLES: &[(&[&str], &[Example])] = &[
    (
        &[],
        &[
            ("yorozu -t", "Test the configuration of the service"),
            ("yorozu -s reload", "Read it again, without losing a request"),
            (
                "yorozu -c /etc/nginx/nginx.conf -t --omit-unsupported",
                "See what of an nginx.conf is not here",
            ),
            ("yorozu serve /var/www/shop", "Serve a PHP application"),
            ("yorozu purge https://www.example.com/", "Remove a page from the cache"),
            ("yorozu log --miss", "See why requests miss the cache"),
        ],
    ),
    (
        &["serve"],
        &[
            ("yorozu serve", "Serve the application in the current folder on port 8080"),
            (
                "yorozu serve /var/www/shop --domain shop.example.com",
                "Serve it to the world, with a certificate of Let's Encrypt",
            ),
            (
                "yorozu serve /var/www/shop --domain shop.example.com --install",
                "The same from every start of the machine on",
            ),
            ("yorozu serve . --watch --cache off", "Serve it while it is written"),
            ("yorozu serve . --print", "See the configuration"),
        ],
    ),
    (
        &["purge"],
        &[
            ("yorozu purge https://www.example.com/about/", "Remove one page"),
            ("yorozu purge //www.example.com/blog/*", "Remove all below a path, of http and https"),
            (
                "yorozu purge --host www.example.com --tag post-17",
                "Remove all pages that show a post",
            ),
            (
                "yorozu purge --all --warm https://www.example.com/sitemap.xml",
                "Remove all, and make the pages again",
            ),
        ],
    ),
    (
        &["warm"],
        &[
            ("yorozu warm https://www.example.com/sitemap.xml", "Make what is missing of a site"),
            ("yorozu warm --jobs 2 https://www.example.com/", "Make one page, with little load"),
        ],
    ),
    (
        &["explain"],
        &[
            (
                "yorozu explain https://www.example.com/",
                "See whether a page is stored, and why not",
            ),
            (
                "yorozu explain -H 'Cookie:wordpress_logged_in_x=ann' https://www.example.com/",
                "The same for a visitor with a cookie",
            ),
        ],
    ),
    (
        &["cache", "ls"],
        &[
            ("yorozu cache ls --limit 20", "See twenty stored pages"),
            ("yorozu cache ls --json --limit 100000", "Count them, or do something with each"),
        ],
    ),
    (
        &["log"],
        &[
            (
                "yorozu log --miss --host www.example.com",
                "See why requests to a site miss the cache",
            ),
            ("yorozu log --status 5xx", "See errors only"),
            ("yorozu log --slow 500 --args", "See what takes half a second or more"),
        ],
    ),
    (
        &["completions"],
        &[
            ("yorozu completions bash", "For /etc/bash_completion.d/yorozu"),
            ("yorozu completions zsh", "For a file _yorozu in a folder of $fpath"),
            ("yorozu completions fish", "For ~/.config/fish/completions/yorozu.fish"),
        ],
    ),
];

const FILES: &[Example] = &[
    ("/etc/default/yorozu", "Names the configuration that the service serves"),
    ("/etc/yorozu/nginx.conf", "The one of the package"),
    ("/usr/share/yorozu", "Sites and configurations to start from"),
    ("/var/log/yorozu", "Logs"),
    ("/var/cache/yorozu", "Stored pages"),
    ("/usr/share/doc/yorozu/docs", "The handbook"),
];

const SIGNALS: &[Example] = &[
    ("HUP", "Read the configuration again; a broken one is refused, and the one before stays"),
    ("USR1", "Open the logs again"),
    ("QUIT", "End when requests under way are finished"),
    ("TERM, INT", "End at once"),
    ("USR2", "Start the program again beside this one, with the same sockets"),
    ("WINCH", "Finish, while the new program serves alone"),
];

const STATUS: &[Example] =
    &[("0", "Done"), ("1", "Failed; standard error says why"), ("2", "The command line is wrong")];

/// Examples as `--help` shows them.
pub(crate) fn examples(examples: &[Example]) -> String {
    let lines = examples.iter().map(|(command, what)| format!("  {command}\n      {what}\n"));
    format!("Examples:\n{}", lines.collect::<String>().trim_end())
}

/// Prints completions for a shell.
///
/// # Errors
/// They cannot be written.
pub(crate) fn completions(shell: Shell) -> Result<(), String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut description(), "yorozu", &mut script);
    show(&String::from_utf8_lossy(&script))
}

/// Writes the manual pages: `yorozu.8`, and one for each command.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn manual(folder: &Path) -> Result<(), String> {
    let mut all = description().disable_help_subcommand(true);
    all.build();
    pages(&all, &[], folder)
}

fn pages(command: &Command, path: &[&str], folder: &Path) -> Result<(), String> {
    for inner in command.get_subcommands() {
        pages(inner, &[path, &[inner.get_name()]].concat(), folder)?;
    }
    let name = [&["yorozu"], path].concat().join("-");
    let file = folder.join(format!("{name}.8"));
    let written = page(command, path, &name).and_then(|text| std::fs::write(&file, text));
    written.map_err(|problem| format!("\"{}\": {problem}", file.display()))
}

fn page(command: &Command, path: &[&str], name: &str) -> std::io::Result<Vec<u8>> {
    let version = format!("yorozu {}", env!("CARGO_PKG_VERSION"));
    // Examples have a section of their own.
    let plain = command.clone().after_long_help(None::<&str>);
    let man = Man::new(plain)
        .title(name.to_uppercase())
        .section("8")
        .date("")
        .source(version)
        .manual("System administration");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    let usage = command.clone().render_usage().to_string();
    for line in usage.lines() {
        synopsis.text([roman(line.trim_start_matches("Usage:").trim())]).control("br", []);
    }
    synopsis.to_writer(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let found = EXAMPLES.iter().find(|(of, _)| *of == path);
    let mut sections = vec![("EXAMPLES", found.map_or(&[][..], |found| found.1))];
    if path.is_empty() {
        sections.extend([("SIGNALS", SIGNALS), ("FILES", FILES)]);
    }
    sections.push(("EXIT STATUS", STATUS));
    for (title, items) in sections.into_iter().filter(|section| !section.1.is_empty()) {
        let mut section = Roff::new();
        section.control("SH", [title]);
        for (item, what) in items {
            section.control("TP", []);
            section.text([bold(*item)]).text([roman(*what)]);
        }
        section.to_writer(&mut out)?;
    }
    let mut last = Roff::new();
    let others = if path.is_empty() { "yorozu-directives(5), nginx(8)" } else { "yorozu(8)" };
    last.control("SH", ["SEE ALSO"]).text([roman(others)]);
    last.to_writer(&mut out)?;
    Ok(out)
}
