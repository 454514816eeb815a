//! Flat buffers: which parts of one are announced, and bytes kept as numbers.

use std::ops::Range;

/// Parts of a buffer that are not announced yet.
pub(super) struct OpenRanges<'g>(pub(super) Vec<(usize, &'g mut [f32])>);

impl<'g> OpenRanges<'g> {
    /// Takes a range out; none if some of it is gone already.
    pub(super) fn take(&mut self, range: Range<usize>) -> Option<&'g mut [f32]> {
        let inside = |(offset, slice): &(usize, &mut [f32])| {
            *offset <= range.start && range.end <= offset + slice.len()
        };
        let at = self.0.iter().position(inside)?;
        let (offset, slice) = self.0.swap_remove(at);
        let (before, rest) = slice.split_at_mut(range.start - offset);
        let (taken, behind) = rest.split_at_mut(range.len());
        for (offset, slice) in [(offset, before), (range.end, behind)] {
            if !slice.is_empty() {
                self.0.push((offset, slice));
            }
        }
        Some(taken)
    }
}

/// Ranges from the last to the first, those that touch each other as one.
pub(super) fn merged(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = ranges.collect();
    all.sort_unstable_by_key(|range| std::cmp::Reverse(range.start));
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(all.len());
    for range in all {
        match merged.last_mut().filter(|last| last.start == range.end) {
            Some(last) => last.start = range.start,
            None => merged.push(range),
        }
    }
    merged
}

/// Bytes as numbers: how many there are, in two, and then the bytes, four to each.
pub(super) fn packed(bytes: &[u8]) -> Vec<f32> {
    let len = (bytes.len() as u64).to_le_bytes();
    let word = |four: &[u8]| {
        let mut all = [0; 4];
        all[..four.len()].copy_from_slice(four);
        f32::from_bits(u32::from_le_bytes(all))
    };
    len.chunks(4).chain(bytes.chunks(4)).map(word).collect()
}

/// The bytes that were packed.
pub(super) fn unpacked(numbers: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_bits().to_le_bytes()).collect();
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else { return Vec::new() };
    rest[..(u64::from_le_bytes(*len) as usize).min(rest.len())].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_numbers_whatever_they_are() {
        for len in 0..40_usize {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 83 + 7) as u8 | 0x80).collect();
            assert_eq!(unpacked(&packed(&bytes)), bytes);
        }
        assert_eq!(unpacked(&[]), [0; 0]);
    }

    #[test]
    fn ranges_are_taken_once_and_joined() {
        assert_eq!(merged([4..6, 0..2, 6..9, 2..3].into_iter()), [4..9, 0..3]);
        let mut numbers = [0.0; 10];
        let mut open = OpenRanges(vec![(0, &mut numbers)]);
        assert_eq!(open.take(4..6).map(|slice| slice.len()), Some(2));
        assert!(open.take(5..7).is_none());
        assert_eq!(open.take(6..10).map(|slice| slice.len()), Some(4));
        assert_eq!(open.0.iter().map(|(offset, slice)| (*offset, slice.len())).collect::<Vec<_>>(), [(0, 4)]);
    }
}
