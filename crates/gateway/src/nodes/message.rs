//! An entry of the stream: what a node purged.
//!
//! | field | what it says |
//! | --- | --- |
//! | `node` | the node's name |
//! | `run` | its process: a random number, in hexadecimal |
//! | `number` | of this entry among those of the process, from 1 on, without gaps |
//! | `lines` | `hard` or `soft`, what is purged as in the journal, and the zone; in front of them `wait` where the node waits for the others, `after`, the last number that Redis had taken before, and its name there, and `epoch` or `begins`, the epoch of the stream |
//! | `sign` | HMAC-SHA-256 by the secret, in hexadecimal, over the stream's name and the four others |
//!
//! One without lines only takes a place in the stream.

use super::place::{Epoch, Id};
use aws_lc_rs::hmac;
use base16ct::lower;
use std::fmt::Write as _;
use std::sync::Arc;
use yorozu_cache::{Purge, PurgeMode};
use yorozu_wire::redis::Reply;

/// What a node purged in one zone at once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Purged {
    pub zone: String,
    pub mode: PurgeMode,
    pub purges: Arc<[Purge]>,
}

impl Purged {
    /// A line for each purge.
    pub(super) fn to_lines(&self) -> String {
        let mode = match self.mode {
            PurgeMode::Hard => "hard",
            PurgeMode::Soft => "soft",
        };
        let mut lines = String::new();
        for purge in &*self.purges {
            let _ = writeln!(lines, "{mode} {} {}", purge.to_word(), self.zone);
        }
        lines
    }
}

/// What lines say, those of one zone and mode together. A purge of a kind that is not known, of a node with a later version
/// of this program, counts as one of everything; any other line that is not known is left out.
pub(super) fn purged(lines: &str) -> Vec<Purged> {
    let mut found: Vec<(String, PurgeMode, Vec<Purge>)> = Vec::new();
    for line in lines.lines() {
        let mut words = line.splitn(3, ' ');
        let mode = match words.next() {
            Some("hard") => PurgeMode::Hard,
            Some("soft") => PurgeMode::Soft,
            _ => continue,
        };
        let (Some(purge), Some(zone)) = (words.next(), words.next()) else { continue };
        let purge = Purge::of_word(purge).unwrap_or(Purge::All);
        match found.iter_mut().find(|(other, same, _)| other == zone && *same == mode) {
            Some((.., purges)) => purges.push(purge),
            None => found.push((zone.to_owned(), mode, vec![purge])),
        }
    }
    let made = found.into_iter();
    made.map(|(zone, mode, purges)| Purged { zone, mode, purges: purges.into() }).collect()
}

/// The key by which entries are signed.
pub(super) struct Secret(hmac::Key);

impl Secret {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// The signature of these parts, one behind the other.
    pub(super) fn tag(&self, parts: &[&[u8]]) -> Vec<u8> {
        let mut context = hmac::Context::with_key(&self.0);
        parts.iter().for_each(|part| context.update(part));
        context.sign().as_ref().to_vec()
    }

    /// Whether it is theirs.
    pub(super) fn verifies(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        let own = self.tag(parts);
        aws_lc_rs::constant_time::verify_slices_are_equal(&own, tag).is_ok()
    }
}

/// An entry's fields.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Message {
    pub node: String,
    pub run: u64,
    pub number: u64,
    /// With `wait`, `after`, `epoch` and `begins` in front of them.
    pub lines: String,
}

const WAIT: &str = "wait\n";
const AFTER: &str = "after ";
const PRESENT: &str = "epoch ";
const BEGINS: &str = "begins ";

/// What an entry says besides its purges.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct About {
    /// The node waits until the others have done it.
    pub waits: bool,
    /// The last number of the run that Redis had taken before, and what it is called there.
    pub taken: Option<(u64, Id)>,
    pub epoch: Option<Epoch>,
}

impl Message {
    pub(super) fn new(node: &str, run: u64, number: u64, lines: &str, about: About) -> Self {
        let mut text = String::from(if about.waits { WAIT } else { "" });
        if let Some((number, id)) = about.taken {
            let _ = writeln!(text, "{AFTER}{number} {id}");
        }
        let _ = match about.epoch {
            Some(Epoch::Begins(epoch)) => writeln!(text, "{BEGINS}{epoch:016x}"),
            Some(Epoch::Present(epoch)) => writeln!(text, "{PRESENT}{epoch:016x}"),
            None => Ok(()),
        };
        text.push_str(lines);
        Self { node: node.to_owned(), run, number, lines: text }
    }

    /// What it says of the epoch.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        let number = |text| u64::from_str_radix(text, 16).ok();
        self.lines.lines().take(3).find_map(|line| {
            let begins = line.strip_prefix(BEGINS).and_then(number).map(Epoch::Begins);
            begins.or_else(|| line.strip_prefix(PRESENT).and_then(number).map(Epoch::Present))
        })
    }

    /// The last number of its run that Redis had taken before it, and where.
    pub(super) fn taken(&self) -> Option<(u64, Id)> {
        let line = self.lines.lines().take(2).find_map(|line| line.strip_prefix(AFTER))?;
        let (number, id) = line.split_once(' ')?;
        Some((number.parse().ok()?, Id::parse(id.as_bytes())?))
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.lines.starts_with(WAIT)
    }

    /// What is signed. Node names have no line feed.
    fn signed(&self, stream: &str) -> String {
        let Self { node, run, number, lines } = self;
        format!("yorozu purge bus 1\n{stream}\n{node}\n{run:016x}\n{number}\n{lines}")
    }

    /// The fields, and the words of the command that adds them are around it.
    pub(super) fn fields(
        &self,
        stream: &str,
        secret: Option<&Secret>,
    ) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("node", self.node.clone()),
            ("run", format!("{:016x}", self.run)),
            ("number", self.number.to_string()),
            ("lines", self.lines.clone()),
        ];
        if let Some(secret) = secret {
            let tag = secret.tag(&[self.signed(stream).as_bytes()]);
            fields.push(("sign", lower::encode_string(&tag)));
        }
        fields
    }

    /// Reads an entry's fields.
    ///
    /// # Errors
    /// Why it is not believed, or not understood.
    pub(super) fn read(
        fields: &[Reply],
        stream: &str,
        secret: Option<&Secret>,
    ) -> Result<Self, &'static str> {
        let field = |name: &str| {
            let pair = fields.chunks_exact(2).find(|pair| pair[0].text() == Some(name.as_bytes()));
            std::str::from_utf8(pair?[1].text()?).ok()
        };
        let message = || {
            Some(Self {
                node: field("node").filter(|node| is_name(node))?.to_owned(),
                run: u64::from_str_radix(field("run")?, 16).ok()?,
                number: field("number")?.parse().ok()?,
                lines: field("lines")?.to_owned(),
            })
        };
        let message = message().ok_or("it is not understood")?;
        if let Some(secret) = secret {
            let tag = field("sign").ok_or("it has no signature")?;
            let tag = lower::decode_vec(tag).unwrap_or_default();
            if !secret.verifies(&[message.signed(stream).as_bytes()], &tag) {
                return Err("its signature is wrong");
            }
        }
        Ok(message)
    }
}

/// Whether a node may be called so.
pub(super) fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// An entry: its name, and its fields.
pub(super) fn entry(reply: &Reply) -> Option<(Id, &[Reply])> {
    let [id, fields] = reply.list()? else { return None };
    Some((Id::parse(id.text()?)?, fields.list()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use yorozu_cache::Key;

    fn replies(fields: &[(&str, String)]) -> Vec<Reply> {
        let text = |text: &str| Reply::Text(text.into());
        fields.iter().flat_map(|(name, value)| [text(name), text(value)]).collect()
    }

    #[test]
    fn lines_are_read_back() {
        let page = Purge::Page(Key::new(bytes::Bytes::from_static(b"http \n\0\xff/")));
        let one = Purged {
            zone: "my zone".to_owned(),
            mode: PurgeMode::Soft,
            purges: [page, Purge::All].into(),
        };
        let other = Purged { zone: "b".to_owned(), ..one.clone() };
        let lines = [one.to_lines(), "later kind of line\n".to_owned(), other.to_lines()].concat();
        assert_eq!(purged(&lines), [one, other]);
        assert_eq!(purged(WAIT), []);
        let all = Purged {
            zone: "my zone".to_owned(),
            mode: PurgeMode::Soft,
            purges: [Purge::All].into(),
        };
        assert_eq!(purged("soft later:00 my zone\n"), [all]);
    }

    #[test]
    fn every_field_is_signed() {
        let secret = Secret::new(b"secret");
        let epoch = Some(Epoch::Begins(9));
        let about = About { waits: true, taken: Some((2, Id(5, 6))), epoch };
        let message = Message::new("a", 7, 3, "soft all: zone\n", about);
        assert_eq!((message.is_waited_for(), message.taken()), (true, about.taken));
        assert_eq!(message.epoch(), epoch);
        assert_eq!(purged(&message.lines).len(), 1);
        let fields = message.fields("s", Some(&secret));
        let read = |fields: &[(&str, String)], stream| {
            Message::read(&replies(fields), stream, Some(&secret))
        };
        assert_eq!(read(&fields, "s"), Ok(message.clone()));
        assert!(read(&fields, "t").is_err(), "of another stream");
        for (at, value) in [(0, "b"), (1, "8"), (2, "4"), (3, ""), (4, "00")] {
            let mut changed = fields.clone();
            changed[at].1 = value.to_owned();
            assert!(read(&changed, "s").is_err(), "{}", fields[at].0);
        }
        assert!(read(&fields[..4], "s").is_err(), "without a signature");
        assert_eq!(Message::read(&replies(&fields), "s", None), Ok(message));
    }
}
