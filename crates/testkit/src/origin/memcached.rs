//! memcached's protocol.

use super::{End, Reply, Seen, Work};
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Serves one question of memcached's protocol; `true` if the connection stays open.
pub(super) fn serve_memcached(
    connection: &mut TcpStream,
    peer: &[(String, String)],
    rest: &mut Vec<u8>,
    work: &Work,
) -> io::Result<bool> {
    let end = loop {
        if let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
            break end;
        }
        let mut piece = [0; 4096];
        let count = connection.read(&mut piece)?;
        if count == 0 {
            return Ok(false);
        }
        rest.extend_from_slice(&piece[..count]);
    };
    let line = String::from_utf8_lossy(&rest[..end]).into_owned();
    rest.drain(..end + 2);
    let mut words = line.split(' ');
    let mut request = Seen::default();
    for name in ["REQUEST_METHOD", "REQUEST_URI"] {
        request.params.push((name.to_owned(), words.next().unwrap_or_default().to_owned()));
    }
    request.params.extend_from_slice(peer);
    let reply = work.reply(&request);
    work.wait(&reply);
    let out = if reply.is_raw { reply.text.clone() } else { memcached_answer(&reply, &request) };
    connection.write_all(&out)?;
    Ok(reply.end == End::Whole)
}

/// A CGI answer as memcached's: 200 is a value, with the field `Flags`; all else is none.
fn memcached_answer(reply: &Reply, request: &Seen) -> Vec<u8> {
    let text = String::from_utf8_lossy(&reply.text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    if !head.starts_with("Status: 200") {
        return b"END\r\n".to_vec();
    }
    let flags = head.lines().find_map(|line| line.strip_prefix("Flags: ")).unwrap_or("0");
    let key = request.param("REQUEST_URI");
    format!("VALUE {key} {flags} {}\r\n{body}\r\nEND\r\n", body.len()).into_bytes()
}
