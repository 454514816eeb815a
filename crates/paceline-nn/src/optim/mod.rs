//! The registry of optimisers. To add one: write its file, then add its line to [`OPTIMISERS`].
//!
//! An optimiser is applied to any range of the flat buffers (a whole model, a bucket, a server's
//! shard); its memory is the caller's too.

mod adam;
mod sgd;

use crate::compute::Compute;
use crate::real::Real;

/// The numbers that optimisers are set by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// SGD's momentum.
    pub momentum: f64,
    /// SGD's Nesterov form.
    pub nesterov: bool,
    /// Weight decay.
    pub weight_decay: f64,
    /// How much of its two means Adam keeps at each step.
    pub betas: [f64; 2],
    /// What Adam adds to the root of the second one.
    pub eps: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { momentum: 0.9, nesterov: false, weight_decay: 0.0, betas: [0.9, 0.999], eps: 1e-8 }
    }
}

/// An optimiser that users can name.
pub struct Optimiser {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// Numbers of memory per parameter.
    pub memory: fn(&Settings) -> usize,
    /// One update.
    pub f32: Update<f32>,
    /// One update in the reference precision.
    pub f64: Update<f64>,
}

paceline_registry::entries!(Optimiser, OPTIMISERS);

/// One update of a range of parameters; `memory` has [`Optimiser::memory`] numbers per parameter, and
/// `step` counts the updates of this range from 1.
pub type Update<T> = fn(&Compute, &Settings, Step<'_, T>);

/// What an update works on.
pub struct Step<'a, T> {
    /// The parameters to change.
    pub params: &'a mut [T],
    /// Their gradients.
    pub grads: &'a [T],
    /// The optimiser's memory of them, one block of the parameters' length after the other.
    pub memory: &'a mut [T],
    /// Learning rate.
    pub lr: f64,
    /// Counts from 1.
    pub step: u64,
}

/// Every optimiser.
pub static OPTIMISERS: &[Optimiser] = &[sgd::SGD, adam::ADAM, adam::ADAMW];

impl Optimiser {
    /// Applies one update.
    pub fn apply(&self, compute: &Compute, settings: &Settings, step: Step<'_, f32>) {
        (self.f32)(compute, settings, step);
    }

    /// Applies one update in the reference precision.
    pub fn apply_f64(&self, compute: &Compute, settings: &Settings, step: Step<'_, f64>) {
        (self.f64)(compute, settings, step);
    }
}

/// Splits an update between the threads; `f` gets each piece of the parameters, of the gradients and of
/// the two blocks of memory (empty where the optimiser keeps less).
fn pieces<T: Real>(
    compute: &Compute,
    step: Step<'_, T>,
    f: impl Fn(&mut [T], &[T], &mut [T], &mut [T]) + Sync,
) {
    let n = step.params.len();
    assert_eq!(step.grads.len(), n, "one gradient per parameter");
    let (first, second) = step.memory.split_at_mut(step.memory.len().min(n));
    compute.pool.split3([step.params, first, second], |at, [params, first, second]| {
        f(params, &step.grads[at..at + params.len()], first, second);
    });
}
