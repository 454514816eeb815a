//! CSV: one file per table, as RFC 4180 has it. What is not there is an empty field.

use paceline_plan::{Terminator, to_csv};

use crate::store::{TableRows, Value};

pub fn bytes(rows: &TableRows) -> Vec<u8> {
    text(rows).into_bytes()
}

fn text(rows: &TableRows) -> String {
    let names = rows.table.columns.iter().map(|column| column.name.to_owned()).collect();
    let fields = rows.rows.iter().map(|row| row.iter().map(field).collect());
    to_csv(Terminator::CRLF, [names].into_iter().chain::<Vec<Vec<String>>>(fields.collect()))
}

fn field(value: &Value) -> String {
    match value {
        Value::Integer(n) => n.to_string(),
        Value::Real(n) => n.to_string(),
        Value::Text(text) => text.clone(),
        // No table has blobs.
        Value::Null | Value::Blob(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Exported;
    use crate::export::tests::recorded;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted_and_rows_have_every_column() {
        let folder = tempfile::tempdir().unwrap();
        let (store, run) = recorded(folder.path());
        let exported = Exported { store: &store, run: &run };
        assert!(text(&exported.table("runs").unwrap()).contains("\"a \"\"quoted\"\", failure\""));
        let steps = text(&exported.table("steps").unwrap());
        assert_eq!(steps.lines().count(), 7);
        assert!(steps.lines().all(|line| line.matches(',').count() == 21), "{steps}");
    }
}
