//! Figures agree with statsmodels, scipy and numpy (`fixtures/make_statistics.py`).

use std::path::{Path, PathBuf};

use paceline_analyze::table::{self, ColumnRoles, Response};
use paceline_analyze::{
    Anova, Estimate, InfluenceModel, StudyTable, WorkloadTransfer, f_tail, holm, ranks, scaling, t_quantile,
};
use paceline_testing::{Need, skip};
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn wanted() -> Value {
    let text = std::fs::read_to_string(fixtures().join("statistics.json")).expect("the fixture is there");
    serde_json::from_str(&text).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("numbers").iter().map(number).collect()
}

#[track_caller]
fn close(found: f64, wanted: &Value, tolerance: f64, what: &str) {
    let wanted = number(wanted);
    let apart = (found - wanted).abs();
    assert!(apart <= tolerance * wanted.abs().max(1e-12), "{what}: {found} instead of {wanted}");
}

fn read(path: &Path, factors: &[&str], response: &str) -> StudyTable {
    let columns = ColumnRoles {
        factors: factors.iter().map(|f| (*f).to_owned()).collect(),
        responses: vec![Response::parse(response).unwrap()],
        ..ColumnRoles::default()
    };
    table::read(path, &columns, None).unwrap()
}

fn unbalanced() -> StudyTable {
    read(&fixtures().join("unbalanced.csv"), &["strategy", "servers", "batch"], "log(step_s)")
}

const LYNCEUS: [&str; 5] = ["vm_flavor", "total_cores", "learning_rate", "batch_size", "synchronism"];

/// A table that others have measured, or `None` and a counted skip where it is not at hand.
fn shared(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("PACELINE_DATA").map(PathBuf::from);
    let path = folder.map(|folder| folder.join("tables").join(name)).filter(|path| path.is_file());
    if path.is_none() {
        skip(Need::Datasets, format_args!("tables/{name}"));
    }
    path
}

fn interval(found: &Estimate, wanted: &Value, [value, low, high]: [&str; 3], what: &str) {
    close(found.value, &wanted[value], 1e-7, what);
    close(found.low.unwrap(), &wanted[low], 1e-6, what);
    close(found.high.unwrap(), &wanted[high], 1e-6, what);
}

fn agrees(table: &StudyTable, wanted: &Value) {
    let anova = Anova::new(table, 0).unwrap();
    assert_eq!(anova.n as f64, number(&wanted["n"]));
    assert_eq!(anova.residual_df as f64, number(&wanted["residual_df"]));
    close(anova.residual_sum_sq, &wanted["residual_sum_sq"], 1e-9, "residual");
    close(anova.r_sq, &wanted["r_sq"], 1e-9, "R²");
    let sources = wanted["sources"].as_array().unwrap();
    assert_eq!(anova.sources.len(), sources.len());
    for wanted in sources {
        let term = wanted["term"].as_str().unwrap();
        let found = anova.sources.iter().find(|s| s.term == term).unwrap();
        assert_eq!(found.df as f64, number(&wanted["df"]), "{term}");
        close(found.sum_sq, &wanted["sum_sq"], 1e-8, term);
        close(found.f.unwrap(), &wanted["F"], 1e-8, term);
        close(found.p.unwrap(), &wanted["p"], 1e-6, term);
        close(found.p_holm.unwrap(), &wanted["p_holm"], 1e-6, term);
        close(found.eta_sq, &wanted["eta_sq"], 1e-8, term);
        close(found.partial_eta_sq, &wanted["partial_eta_sq"], 1e-8, term);
        close(found.partial_omega_sq.unwrap(), &wanted["partial_omega_sq"], 1e-7, term);
    }
    let effects = wanted["effects"].as_array().unwrap();
    assert!(effects.len() > 8);
    for wanted in effects {
        let (factor, level) = (wanted["factor"].as_str().unwrap(), wanted["level"].as_str().unwrap());
        let effect = anova.effects.iter().find(|e| e.factor == factor).unwrap();
        let number = |text: &str| text.parse::<f64>().ok();
        let same = |text: &str| text == level || (number(text).is_some() && number(text) == number(level));
        let found = effect.levels.iter().find(|l| same(&l.level)).unwrap();
        let what = format!("{factor} {level}");
        interval(&found.effect.unwrap(), wanted, ["value", "low", "high"], &what);
        interval(&found.mean.unwrap(), wanted, ["mean", "mean_low", "mean_high"], &what);
    }
    for wanted in wanted["cells"].as_array().unwrap() {
        let term = wanted["term"].as_str().unwrap();
        let found = anova.interactions.iter().find(|i| i.term == term).unwrap();
        interval(&found.cells[0][0].unwrap(), wanted, ["value", "low", "high"], term);
    }
}

#[test]
fn effects_interactions_and_anova_of_an_unbalanced_table_agree_with_statsmodels() {
    agrees(&unbalanced(), &wanted()["unbalanced"]);
}

#[test]
fn effects_interactions_and_anova_of_the_lynceus_table_agree_with_statsmodels() {
    let Some(path) = shared("lynceus_rnn.csv") else { return };
    agrees(&read(&path, &LYNCEUS, "log(training_time_s)"), &wanted()["lynceus"]);
}

fn formula_agrees(table: &StudyTable, wanted: &Value) {
    let model = InfluenceModel::new(table, 0).unwrap();
    let terms = wanted["terms"].as_array().unwrap();
    let names: Vec<&str> = model.terms.iter().map(|t| t.term.as_str()).collect();
    let wanted_names: Vec<&str> = terms.iter().map(|t| t["term"].as_str().unwrap()).collect();
    assert_eq!(names, wanted_names);
    close(model.constant, &wanted["constant"], 1e-6, "constant");
    close(model.r_sq, &wanted["r_sq"], 1e-8, "R²");
    close(model.foretold, &wanted["foretold"], 1e-7, "left out one at a time");
    for (found, wanted) in model.terms.iter().zip(terms) {
        close(found.coefficient.value, &wanted["value"], 1e-5, &found.term);
        close(found.coefficient.low.unwrap(), &wanted["low"], 1e-4, &found.term);
        close(found.coefficient.high.unwrap(), &wanted["high"], 1e-4, &found.term);
    }
}

#[test]
fn influence_models_choose_the_terms_that_statsmodels_fits_choose() {
    formula_agrees(&unbalanced(), &wanted()["unbalanced_influence"]);
    let Some(path) = shared("lynceus_rnn.csv") else { return };
    formula_agrees(&read(&path, &LYNCEUS, "log(training_time_s)"), &wanted()["lynceus_influence"]);
}

#[test]
fn importance_of_a_full_grid_is_its_decomposition() {
    let Some(path) = shared("lynceus_rnn.csv") else { return };
    let table = read(&path, &LYNCEUS, "log(training_time_s)");
    let wanted = &wanted()["lynceus_shares"];
    let found = Anova::new(&table, 0).unwrap().sources;
    assert_eq!(found.len(), wanted.as_object().unwrap().len());
    found.iter().for_each(|source| close(source.eta_sq, &wanted[&source.term], 1e-8, &source.term));
}

#[test]
fn rank_statistics_agree_with_scipy() {
    let wanted = &wanted()["ranks"];
    let lists = |name: &str| wanted[name].as_array().unwrap().iter().map(numbers).collect::<Vec<_>>();
    let both = |found: (f64, f64), name: &str| {
        close(found.0, &wanted[name]["statistic"], 1e-9, name);
        close(found.1, &wanted[name]["p"], 1e-7, name);
    };
    let (a, b) = (numbers(&wanted["a"]), numbers(&wanted["b"]));
    let pair = |c: ranks::Correlation| (c.value, c.p);
    both(pair(ranks::spearman(&a, &b).unwrap()), "spearman");
    both(pair(ranks::kendall(&a, &b).unwrap()), "kendall");
    both(ranks::kruskal(&lists("groups")).unwrap(), "kruskal");
    both(ranks::friedman(&lists("blocks")).unwrap(), "friedman");
    both(ranks::wilcoxon(&numbers(&wanted["differences"])).unwrap(), "wilcoxon");
    let corrected = holm(&numbers(&wanted["chances"]));
    let list = wanted["holm"].as_array().unwrap();
    corrected.iter().zip(list).for_each(|(found, wanted)| close(*found, wanted, 1e-12, "Holm"));
}

#[test]
fn the_transfer_of_a_table_agrees_with_scipy() {
    let Some(path) = shared("trimtuner_rnn.csv.gz") else { return };
    let factors =
        ["training_set_size", "vm_flavor", "n_workers", "learning_rate", "batch_size", "synchronism"];
    let table = read(&path, &factors, "training_time");
    let transfer = WorkloadTransfer::new(&table, 0, 0, None, 1).unwrap();
    let wanted = &wanted()["transfer"];
    let found = transfer.agreements.iter().find(|a| a.a == "1000" && a.b == "60000").unwrap();
    assert_eq!(found.n as f64, number(&wanted["n"]));
    close(found.spearman.unwrap().value, &wanted["spearman"]["statistic"], 1e-9, "Spearman");
    close(found.kendall.unwrap().value, &wanted["kendall"]["statistic"], 1e-9, "Kendall");
    let loss = transfer.losses.iter().find(|l| l.from == "1000" && l.to == "60000").unwrap();
    close(loss.loss, &wanted["loss"], 1e-9, "loss");
}

#[test]
fn scaling_laws_agree_with_scipy() {
    let wanted = &wanted()["scaling"];
    let points: Vec<(f64, f64)> =
        wanted["points"].as_array().unwrap().iter().map(|p| (number(&p[0]), number(&p[1]))).collect();
    for (name, coherence) in [("usl", true), ("amdahl", false)] {
        let law = scaling::fit(&points, coherence).unwrap();
        let wanted = &wanted[name];
        close(law.one, &wanted["one"], 1e-6, name);
        close(law.contention.value, &wanted["contention"], 1e-5, name);
        close(law.contention.high.unwrap() - law.contention.value, &wanted["contention_half"], 1e-4, name);
        if coherence {
            close(law.coherence.value, &wanted["coherence"], 1e-5, name);
            close(law.coherence.high.unwrap() - law.coherence.value, &wanted["coherence_half"], 1e-4, name);
        }
    }
}

#[test]
fn tails_agree_with_scipy() {
    let wanted = &wanted()["tails"];
    for row in wanted["t"].as_array().unwrap() {
        close(t_quantile(number(&row[0]), number(&row[1])), &row[2], 1e-8, "t");
    }
    for row in wanted["f"].as_array().unwrap() {
        close(f_tail(number(&row[0]), number(&row[1]), number(&row[2])), &row[3], 1e-8, "F");
    }
}
