//! Everything that can be said about one response of a table.

use serde::Serialize;

use crate::anova::Anova;
use crate::best::{FrontPoint, Ranking, front};
use crate::findings::{Evidence, Finding, findings};
use crate::importance::{Importance, SEED};
use crate::influence::InfluenceModel;
use crate::noise::Noise;
use crate::ranks::{self, RankTestResult};
use crate::scaling::{Series, series};
use crate::table::{Response, StudyTable};
use crate::transfer::WorkloadTransfer;

/// What else is known about the factors.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnalysisRequest {
    /// The factor whose levels are workloads (models, datasets, networks).
    pub workload: Option<usize>,
    /// The factor that counts workers.
    pub workers: Option<usize>,
    /// Decides what is random in the analysis: the forest's draws.
    pub seed: u64,
}

/// An analysis.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Analysis {
    pub table: String,
    /// Runs that were analysed, and all.
    pub runs: (usize, usize),
    pub response: Response,
    /// Sentences, the most important first.
    pub findings: Vec<Finding>,
    /// Configurations, the best first.
    pub best: Ranking,
    /// What no other configuration beats in every response; with more than one.
    pub front: Vec<FrontPoint>,
    /// The responses of the front, with their units.
    pub front_names: Vec<String>,
    pub anova: Option<Anova>,
    pub importance: Option<Importance>,
    pub influence: Option<InfluenceModel>,
    pub rank_tests: Vec<RankTestResult>,
    pub transfer: Option<WorkloadTransfer>,
    pub scaling: Vec<Series>,
    pub noise: Noise,
    pub notes: Vec<String>,
}

impl AnalysisRequest {
    /// Of runs whose factors are settings: of these it is known what they mean.
    pub fn of_settings(table: &StudyTable) -> Self {
        let known = |names: &[&str]| {
            let varied = |f: &usize| table.factors[*f].levels.len() > 1;
            names.iter().filter_map(|name| table.factor(name)).find(varied)
        };
        let workers = known(&["workers"]).filter(|f| table.factors[*f].numbers().is_some());
        Self { workload: known(&["model", "data"]), workers, seed: SEED }
    }
}

impl Analysis {
    /// Of the first response.
    pub fn new(table: &StudyTable, ask: AnalysisRequest) -> Self {
        Self::followed(table, ask, &|_| ())
    }

    /// The same; `stage` is told what is worked out next.
    pub fn followed(table: &StudyTable, ask: AnalysisRequest, stage: &dyn Fn(&str)) -> Self {
        stage("effects");
        let anova = Anova::new(table, 0);
        stage("best configurations");
        let best = Ranking::new(table, 0, anova.as_ref());
        let scaling = ask.workers.map_or_else(Vec::new, |workers| series(table, 0, workers));
        let transfer = ask.workload.and_then(|workload| WorkloadTransfer::new(table, 0, workload));
        let noise = Noise::new(table, 0);
        stage("findings");
        let found = findings(&Evidence {
            table,
            response: 0,
            ranking: &best,
            anova: anova.as_ref(),
            scaling: &scaling,
            transfer: transfer.as_ref(),
            noise: &noise,
        });
        stage("importances");
        let importance = Importance::new(table, 0, ask.seed);
        stage("a formula");
        let influence = InfluenceModel::new(table, 0);
        stage("tests of ranks");
        Self {
            table: table.name.clone(),
            runs: (table.measured(0).len(), table.runs.len()),
            response: table.responses[0].clone(),
            findings: found,
            front: if table.responses.len() > 1 { front(table) } else { Vec::new() },
            front_names: table.responses.iter().map(Response::named).collect(),
            importance,
            influence,
            rank_tests: ranks::tests(table, 0),
            notes: table.notes.clone(),
            best,
            anova,
            transfer,
            scaling,
            noise,
        }
    }
}
