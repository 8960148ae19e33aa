//! The uwsgi protocol: the packet of variables that starts a request. What follows it, and the answer, have no frames.
//!
//! # Source
//! uWSGI's documentation, "The uwsgi (lowercase) Protocol".

/// Bytes in front of the variables.
pub const HEAD_BYTES: usize = 4;

/// A packet that is being written.
#[derive(Debug)]
pub struct Packet {
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl Packet {
    /// One without variables.
    pub fn new(modifier1: u8, modifier2: u8) -> Self {
        Self { bytes: vec![modifier1, 0, 0, modifier2], is_too_long: false }
    }

    /// Adds a variable whose value `write` appends itself, and says whether it is wanted.
    pub fn pair_with(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool) {
        let start = self.bytes.len();
        self.is_too_long |= u16::try_from(name.len()).is_err();
        self.bytes.extend(low_u16(name.len()));
        self.bytes.extend_from_slice(name);
        let length_at = self.bytes.len();
        self.bytes.extend([0, 0]);
        if !write(&mut self.bytes) {
            self.bytes.truncate(start);
            return;
        }
        let length = self.bytes.len() - length_at - 2;
        self.is_too_long |= u16::try_from(length).is_err();
        self.bytes[length_at..length_at + 2].copy_from_slice(&low_u16(length));
    }

    /// The bytes. `Err`: how many the variables have, which is more than the head can say.
    ///
    /// # Errors
    /// More than 65535 bytes.
    pub fn finish(mut self) -> Result<Vec<u8>, usize> {
        let length = self.bytes.len() - HEAD_BYTES;
        if self.is_too_long || u16::try_from(length).is_err() {
            return Err(length);
        }
        self.bytes[1..3].copy_from_slice(&low_u16(length));
        Ok(self.bytes)
    }
}

/// The low sixteen bits, as they are sent: the lower byte first.
fn low_u16(length: usize) -> [u8; 2] {
    let [low, high, ..] = length.to_le_bytes();
    [low, high]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_its_head_and_its_variables() {
        let mut packet = Packet::new(5, 7);
        packet.pair_with(b"A", |out| {
            out.extend_from_slice(b"bc");
            true
        });
        packet.pair_with(b"EMPTY", |_| false);
        assert_eq!(packet.finish().unwrap(), b"\x05\x07\x00\x07\x01\x00A\x02\x00bc");
    }

    #[test]
    fn what_the_head_cannot_count_is_no_packet() {
        for (bytes, is_fine) in [(65530, true), (65531, false), (1 << 16, false)] {
            let mut packet = Packet::new(0, 0);
            packet.pair_with(b"A", |out| {
                out.resize(out.len() + bytes, b'x');
                true
            });
            assert_eq!(packet.finish().is_ok(), is_fine, "{bytes}");
        }
    }
}
