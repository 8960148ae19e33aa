//! `charset_map`: tables from one encoding of text to another.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use yorozu_conf::{ConfError, Directive as Line};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::loader::{Loader, rows};
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::shared::Shared;
use yorozu_kernel::exchange::recode::Rewrite;

/// The encodings of a configuration.
#[derive(Debug, Default)]
pub struct Tables {
    /// By the encodings from and to, lower-case.
    pub by_names: BTreeMap<(Bytes, Bytes), Arc<Table>>,
    /// Those that some directive names, lower-case.
    names: BTreeSet<Bytes>,
}

impl Tables {
    /// A directive names an encoding.
    pub fn name(&mut self, name: &[u8]) {
        self.names.insert(name.to_ascii_lowercase().into());
    }

    pub fn is_named(&self, name: &[u8]) -> bool {
        self.names.contains(&name.to_ascii_lowercase()[..])
    }
}

impl Shared for Tables {
    fn place() -> &'static Place {
        place!()
    }
}

/// How text in one encoding is converted.
#[derive(Debug)]
pub enum Table {
    /// Byte for byte.
    Bytes(Box<[u8; 256]>),
    /// From bytes to UTF-8.
    ToUtf8(Vec<Bytes>),
    /// From UTF-8 to bytes.
    FromUtf8(HashMap<char, u8>),
}

impl Table {
    /// Whether byte positions and the length stay what they were.
    pub fn keeps_length(&self) -> bool {
        matches!(self, Self::Bytes(_))
    }
}

/// For what a table does not name.
const UNKNOWN: u8 = b'?';

pub const DIRECTIVES: &[Directive] = &[Directive::row(
    "charset_map",
    HTTP,
    Arity::TWO,
    Action::Open(open),
    "A table from one encoding to another and back: pairs of hexadecimal codes.",
)];

fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let names = [0, 1].map(|at| Bytes::from(line.args[at].to_ascii_lowercase()));
    let [from, to] = &names;
    let refuse = |text: String| ValueError(text).at(&line.at);
    if from == to {
        let name = String::from_utf8_lossy(from);
        let text = "\"charset_map\" between the same charsets";
        return Err(refuse(format!("{text} \"{name}\" and \"{name}\"")));
    }
    if &from[..] == b"utf-8" {
        return Err(refuse("\"charset_map\" from utf-8: write it the other way round".to_owned()));
    }
    let mut codes = Vec::new();
    for row in rows(line)? {
        let [code] = &row.args[..] else {
            return Err(ValueError::new("invalid parameters number").at(&row.at));
        };
        let invalid = |word: &[u8]| {
            let word = String::from_utf8_lossy(word).into_owned();
            ValueError(format!("invalid value \"{word}\"")).at(&row.at)
        };
        let number = |word: &[u8]| hexadecimal(word).ok_or_else(|| invalid(word));
        match &number(&row.name)?[..] {
            [byte] => codes.push((*byte, number(code)?)),
            _ => return Err(invalid(&row.name)),
        }
    }
    let mut known = loader.env.shared::<Tables>();
    names.iter().for_each(|name| known.name(name));
    let tables = &mut known.by_names;
    let there = (from.clone(), to.clone());
    if tables.contains_key(&there) {
        let [from, to] = names.map(|name| String::from_utf8_lossy(&name).into_owned());
        let text = format!("duplicate \"charset_map\" between \"{from}\" and \"{to}\"");
        return Err(refuse(text));
    }
    let invalid = || {
        refuse("invalid value in \"charset_map\": no UTF-8 sequence, or several bytes".to_owned())
    };
    let (forth, back) =
        if &to[..] == b"utf-8" { utf8(&codes) } else { bytes(&codes) }.ok_or_else(invalid)?;
    tables.insert(there, Arc::new(forth));
    tables.insert((to.clone(), from.clone()), Arc::new(back));
    Ok(())
}

/// `D18E`: up to four bytes.
fn hexadecimal(word: &[u8]) -> Option<Vec<u8>> {
    let digits = std::str::from_utf8(word).ok().filter(|digits| (1..=8).contains(&digits.len()))?;
    let number = u32::from_str_radix(digits, 16).ok()?;
    let bytes = number.to_be_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(3);
    Some(bytes[zeros..].to_vec())
}

fn bytes(codes: &[(u8, Vec<u8>)]) -> Option<(Table, Table)> {
    let ascii = || Box::new(std::array::from_fn(|at| if at < 128 { at as u8 } else { UNKNOWN }));
    let (mut forth, mut back): (Box<[u8; 256]>, Box<[u8; 256]>) = (ascii(), ascii());
    for (from, to) in codes {
        let [to] = to[..] else { return None };
        forth[usize::from(*from)] = to;
        back[usize::from(to)] = *from;
    }
    Some((Table::Bytes(forth), Table::Bytes(back)))
}

fn utf8(codes: &[(u8, Vec<u8>)]) -> Option<(Table, Table)> {
    let ascii = |byte: u8| Bytes::copy_from_slice(&[if byte < 128 { byte } else { UNKNOWN }]);
    let mut forth: Vec<Bytes> = (0..=255).map(ascii).collect();
    let mut back: HashMap<char, u8> = (0..128).map(|byte| (char::from(byte), byte)).collect();
    for (from, to) in codes {
        let text = std::str::from_utf8(to).ok()?;
        back.insert(text.chars().next()?, *from);
        forth[usize::from(*from)] = Bytes::copy_from_slice(to);
    }
    Some((Table::ToUtf8(forth), Table::FromUtf8(back)))
}

/// A table at work.
pub struct Recoding {
    table: Arc<Table>,
    /// The beginning of a character.
    kept: Vec<u8>,
}

impl Recoding {
    pub fn new(table: &Arc<Table>) -> Self {
        Self { table: Arc::clone(table), kept: Vec::new() }
    }
}

impl Rewrite for Recoding {
    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match &*self.table {
            Table::Bytes(table) => out.extend(bytes.iter().map(|byte| table[usize::from(*byte)])),
            Table::ToUtf8(table) => {
                bytes.iter().for_each(|byte| out.extend_from_slice(&table[usize::from(*byte)]));
            }
            Table::FromUtf8(table) => {
                self.kept.extend_from_slice(bytes);
                let kept = std::mem::take(&mut self.kept);
                self.kept = from_utf8(table, &kept, out).to_vec();
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.kept.is_empty() {
            out.push(UNKNOWN);
        }
    }
}

/// Returns the beginning of a character at the end. As nginx: a character without a code becomes a reference to it.
fn from_utf8<'t>(table: &HashMap<char, u8>, text: &'t [u8], out: &mut Vec<u8>) -> &'t [u8] {
    let mut chunks = text.utf8_chunks().peekable();
    let mut at = 0;
    while let Some(chunk) = chunks.next() {
        for character in chunk.valid().chars() {
            match table.get(&character) {
                Some(byte) => out.push(*byte),
                None => out.extend_from_slice(format!("&#{};", u32::from(character)).as_bytes()),
            }
        }
        at += chunk.valid().len();
        let is_begun = std::str::from_utf8(chunk.invalid()).is_err_and(|e| e.error_len().is_none());
        if chunks.peek().is_none() && is_begun {
            return &text[at..];
        }
        if !chunk.invalid().is_empty() {
            out.push(UNKNOWN);
        }
        at += chunk.invalid().len();
    }
    b""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recode(table: Table, text: &[u8]) -> String {
        let mut recoding = Recoding::new(&Arc::new(table));
        let mut out = Vec::new();
        text.chunks(1).for_each(|piece| recoding.write(piece, &mut out));
        recoding.finish(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn text_is_recoded_over_pieces() {
        let codes = [(0xc0, "ю".as_bytes().to_vec()), (0xa4, "€".as_bytes().to_vec())];
        let (forth, back) = utf8(&codes).unwrap();
        assert_eq!(recode(forth, b"a\xc0\xa4\xff"), "aю€?");
        assert_eq!(
            recode(back, "aю€é日".as_bytes()).as_bytes(),
            "a\u{fffd}\u{fffd}&#233;&#26085;".as_bytes()
        );
        let (_, back) = utf8(&codes).unwrap();
        assert_eq!(recode(back, b"x\xffy\xd1"), "x?y?");
        assert!(utf8(&[(1, vec![0xff])]).is_none());
        let (forth, back) = bytes(&[(b'X', vec![b'Y'])]).unwrap();
        assert_eq!(recode(forth, b"aX\xff"), "aY?");
        assert_eq!(recode(back, b"aY"), "aX");
    }
}
