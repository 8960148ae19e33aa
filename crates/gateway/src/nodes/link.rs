//! A connection to a Redis server: commands, and answers in their order.

use super::target::Host;
use bytes::{Buf as _, BytesMut};
use yorozu_kernel::logging::error::os_error;
use yorozu_upstream::Connection;
use yorozu_wire::WireError;
use yorozu_wire::redis::{self, Reply};

/// Most bytes of an answer of memcached; chosen: above what a page may have.
const INPUT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What an answer that is longer comes to, as one of Redis.
pub(super) const TOO_LONG: &str = "the answer is too long";

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    connection: Connection,
    input: BytesMut,
    /// Whether the other side has ended it.
    is_over: bool,
    /// Whether something of the answer has come that is asked for, or waited for.
    is_answered: bool,
}

impl Link {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, input: BytesMut::new(), is_over: false, is_answered: false }
    }

    /// Whether another question may be asked over it: it was not closed meanwhile, and nothing came unasked.
    pub(super) fn is_quiet(&self) -> bool {
        self.input.is_empty() && !self.is_over && self.connection.is_quiet()
    }

    /// Whether the other side has ended it without a byte of the answer that was waited for.
    pub(super) fn is_over_unanswered(&self) -> bool {
        self.is_over && !self.is_answered
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// The connection is of no use any more.
    ///
    /// # Cancel safety
    /// Not safe: drop the connection then.
    pub(super) async fn ask(&mut self, words: &[&[u8]]) -> Result<Reply, String> {
        let mut out = Vec::new();
        redis::command(&mut out, words);
        self.send(&out).await?;
        self.reply().await
    }

    /// As [`Link::ask`], where an error is no answer.
    pub(super) async fn expect(&mut self, words: &[&[u8]], host: &Host) -> Result<Reply, String> {
        match self.ask(words).await? {
            Reply::Error(line) => Err(format!("{host}: {line}")),
            reply => Ok(reply),
        }
    }

    /// Sends commands, whose answers are then asked for.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub(super) async fn send(&mut self, commands: &[u8]) -> Result<(), String> {
        self.is_answered = false;
        let sent = self.connection.write_all(commands).await;
        self.is_over |= sent.is_err();
        sent.map_err(|problem| os_error(&problem))
    }

    /// The next answer.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub(super) async fn reply(&mut self) -> Result<Reply, String> {
        self.is_answered = !self.input.is_empty();
        let mut reader = redis::Reader::default();
        loop {
            let (consumed, found) = reader.read(&self.input).map_err(shown)?;
            self.input.advance(consumed);
            match found {
                Some(reply) => return Ok(reply),
                None => self.more().await?,
            }
        }
    }

    /// What `read` makes of the next bytes, with how many they are.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub(super) async fn next<T>(
        &mut self,
        read: impl Fn(&[u8]) -> Result<Option<(T, usize)>, WireError>,
    ) -> Result<T, String> {
        self.is_answered = !self.input.is_empty();
        loop {
            if let Some((found, consumed)) = read(&self.input).map_err(shown)? {
                self.input.advance(consumed);
                return Ok(found);
            }
            if self.input.len() > INPUT_BYTES_MAX {
                return Err(TOO_LONG.to_owned());
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), String> {
        let read = self.connection.read(&mut self.input).await;
        self.is_over = !matches!(read, Ok(1..));
        self.is_answered |= !self.is_over;
        match read {
            Ok(0) => Err("the connection was closed".to_owned()),
            Ok(_) => Ok(()),
            Err(problem) => Err(os_error(&problem)),
        }
    }
}

fn shown(why: WireError) -> String {
    match why {
        WireError::RedisLength => TOO_LONG.to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;
    use yorozu_upstream::{PeerAddress, SocketOptions};

    #[tokio::test]
    async fn an_earlier_answer_is_none_to_a_question_that_is_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = PeerAddress::Tcp(listener.local_addr().unwrap());
        let connection = Connection::open(&address, SocketOptions::default()).await.unwrap();
        let (mut link, (mut stream, _)) = (Link::new(connection), listener.accept().await.unwrap());
        stream.write_all(b"+OK\r\n").await.unwrap();
        assert_eq!(link.ask(&[b"PING"]).await, Ok(Reply::Status("OK".to_owned())));
        // What is left unread of the question makes the end a reset.
        drop(stream);
        while link.send(b"PING\r\n").await.is_ok() {}
        assert!(link.is_over_unanswered());
    }
}
