//! Activation functions and the gates of recurrent layers, compiled once per instruction set.

use super::level::{Isa, Level};
use crate::real::Real;

#[inline(always)]
fn logistic<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// Φ(x), the normal distribution function, and its density. (The error function needs the same exponential.)
#[inline(always)]
fn normal<T: Real>(x: T) -> (T, T) {
    let u = x * T::of(std::f64::consts::FRAC_1_SQRT_2);
    let density = T::of(0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
    (T::of(0.5) * (T::ONE + u.erf()), density * (-(u * u)).exp())
}

per_level! {
    /// `y = x·Φ(x)`.
    pub fn gelu<T: Real>(x: &[T], y: &mut [T]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x * normal(x).0;
        }
    }

    /// Back through [`gelu`], from its input.
    pub fn gelu_backward<T: Real>(x: &[T], dy: &mut [T]) {
        for (d, &x) in dy.iter_mut().zip(x) {
            let (cdf, density) = normal(x);
            *d = *d * (cdf + x * density);
        }
    }

    /// `y = tanh x`.
    pub fn tanh<T: Real>(x: &[T], y: &mut [T]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x.tanh();
        }
    }

    /// Back through [`tanh`], from its output.
    pub fn tanh_backward<T: Real>(y: &[T], dy: &mut [T]) {
        for (d, &y) in dy.iter_mut().zip(y) {
            *d = *d * (T::ONE - y * y);
        }
    }

    /// `y = 1 / (1 + e⁻ˣ)`.
    pub fn sigmoid<T: Real>(x: &[T], y: &mut [T]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = logistic(x);
        }
    }

    /// Back through [`sigmoid`], from its output.
    pub fn sigmoid_backward<T: Real>(y: &[T], dy: &mut [T]) {
        for (d, &y) in dy.iter_mut().zip(y) {
            *d = *d * (y * (T::ONE - y));
        }
    }

    /// One step of one sample's gated recurrent unit. `gates` holds, in quarters, the sums of reset and
    /// update gate (without the hidden bias), the input's part of the candidate and the hidden state's
    /// part of it; the first three are replaced by the gates' and the candidate's values.
    pub fn gru<T: Real>(gates: &mut [T], bias: &[T], before: &[T], y: &mut [T]) {
        let h = y.len();
        let ([r, z, n, hidden], before) = (parts(gates, h), &before[..h]);
        let (bias_r, bias_z) = (&bias[..h], &bias[h..2 * h]);
        for k in 0..h {
            r[k] = logistic(r[k] + bias_r[k]);
            z[k] = logistic(z[k] + bias_z[k]);
            n[k] = (n[k] + r[k] * hidden[k]).tanh();
            y[k] = n[k] + z[k] * (before[k] - n[k]);
        }
    }

    /// Back through [`gru`]: `gates` becomes the gradients of its four quarters on entry, and `dy` what goes
    /// straight to the state before.
    pub fn gru_backward<T: Real>(gates: &mut [T], before: &[T], dy: &mut [T]) {
        let h = dy.len();
        let ([r, z, n, hidden], before) = (parts(gates, h), &before[..h]);
        for k in 0..h {
            let (d, reset, update, candidate) = (dy[k], r[k], z[k], n[k]);
            let d_candidate = d * (T::ONE - update) * (T::ONE - candidate * candidate);
            r[k] = d_candidate * hidden[k] * (reset * (T::ONE - reset));
            z[k] = d * (before[k] - candidate) * (update * (T::ONE - update));
            n[k] = d_candidate;
            hidden[k] = d_candidate * reset;
            dy[k] = d * update;
        }
    }

    /// One step of one sample's long short-term memory. `gates` holds, in sixths, the sums of input gate,
    /// forget gate, candidate and output gate (without the hidden bias), which are replaced by their
    /// values, then the new cell and its hyperbolic tangent.
    pub fn lstm<T: Real>(gates: &mut [T], bias: &[T], before: &[T], y: &mut [T]) {
        let h = y.len();
        let [i, f, g, o, cell, squashed] = parts(gates, h);
        let [bias_i, bias_f, bias_g, bias_o] = std::array::from_fn(|k| &bias[k * h..(k + 1) * h]);
        let before = &before[..h];
        for k in 0..h {
            i[k] = logistic(i[k] + bias_i[k]);
            f[k] = logistic(f[k] + bias_f[k]);
            g[k] = (g[k] + bias_g[k]).tanh();
            o[k] = logistic(o[k] + bias_o[k]);
            cell[k] = f[k] * before[k] + i[k] * g[k];
            squashed[k] = cell[k].tanh();
            y[k] = o[k] * squashed[k];
        }
    }

    /// Back through [`lstm`]: the first four sixths of `gates` become the gradients of what they were on
    /// entry. The fifth holds the cell's gradient from the step after on entry, that of the cell before
    /// afterwards.
    pub fn lstm_backward<T: Real>(gates: &mut [T], before: &[T], dy: &[T]) {
        let h = dy.len();
        let [i, f, g, o, cell, squashed] = parts(gates, h);
        let before = &before[..h];
        for k in 0..h {
            let (d, input, forget, candidate, output, s) = (dy[k], i[k], f[k], g[k], o[k], squashed[k]);
            let dc = cell[k] + d * output * (T::ONE - s * s);
            i[k] = dc * candidate * (input * (T::ONE - input));
            f[k] = dc * before[k] * (forget * (T::ONE - forget));
            g[k] = dc * input * (T::ONE - candidate * candidate);
            o[k] = d * s * (output * (T::ONE - output));
            cell[k] = dc * forget;
        }
    }
}

/// Slices of `h` numbers.
#[inline(always)]
fn parts<T: Real, const N: usize>(gates: &mut [T], h: usize) -> [&mut [T]; N] {
    let mut rest = gates;
    std::array::from_fn(|_| {
        let (first, others) = std::mem::take(&mut rest).split_at_mut(h);
        rest = others;
        first
    })
}
