//! Two hundred made-up studies whose truth is known (drift or none, misses, axes that cannot act, noise; journals
//! written directly): whoever tells of a study tells the same, and intervals, verdicts and shares are right as often
//! as they say.

use std::path::Path;

use paceline_analyze::{Analysis, AnalysisRequest, Estimate, FindingKind};
use paceline_dash::{Member, Studies};
use paceline_explore::schedule::{End, PlannedRun, Role};
use paceline_random::{Purpose, Stream};
use paceline_record::Journal;
use paceline_study::{AllRegistries, Findings, StudyState, StudyStore, journal, table};
use serde_json::{Value, json};

const STUDIES: u64 = 200;

/// What differs between studies.
struct Kind {
    workers: &'static [u32],
    batches: &'static [u32],
    strategies: &'static [&'static str],
    repeats: u64,
    /// Whether the journal has levels of axes that cannot act, as older ones do.
    old: bool,
    /// Whether large batches of several workers may miss the target.
    misses: bool,
    /// Whether workers and batches act together.
    together: bool,
}

const STRATEGIES: &[&str] = &["ring-allreduce", "tree"];
const KINDS: [Kind; 5] = [
    Kind {
        workers: &[1, 2, 4],
        batches: &[16, 64],
        strategies: STRATEGIES,
        repeats: 3,
        old: false,
        misses: false,
        together: false,
    },
    Kind {
        workers: &[1, 2, 4],
        batches: &[16, 64],
        strategies: STRATEGIES,
        repeats: 3,
        old: true,
        misses: false,
        together: true,
    },
    Kind {
        workers: &[1, 2, 4],
        batches: &[16, 32, 64],
        strategies: STRATEGIES,
        repeats: 3,
        old: false,
        misses: true,
        together: false,
    },
    Kind {
        workers: &[2, 4, 8],
        batches: &[16, 64],
        strategies: STRATEGIES,
        repeats: 4,
        old: false,
        misses: false,
        together: true,
    },
    // Nothing is repeated but the control: noise is what the model leaves.
    Kind {
        workers: &[1, 2, 4, 8],
        batches: &[8, 16, 32, 64],
        strategies: &["ring-allreduce", "tree", "halving-doubling"],
        repeats: 1,
        old: false,
        misses: false,
        together: false,
    },
];

struct Truth {
    kind: &'static Kind,
    deviation: f64,
    /// From the first run to the last, of a logarithm.
    drift: f64,
    workers: Vec<f64>,
    batches: Vec<f64>,
    strategies: Vec<f64>,
    together: Vec<Vec<f64>>,
}

fn centred(mut values: Vec<f64>) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter_mut().for_each(|v| *v -= mean);
    values
}

fn variance(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64
}

impl Truth {
    fn new(seed: u64) -> Self {
        let kind = &KINDS[(seed % 5) as usize];
        let draws = Stream::new(seed, Purpose::Bench);
        let deviation = 0.02 + 0.18 * draws.unit(0);
        let effects = |key: u64, size: f64, n: usize| {
            let of = draws.fork(key);
            // A third of the axes does nothing.
            let size = if of.unit(0) < 1.0 / 3.0 { 0.0 } else { size };
            centred((0..n as u64).map(|i| size * of.normal(1 + i)).collect())
        };
        let (w, b) = (kind.workers.len(), kind.batches.len());
        let mut together: Vec<Vec<f64>> = (0..w).map(|i| effects(20 + i as u64, 0.2, b)).collect();
        for j in 0..b {
            let column = centred(together.iter().map(|row| row[j]).collect());
            together.iter_mut().zip(column).for_each(|(row, v)| row[j] = if kind.together { v } else { 0.0 });
        }
        Self {
            kind,
            deviation,
            drift: if (seed / 5).is_multiple_of(2) { 0.0 } else { 2.0 * deviation },
            workers: effects(1, 0.4, w),
            batches: effects(2, 0.3, b),
            strategies: effects(3, 0.3, kind.strategies.len()),
            together,
        }
    }

    /// The logarithm of the time at levels, in the middle of the study.
    fn at(&self, [w, s, b]: [usize; 3]) -> f64 {
        let strategy = if self.kind.workers[w] > 1 { self.strategies[s] } else { 0.0 };
        self.workers[w] + self.batches[b] + strategy + self.together[w][b]
    }

    fn text(&self) -> String {
        let Kind { workers, batches, strategies, repeats, .. } = self.kind;
        format!(
            "sampler = \"grid\"\nrepeats = {repeats}\n[workload]\ntarget-accuracy = 0.9\n[axes]\nworkers = {workers:?}\n\
             strategy = {strategies:?}\nbatch = {batches:?}\n[[objectives]]\nmetric = \"time_to_accuracy_s\"\n\
             goal = \"minimize\"\n[control]\nevery = 5\n"
        )
    }

    /// Points as the study has them, or with levels of a strategy that cannot act.
    fn points(&self) -> Vec<[usize; 3]> {
        let Kind { workers, batches, strategies, .. } = self.kind;
        let mut all = Vec::new();
        for (w, count) in workers.iter().enumerate() {
            let several = if *count > 1 || self.kind.old { strategies.len() } else { 1 };
            all.extend((0..several).flat_map(|s| (0..batches.len()).map(move |b| [w, s, b])));
        }
        all
    }

    fn write(&self, store: &Path, name: &str, seed: u64) {
        let draws = Stream::new(seed, Purpose::Bench).fork(99);
        let points = self.points();
        let mut jobs = vec![(Role::WarmUp, None, 0), (Role::Control, None, 0)];
        for repeat in 0..self.kind.repeats {
            for (i, at) in draws.fork(repeat).permutation(points.len()).into_iter().enumerate() {
                jobs.push((Role::Point, Some(points[at as usize]), repeat));
                if (i + 1) % 5 == 0 {
                    jobs.push((Role::Control, None, 0));
                }
            }
        }
        jobs.push((Role::Control, None, 0));
        let path = journal(store, name);
        let (mut file, _) = Journal::open(&path).unwrap();
        let mut put = |entry: Value| file.append(&entry).unwrap();
        put(
            json!({"entry": "study", "file": "s.toml", "name": name, "text": self.text(), "version": "1", "at_ms": 0}),
        );
        let span = (jobs.len() - 2) as f64;
        for (id, (role, point, repeat)) in jobs.into_iter().enumerate() {
            let level = |point: [usize; 3]| {
                let alone = self.kind.workers[point[0]] == 1 && !self.kind.old;
                point.iter().enumerate().map(|(i, l)| (!(alone && i == 1)).then_some(*l as u32)).collect()
            };
            let job = PlannedRun {
                workload: None,
                id: id as u64,
                role,
                levels: point.map(level).unwrap_or_default(),
                share: 1.0,
                repeat,
            };
            let time = (id as f64 - 1.0) / span - 0.5;
            let exact = point.map_or(0.1, |point| self.at(point));
            let value = (exact + self.drift * time + self.deviation * draws.normal(1000 + id as u64)).exp();
            let hopeless = |[w, _, b]: [usize; 3]| {
                let large = b + 1 == self.kind.batches.len() && self.kind.workers[w] > 1;
                self.kind.misses && large && draws.unit(5000 + id as u64) < 0.8
            };
            let mut metrics = std::collections::BTreeMap::from([("seconds.train".to_owned(), 10.0)]);
            if !point.is_some_and(hopeless) {
                metrics.insert("time_to_accuracy_s".into(), value);
            }
            put(json!({"entry": "begin", "job": job, "at_ms": 0}));
            put(
                json!({"entry": "end", "id": id, "end": End::Ok { metrics }, "wall_s": 1.0, "run": null, "at_ms": 0}),
            );
        }
        put(json!({"entry": "finish", "at_ms": 0}));
    }

    /// Shares of the axes and of noise, by name; `acting`: the part of the runs in which the strategy acts.
    fn shares(&self, acting: f64) -> Vec<(&'static str, f64)> {
        let together: Vec<f64> = self.together.iter().flatten().copied().collect();
        let all = [
            ("workers", variance(&self.workers)),
            ("batch", variance(&self.batches)),
            ("strategy", acting * variance(&self.strategies)),
            ("together", variance(&together)),
            ("noise", self.deviation * self.deviation),
        ];
        let sum: f64 = all.iter().map(|(_, v)| v).sum();
        all.into_iter().map(|(name, v)| (name, v / sum)).collect()
    }
}

/// Intervals that were looked at, and those that hold the truth.
#[derive(Debug, Default)]
struct Covered {
    all: u32,
    hit: u32,
}

impl Covered {
    fn look(&mut self, low: f64, truth: f64, high: f64) {
        self.all += 1;
        self.hit += u32::from((low..=high).contains(&truth));
    }

    fn estimate(&mut self, estimate: &Estimate, truth: f64) {
        if let (Some(low), Some(high)) = (estimate.low, estimate.high) {
            self.look(low, truth, high);
        }
    }

    fn share(&self) -> f64 {
        f64::from(self.hit) / f64::from(self.all)
    }
}

#[test]
fn two_hundred_studies_tell_one_story_each_and_it_is_true() {
    let folder = tempfile::tempdir().unwrap();
    let registries = AllRegistries::default();
    let studies = StudyStore(folder.path().into(), registries.clone());
    let [mut best, mut means, mut alone, mut shares, mut axes] = <[Covered; 5]>::default();
    // Studies without drift and with, and of these the ones that tell of one.
    let mut told = [[0u32; 2]; 2];
    let mut patterns = [0u32; 2];
    for seed in 0..STUDIES {
        let (truth, name) = (Truth::new(seed), format!("s{seed}"));
        truth.write(folder.path(), &name, seed);
        let known = StudyState::peek(folder.path(), &name, &registries).unwrap();
        let status = Findings::new(&known).json(folder.path());
        let table = table(&known);
        let analysis = Analysis::new(&table, AnalysisRequest::of_settings(&table));
        let page = studies.read(&name).unwrap().group;
        let shown = page.table(&page.members.iter().collect::<Vec<&Member>>());
        let served = Analysis::new(&shown, AnalysisRequest::of_settings(&shown));
        for (analysed, what) in [(&analysis, "analyze"), (&served, "serve")] {
            assert_eq!(status["findings"], json!(analysed.findings), "{name}, {what}");
            assert_eq!(status["noise"], json!(analysed.noise), "{name}, {what}");
            assert_eq!(status["shares"], json!(analysed.importance), "{name}, {what}");
        }
        let first = &analysis.best.configurations[0];
        let best_value = status["best"]["metrics"]["time_to_accuracy_s"].as_f64().unwrap();
        assert!((best_value / first.value - 1.0).abs() < 1e-9 || first.missed > 0, "{name}");
        let tile = page.best.unwrap();
        assert_eq!((&tile.0, tile.1), (&first.configuration, first.value), "{name}");

        let place = |levels: &[usize], factor: &str| {
            let f = table.factor(factor).unwrap();
            let text = &table.factors[f].levels[levels[f]].text;
            let of = |all: Vec<String>| all.iter().position(|level| level == text).unwrap_or(0);
            match factor {
                "workers" => of(truth.kind.workers.iter().map(ToString::to_string).collect()),
                "batch" => of(truth.kind.batches.iter().map(ToString::to_string).collect()),
                _ => of(truth.kind.strategies.iter().map(ToString::to_string).collect()),
            }
        };
        let exact = |levels: &[usize]| truth.at(["workers", "strategy", "batch"].map(|f| place(levels, f)));
        assert!(
            table.configuration(&first.levels).contains("strategy")
                || !first.configuration.contains("strategy")
        );
        best.estimate(&first.mean, exact(&first.levels));
        for other in &analysis.best.configurations[1..] {
            means.estimate(&other.mean, exact(&other.levels));
        }
        if let Some(sides) =
            analysis.alone.as_ref().filter(|sides| sides.one.configuration != "one worker alone")
        {
            alone.estimate(&sides.difference, exact(&sides.several.levels) - exact(&sides.one.levels));
        }
        let drift = analysis.noise.as_ref().unwrap().drift.unwrap();
        let drifts = usize::from(truth.drift != 0.0);
        told[drifts][0] += 1;
        told[drifts][1] += u32::from(drift.drifted);

        let strategy = table.factor("strategy").unwrap();
        let measured = table.measured(0);
        let acting =
            measured.iter().filter(|(run, _)| run.levels[strategy] < table.factors[strategy].acting());
        let acting = acting.count() as f64 / measured.len() as f64;
        // With misses the design is no longer balanced, and what the axes are responsible for is another question.
        let importance = analysis.importance.as_ref().unwrap();
        assert_eq!(importance.percents().iter().map(|(_, p)| p).sum::<u32>(), 100);
        for (name, share) in truth.shares(acting) {
            let found = match name {
                "together" => importance.together.as_ref(),
                "noise" => importance.together.as_ref().map(|_| &importance.noise),
                axis => importance.of(axis),
            };
            if let Some(found) = found {
                shares.look(found.low - 1e-9, share, found.high + 1e-9);
                if !["together", "noise"].contains(&name) {
                    axes.look(found.low - 1e-9, share, found.high + 1e-9);
                }
            }
        }
        if truth.kind.misses {
            let misses = analysis.misses.as_ref().unwrap();
            assert_eq!(analysis.findings[0].kind, FindingKind::Missed, "the pattern comes first");
            patterns[0] += 1;
            patterns[1] += u32::from(
                misses.pattern.as_ref().is_some_and(|p| p.words == "workers 2 or more and batch 64"),
            );
        }
    }
    let [steady, drifting] = told;
    for covered in [&best, &means, &alone, &shares, &axes] {
        assert!(covered.share() >= 0.9, "{covered:?}");
    }
    assert!(f64::from(steady[1]) <= 0.08 * f64::from(steady[0]), "false drift: {steady:?}");
    assert!(f64::from(drifting[1]) >= 0.8 * f64::from(drifting[0]), "power: {drifting:?}");
    assert!(patterns[1] * 10 >= patterns[0] * 9, "{patterns:?}");
}
