//! Signs and one magnitude.

use super::{Accumulate, Codec, Family, pack, unpack};

pub(super) const SIGN: Codec = Codec {
    name: "sign",
    about: "signs and one mean magnitude: a thirty-second of each message",
    detail: "Each value is sent as its sign, and all of a message share one magnitude, the mean of theirs: \
             one word for the mean and one bit per value, a thirty-second of the message. The sender keeps the \
             difference and adds it to the next message; without that, signs need not converge at all. Bad \
             where few values are great and most are nearly zero: the great ones come late, the others are \
             overshot, and zero cannot be said.",
    setting: None,
    family: Family::Gathered,
    words: |_, len| if len == 0 { 0 } else { 1 + len.div_ceil(32) },
    encode,
    decode,
};

fn encode(_: f64, values: &[f32], code: &mut [f32], _: &mut Vec<u32>) {
    let Some((first, signs)) = code.split_first_mut() else { return };
    *first = (sum_of_magnitudes(values) / values.len() as f64) as f32;
    pack(values, signs, |values: &[f32; 32]| {
        values.iter().enumerate().fold(0, |word, (i, &v)| word | u32::from(v < 0.0) << i)
    });
}

/// In f64, where the sum of even the greatest values is finite, and in lanes that do not wait for each other.
fn sum_of_magnitudes(values: &[f32]) -> f64 {
    let (whole, rest) = values.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for values in whole {
        lanes.iter_mut().zip(values).for_each(|(sum, v)| *sum += f64::from(v.abs()));
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|v| f64::from(v.abs())).sum::<f64>()
}

fn decode(_: f64, code: &[f32], dst: &mut [f32], into: Accumulate) {
    let Some((mean, signs)) = code.split_first() else { return };
    let mean = mean.to_bits();
    unpack::<32>(signs, dst, into, |word| {
        std::array::from_fn(|i| f32::from_bits(mean ^ (word >> i & 1) << 31))
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{encode, round_trip};

    #[test]
    fn the_code_is_the_mean_and_the_signs() {
        let mut values = [1.0; 33];
        (values[0], values[1], values[2], values[32]) = (-0.5, 0.0, 1.5, -1.0);
        let code = encode("sign", &values);
        assert_eq!(code[0], 32.0 / 33.0);
        assert_eq!([code[1].to_bits(), code[2].to_bits()], [1, 1]);
        assert_eq!(round_trip("sign", &[-1.0, 3.0, 0.0, -0.0]), [-1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn the_mean_of_the_greatest_numbers_is_finite_and_what_is_not_finite_is_noticed() {
        assert_eq!(round_trip("sign", &[f32::MAX, f32::MIN, f32::MAX]), [f32::MAX, f32::MIN, f32::MAX]);
        assert_eq!(round_trip("sign", &[1.0, f32::NEG_INFINITY]), [f32::INFINITY, f32::NEG_INFINITY]);
        assert!(round_trip("sign", &[1.0, f32::NAN, -1.0]).iter().all(|v| v.is_nan()));
    }
}
