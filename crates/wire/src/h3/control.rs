//! Frames of a client's control stream, behind its type (RFC 9114, sections 6.2.1 and 7.2).

use super::frame::{Broken, Code, kind, read_integer, setting};
use super::incoming::{Incoming, Step};

/// Longest payload of SETTINGS, in bytes: more settings than there are names for.
const SETTINGS_BYTES_MAX: u64 = 4096;
/// Most bytes of an integer.
const INTEGER_BYTES_MAX: u64 = 8;
/// Frames of unknown kinds on one connection; clients send some to keep the protocol open (section 7.2.8).
const UNKNOWN_MAX: u32 = 16;

/// What a client says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Control {
    /// Comes first, and once.
    Settings(Settings),
    /// It takes no pushes from this number on: none was sent.
    GoAway(u64),
    /// It would take pushes up to this number: none is sent.
    MaxPushId(u64),
    /// The request on this stream has another priority (RFC 9218, section 7.2).
    PriorityUpdate(u64),
}

/// What a client takes. As long as it has not said so: this.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Settings {
    /// Largest dynamic table for what it is sent, in bytes.
    pub table_capacity: u64,
    /// Streams that may wait for entries of that table.
    pub blocked_streams: u64,
    /// Largest field section, as section 4.2.2 counts it.
    pub field_section_bytes_max: Option<u64>,
}

/// Reads a control stream as it arrives.
#[derive(Debug, Default)]
pub struct Reader {
    incoming: Incoming,
    has_settings: bool,
    /// The payload that is read.
    payload: Vec<u8>,
    unknown: u32,
    push_id_max: Option<u64>,
    goaway: Option<u64>,
}

fn connection(code: Code, text: &'static str) -> Broken {
    Broken::Connection(code, text)
}

impl Reader {
    /// Takes of `bytes`; `None` when all of them are taken.
    ///
    /// # Errors
    /// [`Broken`]
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Control>, Broken> {
        while let Some(step) = self.incoming.next(bytes) {
            let found = match step {
                Step::Begins { kind, length, .. } => {
                    self.begin(kind, length)?;
                    None
                }
                Step::Payload { kind, part, left } => self.payload(kind, part, left)?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Judges a frame that begins.
    fn begin(&mut self, kind: u64, length: u64) -> Result<(), Broken> {
        self.payload.clear();
        if !self.has_settings && kind != kind::SETTINGS {
            return Err(connection(Code::MISSING_SETTINGS, "client sent no SETTINGS frame first"));
        }
        match kind {
            kind::SETTINGS if self.has_settings => {
                Err(connection(Code::FRAME_UNEXPECTED, "client sent a second SETTINGS frame"))
            }
            kind::SETTINGS if length > SETTINGS_BYTES_MAX => {
                Err(connection(Code::EXCESSIVE_LOAD, "client sent too long SETTINGS frame"))
            }
            kind::SETTINGS => {
                self.has_settings = true;
                Ok(())
            }
            kind::GOAWAY | kind::MAX_PUSH_ID | kind::CANCEL_PUSH if length > INTEGER_BYTES_MAX => {
                Err(connection(Code::FRAME_ERROR, "client sent frame of incorrect length"))
            }
            kind::GOAWAY
            | kind::MAX_PUSH_ID
            | kind::CANCEL_PUSH
            | kind::PRIORITY_UPDATE
            | kind::PRIORITY_UPDATE_OF_PUSH => Ok(()),
            kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => {
                let text = "client sent unexpected frame on the control stream";
                Err(connection(Code::FRAME_UNEXPECTED, text))
            }
            _ if kind::is_reserved(kind) => {
                Err(connection(Code::FRAME_UNEXPECTED, "client sent frame of HTTP/2"))
            }
            _ => {
                self.unknown += 1;
                match self.unknown > UNKNOWN_MAX {
                    true => {
                        let text = "client sent too many frames of unknown types";
                        Err(connection(Code::EXCESSIVE_LOAD, text))
                    }
                    false => Ok(()),
                }
            }
        }
    }

    fn payload(&mut self, kind: u64, part: &[u8], left: u64) -> Result<Option<Control>, Broken> {
        let wanted = match kind {
            kind::SETTINGS | kind::GOAWAY | kind::MAX_PUSH_ID | kind::CANCEL_PUSH => part.len(),
            // The number of the stream; what it wants is not looked at.
            kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_OF_PUSH => {
                (INTEGER_BYTES_MAX as usize - self.payload.len()).min(part.len())
            }
            _ => return Ok(None),
        };
        self.payload.extend_from_slice(&part[..wanted]);
        if left > 0 {
            return Ok(None);
        }
        Ok(Some(match kind {
            kind::SETTINGS => Control::Settings(settings(&self.payload)?),
            kind::GOAWAY => self.go_away()?,
            kind::MAX_PUSH_ID => self.max_push_id()?,
            kind::PRIORITY_UPDATE => self.priority_update()?,
            // There is no push that either could mean.
            _ => return Err(connection(Code::ID_ERROR, "client sent number of an unknown push")),
        }))
    }

    /// A payload that is an integer.
    fn integer(&self) -> Result<u64, Broken> {
        match read_integer(&self.payload) {
            Some((value, length)) if length == self.payload.len() => Ok(value),
            _ => Err(connection(Code::FRAME_ERROR, "client sent frame of incorrect length")),
        }
    }

    fn go_away(&mut self) -> Result<Control, Broken> {
        let id = self.integer()?;
        if self.goaway.replace(id).is_some_and(|before| id > before) {
            return Err(connection(Code::ID_ERROR, "client sent greater number in GOAWAY frame"));
        }
        Ok(Control::GoAway(id))
    }

    fn max_push_id(&mut self) -> Result<Control, Broken> {
        let id = self.integer()?;
        if self.push_id_max.replace(id).is_some_and(|before| id < before) {
            let text = "client sent lower number in MAX_PUSH_ID frame";
            return Err(connection(Code::ID_ERROR, text));
        }
        Ok(Control::MaxPushId(id))
    }

    fn priority_update(&self) -> Result<Control, Broken> {
        let (id, _) = read_integer(&self.payload).ok_or_else(|| {
            connection(Code::FRAME_ERROR, "client sent frame of incorrect length")
        })?;
        // Requests are on the streams that clients open in both directions.
        match id % 4 {
            0 => Ok(Control::PriorityUpdate(id)),
            _ => Err(connection(Code::ID_ERROR, "client sent priority of no request")),
        }
    }
}

/// The pairs of a SETTINGS frame (section 7.2.4).
fn settings(mut pairs: &[u8]) -> Result<Settings, Broken> {
    let mut settings = Settings::default();
    let (mut has_capacity, mut has_blocked) = (false, false);
    let broken = |text| Err(connection(Code::SETTINGS_ERROR, text));
    while !pairs.is_empty() {
        let pair = read_integer(pairs).and_then(|(name, name_bytes)| {
            let (value, value_bytes) = read_integer(&pairs[name_bytes..])?;
            Some((name, value, name_bytes + value_bytes))
        });
        let Some((name, value, length)) = pair else {
            let text = "client sent SETTINGS frame of incorrect length";
            return Err(connection(Code::FRAME_ERROR, text));
        };
        pairs = &pairs[length..];
        let is_second = match name {
            setting::QPACK_MAX_TABLE_CAPACITY => {
                settings.table_capacity = value;
                std::mem::replace(&mut has_capacity, true)
            }
            setting::QPACK_BLOCKED_STREAMS => {
                settings.blocked_streams = value;
                std::mem::replace(&mut has_blocked, true)
            }
            setting::MAX_FIELD_SECTION_SIZE => {
                settings.field_section_bytes_max.replace(value).is_some()
            }
            _ if setting::is_reserved(name) => return broken("client sent setting of HTTP/2"),
            _ => false,
        };
        if is_second {
            return broken("client sent a setting twice");
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::super::frame::{put_head, put_integer};
    use super::*;

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_head(&mut out, kind, payload.len() as u64);
        out.extend_from_slice(payload);
        out
    }

    fn read(bytes: &[u8], size: usize) -> Result<Vec<Control>, Broken> {
        let (mut reader, mut found) = (Reader::default(), Vec::new());
        for mut piece in bytes.chunks(size) {
            while let Some(control) = reader.next(&mut piece)? {
                found.push(control);
            }
        }
        Ok(found)
    }

    fn code(frames: &[Vec<u8>]) -> Code {
        match read(&frames.concat(), 3) {
            Err(Broken::Connection(code, _)) => code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_clients_say_is_read() {
        let stream = [
            frame(kind::SETTINGS, &[1, 0x50, 0, 33, 5, 7, 16, 6, 0x80, 1, 0, 0]),
            frame(kind::MAX_PUSH_ID, &[3]),
            frame(33, b"grease"),
            frame(kind::PRIORITY_UPDATE, b"\x40\x44u=1, i and much more"),
            frame(kind::MAX_PUSH_ID, &[3]),
            frame(kind::GOAWAY, &[0]),
        ]
        .concat();
        let settings = Settings {
            table_capacity: 4096,
            blocked_streams: 16,
            field_section_bytes_max: Some(65_536),
        };
        let expected = [
            Control::Settings(settings),
            Control::MaxPushId(3),
            Control::PriorityUpdate(68),
            Control::MaxPushId(3),
            Control::GoAway(0),
        ];
        for size in 1..=stream.len() {
            assert_eq!(read(&stream, size).unwrap(), expected);
        }
        assert_eq!(read(&[4, 0], 1).unwrap(), [Control::Settings(Settings::default())]);
    }

    #[test]
    fn settings_come_first_and_once() {
        let settings = frame(kind::SETTINGS, &[]);
        assert_eq!(code(&[frame(kind::GOAWAY, &[0])]), Code::MISSING_SETTINGS);
        assert_eq!(code(&[frame(33, &[]), settings.clone()]), Code::MISSING_SETTINGS);
        assert_eq!(code(&[settings.clone(), settings]), Code::FRAME_UNEXPECTED);
    }

    #[test]
    fn settings_are_judged() {
        let of = |pairs: &[u8]| code(&[frame(kind::SETTINGS, pairs)]);
        for reserved in [0, 2, 3, 4, 5] {
            assert_eq!(of(&[reserved, 1]), Code::SETTINGS_ERROR);
        }
        for name in [1, 6, 7] {
            assert_eq!(of(&[name, 1, name, 1]), Code::SETTINGS_ERROR);
        }
        assert_eq!(of(&[1]), Code::FRAME_ERROR);
        assert_eq!(of(&[1, 0x40]), Code::FRAME_ERROR);
        let mut long = Vec::new();
        put_head(&mut long, kind::SETTINGS, SETTINGS_BYTES_MAX + 1);
        assert_eq!(code(&[long]), Code::EXCESSIVE_LOAD, "before its payload");
    }

    #[test]
    fn frames_of_other_streams_are_refused() {
        for kind in [kind::DATA, kind::HEADERS, kind::PUSH_PROMISE, 2, 6, 8, 9] {
            let frames = [frame(kind::SETTINGS, &[]), frame(kind, &[])];
            assert_eq!(code(&frames), Code::FRAME_UNEXPECTED, "{kind}");
        }
    }

    #[test]
    fn numbers_go_one_way() {
        let of = |frames: &[Vec<u8>]| code(&[&[frame(kind::SETTINGS, &[])], frames].concat());
        let push = |id| frame(kind::MAX_PUSH_ID, &[id]);
        assert_eq!(of(&[push(4), push(3)]), Code::ID_ERROR);
        let goaway = |id| frame(kind::GOAWAY, &[id]);
        assert_eq!(of(&[goaway(4), goaway(3), goaway(4)]), Code::ID_ERROR);
        assert_eq!(of(&[frame(kind::CANCEL_PUSH, &[0])]), Code::ID_ERROR);
        assert_eq!(of(&[frame(kind::PRIORITY_UPDATE_OF_PUSH, &[0])]), Code::ID_ERROR);
        assert_eq!(of(&[frame(kind::PRIORITY_UPDATE, &[1])]), Code::ID_ERROR);
        assert_eq!(of(&[frame(kind::PRIORITY_UPDATE, &[])]), Code::FRAME_ERROR);
        for kind in [kind::GOAWAY, kind::MAX_PUSH_ID, kind::CANCEL_PUSH] {
            if kind != kind::CANCEL_PUSH {
                assert_eq!(of(&[frame(kind, &[])]), Code::FRAME_ERROR);
                assert_eq!(of(&[frame(kind, &[0, 0])]), Code::FRAME_ERROR);
                assert_eq!(of(&[frame(kind, &[0x40])]), Code::FRAME_ERROR);
            }
            assert_eq!(of(&[frame(kind, &[0; 9])]), Code::FRAME_ERROR);
        }
    }

    #[test]
    fn few_frames_of_unknown_types_are_skipped() {
        let mut stream = vec![frame(kind::SETTINGS, &[])];
        stream.extend((0..u64::from(UNKNOWN_MAX)).map(|number| {
            let mut payload = Vec::new();
            put_integer(&mut payload, number);
            frame(0x1f * number + 0x21, &payload)
        }));
        assert_eq!(read(&stream.concat(), 5).unwrap().len(), 1);
        stream.push(frame(33, &[]));
        assert_eq!(code(&stream), Code::EXCESSIVE_LOAD);
    }
}
