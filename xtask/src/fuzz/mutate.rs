//! An input out of a corpus, a seed and a number.

use paceline_random::{Purpose, Stream};

/// Numbers that parsers stumble over.
const AWKWARD: [u32; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffc, 0xffff_ffff];
/// Longest input.
const LONGEST: usize = 1 << 16;

/// Draws one after the other.
struct Draws(Stream, u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        self.0.below(self.1, n.max(1) as u64) as usize
    }

    /// A range within so many bytes.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len + 1);
        start..start + self.below((len - start).min(256) + 1)
    }
}

/// Input number `n` of a seed.
pub fn input(corpus: &[&[u8]], seed: u64, n: u64) -> Vec<u8> {
    let mut draws = Draws(Stream::new(seed, Purpose::Bench).fork(n), 0);
    let mut bytes = corpus[draws.below(corpus.len())].to_vec();
    for _ in 0..=draws.below(4) {
        change(&mut bytes, corpus, &mut draws);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn change(bytes: &mut Vec<u8>, corpus: &[&[u8]], draws: &mut Draws) {
    let at = draws.below(bytes.len());
    match draws.below(9) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << draws.below(8),
        1 if !bytes.is_empty() => bytes[at] = draws.below(256) as u8,
        2 => {
            let number = AWKWARD[draws.below(AWKWARD.len())].to_le_bytes();
            let width = [1, 2, 4][draws.below(3)];
            let room = bytes.len().saturating_sub(at).min(width);
            bytes[at..at + room].copy_from_slice(&number[..room]);
        }
        3 => drop(bytes.drain(draws.range(bytes.len()))),
        4 => {
            let piece = bytes[draws.range(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
        5 => {
            let other = corpus[draws.below(corpus.len())];
            let piece = other[draws.range(other.len())].to_vec();
            bytes.splice(at..at, piece);
        }
        6 => bytes.truncate(at),
        7 => {
            let piece: Vec<u8> = (0..draws.below(16)).map(|_| draws.below(256) as u8).collect();
            bytes.splice(at..at, piece);
        }
        // As it is: with few changes, many inputs stay well-formed.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_functions_of_seed_and_number() {
        let corpus: [&[u8]; 2] = [b"one of them", b""];
        let all = |seed| (0..200).map(|n| input(&corpus, seed, n)).collect::<Vec<_>>();
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        assert!(all(1).iter().any(|i| i == corpus[0]) && all(1).iter().any(|i| i != corpus[0]));
    }
}
