//! A connection to a Redis server: commands, and answers in their order.

use super::target::Host;
use bytes::{Buf as _, BytesMut};
use yorozu_kernel::logging::error::os_error;
use yorozu_upstream::Connection;
use yorozu_wire::WireError;
use yorozu_wire::redis::{self, Reply};

/// Most bytes of an answer; chosen: above some purges of 10,000 URLs.
const INPUT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What an answer that is longer comes to.
pub(super) const TOO_LONG: &str = "the answer is too long";

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    connection: Connection,
    input: BytesMut,
}

impl Link {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, input: BytesMut::new() }
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
    pub(super) async fn send(&self, commands: &[u8]) -> Result<(), String> {
        self.connection.write_all(commands).await.map_err(|problem| os_error(&problem))
    }

    /// The next answer.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub(super) async fn reply(&mut self) -> Result<Reply, String> {
        self.next(redis::reply).await
    }

    /// What `read` makes of the next bytes, with how many they are.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub(super) async fn next<T>(
        &mut self,
        read: impl Fn(&[u8]) -> Result<Option<(T, usize)>, WireError>,
    ) -> Result<T, String> {
        loop {
            if let Some((found, consumed)) = read(&self.input).map_err(|why| why.to_string())? {
                self.input.advance(consumed);
                return Ok(found);
            }
            if self.input.len() > INPUT_BYTES_MAX {
                return Err(TOO_LONG.to_owned());
            }
            match self.connection.read(&mut self.input).await {
                Ok(0) => return Err("the connection was closed".to_owned()),
                Ok(_) => {}
                Err(problem) => return Err(os_error(&problem)),
            }
        }
    }
}
