//! Comma-separated values with a header, as spreadsheets and other tools write them; also gzipped.

use std::io::Read;
use std::path::{Path, PathBuf};

pub use csv::Terminator;
use csv::{ReaderBuilder, StringRecord, WriterBuilder};

/// A table that cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum TableError {
    /// It cannot be read.
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    /// What is asked of it does not fit.
    #[error("{flag} {value}: {problem}")]
    Ask { flag: &'static str, value: String, problem: String },
}

/// Names of columns, and rows of as many fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Sheet {
    /// The columns' names.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<SheetRow>,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct SheetRow {
    /// The line of the file that it begins on, from 1.
    pub line: usize,
    /// A field per column.
    pub fields: Vec<String>,
}

/// Bytes of a sheet, unpacked.
const LARGEST: u64 = 1 << 30;

impl Sheet {
    /// Reads a file, or a pipe that the caller was handed; what is wrong with it does not name the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        Self::parse(&text(path)?)
    }

    /// Reads a file and keeps some of its rows: `choose` is told how many there are, and says which to keep in order.
    pub fn read_some(
        path: &Path,
        choose: impl FnOnce(usize) -> Result<Vec<bool>, String>,
    ) -> Result<Self, String> {
        let text = text(path)?;
        let mut records: usize = 0;
        each_record(&text, |_, _| {
            records += 1;
            Ok(())
        })?;
        Self::parse_some(&text, &choose(records.saturating_sub(1))?)
    }

    /// Parses a sheet; fields may be quoted.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_some(text, &[])
    }

    /// The rows that `keep` says, and those beyond its end.
    fn parse_some(text: &str, keep: &[bool]) -> Result<Self, String> {
        let mut columns: Option<Vec<String>> = None;
        let (mut rows, mut number) = (Vec::new(), 0);
        each_record(text, |line, fields| {
            let Some(columns) = &columns else {
                columns = Some(header(fields)?);
                return Ok(());
            };
            let (found, wanted) = (fields.len(), columns.len());
            if found != wanted {
                return Err(format!("line {line}: {found} fields, but the header names {wanted} columns"));
            }
            if keep.get(number).copied().unwrap_or(true) {
                rows.push(SheetRow { line, fields: fields.iter().map(str::to_owned).collect() });
            }
            number += 1;
            Ok(())
        })?;
        let columns = columns.ok_or("the file is empty: a line with the columns' names is needed")?;
        if number == 0 {
            return Err("there are no rows below the header".into());
        }
        Ok(Self { columns, rows })
    }
}

impl SheetRow {
    /// Reads a file without a header: rows of any length.
    pub fn read_all(path: &Path) -> Result<Vec<Self>, String> {
        Self::parse_all(&text(path)?)
    }

    /// Parses a text without a header: rows of any length. Empty lines are no rows.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        let mut rows = Vec::new();
        each_record(text, |line, fields| {
            rows.push(Self { line, fields: fields.iter().map(str::to_owned).collect() });
            Ok(())
        })?;
        Ok(rows)
    }
}

/// What is in a file, unpacked.
fn text(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = paceline_files::open_or_pipe(path).and_then(|file| file.take(LARGEST).read_to_end(&mut bytes));
    read.map_err(|e| e.to_string())?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return String::from_utf8(bytes).map_err(|e| e.to_string());
    }
    let mut text = String::new();
    let unpacked = flate2::read::GzDecoder::new(bytes.as_slice()).take(LARGEST).read_to_string(&mut text);
    unpacked.map_err(|e| e.to_string())?;
    Ok(text)
}

fn header(fields: &StringRecord) -> Result<Vec<String>, String> {
    let columns: Vec<String> = fields.iter().map(|name| name.trim().to_owned()).collect();
    match columns.iter().enumerate().find(|(i, name)| columns[..*i].contains(name)) {
        Some((_, name)) => Err(format!("line 1: the column `{name}` is there twice")),
        None => Ok(columns),
    }
}

/// Calls `take` with every record, the header among them, and the line that it begins on. Empty lines are no records.
fn each_record(
    text: &str,
    mut take: impl FnMut(usize, &StringRecord) -> Result<(), String>,
) -> Result<(), String> {
    let text = text.trim_start_matches('\u{feff}');
    // The row behind the text is read as one of its own unless a quote is still open there.
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes().chain(b"\nend".as_slice()));
    let (mut record, mut begin, mut line) = (StringRecord::new(), 0, 1);
    loop {
        // The reader's own line is that of the line end or the empty lines before the record.
        let from = reader.position().byte() as usize;
        let ends = text.as_bytes().iter().skip(from).take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let next = (from + ends).min(text.len());
        line += text.as_bytes()[begin..next].iter().filter(|byte| **byte == b'\n').count();
        begin = next;
        if begin == text.len() {
            return Ok(());
        }
        reader.read_record(&mut record).map_err(|error| error.to_string())?;
        if reader.position().byte() as usize > text.len() + 1 {
            return Err(format!("line {line}: a quote is opened and not closed"));
        }
        if record.len() > 1 || !record[0].is_empty() {
            take(line, &record)?;
        }
    }
}

/// Rows as comma-separated values (RFC 4180); fields have quotes where they need them.
pub fn to_csv<F: AsRef<[u8]>>(
    line_end: Terminator,
    rows: impl IntoIterator<Item = impl IntoIterator<Item = F>>,
) -> String {
    let mut writer = WriterBuilder::new().terminator(line_end).flexible(true).from_writer(Vec::new());
    for row in rows {
        writer.write_record(row).expect("memory takes every record");
    }
    String::from_utf8(writer.into_inner().expect("memory takes every record")).expect("fields are text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_line_ends_and_marks_are_read() {
        let sheet = Sheet::parse("\u{feff}a, b\r\n\"1,\n2\",\"say \"\"so\"\"\"\r\n\r\n3,4").unwrap();
        assert_eq!(sheet.columns, ["a", "b"]);
        let row = |line, a: &str, b: &str| SheetRow { line, fields: vec![a.into(), b.into()] };
        assert_eq!(sheet.rows, [row(2, "1,\n2", "say \"so\""), row(5, "3", "4")]);
    }

    #[test]
    fn rows_without_a_header_have_any_length() {
        let rows = SheetRow::parse_all("a,,b\n\nc\r\n").unwrap();
        let row =
            |line, fields: &[&str]| SheetRow { line, fields: fields.iter().map(|f| (*f).into()).collect() };
        assert_eq!(rows, [row(1, &["a", "", "b"]), row(3, &["c"])]);
        assert_eq!(SheetRow::parse_all("").unwrap(), []);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let rows = [["a", "b"], ["1,\n2", "say \"so\""], ["", "x"]];
        let text = to_csv(Terminator::CRLF, rows);
        assert_eq!(text, "a,b\r\n\"1,\n2\",\"say \"\"so\"\"\"\r\n,x\r\n");
        let sheet = Sheet::parse(&text).unwrap();
        assert_eq!(sheet.rows.iter().map(|row| &row.fields[..]).collect::<Vec<_>>(), rows[1..]);
    }

    #[test]
    fn chosen_rows_are_kept_with_their_lines_and_the_others_are_still_checked() {
        let file = std::env::temp_dir().join(format!("paceline-sheet-{}.csv", std::process::id()));
        std::fs::write(&file, "a,b\n1,2\n\n3,4\n5,6\n").unwrap();
        let some = Sheet::read_some(&file, |rows| Ok((0..rows).map(|i| i > 0).collect())).unwrap();
        let lines: Vec<(usize, &str)> =
            some.rows.iter().map(|row| (row.line, row.fields[0].as_str())).collect();
        assert_eq!(lines, [(4, "3"), (5, "5")]);
        assert_eq!(Sheet::read_some(&file, |rows| Err(format!("{rows} rows"))), Err("3 rows".into()));
        std::fs::write(&file, "a,b\n1\n3,4\n").unwrap();
        let wrong = Sheet::read_some(&file, |_| Ok(vec![false, true])).unwrap_err();
        assert!(wrong.starts_with("line 2: 1 fields"), "{wrong}");
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, problem) in [
            ("", "the file is empty"),
            ("a,b\n", "no rows"),
            ("a,a\n1,2\n", "line 1: the column `a` is there twice"),
            ("a,b\n1,2\n3\n", "line 3: 1 fields, but the header names 2 columns"),
            ("a,b\n1,\"2\n", "line 2: a quote is opened"),
            ("a,b\r\n1,2\r\n\r\n3,\"\"\"", "line 4: a quote is opened"),
            ("a,b\r\n\"1\n1\",2\r\n3\r\n", "line 4: 1 fields"),
            ("\n\n", "the file is empty"),
        ] {
            let said = Sheet::parse(text).unwrap_err();
            assert!(said.contains(problem), "{said}");
        }
    }
}
