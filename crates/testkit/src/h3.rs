//! An HTTP/3 client.

use crate::client::{Answer, PATIENCE};
use crate::h2::as_http;
use crate::request::Request;
use crate::tls::Hello;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, TokenMemoryCache, VarInt};
use rustls::ClientConfig as TlsConfig;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use tokio::runtime::Runtime;
use yorozu_wire::h3::frame::{kind, put_control_start, put_head, read_integer, stream_kind};
use yorozu_wire::h3::qpack::{Decoder, put_field, put_prefix};

/// Longest answer of a test, in bytes.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// One connection.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    connection: Connection,
    /// Whether the server has said that it answers no more.
    is_leaving: Arc<AtomicBool>,
    /// Our control stream, which stays open.
    _control: SendStream,
    endpoint: Endpoint,
}

/// A request whose answer has not come yet.
#[derive(Debug)]
pub struct Asked {
    recv: RecvStream,
    _send: SendStream,
}

/// An error, and what it comes of.
fn text(problem: impl std::error::Error) -> String {
    let mut text = problem.to_string();
    let mut cause = problem.source();
    while let Some(problem) = cause {
        text += &format!(": {problem}");
        cause = problem.source();
    }
    text
}

/// What servers gave their clients to prove where they are, by port.
fn tokens(port: u16) -> Arc<TokenMemoryCache> {
    static KNOWN: LazyLock<Mutex<HashMap<u16, Arc<TokenMemoryCache>>>> =
        LazyLock::new(Mutex::default);
    Arc::clone(KNOWN.lock().unwrap().entry(port).or_default())
}

impl Client {
    /// Connects to a server on this machine.
    ///
    /// # Errors
    /// It does not speak HTTP/3.
    pub fn connect(port: u16, settings: &Arc<TlsConfig>, hello: &Hello) -> Result<Self, String> {
        Self::begin(port, settings, hello, None).map(|(client, _)| client)
    }

    /// Connects, and sends a request before the handshake is over, by what is known of one before.
    ///
    /// # Errors
    /// As [`Client::connect`]; or nothing is known.
    pub fn connect_early(
        port: u16,
        settings: &Arc<TlsConfig>,
        hello: &Hello,
        request: &Request,
    ) -> Result<(Self, Asked), String> {
        let (client, asked) = Self::begin(port, settings, hello, Some(request))?;
        Ok((client, asked.ok_or("nothing was asked")?))
    }

    fn begin(
        port: u16,
        settings: &Arc<TlsConfig>,
        hello: &Hello,
        early: Option<&Request>,
    ) -> Result<(Self, Option<Asked>), String> {
        let early = match early {
            Some(request) => Some(stream(request).ok_or("HTTP/3 has no form for it")?),
            None => None,
        };
        // A separate thread: the connection goes on while the test does something else.
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let name = if hello.name.is_empty() { "localhost" } else { &hello.name };
        let crypto = QuicClientConfig::try_from(Arc::clone(settings)).map_err(text)?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.token_store(tokens(port));
        let (endpoint, connection, control, asked) = runtime.block_on(async {
            let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).map_err(text)?;
            let address = (Ipv4Addr::LOCALHOST, port).into();
            let connecting = endpoint.connect_with(config, address, name).map_err(text)?;
            let mut asked = None;
            let connection = match early {
                Some(bytes) => {
                    let (connection, accepted) =
                        connecting.into_0rtt().map_err(|_| "no session is known")?;
                    asked = Some(send(&connection, &bytes).await?);
                    let accepted = tokio::time::timeout(PATIENCE, accepted).await;
                    if !accepted.map_err(text)? {
                        return Err("early data was not taken".to_owned());
                    }
                    connection
                }
                None => {
                    let shaken = tokio::time::timeout(PATIENCE, connecting).await;
                    shaken.map_err(text)?.map_err(text)?
                }
            };
            let mut control = connection.open_uni().await.map_err(text)?;
            let mut settings = Vec::new();
            put_control_start(&mut settings, 0, 0);
            control.write_all(&settings).await.map_err(text)?;
            Ok::<_, String>((endpoint, connection, control, asked))
        })?;
        let is_leaving = Arc::new(AtomicBool::new(false));
        runtime.spawn(listen(connection.clone(), Arc::clone(&is_leaving)));
        Ok((Self { runtime, connection, is_leaving, _control: control, endpoint }, asked))
    }

    /// What a server says to a line of HTTP/0.9.
    ///
    /// # Errors
    /// It does not speak that, or ended before the end.
    pub fn ask_hq(
        port: u16,
        settings: &Arc<TlsConfig>,
        hello: &Hello,
        line: &str,
    ) -> Result<Vec<u8>, String> {
        let client = Self::connect(port, settings, hello)?;
        client.runtime.block_on(async {
            let mut asked = send(&client.connection, line.as_bytes()).await?;
            let read = asked.recv.read_to_end(ANSWER_BYTES_MAX);
            tokio::time::timeout(PATIENCE, read).await.map_err(text)?.map_err(text)
        })
    }

    /// Sends a request with its content.
    ///
    /// # Errors
    /// The connection is over.
    pub fn ask(&mut self, request: &Request) -> Result<Asked, String> {
        let bytes = stream(request).ok_or("HTTP/3 has no form for it")?;
        let connection = self.connection.clone();
        // Where the connection is driven: what is sent leaves together with its end.
        let sending = self.runtime.spawn(async move { send(&connection, &bytes).await });
        self.runtime.block_on(sending).map_err(text)?
    }

    /// The answer.
    ///
    /// # Errors
    /// The connection or the stream ended before its end.
    pub fn answer(&mut self, mut asked: Asked) -> Result<Answer, String> {
        self.runtime.block_on(async {
            let read = asked.recv.read_to_end(ANSWER_BYTES_MAX);
            match tokio::time::timeout(PATIENCE, read).await {
                Ok(read) => parse(&read.map_err(text)?),
                Err(_) => Err("no answer in time".to_owned()),
            }
        })
    }

    /// Whether the server has closed the connection, or will after what is under way.
    pub fn is_over(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed) || self.connection.close_reason().is_some()
    }

    /// Whether the server has asked for fewer acknowledgments.
    pub fn acknowledges_less(&self) -> bool {
        self.connection.stats().frame_rx.ack_frequency > 0
    }

    /// Goes on from another port of an address of this machine, as a client that gets another address does.
    ///
    /// # Errors
    /// The system gives no socket.
    pub fn migrate(&self, address: Ipv4Addr) -> Result<(), String> {
        let _entered = self.runtime.enter();
        let socket = std::net::UdpSocket::bind((address, 0)).map_err(text)?;
        self.endpoint.rebind(socket).map_err(text)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.close(VarInt::from_u32(0x100), b"");
        // The server is told, so that it does not wait for what does not come.
        let gone = self.endpoint.wait_idle();
        let wait = std::time::Duration::from_millis(50);
        let _ = self.runtime.block_on(async { tokio::time::timeout(wait, gone).await });
    }
}

async fn send(connection: &Connection, bytes: &[u8]) -> Result<Asked, String> {
    let opened = tokio::time::timeout(PATIENCE, connection.open_bi()).await;
    let (mut send, recv) = opened.map_err(text)?.map_err(text)?;
    // A server that has answered already needs no more of it.
    let sent = tokio::time::timeout(PATIENCE, send.write_all(bytes)).await;
    if sent.map_err(text)?.is_ok() {
        let _ = send.finish();
    }
    Ok(Asked { recv, _send: send })
}

/// What a request is on its stream; `None` if it has no such form.
fn stream(request: &Request) -> Option<Vec<u8>> {
    let head = as_http(request)?;
    let (uri, mut section) = (head.uri(), Vec::new());
    put_prefix(&mut section);
    put_field(&mut section, b":method", request.method.as_bytes());
    put_field(&mut section, b":scheme", b"https");
    put_field(&mut section, b":authority", uri.authority()?.as_str().as_bytes());
    put_field(&mut section, b":path", request.target.as_bytes());
    for (name, value) in head.headers() {
        put_field(&mut section, name.as_str().as_bytes(), value.as_bytes());
    }
    let mut out = Vec::new();
    put_head(&mut out, kind::HEADERS, section.len() as u64);
    out.append(&mut section);
    if let Some(body) = &request.body {
        put_head(&mut out, kind::DATA, body.len() as u64);
        out.extend_from_slice(body);
    }
    Some(out)
}

/// The next frame of a stream, if it is whole.
fn frame<'a>(bytes: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let (kind, first) = read_integer(bytes)?;
    let (length, second) = read_integer(&bytes[first..])?;
    let rest = &bytes[first + second..];
    let (payload, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some((kind, payload))
}

fn parse(mut bytes: &[u8]) -> Result<Answer, String> {
    let (mut answer, mut decoder) = (Answer::default(), Decoder::new(0, 0));
    while !bytes.is_empty() {
        let (kind, payload) = frame(&mut bytes).ok_or("a frame is not whole")?;
        match kind {
            kind::DATA => {
                answer.pieces.push(payload.len());
                answer.body.extend_from_slice(payload);
            }
            kind::HEADERS => {
                let mut fields = Vec::new();
                let put = |name: &[u8], value: &[u8]| {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    fields.push((text(name), text(value)));
                    true
                };
                decoder.section(0, payload, put).map_err(text)?;
                let status = fields.iter().find(|(name, _)| name == ":status");
                let status = status.and_then(|(_, value)| value.parse().ok());
                if let Some(100..200) = status {
                    continue;
                }
                answer.status = status.unwrap_or(answer.status);
                answer.fields.extend(fields.into_iter().filter(|(name, _)| name != ":status"));
            }
            _ => {}
        }
    }
    Ok(answer)
}

/// Hears what the server says of the connection.
async fn listen(connection: Connection, is_leaving: Arc<AtomicBool>) {
    while let Ok(mut recv) = connection.accept_uni().await {
        let is_leaving = Arc::clone(&is_leaving);
        tokio::spawn(async move {
            let mut said = Vec::new();
            while let Ok(Some(chunk)) = recv.read_chunk(4096, true).await {
                said.extend_from_slice(&chunk.bytes);
                let Some((stream_kind::CONTROL, length)) = read_integer(&said) else { continue };
                let mut rest = &said[length..];
                while let Some((kind, _)) = frame(&mut rest) {
                    if kind == kind::GOAWAY {
                        is_leaving.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
    }
}
