//! Techniques beside a reference, each at its own best setting: what `paceline analyze --compare FACTOR --tune FACTOR` says.
//!
//! A block marked `tuned` is TOML: `name` of the table that it makes; `sql` whose columns are any number of groups, the
//! technique, the settings in `tuned` and one run's figure, of which less is better, in the order in which runs were
//! made; `reference`, and `scale` as for `compare`. The table has the groups, the technique, `setting` (what all its runs
//! choose), `n`, the `deviation` of a run, `mean`, `low`, `high`, `beside`, `beside_low`, `beside_high`, `p` (corrected for
//! all pairs of the group) and `real`.

use paceline_analyze::table::{RawRun, Response, RunRole};
use paceline_analyze::{
    Analysis, AnalysisRequest, ComparisonRequest, Estimate, StudyTable, TunedComparison, TunedPair,
};
use paceline_statistics::distinct;
use rusqlite::Connection;
use rusqlite::types::Value;
use serde::Deserialize;

use super::compare::{FigureScale, OUTSIDE, make};
use super::page::{number, rows, shown};
use crate::process::Outcome;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedTuning {
    name: String,
    sql: String,
    tuned: Vec<String>,
    reference: String,
    scale: FigureScale,
}

/// Makes the table that a block asks for.
pub fn tuned(block: &str, database: &Connection) -> Outcome {
    let asked: AskedTuning = toml::from_str(block).map_err(|e| e.to_string())?;
    let (columns, answers) = rows(&asked.sql, database)?;
    let Some(groups) = columns.len().checked_sub(asked.tuned.len() + 2) else {
        return Err("a query of techniques has groups, a technique, its settings and a figure".into());
    };
    let mut lines = Vec::new();
    for group in distinct(answers.iter().map(|answer| answer[..groups].to_vec())) {
        let own: Vec<&[Value]> = answers
            .iter()
            .filter(|answer| answer[..groups] == group)
            .map(|answer| &answer[groups..])
            .collect();
        let of = compared(&asked, &columns[groups..], &own).map_err(|e| {
            let group: Vec<String> = group.iter().map(shown).collect();
            format!("{}, {}: {e}", asked.name, group.join(", "))
        })?;
        lines.extend(of.into_iter().map(|line| group.iter().cloned().chain(line).collect()));
    }
    let figures = ["setting", "n", "deviation", "mean", "low", "high"];
    let beside = ["beside", "beside_low", "beside_high", "p", "real"];
    let columns = columns[..=groups].iter().map(String::as_str).chain(figures).chain(beside);
    make(&asked.name, columns, lines, database)
}

/// The techniques of one group; a row is a technique, its settings and a figure.
fn compared(asked: &AskedTuning, columns: &[String], rows: &[&[Value]]) -> Outcome<Vec<Vec<Value>>> {
    let factors = &columns[..columns.len() - 1];
    let run = |(order, row): (usize, &&[Value])| RawRun {
        id: order.to_string(),
        levels: row[..factors.len()].iter().map(shown).collect(),
        values: vec![number(&row[factors.len()])],
        bounds: Vec::new(),
        order: order as f64,
        block: None,
        role: RunRole::Point,
        forbidden: false,
    };
    let name = &columns[factors.len()];
    let log = asked.scale == FigureScale::Log;
    let response = Response::parse(&if log { format!("log({name})") } else { name.clone() })?;
    let table =
        StudyTable::new(&asked.name, factors, vec![response], rows.iter().enumerate().map(run).collect());
    let mut analysis = Analysis::new(&table, AnalysisRequest::default());
    analysis.compare(&ComparisonRequest { factor: 0, tuned: (1..factors.len()).collect() });
    let comparison = analysis.comparisons.first().ok_or("fewer than two techniques can be compared")?;
    let deviation = analysis.noise.as_ref().map(|noise| noise.deviation);
    lines(asked, comparison, deviation)
}

fn lines(
    asked: &AskedTuning,
    comparison: &TunedComparison,
    deviation: Option<f64>,
) -> Outcome<Vec<Vec<Value>>> {
    if !comparison.levels.iter().any(|level| level.level == asked.reference) {
        return Err(format!("no {} to compare with", asked.reference));
    }
    let back = |value: f64| if asked.scale == FigureScale::Log { value.exp() } else { value };
    let cell = |value: Option<f64>| value.map_or(Value::Null, Value::Real);
    let estimate = |estimate: Option<Estimate>| {
        let of = |end: fn(Estimate) -> Option<f64>| cell(estimate.and_then(end).map(back));
        [of(|e| Some(e.value)), of(|e| e.low), of(|e| e.high)]
    };
    let line = |level: &paceline_analyze::TunedLevel| {
        let pair = comparison
            .pairs
            .iter()
            .find_map(|pair| Some((pair, against(pair, &level.level, &asked.reference)?)));
        let p = pair.and_then(|(pair, _)| pair.p_holm);
        let mut line = vec![Value::Text(level.level.clone()), Value::Text(level.settings.join(" or "))];
        line.extend([Value::Integer(level.runs as i64), cell(deviation)]);
        line.extend(estimate(Some(level.mean)));
        line.extend(estimate(pair.map(|(_, difference)| difference)));
        line.extend([cell(p), p.map_or(Value::Null, |p| Value::Integer(i64::from(p < OUTSIDE)))]);
        line
    };
    Ok(comparison.levels.iter().map(line).collect())
}

/// How much more a level has than the reference, if this is their pair.
fn against(pair: &TunedPair, level: &str, reference: &str) -> Option<Estimate> {
    let Estimate { value, low, high } = pair.difference;
    match (pair.better.as_str(), pair.other.as_str()) {
        (better, other) if (better, other) == (reference, level) => Some(pair.difference),
        (better, other) if (better, other) == (level, reference) => {
            Some(Estimate { value: -value, low: high.map(|v| -v), high: low.map(|v| -v) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_technique_is_judged_at_the_setting_that_suits_it() {
        let database = Connection::open_in_memory().unwrap();
        database.execute_batch("CREATE TABLE runs (link, technique, lr, s)").unwrap();
        for (technique, lr, s) in [("a", 0.1, 10.0), ("a", 0.3, 4.0), ("b", 0.1, 2.0), ("b", 0.3, 8.0)] {
            for factor in [0.98, 1.0, 1.01, 1.02] {
                let row = (technique, lr, s * factor);
                database.execute("INSERT INTO runs VALUES ('slow', ?1, ?2, ?3)", row).unwrap();
            }
        }
        let block = |reference: &str| {
            format!(
                "name = \"told\"\nscale = \"log\"\ntuned = [\"lr\"]\nreference = \"{reference}\"\n\
                 sql = \"SELECT link, technique, lr, s FROM runs\""
            )
        };
        tuned(&block("a"), &database).unwrap();
        let text = |sql: &str| database.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        let one = |sql: &str| database.query_row(sql, [], |row| row.get::<_, f64>(0)).unwrap();
        assert_eq!(text("SELECT setting FROM told WHERE technique = 'a'"), "lr 0.3");
        assert_eq!(text("SELECT setting FROM told WHERE technique = 'b'"), "lr 0.1");
        let times = one("SELECT beside FROM told WHERE technique = 'b' AND real");
        assert!((times - 0.5).abs() < 0.01, "{times}");
        assert!(one("SELECT beside_low FROM told WHERE technique = 'b'") < times);
        assert!(one("SELECT beside_high FROM told WHERE technique = 'b'") > times);
        assert_eq!(one("SELECT count(*) FROM told WHERE real IS NULL AND technique = 'a'"), 1.0);
        database.execute_batch("DROP TABLE told").unwrap();
        assert!(tuned(&block("c"), &database).unwrap_err().contains("told, slow: no c to compare with"));
    }
}
