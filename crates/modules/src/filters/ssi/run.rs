//! A page whose commands are carried out.

use super::parse::{Command, Condition, Parser, Token, condition};
use super::{Conf, TIME_FORMAT, time};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::SystemTime;
use yorozu_http::uri;
use yorozu_kernel::base::limits;
use yorozu_kernel::base::turn::unix_seconds_of;
use yorozu_kernel::config::regex::Regex;
use yorozu_kernel::exchange::response::Body;
use yorozu_kernel::exchange::stream::{self, Sink, Stream, Torn};
use yorozu_kernel::exchange::subrequests::Ahead;
use yorozu_kernel::exchange::variables::Variable;
use yorozu_kernel::exchange::{Exchange, evaluate};
use yorozu_kernel::logging::error::{self, Level};

/// What all pages of one answer share.
#[derive(Debug, Default)]
pub struct SsiState {
    /// What `set` and `include set` made.
    variables: HashMap<String, Bytes>,
    /// What `block` kept.
    blocks: HashMap<String, Bytes>,
    /// Bytes of both.
    bytes: usize,
}

impl SsiState {
    /// Keeps a value in the place of an older one.
    fn keep(
        &mut self,
        among: fn(&mut Self) -> &mut HashMap<String, Bytes>,
        name: String,
        value: Bytes,
    ) -> Done {
        let older = among(self).get(&name).map_or(0, Bytes::len);
        let bytes = self.bytes - older + value.len();
        if bytes > limits::SSI_KEPT_BYTES {
            return Err(failure(format!("too long value of \"{name}\" in a page with SSI")));
        }
        self.bytes = bytes;
        among(self).insert(name, value);
        Ok(())
    }
}

/// A part of the answer, in order.
enum Part {
    Text(Bytes),
    Included(Box<Stream>),
    /// It is made when it is its turn.
    Later(Included),
}

/// What is to be included.
struct Included {
    asked: Box<Exchange>,
    stub: Option<Bytes>,
}

impl Included {
    fn begin(mut self, ahead: Option<Ahead>) -> Stream {
        // The page it stands in ends with the client, and this with the page.
        stream::made_by(std::future::pending(), |sink| async move {
            let _ahead = ahead;
            let (status, mut stream) = (self.asked.conf.engine.content)(&mut self.asked).await;
            // As nginx: of content that is said to be empty nothing passes its filter.
            let is_filtered = status >= 300 || stream.announced != Some(0);
            match (stream.next_bytes().await?, self.stub) {
                (Some(first), _) => {
                    sink.put(first).await?;
                    sink.append(&mut stream).await
                }
                (None, Some(stub)) => show(stub, &mut self.asked, is_filtered, sink).await,
                (None, None) => Ok(()),
            }
        })
    }
}

/// A block in the place of what was asked for: its commands are carried out there, if the location has `ssi`.
async fn show(
    block: Bytes,
    asked: &mut Exchange,
    is_filtered: bool,
    sink: Sink,
) -> Result<(), Torn> {
    let config = Rc::clone(&asked.conf);
    let conf = config.location(asked.location).of::<Conf>();
    if conf.ssi && is_filtered {
        Page::new(asked, conf).run(Body::Memory(block).into_stream(), sink).await
    } else {
        sink.put(block).await
    }
}

/// Where the page stands among `if`, `elif` and `else`.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Branch {
    /// Outside.
    None,
    If,
    Else,
}

/// A page on its way.
pub struct Page {
    exchange: Exchange,
    shared: Rc<RefCell<SsiState>>,
    parser: Parser,
    is_silent: bool,
    error_text: Bytes,
    time_format: String,
    branch: Branch,
    /// Whether what stands here is shown.
    is_shown: bool,
    /// Whether a branch was shown already.
    is_chosen: bool,
    /// The block that is being kept, with its commands as they stand there.
    block: Option<(String, Vec<u8>)>,
    parts: VecDeque<Part>,
    /// Bytes of the texts among them.
    text_bytes: usize,
}

/// Why a command failed; `None` if that is logged already.
struct Failure(Option<String>);

type Done = Result<(), Failure>;

fn failure(text: impl Into<String>) -> Failure {
    Failure(Some(text.into()))
}

impl Page {
    pub fn new(exchange: &mut Exchange, conf: &Conf) -> Self {
        let shared = Rc::clone(&exchange.states.of::<Rc<RefCell<SsiState>>>());
        exchange.subrequests.share();
        let mut page = exchange.shadow();
        page.charset.clone_from(&exchange.charset);
        page.request_id = (*exchange.id()).into();
        page.upstream_fields = Rc::clone(&exchange.upstream_fields);
        Self {
            exchange: page,
            shared,
            parser: Parser::new(conf.ssi_value_length.bytes()),
            is_silent: conf.ssi_silent_errors,
            error_text: Bytes::from_static(b"[an error occurred while processing the directive]"),
            time_format: TIME_FORMAT.to_owned(),
            branch: Branch::None,
            is_shown: true,
            is_chosen: false,
            block: None,
            parts: VecDeque::new(),
            text_bytes: 0,
        }
    }

    /// Carries out the commands of `content` to its end.
    ///
    /// # Errors
    /// It broke off, or has no reader any more.
    pub async fn run(mut self, mut content: Stream, sink: Sink) -> Result<(), Torn> {
        let mut tokens = Vec::new();
        while let Some(bytes) = content.next_bytes().await? {
            self.parser.push(&bytes, &mut tokens);
            for token in tokens.drain(..) {
                self.token(token, &sink).await?;
                // Others have their turn too, however many commands one page has.
                tokio::task::consume_budget().await;
                if self.text_bytes > limits::MADE_AHEAD_BYTES {
                    self.hand_over(&sink).await?;
                }
            }
            self.hand_over(&sink).await?;
        }
        self.parser.finish(&mut tokens);
        for token in tokens {
            self.token(token, &sink).await?;
        }
        self.hand_over(&sink).await?;
        sink.note(&mut content);
        Ok(())
    }

    /// Lets the answer have what is made so far, in order.
    async fn hand_over(&mut self, sink: &Sink) -> Result<(), Torn> {
        self.text_bytes = 0;
        while let Some(part) = self.parts.pop_front() {
            match part {
                Part::Text(text) => sink.put(text).await?,
                Part::Included(mut stream) => sink.append(&mut stream).await?,
                Part::Later(included) => sink.append(&mut included.begin(None)).await?,
            }
        }
        Ok(())
    }

    fn put(&mut self, text: Bytes) {
        match &mut self.block {
            // What is too long is refused at its end.
            Some((_, kept)) if kept.len() > limits::SSI_KEPT_BYTES => {}
            Some((_, kept)) => kept.extend_from_slice(&text),
            None if text.is_empty() => {}
            None => {
                self.text_bytes += text.len();
                self.parts.push_back(Part::Text(text));
            }
        }
    }

    async fn token(&mut self, token: Token, sink: &Sink) -> Result<(), Torn> {
        let result = match token {
            Token::Text(text) => {
                if self.is_shown {
                    self.put(text);
                }
                Ok(())
            }
            Token::Broken(why) => Err(failure(why)),
            Token::Command(command) => self.command(&command, sink).await?,
        };
        if let Err(Failure(text)) = result.as_ref() {
            if self.is_shown {
                if let Some(text) = text {
                    error::request(&self.exchange, Level::Error, text);
                }
                if !self.is_silent {
                    self.put(self.error_text.clone());
                }
            }
        }
        Ok(())
    }

    async fn command(&mut self, command: &Command, sink: &Sink) -> Result<Done, Torn> {
        if self.block.is_some() && command.name != "endblock" {
            // It is carried out where the block is shown. As nginx: one that there is not is left out.
            if COMMANDS.iter().any(|(known, ..)| *known == command.name) {
                self.put(command.source.clone());
            }
            return Ok(Ok(()));
        }
        if let Err(failure) = check(command) {
            return Ok(Err(failure));
        }
        Ok(match &*command.name {
            "if" => self.begin_if(command),
            "elif" => self.elif(command),
            "else" => self.else_(),
            "endif" => self.endif(),
            _ if !self.is_shown => Ok(()),
            "include" => return self.include(command, sink).await,
            "echo" => self.echo(command),
            "set" => self.set(command),
            "config" => self.config(command),
            "block" => {
                let name = command.get("name").unwrap_or_default();
                self.block = Some((String::from_utf8_lossy(name).into_owned(), Vec::new()));
                Ok(())
            }
            _ => match self.block.take() {
                // As nginx: of several with one name the first is found.
                Some((name, text)) if !self.shared.borrow().blocks.contains_key(&name) => {
                    self.keep(|shared| &mut shared.blocks, name, text.into())
                }
                _ => Ok(()),
            },
        })
    }

    fn keep(
        &self,
        among: fn(&mut SsiState) -> &mut HashMap<String, Bytes>,
        name: String,
        value: Bytes,
    ) -> Done {
        self.shared.borrow_mut().keep(among, name, value)
    }

    fn begin_if(&mut self, command: &Command) -> Done {
        if self.branch != Branch::None {
            return Err(failure("the \"if\" command inside the \"if\" command"));
        }
        self.is_shown = self.holds(command.get("expr").unwrap_or_default())?;
        self.is_chosen = self.is_shown;
        self.branch = Branch::If;
        Ok(())
    }

    fn elif(&mut self, command: &Command) -> Done {
        if self.branch != Branch::If {
            return Err(failure("invalid context of SSI command: \"elif\""));
        }
        self.is_shown = !self.is_chosen && self.holds(command.get("expr").unwrap_or_default())?;
        self.is_chosen |= self.is_shown;
        Ok(())
    }

    fn else_(&mut self) -> Done {
        if self.branch != Branch::If {
            return Err(failure("invalid context of SSI command: \"else\""));
        }
        self.branch = Branch::Else;
        self.is_shown = !self.is_chosen;
        Ok(())
    }

    fn endif(&mut self) -> Done {
        if self.branch == Branch::None {
            return Err(failure("invalid context of SSI command: \"endif\""));
        }
        self.branch = Branch::None;
        (self.is_shown, self.is_chosen) = (true, false);
        Ok(())
    }

    fn holds(&mut self, expr: &[u8]) -> Result<bool, Failure> {
        let shown = || error::verbatim(expr);
        let read = condition(expr).map_err(|why| failure(format!("{why} in \"{}\"", shown())))?;
        Ok(match read {
            Condition::Some(text) => !self.expand(&text.to_ascii_lowercase())?.is_empty(),
            Condition::Equal(left, right, is_equal) => {
                let left = self.expand(&left.to_ascii_lowercase())?;
                (left == self.expand(right)?) == is_equal
            }
            Condition::Match(left, pattern, is_equal) => {
                let subject = self.expand(&left.to_ascii_lowercase())?;
                let pattern = self.expand(pattern)?;
                let regex = Regex::plain(&pattern).map_err(|error| failure(error.0))?;
                let captures = regex.captures(&subject).map_err(|why| {
                    failure(format!("pcre2_match() failed: {} in \"{}\"", why.code, shown()))
                })?;
                let is_match = captures.is_some();
                if let Some(captures) = captures {
                    for (group, name) in regex.names() {
                        let (name, value) = (name.to_ascii_lowercase(), captures.group(*group));
                        self.keep(|shared| &mut shared.variables, name, value)?;
                    }
                    self.exchange.captures = captures;
                }
                is_match == is_equal
            }
        })
    }

    async fn include(&mut self, command: &Command, sink: &Sink) -> Result<Done, Torn> {
        let (path, args) = match self.target(command) {
            Ok(target) => target,
            Err(failure) => return Ok(Err(failure)),
        };
        let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_ascii_lowercase();
        let stub = match command.get("stub").map(String::from_utf8_lossy) {
            None => None,
            Some(stub) => {
                let block = self.shared.borrow().blocks.get(&*stub).cloned();
                if block.is_none() {
                    let text = format!("\"stub\"=\"{stub}\" for \"include\" not found");
                    return Ok(Err(failure(text)));
                }
                block
            }
        };
        let Some(asked) = self.exchange.subrequest(&path) else { return Ok(Err(Failure(None))) };
        let mut asked = Box::new(asked);
        asked.args = args;
        asked.redirects.has_stub = stub.is_some();
        *asked.states.of() = Rc::clone(&self.shared);
        asked.charset.clone_from(&self.exchange.charset);
        if let Some(variable) = command.get("set") {
            self.hand_over(sink).await?;
            let (status, mut stream) = (asked.conf.engine.content)(&mut asked).await;
            let mut value = Vec::new();
            while let Some(bytes) = stream.next_bytes().await? {
                value.extend_from_slice(&bytes);
                if value.len() > limits::SSI_KEPT_BYTES {
                    break;
                }
            }
            let value = if status < 300 { value.into() } else { Bytes::new() };
            return Ok(self.keep(|shared| &mut shared.variables, name(variable), value));
        }
        let ahead = asked.subrequests.ahead();
        let included = Included { asked, stub };
        self.parts.push_back(match ahead {
            Some(ahead) => Part::Included(Box::new(included.begin(Some(ahead)))),
            None => Part::Later(included),
        });
        if command.get("wait").is_some_and(|wait| wait.eq_ignore_ascii_case(b"yes")) {
            self.hand_over(sink).await?;
        }
        Ok(Ok(()))
    }

    /// Path and arguments of what is to be included.
    fn target(&mut self, command: &Command) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let text = match (command.get("virtual"), command.get("file")) {
            (Some(text), None) | (None, Some(text)) => text,
            (Some(path), Some(file)) => {
                let [path, file] = [path, file].map(error::verbatim);
                return Err(failure(format!(
                    "inclusion may be either virtual=\"{path}\" or file=\"{file}\""
                )));
            }
            (None, None) => return Err(failure("no parameter in \"include\" SSI command")),
        };
        if command.get("set").is_some() && command.get("stub").is_some() {
            return Err(failure(
                "\"set\" and \"stub\" cannot be used together in \"include\" SSI command",
            ));
        }
        if let Some(wait) = command.get("wait") {
            let is = |word: &[u8]| wait.eq_ignore_ascii_case(word);
            if let Some(file) = command.get("file").map(error::verbatim) {
                return Err(failure(format!("\"wait\" cannot be used with file=\"{file}\"")));
            }
            if !is(b"yes") && !is(b"no") {
                let wait = error::verbatim(wait);
                return Err(failure(format!("invalid value \"{wait}\" in the \"wait\" parameter")));
            }
        }
        let mut target = self.expand(text)?;
        if !target.starts_with(b"/") {
            let uri = &self.exchange.uri;
            let folder = uri.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
            target = [&uri[..folder], &target].concat();
        }
        match uri::parse_unsafe(&target) {
            Some(parts) => Ok((parts.path, parts.args.unwrap_or_default())),
            None => {
                let target = error::verbatim(&target);
                Err(failure(format!("unsafe URI \"{target}\" was detected")))
            }
        }
    }

    fn echo(&mut self, command: &Command) -> Done {
        let name = command.get("var").unwrap_or_default();
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let value = match self.variable(&name) {
            Some(value) => value,
            None => command.get("default").unwrap_or(b"(none)").to_vec(),
        };
        if matches!(&self.block, Some((_, kept)) if kept.len() > limits::SSI_KEPT_BYTES) {
            return Ok(());
        }
        let mut out = Vec::with_capacity(value.len());
        let encoding = command.get("encoding").unwrap_or(b"entity");
        match encoding {
            b"none" => out = value,
            b"url" => uri::escape_into(&mut out, &value, uri::Escape::Html),
            _ => escape_entities(&value, &mut out),
        }
        if !matches!(encoding, b"none" | b"url" | b"entity") {
            // As nginx: the value is shown all the same.
            let encoding = error::verbatim(encoding);
            let text = format!("unknown encoding \"{encoding}\" in the \"echo\" command");
            error::request(&self.exchange, Level::Error, &text);
        }
        self.put(out.into());
        Ok(())
    }

    fn set(&mut self, command: &Command) -> Done {
        let name = command.get("var").unwrap_or_default();
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let value = self.expand(command.get("value").unwrap_or_default())?;
        self.keep(|shared| &mut shared.variables, name, value.into())
    }

    fn config(&mut self, command: &Command) -> Done {
        if let Some(text) = command.get("errmsg") {
            self.error_text = Bytes::copy_from_slice(text);
        }
        if let Some(form) = command.get("timefmt") {
            self.time_format = String::from_utf8_lossy(form).into_owned();
        }
        Ok(())
    }

    fn variable(&mut self, name: &str) -> Option<Vec<u8>> {
        let value = self.shared.borrow().variables.get(name).map(|value| value.to_vec());
        if value.is_some() {
            return value;
        }
        if let Ok(group) = name.parse::<usize>() {
            return self.exchange.captures.get(group).map(<[u8]>::to_vec);
        }
        if let "date_local" | "date_gmt" = name {
            let now = unix_seconds_of(SystemTime::now());
            return Some(time(&self.time_format, now, name == "date_local").into_bytes());
        }
        let conf = Rc::clone(&self.exchange.conf);
        let variable: Variable = evaluate::by_name(&conf, name)?;
        let mut out = Vec::new();
        variable.append(&mut self.exchange, &mut out).then_some(out)
    }

    /// The text with the values of its variables; a backslash takes a dollar, a quote and a backslash their meaning.
    fn expand(&mut self, text: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut out = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            if *byte == b'\\' {
                let Some((escaped, after)) = after.split_first() else { break };
                if !b"\\'\"$".contains(escaped) {
                    out.push(b'\\');
                }
                out.push(*escaped);
                rest = after;
            } else if *byte != b'$' {
                out.push(*byte);
            } else {
                let (inner, is_braced) = match after.strip_prefix(b"{") {
                    Some(inner) => (inner, true),
                    None => (after, false),
                };
                let is_in = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                let end = inner.iter().position(|byte| !is_in(byte)).unwrap_or(inner.len());
                if end == 0 && !is_braced {
                    // The end of a regex, or a price.
                    out.push(b'$');
                    continue;
                }
                if is_braced && end > 0 && inner.get(end) != Some(&b'}') {
                    let name = error::verbatim(&inner[..end]);
                    let text = format!("the closing bracket in \"{name}\" variable is missing");
                    return Err(failure(text));
                }
                if end == 0 {
                    let text = error::verbatim(text);
                    return Err(failure(format!("invalid variable name in \"{text}\"")));
                }
                let name = String::from_utf8_lossy(&inner[..end]).to_ascii_lowercase();
                out.extend(self.variable(&name).unwrap_or_default());
                if out.len() > limits::SSI_KEPT_BYTES {
                    let text = error::verbatim(text);
                    return Err(failure(format!("too long value of \"{text}\"")));
                }
                rest = &inner[end + usize::from(is_braced)..];
            }
        }
        Ok(out)
    }
}

/// Commands with the parameters they need, and those they may have.
const COMMANDS: [(&str, &[&str], &[&str]); 10] = [
    ("include", &[], &["virtual", "file", "wait", "set", "stub"]),
    ("echo", &["var"], &["default", "encoding"]),
    ("config", &[], &["errmsg", "timefmt"]),
    ("set", &["var", "value"], &[]),
    ("if", &["expr"], &[]),
    ("elif", &["expr"], &[]),
    ("else", &[], &[]),
    ("endif", &[], &[]),
    ("block", &["name"], &[]),
    ("endblock", &[], &[]),
];

fn check(command: &Command) -> Done {
    let name = &*command.name;
    let Some((_, needed, others)) = COMMANDS.iter().find(|(known, ..)| *known == name) else {
        return Err(failure(format!("invalid SSI command: \"{name}\"")));
    };
    for (index, (parameter, _)) in command.parameters.iter().enumerate() {
        if command.parameters[..index].iter().any(|(before, _)| before == parameter) {
            return Err(failure(format!(
                "duplicate \"{parameter}\" parameter in \"{name}\" SSI command"
            )));
        }
        if !needed.iter().chain(*others).any(|known| known == parameter) {
            let text = format!("invalid parameter name: \"{parameter}\" in \"{name}\" SSI command");
            return Err(failure(text));
        }
    }
    match needed.iter().find(|needed| command.get(needed).is_none()) {
        Some(missing) => Err(failure(format!(
            "mandatory \"{missing}\" parameter is absent in \"{name}\" SSI command"
        ))),
        None => Ok(()),
    }
}

fn escape_entities(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            byte => out.push(*byte),
        }
    }
}
