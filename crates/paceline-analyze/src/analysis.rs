//! Everything that can be said about one response of a table.

use serde::Serialize;

use crate::alone::AloneOrTogether;
use crate::anova::Anova;
use crate::best::{FrontPoint, Ranking, front};
use crate::findings::{Evidence, Finding, findings};
use crate::importance::{Importance, SEED};
use crate::influence::InfluenceModel;
use crate::misses::Misses;
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
    /// Decides what is random in the analysis: the draws behind the intervals of shares.
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
    /// Runs that did not reach what was to be measured; none where all did.
    pub misses: Option<Misses>,
    /// Configurations, the best first.
    pub best: Ranking,
    /// One worker beside several, where both were run.
    pub alone: Option<AloneOrTogether>,
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
    /// Noise and drift, which every interval stands on; none where too few runs tell.
    pub noise: Option<Noise>,
    pub notes: Vec<String>,
    /// The runs with figures as of the middle of the study.
    #[serde(skip)]
    pub steady: StudyTable,
}

impl AnalysisRequest {
    /// Of runs whose factors are settings: of these it is known what they mean.
    pub fn of_settings(table: &StudyTable) -> Self {
        let known = |names: &[&str]| {
            let varied = |f: &usize| table.factors[*f].levels.len() > 1;
            names.iter().filter_map(|name| table.factor(name)).find(varied)
        };
        let workers = known(&["workers"]).filter(|f| table.factors[*f].numbers().is_some());
        Self { workload: known(&["workload", "model", "data"]), workers, seed: SEED }
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
        let noises = noises(table, anova.as_ref());
        // From here on, figures are those of the middle of the study.
        let steady = table.steady(&noises);
        let noise = noises.into_iter().next().flatten();
        let best = Ranking::new(&steady, 0, noise.as_ref());
        let alone = AloneOrTogether::new(&steady, 0, (&best, noise.as_ref()), ask.workers);
        let misses = Misses::new(&steady, 0);
        let scaling = ask.workers.map_or_else(Vec::new, |workers| series(&steady, 0, workers));
        let transfer = ask.workload.and_then(|workload| WorkloadTransfer::new(&steady, 0, workload));
        stage("what mattered");
        let importance = Importance::new(table, 0, anova.as_ref(), noise.as_ref(), ask.seed);
        stage("findings");
        let found = findings(&Evidence {
            table,
            response: 0,
            ranking: &best,
            alone: alone.as_ref(),
            misses: misses.as_ref(),
            anova: anova.as_ref(),
            importance: importance.as_ref(),
            scaling: &scaling,
            transfer: transfer.as_ref(),
            noise: noise.as_ref(),
        });
        stage("a formula");
        let influence = InfluenceModel::new(&steady, 0);
        stage("tests of ranks");
        Self {
            table: table.name.clone(),
            runs: (table.measured(0).len(), table.runs.len()),
            response: table.responses[0].clone(),
            findings: found,
            front: if table.responses.len() > 1 { front(&steady) } else { Vec::new() },
            front_names: table.responses.iter().map(Response::named).collect(),
            importance,
            influence,
            rank_tests: ranks::tests(&steady, 0),
            notes: table.notes.clone(),
            misses,
            best,
            alone,
            anova,
            transfer,
            scaling,
            noise,
            steady,
        }
    }
}

/// Noise and drift of every response.
pub fn noises(table: &StudyTable, first: Option<&Anova>) -> Vec<Option<Noise>> {
    let of = |r: usize| match r {
        0 => Noise::new(table, 0, first),
        r => Noise::new(table, r, Anova::new(table, r).as_ref()),
    };
    (0..table.responses.len()).map(of).collect()
}
