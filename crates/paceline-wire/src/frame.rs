//! The header of a message on a byte stream, and its checks.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic |
//! | 4..6 | version |
//! | 6..8 | 0; of a body that stays in its sender's memory ([`LentPlace`]): 1 and 7 bits of slot, 8 bits of file |
//! | 8..12 | number of the frame on this connection and direction, from 0 |
//! | 12..16 | length of the body in bytes |
//! | 16..20 | CRC-32 of the body; 0 over shared memory, where there is no line on which a bit could flip; of a body that
//! stays in its sender's memory: its first element there |
//! | 20..68 | the caller's 48 bytes |
//! | 68..72 | CRC-32 of the bytes before |
//!
//! Numbers are little-endian. The body follows the header, unless it stays where it is.

use crate::error::WireError;
use crate::transport::{META, Meta};

/// Bytes of a header.
pub const HEADER: usize = 72;
/// The version of frames and handshake.
pub const VERSION: u16 = 1;
/// The longest body that a header can express, in elements.
pub const LONGEST: usize = u32::MAX as usize / 4;

const MAGIC: [u8; 4] = *b"PLwf";
const SUMMED: usize = HEADER - 4;
/// The flag of a body that stays in its sender's memory.
const LENT: u16 = 1 << 15;

/// Where a body lies that stays in its sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentPlace {
    /// Which of the memory files that the sender has handed over.
    pub file: u8,
    /// Where its end is told, below [`LentPlace::SLOTS`].
    pub slot: u8,
    /// Its first element in the file.
    pub offset: u32,
}

impl LentPlace {
    /// Bodies that are lent at a time, in one direction; more are sent.
    pub const SLOTS: u8 = 128;
}

/// A header's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of the frame: a frame left out or doubled is noticed.
    pub sequence: u32,
    /// Length of the body in bytes.
    pub bytes: u32,
    /// CRC-32 of the body.
    pub checksum: u32,
    /// The caller's bytes.
    pub meta: Meta,
    /// Where the body lies, if it does not follow.
    pub place: Option<LentPlace>,
}

/// The CRC-32 of a body.
pub fn checksum(body: &[f32]) -> u32 {
    crc32fast::hash(bytemuck::cast_slice(body))
}

impl Header {
    /// The header as it travels.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        out[12..16].copy_from_slice(&self.bytes.to_le_bytes());
        out[16..20].copy_from_slice(&self.checksum.to_le_bytes());
        if let Some(LentPlace { file, slot, offset }) = self.place {
            let flags = LENT | u16::from(slot & 0x7f) << 8 | u16::from(file);
            out[6..8].copy_from_slice(&flags.to_le_bytes());
            out[16..20].copy_from_slice(&offset.to_le_bytes());
        }
        out[20..20 + META].copy_from_slice(&self.meta);
        let sum = crc32fast::hash(&out[..SUMMED]);
        out[SUMMED..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a header that must be frame number `sequence` with at most `max_body` elements; whether they may stay where
    /// they are is said by `lends`.
    pub fn decode(
        bytes: &[u8; HEADER],
        sequence: u32,
        max_body: usize,
        lends: bool,
    ) -> Result<Self, WireError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..4] != MAGIC {
            return Err(wrong(format!("magic bytes {MAGIC:02x?}"), format!("{:02x?}", &bytes[..4])));
        }
        if half(4) != VERSION {
            return Err(wrong(format!("version {VERSION}"), format!("version {}", half(4))));
        }
        let sum = crc32fast::hash(&bytes[..SUMMED]);
        if word(SUMMED) != sum {
            let found = format!("{:#010x}", word(SUMMED));
            return Err(wrong(format!("header checksum {sum:#010x}"), found));
        }
        let flags = half(6);
        if flags != 0 && !(lends && flags & LENT != 0) {
            return Err(wrong("no flags".into(), format!("flags {flags:#06x}")));
        }
        if word(8) != sequence {
            return Err(wrong(format!("frame number {sequence}"), format!("frame number {}", word(8))));
        }
        let length = word(12);
        if !length.is_multiple_of(4) || length as usize / 4 > max_body {
            let expected = format!("a body of whole elements, at most {max_body}");
            return Err(wrong(expected, format!("{length} bytes")));
        }
        let mut meta = [0; META];
        meta.copy_from_slice(&bytes[20..20 + META]);
        let place = (flags != 0).then(|| LentPlace {
            file: flags as u8,
            slot: (flags >> 8) as u8 & 0x7f,
            offset: word(16),
        });
        let checksum = if place.is_none() { word(16) } else { 0 };
        Ok(Self { sequence, bytes: length, checksum, meta, place })
    }

    /// Compares the checksum of the body that came with the one announced.
    pub fn check_body(&self, sum: u32) -> Result<(), WireError> {
        if sum == self.checksum {
            return Ok(());
        }
        Err(wrong(format!("body checksum {:#010x}", self.checksum), format!("{sum:#010x}")))
    }
}

fn wrong(expected: String, found: String) -> WireError {
    WireError::Frame { expected, found }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        let meta = std::array::from_fn(|i| i as u8);
        Header { sequence: 7, bytes: 40, checksum: 0x1234_5678, meta, place: None }
    }

    fn complaint(bytes: &[u8; HEADER]) -> String {
        Header::decode(bytes, 7, 10, false).unwrap_err().to_string()
    }

    #[test]
    fn a_header_comes_back_as_it_was() {
        assert_eq!(Header::decode(&header().encode(), 7, 10, false).unwrap(), header());
        let place = Some(LentPlace { file: 255, slot: 127, offset: u32::MAX });
        let lent = Header { checksum: 0, place, ..header() };
        assert_eq!(Header::decode(&lent.encode(), 7, 10, true).unwrap(), lent);
        assert!(complaint(&lent.encode()).ends_with("expected no flags, found flags 0xffff"));
    }

    #[test]
    fn each_violation_is_named() {
        let mut bytes = header().encode();
        bytes[4] = 9;
        assert_eq!(complaint(&bytes), "bad frame: expected version 1, found version 9");
        let doubled = Header { sequence: 6, ..header() };
        assert!(complaint(&doubled.encode()).contains("expected frame number 7, found frame number 6"));
        for bytes in [44, 41, 1 << 31, u32::MAX] {
            let long = Header { bytes, ..header() };
            assert!(complaint(&long.encode()).ends_with(&format!("at most 10, found {bytes} bytes")));
        }
        assert!(header().check_body(1).unwrap_err().to_string().contains("body checksum 0x12345678, found"));
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(bit in 0..HEADER * 8) {
            let mut bytes = header().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&bytes, 7, 10, true).is_err());
        }

        #[test]
        fn random_bytes_never_panic(mut bytes in prop::array::uniform32(any::<u8>()), seal: bool) {
            let mut whole = [0; HEADER];
            whole[4..36].copy_from_slice(&bytes);
            bytes.reverse();
            whole[36..68].copy_from_slice(&bytes);
            if seal {
                whole[..6].copy_from_slice(&header().encode()[..6]);
                let sum = crc32fast::hash(&whole[..SUMMED]);
                whole[SUMMED..].copy_from_slice(&sum.to_le_bytes());
            }
            let _ = Header::decode(&whole, 7, LONGEST, seal);
        }
    }
}
