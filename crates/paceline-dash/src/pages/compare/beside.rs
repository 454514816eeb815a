//! A table of what is compared, side by side or, of many, one below the other: what differs, and folded what is the same.

use std::fmt::Write;

use paceline_analyze::figure::line_style;
use paceline_analyze::sheet::escape;

/// Columns of what is compared; of more, each gets a row.
const ACROSS: usize = 8;

/// A cell: its text, and whether it is the best of its row.
pub type Cell = (String, bool);

/// A table of what is compared.
pub struct BesideTable {
    pub id: &'static str,
    pub title: &'static str,
    pub note: &'static str,
    /// The heads, as HTML, one for each that is compared, and perhaps more.
    pub heads: Vec<String>,
    /// Whether cells are figures.
    pub figures: bool,
    /// A name and a cell for each head.
    pub rows: Vec<(String, Vec<Cell>)>,
}

impl BesideTable {
    /// Rows that differ, then those that are the same in all `of` columns, folded; `what` are they.
    pub fn html(&self, of: usize, what: &str, none: &str) -> String {
        let same =
            |(_, cells): &&(String, Vec<Cell>)| cells[..of].windows(2).all(|pair| pair[0].0 == pair[1].0);
        let (equal, differing): (Vec<_>, Vec<_>) = self.rows.iter().partition(same);
        let mut html = format!("<section id=\"{}\"><h2>{}</h2>", self.id, self.title);
        if differing.is_empty() {
            let _ = write!(html, "<p class=\"note\">{none}</p>");
        } else {
            if !self.note.is_empty() {
                let _ = write!(html, "<p class=\"note\">{}</p>", self.note);
            }
            html += &self.table(&differing);
        }
        if !equal.is_empty() {
            let words = match equal.len() {
                1 => format!("1 {} is the same", what.trim_end_matches('s')),
                n => format!("{n} {what} are the same"),
            };
            let _ = write!(html, "<details class=\"equal\"><summary>{words}</summary><dl>");
            for (name, cells) in equal {
                let _ = write!(html, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(&cells[0].0));
            }
            html += "</dl></details>";
        }
        html + "</section>\n"
    }

    fn table(&self, rows: &[&(String, Vec<Cell>)]) -> String {
        let class = if self.figures { "figure" } else { "" };
        let mut html = String::new();
        let cell = |(text, best): &Cell| match (escape(text), best) {
            (text, true) => {
                format!("<td class=\"{class} best\">{text}<span class=\"unseen\"> (best)</span></td>")
            }
            (text, false) => format!("<td class=\"{class}\">{text}</td>"),
        };
        // Names may break where their words meet.
        let broken = |name: &str| escape(name).replace('_', "_<wbr>").replace('.', ".<wbr>");
        let top = |heads: &mut dyn Iterator<Item = String>| {
            let heads: String =
                heads.map(|head| format!("<th scope=\"col\" class=\"{class}\">{head}</th>")).collect();
            format!("<thead><tr><th scope=\"col\"></th>{heads}</tr></thead><tbody>\n")
        };
        if self.heads.len() <= ACROSS {
            html += "<div class=\"wide\"><table class=\"beside\">";
            html += &top(&mut self.heads.iter().cloned());
            for (name, cells) in rows {
                let cells: String = cells.iter().map(cell).collect();
                let _ = writeln!(html, "<tr><th scope=\"row\">{}</th>{cells}</tr>", escape(name));
            }
        } else {
            html += "<div class=\"wide\"><table class=\"beside turned\">";
            html += &top(&mut rows.iter().map(|(name, _)| broken(name)));
            for (i, head) in self.heads.iter().enumerate() {
                let cells: String = rows.iter().map(|(_, cells)| cell(&cells[i])).collect();
                let _ = writeln!(html, "<tr><th scope=\"row\">{head}</th>{cells}</tr>");
            }
        }
        html + "</tbody></table></div>"
    }
}

/// The line that stands for the `at`-th of those that are compared in all charts.
pub fn key(at: usize) -> String {
    let (colour, dash) = line_style(at);
    let dashes = match dash {
        "dash" => " stroke-dasharray=\"6 4\"",
        "dot" => " stroke-dasharray=\"2 3\"",
        _ => "",
    };
    format!(
        "<svg class=\"key\" viewBox=\"0 0 22 8\" aria-hidden=\"true\"><path d=\"M1 4h20\" stroke=\"{colour}\" \
         stroke-width=\"3\" fill=\"none\"{dashes}/></svg>"
    )
}

/// Cells of figures. The best of those that may be it is marked, unless all are the same.
pub fn figures(
    values: &[Option<f64>],
    show: impl Fn(f64) -> String,
    better: Option<&dyn Fn(f64, f64) -> bool>,
    may: impl Fn(usize) -> bool,
) -> Vec<Cell> {
    let known = |i: usize| values[i].filter(|value| value.is_finite());
    let able: Vec<f64> = (0..values.len()).filter(|i| may(*i)).filter_map(known).collect();
    let best = better.and_then(|better| {
        let best = able.iter().copied().reduce(|a, b| if better(b, a) { b } else { a })?;
        able.iter().any(|value| *value != best).then_some(best)
    });
    let cell = |i: usize| match known(i) {
        Some(value) => (show(value), may(i) && best == Some(value)),
        None => ("–".to_owned(), false),
    };
    (0..values.len()).map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_marked_by_the_goal_and_not_where_all_are_the_same() {
        let show = |value: f64| value.to_string();
        let less = |a: f64, b: f64| a < b;
        let marks = |values: &[Option<f64>]| {
            figures(values, show, Some(&less), |i| i < 3)
                .into_iter()
                .map(|(_, best)| best)
                .collect::<Vec<_>>()
        };
        assert_eq!(marks(&[Some(2.0), None, Some(1.0)]), [false, false, true]);
        assert_eq!(marks(&[Some(1.0), Some(1.0)]), [false, false]);
        assert_eq!(marks(&[Some(2.0), Some(f64::NAN), Some(3.0), Some(0.0)]), [true, false, false, false]);
        assert!(figures(&[Some(1.0), Some(2.0)], show, None, |_| true).iter().all(|(_, best)| !best));
    }
}
