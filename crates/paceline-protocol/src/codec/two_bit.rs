//! MXNet's two bits: a threshold up, a threshold down, or nothing.

use super::{Accumulate, Codec, Family, Setting, pack, unpack};

pub(super) const TWO_BIT: Codec = Codec {
    name: "2bit",
    about: "plus or minus a threshold, or nothing: a sixteenth of each message",
    detail: "MXNet's rule: a value of at least the threshold is sent as plus the threshold, one of at most \
             minus the threshold as minus the threshold, any other as zero: two bits each, a sixteenth of \
             the bytes. The sender keeps the difference and adds it to the next message, so that small \
             values are sent once they have added up. Values that stay beyond the threshold are never \
             caught up with, and with a threshold that is too great nothing is sent for many steps: it has \
             to fit the gradients. A NaN is sent as zero and stays with the sender.",
    setting: Some(Setting {
        name: "threshold",
        about: "the magnitude that is sent; smaller values wait until they add up to it",
        default: 0.01,
        valid: |threshold| threshold as f32 > 0.0 && (threshold as f32).is_finite(),
        range: "above 0",
    }),
    family: Family::Gathered,
    words: |_, len| len.div_ceil(16),
    encode,
    decode,
};

/// The two bits: that something is sent, and that it is negative.
const SENT: u32 = 1;
const NEGATIVE: u32 = 2;

fn encode(threshold: f64, values: &[f32], code: &mut [f32], _: &mut Vec<u32>) {
    let threshold = threshold as f32;
    pack(values, code, |values: &[f32; 16]| {
        values.iter().enumerate().fold(0, |word, (i, &v)| {
            let sent = u32::from(v.abs() >= threshold) * SENT;
            let negative = u32::from(v <= -threshold) * NEGATIVE;
            word | (sent | negative) << (2 * i)
        })
    });
}

fn decode(threshold: f64, code: &[f32], dst: &mut [f32], into: Accumulate) {
    let threshold = (threshold as f32).to_bits();
    unpack::<16>(code, dst, into, |word| {
        std::array::from_fn(|i| {
            let bits = word >> (2 * i);
            // All ones where something is sent.
            let sent = (bits & SENT).wrapping_neg();
            f32::from_bits((threshold | (bits & NEGATIVE) << 30) & sent)
        })
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{coder, encode};
    use super::*;

    #[test]
    fn the_rule_is_mxnets() {
        let t = 0.5;
        let inf = f32::INFINITY;
        let values =
            [0.5, 0.49999997, 0.7, 40.0, 0.0, -0.0, -0.49999997, -0.5, -0.9, inf, -inf, f32::NAN, 1e-40];
        let rule = [t, 0.0, t, t, 0.0, 0.0, 0.0, -t, -t, t, -t, 0.0, 0.0];
        let coder = coder("2bit,threshold=0.5");
        let (mut code, mut decoded) = ([0.0], [9.0; 13]);
        coder.encode(&values, &mut code, &mut Vec::new());
        coder.decode(&code, &mut decoded, Accumulate::Set);
        assert_eq!(decoded, rule);
    }

    #[test]
    fn sixteen_values_share_a_word() {
        let mut values = [0.0; 17];
        (values[0], values[1], values[15], values[16]) = (1.0, -1.0, -1.0, 1.0);
        let code = encode("2bit", &values);
        assert_eq!(code.iter().map(|w| w.to_bits()).collect::<Vec<_>>(), [0b1101 | 0b11 << 30, 0b01]);
    }
}
