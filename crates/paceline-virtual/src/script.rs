//! A script in virtual time: nobody knows its costs before it has run, so they come from a recorded run of it, or from a
//! calibration that measured it.

use paceline_analyze::{Explanation, GradientReady, RankTimes, RecordedRun};
use paceline_plan::{Plan, PlanError, TrainingLength};
use paceline_protocol::{Options, SINGLE, Setup};
use paceline_record::{RankTotals, RunResult, Seconds, Staleness};
use paceline_resolve::TypedPlan;
use paceline_sim::{Costs, SizesOnly};
use paceline_statistics::{mean, median};
use paceline_train::worker::MESSAGE;

use crate::error::VirtualError;
use crate::predict::Prediction;
use crate::price::{self, PassTiming, Terms};
use crate::run::placed;
use crate::script_time::ScriptTime;
use crate::whatif;

/// Steps that are simulated: those of a script are alike.
const STEPS: u64 = 24;

/// What is known of a script.
#[derive(Clone, Debug)]
pub struct RecordedScript {
    source: ScriptEvidence,
    params: usize,
    /// Samples of a worker's step, and of the whole run where the script ended by itself.
    samples: f64,
    total_samples: Option<f64>,
    startup_s: f64,
    timing: PassTiming,
    /// The pass of a worker that exchanges nothing, where that was measured beside.
    alone: Option<PassTiming>,
    /// Seconds of the script's own update.
    update_s: f64,
    cores: Option<usize>,
}

/// Where it is known from.
#[derive(Clone, Debug)]
enum ScriptEvidence {
    /// A recorded run of so many workers.
    Run { run: String, workers: usize },
    /// A calibration.
    Calibration(Box<ScriptTime>),
}

impl RecordedScript {
    /// Of a recorded run that trained on `samples` samples after `startup_s` seconds; refused with the reason where it does
    /// not tell enough.
    pub fn new(recorded: &RecordedRun, samples: u64, startup_s: f64) -> Result<Self, String> {
        let said = Explanation::new(recorded).map_err(|error| error.to_string())?;
        if recorded.params == 0 {
            return Err(format!("run {} does not say how many parameters its script has", said.run));
        }
        let workers: Vec<&RankTimes> = said.ranks.iter().filter(|rank| rank.role == "worker").collect();
        let typical =
            |of: fn(&RankTimes) -> f64| median(&workers.iter().map(|rank| of(rank)).collect::<Vec<_>>());
        let seconds = typical(|rank| rank.compute_s);
        let own_samples = mean(&workers.iter().map(|rank| rank.samples).collect::<Vec<_>>());
        if seconds <= 0.0 || own_samples <= 0.0 {
            return Err(format!("run {} does not say what a step of its script takes", said.run));
        }
        let parts = whatif::parts(&said.ready);
        let data = typical(|rank| rank.data_s) / seconds;
        let forward = parts.first().map_or(1.0 / 3.0, |first| (first.end - data).max(0.0));
        Ok(Self {
            source: ScriptEvidence::Run { run: said.run.clone(), workers: workers.len() },
            params: recorded.params,
            samples: own_samples,
            total_samples: Some(samples as f64),
            startup_s,
            timing: PassTiming {
                seconds,
                data,
                forward,
                first: 0.0,
                parts,
                quantiles: said.jitter.clone(),
                sharing: Vec::new(),
            },
            alone: None,
            update_s: typical(|rank| rank.apply_s),
            cores: said.cores,
        })
    }

    /// As a calibration has it.
    pub fn calibrated(time: &ScriptTime) -> Self {
        let mut from = time.params;
        let ready = time.tensor.iter().rev().map(|tensor| {
            from = from.saturating_sub(tensor.numbers);
            GradientReady { at: tensor.at, from }
        });
        let mut ready: Vec<GradientReady> = ready.collect();
        // What lies before the first tensor is final with it.
        if let Some(last) = ready.last_mut() {
            *last = GradientReady { at: 1.0, from: 0 };
        }
        let timing = PassTiming {
            seconds: time.pass_s.median,
            data: time.data,
            forward: time.forward,
            first: 0.0,
            parts: whatif::parts(&ready),
            quantiles: time.quantiles.clone(),
            sharing: time.sharing.clone(),
        };
        Self {
            source: ScriptEvidence::Calibration(Box::new(time.clone())),
            params: time.params,
            samples: time.samples,
            total_samples: time.total_samples.map(|samples| samples as f64),
            startup_s: time.startup_s,
            alone: Some(PassTiming { seconds: time.alone_s.median, ..timing.clone() }),
            timing,
            update_s: time.update_s,
            cores: None,
        }
    }

    /// What it is known from, in words.
    pub fn source(&self) -> String {
        match &self.source {
            ScriptEvidence::Run { run, .. } => format!("the recorded run {run}"),
            ScriptEvidence::Calibration(_) => "the calibration".into(),
        }
    }

    /// Its pass in a plan: a worker alone copies no gradients, and workers of one GPU are in each other's way on it.
    pub(crate) fn timing(&self, plan: &Plan) -> PassTiming {
        let staged = plan.script.as_ref().is_some_and(|script| script.staged);
        let pass = self.alone.as_ref().filter(|_| plan.strategy == SINGLE && !staged).unwrap_or(&self.timing);
        match &self.source {
            ScriptEvidence::Calibration(time) if time.gpus > 0 => {
                let sharing = time.sharing_of_gpus(plan.workers, gpus(plan, time));
                PassTiming { sharing, ..pass.clone() }
            }
            _ => pass.clone(),
        }
    }

    /// Samples of a worker's step, as a whole number.
    pub(crate) fn batch(&self) -> usize {
        (self.samples.round() as usize).max(1)
    }

    /// Seconds until the first step.
    pub(crate) fn startup_s(&self) -> f64 {
        self.startup_s
    }

    /// Steps of a plan: its own, or as many as the script's samples give.
    pub(crate) fn steps(&self, plan: &Plan) -> Result<u64, PlanError> {
        if let TrainingLength::Steps(steps) = plan.work {
            return Ok(steps);
        }
        let total = self.total_samples.ok_or_else(|| {
            let problem = "the script was ended when it was measured, so nobody knows how long it trains: say how many \
                           steps";
            PlanError::new("--steps", "", problem)
        })?;
        Ok((total / (self.samples * plan.workers as f64)).ceil().max(1.0) as u64)
    }

    /// What a placed plan costs, and what its strategy is set up with.
    pub(crate) fn priced(
        &self,
        typed: &TypedPlan<'_>,
        steps: u64,
        terms: &Terms<'_>,
    ) -> Result<(Setup, Costs), VirtualError> {
        let setup = self.setup(typed, steps);
        let checked = typed.strategy.check(&setup);
        checked.map_err(|refusal| PlanError::new(&refusal.flag, refusal.value, refusal.problem))?;
        let mut costs = price::costs_of(typed, [self.params; 2], &setup, &self.timing(typed), None, terms);
        if self.updates(typed) {
            costs.work.apply = 1e9 * self.update_s / self.params as f64;
        }
        self.share_cores(&mut costs.hosts, typed, setup.world(), terms);
        Ok((setup, costs))
    }

    /// Refuses a plan that nobody can simulate.
    pub(crate) fn check(plan: &Plan) -> Result<(), PlanError> {
        let problem = "the script's own framework averages: it is not simulated";
        if plan.delegated() { Err(PlanError::new("--strategy", &plan.strategy, problem)) } else { Ok(()) }
    }

    /// What another plan of the same script with the same arguments will take.
    pub fn predict(&self, plan: &Plan, terms: &Terms<'_>) -> Result<Prediction, VirtualError> {
        Self::check(plan)?;
        let placed = placed(plan, terms)?;
        let steps = self.steps(plan)?;
        let typed = TypedPlan::new(&placed, terms.registries)?;
        let (setup, costs) = self.priced(&typed, steps.min(STEPS).next_multiple_of(8), terms)?;
        let participants = (0..setup.world()).map(|rank| typed.strategy.participant(&setup, rank)).collect();
        let happened = paceline_sim::run(&setup, participants, &costs, &mut SizesOnly);
        if !happened.stuck.is_empty() {
            let done = happened.finished.iter().map(Vec::len).min().unwrap_or(0);
            return Err(VirtualError::Stuck { ranks: happened.stuck, steps: done });
        }
        let last = happened.finished.iter().filter_map(|times| times.last()).max().copied().unwrap_or(0);
        let step_s = 1e-9 * last as f64 / setup.end() as f64;
        let scale = steps as f64 / setup.end() as f64;
        let ranks = (0..setup.world()).map(|rank| totals(rank, &setup, &happened, scale)).collect();
        Ok(Prediction::measured(self.result(plan, steps, step_s, ranks), self.beyond(plan, terms), terms))
    }

    /// Whether a worker's script makes the updates, and not a server.
    fn updates(&self, plan: &Plan) -> bool {
        plan.script.as_ref().is_none_or(|script| script.apply != "server")
    }

    fn setup(&self, plan: &TypedPlan<'_>, steps: u64) -> Setup {
        let options = Options(plan.options.clone());
        Setup {
            hosts: plan.layout(),
            paths: plan.paths.clone(),
            bucket: (plan.bucket / size_of::<f32>()).max(1),
            message: MESSAGE,
            sync: (plan.consistency.make)(&options, steps),
            averages: plan.averages,
            coder: plan.coder,
            options,
            program: plan.program.clone(),
            seed: plan.seed,
            ..Setup::new(plan.workers, plan.servers, self.params, steps)
        }
    }

    /// Where the machine was not measured, ranks share the cores that the recorded one had.
    fn share_cores(&self, hosts: &mut [paceline_sim::Host], plan: &Plan, world: usize, terms: &Terms<'_>) {
        let Some(cores) = self.cores.filter(|_| terms.calibration.is_none() && terms.cluster.is_none())
        else {
            return;
        };
        let slower = |ranks: usize| ((ranks * plan.threads) as f64 / cores as f64).max(1.0);
        if let Some(own) = hosts.first_mut() {
            own.slowdown = (1..=world).map(slower).collect();
        }
    }

    fn result(&self, plan: &Plan, steps: u64, step_s: f64, ranks: Vec<RankTotals>) -> RunResult {
        let train = step_s * steps as f64;
        let samples = self.samples * plan.workers as f64 * steps as f64;
        RunResult {
            run: "prediction".into(),
            strategy: plan.strategy.clone(),
            steps,
            samples: samples as u64,
            seconds: Seconds { total: self.startup_s + train, startup: self.startup_s, train },
            samples_per_s: samples / train.max(1e-12),
            train_loss: f64::NAN,
            final_loss: f64::NAN,
            final_accuracy: f64::NAN,
            replicas: None,
            time_to_accuracy_s: None,
            stopped_at_target: None,
            convergence_s: None,
            params_sha256: String::new(),
            staleness: Staleness::default(),
            reported: Default::default(),
            exchange_unobserved: false,
            dropped_rows: 0,
            ranks,
            membership: Vec::new(),
            simulated: None,
        }
    }

    /// Why times may be further off than the model is.
    pub fn beyond(&self, plan: &Plan, terms: &Terms<'_>) -> Vec<String> {
        let mut all = Vec::new();
        let threads = (plan.workers + plan.servers) * plan.threads;
        match &self.source {
            ScriptEvidence::Run { run, workers } => {
                if terms.calibration.is_none() {
                    all.push("what messages cost was not measured: round numbers".into());
                }
                let cores = self.cores.unwrap_or(usize::MAX);
                if threads > cores && terms.cluster.is_none() {
                    all.push(format!("{threads} computing threads on {cores} cores"));
                }
                if *workers > 1 {
                    all.push(format!(
                        "passes come from run {run} of {workers} workers, which may have shared cores"
                    ));
                }
            }
            ScriptEvidence::Calibration(time)
                if time.gpus == 0 && plan.script.as_ref().is_some_and(|script| !script.gpus.is_empty()) =>
            {
                all.push("the script on GPUs: it was measured without (calibrate --gpus)".into());
            }
            ScriptEvidence::Calibration(time) if time.gpus > 0 && terms.cluster.is_none() => {
                let (gpus, most) = (gpus(plan, time), time.most_on_one_gpu());
                let each = plan.workers.div_ceil(gpus);
                if each > most {
                    all.push(format!("{each} workers of the script on one GPU: up to {most} were measured"));
                }
            }
            ScriptEvidence::Calibration(time) => {
                let most = time.most_workers();
                let cores = terms.calibration.map_or(usize::MAX, |known| known.cores);
                if plan.workers > most && threads > cores && terms.cluster.is_none() {
                    let workers = plan.workers;
                    all.push(format!("{workers} workers of the script at once: up to {most} were measured"));
                }
                if self.timing.parts.is_empty() {
                    all.push(
                        "the script does not tell when its gradients are final: they all wait for the end"
                            .into(),
                    );
                }
            }
        }
        if terms.cluster.is_some() {
            all.push("the cluster's speeds and links are its file's, not measured".into());
        }
        all
    }
}

/// GPUs of a plan's machine: those that it names, or as many as were measured.
fn gpus(plan: &Plan, time: &ScriptTime) -> usize {
    let named = plan.script.as_ref().map_or(0, |script| script.gpus.len());
    if named > 0 { named } else { time.gpus.max(1) }
}

/// What a rank sends and receives over the whole run.
fn totals(rank: usize, setup: &Setup, happened: &paceline_sim::SimulationReport, scale: f64) -> RankTotals {
    let spent = &happened.spent[rank];
    let bytes = |simulated: u64| (simulated as f64 * scale) as u64;
    let seconds = |simulated: u64| 1e-9 * simulated as f64 * scale;
    RankTotals {
        rank,
        role: if rank < setup.workers { "worker" } else { "server" }.into(),
        host: String::new(),
        params_sha256: String::new(),
        compute_s: seconds(spent.compute),
        send_s: seconds(spent.exchange),
        wait_s: seconds(spent.wait()),
        apply_s: seconds(spent.apply),
        sent_bytes: bytes(spent.sent_bytes),
        received_bytes: bytes(spent.received_bytes),
        cpu_s: 0.0,
        rss_peak_bytes: 0,
        buffer_bytes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_analyze::{RecordedRank, RecordedStep};
    use paceline_plan::Script;
    use paceline_record::{ScriptRecord, ScriptStaging};
    use paceline_resolve::Registries;

    const PARAMS: usize = 1_000_000;

    /// One worker whose pass takes 10 ms, 6 of them backward; its two halves are ready at these parts of that.
    fn recorded(ready: [f64; 2]) -> RecordedRun {
        let step = |step| RecordedStep {
            step,
            begin_s: 0.011 * step as f64,
            compute_s: 0.010,
            data_s: 0.001,
            backward_s: 0.006,
            apply_s: 0.001,
            samples: 8,
            ..RecordedStep::default()
        };
        let ready_s = ready.map(|part| Some(0.006 * part)).to_vec();
        RecordedRun {
            run: "r".into(),
            params: PARAMS,
            ranks: vec![RecordedRank {
                worker: true,
                host: "h".into(),
                cores: Some(2),
                ..RecordedRank::default()
            }],
            steps: (1..=40).map(step).collect(),
            script: Some(ScriptRecord {
                tensors: vec![("a".into(), PARAMS / 2), ("b".into(), PARAMS / 2)],
                staging: vec![ScriptStaging { rank: 0, staging_s: 0.0, ready_s }],
                observed: true,
                ..ScriptRecord::default()
            }),
            ..RecordedRun::default()
        }
    }

    fn plan(workers: usize, strategy: &str, servers: usize, network: Option<&str>) -> Plan {
        let script = Script {
            file: "/t.py".into(),
            sha256: String::new(),
            args: Vec::new(),
            python: "python3".into(),
            apply: "worker".into(),
            delegated: (strategy == "ddp-gloo").then(|| "gloo".into()),
            gpus: Vec::new(),
            without_mps: false,
            staged: false,
            auto: false,
        };
        Plan {
            workers,
            servers,
            strategy: strategy.into(),
            network: network.map(|text| text.parse().unwrap()),
            script: Some(script),
            work: TrainingLength::UntilScriptEnds,
            ..Plan::example()
        }
    }

    fn predicted(ready: [f64; 2], plan: &Plan) -> Result<Prediction, VirtualError> {
        let (registries, script) =
            (Registries::default(), RecordedScript::new(&recorded(ready), 320, 1.0).unwrap());
        script
            .predict(plan, &Terms { registries: &registries, calibration: None, cluster: None, jitter: None })
    }

    #[test]
    fn one_worker_takes_what_it_took_and_more_workers_share_the_work() {
        let one = predicted([1.0, 0.3], &plan(1, "single", 0, None)).unwrap();
        assert!((one.step_s.median - 0.011).abs() < 0.0005, "{:?}", one.step_s);
        assert!((one.train_s.median - 0.44).abs() < 0.02, "{:?}", one.train_s);
        let two = predicted([1.0, 0.3], &plan(2, "ring-allreduce", 0, None)).unwrap();
        assert!(two.train_s.median < 0.7 * one.train_s.median, "as many samples in half of the steps");
        // Two cores: four workers take turns.
        let four = predicted([1.0, 0.3], &plan(4, "ring-allreduce", 0, None)).unwrap();
        assert!(four.step_s.median > 0.018, "{:?}", four.step_s);
        assert!(four.beyond.iter().any(|why| why.contains("on 2 cores")), "{:?}", four.beyond);
    }

    #[test]
    fn links_cost_what_they_carry_and_what_is_ready_early_is_under_way_early() {
        // 4 MB each way at 1 Gbit/s: 32 ms.
        let slow = plan(2, "ring-allreduce", 0, Some("1gbit,1ms"));
        let late = predicted([1.0, 1.0], &slow).unwrap();
        assert!((0.040..0.060).contains(&late.step_s.median), "{:?}", late.step_s);
        let early = predicted([1.0, 0.1], &slow).unwrap();
        let saved = late.step_s.median - early.step_s.median;
        assert!((0.003..0.007).contains(&saved), "backward goes on beside: {saved}");
        assert!(
            late.sent_bytes > 20 * 2 * 4_000_000 && late.sent_bytes < 21 * 2 * 4_100_000,
            "{}",
            late.sent_bytes
        );
        let servers = predicted([1.0, 0.1], &plan(2, "ps", 1, Some("1gbit,1ms"))).unwrap();
        assert!(servers.step_s.median > early.step_s.median, "{:?}", servers.step_s);
    }

    #[test]
    fn what_the_scripts_framework_does_is_not_predicted() {
        let refused = predicted([1.0, 0.1], &plan(2, "ddp-gloo", 0, None)).unwrap_err().to_string();
        assert!(refused.contains("is not simulated"), "{refused}");
    }
}
