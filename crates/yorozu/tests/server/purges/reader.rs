//! Those who ask for pages, over HTTP/1.1 and HTTP/2.

use super::answer::{Answer, Ask, check};
use super::origin::Head;
use super::site::{LANGUAGES, Page, Validator, Vary};
use super::{PATIENCE, Round};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

type Known = HashMap<(usize, usize), String>;

fn any_ask(page: &Page, draw: &mut fastrand::Rng, known: &Known) -> Ask {
    let mut codings = Vec::new();
    if draw.bool() {
        codings.extend(["gzip", "br", "zstd"].into_iter().filter(|_| draw.bool()));
    }
    let language = draw.usize(..LANGUAGES.len());
    let method = if draw.u8(..16) == 0 { "HEAD" } else { "GET" };
    let validator = known.get(&(page.number, page.language(language))).cloned();
    let mut ask = Ask {
        method,
        language,
        range: None,
        if_range: None,
        condition: None,
        floors: page.floors(method, language, &codings),
        codings,
    };
    match draw.u8(..16) {
        0..3 if method == "GET" => {
            let length = page.length(page.version());
            let (one, other) = (draw.usize(..length), draw.usize(..length));
            ask.range = Some(match draw.u8(..6) {
                0 => format!("bytes=-{}", one + 1),
                1 => format!("bytes={one}-"),
                _ => format!("bytes={}-{}", one.min(other), one.max(other)),
            });
            ask.if_range = validator.filter(|_| draw.bool());
        }
        3..5 => {
            let name = match page.validator {
                Validator::Etag => "if-none-match",
                _ => "if-modified-since",
            };
            ask.condition = validator.map(|validator| (name, validator));
        }
        _ => {}
    }
    ask
}

impl Ask {
    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("x-lang", LANGUAGES[self.language].to_owned())];
        if !self.codings.is_empty() {
            fields.push(("accept-encoding", self.codings.join(", ")));
        }
        fields.extend(self.range.clone().map(|range| ("range", range)));
        fields.extend(self.if_range.clone().map(|condition| ("if-range", condition)));
        fields.extend(self.condition.clone());
        fields
    }
}

/// What one request came to.
enum End {
    Answered(Answer),
    /// The connection was gone before an answer began.
    Unanswered,
    /// The reader left.
    Left,
}

/// A kept connection over HTTP/1.1.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) async fn open(port: u16) -> Option<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self(BufReader::new(stream)))
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, String)],
        content: &[u8],
    ) -> Option<()> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: a.test\r\n");
        for (name, value) in fields {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !matches!(method, "GET" | "HEAD") {
            text.push_str(&format!("Content-Length: {}\r\n", content.len()));
        }
        text.push_str("\r\n");
        let bytes = [text.as_bytes(), content].concat();
        self.0.write_all(&bytes).await.ok()
    }

    /// `None`: there was no head. What is `taken` of the content is bounded, and `pause` is waited between
    /// its parts.
    pub(crate) async fn answer(
        &mut self,
        is_head: bool,
        taken: usize,
        pause: Duration,
    ) -> Option<Answer> {
        let head = Head::read(&mut self.0).await?;
        let status = head.first.split(' ').nth(1)?.parse().ok()?;
        let mut answer = Answer { status, fields: head.fields, ..Answer::default() };
        let is_empty = is_head || matches!(answer.status, 204 | 304);
        answer.is_whole = is_empty || self.content(&mut answer, taken, pause).await.is_some();
        Some(answer)
    }

    async fn content(&mut self, answer: &mut Answer, taken: usize, pause: Duration) -> Option<()> {
        if answer.field("transfer-encoding").is_none() {
            let length = answer.field("content-length")?.parse().ok()?;
            return self.exactly(&mut answer.body, length, taken, pause).await;
        }
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).await.ok()?;
            let size = usize::from_str_radix(line.trim_end(), 16).ok()?;
            self.exactly(&mut answer.body, size, taken, pause).await?;
            self.0.read_line(&mut line).await.ok()?;
            if size == 0 {
                return line.ends_with("\r\n").then_some(());
            }
        }
    }

    async fn exactly(
        &mut self,
        out: &mut Vec<u8>,
        count: usize,
        taken: usize,
        pause: Duration,
    ) -> Option<()> {
        let mut left = count;
        while left > 0 {
            if out.len() > taken {
                return None;
            }
            let mut piece = vec![0; left.min(64 * 1024)];
            let count = self.0.read(&mut piece).await.ok().filter(|count| *count > 0)?;
            out.extend_from_slice(&piece[..count]);
            left -= count;
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        Some(())
    }
}

async fn ask_h1(
    connection: &mut Option<Connection>,
    port: u16,
    page: &Page,
    ask: &Ask,
    draw: &mut fastrand::Rng,
) -> End {
    if connection.is_none() {
        *connection = Connection::open(port).await;
    }
    let Some(open) = connection else { return End::Unanswered };
    let taken = if draw.u8(..25) == 0 { draw.usize(..100_000) } else { usize::MAX };
    let pause = if draw.u8(..8) == 0 { draw.u64(..8) } else { 0 };
    let sent = open.send(ask.method, &page.path(), &ask.fields(), b"").await;
    let answer = match sent {
        Some(()) => open.answer(ask.method == "HEAD", taken, Duration::from_millis(pause)).await,
        None => None,
    };
    let is_kept = answer
        .as_ref()
        .is_some_and(|answer| answer.is_whole && answer.field("connection") != Some("close"));
    if !is_kept {
        *connection = None;
    }
    match answer {
        None => End::Unanswered,
        Some(answer) if !answer.is_whole && answer.body.len() > taken => End::Left,
        Some(answer) => End::Answered(answer),
    }
}

impl Round {
    /// Counts an answer, and says what is wrong with it.
    fn judge(&self, page: &Page, ask: &Ask, end: End, before: u64, way: &str) -> Option<String> {
        let is_disturbed = before % 2 == 1 || self.server.disturbance() != before;
        let answer = match end {
            End::Answered(answer) => Ok(answer),
            End::Left => Err("left"),
            End::Unanswered => Err("unanswered"),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(what) => {
                self.count(what);
                return None;
            }
        };
        self.answers.fetch_add(1, Ordering::Relaxed);
        let cache = answer.field("x-cache").unwrap_or("-");
        self.count(&format!("{way} {}", answer.status));
        self.count(cache);
        match check(page, ask, &answer) {
            Ok(good) if good.kind == "broken" && !page.is_troubled && !is_disturbed => {
                let Answer { status, fields, body, problem, .. } = &answer;
                let head = (status, fields, body.len(), problem);
                self.wrong(format!("{way} {}: broken {head:?} of {ask:?}", page.path()));
            }
            Ok(good) => {
                let is_fresh = cache == "HIT" && answer.status == 200 && answer.is_whole;
                if is_fresh && !self.has_other_zones && page.length(0) < self.memory_body_max {
                    // A client that asked earlier may have read what that purge kept from being stored.
                    page.was_fresh(ask.method, ask.language, &ask.codings, ask.floors.any);
                }
                self.count(good.kind);
                return good.validator;
            }
            Err(problem) => {
                let head = (answer.status, &answer.fields, answer.is_whole);
                self.wrong(format!(
                    "{way} {}: {problem}\n    {ask:?}\n    {head:?}\n    {page:.0?}",
                    page.path()
                ));
            }
        }
        None
    }
}

fn keep(known: &mut Known, page: &Page, ask: &Ask, validator: Option<String>) {
    // An old one now and then.
    if let Some(validator) = validator {
        if page.vary != Vary::Coding || ask.codings.contains(&"gzip") {
            known.insert((page.number, page.language(ask.language)), validator);
        }
    }
}

pub(crate) async fn read_h1(round: Arc<Round>, mut draw: fastrand::Rng) {
    let (mut connection, mut known) = (None, Known::new());
    while !round.is_over() {
        let page = round.site.any(&mut draw);
        let before = round.server.disturbance();
        let ask = any_ask(page, &mut draw, &known);
        let asked = ask_h1(&mut connection, round.server.port, page, &ask, &mut draw);
        let Ok(end) = tokio::time::timeout(PATIENCE, asked).await else {
            round.wrong(format!("no answer to {ask:?} for {}", page.path()));
            connection = None;
            continue;
        };
        if matches!(end, End::Unanswered) {
            tokio::task::yield_now().await;
        }
        let validator = round.judge(page, &ask, end, before, "1.1");
        keep(&mut known, page, &ask, validator);
    }
}

type Sender = h2::client::SendRequest<Bytes>;

async fn open_h2(port: u16) -> Option<Sender> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 20)
        .initial_connection_window_size(1 << 22)
        .handshake(stream)
        .await
        .ok()?;
    tokio::spawn(connection);
    Some(sender)
}

async fn ask_h2(sender: &mut Sender, page: &Page, ask: &Ask) -> Option<Answer> {
    let mut request =
        http::Request::builder().method(ask.method).uri(format!("http://a.test{}", page.path()));
    for (name, value) in ask.fields() {
        request = request.header(name, value);
    }
    let mut sender = sender.clone().ready().await.ok()?;
    let (response, _) = sender.send_request(request.body(()).unwrap(), true).ok()?;
    let (head, mut content) = response.await.ok()?.into_parts();
    let mut answer = Answer { status: head.status.as_u16(), is_whole: true, ..Answer::default() };
    for (name, value) in &head.headers {
        answer.fields.push((name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()));
    }
    while let Some(piece) = content.data().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(problem) => {
                (answer.is_whole, answer.problem) = (false, Some(problem.to_string()));
                break;
            }
        };
        let _ = content.flow_control().release_capacity(piece.len());
        answer.body.extend_from_slice(&piece);
    }
    Some(answer)
}

pub(crate) async fn read_h2(round: Arc<Round>, mut draw: fastrand::Rng) {
    let (mut connection, mut known) = (None, Known::new());
    while !round.is_over() {
        if connection.is_none() || draw.u8(..50) == 0 {
            connection = open_h2(round.server.h2_port).await;
        }
        let Some(sender) = &mut connection else {
            tokio::task::yield_now().await;
            continue;
        };
        let before = round.server.disturbance();
        let pages = [round.site.any(&mut draw), round.site.any(&mut draw)];
        let asks = pages.map(|page| any_ask(page, &mut draw, &known));
        let mut other = sender.clone();
        let both = async {
            tokio::join!(ask_h2(sender, pages[0], &asks[0]), ask_h2(&mut other, pages[1], &asks[1]))
        };
        let Ok((one, two)) = tokio::time::timeout(PATIENCE, both).await else {
            round.wrong(format!("no answer to {asks:?}"));
            connection = None;
            continue;
        };
        for ((page, ask), answer) in pages.into_iter().zip(&asks).zip([one, two]) {
            if answer.is_none() {
                connection = None;
            }
            let end = answer.map_or(End::Unanswered, End::Answered);
            let validator = round.judge(page, ask, end, before, "h2");
            keep(&mut known, page, ask, validator);
        }
    }
}
