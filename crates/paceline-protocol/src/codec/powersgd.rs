//! PowerSGD's entry: its factors are made by [`crate::linear`] and summed like any other values, so that
//! there is no code to write or read.

use super::{Codec, Family, Setting};

pub(super) const POWERSGD: Codec = Codec {
    name: "powersgd",
    about: "low-rank factors of each weight matrix, summed in two small all-reduces",
    detail: "The gradient M of a weight matrix is sent as two thin factors: P = M·Q is summed over all \
             workers and its columns are made orthonormal, then Q = Mᵀ·P is summed, and P·Qᵀ stands for the \
             sum of all M; Q is where the next step starts. That makes rank·(rows + columns) values for \
             rows·columns, in two all-reduces of plain values, one after the other. Each worker keeps what \
             the product leaves out of its own M and adds it to the next. Bad for small or narrow matrices, \
             where nothing is saved, for slow processors, and for gradients whose energy is spread over \
             many directions; vectors are sent in full.",
    setting: Some(Setting {
        name: "rank",
        about: "columns of the factors",
        default: 2.0,
        valid: |rank| rank.fract() == 0.0 && (1.0..=64.0).contains(&rank),
        range: "a whole number from 1 to 64",
    }),
    family: Family::LowRank,
    words: |_, _| unreachable!("{NO_CODE}"),
    encode: |_, _, _, _| unreachable!("{NO_CODE}"),
    decode: |_, _, _, _| unreachable!("{NO_CODE}"),
};

const NO_CODE: &str = "low-rank factors are multiplied, not encoded";
