//! One comparison, and the plan of each of its runs.

use std::path::{Path, PathBuf};

use paceline_data::Dataset;
use paceline_plan::{Plan, PlanError};
use paceline_resolve::{PlanSettings, TypedPlan, command_line, resolve};
use paceline_study::AllRegistries;
use paceline_train::model;
use paceline_virtual::{Calibration, HardwareModel};
use serde::{Deserialize, Serialize};

use crate::cell::{CellClock, ComparedCell};
use crate::contender::Contender;
use crate::error::CompareFailure;
use crate::journal::RunKey;
use crate::search::rate;

/// Evaluations of a run.
const EVALUATIONS: u64 = 20;

/// What a comparison is asked for, beside its contenders.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct ComparisonFlags {
    /// Settings of every run: data, model, batch.
    pub base: PlanSettings,
    /// Workers of real runs, and of those in virtual time; 0 leaves them out.
    pub few: usize,
    pub many: usize,
    /// The link, as `--network` has it.
    pub network: String,
    /// Steps of a run, at most.
    pub steps: u64,
    pub seed: u64,
    pub minutes: f64,
    /// Seeds that strategies are compared on, at most.
    pub most_seeds: u64,
    pub calibration: Option<PathBuf>,
}

/// Everything that a comparison's page is made from beside its runs; the beginning of its journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct ComparisonDocument {
    /// The first one is whom the comparison is about.
    pub contenders: Vec<Contender>,
    pub data: String,
    pub model: String,
    pub batch: usize,
    pub train_samples: usize,
    pub test_samples: usize,
    pub few: usize,
    pub many: usize,
    pub network: String,
    pub steps: u64,
    pub seed: u64,
    pub minutes: f64,
    pub most_seeds: u64,
    /// The hash of what all plans have in common.
    pub base_sha256: String,
    /// The file that virtual time is calibrated by.
    pub calibration: Option<String>,
    /// A command line that makes the comparison again.
    pub command: String,
}

impl ComparisonDocument {
    /// Its cells.
    pub fn cells(&self) -> Vec<ComparedCell> {
        ComparedCell::all(self.few, self.many)
    }

    /// Whom the comparison is about.
    pub fn mine(&self) -> &Contender {
        &self.contenders[0]
    }

    /// The seeds that learning rates and variants are chosen on; those of the comparison begin behind them.
    pub fn search_seeds(&self, count: u64) -> Vec<u64> {
        (0..count).map(|i| self.seed.wrapping_mul(1000).wrapping_add(1 + i)).collect()
    }

    /// The seed of a round of the comparison.
    pub fn round_seed(&self, round: u64) -> u64 {
        self.seed.wrapping_mul(1000).wrapping_add(501 + round)
    }
}

/// A comparison that can be made.
pub struct StrategyComparison<'a> {
    /// What its journal begins with.
    pub document: ComparisonDocument,
    pub(crate) registries: &'a AllRegistries,
    pub(crate) dataset: Dataset,
    pub(crate) base: PlanSettings,
    calibration: Option<Calibration>,
}

impl<'a> StrategyComparison<'a> {
    /// Checks that every contender can be run in every cell; nothing is started.
    pub fn new(
        contenders: Vec<Contender>,
        flags: ComparisonFlags,
        command: String,
        registries: &'a AllRegistries,
    ) -> Result<Self, CompareFailure> {
        let ComparisonFlags { base, few, many, network, steps, seed, minutes, most_seeds, calibration } =
            flags;
        if few == 0 && many == 0 {
            let problem = "and --virtual-workers 0 leave nothing to compare: one of them must be at least 2";
            return Err(PlanError::new("--workers", 0, problem).into());
        }
        if let Some((flag, n)) =
            [("--workers", few), ("--virtual-workers", many)].into_iter().find(|(_, n)| *n == 1)
        {
            return Err(PlanError::new(
                flag,
                n,
                "one worker averages with nobody: 0 or at least 2 is needed",
            )
            .into());
        }
        let common = resolve(&base)?;
        let typed = TypedPlan::new(&common, registries.runs())?;
        let dataset = typed.dataset()?.load(&base.data_folders(), &model::settings(&common))?;
        let document = ComparisonDocument {
            contenders,
            data: common.data.clone(),
            model: common.model.clone(),
            batch: common.batch,
            train_samples: dataset.train.len(),
            test_samples: dataset.test.len(),
            few,
            many,
            network,
            steps,
            seed,
            minutes,
            most_seeds,
            base_sha256: common.hash(),
            calibration: calibration.as_ref().map(|path| path.display().to_string()),
            command,
        };
        let calibration = calibration.as_deref().map(Calibration::load).transpose()?;
        let made = Self { document, registries, dataset, base, calibration };
        made.check()?;
        Ok(made)
    }

    /// Whether every contender can be run in every cell.
    fn check(&self) -> Result<(), CompareFailure> {
        for cell in self.document.cells() {
            for (contender, entry) in self.document.contenders.iter().enumerate() {
                for variant in 0..entry.variants.len() {
                    let key = RunKey { cell, contender, variant, rate: 0, seed: self.document.seed };
                    let (plan, _) = self.plan(&key, self.document.steps)?;
                    plan.check(self.dataset.train.len())?;
                    let typed = TypedPlan::new(&plan, self.registries.runs())?;
                    if cell.clock == CellClock::Real {
                        paceline_launch::run::check_processes(&plan)?;
                    }
                    paceline_launch::run::check(&typed, self.registries.runs(), Some(&self.dataset))?;
                }
            }
        }
        Ok(())
    }

    /// The name of its journal: another question has another one.
    pub fn name(&self) -> String {
        // How it was asked for, quietly or into which folder, is no part of the question.
        let question = ComparisonDocument { command: String::new(), ..self.document.clone() };
        let text = serde_json::to_vec(&question).expect("a document is plain data");
        let (_, hash) = paceline_files::sha256(&text[..]).expect("memory can be read");
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let label: String = self.document.mine().label.chars().map(plain).take(32).collect();
        format!("{}-{}", label.trim_matches('-'), &hash[..8])
    }

    /// Where its journal lies in a store.
    pub fn folder(&self, store: &Path) -> PathBuf {
        store.join("comparisons").join(self.name())
    }

    /// What things cost in virtual time.
    pub(crate) fn hardware(&self) -> HardwareModel {
        HardwareModel { cluster: None, calibration: self.calibration.clone(), jitter: None }
    }

    /// The plan of a run, and its settings.
    pub(crate) fn plan(&self, key: &RunKey, steps: u64) -> Result<(Plan, PlanSettings), CompareFailure> {
        let RunKey { cell, seed, .. } = *key;
        let variant = &self.document.contenders[key.contender].variants[key.variant];
        let mut settings = self.base.clone();
        let mut put = |name: &str, text: String| settings.put(name, text);
        variant.settings.iter().for_each(|(name, value)| put(name, value.clone()));
        put("workers", cell.workers.to_string());
        if variant.servers {
            put("servers", variant.servers(cell.workers).to_string());
        }
        put("shard", if cell.by_label { "by-label" } else { "iid" }.into());
        if cell.link {
            put("network", self.document.network.clone());
        }
        // Over shared memory, built-in exact paths sum out of their peers' memory and others copy: that would compare
        // how rules are carried out.
        put("transport", "tcp".into());
        put("lr", rate(key.rate).to_string());
        put("steps", steps.to_string());
        put("eval-every", (steps / EVALUATIONS).max(1).to_string());
        put("seed", seed.to_string());
        let mut plan = resolve(&settings)?;
        // The file may have changed since the comparison began.
        plan.strategy_file = variant.text.clone();
        Ok((plan, settings))
    }

    /// The command line that makes a run again.
    pub(crate) fn command(&self, key: &RunKey, settings: &PlanSettings) -> Option<String> {
        match key.cell.clock {
            CellClock::Real => command_line("train", settings, &[]),
            CellClock::Virtual => command_line("simulate", settings, &["--learn".to_owned()]),
        }
    }
}
