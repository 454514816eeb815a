//! Prose with queries in it becomes a page. `{{SQL}}` is the query's first value; a block marked `table` is a query
//! shown as a table; one marked `sql` makes views for those below it, one marked `compare` a table of differences and
//! which of them are real (see [`super::compare`]), one marked `tuned` the same of techniques at their own settings (see
//! [`super::tuned`]); one marked `chart` is TOML with `title`, `x`, `y`, `log` and a query
//! of series, x, y, and the interval of y if it has one. A number that is typed into the prose is an error: it could
//! disagree with the data.

use paceline_analyze::figure::{AxisScale, ChartAxis, ChartMark, Dot, Figure, Panel};
use rusqlite::Connection;
use rusqlite::types::Value;
use serde::Deserialize;

use super::compare::compare;
use super::tuned::tuned;
use crate::docs::MARK;
use crate::process::Outcome;

/// A page and the files that it shows.
#[derive(Debug)]
pub struct Rendered {
    /// The page, as Markdown.
    pub text: String,
    /// Its pictures, by file name.
    pub pictures: Vec<(String, String)>,
}

/// Answers every query of a template.
pub fn render(template: &str, database: &Connection) -> Outcome<Rendered> {
    let mut page = Rendered { text: format!("{MARK}\n\n"), pictures: Vec::new() };
    let mut lines = template.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let at = |e: String| format!("line {}: {e}", number + 1);
        match line.strip_prefix("```") {
            None => page.text += &(prose(line, database).map_err(at)? + "\n"),
            Some(kind) => {
                let block: Vec<&str> =
                    lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
                let block = block.join("\n");
                page.text += &match kind {
                    "sql" => {
                        database.execute_batch(&block).map_err(|e| at(e.to_string()))?;
                        String::new()
                    }
                    "compare" => {
                        compare(&block, database).map_err(at)?;
                        String::new()
                    }
                    "tuned" => {
                        tuned(&block, database).map_err(at)?;
                        String::new()
                    }
                    "table" => table(&block, database).map_err(at)?,
                    "chart" => {
                        let file = format!("picture-{}.svg", page.pictures.len() + 1);
                        let (svg, words) = chart(&block, &file, database).map_err(at)?;
                        page.pictures.push((file, svg));
                        words
                    }
                    kind => format!("```{kind}\n{block}\n```\n"),
                };
            }
        }
    }
    Ok(page)
}

/// A line with its queries answered.
fn prose(line: &str, database: &Connection) -> Outcome<String> {
    let (mut answered, mut rest) = (String::new(), line);
    while let Some((before, after)) = rest.split_once("{{") {
        let (query, after) = after.split_once("}}").ok_or("{{ without }}")?;
        typed(before)?;
        answered += before;
        answered += &shown(&one(query, database)?);
        rest = after;
    }
    typed(rest)?;
    Ok(answered + rest)
}

/// Refuses digits outside of `code` and of the targets of links.
fn typed(prose: &str) -> Outcome {
    let spoken: String = prose.split('`').step_by(2).collect();
    let spoken: String =
        spoken.split("](").map(|part| part.split_once(')').map_or(part, |(_, rest)| rest)).collect();
    // Names such as resnet20 are no numbers.
    let mut words = spoken.split(|c: char| !c.is_alphanumeric());
    if words.any(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
        return Err(format!("a number is typed into the prose, not asked of the data: {}", prose.trim()));
    }
    Ok(())
}

fn one(query: &str, database: &Connection) -> Outcome<Value> {
    let wrong = |e: rusqlite::Error| format!("{e}: {query}");
    match database.query_row(query, [], |row| row.get(0)).map_err(wrong)? {
        Value::Null => Err(format!("the data has no answer: {query}")),
        value => Ok(value),
    }
}

/// A value as a page shows it.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Null => "–".into(),
        Value::Integer(n) => n.to_string(),
        Value::Real(n) => n.to_string(),
        Value::Text(text) => text.clone(),
        Value::Blob(_) => String::new(),
    }
}

/// A value that is a number.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(n) => Some(*n as f64),
        Value::Real(n) => Some(*n),
        _ => None,
    }
}

/// A query's column names and rows.
pub fn rows(query: &str, database: &Connection) -> Outcome<(Vec<String>, Vec<Vec<Value>>)> {
    let wrong = |e: rusqlite::Error| format!("{e}: {query}");
    let mut statement = database.prepare(query).map_err(wrong)?;
    let names: Vec<String> = statement.column_names().map(String::from).collect();
    let all = |row: &rusqlite::Row<'_>| (0..names.len()).map(|i| row.get(i)).collect();
    let rows: Vec<Vec<Value>> = statement.query_map([], all).and_then(Iterator::collect).map_err(wrong)?;
    if rows.is_empty() { Err(format!("no rows: {query}")) } else { Ok((names, rows)) }
}

fn table(query: &str, database: &Connection) -> Outcome<String> {
    let (names, rows) = rows(query, database)?;
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let sides: Vec<String> = rows[0]
        .iter()
        .map(|value| if matches!(value, Value::Text(text) if !is_figure(text)) { "---" } else { "---:" })
        .map(String::from)
        .collect();
    let mut text = line(names) + &line(sides);
    rows.iter().for_each(|row| text += &line(row.iter().map(shown).collect()));
    Ok(text)
}

/// Whether a cell is a number, alone or with its interval and its mark.
fn is_figure(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit() || "+−-".contains(c)) && !text.contains(char::is_alphabetic)
}

#[derive(Deserialize)]
struct Asked {
    title: String,
    x: String,
    y: String,
    #[serde(default)]
    log: String,
    sql: String,
}

/// Lines of `y` over `x`, one per series; x that are no numbers are names in the order of the query.
fn chart(block: &str, file: &str, database: &Connection) -> Outcome<(String, String)> {
    let asked: Asked = toml::from_str(block).map_err(|e| e.to_string())?;
    let (names, rows) = rows(&asked.sql, database)?;
    if ![3, 5].contains(&names.len()) {
        let named = names.join(", ");
        return Err(format!("a chart has series, x, y and perhaps its lower and upper end, not {named}"));
    }
    let named = rows.iter().any(|row| number(&row[1]).is_none());
    let mut places: Vec<String> = Vec::new();
    let mut series: Vec<(String, Vec<Dot>)> = Vec::new();
    for row in &rows {
        let place = shown(&row[1]);
        if !places.contains(&place) {
            places.push(place.clone());
        }
        let Some(y) = number(&row[2]) else { continue };
        let at = places.iter().position(|p| *p == place).unwrap_or_default() as f64;
        let x = if named { at } else { number(&row[1]).unwrap_or(at) };
        let range = row.get(3).and_then(number).zip(row.get(4).and_then(number));
        let dot = Dot { x, y, range, label: String::new() };
        let name = shown(&row[0]);
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, dots)) => dots.push(dot),
            None => series.push((name, vec![dot])),
        }
    }
    let axis = |title: &str, log: char| ChartAxis {
        title: title.into(),
        scale: if asked.log.contains(log) { AxisScale::Log } else { AxisScale::Linear },
    };
    let x = if named { ChartAxis::names(&asked.x, places) } else { axis(&asked.x, 'x') };
    let marks = series.into_iter().map(|(name, dots)| ChartMark::line(&name, dots)).collect();
    let figure = Figure {
        id: file.trim_end_matches(".svg").into(),
        title: asked.title.clone(),
        reading: String::new(),
        n: format!("{} points", rows.len()),
        panels: vec![Panel::new(x, axis(&asked.y, 'y'), marks)],
    };
    Ok((figure.svg(), format!("![{}]({file})\n", asked.title)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Connection {
        let database = Connection::open_in_memory().unwrap();
        database
            .execute_batch("CREATE TABLE runs (s, x, y); INSERT INTO runs VALUES ('a', 1, 2.5), ('a', 2, 5), ('b', 1, 1)")
            .unwrap();
        database
    }

    #[test]
    fn numbers_come_out_of_the_data_and_typed_ones_are_refused() {
        let page = |text: &str| render(text, &database());
        let text = page("It is {{SELECT printf('%.1f', max(y)) FROM runs}} s with `x = 2`, see [it](a2.md).")
            .unwrap()
            .text;
        assert!(text.ends_with("It is 5.0 s with `x = 2`, see [it](a2.md).\n"), "{text}");
        let typed = page("resnet20 is fine\nIt is 5 s.").unwrap_err();
        assert!(typed.starts_with("line 2: a number is typed"), "{typed}");
        let none = page("{{SELECT max(y) FROM runs WHERE s = 'c'}}").unwrap_err();
        assert!(none.contains("no answer"), "{none}");
        assert!(page("{{SELECT z FROM runs}}").unwrap_err().contains("no such column"));
    }

    #[test]
    fn tables_and_charts_are_queries() {
        let text = "```table\nSELECT s AS series, sum(y) AS total FROM runs GROUP BY s\n```\n\
                    ```chart\ntitle = \"T\"\nx = \"x\"\ny = \"s\"\nsql = \"SELECT s, x, y FROM runs\"\n```\n";
        let page = render(text, &database()).unwrap();
        assert!(page.text.contains("| series | total |\n| --- | ---: |\n| a | 7.5 |\n"), "{}", page.text);
        assert!(page.text.contains("![T](picture-1.svg)"), "{}", page.text);
        assert!(page.pictures[0].1.contains("<svg"));
    }
}
