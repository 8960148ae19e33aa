//! What a client's decoder says (RFC 9204, section 4.4). Our encoder has no table, so there is little that it may say.

use crate::h3::frame::{Broken, Code};

/// Most bytes of a number.
const OCTETS_MAX: u32 = 10;

/// Reads a client's decoder stream as it arrives, behind its type.
#[derive(Debug, Default)]
pub struct Acknowledgments {
    /// How many bytes of an instruction were read.
    octets: u32,
}

impl Acknowledgments {
    /// Takes bytes: how many streams they say are not read. Nothing here bounds them.
    ///
    /// # Errors
    /// [`Broken`]: they acknowledge what was not sent, or are no instructions.
    pub fn read(&mut self, bytes: &[u8]) -> Result<u32, Broken> {
        let broken = |text| Err(Broken::Connection(Code::QPACK_DECODER_STREAM_ERROR, text));
        let mut cancellations = 0;
        for byte in bytes {
            let is_last = match self.octets {
                0 if byte >> 6 != 1 => {
                    return broken("client acknowledged fields that were not sent");
                }
                0 => byte & 63 < 63,
                OCTETS_MAX => return broken("client sent too great number"),
                _ => *byte < 128,
            };
            self.octets = if is_last { 0 } else { self.octets + 1 };
            cancellations += u32::from(is_last);
        }
        Ok(cancellations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_may_be_given_up() {
        let mut reader = Acknowledgments::default();
        assert_eq!(reader.read(&[0x48, 0x7f]), Ok(1));
        assert_eq!(reader.read(&[0x80]), Ok(0));
        assert_eq!(reader.read(&[0x01, 0x40]), Ok(2));
    }

    #[test]
    fn nothing_else_is_true() {
        for bytes in [&[0x80][..], &[0x84], &[0x01], &[0x00], &[0x40, 0x02], &[0xff; 11]] {
            assert!(Acknowledgments::default().read(bytes).is_err(), "{bytes:x?}");
        }
        let endless = [&[0x7f][..], &[0xff; 10]].concat();
        assert!(Acknowledgments::default().read(&endless).is_err());
    }
}
