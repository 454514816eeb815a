//! Half precision.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::{Accumulate, Codec, Family};

pub(super) const FP16: Codec = Codec {
    name: "fp16",
    about: "half precision: half the bytes, nearly lossless",
    detail: "Each value is sent as an IEEE half, rounded to the nearest (ties to even): half the bytes. \
             Sums stay in f32 and are encoded anew on every hop, so that no rest has to be kept, though it \
             can be. Eleven significant bits are left, values beyond ±65504 are sent as ±65504, and those \
             below 6e-5 lose bits until they are zero below 3e-8: bad for gradients that are all tiny.",
    setting: None,
    family: Family::PerHop,
    words: |_, len| len.div_ceil(2),
    encode,
    decode,
};

/// Values that are converted at once: enough for the processor's instructions, few enough for the stack.
const BLOCK: usize = 256;

fn encode(_: f64, values: &[f32], code: &mut [f32], _: &mut Vec<u32>) {
    let most = f32::from(f16::MAX);
    let mut within = [0.0; BLOCK];
    let mut halves = [f16::ZERO; BLOCK];
    for (values, code) in values.chunks(BLOCK).zip(code.chunks_mut(BLOCK / 2)) {
        within[values.len()..].fill(0.0);
        for (within, value) in within.iter_mut().zip(values) {
            *within = value.clamp(-most, most);
        }
        halves.convert_from_f32_slice(&within);
        for (word, [low, high]) in code.iter_mut().zip(halves.as_chunks().0) {
            *word = f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16);
        }
    }
}

fn decode(_: f64, code: &[f32], dst: &mut [f32], into: Accumulate) {
    let mut halves = [f16::ZERO; BLOCK];
    let mut values = [0.0; BLOCK];
    for (code, dst) in code.chunks(BLOCK / 2).zip(dst.chunks_mut(BLOCK)) {
        for ([low, high], word) in halves.as_chunks_mut().0.iter_mut().zip(code) {
            let bits = word.to_bits();
            (*low, *high) = (f16::from_bits(bits as u16), f16::from_bits((bits >> 16) as u16));
        }
        halves.convert_to_f32_slice(&mut values);
        into.put(dst, &values);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::round_trip;

    #[test]
    fn values_beyond_the_range_become_the_greatest_and_nan_stays() {
        let values =
            [65504.0, 65519.9, 65520.0, 1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0];
        let decoded = round_trip("fp16", &values);
        let most = 65504.0;
        assert_eq!(decoded[..7], [most, most, most, most, -most, most, -most]);
        assert!(decoded[7].is_nan());
        assert_eq!(decoded[8].to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn every_half_is_exact() {
        let halves: Vec<f32> =
            (0..=u16::MAX).map(|b| f32::from(half::f16::from_bits(b))).filter(|v| v.is_finite()).collect();
        assert_eq!(round_trip("fp16", &halves), halves);
    }

    proptest! {
        #[test]
        fn relative_error_in_the_normal_range_is_at_most_two_to_the_minus_11(
            exponent in -14i32..16, mantissa in 1.0f32..2.0, negative: bool,
        ) {
            let value = (mantissa * (exponent as f32).exp2()).min(65504.0) * if negative { -1.0 } else { 1.0 };
            let decoded = round_trip("fp16", &[value])[0];
            prop_assert!((decoded - value).abs() <= value.abs() / 2048.0, "{value} became {decoded}");
            prop_assert_eq!(round_trip("fp16", &[decoded])[0], decoded);
        }
    }
}
