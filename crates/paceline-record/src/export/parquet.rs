//! Parquet: one file per table, every column optional, values plain and uncompressed in one row group.
//!
//! That much of the format is a few hundred lines less than the crate for all of it, which takes most of a
//! minute to compile; pyarrow reads what is written here in the tests.

use std::ops::Range;

use serde_json::Value as Json;

use super::varint;
use crate::store::{TableRows, Value};
use crate::table::Type;

/// First and last bytes of a file.
const MAGIC: &[u8] = b"PAR1";

/// Parquet's numbers of the physical types.
fn physical(kind: Type) -> i64 {
    match kind {
        Type::Integer => 2,
        Type::Real => 5,
        Type::Text => 6,
    }
}

pub fn bytes(rows: &TableRows) -> Vec<u8> {
    let columns = rows.table.columns.iter().map(|column| (column.name, column.kind)).collect();
    write(&Rows { name: rows.table.name, columns, rows: &rows.rows })
}

/// A table of values that know their kind: whole numbers, numbers and texts; columns that mix them are texts.
pub fn parquet(name: &str, columns: &[String], rows: &[Vec<Json>]) -> Vec<u8> {
    let kind = |at: usize| {
        let all = || rows.iter().map(|row| &row[at]).filter(|value| !value.is_null());
        match () {
            () if all().all(|value| value.is_i64()) => Type::Integer,
            () if all().all(Json::is_number) => Type::Real,
            () => Type::Text,
        }
    };
    let columns: Vec<(&str, Type)> = columns.iter().enumerate().map(|(i, c)| (c.as_str(), kind(i))).collect();
    let value = |(value, (_, kind)): (&Json, &(&str, Type))| match (value, kind) {
        (Json::Null, _) => Value::Null,
        (Json::String(text), Type::Text) => Value::Text(text.clone()),
        (other, Type::Text) => Value::Text(other.to_string()),
        (number, Type::Integer) => number.as_i64().map_or(Value::Null, Value::Integer),
        (number, Type::Real) => number.as_f64().map_or(Value::Null, Value::Real),
    };
    let values: Vec<Vec<Value>> =
        rows.iter().map(|row| row.iter().zip(&columns).map(value).collect()).collect();
    write(&Rows { name, columns, rows: &values })
}

/// A table to be written.
struct Rows<'a> {
    name: &'a str,
    columns: Vec<(&'a str, Type)>,
    rows: &'a [Vec<Value>],
}

fn write(rows: &Rows<'_>) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    // Where each column's only page lies.
    let chunks: Vec<Range<usize>> = (0..rows.columns.len())
        .map(|column| {
            let offset = file.len();
            let page = page(rows, column);
            file.extend(header(page.len(), rows.rows.len()));
            file.extend(page);
            offset..file.len()
        })
        .collect();
    let footer = footer(rows, &chunks);
    file.extend(&footer);
    file.extend((footer.len() as u32).to_le_bytes());
    file.extend(MAGIC);
    file
}

/// Which rows have a value, then the values.
fn page(rows: &Rows<'_>, column: usize) -> Vec<u8> {
    let (_, kind) = rows.columns[column];
    let fits = |value: &Value| match kind {
        Type::Integer => matches!(value, Value::Integer(_)),
        Type::Real => matches!(value, Value::Integer(_) | Value::Real(_)),
        Type::Text => matches!(value, Value::Text(_)),
    };
    let values: Vec<Option<&Value>> =
        rows.rows.iter().map(|row| Some(&row[column]).filter(|v| fits(v))).collect();
    // Definition levels: runs of equal levels, each a length (its lowest bit 0) and the level.
    let mut levels = Vec::new();
    for run in values.chunk_by(|a, b| a.is_some() == b.is_some()) {
        varint(&mut levels, (run.len() as u64) << 1);
        levels.push(u8::from(run[0].is_some()));
    }
    let mut page = (levels.len() as u32).to_le_bytes().to_vec();
    page.extend(levels);
    for value in values.into_iter().flatten() {
        match (kind, value) {
            (Type::Real, Value::Integer(n)) => page.extend((*n as f64).to_le_bytes()),
            (_, Value::Integer(n)) => page.extend(n.to_le_bytes()),
            (_, Value::Real(n)) => page.extend(n.to_le_bytes()),
            (_, Value::Text(text)) => {
                page.extend((text.len() as u32).to_le_bytes());
                page.extend(text.as_bytes());
            }
            _ => {}
        }
    }
    page
}

fn header(length: usize, values: usize) -> Vec<u8> {
    let mut thrift = Thrift::default();
    thrift.begin();
    thrift.i32(1, 0); // a data page
    thrift.i32(2, length as i64);
    thrift.i32(3, length as i64);
    thrift.structure(5, |t| {
        t.i32(1, values as i64);
        t.i32(2, 0); // values plain
        t.i32(3, 3); // levels in runs
        t.i32(4, 3);
    });
    thrift.end();
    thrift.bytes
}

fn footer(rows: &Rows<'_>, chunks: &[Range<usize>]) -> Vec<u8> {
    let (columns, count) = (&rows.columns, rows.rows.len() as i64);
    let mut thrift = Thrift::default();
    thrift.begin();
    thrift.i32(1, 1); // version
    thrift.list(2, columns.len() + 1, |t, i| {
        let Some((name, kind)) = i.checked_sub(1).map(|i| columns[i]) else {
            t.text(4, rows.name);
            t.i32(5, columns.len() as i64);
            return;
        };
        t.i32(1, physical(kind));
        t.i32(3, 1); // optional
        t.text(4, name);
        if kind == Type::Text {
            t.i32(6, 0); // UTF-8
        }
    });
    thrift.i64(3, count);
    thrift.list(4, 1, |t, _| {
        t.list(1, columns.len(), |t, i| {
            let (offset, length) = (chunks[i].start, chunks[i].len());
            t.i64(2, offset as i64);
            t.structure(3, |t| {
                t.i32(1, physical(columns[i].1));
                t.elements(2, 5, 2);
                t.zigzag(0);
                t.zigzag(3);
                t.elements(3, 8, 1);
                t.raw(columns[i].0);
                t.i32(4, 0); // uncompressed
                t.i64(5, count);
                t.i64(6, length as i64);
                t.i64(7, length as i64);
                t.i64(9, offset as i64);
            });
        });
        t.i64(2, chunks.iter().map(|c| c.len() as i64).sum());
        t.i64(3, count);
    });
    thrift.text(6, "paceline");
    thrift.end();
    thrift.bytes
}

/// Thrift's compact protocol, as far as it is needed.
#[derive(Default)]
struct Thrift {
    bytes: Vec<u8>,
    /// The last field of each open structure.
    last: Vec<i16>,
}

impl Thrift {
    fn begin(&mut self) {
        self.last.push(0);
    }

    fn end(&mut self) {
        self.bytes.push(0);
        self.last.pop();
    }

    fn field(&mut self, id: i16, kind: u8) {
        let last = self.last.last_mut().expect("fields lie in structures");
        // Fields go up by at most 15 here, so that the short form always does.
        self.bytes.push(((id - *last) as u8) << 4 | kind);
        *last = id;
    }

    fn zigzag(&mut self, value: i64) {
        varint(&mut self.bytes, ((value << 1) ^ (value >> 63)) as u64);
    }

    fn i32(&mut self, id: i16, value: i64) {
        self.field(id, 5);
        self.zigzag(value);
    }

    fn i64(&mut self, id: i16, value: i64) {
        self.field(id, 6);
        self.zigzag(value);
    }

    fn text(&mut self, id: i16, text: &str) {
        self.field(id, 8);
        self.raw(text);
    }

    fn raw(&mut self, text: &str) {
        varint(&mut self.bytes, text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn structure(&mut self, id: i16, fill: impl FnOnce(&mut Self)) {
        self.field(id, 12);
        self.begin();
        fill(self);
        self.end();
    }

    fn elements(&mut self, id: i16, kind: u8, length: usize) {
        self.field(id, 9);
        if length < 15 {
            self.bytes.push((length as u8) << 4 | kind);
        } else {
            self.bytes.push(0xf0 | kind);
            varint(&mut self.bytes, length as u64);
        }
    }

    fn list(&mut self, id: i16, length: usize, mut fill: impl FnMut(&mut Self, usize)) {
        self.elements(id, 12, length);
        for i in 0..length {
            self.begin();
            fill(self, i);
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_thrift_has_them() {
        let mut thrift = Thrift::default();
        thrift.begin();
        thrift.i32(1, -3);
        thrift.i64(4, 300);
        thrift.text(5, "ab");
        thrift.end();
        assert_eq!(thrift.bytes, [0x15, 5, 0x36, 0xd8, 4, 0x18, 2, b'a', b'b', 0]);
    }
}
