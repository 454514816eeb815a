//! JSON: one document with a list of objects per table.

use std::io::{self, Write};

use serde_json::{Map, Value as Json, json};

use super::{ExportError, Exported};
use crate::event::SCHEMA;
use crate::store::Value;

pub fn write(exported: &Exported<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut tables = Map::new();
    for rows in exported.tables() {
        let rows = rows?;
        let object = |row: &Vec<Value>| {
            let pairs =
                rows.table.columns.iter().zip(row).map(|(c, v)| (c.name.to_owned(), value(c.unit, v)));
            Json::Object(pairs.collect())
        };
        tables.insert(rows.table.name.into(), rows.rows.iter().map(object).collect());
    }
    let document = json!({"type": "run", "schema": SCHEMA, "run": exported.run.run, "tables": tables});
    serde_json::to_writer(&mut *out, &document).map_err(io::Error::from)?;
    Ok(out.write_all(b"\n")?)
}

/// A value; text that is JSON itself is put in as such.
fn value(unit: &str, value: &Value) -> Json {
    match value {
        Value::Null | Value::Blob(_) => Json::Null,
        Value::Integer(n) => (*n).into(),
        Value::Real(n) => json!(n),
        Value::Text(text) if unit == "JSON" => {
            serde_json::from_str(text).unwrap_or_else(|_| Json::String(text.clone()))
        }
        Value::Text(text) => Json::String(text.clone()),
    }
}
