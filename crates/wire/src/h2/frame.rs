//! Frames (RFC 9113, sections 4 and 6).

/// What a client begins with (section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 9;
/// Longest payload that everyone takes (section 4.2), in bytes.
pub const PAYLOAD_BYTES: usize = 16 * 1024;
/// Largest window (section 6.9.1), in bytes.
pub const WINDOW_MAX: i64 = (1 << 31) - 1;
/// The highest number of a stream (RFC 9113, section 5.1.1).
pub const STREAM_MAX: u32 = (1 << 31) - 1;
/// A window before anything is said of it (section 6.9.2), in bytes.
pub const WINDOW_BYTES: i64 = 65_535;

/// Types of frames (section 6).
#[expect(missing_docs, reason = "the RFC's names")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames (section 6).
#[expect(missing_docs, reason = "the RFC's names")]
pub mod flag {
    pub const ACK: u8 = 1;
    pub const END_STREAM: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 32;
}

/// Settings (section 6.5.2).
#[expect(missing_docs, reason = "the RFC's names")]
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Why a stream or a connection ends (section 7).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Code(pub u32);

#[expect(missing_docs, reason = "the RFC's names")]
impl Code {
    pub const NO_ERROR: Self = Self(0);
    pub const PROTOCOL_ERROR: Self = Self(1);
    pub const INTERNAL_ERROR: Self = Self(2);
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    pub const STREAM_CLOSED: Self = Self(5);
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    pub const REFUSED_STREAM: Self = Self(7);
    pub const CANCEL: Self = Self(8);
    pub const COMPRESSION_ERROR: Self = Self(9);
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
}

/// A frame that breaks the rules.
pub type Broken = crate::Broken<Code>;

/// The head of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Head {
    /// Bytes of the payload.
    pub length: usize,
    /// One of [`kind`], or another.
    pub kind: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// The stream; 0 for the connection.
    pub stream: u32,
}

impl Head {
    /// The head, as soon as all of it is there.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, d, e, f, g] = *bytes.first_chunk()?;
        Some(Self {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([d & 127, e, f, g]),
        })
    }

    /// The head in bytes.
    ///
    /// # Panics
    /// The payload is longer than a frame's can be.
    pub fn bytes(&self) -> [u8; HEAD_BYTES] {
        let length = u32::try_from(self.length).expect("a frame's length");
        let [zero, a, b, c] = length.to_be_bytes();
        assert_eq!(zero, 0, "a frame's length");
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }

    /// Whether a flag is set.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A frame that a peer may send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Frame<'a> {
    /// A piece of content.
    Data(&'a [u8]),
    /// The first part of a block of fields.
    Headers(&'a [u8]),
    /// Its further parts.
    Continuation(&'a [u8]),
    /// The peer gives the stream up.
    Reset(Code),
    /// Changed settings: pairs, read by [`settings`].
    Settings(&'a [u8]),
    /// The peer has read our settings.
    SettingsAck,
    /// To be sent back.
    Ping([u8; 8]),
    /// The answer to a PING.
    Pong([u8; 8]),
    /// Room for this many bytes more.
    WindowUpdate(u32),
    /// The peer's farewell: the last stream of ours that it worked on or may work on, and why it goes.
    Goaway(u32, Code),
    /// Says nothing: priorities, answers to our pings, kinds that are not known.
    Other,
}

/// Reads the payload of a frame.
///
/// # Errors
/// [`Broken`], by the rules that hold for a frame by itself.
pub fn read<'a>(head: &Head, payload: &'a [u8]) -> Result<Frame<'a>, Broken> {
    let for_stream = |text| match head.stream {
        0 => Err(Broken::Connection(Code::PROTOCOL_ERROR, text)),
        _ => Ok(()),
    };
    let for_connection = |text| match head.stream {
        0 => Ok(()),
        _ => Err(Broken::Connection(Code::PROTOCOL_ERROR, text)),
    };
    let size = |text| Broken::Connection(Code::FRAME_SIZE_ERROR, text);
    Ok(match head.kind {
        kind::DATA => {
            for_stream("DATA frame without a stream")?;
            Frame::Data(unpadded(head, payload)?)
        }
        kind::HEADERS => {
            for_stream("HEADERS frame without a stream")?;
            Frame::Headers(without_priority(head, unpadded(head, payload)?)?)
        }
        kind::CONTINUATION => {
            for_stream("CONTINUATION frame without a stream")?;
            Frame::Continuation(payload)
        }
        kind::PRIORITY => {
            for_stream("PRIORITY frame without a stream")?;
            let is_other =
                Broken::Stream(Code::FRAME_SIZE_ERROR, "PRIORITY frame of incorrect length");
            if depends_on_itself(head, payload.try_into().map_err(|_| is_other)?) {
                return Err(Broken::Stream(Code::PROTOCOL_ERROR, ON_ITSELF));
            }
            Frame::Other
        }
        kind::RST_STREAM => {
            for_stream("RST_STREAM frame without a stream")?;
            let is_other = size("RST_STREAM frame of incorrect length");
            Frame::Reset(Code(u32::from_be_bytes(payload.try_into().map_err(|_| is_other)?)))
        }
        kind::SETTINGS => {
            for_connection("SETTINGS frame of a stream")?;
            match head.has(flag::ACK) {
                true if payload.is_empty() => Frame::SettingsAck,
                false if payload.len().is_multiple_of(6) => Frame::Settings(payload),
                _ => return Err(size("SETTINGS frame of incorrect length")),
            }
        }
        kind::PUSH_PROMISE => {
            return Err(Broken::Connection(Code::PROTOCOL_ERROR, "PUSH_PROMISE frame"));
        }
        kind::PING => {
            for_connection("PING frame of a stream")?;
            let is_other = size("PING frame of incorrect length");
            let content = payload.try_into().map_err(|_| is_other)?;
            if head.has(flag::ACK) { Frame::Pong(content) } else { Frame::Ping(content) }
        }
        kind::GOAWAY => {
            for_connection("GOAWAY frame of a stream")?;
            let Some([a, b, c, d, e, f, g, h]) = payload.first_chunk() else {
                return Err(size("GOAWAY frame of incorrect length"));
            };
            let last = u32::from_be_bytes([a & 127, *b, *c, *d]);
            Frame::Goaway(last, Code(u32::from_be_bytes([*e, *f, *g, *h])))
        }
        kind::WINDOW_UPDATE => Frame::WindowUpdate(room(head, payload)?),
        _ => Frame::Other,
    })
}

/// How much more may be sent.
fn room(head: &Head, payload: &[u8]) -> Result<u32, Broken> {
    let text = "WINDOW_UPDATE frame of incorrect length";
    let is_other = Broken::Connection(Code::FRAME_SIZE_ERROR, text);
    let room = u32::from_be_bytes(payload.try_into().map_err(|_| is_other)?) & 0x7fff_ffff;
    let text = "WINDOW_UPDATE frame without room";
    match (room, head.stream) {
        (0, 0) => Err(Broken::Connection(Code::PROTOCOL_ERROR, text)),
        (0, _) => Err(Broken::Stream(Code::PROTOCOL_ERROR, text)),
        _ => Ok(room),
    }
}

fn unpadded<'a>(head: &Head, payload: &'a [u8]) -> Result<&'a [u8], Broken> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let broken = Broken::Connection(Code::PROTOCOL_ERROR, "padding longer than its frame");
    let (padding, rest) = payload.split_first().ok_or(broken)?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(broken)?;
    Ok(&rest[..length])
}

fn without_priority<'a>(head: &Head, payload: &'a [u8]) -> Result<&'a [u8], Broken> {
    if !head.has(flag::PRIORITY) {
        return Ok(payload);
    }
    let text = "HEADERS frame of incorrect length";
    let short = Broken::Connection(Code::FRAME_SIZE_ERROR, text);
    let (priority, rest) = payload.split_first_chunk().ok_or(short)?;
    match depends_on_itself(head, *priority) {
        // Not the stream's alone: its fields are not decoded, and those behind them may need them.
        true => Err(Broken::Connection(Code::PROTOCOL_ERROR, ON_ITSELF)),
        false => Ok(rest),
    }
}

const ON_ITSELF: &str = "stream that depends on itself";

/// Priorities have no effect; this is an error all the same.
fn depends_on_itself(head: &Head, [a, b, c, d, _]: [u8; 5]) -> bool {
    u32::from_be_bytes([a & 127, b, c, d]) == head.stream
}

/// The pairs of a SETTINGS frame: one of [`setting`] or another, and its value.
///
/// # Errors
/// [`Broken`], for values that are not allowed.
pub fn settings(payload: &[u8]) -> impl Iterator<Item = Result<(u16, u32), Broken>> {
    payload.chunks_exact(6).map(|pair| {
        let (name, value) = pair.split_at(2);
        let name = u16::from_be_bytes(name.try_into().expect("two of six"));
        let value = u32::from_be_bytes(value.try_into().expect("four of six"));
        let wrong = |code, text| Err(Broken::Connection(code, text));
        match name {
            setting::ENABLE_PUSH if value > 1 => {
                wrong(Code::PROTOCOL_ERROR, "invalid ENABLE_PUSH value")
            }
            setting::INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_MAX => {
                wrong(Code::FLOW_CONTROL_ERROR, "invalid INITIAL_WINDOW_SIZE value")
            }
            setting::MAX_FRAME_SIZE if !(1 << 14..1 << 24).contains(&value) => {
                wrong(Code::PROTOCOL_ERROR, "invalid MAX_FRAME_SIZE value")
            }
            _ => Ok((name, value)),
        }
    })
}

/// Appends a frame.
pub fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&Head { length: payload.len(), kind, flags, stream }.bytes());
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<Frame<'_>, Broken> {
        let mut bytes = Vec::new();
        write(&mut bytes, kind, flags, stream, payload);
        let head = Head::read(&bytes).unwrap();
        assert_eq!(head, Head { length: payload.len(), kind, flags, stream });
        read(&head, payload)
    }

    #[test]
    fn frames_are_read() {
        assert_eq!(of(kind::DATA, flag::PADDED, 1, b"\x02abPP"), Ok(Frame::Data(b"ab")));
        assert_eq!(of(kind::DATA, flag::PADDED, 1, b"\x02PP"), Ok(Frame::Data(b"")));
        let priority = flag::PADDED | flag::PRIORITY;
        assert_eq!(
            of(kind::HEADERS, priority, 3, b"\x01\0\0\0\x01\x10hP"),
            Ok(Frame::Headers(b"h"))
        );
        assert_eq!(of(kind::HEADERS, 0, 3, b"header"), Ok(Frame::Headers(b"header")));
        assert_eq!(of(kind::WINDOW_UPDATE, 0, 0, &[128, 0, 0, 9]), Ok(Frame::WindowUpdate(9)));
        assert_eq!(of(kind::PING, flag::ACK, 0, b"12345678"), Ok(Frame::Pong(*b"12345678")));
        let farewell = Frame::Goaway(5, Code::ENHANCE_YOUR_CALM);
        assert_eq!(of(kind::GOAWAY, 0, 0, b"\x80\0\0\x05\0\0\0\x0bwhy"), Ok(farewell));
        assert_eq!(of(200, 255, 7, b"anything"), Ok(Frame::Other));
        assert_eq!(Head::read(&[0; 8]), None);
    }

    #[test]
    fn broken_frames_end_what_they_concern() {
        let connection = |kind, flags, stream, payload| match of(kind, flags, stream, payload) {
            Err(Broken::Connection(code, _)) => code.0,
            other => panic!("{other:?}"),
        };
        assert_eq!(connection(kind::DATA, 0, 0, b""), 1);
        assert_eq!(connection(kind::DATA, flag::PADDED, 1, b""), 1);
        assert_eq!(connection(kind::DATA, flag::PADDED, 1, b"\x03ab"), 1);
        assert_eq!(connection(kind::HEADERS, flag::PRIORITY, 1, b"abcd"), 6);
        assert_eq!(connection(kind::SETTINGS, flag::ACK, 0, b"123456"), 6);
        assert_eq!(connection(kind::SETTINGS, 0, 0, b"12345"), 6);
        assert_eq!(connection(kind::SETTINGS, 0, 1, b""), 1);
        assert_eq!(connection(kind::PUSH_PROMISE, 0, 1, b""), 1);
        assert_eq!(connection(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), 1);
        assert_eq!(connection(kind::RST_STREAM, 0, 1, b"12345"), 6);
        let itself = of(kind::PRIORITY, 0, 5, &[0, 0, 0, 5, 1]);
        assert!(matches!(itself, Err(Broken::Stream(Code::PROTOCOL_ERROR, _))));
        let window = of(kind::WINDOW_UPDATE, 0, 5, &[0; 4]);
        assert!(matches!(window, Err(Broken::Stream(Code::PROTOCOL_ERROR, _))));
    }

    #[test]
    fn settings_are_judged() {
        let one = |name: u16, value: u32| {
            let pair = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
            settings(&pair).next().unwrap()
        };
        assert_eq!(one(setting::INITIAL_WINDOW_SIZE, 7), Ok((4, 7)));
        assert_eq!(one(99, u32::MAX), Ok((99, u32::MAX)));
        for (name, value) in [(2, 2), (4, 1 << 31), (5, 16_383), (5, 1 << 24)] {
            assert!(one(name, value).is_err(), "{name} {value}");
        }
    }
}
