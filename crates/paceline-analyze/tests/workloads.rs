//! Several workloads in one table, and techniques compared at their own settings: made-up studies whose truth is known.

use paceline_analyze::table::{self, ColumnRoles, RawRun, Response, RunRole};
use paceline_analyze::{
    Analysis, AnalysisRequest, ComparisonRequest, FindingKind, SharedTrait, StudyTable, TuningMethod,
    WorkloadTraits,
};
use paceline_random::{Purpose, Stream};

const STUDIES: u64 = 200;
const WORKLOADS: [&str; 4] = ["lenet-a", "lenet-b", "mlp-a", "mlp-b"];

/// Logarithms of times: workloads differ a lot; batch acts in opposite ways on the two models.
struct MadeUpTable {
    batches: usize,
    repeats: usize,
    deviation: f64,
    seed: u64,
}

impl MadeUpTable {
    fn truth(&self, workload: usize, batch: usize, servers: usize) -> f64 {
        let draws = Stream::new(self.seed, Purpose::Bench).fork(1000 + (workload / 2) as u64);
        let own = [0.0, 1.0, 4.0, 5.5][workload];
        // Models rank batches each in its own way; data hardly matters.
        own + 0.3 * draws.normal(batch as u64)
            + 0.05 * workload as f64 * (batch % 2) as f64
            + 0.1 * servers as f64
    }

    fn table(&self, noise: bool) -> StudyTable {
        let draws = Stream::new(self.seed, Purpose::Bench);
        let mut runs = Vec::new();
        for repeat in 0..self.repeats {
            for (w, workload) in WORKLOADS.iter().enumerate() {
                for batch in 0..self.batches {
                    for servers in 0..2 {
                        let i = runs.len();
                        let error = if noise { self.deviation * draws.normal(i as u64) } else { 0.0 };
                        runs.push(RawRun {
                            id: format!("r{i}"),
                            levels: vec![(*workload).into(), format!("b{batch}"), (servers + 1).to_string()],
                            values: vec![Some((self.truth(w, batch, servers) + error).exp())],
                            order: (i * 7919 % 10_007) as f64,
                            ..RawRun::default()
                        });
                    }
                }
                runs.push(RawRun {
                    id: format!("c{repeat}{w}"),
                    levels: vec![(*workload).into(), "b0".into(), "1".into()],
                    values: vec![Some(
                        (self.truth(w, 0, 0) + self.deviation * draws.normal(9000 + (4 * repeat + w) as u64))
                            .exp(),
                    )],
                    order: (runs.len() * 7919 % 10_007) as f64,
                    role: RunRole::Control,
                    ..RawRun::default()
                });
            }
        }
        let names = ["workload", "batch", "servers"].map(String::from);
        let responses = vec![Response::parse("log(time_s)").unwrap()];
        let mut table = StudyTable::new("made up", &names, responses, runs);
        table.timed = true;
        table.workloads = traits();
        table
    }
}

fn traits() -> Vec<WorkloadTraits> {
    WORKLOADS
        .iter()
        .map(|name| {
            let (model, data) = name.split_once('-').unwrap();
            let mlp = model == "mlp";
            WorkloadTraits {
                name: (*name).into(),
                data: Some(data.into()),
                model: Some(model.into()),
                bytes_per_flop: Some(if mlp { 0.04 } else { 0.0009 }),
                wait_share: Some(if mlp { 0.61 } else { 0.05 }),
                ..WorkloadTraits::default()
            }
        })
        .collect()
}

fn analysed(table: &StudyTable) -> Analysis {
    Analysis::new(table, AnalysisRequest::of_settings(table))
}

#[test]
fn a_table_of_several_workloads_begins_with_best_mattered_transfer_and_what_cannot_be_told() {
    let made = MadeUpTable { batches: 8, repeats: 3, deviation: 0.05, seed: 3 };
    let analysis = analysed(&made.table(true));
    let all: Vec<String> =
        analysis.findings.iter().map(|f| format!("{:?}: {}", f.kind, f.sentence)).collect();
    let mut kinds: Vec<FindingKind> = analysis.findings.iter().map(|f| f.kind).collect();
    kinds.dedup();
    use FindingKind::{Best, CannotTell, Shares, Transfer};
    assert_eq!(kinds[..4], [Best, Shares, Transfer, CannotTell], "{all:#?}");
    assert_eq!(all.iter().filter(|s| s.starts_with("CannotTell")).count(), 1, "{all:#?}");
    // The easiest workload is not the best, and the workload itself did not matter.
    let best = &analysis.findings[0].sentence;
    assert!(WORKLOADS.iter().all(|w| best.contains(&format!("{w}: "))), "{best}");
    assert_eq!(analysis.each.len(), 4);
    for (w, one) in analysis.each.iter().enumerate() {
        let least = (0..8)
            .flat_map(|b| (0..2).map(move |s| (b, s)))
            .min_by(|a, b| made.truth(w, a.0, a.1).total_cmp(&made.truth(w, b.0, b.1)))
            .unwrap();
        let named = format!("batch b{}, servers {}", least.0, least.1 + 1);
        let may: Vec<&str> = one
            .best
            .configurations
            .iter()
            .filter(|c| c.may_be_best == Some(true))
            .map(|c| c.configuration.as_str())
            .collect();
        assert!(may.contains(&named.as_str()), "{named} {may:?}");
    }
    let importance = analysis.importance.as_ref().unwrap();
    assert!(importance.of("workload").is_none() && importance.factors.len() == 2);
    assert!(importance.by_workload[0].term == "workload:batch" && importance.by_workload[0].share > 0.3);
    assert_eq!(importance.percents().iter().map(|(_, p)| p).sum::<u32>(), 100);
    let anova = analysis.anova.as_ref().unwrap();
    assert!(anova.sources.iter().all(|s| s.term != "workload") && anova.r_sq < 1.0);
    assert!(anova.sources.iter().map(|s| s.eta_sq).sum::<f64>() <= 1.0 + 1e-9, "{:?}", anova.sources);
    // What acts on one workload and not on another is told so.
    assert!(all.iter().any(|s| s.contains("batch acts differently on ")), "{all:#?}");
    // Controls of workloads that take 200 times as long are no noise.
    assert!((analysis.noise.as_ref().unwrap().deviation - 0.05).abs() < 0.02, "{:?}", analysis.noise);
    assert!(analysis.noise.as_ref().unwrap().controls.unwrap().variation < 0.1);
}

#[test]
fn ranks_follow_the_model_and_the_record_says_why() {
    let analysis = analysed(&MadeUpTable { batches: 8, repeats: 3, deviation: 0.02, seed: 3 }.table(true));
    let transfer = analysis.transfer.as_ref().unwrap();
    let group = |shared| transfer.groups.iter().find(|g| g.shared == shared).unwrap();
    let (model, data) = (group(SharedTrait::Model), group(SharedTrait::Data));
    assert!(model.pairs == 2 && data.pairs == 2 && group(SharedTrait::Neither).pairs == 2);
    assert!(model.spearman > 0.8 && data.spearman < 0.5, "{:?}", transfer.groups);
    let told: Vec<&str> = analysis
        .findings
        .iter()
        .filter(|f| f.kind == FindingKind::Transfer)
        .map(|f| f.sentence.as_str())
        .collect();
    assert!(told[0].starts_with("Ranks follow the model: ρ = "), "{told:?}");
    assert!(told[1].starts_with("The best configuration of workload "), "{told:?}");
    assert!(
        told[2].contains("40 bytes of gradient per thousand FLOPs")
            && told[2].contains("61% of its workers' time"),
        "{told:?}"
    );
    // Without a difference in the record, no reason is given.
    let mut table = MadeUpTable { batches: 8, repeats: 3, deviation: 0.02, seed: 3 }.table(true);
    table.workloads.iter_mut().for_each(|w| w.wait_share = Some(0.3));
    let silent = analysed(&table);
    assert!(silent.findings.iter().all(|f| !f.sentence.contains("FLOPs")));
}

#[test]
fn intervals_of_transfer_losses_hold_the_truth() {
    let (mut all, mut hit, mut sure) = (0u32, 0u32, 0u32);
    for seed in 0..STUDIES {
        let made = MadeUpTable {
            batches: 3 + (seed % 4) as usize,
            repeats: 2 + (seed % 2) as usize,
            deviation: 0.03 + 0.02 * (seed % 5) as f64,
            seed,
        };
        let analysis = analysed(&made.table(true));
        let configurations: Vec<(usize, usize)> =
            (0..made.batches).flat_map(|b| (0..2).map(move |s| (b, s))).collect();
        let least = |w: usize| {
            let times = configurations.iter().map(|(b, s)| ((*b, *s), made.truth(w, *b, *s)));
            times.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap()
        };
        for loss in &analysis.transfer.as_ref().unwrap().losses {
            let place = |name: &str| WORKLOADS.iter().position(|w| *w == name).unwrap();
            let (from, to) = (place(&loss.from), place(&loss.to));
            let (batch, servers) = least(from).0;
            let truth = (made.truth(to, batch, servers) - least(to).1).exp_m1();
            let (low, high) = loss.interval.unwrap();
            assert!(low <= loss.loss + 1e-12 && loss.loss <= high + 1e-12, "{loss:?}");
            all += 1;
            hit += u32::from((low - 1e-9..=high + 1e-9).contains(&truth));
            sure += u32::from(low > 0.0);
        }
    }
    assert!(f64::from(hit) >= 0.9 * f64::from(all), "{hit} of {all}");
    assert!(f64::from(sure) >= 0.2 * f64::from(all), "intervals that say something: {sure} of {all}");
}

/// Techniques at their own learning rates: which is best depends on the technique.
fn techniques(seed: u64, repeats: usize, deviation: f64) -> (StudyTable, [f64; 3]) {
    let draws = Stream::new(seed, Purpose::Bench);
    let rates = ["0.01", "0.03", "0.1", "0.3"];
    let mut truth = [f64::INFINITY; 3];
    let mut runs = Vec::new();
    for repeat in 0..repeats {
        for (s, strategy) in ["local", "ps", "ring-allreduce"].iter().enumerate() {
            for (l, lr) in rates.iter().enumerate() {
                let best = draws.fork(7).below(s as u64, 4) as usize;
                let exact = [0.0, 0.15, 0.02][s]
                    + 0.1 * draws.fork(8).unit((4 * s + l) as u64) * f64::from(u8::from(l != best));
                truth[s] = truth[s].min(exact);
                let i = runs.len() as u64;
                runs.push(RawRun {
                    id: format!("r{i}"),
                    levels: vec![(*strategy).into(), (*lr).into()],
                    values: vec![Some((exact + deviation * draws.normal(100 + i)).exp())],
                    order: (100 * repeat + (i as usize * 37) % 12) as f64,
                    ..RawRun::default()
                });
            }
        }
    }
    let responses = vec![Response::parse("log(time_s)").unwrap()];
    (StudyTable::new("t", &["strategy", "lr"].map(String::from), responses, runs), truth)
}

#[test]
fn techniques_at_their_own_learning_rates_are_compared_honestly() {
    let (mut all, mut hit, mut pairs, mut held, mut wrong) = (0u32, 0u32, 0u32, 0u32, 0u32);
    for seed in 0..STUDIES {
        let (table, truth) = techniques(seed, 3, 0.05);
        let analysis = analysed(&table);
        let [one] = &analysis.comparisons[..] else { panic!("{:?}", analysis.comparisons) };
        assert_eq!((one.factor.as_str(), one.method), ("strategy", TuningMethod::LeaveOneOut));
        let of =
            |name: &str| truth[["local", "ps", "ring-allreduce"].iter().position(|s| *s == name).unwrap()];
        for level in &one.levels {
            assert_eq!((level.tried, level.runs), (4, 3));
            all += 1;
            hit += u32::from(level.mean.covers(of(&level.level)).unwrap());
        }
        let mut mistaken = false;
        for pair in &one.pairs {
            let exact = of(&pair.other) - of(&pair.better);
            pairs += 1;
            held += u32::from(pair.difference.covers(exact).unwrap());
            mistaken |= pair.p_holm.unwrap() < 0.05 && exact < 0.0;
        }
        wrong += u32::from(mistaken);
    }
    assert!(f64::from(hit) >= 0.9 * f64::from(all), "{hit} of {all}");
    assert!(f64::from(held) >= 0.9 * f64::from(pairs), "{held} of {pairs}");
    assert!(f64::from(wrong) <= 0.05 * STUDIES as f64, "{wrong}");
}

#[test]
fn a_comparison_says_how_it_chose_and_who_had_fewer_settings() {
    let (mut table, _) = techniques(1, 3, 0.01);
    let told = |table: &StudyTable| {
        let analysis = analysed(table);
        let found = analysis.findings.iter().find(|f| f.kind == FindingKind::Comparison);
        found.map(|f| f.sentence.clone()).unwrap()
    };
    let sentence = told(&table);
    assert!(sentence.starts_with("strategy, each at its own best lr: "), "{sentence}");
    assert!(
        sentence.contains("over 3 repeats, each judged with the setting that the others choose"),
        "{sentence}"
    );
    assert!(sentence.contains("is better than"), "{sentence}");
    table.runs.retain(|run| !(run.levels[0] == 1 && run.levels[1] < 2));
    let fewer = told(&table);
    assert!(fewer.contains("not all had as many settings to choose from"), "{fewer}");
    assert!(fewer.contains("local 4, ") && fewer.contains("ps 2"), "{fewer}");
    // Nothing repeated: the intervals allow for the choice.
    let (once, _) = techniques(1, 1, 0.01);
    assert!(told(&once).contains("chosen and judged on the same runs"));
    // Another factor can be asked for.
    let mut analysis = analysed(&once);
    analysis.compare(&ComparisonRequest { factor: 1, tuned: vec![0] });
    assert_eq!(analysis.comparisons[0].factor, "lr");
    assert_eq!(analysis.findings.iter().filter(|f| f.kind == FindingKind::Comparison).count(), 1);
}

/// `fixtures/make_transfer.py` made the table and the figures.
#[test]
fn transfer_agrees_with_scipy_with_ties_repeats_and_configurations_that_are_not_everywhere() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let text = std::fs::read_to_string(folder.join("transfer.json")).unwrap();
    let wanted: serde_json::Value = serde_json::from_str(&text).unwrap();
    let columns = ColumnRoles {
        factors: ["workload", "batch", "servers"].map(String::from).to_vec(),
        responses: vec![Response::parse("log(time_s)").unwrap()],
        ..ColumnRoles::default()
    };
    let mut table = table::read(&folder.join("transfer.csv"), &columns, None).unwrap();
    table.workloads = traits();
    let transfer = analysed(&table).transfer.unwrap();
    let close = |found: f64, wanted: &serde_json::Value, tolerance: f64, what: &str| {
        let wanted = wanted.as_f64().unwrap();
        assert!(
            (found - wanted).abs() <= tolerance * wanted.abs().max(1e-12),
            "{what}: {found}, not {wanted}"
        );
    };
    assert!(wanted["tied"].as_u64().unwrap() >= 3, "the table has ties");
    for pair in wanted["pairs"].as_array().unwrap() {
        let (a, b) = (pair["a"].as_str().unwrap(), pair["b"].as_str().unwrap());
        let found = transfer.agreements.iter().find(|found| found.a == a && found.b == b).unwrap();
        assert_eq!(found.n as u64, pair["n"].as_u64().unwrap(), "{a}, {b}");
        let (low, high) = found.spearman_interval.unwrap();
        for (figure, name, tolerance) in [
            (found.spearman.unwrap().value, "spearman", 1e-9),
            (found.spearman.unwrap().p, "spearman_p", 1e-6),
            (found.kendall.unwrap().value, "kendall", 1e-9),
            (found.kendall.unwrap().p, "kendall_p", 1e-6),
        ] {
            close(figure, &pair[name], tolerance, &format!("{name} of {a} and {b}"));
        }
        close(low, &pair["interval"][0], 1e-9, "the interval");
        close(high, &pair["interval"][1], 1e-9, "the interval");
    }
    for loss in wanted["losses"].as_array().unwrap() {
        let (from, to) = (loss["from"].as_str().unwrap(), loss["to"].as_str().unwrap());
        let found = transfer.losses.iter().find(|found| found.from == from && found.to == to).unwrap();
        close(found.loss, &loss["loss"], 1e-9, &format!("{from} on {to}"));
        assert_eq!(found.configuration, loss["configuration"].as_str().unwrap(), "{from} on {to}");
    }
    for (shared, name) in
        [(SharedTrait::Model, "model"), (SharedTrait::Data, "data"), (SharedTrait::Neither, "neither")]
    {
        let (found, wanted) =
            (transfer.groups.iter().find(|g| g.shared == shared).unwrap(), &wanted["groups"][name]);
        assert_eq!(found.pairs as u64, wanted["pairs"].as_u64().unwrap());
        close(found.spearman, &wanted["spearman"], 1e-9, name);
        close(found.interval.unwrap().0, &wanted["interval"][0], 1e-9, name);
        close(found.interval.unwrap().1, &wanted["interval"][1], 1e-9, name);
    }
}
