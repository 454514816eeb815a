//! A small table of words and figures, in every form that it is told in.

use std::fmt::Write;

use paceline_plan::{printable, printable_lines};

/// Cells in columns: the first `words` of each row to the left, the others to the right.
pub fn aligned<S: AsRef<str>>(head: &[S], words: usize, rows: &[Vec<String>]) -> String {
    let printed = |cell: &str| printable(cell).into_owned();
    let head: Vec<String> = head.iter().map(|cell| printed(cell.as_ref())).collect();
    let rows = rows.iter().map(|row| row.iter().map(|cell| printed(cell)).collect());
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width = |i: usize| all.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..all[0].len()).map(width).collect();
    let cell = |(i, (cell, &width)): (usize, (&String, &usize))| match i < words {
        true => format!("{cell:<width$}"),
        false => format!("{cell:>width$}"),
    };
    let line =
        |row: &Vec<String>| row.iter().zip(&widths).enumerate().map(cell).collect::<Vec<_>>().join("  ");
    all.iter().map(|row| line(row).trim_end().to_owned() + "\n").collect()
}

/// A column of a table of items: its head, and how an item's cell is made.
pub type TableColumn<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

/// A table of items.
pub fn by_column<T>(columns: &[TableColumn<'_, T>], words: usize, items: &[T]) -> String {
    let head: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let row = |item: &T| columns.iter().map(|(_, cell)| cell(item)).collect();
    aligned(&head, words, &items.iter().map(row).collect::<Vec<_>>())
}

/// Rows under a head.
#[derive(Clone, Debug)]
pub struct TextTable {
    /// What it shows.
    pub title: String,
    /// The columns' names, with their units.
    pub head: Vec<String>,
    /// The first columns hold words; the others figures.
    pub words: usize,
    /// The rows.
    pub rows: Vec<Vec<String>>,
    /// How to read it.
    pub note: String,
}

impl TextTable {
    /// Without rows.
    pub fn new(title: &str, head: &[&str], words: usize, note: &str) -> Self {
        let head = head.iter().map(|h| (*h).to_owned()).collect();
        Self { title: title.into(), head, words, rows: Vec::new(), note: note.into() }
    }

    /// Aligned columns below the title.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        aligned(&self.head, self.words, &self.rows).lines().for_each(|line| text += &format!("  {line}\n"));
        if !self.note.is_empty() {
            text += &format!("  ({})\n", self.note);
        }
        text
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|c| markdown(c)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<String> =
            (0..self.head.len()).map(|i| if i < self.words { "---" } else { "---:" }.into()).collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        let (title, note) = (markdown(&self.title), markdown(&self.note));
        format!("### {title}\n\n{note}\n\n{}{}{rows}\n", line(&self.head), line(&rule))
    }

    /// As HTML.
    pub fn html(&self) -> String {
        let mut html = format!(
            "<section><h3>{}</h3><p class=\"note\">{}</p><div class=\"wide\"><table><thead><tr>",
            escape(&self.title),
            escape(&self.note)
        );
        let class = |i: usize| if i < self.words { "" } else { " class=\"figure\"" };
        for (i, head) in self.head.iter().enumerate() {
            let _ = write!(html, "<th scope=\"col\"{}>{}</th>", class(i), escape(head));
        }
        html += "</tr></thead><tbody>";
        for row in &self.rows {
            html += "<tr>";
            for (i, cell) in row.iter().enumerate() {
                let _ = write!(html, "<td{}>{}</td>", class(i), escape(cell));
            }
            html += "</tr>";
        }
        html + "</tbody></table></div></section>\n"
    }
}

/// Text without markup: what begins a tag or an entity is an entity itself.
pub(crate) fn entities(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Text that means itself in HTML and SVG.
pub fn escape(text: &str) -> String {
    // XML knows no control characters, and bidirectional ones would reorder the page around them.
    entities(&printable_lines(text)).replace('"', "&quot;").replace('\'', "&#39;")
}

/// Text that means itself in Markdown: no markup, no link, no HTML.
pub fn markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in entities(&printable(text)).chars() {
        escaped.extend(matches!(c, '\\' | '[' | ']' | '*' | '#' | '|').then_some('\\'));
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["tcp".into(), "2.5 µs".into()], vec!["inproc".into(), "700 ns".into()]];
        assert_eq!(
            aligned(&["transport", "latency"], 1, &rows),
            "transport  latency\ntcp         2.5 µs\ninproc      700 ns\n"
        );
    }

    #[test]
    fn every_form_has_every_cell_and_escapes_it() {
        let mut sheet = TextTable::new("a < b", &["what", "n"], 1, "how");
        sheet.rows.push(vec!["x|y<script>".into(), "12".into()]);
        assert_eq!(sheet.text(), "a < b\n  what          n\n  x|y<script>  12\n  (how)\n");
        assert!(sheet.markdown().contains("| x\\|y&lt;script&gt; | 12 |\n"));
        assert!(sheet.html().contains("<td>x|y&lt;script&gt;</td><td class=\"figure\">12</td>"));
    }
}
