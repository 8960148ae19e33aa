//! What the master process and the server process say to each other.
//!
//! | from | message | means |
//! | --- | --- | --- |
//! | master | `Logs` | open logs: those in use are written to from now on, others are for the next `Configure` |
//! | master | `Configure` | serve by these texts and sockets, at a start and at each reload |
//! | master | `Reopen` | write what waits: logs that were opened again follow |
//! | master | `Succeed` | another process is about to read the UDP sockets |
//! | master | `WaitAt` | wait there for another master, should this one be gone |
//! | master | `Quit`, `Stop` | end: when requests are answered, or now |
//! | server | `Ready` | it serves by what it was given last |
//! | server | `Alive` | each worker turns |
//! | server | `Refused` | it cannot, and why; it goes on as before |
//! | server | `Here` | to a new master: its version, and the sockets it listens on |

use super::channel::{Channel, Packet, Sender, text_file, text_of};
use bytes::Bytes;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use yorozu_kernel::base::texts::{Failure, Texts};

/// Open logs by path.
pub(super) type Logs = Vec<(PathBuf, File)>;
/// Those that the master keeps open itself.
pub(super) type LentLogs = Vec<(PathBuf, Arc<File>)>;

/// The master's words.
#[derive(Debug)]
pub(super) enum Order {
    Logs(Logs),
    Configure(Given),
    Reopen,
    /// The link over which that one says so, and hands back what is not its own.
    Succeed(OwnedFd),
    /// The socket where another master comes.
    WaitAt(OwnedFd),
    Quit,
    Stop,
    /// What came without its files, as no descriptor was left; whether it was a configuration.
    Cut(bool),
}

/// What the server needs to serve by a configuration.
#[derive(Debug)]
pub(super) struct Given {
    pub texts: Texts,
    /// Listening sockets, all of them.
    pub sockets: Vec<OwnedFd>,
    /// Where a server whose master died waits for another one.
    pub adoption: Option<OwnedFd>,
    /// Leads to the server before this one, for datagrams of its connections.
    pub link: Option<OwnedFd>,
    /// Whether the server before this one still runs.
    pub has_predecessor: bool,
    /// Whether a server process that ended served by this configuration.
    pub is_replacement: bool,
}

/// The server's words.
#[derive(Debug)]
pub(super) enum Answer {
    Ready,
    Alive,
    Refused(String),
    Here { version: String, sockets: Vec<OwnedFd> },
}

const CONFIGURE: u8 = 1;
const REOPEN: u8 = 2;
const QUIT: u8 = 3;
const STOP: u8 = 4;
const READY: u8 = 5;
const REFUSED: u8 = 6;
const HERE: u8 = 7;
const ALIVE: u8 = 8;
const SUCCEED: u8 = 9;
const LOGS: u8 = 10;
const WAIT_AT: u8 = 11;

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a message of this version")
}

/// Logs of one message. The server needs this many descriptors more than there are logs; chosen.
const LOGS_AT_ONCE: usize = 16;

/// Texts in a row, each behind its length.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.extend(bytes);
    }

    fn number(&mut self, number: usize) {
        self.0.extend((number as u64).to_le_bytes());
    }
}

/// Reads what a [`Writer`] wrote.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self) -> io::Result<&'a [u8]> {
        let length = self.number()?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(broken)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> io::Result<usize> {
        let (number, rest) = self.0.split_first_chunk().ok_or_else(broken)?;
        self.0 = rest;
        usize::try_from(u64::from_le_bytes(*number)).map_err(|_| broken())
    }

    fn text(&mut self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(self.take()?).into_owned())
    }

    fn path(&mut self) -> io::Result<PathBuf> {
        Ok(PathBuf::from(OsStr::from_bytes(self.take()?)))
    }
}

/// The texts in a file, which the master keeps instead of the texts: for each server process it starts.
///
/// # Errors
/// No descriptor or memory is left.
pub(super) fn sealed(texts: &Texts) -> io::Result<OwnedFd> {
    let mut out = Writer::default();
    out.number(texts.files.len());
    for (path, found) in &texts.files {
        out.put(path.as_os_str().as_bytes());
        match found {
            Ok(text) => {
                out.number(0);
                out.put(text);
            }
            Err(Failure { number: Some(number), .. }) => {
                out.number(1);
                out.number(number.unsigned_abs() as usize);
            }
            Err(Failure { text, .. }) => {
                out.number(2);
                out.put(text.as_bytes());
            }
        }
    }
    out.number(texts.patterns.len());
    for (pattern, paths) in &texts.patterns {
        out.put(pattern.as_bytes());
        out.number(paths.len());
        paths.iter().for_each(|path| out.put(path.as_os_str().as_bytes()));
    }
    out.number(texts.hosts.len());
    for (name, addresses) in &texts.hosts {
        out.put(name.as_bytes());
        out.number(addresses.len());
        addresses.iter().for_each(|address| out.put(address.to_string().as_bytes()));
    }
    text_file(&out.0)
}

fn unsealed(file: OwnedFd) -> io::Result<Texts> {
    let text = Bytes::from(text_of(file)?);
    let mut input = Reader(&text);
    let mut texts = Texts::default();
    for _ in 0..input.number()? {
        let path = input.path()?;
        let found = match input.number()? {
            0 => Ok(text.slice_ref(input.take()?)),
            1 => {
                let number = i32::try_from(input.number()?).map_err(|_| broken())?;
                Err(Failure { number: Some(number), text: String::new() })
            }
            _ => Err(Failure { number: None, text: input.text()? }),
        };
        texts.files.insert(path, found);
    }
    for _ in 0..input.number()? {
        let pattern = input.text()?;
        let paths = (0..input.number()?).map(|_| input.path()).collect::<Result<_, _>>()?;
        texts.patterns.insert(pattern, paths);
    }
    for _ in 0..input.number()? {
        let name = input.text()?;
        let address = |text: String| text.parse().map_err(|_| broken());
        let count = input.number()?;
        let addresses = (0..count).map(|_| address(input.text()?)).collect::<Result<_, _>>()?;
        texts.hosts.insert(name, addresses);
    }
    Ok(texts)
}

/// What the master passes with `Configure`; the texts are [`sealed`].
pub(super) struct Passed<'a> {
    pub texts: &'a OwnedFd,
    pub logs: LentLogs,
    pub sockets: Vec<BorrowedFd<'a>>,
    pub adoption: Option<&'a OwnedFd>,
    pub link: Option<&'a UnixDatagram>,
    pub has_predecessor: bool,
    pub is_replacement: bool,
}

/// As `Order::Configure`.
///
/// # Errors
/// The server is gone, or no descriptor is left.
pub(super) fn configure(channel: &Channel, passed: Passed<'_>) -> io::Result<()> {
    let mut out = Writer::default();
    out.number(usize::from(passed.has_predecessor));
    out.number(usize::from(passed.is_replacement));
    out.number(usize::from(passed.adoption.is_some()));
    out.number(usize::from(passed.link.is_some()));
    let mut files = vec![passed.texts.as_fd()];
    files.extend(passed.adoption.map(|socket| socket.as_fd()));
    files.extend(passed.link.map(|socket| socket.as_fd()));
    files.extend(passed.sockets);
    send_logs(channel, &passed.logs)?;
    channel.send(CONFIGURE, &out.0, &files)
}

/// Some at a time: while they come, those before them have taken the place of what the server had open.
fn send_logs(channel: &Channel, logs: &LentLogs) -> io::Result<()> {
    logs.chunks(LOGS_AT_ONCE).try_for_each(|logs| {
        let mut out = Writer::default();
        out.number(logs.len());
        logs.iter().for_each(|(path, _)| out.put(path.as_os_str().as_bytes()));
        let files: Vec<_> = logs.iter().map(|(_, file)| file.as_fd()).collect();
        channel.send(LOGS, &out.0, &files)
    })
}

fn take_logs(
    input: &mut Reader<'_>,
    files: &mut impl Iterator<Item = OwnedFd>,
) -> io::Result<Logs> {
    let mut logs = Vec::new();
    for _ in 0..input.number()? {
        let path = input.path()?;
        logs.push((path, File::from(files.next().ok_or_else(broken)?)));
    }
    Ok(logs)
}

/// Tells the server to write to these files from now on.
///
/// # Errors
/// The server is gone.
pub(super) fn reopen(channel: &Channel, logs: &LentLogs) -> io::Result<()> {
    channel.send(REOPEN, &[], &[])?;
    send_logs(channel, logs)
}

/// Tells the server that another process will read its UDP sockets, and over what that one says so.
///
/// # Errors
/// The server is gone.
pub(super) fn succeed(channel: &Channel, link: &OwnedFd) -> io::Result<()> {
    channel.send(SUCCEED, &[], &[link.as_fd()])
}

/// Tells the server where another master comes should this one be gone.
///
/// # Errors
/// The server is gone.
pub(super) fn wait_at(channel: &Channel, place: &OwnedFd) -> io::Result<()> {
    channel.send(WAIT_AT, &[], &[place.as_fd()])
}

/// Tells the server to end: when requests are answered, or now.
///
/// # Errors
/// It has.
pub(super) fn end(channel: &Channel, is_graceful: bool) -> io::Result<()> {
    let kind = if is_graceful { QUIT } else { STOP };
    channel.send(kind, &[], &[])
}

/// The master's next word; `None` if it is gone.
///
/// # Errors
/// It is of another version.
pub(super) fn next_order(channel: &Channel) -> io::Result<Option<Order>> {
    let Some(packet) = channel.receive()? else { return Ok(None) };
    let Packet { kind, text, files, is_cut } = packet;
    if is_cut {
        return Ok(Some(Order::Cut(kind == CONFIGURE)));
    }
    let (mut input, mut files) = (Reader(&text), files.into_iter());
    Ok(Some(match kind {
        CONFIGURE => {
            let has_predecessor = input.number()? != 0;
            let is_replacement = input.number()? != 0;
            let has_adoption = input.number()? != 0;
            let has_link = input.number()? != 0;
            let texts = unsealed(files.next().ok_or_else(broken)?)?;
            let adoption = if has_adoption { files.next() } else { None };
            let link = if has_link { files.next() } else { None };
            let sockets = files.collect();
            Order::Configure(Given {
                texts,
                sockets,
                adoption,
                link,
                has_predecessor,
                is_replacement,
            })
        }
        LOGS => Order::Logs(take_logs(&mut input, &mut files)?),
        REOPEN => Order::Reopen,
        SUCCEED => Order::Succeed(files.next().ok_or_else(broken)?),
        WAIT_AT => Order::WaitAt(files.next().ok_or_else(broken)?),
        QUIT => Order::Quit,
        STOP => Order::Stop,
        _ => return Err(broken()),
    }))
}

/// Answers the master.
///
/// # Errors
/// It is gone.
pub(super) fn answer(channel: &Channel, answer: Answer) -> io::Result<()> {
    let (kind, text, files) = match answer {
        Answer::Ready => (READY, Vec::new(), Vec::new()),
        Answer::Alive => (ALIVE, Vec::new(), Vec::new()),
        Answer::Refused(why) => (REFUSED, why.into_bytes(), Vec::new()),
        Answer::Here { version, sockets } => (HERE, version.into_bytes(), sockets),
    };
    let files: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
    channel.send(kind, &text, &files)
}

/// The server's next word; `None` if it is gone.
///
/// # Errors
/// It is of another version.
pub(super) fn next_answer(channel: &Channel) -> io::Result<Option<Answer>> {
    let Some((kind, text)) = channel.receive_short()? else { return Ok(None) };
    Ok(Some(match kind {
        READY => Answer::Ready,
        ALIVE => Answer::Alive,
        REFUSED => Answer::Refused(String::from_utf8_lossy(&text).into_owned()),
        _ => return Err(broken()),
    }))
}

/// A server's first word to a new master: its version and sockets; and whose word it is.
///
/// # Errors
/// It is another word, or too much.
pub(super) fn first_answer(channel: &Channel) -> io::Result<(String, Vec<OwnedFd>, Sender)> {
    let (Packet { kind, text, files, .. }, sender) = channel.receive_first()?.ok_or_else(broken)?;
    match kind {
        HERE => Ok((String::from_utf8_lossy(&text).into_owned(), files, sender)),
        _ => Err(broken()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_arrives() {
        let failed = |number, text: &str| Failure { number, text: text.to_owned() };
        let socket = |text: &str| text.parse().unwrap();
        let texts = Texts {
            files: [
                ("/a".into(), Ok(Bytes::from_static(b"text"))),
                ("/b".into(), Err(failed(Some(2), ""))),
                ("/c".into(), Err(failed(None, "not a regular file"))),
            ]
            .into(),
            patterns: [("*.conf".to_owned(), vec!["/a.conf".into(), "/b.conf".into()])].into(),
            hosts: [
                ("none".to_owned(), vec![]),
                ("some".to_owned(), vec![socket("192.0.2.1:0"), socket("[fe80::1%2]:0")]),
            ]
            .into(),
        };
        let (master, server) = Channel::pair().unwrap();
        let file = |text: &[u8]| text_file(text).unwrap();
        let log = Arc::new(File::from(file(b"log")));
        // More than a message brings.
        let paths: Vec<_> =
            (0..=LOGS_AT_ONCE).map(|number| PathBuf::from(format!("/{number}"))).collect();
        let lent = |paths: &[PathBuf]| -> LentLogs {
            paths.iter().map(|path| (path.clone(), Arc::clone(&log))).collect()
        };
        let listening = file(b"socket");
        let passed = Passed {
            texts: &sealed(&texts).unwrap(),
            logs: lent(&paths),
            sockets: vec![listening.as_fd()],
            adoption: Some(&file(b"adoption")),
            link: None,
            has_predecessor: true,
            is_replacement: true,
        };
        configure(&master, passed).unwrap();
        let mut found = Vec::new();
        let given = loop {
            match next_order(&server).unwrap().unwrap() {
                Order::Logs(logs) => found.push(logs),
                Order::Configure(given) => break given,
                order => panic!("{order:?}"),
            }
        };
        assert_eq!((given.texts, given.has_predecessor), (texts, true));
        assert!(given.is_replacement);
        let found: Logs = found.into_iter().flatten().collect();
        assert!(found.iter().map(|(path, _)| path).eq(&paths));
        for (_, log) in found {
            assert_eq!(text_of(log.into()).unwrap(), b"log");
        }
        assert_eq!(text_of(given.adoption.unwrap()).unwrap(), b"adoption");
        let sockets: Vec<_> = given.sockets.into_iter().map(|it| text_of(it).unwrap()).collect();
        assert_eq!(sockets, [b"socket"]);
        reopen(&master, &lent(&paths[..1])).unwrap();
        end(&master, true).unwrap();
        end(&master, false).unwrap();
        drop(master);
        let orders: Vec<_> = std::iter::from_fn(|| next_order(&server).unwrap()).collect();
        assert!(
            matches!(&orders[..], [Order::Reopen, Order::Logs(logs), Order::Quit, Order::Stop] if logs.len() == 1)
        );
    }
}
