//! Which differences are real: levels beside a reference, over repeats.
//!
//! A block marked `compare` is TOML: `name` of the table that it makes, `sql` whose columns are any number of groups,
//! then the level, then one run's figure, and `reference`, the level beside which the others of a group are held (none:
//! means alone). With `scale = "log"` (times and rates) means are geometric and a level is so many times the reference;
//! with `scale = "linear"` (accuracies) it is so much more. With `noise = "pooled"` the levels of a group share one
//! deviation, that of their repeats: three repeats alone know too little of it. With `noise = "own"` each level has its
//! own (Welch), for figures such as accuracies, of which some levels vary much more than others.
//!
//! The table has the groups, the level, `n`, the `deviation` of a run (relative, on a logarithmic scale), `mean`, `low`,
//! `high`, `beside`, `beside_low`, `beside_high` (intervals of 95%), `p`, corrected for all comparisons of the block
//! (Holm), and `real`: whether that is below 5%.

use paceline_analyze::{f_tail, holm, t_quantile};
use paceline_statistics::mean;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use serde::Deserialize;

use super::page::{number, rows, shown};
use crate::process::Outcome;

/// The chance of being wrong that is accepted.
pub const OUTSIDE: f64 = 0.05;

/// How figures are compared.
#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum FigureScale {
    /// By factors.
    Log,
    /// By differences.
    Linear,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum VarianceModel {
    Pooled,
    Own,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedComparison {
    name: String,
    sql: String,
    reference: Option<String>,
    scale: FigureScale,
    noise: VarianceModel,
}

/// The runs of one level in one group, on the scale that is asked for.
struct Level {
    group: Vec<Value>,
    level: Value,
    values: Vec<f64>,
}

impl Level {
    fn squares(&self) -> f64 {
        let middle = mean(&self.values);
        self.values.iter().map(|value| (value - middle).powi(2)).sum()
    }

    fn df(&self) -> f64 {
        self.values.len() as f64 - 1.0
    }
}

/// A mean or a difference of means, with its standard error and that one's degrees of freedom.
#[derive(Clone, Copy)]
struct MeanEstimate {
    value: f64,
    standard_error: f64,
    df: f64,
}

impl MeanEstimate {
    fn interval(&self) -> [Option<f64>; 2] {
        let half = (self.df > 0.0).then(|| self.standard_error * t_quantile(OUTSIDE, self.df));
        [half.map(|half| self.value - half), half.map(|half| self.value + half)]
    }

    /// The chance of one further from zero if there were none; no difference is none, and one without noise is certain.
    fn p_value(&self) -> f64 {
        match (self.value == 0.0, self.standard_error == 0.0) {
            (true, _) => 1.0,
            (false, true) => 0.0,
            (false, false) => f_tail((self.value / self.standard_error).powi(2), 1.0, self.df),
        }
    }
}

/// The deviation of one run among those of its level, over some levels.
#[derive(Clone, Copy)]
struct StandardDeviation {
    value: f64,
    df: f64,
}

impl StandardDeviation {
    fn of(levels: &[&Level]) -> Self {
        let (squares, df) = levels.iter().fold((0.0, 0.0), |(s, df), l| (s + l.squares(), df + l.df()));
        Self { value: (squares / df).sqrt(), df }
    }

    fn mean(&self, level: &Level) -> MeanEstimate {
        MeanEstimate {
            value: mean(&level.values),
            standard_error: self.value / (level.values.len() as f64).sqrt(),
            df: self.df,
        }
    }
}

fn difference(one: MeanEstimate, other: MeanEstimate, noise: VarianceModel) -> MeanEstimate {
    let (a, b) = (one.standard_error.powi(2), other.standard_error.powi(2));
    let df = match noise {
        VarianceModel::Pooled => one.df,
        // Welch and Satterthwaite.
        VarianceModel::Own => (a + b).powi(2) / (a.powi(2) / one.df + b.powi(2) / other.df),
    };
    MeanEstimate { value: one.value - other.value, standard_error: (a + b).sqrt(), df }
}

/// Makes the table that a block asks for.
pub fn compare(block: &str, database: &Connection) -> Outcome {
    let asked: AskedComparison = toml::from_str(block).map_err(|e| e.to_string())?;
    let (columns, answers) = rows(&asked.sql, database)?;
    let Some(groups) = columns.len().checked_sub(2) else {
        return Err("a comparison's query has groups, a level and a figure".into());
    };
    let levels = levels(&answers, groups, asked.scale)?;
    let lines = lines(&asked, &levels)?;
    let figures =
        ["n", "deviation", "mean", "low", "high", "beside", "beside_low", "beside_high", "p", "real"];
    make(&asked.name, columns[..=groups].iter().map(String::as_str).chain(figures), lines, database)
}

/// Makes a table that queries below it can ask.
pub fn make<'a>(
    name: &str,
    columns: impl Iterator<Item = &'a str>,
    lines: Vec<Vec<Value>>,
    database: &Connection,
) -> Outcome {
    let columns: Vec<String> = columns.map(|column| format!("\"{column}\"")).collect();
    let table = format!("CREATE TABLE {name} ({})", columns.join(", "));
    database.execute_batch(&table).map_err(|e| e.to_string())?;
    let insert = format!("INSERT INTO {name} VALUES ({})", vec!["?"; columns.len()].join(", "));
    for line in lines {
        database.execute(&insert, params_from_iter(line)).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn levels(answers: &[Vec<Value>], groups: usize, scale: FigureScale) -> Outcome<Vec<Level>> {
    let mut levels: Vec<Level> = Vec::new();
    for answer in answers {
        let Some(figure) = number(&answer[groups + 1]) else { continue };
        if scale == FigureScale::Log && figure <= 0.0 {
            return Err(format!("{figure} has no logarithm"));
        }
        let figure = if scale == FigureScale::Log { figure.ln() } else { figure };
        let (group, level) = (&answer[..groups], &answer[groups]);
        match levels.iter_mut().find(|l| l.group == group && l.level == *level) {
            Some(known) => known.values.push(figure),
            None => levels.push(Level { group: group.to_vec(), level: level.clone(), values: vec![figure] }),
        }
    }
    Ok(levels)
}

fn lines(asked: &AskedComparison, levels: &[Level]) -> Outcome<Vec<Vec<Value>>> {
    let mut told = Vec::new();
    for level in levels {
        let group: Vec<&Level> = levels.iter().filter(|l| l.group == level.group).collect();
        let deviation = |level: &Level| match asked.noise {
            VarianceModel::Pooled => StandardDeviation::of(&group),
            VarianceModel::Own => StandardDeviation::of(&[level]),
        };
        let own = deviation(level).mean(level);
        let beside = match &asked.reference {
            Some(reference) if shown(&level.level) != *reference => {
                let of = group.iter().find(|l| shown(&l.level) == *reference).ok_or_else(|| {
                    let group: Vec<String> = level.group.iter().map(shown).collect();
                    format!("{}: no {reference} in the group {}", asked.name, group.join(", "))
                })?;
                Some(difference(own, deviation(of).mean(of), asked.noise))
            }
            _ => None,
        };
        told.push((level, deviation(level), own, beside));
    }
    let chances: Vec<f64> = told.iter().filter_map(|(.., beside)| Some(beside.as_ref()?.p_value())).collect();
    let mut chances = holm(&chances).into_iter();
    let back = |value: f64| if asked.scale == FigureScale::Log { value.exp() } else { value };
    let figure = |value: Option<f64>| value.map_or(Value::Null, |value| Value::Real(back(value)));
    let line =
        |(level, noise, own, beside): (&Level, StandardDeviation, MeanEstimate, Option<MeanEstimate>)| {
            let mut line = level.group.clone();
            line.extend([level.level.clone(), Value::Integer(level.values.len() as i64)]);
            let deviation = (noise.df > 0.0).then_some(noise.value);
            line.extend([deviation.map_or(Value::Null, Value::Real), figure(Some(own.value))]);
            line.extend(own.interval().map(figure));
            line.push(figure(beside.map(|b| b.value)));
            line.extend(beside.map_or([None, None], |b| b.interval()).map(figure));
            let chance = beside.and_then(|_| chances.next());
            line.push(chance.map_or(Value::Null, Value::Real));
            line.push(chance.map_or(Value::Null, |chance| Value::Integer(i64::from(chance < OUTSIDE))));
            line
        };
    Ok(told.into_iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Connection {
        let database = Connection::open_in_memory().unwrap();
        database
            .execute_batch(
                "CREATE TABLE runs (link, technique, s);
                 INSERT INTO runs VALUES ('none', 'a', 1.0), ('none', 'a', 1.2), ('none', 'a', 0.8),
                   ('none', 'b', 1.1), ('none', 'b', 1.3), ('none', 'b', 0.9),
                   ('slow', 'a', 10.0), ('slow', 'a', 10.2), ('slow', 'a', 9.8),
                   ('slow', 'b', 5.0), ('slow', 'b', 5.1), ('slow', 'b', 4.9), ('slow', 'b', NULL)",
            )
            .unwrap();
        database
    }

    fn block(scale: &str, noise: &str) -> String {
        format!(
            "name = \"told\"\nscale = \"{scale}\"\nnoise = \"{noise}\"\nreference = \"a\"\nsql = \"SELECT link, technique, s FROM runs\""
        )
    }

    /// The answers were worked out apart from this program, with Student's density integrated by Simpson's rule.
    #[test]
    fn levels_are_held_beside_their_reference_and_chances_corrected() {
        for (noise, low) in [("pooled", -5.358_44), ("own", -5.415_54)] {
            let database = database();
            compare(&block("linear", noise), &database).unwrap();
            let one = |figure: &str, link: &str| -> f64 {
                let sql = format!("SELECT {figure} FROM told WHERE link = '{link}' AND technique = 'b'");
                database.query_row(&sql, [], |row| row.get(0)).unwrap()
            };
            assert_eq!((one("n", "slow"), one("real", "none"), one("real", "slow")), (3.0, 0.0, 1.0));
            assert!((one("beside", "none") - 0.1).abs() < 1e-12);
            assert!((one("beside_low", "none") + 0.353_39).abs() < 1e-4);
            assert!((one("beside_low", "slow") - low).abs() < 1e-4, "{noise}: {}", one("beside_low", "slow"));
            // The greater of two chances stays; the smaller is doubled.
            assert!((one("p", "none") - 0.573_39).abs() < 1e-4);
            let references = "SELECT count(*) FROM told WHERE real IS NULL AND technique = 'a'";
            assert_eq!(database.query_row(references, [], |row| row.get::<_, i64>(0)).unwrap(), 2);
        }
    }

    #[test]
    fn on_a_logarithmic_scale_a_level_is_so_many_times_its_reference() {
        let database = database();
        compare(&block("log", "own"), &database).unwrap();
        let one = |sql: &str| database.query_row(sql, [], |row| row.get::<_, f64>(0)).unwrap();
        let times = one("SELECT beside FROM told WHERE link = 'slow' AND technique = 'b'");
        assert!((times - 0.5).abs() < 1e-3, "{times}");
        assert!(one("SELECT low FROM told WHERE link = 'slow' AND technique = 'a'") < 10.0);
        database.execute_batch("DROP TABLE told; INSERT INTO runs VALUES ('slow', 'b', 0)").unwrap();
        assert!(compare(&block("log", "own"), &database).unwrap_err().contains("logarithm"));
    }

    #[test]
    fn a_group_without_the_reference_is_refused() {
        let database = database();
        database.execute_batch("INSERT INTO runs VALUES ('other', 'b', 1.0)").unwrap();
        let refused = compare(&block("linear", "pooled"), &database).unwrap_err();
        assert!(refused.contains("no a in the group other"), "{refused}");
    }

    #[test]
    fn what_has_no_noise_is_certain_and_what_does_not_differ_is_not_real() {
        let known =
            |value: f64, standard_error: f64| MeanEstimate { value, standard_error, df: 2.0 }.p_value();
        assert_eq!((known(0.0, 0.0), known(1.0, 0.0), known(0.0, 1.0)), (1.0, 0.0, 1.0));
    }
}
