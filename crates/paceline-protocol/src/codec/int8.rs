//! Eight-bit integers with one scale per message.

use super::{Accumulate, Codec, Family, pack, unpack};

pub(super) const INT8: Codec = Codec {
    name: "int8",
    about: "8-bit integers with one scale per message: a quarter of each message",
    detail: "Each value is sent as a whole multiple, from −127 to 127, of a scale that makes the greatest \
             magnitude of the message 127: one word for the scale and a quarter of the message. The multiple \
             is the nearest (ties to even), so that at most half a scale is left over; the sender keeps it \
             and adds it to the next message. One great value makes the scale coarse for all others of its \
             message.",
    setting: None,
    family: Family::Gathered,
    words: |_, len| if len == 0 { 0 } else { 1 + len.div_ceil(4) },
    encode,
    decode,
};

const MOST: f32 = 127.0;

/// 1.5·2²³: adding it rounds to a whole number, ties to even, and leaves that in the low bits.
const ROUND: f32 = 12_582_912.0;

fn encode(_: f64, values: &[f32], code: &mut [f32], _: &mut Vec<u32>) {
    let Some((first, bytes)) = code.split_first_mut() else { return };
    // As bits, because a NaN is then greater than every number and makes the whole message NaN.
    let greatest = values.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0);
    let scale = f32::from_bits(greatest) / MOST;
    *first = scale;
    if scale > 0.0 && scale.is_finite() {
        // A scale among the least of numbers is too coarse to make the greatest magnitude 127: hence clamp.
        let byte = |v: f32| ((v / scale).clamp(-MOST, MOST) + ROUND).to_bits() & 0xff;
        pack(values, bytes, |&[a, b, c, d]| byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24);
    } else {
        bytes.fill(0.0);
    }
}

fn decode(_: f64, code: &[f32], dst: &mut [f32], into: Accumulate) {
    let Some((scale, bytes)) = code.split_first() else { return };
    unpack(bytes, dst, into, |word| word.to_le_bytes().map(|byte| f32::from(byte as i8) * scale));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{encode, round_trip};

    #[test]
    fn the_greatest_magnitude_is_127_and_ties_go_to_the_even_multiple() {
        let values = [-254.0, 254.0, 1.0, 3.0, 5.0, -1.0, -3.0, 2.9, 0.0];
        let code = encode("int8", &values);
        assert_eq!(code[0], 2.0);
        let bytes: Vec<i8> =
            code[1..].iter().flat_map(|w| w.to_bits().to_le_bytes()).map(|b| b as i8).collect();
        assert_eq!(bytes, [-127, 127, 0, 2, 2, 0, -2, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn zeros_have_scale_zero() {
        assert!(encode("int8", &[0.0, -0.0, 0.0]).iter().all(|w| w.to_bits() == 0));
        assert_eq!(round_trip("int8", &[0.0; 5]), [0.0; 5]);
    }

    #[test]
    fn the_least_numbers_are_sent_or_left_but_do_no_harm() {
        for least in [1u32, 60, 64, 100, 190, 10_000] {
            let value = f32::from_bits(least);
            let decoded = round_trip("int8", &[value, 0.0, -value]);
            assert!(decoded[0] >= 0.0 && decoded[0] <= 1.5 * value, "{least}: {decoded:?}");
            assert_eq!((decoded[1], decoded[2]), (0.0, -decoded[0]));
        }
    }

    #[test]
    fn what_is_not_finite_is_noticed_in_every_value() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let decoded = round_trip("int8", &[1.0, bad, -2.0, 3.0, 4.0]);
            assert!(decoded.iter().all(|v| v.is_nan()), "{bad}: {decoded:?}");
        }
    }

    proptest! {
        #[test]
        fn error_is_at_most_half_a_scale(values in prop::collection::vec(-1e3f32..1e3, 1..200)) {
            let scale = encode("int8", &values)[0];
            for (value, decoded) in values.iter().zip(round_trip("int8", &values)) {
                prop_assert!((value - decoded).abs() <= scale * 0.50002, "{value} became {decoded}");
            }
        }
    }
}
