//! The origin: its answers are made from the version of when it was asked, and some take their time.

use super::Round;
use super::site::{LANGUAGES, Page, Validator, Vary};
use bytes::Bytes;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) first: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| &**value)
    }

    /// Reads a head; names come in lower case.
    pub(crate) async fn read(stream: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut head = Self::default();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 || !line.ends_with('\n') {
                return None;
            }
            let line = line.trim_end();
            match line.split_once(':') {
                _ if head.first.is_empty() => line.clone_into(&mut head.first),
                Some((name, value)) => {
                    head.fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                }
                None => return Some(head),
            }
        }
    }
}

pub(crate) async fn serve(round: Arc<Round>, listener: TcpListener) {
    let mut number = 0;
    while let Ok((stream, _)) = listener.accept().await {
        number += 1;
        let draw = fastrand::Rng::with_seed(round.seed ^ number << 20);
        tokio::spawn(connection(Arc::clone(&round), stream, draw));
    }
}

async fn connection(round: Arc<Round>, stream: TcpStream, mut draw: fastrand::Rng) {
    let mut stream = BufReader::new(stream);
    while let Some(head) = Head::read(&mut stream).await {
        if let Some(length) = head.field("content-length") {
            let mut content = vec![0; length.parse().unwrap()];
            if stream.read_exact(&mut content).await.is_err() {
                return;
            }
        }
        if answer(&round, &head, &mut stream, &mut draw).await.is_none() {
            return;
        }
    }
}

async fn pause(draw: &mut fastrand::Rng, most: u64) {
    tokio::time::sleep(Duration::from_millis(draw.u64(..=most))).await;
}

pub(crate) fn gzip(body: &[u8]) -> Bytes {
    let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    coder.write_all(body).unwrap();
    coder.finish().unwrap().into()
}

/// `None`: the connection ends with it.
async fn answer(
    round: &Round,
    head: &Head,
    stream: &mut BufReader<TcpStream>,
    draw: &mut fastrand::Rng,
) -> Option<()> {
    let mut words = head.first.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    if let Some(said) = head.field("x-do") {
        let text = format!(
            "HTTP/1.1 200 OK\r\nX-Accel-Purge: {said}\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\r\n"
        );
        return stream.write_all(text.as_bytes()).await.ok();
    }
    let page = round.site.at(path)?;
    let version = page.version();
    if page.is_slow {
        pause(draw, 20).await;
    }
    if page.is_troubled && draw.u8(..12) == 0 {
        let text = "HTTP/1.1 500 Trouble\r\nContent-Length: 0\r\n\r\n";
        return stream.write_all(text.as_bytes()).await.ok();
    }
    let asked = head.field("x-lang").unwrap_or_default();
    let language = LANGUAGES.iter().position(|name| *name == asked).unwrap_or(0);
    let language = page.language(language);
    let takes_gzip = head.field("accept-encoding").is_some_and(|text| text.contains("gzip"));
    let is_coded = page.vary == Vary::Coding && takes_gzip;
    let mut text = fields(page, version, language, is_coded);
    let is_known = match page.validator {
        Validator::Etag => {
            head.field("if-none-match") == Some(&page.etag(version, language, is_coded))
        }
        Validator::Modified => head.field("if-modified-since") == Some(&Page::modified(version)),
        Validator::Nothing => false,
    };
    if is_known {
        let text = format!("HTTP/1.1 304 Not Modified\r\n{text}\r\n");
        return stream.write_all(text.as_bytes()).await.ok();
    }
    let mut body = page.body(version, language);
    if is_coded {
        body = gzip(&body);
    }
    text.push_str(&match page.is_chunked {
        true => "Transfer-Encoding: chunked\r\n".to_owned(),
        false => format!("Content-Length: {}\r\n", body.len()),
    });
    stream.write_all(format!("HTTP/1.1 200 OK\r\n{text}\r\n").as_bytes()).await.ok()?;
    let is_torn = page.is_troubled && draw.u8(..10) == 0;
    let end = if is_torn { draw.usize(..body.len()) } else { body.len() };
    if method != "HEAD" {
        let piece = if page.is_slow { 1 + end / 3 } else { 100_000 };
        for piece in body[..end].chunks(piece) {
            let bytes = match page.is_chunked {
                true => [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat(),
                false => piece.to_vec(),
            };
            stream.write_all(&bytes).await.ok()?;
            if page.is_slow {
                pause(draw, 15).await;
            }
        }
        if page.is_chunked && !is_torn {
            stream.write_all(b"0\r\n\r\n").await.ok()?;
        }
    }
    (!is_torn).then_some(())
}

fn fields(page: &Page, version: u64, language: usize, is_coded: bool) -> String {
    let lifetime = match page.is_short_lived {
        true => "max-age=1, stale-while-revalidate=30, stale-if-error=30",
        false => "max-age=600",
    };
    let kind = if page.is_text { "text/html" } else { "application/octet-stream" };
    let validator = match page.validator {
        Validator::Etag => format!("ETag: {}\r\n", page.etag(version, language, is_coded)),
        Validator::Modified => format!("Last-Modified: {}\r\n", Page::modified(version)),
        Validator::Nothing => String::new(),
    };
    let vary = match page.vary {
        Vary::Nothing => "",
        Vary::Language => "Vary: X-Lang\r\n",
        Vary::Coding => "Vary: Accept-Encoding\r\n",
    };
    let coding = if is_coded { "Content-Encoding: gzip\r\n" } else { "" };
    format!(
        "Cache-Control: {lifetime}\r\nContent-Type: {kind}\r\nSurrogate-Key: {}\r\nAccept-Ranges: bytes\r\n\
         X-Version: {version}\r\nX-Language: {}\r\nX-Page: {}\r\n{validator}{vary}{coding}",
        page.tags(),
        LANGUAGES[language],
        page.number,
    )
}
