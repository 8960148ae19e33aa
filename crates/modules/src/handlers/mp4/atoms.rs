//! Atoms: a length, a name, and content, which may be atoms.

/// What is wrong with a file, in nginx's words, to which its path is added.
pub(super) type Problem = String;

/// Bytes of a head: a length of four bytes, or of eight behind the name.
const SHORT: u64 = 8;
const LONG: u64 = 16;
/// As many bytes are enough for any head.
pub(super) const HEAD_BYTES_MAX: usize = 16;

/// Where an atom and its content are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Head {
    pub(super) name: [u8; 4],
    pub(super) head_bytes: u64,
    /// With the head.
    pub(super) bytes: u64,
}

impl Head {
    /// Reads a head of which `left` bytes may be there; `None` behind the last atom.
    pub(super) fn read(input: &[u8], left: u64) -> Result<Option<Self>, Problem> {
        let Some((length, rest)) = input.split_first_chunk() else { return Ok(None) };
        let Some((name, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let short = u64::from(u32::from_be_bytes(*length));
        let long = rest.first_chunk().map(|length| u64::from_be_bytes(*length));
        let (bytes, head_bytes) = match (short, long) {
            // As nginx: an atom that goes on to the end is not looked at.
            (0, _) => return Ok(None),
            (1, Some(long)) => (long, LONG),
            (1, None) => return Err("mp4 atom is too small".to_owned()),
            (short, _) => (short, SHORT),
        };
        if bytes < head_bytes {
            return Err(format!("mp4 atom is too small:{bytes}"));
        }
        if bytes > left {
            return Err(format!("mp4 atom too large:{bytes}"));
        }
        Ok(Some(Self { name: *name, head_bytes, bytes }))
    }
}

/// An atom in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Atom<'a> {
    pub(super) name: [u8; 4],
    /// With its head.
    pub(super) whole: &'a [u8],
    pub(super) content: &'a [u8],
}

/// The atoms in some content.
pub(super) fn atoms(mut content: &[u8]) -> impl Iterator<Item = Result<Atom<'_>, Problem>> {
    std::iter::from_fn(move || {
        let head = Head::read(content, content.len() as u64).transpose()?;
        let atom = head.map(|head| {
            // It fits into the content, as was looked at.
            let (whole, rest) = content.split_at(usize::try_from(head.bytes).unwrap_or(0));
            content = rest;
            let head_bytes = usize::try_from(head.head_bytes).unwrap_or(0);
            Atom { name: head.name, whole, content: &whole[head_bytes..] }
        });
        if atom.is_err() {
            content = &[];
        }
        Some(atom)
    })
}

/// A number of four bytes.
pub(super) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Writes an atom, whose content `put` writes.
pub(super) fn write(
    out: &mut Vec<u8>,
    name: &[u8; 4],
    put: impl FnOnce(&mut Vec<u8>) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let start = out.len();
    out.extend([0; 4]);
    out.extend(name);
    put(out)?;
    let bytes = u32::try_from(out.len() - start);
    let bytes = bytes.map_err(|_| "mp4 moov atom is too large".to_owned())?;
    out[start..start + 4].copy_from_slice(&bytes.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_and_judged() {
        let head =
            |name: &[u8; 4], head_bytes, bytes| Some(Head { name: *name, head_bytes, bytes });
        assert_eq!(Head::read(b"\0\0\0\x0amdat..", 10), Ok(head(b"mdat", 8, 10)));
        let long = b"\0\0\0\x01mdat\0\0\0\x01\0\0\0\0";
        assert_eq!(Head::read(long, 1 << 40), Ok(head(b"mdat", 16, 1 << 32)));
        assert_eq!(Head::read(b"\0\0\0\0mdat", 10), Ok(None));
        assert_eq!(Head::read(b"\0\0\0", 10), Ok(None));
        for (bytes, why) in [
            (&b"\0\0\0\x07mdat"[..], "mp4 atom is too small:7"),
            (b"\0\0\0\x01mdat\0\0\0\0\0\0\0\x0f", "mp4 atom is too small:15"),
            (b"\0\0\0\x01mdat", "mp4 atom is too small"),
            (b"\0\0\0\x21mdat", "mp4 atom too large:33"),
        ] {
            assert_eq!(Head::read(bytes, 32), Err(why.to_owned()));
        }
    }

    #[test]
    fn atoms_follow_one_another() {
        let bytes = b"\0\0\0\x09aaaa1\0\0\0\x08bbbb\0\0\0\x30cccc";
        let found: Vec<_> = atoms(bytes).collect();
        assert_eq!((found.len(), found[0].as_ref().unwrap().content), (3, &b"1"[..]));
        assert_eq!(found[2].as_ref().unwrap_err(), "mp4 atom too large:48");
    }
}
