//! What holds a script up: its GPUs, the host that feeds them, or copying gradients between the two.

use super::sentence::{Sentence, megabytes, percent, seconds};
use super::verdict::{Case, Cause, Verdict};

/// Mean utilisation below which scripts that were given no GPU do not compute on one.
const UNUSED: f64 = 0.02;

impl Case<'_> {
    /// Mean utilisation of the workers' GPUs, from 0 to 1; none where they have none, or nobody sampled them.
    fn utilisation(&self) -> Option<f64> {
        let script = self.recorded.script.as_ref().filter(|_| !self.recorded.simulated)?;
        let gpus = script.own_gpus();
        let given = gpus.iter().any(|gpu| !gpu.workers.is_empty());
        let all: Vec<f64> =
            gpus.iter().filter_map(|gpu| gpu.utilisation_percent).map(|u| u / 100.0).collect();
        // Those that scripts leave alone say nothing of the ones that they chose.
        let used: Vec<f64> = all.into_iter().filter(|part| given || *part >= UNUSED).collect();
        (!used.is_empty()).then(|| paceline_statistics::mean(&used).clamp(0.0, 1.0))
    }

    /// Part of a step in which scripts copy gradients; none where they copy nothing, or nobody saw it.
    pub fn staging_share(&self) -> Option<f64> {
        let script = self.recorded.script.as_ref().filter(|script| script.observed)?;
        let part = |rank: usize, copied: f64| {
            let steps = self.recorded.steps.iter().filter(|step| step.rank == rank).count();
            copied / steps.max(1) as f64 / self.step_s
        };
        let all = script.staging.iter().map(|own| part(own.rank, own.staging_s));
        all.reduce(f64::max).map(|share| share.min(1.0)).filter(|share| *share > 0.0)
    }

    /// Copying gradients between a script and its rank.
    pub fn staging(&self) -> Option<Verdict> {
        let share = self.staging_share()?;
        let sentence = Sentence::new(
            "Copying gradients sets the pace (staging): the script that copies most spends {} per step on {} of gradients, \
             which is {} of the time; a larger batch of the script's makes fewer steps of the same work",
            [
                seconds("staging_s", share * self.step_s),
                megabytes("gradient_bytes", 4.0 * self.recorded.params as f64),
                percent("staging_share", share),
            ],
        );
        Some(Verdict::of(Cause::Staging, share, sentence, Vec::new()))
    }

    /// What of a script's own time is its GPUs', and what is the host's, where the GPUs were sampled.
    pub fn on_gpus(&self) -> Option<[Verdict; 2]> {
        let utilisation = self.utilisation()?;
        let own = (self.part(|r| r.compute_s) - self.staging_share().unwrap_or(0.0)).max(0.0);
        let busy = utilisation.min(own);
        let gpu = Sentence::new(
            "GPUs are at work for {} of the time: the run is bound by them",
            [percent("gpu_utilisation", utilisation)],
        );
        let host = Sentence::new(
            "GPUs wait for the host: scripts are in their steps for {} of the time, and GPUs at work for {}; loading, Python \
             and starting kernels take the rest. A larger batch, more loader workers, torch.compile or several workers on a GPU \
             fill it",
            [percent("script_share", own), percent("gpu_utilisation", utilisation)],
        );
        Some([
            Verdict::of(Cause::Gpu, busy, gpu, Vec::new()),
            Verdict::of(Cause::Host, own - busy, host, Vec::new()),
        ])
    }
}
