//! uwsgi and SCGI: requests with a head of their own, answers without frames.

use super::{End, Seen, Work};
use std::io::{self, Read, Write};

/// Serves one uwsgi request; the connection closes behind it. MODIFIERS is what its head has beside the length.
pub(super) fn serve_uwsgi(
    connection: &mut (impl Read + Write),
    peer: &[(String, String)],
    work: &Work,
) -> io::Result<bool> {
    let mut head = [0; 4];
    connection.read_exact(&mut head)?;
    let [modifier1, low, high, modifier2] = head;
    let mut packet = vec![0; usize::from(u16::from_le_bytes([low, high]))];
    connection.read_exact(&mut packet)?;
    let mut request = Seen::default();
    let mut rest = &packet[..];
    let mut next = || {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let (text, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        rest = after;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    while let (Some(name), Some(value)) = (next(), next()) {
        request.params.push((name, value));
    }
    request.params.push(("MODIFIERS".to_owned(), format!("{modifier1} {modifier2}")));
    answer_plain(connection, request, peer, work)
}

/// Serves one SCGI request; the connection closes behind it. FIRST is the name of the header that came first.
pub(super) fn serve_scgi(
    connection: &mut (impl Read + Write),
    peer: &[(String, String)],
    work: &Work,
) -> io::Result<bool> {
    let mut length = String::new();
    loop {
        let mut byte = [0];
        connection.read_exact(&mut byte)?;
        if byte == *b":" {
            break;
        }
        length.push(char::from(byte[0]));
    }
    let mut netstring = vec![0; length.parse::<usize>().map_err(io::Error::other)? + 1];
    connection.read_exact(&mut netstring)?;
    if netstring.pop() != Some(b',') {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let text = String::from_utf8_lossy(&netstring);
    let mut words = text.split_terminator('\0').map(str::to_owned);
    let mut request = Seen::default();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        request.params.push((name, value));
    }
    let first = request.params.first().map_or(String::new(), |(name, _)| name.clone());
    request.params.push(("FIRST".to_owned(), first));
    answer_plain(connection, request, peer, work)
}

/// Reads the body and answers as a CGI program does; a torn answer announces a byte more than it has.
fn answer_plain(
    connection: &mut (impl Read + Write),
    mut request: Seen,
    peer: &[(String, String)],
    work: &Work,
) -> io::Result<bool> {
    request.body = vec![0; request.param("CONTENT_LENGTH").parse().unwrap_or(0)];
    connection.read_exact(&mut request.body)?;
    request.params.extend_from_slice(peer);
    let reply = work.reply(&request);
    work.wait(&reply);
    let mut out = Vec::new();
    if reply.end == End::Torn {
        write!(out, "Content-Length: {}\r\n", reply.body_bytes() + 1)?;
    }
    out.extend_from_slice(&reply.text);
    work.send(connection, &reply, &out, reply.body_bytes())?;
    Ok(false)
}
