//! A small table of words and figures, in every form that it is told in.

use std::fmt::Write;

use paceline_plan::{printable, printable_lines};

/// Columns of a terminal that tables keep to.
pub const WIDTH: usize = 80;

/// Cells in columns: the first `words` of each row to the left, the others to the right. What is too wide for
/// [`WIDTH`] has its heads in several lines; what is still too wide goes on below, with what tells its rows apart.
pub fn aligned<S: AsRef<str>>(head: &[S], words: usize, rows: &[Vec<String>]) -> String {
    aligned_within(WIDTH, head, words, rows)
}

fn aligned_within<S: AsRef<str>>(width: usize, head: &[S], words: usize, rows: &[Vec<String>]) -> String {
    let printed = |cell: &str| printable(cell).into_owned();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| printed(cell)).collect()).collect();
    let widest = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let heads: Vec<String> = head.iter().map(|cell| printed(cell.as_ref())).collect();
    let whole: usize =
        heads.iter().enumerate().map(|(i, head)| 2 + widest(i).max(head.chars().count())).sum();
    let mut columns: Vec<Column> = heads
        .iter()
        .enumerate()
        .map(|(i, head)| {
            let longest = head.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
            let room = if whole <= width + 2 { usize::MAX } else { longest.max(widest(i)) };
            let head: Vec<String> = wrapped(head, room, 0).lines().map(str::to_owned).collect();
            let width = head.iter().map(|line| line.chars().count()).max().unwrap_or(0).max(widest(i));
            Column { index: i, left: i < words, head, width }
        })
        .collect();
    // Words may go on in the next line: beside all figures if that is enough, or beside the widest.
    let all: Vec<usize> = columns.iter().map(|column| column.width + 2).collect();
    let (named, figures) = all.split_at(words.min(all.len()));
    let excess = |figures: usize| (named.iter().sum::<usize>() + figures).saturating_sub(width + 2);
    let (every, widest) = (excess(figures.iter().sum()), excess(figures.iter().copied().max().unwrap_or(0)));
    if let Some(column) = columns.iter_mut().take(words).max_by_key(|column| column.width) {
        let spare = column.width.saturating_sub(LEAST);
        column.width -= if every <= spare { every } else { widest.min(spare) };
    }
    // What tells rows apart stands in every part: all words, or the first column where they leave no room.
    let named: usize = columns.iter().take(words).map(|column| column.width + 2).sum();
    let repeated = if named <= width / 2 { words.max(1) } else { 1 };
    let Some((names, others)) = columns.split_at_checked(repeated) else { return String::new() };
    let names: Vec<&Column> = names.iter().collect();
    let mut blocks = vec![names.clone()];
    for column in others {
        let block = blocks.last_mut().expect("there is one");
        let taken: usize = block.iter().map(|column| column.width + 2).sum();
        if block.len() > names.len() && taken + column.width > width {
            blocks.push([&names[..], &[column]].concat());
        } else {
            block.push(column);
        }
    }
    blocks.iter().map(|block| in_lines(block, &rows)).collect::<Vec<_>>().join("\n")
}

/// Columns that words have at least, where they are broken into lines.
const LEAST: usize = 16;

/// A column of a table as it is shown.
struct Column {
    index: usize,
    left: bool,
    head: Vec<String>,
    width: usize,
}

fn in_lines(columns: &[&Column], rows: &[Vec<String>]) -> String {
    let line = |cell: &dyn Fn(&Column) -> String| {
        let cell = |column: &&Column| match column.left {
            true => format!("{:<width$}", cell(column), width = column.width),
            false => format!("{:>width$}", cell(column), width = column.width),
        };
        columns.iter().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let depth = columns.iter().map(|column| column.head.len()).max().unwrap_or(0);
    // Heads of fewer lines stand right above their cells.
    let above = |at: usize| {
        move |column: &Column| {
            (at + column.head.len()).checked_sub(depth).map_or(String::new(), |i| column.head[i].clone())
        }
    };
    let mut text: String = (0..depth).map(|at| line(&above(at))).collect();
    for row in rows {
        let cell = |column: &Column| match column.left {
            true => wrapped(&row[column.index], column.width, 0),
            false => row[column.index].clone(),
        };
        let deep = columns.iter().map(|column| cell(column).lines().count()).max().unwrap_or(0);
        for at in 0..deep.max(1) {
            text += &line(&|column| cell(column).lines().nth(at).unwrap_or_default().to_owned());
        }
    }
    text
}

/// Text whose lines are broken between words where they are longer than `width`. What goes on is indented: as far as
/// the text of a list's entry (`  12  text`), or else by `hang` more than its line.
pub fn wrapped(text: &str, width: usize, hang: usize) -> String {
    let mut broken = String::with_capacity(text.len());
    for whole in text.split_inclusive('\n') {
        let (mut line, end) = whole.split_at(whole.trim_end_matches('\n').len());
        let indent = " ".repeat(indent(line, hang).min(width / 2));
        let mut lead = "";
        loop {
            let room = width.saturating_sub(lead.len());
            let Some((limit, _)) = line.char_indices().nth(room) else { break };
            let begin = line.len() - line.trim_start().len();
            let fits = line[begin..limit].rfind(' ').map(|at| begin + at);
            // A space right behind what fits ends it too; a word that is longer than a line stays whole.
            let next = || line[begin..].find(' ').map(|at| begin + at);
            let at = if line[limit..].starts_with(' ') { Some(limit) } else { fits.or_else(next) };
            let Some(at) = at else { break };
            broken.extend([lead, line[..at].trim_end(), "\n"]);
            (line, lead) = (line[at..].trim_start(), &indent);
        }
        broken.extend([lead, line, end]);
    }
    broken
}

/// How far the next lines of a line are indented.
fn indent(line: &str, hang: usize) -> usize {
    let leading = line.len() - line.trim_start().len();
    let label = line[leading..].split("  ").next().unwrap_or_default();
    let number = !label.is_empty() && label.chars().all(|c| c.is_ascii_digit());
    if number && hang > 0 { leading + label.len() + 2 } else { leading + hang }
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
        let table = aligned_within(WIDTH - 2, &self.head, self.words, &self.rows);
        table.lines().for_each(|line| text += &format!("{}\n", format!("  {line}").trim_end()));
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
        let note = if note.is_empty() { note } else { format!("{note}\n\n") };
        format!("### {title}\n\n{note}{}{}{rows}\n", line(&self.head), line(&rule))
    }

    /// As HTML.
    pub fn html(&self) -> String {
        let mut html = format!("<section><h3>{}</h3>", escape(&self.title));
        if !self.note.is_empty() {
            let _ = write!(html, "<p class=\"note\">{}</p>", escape(&self.note));
        }
        html += "<div class=\"wide\"><table><thead><tr>";
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
    fn a_table_too_wide_for_80_columns_breaks_its_heads_and_then_goes_on_below() {
        let row =
            |width: usize| vec!["worker 0".to_owned(), "1".repeat(width), "2".repeat(width), "3".repeat(9)];
        let head = ["rank", "accuracy on the test split", "seconds", "waits for whom"];
        let fits = |text: &str| assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let text = aligned(&head, 1, &[row(27)]);
        fits(&text);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "two lines of heads: {text}");
        assert!(lines[0].ends_with("waits for") && lines[1].ends_with("  whom"), "{text}");
        let text = aligned(&head, 1, &[row(40)]);
        fits(&text);
        assert_eq!(text.matches("worker 0").count(), 2, "{text}");
        for digit in ["1", "2"] {
            assert!(text.contains(&digit.repeat(40)), "nothing is cut off: {text}");
        }
    }

    #[test]
    fn long_words_of_a_table_go_on_in_the_next_line() {
        let rows = [vec!["a ".repeat(60).trim_end().to_owned(), "1.5".into()], vec!["b".into(), "2".into()]];
        let text = aligned(&["what", "s"], 1, &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].ends_with("1.5") && lines[1].chars().count() <= WIDTH, "{text}");
        assert_eq!(text.matches("a ").count() + text.matches("a\n").count(), 60, "{text}");
    }

    #[test]
    fn long_lines_break_between_words_and_go_on_where_their_text_begins() {
        let row = "  12  batch 64, workers 2: diverged";
        assert_eq!(wrapped(row, 20, 2), "  12  batch 64,\n      workers 2:\n      diverged");
        assert_eq!(wrapped("a sentence of words\nend\n", 10, 2), "a sentence\n  of words\nend\n");
        assert_eq!(wrapped("unbreakable", 4, 2), "unbreakable");
        assert_eq!(wrapped("", 4, 2), "");
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
