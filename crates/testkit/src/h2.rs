//! An HTTP/2 client, over TLS and without.

use crate::client::{Answer, PATIENCE};
use crate::request::Request;
use bytes::Bytes;
use rustls::ClientConnection;
use std::future::poll_fn;
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// Fields that HTTP/2 has no use for. (RFC 9113, section 8.2.2)
const OF_A_CONNECTION: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// One connection.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    sender: h2::client::SendRequest<Bytes>,
    driver: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

/// A request whose answer has not come yet.
#[derive(Debug)]
pub struct Asked(h2::client::ResponseFuture);

impl Client {
    /// Connects to a server on this machine.
    ///
    /// # Errors
    /// It does not speak HTTP/2.
    pub fn connect(port: u16, tls: Option<ClientConnection>) -> Result<Self, String> {
        // A separate thread: the connection goes on while the test does something else.
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let (sender, driver) = runtime.block_on(async {
            let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.map_err(text)?;
            let handshake = h2::client::handshake(Stream { tcp, tls: tls.map(Into::into) });
            let shaken = tokio::time::timeout(PATIENCE, handshake).await.map_err(text)?;
            let (sender, connection) = shaken.map_err(text)?;
            Ok::<_, String>((sender, tokio::spawn(connection)))
        })?;
        Ok(Self { runtime, sender, driver })
    }

    /// Sends a request with its content.
    ///
    /// # Errors
    /// The connection is over.
    pub fn ask(&mut self, request: &Request) -> Result<Asked, String> {
        let head = as_http(request).ok_or("HTTP/2 has no form for it")?;
        let Self { runtime, sender, .. } = self;
        runtime.block_on(async {
            let ready = tokio::time::timeout(PATIENCE, sender.clone().ready()).await;
            let mut ready = ready.map_err(text)?.map_err(text)?;
            let (answer, mut stream) =
                ready.send_request(head, request.body.is_none()).map_err(text)?;
            if let Some(body) = &request.body {
                // A server that has answered already needs no more of it.
                let _ = stream.send_data(Bytes::copy_from_slice(body), true);
            }
            Ok(Asked(answer))
        })
    }

    /// The answer.
    ///
    /// # Errors
    /// The connection or the stream ended before its end.
    pub fn answer(&mut self, asked: Asked) -> Result<Answer, String> {
        self.runtime.block_on(async {
            match tokio::time::timeout(PATIENCE, read(asked.0)).await {
                Ok(read) => read.map_err(text),
                Err(_) => Err("no answer in time".to_owned()),
            }
        })
    }

    /// Whether the server has closed the connection, or will after what is under way.
    pub fn is_over(&self) -> bool {
        self.driver.is_finished()
    }
}

fn text(problem: impl std::fmt::Display) -> String {
    problem.to_string()
}

async fn read(answer: h2::client::ResponseFuture) -> Result<Answer, h2::Error> {
    let (head, mut content) = answer.await?.into_parts();
    let mut answer = Answer { status: head.status.as_u16(), ..Answer::default() };
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    for (name, value) in &head.headers {
        answer.fields.push((name.to_string(), text(value)));
    }
    while let Some(piece) = content.data().await {
        let piece = piece?;
        let _ = content.flow_control().release_capacity(piece.len());
        answer.pieces.push(piece.len());
        answer.body.extend_from_slice(&piece);
    }
    let trailers = poll_fn(|cx| content.poll_trailers(cx)).await?;
    for (name, value) in trailers.iter().flatten() {
        answer.fields.push((name.to_string(), text(value)));
    }
    Ok(answer)
}

/// The request as HTTP/2 has it; `None` if it has no such form.
pub fn as_http(request: &Request) -> Option<http::Request<()>> {
    let mut hosts = request.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    let (Some((_, host)), None) = (hosts.next(), hosts.next()) else { return None };
    if !request.target.starts_with('/') || request.target.contains('#') {
        return None;
    }
    let uri: http::Uri = format!("http://{host}{}", request.target).parse().ok()?;
    if uri.authority()?.as_str() != host || uri.path_and_query()?.as_str() != request.target {
        return None;
    }
    let mut builder = http::Request::builder().method(request.method.as_str()).uri(uri);
    for (name, value) in &request.fields {
        if name.eq_ignore_ascii_case("host")
            || (name.eq_ignore_ascii_case("connection") && value == "close")
        {
            continue;
        }
        if OF_A_CONNECTION.iter().any(|found| name.eq_ignore_ascii_case(found)) {
            return None;
        }
        if value.trim() != value {
            return None;
        }
        builder = builder.header(name.to_ascii_lowercase(), value.as_bytes());
    }
    builder.version(http::Version::HTTP_2).body(()).ok()
}

/// A TCP connection, with TLS or without.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) tcp: TcpStream,
    pub(crate) tls: Option<rustls::Connection>,
}

/// The socket as rustls wants it: what would wait says so.
struct Now<'a, 'b>(&'a mut TcpStream, &'a mut Context<'b>);

fn now<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl io::Read for Now<'_, '_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(out);
        now(Pin::new(&mut *self.0).poll_read(self.1, &mut buffer))?;
        Ok(buffer.filled().len())
    }
}

impl io::Write for Now<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        now(Pin::new(&mut *self.0).poll_write(self.1, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn later<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { tcp, tls } = &mut *self;
        let Some(tls) = tls else { return Pin::new(tcp).poll_read(cx, out) };
        loop {
            match tls.reader().read(out.initialize_unfilled()) {
                Ok(count) => {
                    out.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            while tls.wants_write() && later(tls.write_tls(&mut Now(tcp, cx)))?.is_ready() {}
            ready!(later(tls.read_tls(&mut Now(tcp, cx))))?;
            tls.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.tls.is_none() {
            return Pin::new(&mut self.tcp).poll_write(cx, bytes);
        }
        ready!(self.as_mut().poll_flush(cx))?;
        let tls = self.tls.as_mut().unwrap();
        Poll::Ready(tls.writer().write(bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { tcp, tls } = &mut *self;
        if let Some(tls) = tls {
            while tls.wants_write() {
                ready!(later(tls.write_tls(&mut Now(tcp, cx))))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
