//! Stochastic gradient descent.

use super::{Optimiser, Settings, Step, pieces};
use crate::accel::elementwise;
use crate::compute::Compute;
use crate::real::Real;

pub(super) const SGD: Optimiser = Optimiser {
    name: "sgd",
    about: "stochastic gradient descent with momentum, Nesterov momentum and weight decay",
    memory: |settings| usize::from(settings.momentum != 0.0),
    f32: update,
    f64: update,
};

fn update<T: Real>(compute: &Compute, settings: &Settings, step: Step<'_, T>) {
    let (level, lr) = (compute.level, T::of(step.lr));
    let (momentum, decay) = (T::of(settings.momentum), T::of(settings.weight_decay));
    pieces(compute, step, |params, grads, velocity, _| {
        if settings.momentum == 0.0 {
            elementwise::sgd_plain(level, params, grads, lr, decay);
        } else {
            elementwise::sgd(level, params, grads, velocity, lr, momentum, decay, settings.nesterov);
        }
    });
}
