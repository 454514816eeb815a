//! Random numbers that are functions, not sequences: a draw depends on `(seed, purpose, index)` alone.
//!
//! Every rank, thread and driver can therefore ask for the same number without having drawn the ones
//! before it, which is what makes a plan's seed determine a run whatever the number of workers.
//!
//! Deliberately absent: global state, entropy from the machine, cryptographic strength.

/// What a stream of numbers is for. Two purposes with one seed never share numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Initial parameters.
    Init = 1,
    /// The order of samples in an epoch.
    Shuffle = 2,
    /// Dropout masks.
    Dropout = 3,
    /// Synthetic datasets.
    Synthetic = 4,
    /// Inputs made up for benchmarks and tests.
    Bench = 5,
    /// Delays, speeds and faults of virtual runs.
    Virtual = 6,
    /// Injected slowness of real runs.
    Straggler = 7,
    /// Which worker holds which samples.
    Shard = 8,
    /// Choices of strategies, e.g. where a wave starts.
    Protocol = 9,
    /// Points of a study and the order of its runs.
    Explore = 20,
    /// How training varies samples.
    Augment = 10,
    /// The order from which evaluations take their samples.
    Evaluation = 11,
    /// Draws of an analysis: which runs a tree sees.
    Analysis = 12,
}

/// One stream of 64-bit numbers, addressed by index.
#[derive(Clone, Copy, Debug)]
pub struct Stream(u64);

impl Stream {
    /// The stream of `seed` for `purpose`.
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        Self(mix(seed ^ mix(purpose as u64)))
    }

    /// A stream of its own for `key`, e.g. one per step or per sample.
    pub fn fork(self, key: u64) -> Self {
        Self(mix(self.0 ^ mix(key.wrapping_add(0x5851_F42D_4C95_7F2D))))
    }

    /// The number at `index`.
    pub fn at(self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index.wrapping_mul(GOLDEN)))
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub fn unit(self, index: u64) -> f64 {
        (self.at(index) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(self, index: u64, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit(index)
    }

    /// Standard normal (Box–Muller; uses the numbers `2·index` and `2·index + 1`).
    pub fn normal(self, index: u64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit(2 * index)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit(2 * index + 1)).cos()
    }

    /// Logarithm of a draw from the gamma distribution of this shape and scale 1 (Marsaglia–Tsang, boosted
    /// below shape 1). The logarithm, because draws of small shapes underflow; for the same reason shapes
    /// below 10⁻³⁰⁰ count as 10⁻³⁰⁰.
    pub fn gamma_ln(self, index: u64, shape: f64) -> f64 {
        let (normals, units) = (self.fork(index).fork(0), self.fork(index).fork(1));
        let (shape, boost) = if shape < 1.0 {
            (shape + 1.0, (1.0 - units.unit(0)).ln() / shape.max(1e-300))
        } else {
            (shape, 0.0)
        };
        let d = shape - 1.0 / 3.0;
        let mut attempt = 1;
        loop {
            let x = normals.normal(attempt);
            let root = 1.0 + x / (9.0 * d).sqrt();
            let v = root * root * root;
            if root > 0.0 && (1.0 - units.unit(attempt)).ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
                return d.ln() + v.ln() + boost;
            }
            attempt += 1;
        }
    }

    /// Uniform in `0..n` (multiply-shift; the bias is below 2⁻³² for any `n` that fits `u32`).
    pub fn below(self, index: u64, n: u64) -> u64 {
        ((u128::from(self.at(index)) * u128::from(n)) >> 64) as u64
    }

    /// A permutation of `0..n` (Fisher–Yates).
    pub fn permutation(self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64, i as u64 + 1) as usize);
        }
        order
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's finaliser: a bijection of 64-bit numbers with full avalanche.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(GOLDEN);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_different_purpose_seed_or_key_differ() {
        let s = Stream::new(1, Purpose::Init);
        assert_ne!(s.at(0), Stream::new(1, Purpose::Shuffle).at(0));
        assert_ne!(s.at(0), Stream::new(2, Purpose::Init).at(0));
        assert_ne!(s.at(0), s.fork(0).at(0));
        assert_eq!(s.at(7), Stream::new(1, Purpose::Init).at(7));
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        for n in [0, 1, 2, 97] {
            let mut p = Stream::new(3, Purpose::Shuffle).permutation(n);
            p.sort_unstable();
            assert_eq!(p, (0..n as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn normal_draws_have_mean_zero_and_variance_one() {
        let s = Stream::new(5, Purpose::Bench);
        let n = 20_000u64;
        let (sum, sq) = (0..n).map(|i| s.normal(i)).fold((0.0, 0.0), |(a, b), v| (a + v, b + v * v));
        assert!((sum / n as f64).abs() < 0.03);
        assert!((sq / n as f64 - 1.0).abs() < 0.05);
    }

    #[test]
    fn gamma_draws_have_the_moments_of_their_shape_and_their_logarithms_stay_finite() {
        let s = Stream::new(5, Purpose::Bench);
        let n = 20_000u64;
        for shape in [0.1, 0.5, 1.0, 2.5, 40.0] {
            let draws = || (0..n).map(|i| s.gamma_ln(i, shape).exp());
            let mean = draws().sum::<f64>() / n as f64;
            let variance = draws().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            assert!((mean / shape - 1.0).abs() < 0.08, "shape {shape}: mean {mean}");
            assert!((variance / shape - 1.0).abs() < 0.15, "shape {shape}: variance {variance}");
        }
        for shape in [f64::from_bits(1), 1e-300, 1e-3, 1e9, 1e20, f64::MAX] {
            assert!((0..1000).all(|i| s.gamma_ln(i, shape).is_finite()), "shape {shape}");
        }
    }
}
