//! Adam, and AdamW with decoupled weight decay.

use super::{Optimiser, Settings, Step, pieces};
use crate::accel::elementwise;
use crate::compute::Compute;
use crate::real::Real;

pub(super) const ADAM: Optimiser = Optimiser {
    name: "adam",
    about: "Adam; weight decay is added to the gradient",
    memory: |_| 2,
    f32: |compute, settings, step| update(compute, settings, step, (settings.weight_decay, 0.0)),
    f64: |compute, settings, step| update(compute, settings, step, (settings.weight_decay, 0.0)),
};

pub(super) const ADAMW: Optimiser = Optimiser {
    name: "adamw",
    about: "Adam with decoupled weight decay",
    memory: |_| 2,
    f32: |compute, settings, step| update(compute, settings, step, (0.0, settings.weight_decay)),
    f64: |compute, settings, step| update(compute, settings, step, (0.0, settings.weight_decay)),
};

fn update<T: Real>(
    compute: &Compute,
    settings: &Settings,
    step: Step<'_, T>,
    (coupled, decoupled): (f64, f64),
) {
    let (level, [first, second]) = (compute.level, settings.betas);
    let t = i32::try_from(step.step).unwrap_or(i32::MAX);
    let rate = T::of(step.lr / (1.0 - first.powi(t)));
    let root = T::of(1.0 / (1.0 - second.powi(t)).sqrt());
    let (beta, epsilon) = ((T::of(first), T::of(second)), T::of(settings.eps));
    let (coupled, decoupled) = (T::of(coupled), T::of(step.lr * decoupled));
    pieces(compute, step, |params, grads, m, v| {
        elementwise::adam(level, params, grads, m, v, beta, rate, root, epsilon, coupled, decoupled);
    });
}
