//! HTTP/2, by the `h2` crate: another reading of the RFC than the server's.

use super::{End, Hold, Reply, Seen, Work, handshake, peer};
use crate::h2::Stream;
use bytes::Bytes;
use h2::SendStream;
use h2::server::SendResponse;
use rustls::{ServerConfig, ServerConnection};
use std::future::poll_fn;
use std::net::TcpStream;
use std::sync::Arc;

/// A field of the script that stands behind the content, without this.
const TRAILER: &str = "Trailer-";

/// Serves one connection to its end.
pub(super) fn serve(connection: TcpStream, config: Option<Arc<ServerConfig>>, work: &Work) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut known = peer(&connection, work);
    let mut tls = config.map(|config| ServerConnection::new(config).unwrap());
    if let Some(tls) = &mut tls {
        if tls.complete_io(&mut &connection).is_err() {
            return;
        }
        known.extend(handshake(tls));
        let alpn = tls.alpn_protocol().unwrap_or_default();
        known.push(("TLS_ALPN".to_owned(), String::from_utf8_lossy(alpn).into_owned()));
    }
    connection.set_nonblocking(true).unwrap();
    runtime.block_on(async {
        let tcp = tokio::net::TcpStream::from_std(connection).unwrap();
        let stream = Stream { tcp, tls: tls.map(Into::into) };
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                while let Some(Ok((request, answer))) = connection.accept().await {
                    let (work, known) = (work.clone(), known.clone());
                    tokio::task::spawn_local(serve_one(request, answer, known, work));
                }
            })
            .await;
    });
}

async fn serve_one(
    request: http::Request<h2::RecvStream>,
    answer: SendResponse<Bytes>,
    known: Vec<(String, String)>,
    work: Work,
) {
    let (head, mut content) = request.into_parts();
    let mut seen = Seen::default();
    let mut put = |name: &str, value: &str| {
        seen.params.push((name.to_owned(), value.to_owned()));
    };
    put("REQUEST_METHOD", head.method.as_str());
    put("REQUEST_URI", head.uri.path_and_query().map_or("", |target| target.as_str()));
    put("REQUEST_SCHEME", head.uri.scheme_str().unwrap_or_default());
    put("SERVER_PROTOCOL", "HTTP/2.0");
    if let Some(authority) = head.uri.authority() {
        put("HTTP_HOST", authority.as_str());
    }
    for (name, value) in &head.headers {
        let name = format!("HTTP_{}", name.as_str().to_ascii_uppercase().replace('-', "_"));
        put(&name, &String::from_utf8_lossy(value.as_bytes()));
    }
    seen.params.extend(known);
    while let Some(piece) = content.data().await {
        let Ok(piece) = piece else { return };
        let _ = content.flow_control().release_capacity(piece.len());
        seen.body.extend_from_slice(&piece);
    }
    let reply = work.reply(&seen);
    // The connection goes on meanwhile.
    let waiting = (work.clone(), reply.clone());
    let waited = tokio::task::spawn_blocking(move || waiting.0.wait(&waiting.1)).await;
    if waited.is_ok() {
        let _ = send(&work, &reply, &seen, answer).await;
    }
}

async fn send(
    work: &Work,
    reply: &Reply,
    seen: &Seen,
    mut answer: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let (head, body) = reply.text.split_at(reply.text.len() - reply.body_bytes());
    let head = String::from_utf8_lossy(head).into_owned();
    let (mut builder, mut trailers) = (http::Response::builder(), http::HeaderMap::new());
    for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
        match (name, name.strip_prefix(TRAILER)) {
            ("Status", _) => builder = builder.status(value),
            (_, Some(name)) => {
                let name: http::HeaderName = name.parse().unwrap();
                trailers.append(name, value.parse().unwrap());
            }
            _ => builder = builder.header(name, value),
        }
    }
    let has_no_content = seen.param("REQUEST_METHOD") == "HEAD" || body.is_empty();
    let is_torn = reply.end == End::Torn;
    if trailers.is_empty() {
        // A torn one announces a byte more than it has.
        builder = builder.header("content-length", body.len() + usize::from(is_torn));
    }
    let is_last = has_no_content && trailers.is_empty() && !is_torn;
    let mut stream = answer.send_response(builder.body(()).unwrap(), is_last)?;
    if !is_last {
        content(work, reply, body, &mut stream, trailers.is_empty()).await?;
        if !trailers.is_empty() {
            stream.send_trailers(trailers)?;
        }
    }
    work.done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    Ok(())
}

async fn content(
    work: &Work,
    reply: &Reply,
    body: &[u8],
    stream: &mut SendStream<Bytes>,
    is_last: bool,
) -> Result<(), h2::Error> {
    let mut rest = Bytes::copy_from_slice(body);
    if reply.hold == Hold::Within {
        let before = work.releases();
        let first = rest.split_to(rest.len() - rest.len() / 2);
        put(stream, first, false).await?;
        let work = work.clone();
        let _ = tokio::task::spawn_blocking(move || work.held(before)).await;
    }
    put(stream, rest, is_last).await
}

/// Sends as the peer takes it.
async fn put(
    stream: &mut SendStream<Bytes>,
    mut rest: Bytes,
    is_last: bool,
) -> Result<(), h2::Error> {
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let Some(room) = poll_fn(|cx| stream.poll_capacity(cx)).await.transpose()? else {
            return Ok(());
        };
        let piece = rest.split_to(room.min(rest.len()));
        let is_last = is_last && rest.is_empty();
        stream.send_data(piece, is_last)?;
        if is_last {
            return Ok(());
        }
    }
    if is_last { stream.send_data(Bytes::new(), true) } else { Ok(()) }
}
