//! Frames: the first byte says how, the rest is what comes over the connection.
//!
//! Bits 0 to 2: bytes per read. Bits 3 and 4: the longest body. Bit 7: the rest is not bytes but a list of frames,
//! each `[flaws, low byte of the length, its high byte, content…]`, whose headers are then made with right checksums, so that
//! mutations get past those.

use paceline_wire::stream::fed::frames;
use paceline_wire::{HEADER, Header};

const PIECES: [usize; 8] = [1, 3, 71, 72, 73, 255, 4096, usize::MAX];
const BODIES: [usize; 4] = [0, 3, 1024, 1 << 20];
const LIST: u8 = 0x80;

pub fn run(input: &[u8]) -> bool {
    let Some((&how, rest)) = input.split_first() else { return false };
    let made;
    let bytes = if how & LIST == 0 {
        rest
    } else {
        made = listed(rest);
        &made[..]
    };
    let most = BODIES[usize::from(how >> 3 & 3)];
    let (messages, cause) = frames(bytes, PIECES[usize::from(how & 7)], most);
    // Nothing is delivered that did not come whole, and no body is longer than was allowed.
    let came: usize = messages.iter().map(|(_, body)| HEADER + 4 * body.len()).sum();
    assert!(came <= bytes.len() && messages.iter().all(|(_, body)| body.len() <= most));
    assert!(!cause.is_empty());
    // How the bytes were cut into reads does not matter.
    let (again, same) = frames(bytes, usize::MAX, most);
    assert_eq!(messages.len(), again.len());
    let bits = |body: &[f32]| body.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert!(messages.iter().zip(&again).all(|(a, b)| a.0 == b.0 && bits(&a.1) == bits(&b.1)));
    assert_eq!(cause, same);
    !messages.is_empty() && came == bytes.len()
}

/// Frames with right headers, but for what their flaws say.
fn listed(mut rest: &[u8]) -> Vec<u8> {
    let (mut bytes, mut sequence) = (Vec::new(), 0u32);
    while let [flaws, low, high, content @ ..] = rest {
        let (said, flaws) = (usize::from(u16::from_le_bytes([*low, *high])), *flaws);
        let (body, after) = content.split_at(said.min(content.len()));
        let whole = &body[..if flaws & 1 == 0 { body.len() / 4 * 4 } else { body.len() }];
        let header = Header {
            sequence: if flaws & 2 == 0 { sequence } else { sequence.wrapping_sub(1) },
            bytes: if flaws & 4 == 0 { whole.len() as u32 } else { (said as u32) << 16 },
            checksum: crc32fast::hash(whole) ^ u32::from(flaws & 8),
            meta: [flaws; 48],
            place: None,
        };
        bytes.extend(header.encode());
        bytes.extend(whole);
        sequence = sequence.wrapping_add(1);
        rest = after;
    }
    bytes
}

pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let list = |how: u8, bodies: &[usize]| {
        let one = |&len: &usize| {
            let content = (0..len).map(|i| (i * 7) as u8);
            [0].into_iter().chain((len as u16).to_le_bytes()).chain(content).collect::<Vec<u8>>()
        };
        [how | LIST].into_iter().chain(bodies.iter().flat_map(one)).collect::<Vec<u8>>()
    };
    let raw = |how: u8, bodies: &[usize]| {
        let all = list(how, bodies);
        [how].into_iter().chain(listed(&all[1..])).collect::<Vec<u8>>()
    };
    vec![
        ("listed", list(0b10_010, &[4, 0, 16, 64])),
        ("listed-long", list(0b11_111, &[600, 4])),
        ("raw", raw(0b10_101, &[8, 0, 12])),
        ("raw-empty-bodies", raw(0b00_000, &[0, 0])),
    ]
}
