//! The kept runs of a study as a database in memory: `runs` and `ranks` with the columns of the files and `part`, and
//! `machines`. Beside what SQLite has, queries have `median(x)`, `spearman(x, y)` (the rank correlation, with the
//! ends of its interval `spearman_low` and `spearman_high`), `ln`, `exp`, `atanh`, `tanh`, and `told(format, value, low,
//! high)`: a figure with its interval.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use paceline_analyze::ranks::{spearman, spearman_interval};
use paceline_plan::{Sheet, SheetRow};
use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use crate::process::Outcome;

type Rows = Vec<BTreeMap<String, Value>>;

/// Reads `PART/{runs,ranks}.csv` and `PART/machine.json`.
pub fn open(folder: &Path) -> Outcome<Connection> {
    let database = Connection::open_in_memory().map_err(text)?;
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    database.create_aggregate_function("median", 1, flags, Median).map_err(text)?;
    for (name, told) in
        [("spearman", Spearman::Value), ("spearman_low", Spearman::Low), ("spearman_high", Spearman::High)]
    {
        database.create_aggregate_function(name, 2, flags, told).map_err(text)?;
    }
    for (name, function) in
        [("ln", f64::ln as fn(f64) -> f64), ("exp", f64::exp), ("atanh", f64::atanh), ("tanh", f64::tanh)]
    {
        let of = move |context: &Context<'_>| Ok(context.get::<Option<f64>>(0)?.map(function));
        database.create_scalar_function(name, 1, flags, of).map_err(text)?;
    }
    // SQLite's own would show what is missing as zero.
    database
        .create_scalar_function("printf", 2, flags, |context| {
            let (format, value) = (context.get::<String>(0)?, context.get::<Option<f64>>(1)?);
            let shown = value.map(|value| formatted(&format, value)).transpose();
            shown.map_err(|e| rusqlite::Error::UserFunctionError(e.into()))
        })
        .map_err(text)?;
    database
        .create_scalar_function("told", 4, flags, |context| {
            let format = context.get::<String>(0)?;
            let figure = |i: usize| -> rusqlite::Result<Option<String>> {
                let shown = context.get::<Option<f64>>(i)?.map(|value| formatted(&format, value)).transpose();
                shown.map_err(|e| rusqlite::Error::UserFunctionError(e.into()))
            };
            Ok(match (figure(1)?, figure(2)?.zip(figure(3)?)) {
                (Some(value), Some((low, high))) => Some(format!("{value} [{low}, {high}]")),
                (value, _) => value,
            })
        })
        .map_err(text)?;
    let mut parts: Vec<_> = fs::read_dir(folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    parts.sort();
    let [mut runs, mut ranks, mut machines] = [Rows::new(), Rows::new(), Rows::new()];
    for path in parts {
        let part = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        runs.extend(sheet(&path.join("runs.csv"), &part)?);
        // Runs of other programs have no ranks.
        let of_ranks = path.join("ranks.csv");
        if of_ranks.is_file() {
            ranks.extend(sheet(&of_ranks, &part)?);
        }
        machines.push(machine(&path.join("machine.json"), &part)?);
    }
    for (name, rows) in [("runs", runs), ("ranks", ranks), ("machines", machines)] {
        fill(&database, name, &rows).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(database)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// A number in one of the forms `%.1f`, `%+.1f`, with text around; `%%` is a percent sign.
fn formatted(format: &str, value: f64) -> Result<String, String> {
    let wrong = || format!("printf knows %.1f and %+.1f, not {format}");
    let (before, rest) = format.split_once('%').ok_or_else(wrong)?;
    let (sign, rest) = rest.strip_prefix('+').map_or((false, rest), |rest| (true, rest));
    let (digits, after) = rest.strip_prefix('.').and_then(|rest| rest.split_once('f')).ok_or_else(wrong)?;
    let digits: usize = digits.parse().map_err(|_| wrong())?;
    let number = if sign { format!("{value:+.digits$}") } else { format!("{value:.digits$}") };
    // A minus as it is set, and none where nothing is left of the number.
    let number = match number.strip_prefix('-') {
        Some(rest) if rest.contains(|c: char| ('1'..='9').contains(&c)) => format!("−{rest}"),
        Some(rest) => rest.to_owned(),
        None => number,
    };
    Ok(format!("{before}{number}{}", after.replace("%%", "%")))
}

fn sheet(path: &Path, part: &str) -> Outcome<Rows> {
    let sheet = Sheet::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let row = |row: &SheetRow| {
        let cells = sheet.columns.iter().zip(&row.fields).map(|(name, field)| (name.clone(), value(field)));
        cells.chain([("part".into(), part.to_owned().into())]).collect()
    };
    Ok(sheet.rows.iter().map(row).collect())
}

fn value(field: &str) -> Value {
    match field.parse::<f64>() {
        _ if field.is_empty() => Value::Null,
        Ok(number) if field.bytes().all(|b| b.is_ascii_digit() || b == b'-') && number.abs() < 1e15 => {
            Value::Integer(number as i64)
        }
        Ok(number) => Value::Real(number),
        Err(_) => Value::Text(field.into()),
    }
}

fn machine(path: &Path, part: &str) -> Outcome<BTreeMap<String, Value>> {
    let bad = |e: String| format!("{}: {e}", path.display());
    let document = fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let document: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&document).map_err(|e| bad(e.to_string()))?;
    let field = |v: &serde_json::Value| value(&v.as_str().map_or_else(|| v.to_string(), str::to_owned));
    let mut row: BTreeMap<String, Value> = document.iter().map(|(k, v)| (k.clone(), field(v))).collect();
    row.insert("part".into(), part.to_owned().into());
    Ok(row)
}

/// A table with every column that any row has.
fn fill(database: &Connection, name: &str, rows: &Rows) -> rusqlite::Result<()> {
    let mut columns: Vec<&String> = rows.iter().flat_map(BTreeMap::keys).collect();
    columns.sort();
    columns.dedup();
    if columns.is_empty() {
        return Ok(());
    }
    let quoted: Vec<String> = columns.iter().map(|c| format!("\"{c}\"")).collect();
    database.execute_batch(&format!("CREATE TABLE {name} ({})", quoted.join(", ")))?;
    let places = vec!["?"; columns.len()].join(", ");
    let mut insert = database.prepare(&format!("INSERT INTO {name} VALUES ({places})"))?;
    for row in rows {
        insert.execute(params_from_iter(columns.iter().map(|c| row.get(*c).unwrap_or(&Value::Null))))?;
    }
    Ok(())
}

/// The middle value; of an even number, the mean of the two in the middle. What is missing does not count.
struct Median;

impl Aggregate<Vec<f64>, Option<f64>> for Median {
    fn init(&self, _: &mut Context<'_>) -> rusqlite::Result<Vec<f64>> {
        Ok(Vec::new())
    }

    fn step(&self, context: &mut Context<'_>, values: &mut Vec<f64>) -> rusqlite::Result<()> {
        values.extend(context.get::<Option<f64>>(0)?);
        Ok(())
    }

    fn finalize(&self, _: &mut Context<'_>, values: Option<Vec<f64>>) -> rusqlite::Result<Option<f64>> {
        let values = values.unwrap_or_default();
        Ok((!values.is_empty()).then(|| paceline_statistics::median(&values)))
    }
}

/// The rank correlation of two columns, or an end of its interval; rows where one is missing do not count.
enum Spearman {
    Value,
    Low,
    High,
}

impl Aggregate<[Vec<f64>; 2], Option<f64>> for Spearman {
    fn init(&self, _: &mut Context<'_>) -> rusqlite::Result<[Vec<f64>; 2]> {
        Ok([Vec::new(), Vec::new()])
    }

    fn step(&self, context: &mut Context<'_>, pairs: &mut [Vec<f64>; 2]) -> rusqlite::Result<()> {
        if let (Some(x), Some(y)) = (context.get::<Option<f64>>(0)?, context.get::<Option<f64>>(1)?) {
            pairs[0].push(x);
            pairs[1].push(y);
        }
        Ok(())
    }

    fn finalize(&self, _: &mut Context<'_>, pairs: Option<[Vec<f64>; 2]>) -> rusqlite::Result<Option<f64>> {
        let [x, y] = pairs.unwrap_or_default();
        let Some(correlation) = spearman(&x, &y) else { return Ok(None) };
        let ends = spearman_interval(correlation.value, x.len());
        Ok(match self {
            Self::Value => Some(correlation.value),
            Self::Low => ends.map(|(low, _)| low),
            Self::High => ends.map(|(_, high)| high),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sheets_of_all_parts_are_one_table_with_medians_and_rank_correlations() {
        let folder = std::env::temp_dir().join(format!("paceline-study-{}", std::process::id()));
        for (part, runs) in
            [("one", "x,y\r\n1,10\r\n2,20\r\n3,\r\n"), ("two", "x,y,z\r\n4,30,\"a,b\"\r\n7,5,c\r\n")]
        {
            fs::create_dir_all(folder.join(part)).unwrap();
            fs::write(folder.join(part).join("runs.csv"), runs).unwrap();
            fs::write(folder.join(part).join("machine.json"), "{\"cores\": 2, \"cpu\": \"some\"}").unwrap();
        }
        let database = open(&folder).unwrap();
        let one = |query: &str| database.query_row(query, [], |row| row.get::<_, f64>(0)).unwrap();
        assert_eq!(one("SELECT median(x) FROM runs"), 3.0);
        assert_eq!(one("SELECT median(y) FROM runs WHERE part = 'one'"), 15.0);
        assert_eq!(one("SELECT count(*) FROM runs WHERE z = 'a,b'"), 1.0);
        assert!((one("SELECT spearman(x, y) FROM runs") + 0.2).abs() < 1e-12);
        assert!(one("SELECT spearman_low(x, y) FROM runs") < -0.2);
        assert!(one("SELECT spearman_high(x, y) FROM runs") > -0.2);
        let words =
            |query: &str| database.query_row(query, [], |row| row.get::<_, Option<String>>(0)).unwrap();
        assert_eq!(words("SELECT printf('%+.1f%% less', -0.26)").as_deref(), Some("−0.3% less"));
        assert_eq!(words("SELECT printf('%.0f', y) FROM runs WHERE x = 3"), None);
        assert_eq!(words("SELECT told('%.1f', 2, 1.5, 2.5)").as_deref(), Some("2.0 [1.5, 2.5]"));
        assert_eq!(words("SELECT told('%.1f', 2, NULL, NULL)").as_deref(), Some("2.0"));
        assert_eq!(words("SELECT told('%.1f', NULL, NULL, NULL)"), None);
        assert_eq!(one("SELECT exp(ln(x)) FROM runs WHERE x = 1"), 1.0);
        assert_eq!(one("SELECT sum(cores) FROM machines"), 4.0);
        fs::remove_dir_all(&folder).unwrap();
    }
}
