//! A report: what a study found, its charts and tables, as one HTML file that needs nothing else, and as Markdown.

mod method;
mod page;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::explain::Explanation;
use crate::figure::Figure;
use crate::findings::{Finding, FindingKind};
use crate::sheet::{TextTable, escape, markdown};

use page::{figure_files, figure_markdown, foot_html, head_html, write_files};

pub use method::{Method, MethodAxis, MethodWorkload, plural_of};
pub use page::{PageSection, ResultPage};

/// The look of pages.
pub const STYLE: &str = include_str!("style.css");
/// What draws the charts of a page.
pub const DRAW: &str = include_str!("draw.js");
/// What findings are told under, in the order in which they are read.
const GROUPS: [&str; 5] = [
    "Best",
    "What mattered",
    "Does it carry over?",
    "How noisy the runs were",
    "What these runs do not tell",
];

/// The group of a finding.
fn group(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::Best | FindingKind::Alone | FindingKind::Missed | FindingKind::Comparison => GROUPS[0],
        FindingKind::Shares
        | FindingKind::Effect
        | FindingKind::Together
        | FindingKind::Scaling
        | FindingKind::NoEffect => GROUPS[1],
        FindingKind::Transfer => GROUPS[2],
        FindingKind::Noise => GROUPS[3],
        FindingKind::CannotTell => GROUPS[4],
    }
}

/// Runs of a finding that are named.
const MOST_RUNS: usize = 200;

/// Everything that a report tells.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Report<'a> {
    pub title: String,
    /// Where the runs come from, and when.
    pub about: String,
    /// What was left out, in words.
    pub notes: Vec<String>,
    /// What the runs say.
    pub findings: Vec<Finding>,
    /// Why single runs took as long as they did.
    pub explanations: Vec<Explanation>,
    pub figures: Vec<Figure>,
    /// How the runs were made.
    pub method: Method,
    pub sheets: Vec<TextTable>,
    pub version: &'a str,
}

/// JSON that can stand inside a script element.
pub fn embedded(value: &serde_json::Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// A chart in a page; with a drawing for paper, and for where scripts do not run.
pub fn figure_html(figure: &Figure, still: bool) -> String {
    let (id, title) = (escape(&figure.id), escape(&figure.title));
    let chart = figure.plotly();
    // Its room is kept before it is drawn, so that nothing below it moves.
    let mut html = format!(
        "<figure id=\"{id}\" class=\"chart\"><h3>{title}</h3>\n\
         <figcaption>{} <span class=\"n\">n = {}</span></figcaption>\n\
         <div class=\"wide\"><div class=\"plot\" role=\"img\" aria-label=\"{title}\" \
         style=\"min-height:{}px;min-width:{}px\"></div></div>\n<script type=\"application/json\">{}</script>\n",
        escape(&figure.reading),
        escape(&figure.n),
        chart["layout"]["height"],
        chart["layout"]["meta"]["width"],
        embedded(&chart)
    );
    if still {
        let link = |kind: &str, mime: &str, text: &str| {
            let (text, name) = (percent(text), kind.to_uppercase());
            format!("<a download=\"{id}.{kind}\" href=\"data:{mime};charset=utf-8,{text}\">{name}</a>")
        };
        let svg = figure.svg();
        let files = [link("csv", "text/csv", &figure.csv()), link("svg", "image/svg+xml", &svg)];
        // On paper, and where scripts do not run, the drawing stands for the chart.
        let _ = writeln!(
            html,
            "<img class=\"still\" alt=\"{title}\" src=\"data:image/svg+xml;charset=utf-8,{}\">\n\
             <p class=\"files\">{}</p>",
            percent(&figure.untitled_svg()),
            files.join(" ")
        );
    }
    html + "</figure>\n"
}

/// Text as part of an address.
fn percent(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~/:,=".contains(&b);
    let mut out = String::with_capacity(text.len() * 5 / 4);
    for byte in text.bytes() {
        let _ = if plain(byte) { write!(out, "{}", char::from(byte)) } else { write!(out, "%{byte:02X}") };
    }
    out
}

/// The chance of a finding, where it has one.
fn chance(finding: &Finding) -> String {
    finding.p.map_or_else(String::new, |p| match p {
        p if p < 1e-4 => " (p < 0.0001)".into(),
        p => format!(" (p = {})", crate::table::number(p)),
    })
}

/// Sentences by what they are about, each with the runs behind it.
pub fn findings_html(findings: &[Finding], run_link: Option<&dyn Fn(&str) -> String>) -> String {
    let item = |finding: &Finding| {
        let mut html = format!("<li>{}", escape(&finding.sentence));
        let _ = write!(html, " <span class=\"n\">{}</span>", escape(chance(finding).trim()));
        if !finding.runs.is_empty() {
            let n = finding.runs.len();
            let _ = write!(html, "<details><summary>{n} {}</summary>", if n == 1 { "run" } else { "runs" });
            for run in finding.runs.iter().take(MOST_RUNS) {
                let name = escape(run);
                let _ = match run_link {
                    Some(link) => write!(html, "<a href=\"{}\">{name}</a> ", escape(&link(run))),
                    None => write!(html, "<code>{name}</code> "),
                };
            }
            if finding.runs.len() > MOST_RUNS {
                let _ = write!(html, "and {} more", finding.runs.len() - MOST_RUNS);
            }
            html += "</details>";
        }
        html + "</li>\n"
    };
    let list =
        |which: &dyn Fn(&&Finding) -> bool| findings.iter().filter(which).map(item).collect::<String>();
    let mut html = String::new();
    for title in GROUPS {
        let told = list(&|finding| group(finding.kind) == title);
        if !told.is_empty() {
            let _ = writeln!(html, "<section class=\"finding\"><h2>{title}</h2><ul>{told}</ul></section>");
        }
    }
    html
}

/// Why a run took as long as it did.
pub fn explanation_html(explanation: &Explanation) -> String {
    let mut html = format!(
        "<section><h2>Why {} took as long as it did</h2><p>{}</p>",
        escape(&explanation.run),
        escape(&explanation.verdict.sentence)
    );
    if !explanation.verdict.changes.is_empty() {
        html += "<p>What would help, the most first:</p><ul>";
        for change in &explanation.verdict.changes {
            let _ = write!(html, "<li>{}</li>", escape(&change.words()));
        }
        html += "</ul>";
    }
    if let Some(alone) = &explanation.alone {
        let _ = write!(html, "<p>{}</p>", escape(&alone.sentence));
    }
    if !explanation.membership.is_empty() {
        html += "<p>Changes of members:</p><ul>";
        explanation.membership.iter().for_each(|change| {
            let _ = write!(html, "<li>{}</li>", escape(change));
        });
        html += "</ul>";
    }
    explanation.cannot_tell.iter().for_each(|gap| html += &format!("<p class=\"note\">{}</p>", escape(gap)));
    explanation.sheets().iter().for_each(|sheet| html += &sheet.html());
    html + "</section>\n"
}

impl Report<'_> {
    /// One file that needs nothing else: its policy lets it load nothing.
    pub fn html(&self) -> String {
        let mut html = head_html(&self.title, &self.about);
        for note in &self.notes {
            let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(note));
        }
        html += &findings_html(&self.findings, None);
        self.explanations.iter().for_each(|explanation| html += &explanation_html(explanation));
        html += "<section><h2>Charts</h2>\n<nav aria-label=\"charts\">";
        for figure in &self.figures {
            let _ = write!(html, "<a href=\"#{}\">{}</a> ", escape(&figure.id), escape(&figure.title));
        }
        html += "</nav>\n";
        self.figures.iter().for_each(|figure| html += &figure_html(figure, true));
        html += "</section>\n";
        html += &self.method.html();
        if !self.sheets.is_empty() {
            html += "<section id=\"tables\"><h2>Tables</h2>\n";
            self.sheets.iter().for_each(|sheet: &TextTable| html += &sheet.html());
            html += "</section>\n";
        }
        html + &foot_html(self.version)
    }

    /// Writes the page, the Markdown, and each chart as SVG and CSV into a folder; the files, or the one that could not
    /// be written.
    pub fn write(&self, folder: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
        let charts = folder.join("charts");
        fs::create_dir_all(&charts).map_err(|error| (charts.clone(), error))?;
        let pages = [("report.html", self.html()), ("report.md", self.markdown("charts"))];
        let mut files: Vec<(PathBuf, String)> = pages.map(|(name, text)| (folder.join(name), text)).into();
        files.extend(figure_files(&charts, &self.figures.iter().collect::<Vec<_>>()));
        write_files(files)
    }

    /// The same as Markdown, with the charts as files beside it.
    pub fn markdown(&self, charts: &str) -> String {
        let mut text = format!("# {}\n\n{}\n", markdown(&self.title), markdown(&self.about));
        for note in &self.notes {
            let _ = writeln!(text, "\n{}", markdown(note));
        }
        for title in GROUPS {
            let mut told = self.findings.iter().filter(|finding| group(finding.kind) == title).peekable();
            if told.peek().is_some() {
                let _ = writeln!(text, "\n## {title}\n");
                told.for_each(|finding| {
                    text += &format!("- {}{}\n", markdown(&finding.sentence), chance(finding))
                });
            }
        }
        for explanation in &self.explanations {
            let _ = writeln!(
                text,
                "\n## Why {} took as long as it did\n\n{}\n",
                markdown(&explanation.run),
                markdown(&explanation.verdict.sentence)
            );
            for change in &explanation.verdict.changes {
                let _ = writeln!(text, "- {}", markdown(&change.words()));
            }
            if let Some(alone) = &explanation.alone {
                let _ = writeln!(text, "\n{}", markdown(&alone.sentence));
            }
            explanation.sheets().iter().for_each(|sheet| text += &format!("\n{}", sheet.markdown()));
        }
        text += "\n## Charts\n\n";
        self.figures.iter().for_each(|figure| text += &figure_markdown(figure, charts));
        text += &self.method.markdown();
        if !self.sheets.is_empty() {
            text += "\n## Tables\n\n";
        }
        self.sheets.iter().for_each(|sheet| text += &sheet.markdown());
        let _ = writeln!(text, "paceline {}", self.version);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure;
    use crate::table::{RawRun, Response, StudyTable};
    use crate::{Analysis, AnalysisRequest, charts};

    #[test]
    fn hostile_names_mean_themselves_and_nothing_is_loaded() {
        let run = |i: usize| RawRun {
            id: format!("r{i}</script><script>alert(1)</script>"),
            levels: vec![["<img src=x onerror=alert(1)>", "b"][i % 2].into()],
            values: vec![Some(1.0 + (i % 2) as f64 + 0.01 * (i % 5) as f64)],
            order: i as f64,
            ..RawRun::default()
        };
        let responses = vec![Response::parse("time_s").unwrap()];
        let table = StudyTable::new("<b>t</b>", &["<i>f</i>".into()], responses, (0..20).map(run).collect());
        let analysis = Analysis::new(&table, AnalysisRequest::default());
        let figures = charts::charts(&charts::ChartInput {
            table: &table,
            analysis: &analysis,
            ask: AnalysisRequest::default(),
        });
        assert!(figures.len() >= 6);
        let report = Report {
            title: table.name.clone(),
            about: "20 runs".into(),
            notes: Vec::new(),
            findings: analysis.findings.clone(),
            explanations: Vec::new(),
            figures,
            method: Method::default().or_of_table(&table),
            sheets: analysis.sheets(),
            version: "0",
        };
        let html = report.html();
        let page = html.replace(figure::SCRIPT.as_str(), "");
        assert!(
            !page.contains("<img src=x") && !page.contains("<b>t</b>") && !page.contains("<script>alert")
        );
        assert!(page.contains("&lt;b&gt;t&lt;/b&gt;") && page.contains("default-src 'none'"));
        for loaded in ["src=\"http", "href=\"http", "@import", "url("] {
            assert!(!page.contains(loaded), "{loaded}");
        }
        let markdown = report.markdown("charts");
        assert!(markdown.contains("](charts/history.svg)") && markdown.contains("## Best"));
        assert!(markdown.contains("# &lt;b&gt;t&lt;/b&gt;") && !markdown.contains("<img"), "{markdown}");
    }
}
