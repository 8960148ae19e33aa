//! Statements to a tree; `include` is resolved here, wherever it stands.

use crate::error::{ConfError, Position, os_error};
use crate::lexer::{Lexer, Statement, Words};
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Nesting of blocks and includes together; deeper means a file that includes itself.
pub(crate) const DEPTH_MAX: usize = 100;

/// Files read for one configuration, one that is included twice counted twice; chosen above any number of sites.
const FILES_MAX: usize = 100_000;
/// Their bytes together; chosen above any list of networks.
const BYTES_MAX: usize = 512 * 1024 * 1024;
/// Directives in them; chosen, as above.
const DIRECTIVES_MAX: usize = 10_000_000;

/// As many directives of one block are a list, which takes four times its room when that is full, and not twice as usual: what
/// is not used costs nothing, and what is copied does.
const LIST: usize = 1024;

/// Where configuration text comes from; the caller's door to the file system.
pub trait Source {
    /// The whole text of one file.
    ///
    /// # Errors
    /// Opening or reading the file failed.
    fn read(&self, path: &Path) -> io::Result<Bytes>;

    /// Files that match a shell pattern, sorted; nothing when there are none.
    ///
    /// # Errors
    /// There is no end to what could match.
    fn glob(&self, pattern: &str) -> io::Result<Vec<PathBuf>>;

    /// `path` as written, made absolute against the folder of the main file.
    fn resolve(&self, path: &str) -> PathBuf;
}

/// One directive with its arguments and, for a block directive, what stands in its braces.
#[derive(Clone, Debug)]
pub struct Directive {
    /// The first word.
    pub name: Bytes,
    /// The words after it.
    pub args: Vec<Bytes>,
    /// `Some` when the directive ended with `{ ... }`.
    pub block: Option<Vec<Directive>>,
    /// File and line of the first word.
    pub at: Position,
}

impl Directive {
    /// The name for messages; invalid UTF-8 is replaced.
    pub fn name_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }
}

/// A file as it was read, for `-T`.
#[derive(Clone, Debug)]
pub struct LoadedFile {
    /// The resolved name.
    pub path: PathBuf,
    /// The whole text.
    pub text: Bytes,
}

/// A parsed configuration.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Top-level directives in order, includes spliced in.
    pub directives: Vec<Directive>,
    /// Every file read, in the order of first use.
    pub files: Vec<LoadedFile>,
}

/// Parses the file `main` and everything it includes.
///
/// # Errors
/// The first fault of the text, or an included file that cannot be read.
pub fn parse(source: &dyn Source, main: &Path) -> Result<Tree, ConfError> {
    let (tree, outcome) = parse_to_fault(source, main);
    outcome.map(|()| tree)
}

/// As [`parse`]; where there is a fault, with what stands before it, as if every block ended there.
pub fn parse_to_fault(source: &dyn Source, main: &Path) -> (Tree, Result<(), ConfError>) {
    let mut parser = Parser::new(source);
    let mut directives = Vec::new();
    let outcome = parser.file(main, None, 0, &mut directives);
    (Tree { directives, files: parser.files }, outcome)
}

/// Parses the text of a `-g` option.
///
/// # Errors
/// The first fault of the text: a block is one, and a last line without its semicolon.
pub fn parse_global(source: &dyn Source, text: &str) -> Result<Vec<Directive>, ConfError> {
    let directives = parse_text(source, text).map_err(|fault| match fault {
        ConfError::UnexpectedEnd { at, .. } => ConfError::UnexpectedEndOfParameter { at },
        fault => fault,
    })?;
    match directives.iter().find(|directive| directive.block.is_some()) {
        Some(block) => Err(ConfError::BlockInParameter { at: block.at.clone() }),
        None => Ok(directives),
    }
}

/// Parses a text that is in no file; errors name the place `command line`.
///
/// # Errors
/// The first fault of the text.
pub fn parse_text(source: &dyn Source, text: &str) -> Result<Vec<Directive>, ConfError> {
    let mut parser = Parser::new(source);
    let file: Arc<Path> = Path::new("command line").into();
    let text = Bytes::copy_from_slice(text.as_bytes());
    let mut lexer = Lexer::new(&text, &file);
    let mut directives = Vec::new();
    parser.block(&mut lexer, &file, (0, false), &mut directives)?;
    Ok(directives)
}

struct Parser<'a> {
    source: &'a dyn Source,
    files: Vec<LoadedFile>,
    /// Places in `files`.
    by_path: HashMap<PathBuf, usize>,
    left: Left,
}

/// What may still be read: includes that include others twice grow without end.
struct Left {
    files: usize,
    bytes: usize,
    directives: usize,
}

impl<'a> Parser<'a> {
    fn new(source: &'a dyn Source) -> Self {
        let left = Left { files: FILES_MAX, bytes: BYTES_MAX, directives: DIRECTIVES_MAX };
        Self { source, files: Vec::new(), by_path: HashMap::new(), left }
    }

    fn file(
        &mut self,
        path: &Path,
        included_at: Option<&Position>,
        depth: usize,
        into: &mut Vec<Directive>,
    ) -> Result<(), ConfError> {
        let text = self.text(path, included_at)?;
        let at = || Position { file: path.into(), line: 1 };
        let at = included_at.cloned().unwrap_or_else(at);
        take(&mut self.left.files, 1, FILES_MAX, "files", &at)?;
        take(&mut self.left.bytes, text.len(), BYTES_MAX, "bytes", &at)?;
        let file: Arc<Path> = path.into();
        let mut lexer = Lexer::new(&text, &file);
        self.block(&mut lexer, &file, (depth, false), into)
    }

    /// The text of a file, which is read once.
    fn text(&mut self, path: &Path, included_at: Option<&Position>) -> Result<Bytes, ConfError> {
        if let Some(place) = self.by_path.get(path) {
            return Ok(self.files[*place].text.clone());
        }
        let text = self.source.read(path).map_err(|error| ConfError::Open {
            path: path.display().to_string(),
            reason: os_error(&error),
            at: included_at.cloned(),
        })?;
        self.by_path.insert(path.to_owned(), self.files.len());
        self.files.push(LoadedFile { path: path.to_owned(), text: text.clone() });
        Ok(text)
    }

    fn count(&mut self, directive: &Directive) -> Result<(), ConfError> {
        take(&mut self.left.directives, 1, DIRECTIVES_MAX, "directives", &directive.at)
    }

    fn block(
        &mut self,
        lexer: &mut Lexer<'_>,
        file: &Arc<Path>,
        (depth, inside_braces): (usize, bool),
        into: &mut Vec<Directive>,
    ) -> Result<(), ConfError> {
        loop {
            match lexer.statement()? {
                Statement::Simple(words) => {
                    let directive = directive(words, file);
                    self.count(&directive)?;
                    if &directive.name[..] == b"include" {
                        self.include(&directive, depth, into)?;
                    } else {
                        if into.len() == into.capacity() && into.len() >= LIST {
                            into.reserve_exact(3 * into.len());
                        }
                        into.push(directive);
                    }
                }
                Statement::BlockStart(words) => {
                    let mut directive = directive(words, file);
                    self.count(&directive)?;
                    bound_depth(depth, &directive.at)?;
                    let mut inner = Vec::new();
                    // As OpenResty: it is no text of this language.
                    let outcome = match directive.name.ends_with(b"_by_lua_block") {
                        true => lexer.skip_lua(),
                        false => self.block(lexer, file, (depth + 1, true), &mut inner),
                    };
                    directive.block = Some(inner);
                    into.push(directive);
                    outcome?;
                }
                Statement::BlockEnd(_) if inside_braces => return Ok(()),
                Statement::BlockEnd(line) => {
                    let at = Position { file: Arc::clone(file), line };
                    return Err(ConfError::Unexpected { got: '}', at });
                }
                Statement::End(line) if inside_braces => {
                    let at = Position { file: Arc::clone(file), line };
                    return Err(ConfError::UnexpectedEnd { expecting: "\"}\"", at });
                }
                Statement::End(_) => return Ok(()),
            }
        }
    }

    fn include(
        &mut self,
        directive: &Directive,
        depth: usize,
        into: &mut Vec<Directive>,
    ) -> Result<(), ConfError> {
        bound_depth(depth, &directive.at)?;
        let [pattern] = &directive.args[..] else {
            let (name, at) = (directive.name_text().into_owned(), directive.at.clone());
            return Err(ConfError::ArgumentCount { name, at });
        };
        let path = self.source.resolve(&String::from_utf8_lossy(pattern));
        if !pattern.iter().any(|byte| b"*?[".contains(byte)) {
            return self.file(&path, Some(&directive.at), depth + 1, into);
        }
        let found = self.source.glob(&path.to_string_lossy());
        let found = found.map_err(|error| ConfError::Glob {
            pattern: path.display().to_string(),
            reason: os_error(&error),
            at: directive.at.clone(),
        })?;
        for path in found {
            self.file(&path, Some(&directive.at), depth + 1, into)?;
        }
        Ok(())
    }
}

/// Takes from what is left of something.
fn take(
    left: &mut usize,
    count: usize,
    max: usize,
    what: &'static str,
    at: &Position,
) -> Result<(), ConfError> {
    let rest = left.checked_sub(count);
    *left = rest.ok_or_else(|| ConfError::TooMuch { what, max, at: at.clone() })?;
    Ok(())
}

fn bound_depth(depth: usize, at: &Position) -> Result<(), ConfError> {
    if depth < DEPTH_MAX {
        return Ok(());
    }
    Err(ConfError::TooDeep { max: DEPTH_MAX, at: at.clone() })
}

fn directive(words: Words, file: &Arc<Path>) -> Directive {
    let Words { name, args, line } = words;
    Directive { name, args, block: None, at: Position { file: Arc::clone(file), line } }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Default)]
    pub(crate) struct Files(BTreeMap<&'static str, &'static str>);

    impl Source for Files {
        fn read(&self, path: &Path) -> io::Result<Bytes> {
            let text = path.to_str().and_then(|path| self.0.get(path));
            text.map(|text| Bytes::from_static(text.as_bytes()))
                .ok_or_else(|| io::Error::from_raw_os_error(2))
        }
        fn glob(&self, pattern: &str) -> io::Result<Vec<PathBuf>> {
            if pattern == "endless*" {
                return Err(io::Error::other("no end"));
            }
            let folder = pattern.split('*').next().unwrap_or_default();
            Ok(self.0.keys().filter(|name| name.starts_with(folder)).map(PathBuf::from).collect())
        }
        fn resolve(&self, path: &str) -> PathBuf {
            path.into()
        }
    }

    pub(crate) fn outline(directives: &[Directive]) -> String {
        let one = |d: &Directive| {
            let args: Vec<_> = d.args.iter().map(|a| String::from_utf8_lossy(a)).collect();
            let block = d.block.as_ref().map(|b| format!("{{{}}}", outline(b)));
            format!("{}({}){}", d.name_text(), args.join(","), block.unwrap_or_default())
        };
        directives.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    fn run(files: &[(&'static str, &'static str)]) -> Result<String, String> {
        let source = Files(files.iter().copied().collect());
        parse(&source, Path::new("main"))
            .map(|tree| outline(&tree.directives))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn blocks_nest_and_includes_are_spliced_in_order() {
        let files = [
            ("main", "user a; http { include conf.d/*.conf; server { listen 80; } }"),
            ("conf.d/a.conf", "gzip on;"),
            ("conf.d/b.conf", "include more;"),
            ("more", "etag off;"),
        ];
        let expected = "user(a) http(){gzip(on) etag(off) server(){listen(80)}}";
        assert_eq!(run(&files).unwrap(), expected);
    }

    #[test]
    fn lua_is_skipped() {
        let lua = r#"content_by_lua_block {
            -- a comment with }
            --[==[ a long one }
            ]] } ]==]
            local t = { a = "}", b = '\'}', c = [[}]], d = { } } local x = t[1]
        } b;"#;
        assert_eq!(run(&[("main", lua)]).unwrap(), "content_by_lua_block(){} b()");
        let end = "unexpected end of file, expecting \"}\" in main:1";
        for text in [
            "a_by_lua_block { \"}",
            "a_by_lua_block { [[ } ",
            "a_by_lua_block { -- }",
            "a_by_lua_block { '\\",
        ] {
            assert_eq!(run(&[("main", text)]).unwrap_err(), end, "{text}");
        }
    }

    #[test]
    fn a_parameter_has_whole_lines_and_no_blocks() {
        let source = Files(BTreeMap::new());
        let read = |text| {
            let read = parse_global(&source, text).map(|lines| outline(&lines));
            read.unwrap_or_else(|error| error.to_string())
        };
        assert_eq!(read("a 1; b;"), "a(1) b()");
        assert_eq!(read(" # c"), "");
        let end = "unexpected end of parameter, expecting \";\" in command line:1";
        assert_eq!(read("a 1"), end);
        assert_eq!(read("a \"1"), end);
        let block = "block directives are not supported in -g option in command line:1";
        assert_eq!(read("a; events { }"), block);
        assert_eq!(read("}"), "unexpected \"}\" in command line:1");
    }

    #[test]
    fn a_glob_without_match_is_silent_but_a_missing_file_is_not() {
        assert_eq!(run(&[("main", "a; include none/*.conf;")]).unwrap(), "a()");
        assert_eq!(
            run(&[("main", "a;\ninclude none;")]).unwrap_err(),
            "open() \"none\" failed (2: No such file or directory) in main:2"
        );
    }

    #[test]
    fn unbalanced_braces_and_self_inclusion_are_refused() {
        assert_eq!(
            run(&[("main", "a {\nb;")]).unwrap_err(),
            "unexpected end of file, expecting \"}\" in main:2"
        );
        assert_eq!(run(&[("main", "a; }")]).unwrap_err(), "unexpected \"}\" in main:1");
        assert_eq!(
            run(&[("main", "include main;")]).unwrap_err(),
            "blocks and includes nest deeper than 100 levels in main:1"
        );
    }

    #[test]
    fn what_has_no_end_is_refused() {
        assert_eq!(
            run(&[("main", "a;\ninclude endless*;")]).unwrap_err(),
            "glob() \"endless*\" failed (no end) in main:2"
        );
        // Each of fifty files includes the next one twice.
        let mut files: Vec<(&'static str, &'static str)> =
            vec![("main", "include 0;"), ("50", "a;")];
        for at in 0..50 {
            let (name, next) = (at.to_string(), at + 1);
            files.push((name.leak(), format!("include {next};\ninclude {next};").leak()));
        }
        assert_eq!(
            run(&files).unwrap_err(),
            "the configuration has more than 100000 files, included ones counted each time, in 49:2"
        );
    }

    #[test]
    fn a_file_that_is_included_often_is_kept_once() {
        let source = Files([("main", "include a; include a; include a;"), ("a", "b;")].into());
        let tree = parse(&source, Path::new("main")).unwrap();
        assert_eq!((tree.directives.len(), tree.files.len()), (3, 2));
    }
}
