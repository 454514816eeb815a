//! How a message's tag and head travel: the wire's opaque bytes.

use paceline_protocol::{MessageHead, Tag, WorkerLoad};
use paceline_wire::{META, Meta};

/// A phase that no strategy uses: the sender has finished and will close its end.
pub const GOODBYE: u32 = u32::MAX;
/// An empty message that wants to come back at once: how long that takes is measured before the first step.
pub const GREETING: u32 = u32::MAX - 1;
/// A greeting that has come back.
pub const ANSWER: u32 = u32::MAX - 2;
/// The sender's learning rate from its next message on, as a multiple of the first one (`u32::MAX - 3` is a worker's that
/// leaves).
pub const RATE: u32 = u32::MAX - 4;

/// Packs a tag and a head, and whether there is a body: an empty one is not the same as none.
pub fn pack(tag: Tag, head: MessageHead, body: bool) -> Meta {
    let mut meta = [0; META];
    // The upper bits are the positions': 0 where a rank has one.
    meta[14] = u8::from(body) | head.of.0 << 1;
    meta[15] = u8::from(head.together) | head.of.1 << 1;
    meta[0..4].copy_from_slice(&tag.generation.to_le_bytes());
    meta[4..8].copy_from_slice(&tag.step.to_le_bytes());
    meta[8..12].copy_from_slice(&tag.bucket.to_le_bytes());
    // A phase has two bytes beside the flags and two behind the version, of which six are more than a run has updates.
    let [phase @ .., third, fourth] = tag.phase.to_le_bytes();
    meta[12..14].copy_from_slice(&phase);
    debug_assert!(head.version < 1 << 48, "version {}", head.version);
    meta[16..24].copy_from_slice(&head.version.to_le_bytes());
    meta[22..24].copy_from_slice(&[third, fourth]);
    meta[24..32].copy_from_slice(&head.unit.to_le_bytes());
    meta[32..36].copy_from_slice(&head.load.cpu.to_le_bytes());
    meta[36..40].copy_from_slice(&head.load.step_s.to_le_bytes());
    meta
}

/// The tag and head of received bytes, and whether there is a body; any bytes mean something.
pub fn unpack(meta: &Meta) -> (Tag, MessageHead, bool) {
    let u32_at = |i: usize| u32::from_le_bytes(meta[i..i + 4].try_into().expect("four bytes"));
    let u64_at = |i: usize| u64::from_le_bytes(meta[i..i + 8].try_into().expect("eight bytes"));
    let phase = u32::from_le_bytes([meta[12], meta[13], meta[22], meta[23]]);
    let tag = Tag { generation: u32_at(0), step: u32_at(4), bucket: u32_at(8), phase };
    let load = WorkerLoad { cpu: f32::from_bits(u32_at(32)), step_s: f32::from_bits(u32_at(36)) };
    let (together, of) = (meta[15] & 1 == 1, (meta[14] >> 1, meta[15] >> 1));
    let version = u64_at(16) & ((1 << 48) - 1);
    (tag, MessageHead { version, unit: u64_at(24), together, load, of }, meta[14] & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        let load = WorkerLoad { cpu: 0.25, step_s: 1e-3 };
        let cases = [(false, (0, 0), GOODBYE), (true, (127, 0), 70_001), (false, (3, 127), 5)];
        for (body, of, phase) in cases {
            let tag = Tag { generation: 1, step: 70_000, bucket: 70_013, phase };
            let head = MessageHead { version: (1 << 48) - 1, unit: 1 << 40, together: body, load, of };
            assert_eq!(unpack(&pack(tag, head, body)), (tag, head, body));
        }
    }
}
