//! Comma-separated values with a header, as spreadsheets and other tools write them; also gzipped.

use std::io::Read;
use std::path::Path;

/// Names of columns, and rows of as many fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Sheet {
    /// The columns' names.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
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
        let mut bytes = Vec::new();
        let read =
            paceline_files::open_or_pipe(path).and_then(|file| file.take(LARGEST).read_to_end(&mut bytes));
        read.map_err(|e| e.to_string())?;
        let mut text = String::new();
        let read = if bytes.starts_with(&[0x1f, 0x8b]) {
            flate2::read::GzDecoder::new(bytes.as_slice()).take(LARGEST).read_to_string(&mut text)
        } else {
            bytes.as_slice().take(LARGEST).read_to_string(&mut text)
        };
        read.map_err(|e| e.to_string())?;
        Self::parse(&text)
    }

    /// Parses a sheet; fields may be quoted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = records(text.trim_start_matches('\u{feff}'))?.into_iter();
        let header = lines.next().ok_or("the file is empty: a line with the columns' names is needed")?;
        let columns: Vec<String> = header.fields.iter().map(|name| name.trim().to_owned()).collect();
        for (i, name) in columns.iter().enumerate() {
            if columns[..i].contains(name) {
                return Err(format!("line 1: the column `{name}` is there twice"));
            }
        }
        let rows: Vec<Row> = lines.collect();
        if let Some(Row { line, fields }) = rows.iter().find(|row| row.fields.len() != columns.len()) {
            let (found, wanted) = (fields.len(), columns.len());
            return Err(format!("line {line}: {found} fields, but the header names {wanted} columns"));
        }
        if rows.is_empty() {
            return Err("there are no rows below the header".into());
        }
        Ok(Self { columns, rows })
    }
}

/// Every record, the header among them; empty lines are none.
fn records(text: &str) -> Result<Vec<Row>, String> {
    let (mut found, mut fields, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut quoted, mut line, mut begin) = (false, 1, 1);
    let mut chars = text.chars().peekable();
    let mut any = false;
    while let Some(c) = chars.next() {
        any = true;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                field.push('"');
                chars.next();
            }
            '"' if quoted || field.is_empty() => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            '\r' if !quoted && chars.peek() == Some(&'\n') => {}
            '\n' if !quoted => {
                fields.push(std::mem::take(&mut field));
                let whole = std::mem::take(&mut fields);
                if whole.len() > 1 || !whole[0].is_empty() {
                    found.push(Row { line: begin, fields: whole });
                }
                line += 1;
                (begin, any) = (line, false);
            }
            c => {
                line += usize::from(c == '\n');
                field.push(c);
            }
        }
    }
    if quoted {
        return Err(format!("line {begin}: a quote is opened and not closed"));
    }
    if any {
        fields.push(field);
        found.push(Row { line: begin, fields });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_line_ends_and_marks_are_read() {
        let sheet = Sheet::parse("\u{feff}a, b\r\n\"1,\n2\",\"say \"\"so\"\"\"\r\n\r\n3,4").unwrap();
        assert_eq!(sheet.columns, ["a", "b"]);
        let row = |line, a: &str, b: &str| Row { line, fields: vec![a.into(), b.into()] };
        assert_eq!(sheet.rows, [row(2, "1,\n2", "say \"so\""), row(5, "3", "4")]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, problem) in [
            ("", "the file is empty"),
            ("a,b\n", "no rows"),
            ("a,a\n1,2\n", "line 1: the column `a` is there twice"),
            ("a,b\n1,2\n3\n", "line 3: 1 fields, but the header names 2 columns"),
            ("a,b\n1,\"2\n", "line 2: a quote is opened"),
        ] {
            let said = Sheet::parse(text).unwrap_err();
            assert!(said.contains(problem), "{said}");
        }
    }
}
