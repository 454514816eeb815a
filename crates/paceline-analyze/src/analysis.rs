//! Everything that can be said about one response of a table.

use serde::Serialize;

use crate::alone::AloneOrTogether;
use crate::anova::Anova;
use crate::best::{FrontPoint, Ranking, front};
use crate::findings::{Evidence, Finding, FindingKind, findings};
use crate::importance::{Importance, SEED};
use crate::influence::InfluenceModel;
use crate::misses::Misses;
use crate::noise::Noise;
use crate::ranks::{self, RankTestResult};
use crate::scaling::{Series, series};
use crate::table::{FactorLevel, Response, StudyTable};
use crate::transfer::WorkloadTransfer;
use crate::tuned::{ComparisonRequest, TunedComparison};

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
    /// Configurations, the best first. With several workloads: those that all of them have, by their means over workloads.
    pub best: Ranking,
    /// The best for each workload, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<WorkloadBest>,
    /// One worker beside several, where both were run; with several workloads, see `each`.
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
    /// Levels of a factor, each at its own best setting of others; one per workload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<TunedComparison>,
    pub scaling: Vec<Series>,
    /// Noise and drift, which every interval stands on; none where too few runs tell.
    pub noise: Option<Noise>,
    pub notes: Vec<String>,
    /// The runs with figures as of the middle of the study.
    #[serde(skip)]
    pub steady: StudyTable,
    /// The same without what is the workloads' own: as on an average workload.
    #[serde(skip)]
    pub levelled: StudyTable,
}

/// What is best on one workload.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct WorkloadBest {
    pub workload: String,
    pub best: Ranking,
    /// One worker beside several, where both were run.
    pub alone: Option<AloneOrTogether>,
}

impl AnalysisRequest {
    /// Of runs whose factors are settings: of these it is known what they mean.
    pub fn of_settings(table: &StudyTable) -> Self {
        let known = |names: &[&str]| {
            let varied = |f: &usize| table.factors[*f].levels.len() > 1;
            names.iter().filter_map(|name| table.factor(name)).find(varied)
        };
        let workers = known(&["workers"]).filter(|f| table.factors[*f].numbers().is_some());
        let workload = table.several_workloads().or_else(|| known(&["model", "data"]));
        Self { workload, workers, seed: SEED }
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
        let levelled = steady.levelled(0, anova.as_ref());
        let (best, each, alone) = bests(&steady, noise.as_ref(), ask.workers);
        let misses = Misses::new(&steady, 0);
        let scaling = ask.workers.map_or_else(Vec::new, |workers| series(&steady, 0, workers));
        stage("transfer");
        let transfer = table.several_workloads().or(ask.workload);
        let transfer = transfer.and_then(|f| WorkloadTransfer::new(&steady, 0, f, noise.as_ref(), ask.seed));
        stage("what mattered");
        let importance = Importance::new(table, 0, anova.as_ref(), noise.as_ref(), ask.seed);
        stage("findings");
        let found = findings(&Evidence {
            table,
            response: 0,
            ranking: &best,
            each: &each,
            alone: alone.as_ref(),
            misses: misses.as_ref(),
            anova: anova.as_ref(),
            importance: importance.as_ref(),
            scaling: &scaling,
            transfer: transfer.as_ref(),
            noise: noise.as_ref(),
        });
        stage("a formula");
        let influence = InfluenceModel::new(&levelled, 0);
        stage("tests of ranks");
        let mut analysis = Self {
            table: table.name.clone(),
            runs: (table.measured(0).len(), table.runs.len()),
            response: table.responses[0].clone(),
            findings: found,
            front: if table.responses.len() > 1 { front(&steady) } else { Vec::new() },
            front_names: table.responses.iter().map(Response::named).collect(),
            importance,
            influence,
            rank_tests: ranks::tests(&levelled, 0),
            notes: table.notes.clone(),
            misses,
            best,
            each,
            alone,
            anova,
            transfer,
            scaling,
            noise,
            comparisons: Vec::new(),
            steady,
            levelled,
        };
        if let Some(usual) = ComparisonRequest::of_settings(table) {
            analysis.compare(&usual);
        }
        analysis
    }

    /// Compares levels of a factor, each at its own best setting, instead of what is compared usually.
    pub fn compare(&mut self, ask: &ComparisonRequest) {
        self.comparisons = TunedComparison::all(&self.steady, self.noise.as_ref(), ask);
        self.findings.retain(|finding| finding.kind != FindingKind::Comparison);
        let found = self.comparisons.iter().map(|one| Finding {
            kind: FindingKind::Comparison,
            sentence: one.sentence(&self.response),
            factors: [&one.factor].into_iter().chain(&one.tuned).cloned().collect(),
            assured: 0.0,
            p: None,
            runs: Vec::new(),
        });
        let found: Vec<Finding> = found.collect();
        use FindingKind::{Alone, Best, CannotTell, Missed, Shares, Transfer};
        // What a first page has to say stays in front.
        let gaps = |kind: FindingKind| kind == CannotTell && !self.each.is_empty();
        let before = |f: &Finding| [Missed, Best, Alone, Shares, Transfer].contains(&f.kind) || gaps(f.kind);
        let at = self.findings.iter().take_while(|f| before(f)).count();
        self.findings.splice(at..at, found);
    }
}

/// The ranking, and one worker beside several: of each workload, where there are several.
fn bests(
    steady: &StudyTable,
    noise: Option<&Noise>,
    workers: Option<usize>,
) -> (Ranking, Vec<WorkloadBest>, Option<AloneOrTogether>) {
    let Some(workload) = steady.several_workloads() else {
        let best = Ranking::new(steady, 0, noise);
        let alone = AloneOrTogether::new(steady, 0, (&best, noise), workers, None);
        return (best, Vec::new(), alone);
    };
    let (each, for_all) = Ranking::by_workload(steady, 0, noise, workload);
    let levels = steady.factors[workload].levels.iter().zip(each).enumerate();
    let one = |(w, (level, best)): (usize, (&FactorLevel, Ranking))| {
        let alone = AloneOrTogether::new(steady, 0, (&best, noise), workers, Some(w));
        WorkloadBest { workload: level.text.clone(), best, alone }
    };
    (for_all, levels.map(one).collect(), None)
}

/// Noise and drift of every response.
pub fn noises(table: &StudyTable, first: Option<&Anova>) -> Vec<Option<Noise>> {
    let of = |r: usize| match r {
        0 => Noise::new(table, 0, first),
        r => Noise::new(table, r, Anova::new(table, r).as_ref()),
    };
    (0..table.responses.len()).map(of).collect()
}
