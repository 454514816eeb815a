//! A study table out of a file of comma-separated values, also gzipped.

use std::path::{Path, PathBuf};

use paceline_plan::{Sheet, SheetRow, TableError};
use paceline_random::{Purpose, Stream};

use super::{RawRun, Response, RunRole, StudyTable};

/// A table that cannot be analysed.
#[derive(Debug, thiserror::Error)]
pub enum StudyTableError {
    /// The file or the columns are wrong.
    #[error(transparent)]
    Table(#[from] TableError),
    /// It has more rows than are analysed at once.
    #[error("{} has {rows} rows; at most {MOST_ROWS} are analysed at once", path.display())]
    Large {
        /// The file.
        path: PathBuf,
        /// Its rows.
        rows: usize,
    },
    /// Tables that do not go together.
    #[error("{names} cannot be analysed together: {problem}")]
    Apart {
        /// The tables.
        names: String,
        /// Why.
        problem: String,
    },
}

/// Which columns mean what.
#[derive(Clone, Debug, Default)]
pub struct ColumnRoles {
    /// What varied on purpose.
    pub factors: Vec<String>,
    /// What was measured.
    pub responses: Vec<Response>,
    /// The runs' names; their lines without.
    pub id: Option<String>,
    /// When they were made; the order of the rows without.
    pub order: Option<String>,
    /// What they were made together with.
    pub block: Option<String>,
    /// Whether they are controls: `1`, `true`, `yes` or `control`.
    pub control: Option<String>,
}

/// Rows that are analysed without a [`RowSample`]. A model holds some hundred numbers per row; more rows would take
/// gigabytes and minutes, and tell hardly more than some ten thousand of them.
pub const MOST_ROWS: usize = 100_000;

/// Rows that are drawn from a table.
#[derive(Clone, Copy, Debug)]
pub struct RowSample {
    /// How many; all where there are no more.
    pub rows: usize,
    /// Decides which.
    pub seed: u64,
}

impl RowSample {
    /// Which of so many rows are drawn: every set of as many is as likely as any other.
    fn draw(self, all: usize) -> Vec<bool> {
        let stream = Stream::new(self.seed, Purpose::Analysis).fork(u64::MAX);
        let mut wanted = self.rows.min(all);
        let mut draw = |at: usize| {
            let drawn = stream.below(at as u64, (all - at) as u64) < wanted as u64;
            wanted -= usize::from(drawn);
            drawn
        };
        (0..all).map(&mut draw).collect()
    }
}

/// Reads a table: all of its rows if there are not too many, or a sample.
pub fn read(
    path: &Path,
    columns: &ColumnRoles,
    sample: Option<RowSample>,
) -> Result<StudyTable, StudyTableError> {
    let fail = |problem: String| TableError::File { path: path.into(), problem };
    let mut all = 0;
    let sheet = Sheet::read_some(path, |rows| {
        all = rows;
        match sample {
            Some(sample) => Ok(sample.draw(rows)),
            None if rows > MOST_ROWS => Ok(vec![false; rows]),
            None => Ok(vec![true; rows]),
        }
    });
    let sheet = sheet.map_err(fail)?;
    if sheet.rows.is_empty() {
        return Err(StudyTableError::Large { path: path.into(), rows: all });
    }
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut table = table(&name, &sheet, columns)?;
    if let Some(RowSample { seed, .. }) = sample.filter(|_| sheet.rows.len() < all) {
        let drawn = sheet.rows.len();
        table.notes.push(format!("a sample of {drawn} of the table's {all} rows, drawn with seed {seed}"));
    }
    Ok(table)
}

fn table(name: &str, sheet: &Sheet, columns: &ColumnRoles) -> Result<StudyTable, StudyTableError> {
    let header = &sheet.columns;
    let find = |flag: &'static str, name: &str| {
        header.iter().position(|column| column == name).ok_or_else(|| TableError::Ask {
            flag,
            value: name.into(),
            problem: format!("there is no such column; columns: {}", header.join(", ")),
        })
    };
    let optional = |flag, name: &Option<String>| name.as_ref().map(|name| find(flag, name)).transpose();
    let every = |flag, names: &[String]| names.iter().map(|n| find(flag, n)).collect::<Result<Vec<_>, _>>();
    let factors = every("--factor", &columns.factors)?;
    let mut measured = columns.responses.clone();
    let column = |response: &mut Response| {
        // A table may have a figure under a name that it had before.
        let at = header.iter().position(|column| *column == response.name);
        let at = at.or_else(|| header.iter().position(|column| response.is(column)));
        let at = at.map_or_else(|| find("--response", &response.name), Ok)?;
        response.name.clone_from(&header[at]);
        Ok(at)
    };
    let responses = measured.iter_mut().map(column).collect::<Result<Vec<_>, TableError>>()?;
    let (id, order) = (optional("--id", &columns.id)?, optional("--order", &columns.order)?);
    let (block, control) = (optional("--block", &columns.block)?, optional("--control", &columns.control)?);
    let mut runs = Vec::new();
    for (i, SheetRow { line, fields }) in sheet.rows.iter().enumerate() {
        let figure = |flag, column: usize| match fields[column].trim() {
            "" => Ok(None),
            text => text.parse::<f64>().map(Some).map_err(|_| TableError::Ask {
                flag,
                value: header[column].clone(),
                problem: format!("line {line} has `{text}`, not a number"),
            }),
        };
        let values = responses.iter().map(|c| figure("--response", *c)).collect::<Result<Vec<_>, _>>()?;
        let made = order.map_or(Ok(None), |c| figure("--order", c))?;
        let yes = |c: usize| matches!(fields[c].trim(), "1" | "true" | "yes" | "control");
        runs.push(RawRun {
            id: id.map_or_else(|| format!("line {line}"), |c| fields[c].to_owned()),
            levels: factors.iter().map(|c| fields[*c].to_owned()).collect(),
            values,
            order: made.unwrap_or(i as f64),
            block: block.map(|c| fields[c].to_owned()),
            role: if control.is_some_and(yes) { RunRole::Control } else { RunRole::Point },
            ..RawRun::default()
        });
    }
    let mut table = StudyTable::new(name, &columns.factors, measured, runs);
    // The order of rows alone tells nothing: they may be sorted by their levels.
    table.timed = order.is_some() || control.is_some();
    for (i, response) in columns.responses.iter().enumerate() {
        let (all, used) =
            (table.runs.iter().filter(|r| r.role == RunRole::Point).count(), table.measured(i).len());
        if used == 0 {
            let problem = "no row has a value that can be used".into();
            return Err(TableError::Ask { flag: "--response", value: response.words(), problem }.into());
        }
        if used < all {
            let note = format!("{} of {all} runs have no usable {}", all - used, response.words());
            table.notes.push(note);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "n,w,\"time, s\",kind,day\n2,\"a,b\",1.5,,x\n1,c,,control,y\n1,c,3,,y\n";

    fn read(columns: &ColumnRoles) -> Result<StudyTable, StudyTableError> {
        table("t.csv", &Sheet::parse(TEXT).unwrap(), columns)
    }

    fn columns() -> ColumnRoles {
        ColumnRoles {
            factors: vec!["n".into(), "w".into()],
            responses: vec![Response::parse("time, s").unwrap()],
            control: Some("kind".into()),
            block: Some("day".into()),
            ..ColumnRoles::default()
        }
    }

    #[test]
    fn quoted_fields_empty_values_and_controls_are_read() {
        let table = read(&columns()).unwrap();
        assert_eq!(table.factors[1].levels[0].text, "a,b");
        assert_eq!(table.measured(0).len(), 2);
        assert!(table.runs[1].role == RunRole::Control && table.runs[1].values == [None]);
        assert_eq!((table.runs[2].block.as_deref(), table.runs[2].id.as_str()), (Some("y"), "line 4"));
    }

    #[test]
    fn a_sample_has_as_many_rows_as_were_asked_for_and_its_seed_decides() {
        let drawn = |rows, seed| RowSample { rows, seed }.draw(1000);
        let count = |of: &[bool]| of.iter().filter(|kept| **kept).count();
        assert_eq!([0, 1, 300, 1000, 5000].map(|rows| count(&drawn(rows, 1))), [0, 1, 300, 1000, 1000]);
        assert_eq!(drawn(300, 1), drawn(300, 1));
        assert_ne!(drawn(300, 1), drawn(300, 2));
        // From everywhere, not from one end.
        assert!((30..75).contains(&count(&drawn(300, 1)[..166])));
    }

    #[test]
    fn mistakes_name_the_flag_and_the_line() {
        let wrong = |change: fn(&mut ColumnRoles)| {
            let mut columns = columns();
            change(&mut columns);
            read(&columns).unwrap_err().to_string()
        };
        let missing = wrong(|c| c.factors.push("m".into()));
        assert!(missing.contains("--factor m: there is no such column; columns: n, w"), "{missing}");
        let text = wrong(|c| c.responses = vec![Response::parse("w").unwrap()]);
        assert!(text.contains("line 2 has `a,b`, not a number"), "{text}");
    }
}
