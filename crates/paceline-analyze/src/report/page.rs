//! A page of sections: sentences, tables and charts, as one HTML file that needs nothing else, and as Markdown.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{DRAW, STYLE, figure_html};
use crate::figure::{self, Figure};
use crate::sheet::{TextTable, escape, markdown};

/// A page of sections.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct ResultPage {
    pub title: String,
    pub about: String,
    pub sections: Vec<PageSection>,
    /// The version of the program.
    pub version: String,
}

/// A section of a page; what it does not have is left out.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct PageSection {
    pub title: String,
    pub paragraphs: Vec<String>,
    /// A list.
    pub items: Vec<String>,
    pub sheets: Vec<TextTable>,
    pub figures: Vec<Figure>,
}

impl PageSection {
    /// A section without anything in it.
    pub fn new(title: &str) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.paragraphs.is_empty()
            && self.items.is_empty()
            && self.sheets.is_empty()
            && self.figures.is_empty()
    }

    fn html(&self) -> String {
        let mut html = format!("<section><h2>{}</h2>\n", escape(&self.title));
        for paragraph in &self.paragraphs {
            let _ = writeln!(html, "<p>{}</p>", escape(paragraph));
        }
        if !self.items.is_empty() {
            let items = self.items.iter().map(|item| format!("<li>{}</li>\n", escape(item)));
            let _ = writeln!(html, "<ul>{}</ul>", items.collect::<String>());
        }
        self.sheets.iter().for_each(|sheet| html += &sheet.html());
        self.figures.iter().for_each(|figure| html += &figure_html(figure, true));
        html + "</section>\n"
    }

    fn markdown(&self, charts: &str) -> String {
        let mut text = format!("\n## {}\n\n", markdown(&self.title));
        for paragraph in &self.paragraphs {
            let _ = writeln!(text, "{}\n", markdown(paragraph));
        }
        for item in &self.items {
            let _ = writeln!(text, "- {}", markdown(item));
        }
        if !self.items.is_empty() {
            text.push('\n');
        }
        self.sheets.iter().for_each(|sheet| text += &sheet.markdown());
        self.figures.iter().for_each(|figure| text += &figure_markdown(figure, charts));
        text
    }
}

/// A chart in a Markdown page, its drawing and numbers in files.
pub(super) fn figure_markdown(figure: &Figure, charts: &str) -> String {
    let id = &figure.id;
    let [title, reading, n] = [&figure.title, &figure.reading, &figure.n].map(|t| markdown(t));
    format!(
        "### {title}\n\n{reading} (n = {n}; [numbers]({charts}/{id}.csv))\n\n![{title}]({charts}/{id}.svg)\n\n"
    )
}

/// The head of a page.
pub(super) fn head_html(title: &str, about: &str) -> String {
    format!(include_str!("head.html"), title = escape(title), about = escape(about), style = STYLE)
}

/// The end of a page, with what draws its charts.
pub(super) fn foot_html(version: &str) -> String {
    format!(
        "</main>\n<footer><p>paceline {}</p></footer>\n<script>{}</script>\n<script>{DRAW}</script>\n</body>\n</html>\n",
        escape(version),
        *figure::SCRIPT
    )
}

/// Writes files; the paths, or the one that could not be written.
pub(super) fn write_files(files: Vec<(PathBuf, String)>) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let put = |(path, text): (PathBuf, String)| match fs::write(&path, text) {
        Ok(()) => Ok(path),
        Err(error) => Err((path, error)),
    };
    files.into_iter().map(put).collect()
}

/// Each chart as SVG and CSV.
pub(super) fn figure_files(folder: &Path, figures: &[&Figure]) -> Vec<(PathBuf, String)> {
    let of = |figure: &&Figure| {
        let path = |kind: &str| folder.join(format!("{}.{kind}", figure.id));
        [(path("svg"), figure.svg()), (path("csv"), figure.csv())]
    };
    figures.iter().flat_map(of).collect()
}

impl ResultPage {
    /// One file that needs nothing else: its policy lets it load nothing.
    pub fn html(&self) -> String {
        let sections: String = self.sections.iter().map(PageSection::html).collect();
        format!("{}{sections}{}", head_html(&self.title, &self.about), foot_html(&self.version))
    }

    /// The same as Markdown, with the charts as files beside it.
    pub fn markdown(&self, charts: &str) -> String {
        let sections: String = self.sections.iter().map(|section| section.markdown(charts)).collect();
        let (title, about) = (markdown(&self.title), markdown(&self.about));
        format!("# {title}\n\n{about}\n{sections}\npaceline {}\n", self.version)
    }

    /// Writes `NAME.html`, `NAME.md`, and each chart as SVG and CSV into a folder; the files, or the one that could not be
    /// written.
    pub fn write(&self, folder: &Path, name: &str) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
        let charts = folder.join("charts");
        fs::create_dir_all(&charts).map_err(|error| (charts.clone(), error))?;
        let mut files = vec![
            (folder.join(format!("{name}.html")), self.html()),
            (folder.join(format!("{name}.md")), self.markdown("charts")),
        ];
        let figures: Vec<&Figure> = self.sections.iter().flat_map(|section| &section.figures).collect();
        files.extend(figure_files(&charts, &figures));
        write_files(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_mean_themselves_in_both_forms() {
        let mut sheet = TextTable::new("<b>t</b>", &["what"], 1, "");
        sheet.rows.push(vec!["<script>alert(1)</script>".into()]);
        let section = PageSection {
            paragraphs: vec!["<img src=x>".into()],
            items: vec!["[a](javascript:x)".into()],
            sheets: vec![sheet],
            ..PageSection::new("</section>")
        };
        let page = ResultPage {
            title: "<i>".into(),
            about: "&".into(),
            sections: vec![section],
            version: "0".into(),
        };
        let html = page.html().replace(figure::SCRIPT.as_str(), "");
        assert!(
            !html.contains("<script>alert") && !html.contains("<img src=x>") && html.contains("&lt;i&gt;")
        );
        let text = page.markdown("charts");
        assert!(text.contains("\\[a\\](javascript:x)") && !text.contains("<img"), "{text}");
    }
}
