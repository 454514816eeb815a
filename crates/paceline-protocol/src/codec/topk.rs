//! The greatest values alone, with their places.

use super::{Accumulate, Codec, Family, Setting};

pub(super) const TOPK: Codec = Codec {
    name: "topk",
    about: "only the values of greatest magnitude, with their places",
    detail: "The given ratio of a message's values, rounded up and at least one, is sent exactly: those of \
             greatest magnitude (of equals, the first), as their places and their values, which makes \
             2·ratio of the bytes. The sender keeps all others and adds them to the next message. Values \
             arrive late, after about 1/ratio messages where all are alike, so that a high rate or momentum \
             does harm; finding the greatest costs more than the other codecs do; and above a ratio of one \
             half the code is longer than the values.",
    setting: Some(Setting {
        name: "ratio",
        about: "part of the values that is sent",
        default: 0.01,
        valid: |ratio| ratio > 0.0 && ratio <= 1.0,
        range: "above 0, at most 1",
    }),
    family: Family::Gathered,
    words: |ratio, len| 2 * count(ratio, len),
    encode,
    decode,
};

/// How many of `len` values are sent.
fn count(ratio: f64, len: usize) -> usize {
    ((ratio * len as f64).ceil() as usize).max(1).min(len)
}

/// Magnitudes in the order of numbers, with every NaN alike and greater than infinity.
fn magnitude(value: f32) -> u32 {
    const NAN: u32 = f32::INFINITY.to_bits() + 1;
    value.abs().to_bits().min(NAN)
}

fn encode(_: f64, values: &[f32], code: &mut [f32], work: &mut Vec<u32>) {
    assert!(u32::try_from(values.len()).is_ok(), "places are 32 bits: {} values", values.len());
    let (places, sent) = code.split_at_mut(code.len() / 2);
    let Some(last) = places.len().checked_sub(1) else { return };
    // Only the least magnitude that is sent has to be found; one more pass in order then takes what is
    // above it, and of its equals as many as there is room for.
    work.clear();
    work.extend(values.iter().map(|&v| magnitude(v)));
    let (above, &mut least, _) = work.select_nth_unstable_by(last, |a, b| b.cmp(a));
    let mut equals = places.len() - above.iter().filter(|&&m| m > least).count();
    let mut room = places.iter_mut().zip(sent);
    for (i, &value) in values.iter().enumerate() {
        let magnitude = magnitude(value);
        if magnitude < least || (magnitude == least && equals == 0) {
            continue;
        }
        equals -= usize::from(magnitude == least);
        let Some((place, sent)) = room.next() else { break };
        (*place, *sent) = (f32::from_bits(i as u32), value);
    }
}

fn decode(_: f64, code: &[f32], dst: &mut [f32], into: Accumulate) {
    let (places, values) = code.split_at(code.len() / 2);
    if into == Accumulate::Set {
        dst.fill(0.0);
    }
    let factor = if into == Accumulate::Subtract { -1.0 } else { 1.0 };
    for (place, value) in places.iter().zip(values) {
        // A place that does not exist comes from a damaged message.
        if let Some(dst) = dst.get_mut(place.to_bits() as usize) {
            *dst += factor * value;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{coder, encode};
    use super::*;

    fn split(code: &[f32]) -> (Vec<usize>, Vec<f32>) {
        let (places, values) = code.split_at(code.len() / 2);
        (places.iter().map(|p| p.to_bits() as usize).collect(), values.to_vec())
    }

    #[test]
    fn the_count_is_rounded_up_and_at_least_one() {
        assert_eq!([0, 1, 99, 100, 101, 1000].map(|len| count(0.01, len)), [0, 1, 1, 1, 2, 10]);
        assert_eq!([0, 1, 7].map(|len| count(1.0, len)), [0, 1, 7]);
        assert_eq!(count(1e-300, 5), 1);
    }

    #[test]
    fn of_equals_the_first_are_sent() {
        let code = encode("topk,ratio=0.5", &[1.0, -1.0, 2.0, 1.0, 1.0, 0.5]);
        assert_eq!(split(&code), (vec![0, 1, 2], vec![1.0, -1.0, 2.0]));
    }

    #[test]
    fn nan_is_sent_before_all_others() {
        let values = [f32::INFINITY, 1.0, f32::NAN, -f32::NAN];
        assert_eq!(split(&encode("topk,ratio=0.25", &values)).0, [2]);
        assert_eq!(split(&encode("topk,ratio=0.75", &values)).0, [0, 2, 3]);
    }

    #[test]
    fn places_that_do_not_exist_or_come_twice_do_not_panic() {
        let coder = coder("topk,ratio=0.6");
        let code = [f32::from_bits(1), f32::from_bits(1), f32::from_bits(u32::MAX), 2.0, 3.0, 4.0];
        let mut dst = [0.0; 5];
        coder.decode(&code, &mut dst, Accumulate::Add);
        assert_eq!(dst, [0.0, 5.0, 0.0, 0.0, 0.0]);
    }

    proptest! {
        #[test]
        fn exactly_the_greatest_are_sent_in_rising_order(
            // Few different magnitudes, so that there are many equals.
            values in prop::collection::vec((-9i32..10).prop_map(|v| v as f32 / 8.0), 1..200),
            ratio in 0.001f64..=1.0,
        ) {
            let mut naive: Vec<usize> = (0..values.len()).collect();
            naive.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b)));
            naive.truncate(count(ratio, values.len()));
            naive.sort_unstable();
            let (places, sent) = split(&encode(&format!("topk,ratio={ratio}"), &values));
            prop_assert_eq!(sent, naive.iter().map(|&i| values[i]).collect::<Vec<_>>());
            prop_assert_eq!(places, naive);
        }
    }
}
