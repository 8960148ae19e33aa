//! Applications that are known by name: how a configuration shows that it serves one, and by which cookies that tells its
//! visitors apart (`cookies.txt`).

use super::scope::{Scope, any_word, each_line};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use yorozu_conf::Directive;

/// An application, or an extension of one.
#[derive(Debug)]
pub(super) struct Application {
    name: &'static str,
    /// Below its folder.
    files: Vec<&'static str>,
    /// In lower case.
    words: Vec<&'static str>,
    /// Cookies of visitors who may get pages of their own; those are left out that never come alone.
    pub cookies: Vec<Cookie>,
}

/// A cookie by its name, in which `*` stands for any text and `{hash}` for 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Cookie(pub &'static str);

impl Cookie {
    /// As a browser sends one of that name.
    pub(super) fn example(self) -> String {
        const HASH: &str = "0123456789abcdef0123456789abcdef";
        // Many names go on with a hash.
        let name = match self.0.strip_prefix('*') {
            Some(end) => format!("own{end}"),
            None => self.0.replace('*', HASH),
        };
        format!("{}=1", name.replace("{hash}", HASH))
    }
}

static APPLICATIONS: LazyLock<Vec<Application>> =
    LazyLock::new(|| read(include_str!("cookies.txt")));

fn read(text: &'static str) -> Vec<Application> {
    let mut found: Vec<Application> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if !line.starts_with(' ') {
            let (files, words, cookies) = (Vec::new(), Vec::new(), Vec::new());
            found.push(Application { name: line, files, words, cookies });
            continue;
        }
        let application = found.last_mut().expect("the table begins with a name");
        let mut row = line.split_whitespace();
        match (row.next(), row.clone().next()) {
            (Some("files"), _) => application.files.extend(row),
            (Some("words"), _) => application.words.extend(row),
            (Some("personal"), Some(name)) => application.cookies.push(Cookie(name)),
            _ => {}
        }
    }
    found
}

impl Application {
    fn is_extension_of(&self, other: &Self) -> bool {
        self.name.split_once(" / ").is_some_and(|(of, _)| of == other.name)
    }

    fn is_extension(&self) -> bool {
        self.name.contains(" / ")
    }

    fn is_in(&self, folder: &Path) -> bool {
        self.files.iter().any(|file| folder.join(file).exists())
    }

    /// Whether a word of it begins in a text.
    fn is_named(&self, text: &[u8]) -> bool {
        self.words.iter().any(|word| {
            let text = text.to_ascii_lowercase();
            let mut places = memchr::memmem::find_iter(&text, word);
            places.any(|at| at == 0 || !text[at - 1].is_ascii_alphanumeric())
        })
    }
}

/// What a server is for.
pub(super) struct Served {
    pub applications: Vec<&'static Application>,
    /// Whether it is for these; else a list of the cookies of many was found, for whichever it is.
    pub is_certain: bool,
}

/// The applications that a server is for: those in its folders, with their extensions that are there; else those that its
/// lines name, or the maps it uses do, with all their extensions.
pub(super) fn of(server: &Scope<'_, '_>, used: &[&[Directive]]) -> Served {
    let all = || APPLICATIONS.iter();
    let folders = folders(server);
    let is_there = |it: &&Application| folders.iter().any(|folder| it.is_in(folder));
    let found: Vec<_> = all().filter(is_there).collect();
    if !found.is_empty() {
        return Served { applications: found, is_certain: true };
    }
    let named = |lines: &[&[Directive]]| {
        let is_named = |it: &&Application| {
            let mut lines = lines.iter();
            lines.any(|lines| any_word(lines, &|word| it.is_named(word)))
        };
        all().filter(|it| !it.is_extension()).filter(is_named).collect::<Vec<_>>()
    };
    let by_server = named(&[server.lines]);
    let is_of_server = !by_server.is_empty();
    let own = if is_of_server { by_server } else { named(used) };
    let is_certain = is_of_server || own.len() == 1;
    let is_own = |it: &&Application| {
        own.iter().any(|one| std::ptr::eq(*one, *it) || it.is_extension_of(one))
    };
    Served { applications: all().filter(is_own).collect(), is_certain }
}

/// The folders of the `root`s of a server that are there, and those above them: many applications have their public files in a
/// folder of their own.
fn folders(server: &Scope<'_, '_>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut add = |line: &Directive| {
        let folder =
            line.args.first().map_or_else(Default::default, |word| String::from_utf8_lossy(word));
        let folder = Path::new(&*folder);
        if folder.is_dir() {
            found.push(folder.to_owned());
            found.extend(folder.parent().map(Path::to_owned));
        }
    };
    server.find("root").into_iter().for_each(&mut add);
    each_line(server.lines, &mut |line| {
        if &line.name[..] == b"root" {
            add(line);
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_of_the_table_is_whole() {
        let mut names = Vec::new();
        for line in include_str!("cookies.txt").lines().filter(|line| line.starts_with(' ')) {
            let (kind, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
            let (name, why) = rest.split_once(' ').unwrap_or((rest, ""));
            match kind {
                "files" | "words" | "shared" => {}
                "personal" | "along" | "harmless" => {
                    assert!(!why.trim().is_empty(), "{line}");
                    assert!(name.matches('*').count() <= 1, "{line}");
                    names.push(name);
                }
                _ => panic!("{line}"),
            }
        }
        assert!(names.len() > 80);
        let tried: Vec<_> = APPLICATIONS.iter().flat_map(|it| &it.cookies).collect();
        assert!(tried.len() > 50 && tried.iter().all(|cookie| cookie.0 != "wordpress_sec_*"));
        for extension in APPLICATIONS.iter().filter(|it| it.is_extension()) {
            assert!(APPLICATIONS.iter().any(|it| extension.is_extension_of(it)), "{extension:?}");
        }
    }

    #[test]
    fn examples_are_cookies_of_the_name() {
        for (name, example) in [
            ("PHPSESSID", "PHPSESSID=1"),
            ("edd_*", "edd_0123456789abcdef0123456789abcdef=1"),
            ("*_session", "own_session=1"),
            ("SESS{hash}", "SESS0123456789abcdef0123456789abcdef=1"),
        ] {
            assert_eq!(Cookie(name).example(), example);
        }
    }
}
