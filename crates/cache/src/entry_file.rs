//! An entry's file: written whole, read and verified whole.

use crate::entry::{Entry, EntryBody, EntryHead, PREFIX_BYTES, Prefix, decode_forms, encode_form};
use crate::files::{self, failed};
use crate::lent::Account;
use crate::{Key, StoreError};
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

/// What lies in a file.
pub(crate) enum Content {
    /// The key's entry.
    Entry(Box<Entry>),
    /// It belongs to another key with the same digest.
    OtherKey,
    /// An entry of another version of the format.
    Outdated,
}

/// What a file's head says.
pub(crate) enum Head {
    Whole(Box<EntryHead>),
    /// An entry of another version of the format.
    Outdated,
    Damaged,
}

impl Head {
    pub(crate) fn whole(self) -> Option<EntryHead> {
        match self {
            Self::Whole(head) => Some(*head),
            Self::Outdated | Self::Damaged => None,
        }
    }
}

/// The head of the file at a path, if it is there and whole.
pub(crate) fn head_at(path: &Path) -> Option<EntryHead> {
    Opened::new(path).ok()?.head().ok()?.whole()
}

/// An open file of a name.
pub(crate) struct Opened {
    pub(crate) file: File,
    /// Tells it from others that get the name while it is open.
    pub(crate) identity: u64,
    pub(crate) bytes: u64,
}

impl Opened {
    /// Opens the file of a name.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let file = files::open(path)?;
        let (identity, bytes) = files::identity(&file)?;
        Ok(Self { file, identity, bytes })
    }

    /// Whether it still has the name.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        files::identity_at(path).is_ok_and(|found| found == Some(self.identity))
    }

    /// Its head alone.
    pub(crate) fn head(&self) -> io::Result<Head> {
        let read = |buffer: &mut [u8]| match files::read_exact(&self.file, buffer) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| true),
        };
        let mut prefix = [0; PREFIX_BYTES];
        if !read(&mut prefix)? {
            return Ok(Head::Damaged);
        }
        let (head_bytes, crc) = match EntryHead::prefix(&prefix) {
            Prefix::Head(head_bytes, crc) => (head_bytes, crc),
            Prefix::Other => return Ok(Head::Outdated),
            Prefix::Foreign => return Ok(Head::Damaged),
        };
        let mut head = vec![0; head_bytes];
        let head = if read(&mut head)? { EntryHead::decode(&head, crc) } else { None };
        Ok(head.map_or(Head::Damaged, |head| Head::Whole(Box::new(head))))
    }

    /// Reads and verifies it; bodies above `memory_max` stay in the file, what is read is on the account.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub(crate) fn read(
        &self,
        path: &Path,
        key: &Key,
        (memory_max, account): (u64, &Account),
        now: i64,
    ) -> Result<Content, StoreError> {
        let damaged = |what| StoreError::Damaged { path: path.to_owned(), what };
        let file = &self.file;
        let mut prefix = [0; PREFIX_BYTES];
        let read = |buffer: &mut [u8], what| {
            files::read_exact(file, buffer).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => damaged(what),
                _ => failed("read()", path)(error),
            })
        };
        read(&mut prefix, "shorter than its prefix")?;
        let (head_bytes, crc) = match EntryHead::prefix(&prefix) {
            Prefix::Head(head_bytes, crc) => (head_bytes, crc),
            Prefix::Other => return Ok(Content::Outdated),
            Prefix::Foreign => return Err(damaged("unknown format")),
        };
        let mut head = vec![0; head_bytes];
        read(&mut head, "shorter than its head")?;
        let head = EntryHead::decode(&head, crc).ok_or_else(|| damaged("head checksum"))?;
        if head.key != key.as_bytes() {
            return Ok(Content::OtherKey);
        }
        let body_at = (PREFIX_BYTES + head_bytes) as u64;
        let rest_bytes = self.bytes.checked_sub(body_at + head.body_bytes);
        let rest_bytes = rest_bytes.ok_or_else(|| damaged("length"))?;
        let body_end = body_at + head.body_bytes;
        let (body, forms) = if head.body_bytes <= memory_max {
            let both = bytes_at(file, body_at, self.bytes - body_at)
                .map_err(|error| cut_or_failed(error, path))?;
            let body_bytes = usize::try_from(head.body_bytes).unwrap_or(usize::MAX);
            let (end, both) = (both.len(), account.hold(both));
            let (body, forms) = (both.slice(0..body_bytes), both.slice(body_bytes..end));
            if crc32fast::hash(&body) != head.body_crc {
                return Err(damaged("body checksum"));
            }
            (EntryBody::Memory(body), forms)
        } else {
            let crc =
                crc_of(file, body_at..body_end).map_err(|error| cut_or_failed(error, path))?;
            if crc != head.body_crc {
                return Err(damaged("body checksum"));
            }
            let forms =
                bytes_at(file, body_end, rest_bytes).map_err(|error| cut_or_failed(error, path))?;
            let file = file.try_clone().map_err(failed("dup()", path))?;
            (EntryBody::File(Arc::new(file), body_at), account.hold(forms))
        };
        let entry = Entry::new(head, body, now);
        decode_forms(&forms, &entry).ok_or_else(|| damaged("another coding of the body"))?;
        Ok(Content::Entry(Box::new(entry)))
    }
}

/// Writes a whole entry; its length.
pub(crate) fn write(path: &Path, entry: &Entry) -> Result<u64, StoreError> {
    if let Some(folder) = path.parent() {
        // The folder may have been removed by hand while we run.
        files::make_folder(folder).map_err(failed("mkdir()", folder))?;
    }
    let file = files::create(path).map_err(failed("open()", path))?;
    let write =
        |file: &File, bytes: &[u8]| files::write(file, bytes).map_err(failed("write()", path));
    let head = entry.head.encode();
    write(&file, &head)?;
    let mut length = head.len() as u64 + entry.head.body_bytes;
    match &entry.body {
        EntryBody::Memory(bytes) => write(&file, bytes)?,
        EntryBody::File(source, offset) => {
            let body = *offset..offset + entry.head.body_bytes;
            each_piece(source, body, |piece| files::write(&file, piece))
                .map_err(failed("write()", path))?;
        }
    }
    for (place, form) in entry.forms.iter().enumerate() {
        let Some(made) = form.made() else { continue };
        let head = encode_form(place, made);
        write(&file, &head)?;
        write(&file, &made.1)?;
        length += (head.len() + made.1.len()) as u64;
    }
    Ok(length)
}

/// The body of a page in its named file, if that file still holds this page.
pub(crate) fn named_body(path: &Path, head: &EntryHead) -> Option<EntryBody> {
    let opened = Opened::new(path).ok()?;
    let found = opened.head().ok()?.whole()?;
    let is_same = found.began == head.began && found.body_crc == head.body_crc;
    let body_at = head.encode().len() as u64;
    (is_same && found.body_bytes == head.body_bytes)
        .then(|| EntryBody::File(Arc::new(opened.file), body_at))
}

fn cut_or_failed(error: io::Error, path: &Path) -> StoreError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            StoreError::Damaged { path: path.to_owned(), what: "length" }
        }
        _ => failed("read()", path)(error),
    }
}

/// Hands over what lies in a part of a file, piece by piece.
fn each_piece(
    file: &File,
    part: Range<u64>,
    mut act: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut at = part.start;
    while at < part.end {
        let room = buffer.len().min(usize::try_from(part.end - at).unwrap_or(usize::MAX));
        let count = files::read_at(file, &mut buffer[..room], at)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        act(&buffer[..count])?;
        at += count as u64;
    }
    Ok(())
}

fn bytes_at(file: &File, at: u64, length: u64) -> io::Result<Bytes> {
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    if !bytes.is_empty() {
        files::read_exact_at(file, &mut bytes, at)?;
    }
    Ok(bytes.into())
}

fn crc_of(file: &File, part: Range<u64>) -> io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    each_piece(file, part, |piece| {
        hasher.update(piece);
        Ok(())
    })?;
    Ok(hasher.finalize())
}

/// The bytes of a small body, from wherever it is.
pub(crate) fn body_bytes(body: &EntryBody, length: u64) -> io::Result<Bytes> {
    match body {
        EntryBody::Memory(bytes) => Ok(bytes.bytes()),
        EntryBody::File(file, offset) => {
            let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            file.read_exact_at(&mut bytes, *offset)?;
            Ok(bytes.into())
        }
    }
}
