//! Adam, and AdamW with decoupled weight decay (β₁ = 0.9, β₂ = 0.999, ε = 10⁻⁸).

use super::{Optimiser, Step, pieces};
use crate::accel::elementwise;
use crate::compute::Compute;
use crate::real::Real;

const BETA: (f64, f64) = (0.9, 0.999);
const EPSILON: f64 = 1e-8;

pub(super) const ADAM: Optimiser = Optimiser {
    name: "adam",
    about: "Adam; weight decay is added to the gradient",
    memory: |_| 2,
    f32: |compute, settings, step| update(compute, step, (settings.weight_decay, 0.0)),
    f64: |compute, settings, step| update(compute, step, (settings.weight_decay, 0.0)),
};

pub(super) const ADAMW: Optimiser = Optimiser {
    name: "adamw",
    about: "Adam with decoupled weight decay",
    memory: |_| 2,
    f32: |compute, settings, step| update(compute, step, (0.0, settings.weight_decay)),
    f64: |compute, settings, step| update(compute, step, (0.0, settings.weight_decay)),
};

fn update<T: Real>(compute: &Compute, step: Step<'_, T>, (coupled, decoupled): (f64, f64)) {
    let level = compute.level;
    let t = i32::try_from(step.step).unwrap_or(i32::MAX);
    let rate = T::of(step.lr / (1.0 - BETA.0.powi(t)));
    let root = T::of(1.0 / (1.0 - BETA.1.powi(t)).sqrt());
    let (beta, epsilon) = ((T::of(BETA.0), T::of(BETA.1)), T::of(EPSILON));
    let (coupled, decoupled) = (T::of(coupled), T::of(step.lr * decoupled));
    pieces(compute, step, |params, grads, m, v| {
        elementwise::adam(level, params, grads, m, v, beta, rate, root, epsilon, coupled, decoupled);
    });
}
