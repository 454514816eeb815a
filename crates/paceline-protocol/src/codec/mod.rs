//! The registry of codecs: ways to make messages shorter. To add one: write its file, then add its line to
//! [`CODECS`]; it then appears in the command line's help, the plan's checks and this module's tests.
//!
//! A code travels as 32-bit words and its length depends on the number of values alone, so that a plan
//! knows every message's size and a receiver knows it before the message comes. The words are carried as
//! `f32` but hold any bits: they may be copied, never computed with.
//!
//! No codec is unbiased: rounding is deterministic, so that a run can be repeated bit by bit, and the mean
//! of many codes of one value is not that value. Error feedback takes the place of unbiasedness: the
//! sender keeps what its code did not say and adds it to what it sends next
//! ([`Coder::encode_and_keep_rest`]).

mod fp16;
mod int8;
mod powersgd;
mod sign;
mod topk;
mod two_bit;

use std::fmt;
use std::str::FromStr;

/// A way to make messages shorter.
pub struct Codec {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// What is sent, its size, where the rest goes, and what it is bad at: a paragraph for the docs.
    pub detail: &'static str,
    /// Its one number, if it has one.
    pub setting: Option<Setting>,
    /// Where it can be used.
    pub family: Family,
    /// 32-bit words of the code of `len` values: the same whatever they are.
    pub words: fn(setting: f64, len: usize) -> usize,
    /// Writes the code of the values. [`Coder::encode`] checks the lengths.
    pub encode: fn(setting: f64, values: &[f32], code: &mut [f32], work: &mut Vec<u32>),
    /// Puts the decoded values into `dst`. [`Coder::decode`] checks the lengths.
    pub decode: fn(setting: f64, code: &[f32], dst: &mut [f32], into: Accumulate),
}

/// The number that a codec can be given.
pub struct Setting {
    /// Its name behind the comma.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// What holds where nothing is said.
    pub default: f64,
    /// Whether it can be this number.
    pub valid: fn(f64) -> bool,
    /// What it may be, in words.
    pub range: &'static str,
}

/// Where a codec can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Cheap and nearly lossless: encoded anew on every hop.
    PerHop,
    /// Needs error feedback at the sender: codes are gathered, and each receiver decodes and sums them.
    Gathered,
    /// Low-rank factors, summed in two small all-reduces.
    LowRank,
}

/// What is done with decoded values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// They take the place of what is there.
    Set,
    /// They are added to it.
    Add,
    /// They are subtracted from it.
    Subtract,
}

/// Every codec.
pub static CODECS: &[Codec] =
    &[fp16::FP16, int8::INT8, two_bit::TWO_BIT, topk::TOPK, sign::SIGN, powersgd::POWERSGD];

/// The codec of that name.
pub fn find(name: &str) -> Option<&'static Codec> {
    CODECS.iter().find(|c| c.name == name)
}

/// The forms of a [`Coder`] that a user can write.
pub fn forms() -> String {
    let form = |codec: &Codec| match &codec.setting {
        None => codec.name.to_owned(),
        Some(Setting { name, default, range, .. }) => {
            format!("{}[,{name}=X] (X {range}; {default} if left out)", codec.name)
        }
    };
    CODECS.iter().map(form).collect::<Vec<_>>().join(", ")
}

/// A codec with its setting: what actions carry.
#[derive(Clone, Copy)]
pub struct Coder {
    /// The codec.
    pub codec: &'static Codec,
    /// Its setting; 0 where it has none.
    pub setting: f64,
}

impl Coder {
    /// A codec with its default setting.
    pub fn new(codec: &'static Codec) -> Self {
        Self { codec, setting: codec.setting.as_ref().map_or(0.0, |setting| setting.default) }
    }

    /// 32-bit words of the code of `len` values.
    pub fn words(&self, len: usize) -> usize {
        (self.codec.words)(self.setting, len)
    }

    /// A length of at most `most` whose code fits into `room` words.
    pub fn fitting(&self, most: usize, room: usize) -> usize {
        let fits = |len: &usize| *len <= 1 || self.words(*len) <= room;
        (1..).map(|n| most / n).find(fits).unwrap_or(1)
    }

    /// Writes the code of the values into all of `code`, which must have the [length](Self::words) of it.
    /// `work` is room to work in, of any content, that grows as needed.
    pub fn encode(&self, values: &[f32], code: &mut [f32], work: &mut Vec<u32>) {
        self.check(code.len(), values.len());
        (self.codec.encode)(self.setting, values, code, work);
    }

    /// Writes the code of `rest` and leaves there what the code does not say: error feedback, where the
    /// next values are added to `rest`.
    pub fn encode_and_keep_rest(&self, rest: &mut [f32], code: &mut [f32], work: &mut Vec<u32>) {
        self.encode(rest, code, work);
        self.decode(code, rest, Accumulate::Subtract);
    }

    /// Puts the decoded values into `dst`, as many as there are. Whatever the words hold, this does not panic.
    pub fn decode(&self, code: &[f32], dst: &mut [f32], into: Accumulate) {
        self.check(code.len(), dst.len());
        (self.codec.decode)(self.setting, code, dst, into);
    }

    fn check(&self, words: usize, len: usize) {
        assert_eq!(words, self.words(len), "words of the {self} code of {len} values");
    }
}

impl PartialEq for Coder {
    fn eq(&self, other: &Self) -> bool {
        self.codec.name == other.codec.name && self.setting == other.setting
    }
}

impl fmt::Display for Coder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.codec.name)?;
        match &self.codec.setting {
            Some(setting) => write!(f, ",{}={}", setting.name, self.setting),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Coder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Coder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = match text.split_once(',') {
            Some((name, number)) => (name, Some(number)),
            None => (text, None),
        };
        let codec = find(name).ok_or_else(|| format!("`{name}` is no codec; possible: {}", forms()))?;
        let Some(number) = number else {
            return Ok(Self { codec, setting: codec.setting.as_ref().map_or(0.0, |s| s.default) });
        };
        let (setting, value) = codec
            .setting
            .as_ref()
            .zip(number.split_once('='))
            .filter(|(setting, (key, _))| setting.name == *key)
            .map(|(setting, (_, value))| (setting, value))
            .ok_or_else(|| format!("`{number}` is not a setting of `{name}`; possible: {}", forms()))?;
        match value.parse() {
            Ok(value) if (setting.valid)(value) => Ok(Self { codec, setting: value }),
            _ => Err(format!("`{number}`: it must be {}; possible: {}", setting.range, forms())),
        }
    }
}

impl Accumulate {
    /// Puts values into as many places.
    fn put(self, dst: &mut [f32], values: &[f32]) {
        fn each(dst: &mut [f32], values: &[f32], put: impl Fn(&mut f32, f32)) {
            dst.iter_mut().zip(values).for_each(|(d, v)| put(d, *v));
        }
        match self {
            Accumulate::Set => each(dst, values, |d, v| *d = v),
            Accumulate::Add => each(dst, values, |d, v| *d += v),
            Accumulate::Subtract => each(dst, values, |d, v| *d -= v),
        }
    }
}

/// Packs `N` values into each word. Those that the last word lacks count as zero.
fn pack<const N: usize>(values: &[f32], code: &mut [f32], word: impl Fn(&[f32; N]) -> u32) {
    let (whole, rest) = values.as_chunks();
    for (code, values) in code.iter_mut().zip(whole) {
        *code = f32::from_bits(word(values));
    }
    if !rest.is_empty() {
        let mut last = [0.0; N];
        last[..rest.len()].copy_from_slice(rest);
        code[whole.len()] = f32::from_bits(word(&last));
    }
}

/// Unpacks `N` values from each word.
fn unpack<const N: usize>(code: &[f32], dst: &mut [f32], into: Accumulate, values: impl Fn(u32) -> [f32; N]) {
    let (whole, rest) = dst.as_chunks_mut::<N>();
    for (dst, code) in whole.iter_mut().zip(code) {
        into.put(dst, &values(code.to_bits()));
    }
    if !rest.is_empty() {
        into.put(rest, &values(code[whole.len()].to_bits()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(super) fn coder(text: &str) -> Coder {
        text.parse().unwrap()
    }

    pub(super) fn encode(text: &str, values: &[f32]) -> Vec<f32> {
        let coder = coder(text);
        let mut code = vec![f32::NAN; coder.words(values.len())];
        coder.encode(values, &mut code, &mut Vec::new());
        code
    }

    pub(super) fn round_trip(text: &str, values: &[f32]) -> Vec<f32> {
        let mut decoded = vec![f32::NAN; values.len()];
        coder(text).decode(&encode(text, values), &mut decoded, Accumulate::Set);
        decoded
    }

    /// Every codec that writes codes, with its default setting and some others.
    fn coders() -> Vec<Coder> {
        let names = CODECS.iter().filter(|c| c.family != Family::LowRank).map(|c| c.name);
        let others = ["2bit,threshold=0.5", "2bit,threshold=1e20", "topk,ratio=0.3", "topk,ratio=1"];
        names.chain(others).map(coder).collect()
    }

    /// Values of all magnitudes, of either sign, some of them zero.
    fn values() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            4 => -1f32..1.0,
            1 => Just(0.0),
            2 => (prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL).prop_map(|v| v.clamp(-1e30, 1e30)),
        ];
        let len = prop_oneof![
            Just(0usize),
            Just(1),
            Just(15),
            Just(16),
            Just(17),
            Just(33),
            Just(1000),
            0..600usize
        ];
        len.prop_flat_map(move |len| prop::collection::vec(value.clone(), len))
    }

    fn bits(words: &[f32]) -> Vec<u32> {
        words.iter().map(|w| w.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn what_is_decoded_and_the_rest_make_the_original(values in values()) {
            for coder in coders() {
                let mut code = vec![0.0; coder.words(values.len())];
                let mut rest = values.clone();
                coder.encode_and_keep_rest(&mut rest, &mut code, &mut Vec::new());
                let mut decoded = vec![f32::NAN; values.len()];
                coder.decode(&code, &mut decoded, Accumulate::Set);
                for ((&value, &decoded), &rest) in values.iter().zip(&decoded).zip(&rest) {
                    let larger = value.abs().max(decoded.abs()).max(rest.abs());
                    let ulp = f64::from(larger.next_up()) - f64::from(larger);
                    let off = f64::from(decoded) + f64::from(rest) - f64::from(value);
                    prop_assert!(off.abs() <= ulp, "{coder}: {value} became {decoded} and {rest}");
                }
            }
        }

        #[test]
        fn set_add_and_subtract_agree(values in values(), there in -2f32..2.0) {
            for coder in coders() {
                let code = encode(&coder.to_string(), &values);
                let [mut set, mut added, mut subtracted] = [0; 3].map(|_| vec![there; values.len()]);
                coder.decode(&code, &mut set, Accumulate::Set);
                coder.decode(&code, &mut added, Accumulate::Add);
                coder.decode(&code, &mut subtracted, Accumulate::Subtract);
                for (i, &v) in set.iter().enumerate() {
                    prop_assert_eq!((added[i], subtracted[i]), (there + v, there - v), "{} at {}", coder, i);
                }
            }
        }

        #[test]
        fn a_code_depends_on_the_values_alone(values in values()) {
            for coder in coders() {
                let code = |there: u32, mut work: Vec<u32>| {
                    let mut code = vec![f32::from_bits(there); coder.words(values.len())];
                    coder.encode(&values, &mut code, &mut work);
                    bits(&code)
                };
                prop_assert_eq!(code(0xdead_beef, vec![]), code(0x1234_5678, vec![7; 50]), "{}", coder);
            }
        }

        #[test]
        fn any_words_can_be_decoded(len in 0usize..200, seed: u32) {
            for coder in coders() {
                let word = |i| f32::from_bits((i as u32 + 1).wrapping_mul(seed | 1).wrapping_mul(2_654_435_761));
                let code: Vec<f32> = (0..coder.words(len)).map(word).collect();
                for into in [Accumulate::Set, Accumulate::Add, Accumulate::Subtract] {
                    coder.decode(&code, &mut vec![0.0; len], into);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn with_feedback_the_mean_of_what_is_decoded_becomes_the_value(
            values in prop::collection::vec(-1f32..1.0, 1..40),
        ) {
            const ROUNDS: usize = 4000;
            for text in ["fp16", "int8", "2bit,threshold=1", "topk,ratio=0.1", "sign"] {
                let coder = coder(text);
                let mut work = Vec::new();
                let mut code = vec![0.0; coder.words(values.len())];
                let mut rest = vec![0.0; values.len()];
                let mut decoded = vec![0.0; values.len()];
                let mut sum = vec![0.0; values.len()];
                for _ in 0..ROUNDS {
                    rest.iter_mut().zip(&values).for_each(|(r, v)| *r += v);
                    coder.encode_and_keep_rest(&mut rest, &mut code, &mut work);
                    coder.decode(&code, &mut decoded, Accumulate::Set);
                    sum.iter_mut().zip(&decoded).for_each(|(s, d)| *s += f64::from(*d));
                }
                for (value, sum) in values.iter().zip(&sum) {
                    let mean = sum / ROUNDS as f64;
                    prop_assert!((mean - f64::from(*value)).abs() < 0.02, "{coder}: {value} became {mean}");
                }
            }
        }
    }

    #[test]
    fn sizes_are_as_documented() {
        let lens = [0, 1, 15, 16, 17, 33, 1000];
        let words = |text: &str| lens.map(|len| coder(text).words(len));
        assert_eq!(words("fp16"), [0, 1, 8, 8, 9, 17, 500]);
        assert_eq!(words("int8"), [0, 2, 5, 5, 6, 10, 251]);
        assert_eq!(words("2bit"), [0, 1, 1, 1, 2, 3, 63]);
        assert_eq!(words("topk"), [0, 2, 2, 2, 2, 2, 20]);
        assert_eq!(words("sign"), [0, 2, 2, 2, 2, 3, 33]);
    }

    #[test]
    #[should_panic(expected = "words of the int8 code of 5 values")]
    fn a_code_of_another_length_is_refused() {
        coder("int8").decode(&[0.0; 2], &mut [0.0; 5], Accumulate::Set);
    }

    #[test]
    fn defaults_are_valid_and_what_is_printed_is_read_back() {
        for codec in CODECS {
            assert!(codec.setting.as_ref().is_none_or(|s| (s.valid)(s.default)), "{}", codec.name);
            let coder = coder(codec.name);
            assert_eq!(coder.to_string().parse(), Ok(coder));
        }
        for text in ["fp16", "2bit,threshold=0.01", "topk,ratio=1", "powersgd,rank=4"] {
            assert_eq!(coder(text).to_string(), text);
            assert_eq!(format!("{:?}", coder(text)), text);
        }
        assert_eq!(coder("2bit").to_string(), "2bit,threshold=0.01");
        assert_ne!(coder("2bit"), coder("2bit,threshold=0.02"));
        assert_ne!(coder("fp16"), coder("int8"));
    }

    #[test]
    fn errors_say_what_is_wrong_and_what_is_possible() {
        let possible = "possible: fp16, int8, 2bit[,threshold=X] (X above 0; 0.01 if left out), \
                        topk[,ratio=X] (X above 0, at most 1; 0.01 if left out), sign, \
                        powersgd[,rank=X] (X a whole number from 1 to 64; 2 if left out)";
        for (text, wrong) in [
            ("", "`` is no codec"),
            ("none", "`none` is no codec"),
            ("fp16,x=1", "`x=1` is not a setting of `fp16`"),
            ("2bit,", "`` is not a setting of `2bit`"),
            ("2bit,0.1", "`0.1` is not a setting of `2bit`"),
            ("2bit,ratio=0.1", "`ratio=0.1` is not a setting of `2bit`"),
            ("2bit,threshold=0", "`threshold=0`: it must be above 0"),
            ("2bit,threshold=NaN", "`threshold=NaN`: it must be above 0"),
            ("2bit,threshold=1e-60", "`threshold=1e-60`: it must be above 0"),
            ("topk,ratio=1.5", "`ratio=1.5`: it must be above 0, at most 1"),
            ("topk,ratio=0.1,ratio=0.2", "`ratio=0.1,ratio=0.2`: it must be above 0, at most 1"),
            ("powersgd,rank=2.5", "`rank=2.5`: it must be a whole number from 1 to 64"),
            ("powersgd,rank=65", "`rank=65`: it must be a whole number from 1 to 64"),
        ] {
            assert_eq!(text.parse::<Coder>(), Err(format!("{wrong}; {possible}")));
        }
    }

    #[test]
    #[should_panic(expected = "low-rank factors are multiplied, not encoded")]
    fn low_rank_factors_have_no_code() {
        coder("powersgd").words(1);
    }
}
