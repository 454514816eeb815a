//! The pages: all runs, one run, two runs beside each other.

use std::collections::HashSet;
use std::fmt::Write;

use hyper::StatusCode;
use paceline_analyze::charts::{self, Drawn};
use paceline_analyze::explain::{Comparison, Explanation, Recorded};
use paceline_analyze::figure::Figure;
use paceline_analyze::report::{explanation_html, figure_html, findings_html};
use paceline_analyze::sheet::escape;
use paceline_analyze::table::{number, recorded};
use paceline_analyze::{Analysis, Ask, StudyTable};
use paceline_record::store::RunRow;
use paceline_record::{RecordError, Store};

use crate::filters::{Query, encode, select};

/// Runs of one page of the table.
const ROWS: usize = 200;
/// Above this, the analysis waits until it is asked for: the page opens at once.
const AT_ONCE: usize = 600;

type Made = Result<String, (StatusCode, String)>;

/// What an address is.
pub fn kind(path: &str) -> &'static str {
    if path.ends_with(".json") { "application/json" } else { "text/html; charset=utf-8" }
}

fn failed(error: &RecordError) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, error.to_string())
}

/// Makes the page of an address.
pub fn make(store: &Store, path: &str, query: &Query) -> Made {
    match path {
        "/" => all(store, query),
        "/compare" => compare(store, query),
        _ => match path.strip_prefix("/run/") {
            Some(name) if !name.is_empty() && !name.contains('/') => one(store, name),
            _ => Err((StatusCode::NOT_FOUND, "there is no such page; / has all runs".into())),
        },
    }
}

fn page(title: &str, body: &str, live: bool) -> String {
    let live = if live { "<script src=\"/live.js\" defer></script>" } else { "" };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{0} · paceline</title>\n\
         <link rel=\"stylesheet\" href=\"/style.css\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <script src=\"/plotly.js\" defer></script>\n<script src=\"/draw.js\" defer></script>\n{live}\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">to the content</a>\n\
         <header><nav aria-label=\"pages\"><a href=\"/\">all runs</a></nav><h1>{0}</h1>\
         <p id=\"news\" class=\"note\" role=\"status\" aria-live=\"polite\"></p></header>\n<main id=\"main\">\n{body}</main>\n\
         </body>\n</html>\n",
        escape(title)
    )
}

fn figures_html(figures: &[Figure]) -> String {
    let mut html = String::from("<section><h2>Charts</h2>\n");
    figures.iter().for_each(|figure| html += &figure_html(figure, false));
    html + "</section>\n"
}

/// All runs: filters, findings, charts, and the table.
fn all(store: &Store, query: &Query) -> Made {
    let runs = store.runs().map_err(|e| failed(&e))?;
    let table = match recorded("recorded runs", &runs, &[], &[]) {
        Ok(table) => table,
        Err(_) => {
            let body = format!("<p>No run has ended yet.</p>{}", run_table(&runs, &[], query, None));
            return Ok(page("Recorded runs", &body, true));
        }
    };
    let levels = query.levels(&table);
    let selected = select(&table, &levels);
    let shown: Vec<&RunRow> = if levels.iter().all(Option::is_none) {
        runs.iter().collect()
    } else {
        let ids: HashSet<&str> = selected.runs.iter().map(|run| run.id.as_str()).collect();
        runs.iter().filter(|run| ids.contains(run.run.as_str())).collect()
    };
    let mut body = filter_form(&table, query);
    let count = selected.runs.len();
    if count > AT_ONCE && query.get("analyse") != Some("1") {
        let _ = writeln!(
            body,
            "<p><a href=\"/{}\">Analyse these {count} runs</a> <span class=\"note\">(takes some seconds)</span></p>",
            escape(&query.with("analyse", "1"))
        );
    } else if count > 0 {
        let factor = |name: &str| selected.factor(name).filter(|f| selected.factors[*f].levels.len() > 1);
        let ask = Ask { workload: factor("model").or_else(|| factor("data")), workers: factor("workers"), seed: 1 };
        let analysis = Analysis::new(&selected, ask);
        body += &findings_html(&analysis.findings, Some(&|run: &str| format!("/run/{}", encode(run))));
        body += &figures_html(&charts::charts(&Drawn { table: &selected, analysis: &analysis, ask }));
    }
    let rows: Vec<RunRow> = shown.into_iter().cloned().collect();
    body += &run_table(&rows, &table_columns(&table), query, Some(&table));
    Ok(page("Recorded runs", &body, true))
}

/// Settings that differ, at most as many as fit.
fn table_columns(table: &StudyTable) -> Vec<usize> {
    (0..table.factors.len()).filter(|f| table.factors[*f].levels.len() > 1).take(8).collect()
}

fn filter_form(table: &StudyTable, query: &Query) -> String {
    let mut html = String::from("<section><h2>Filter</h2><form method=\"get\" action=\"/\" id=\"filters\">\n");
    for f in table_columns(table) {
        let factor = &table.factors[f];
        let name = escape(&format!("f.{}", factor.name));
        let _ = write!(
            html,
            "<label>{} <select name=\"{name}\"><option value=\"\">all</option>",
            escape(&factor.name)
        );
        let chosen = query.get(&format!("f.{}", factor.name));
        for level in factor.levels.iter().take(100) {
            let mark = if chosen == Some(level.text.as_str()) { " selected" } else { "" };
            let text = escape(&level.text);
            let _ = write!(html, "<option value=\"{text}\"{mark}>{text}</option>");
        }
        html += "</select></label>\n";
    }
    html + "<button>Filter</button> <a href=\"/\">all runs</a></form></section>\n"
}

fn run_table(runs: &[RunRow], columns: &[usize], query: &Query, table: Option<&StudyTable>) -> String {
    let pages = runs.len().div_ceil(ROWS).max(1);
    let at = query.get("page").and_then(|p| p.parse::<usize>().ok()).unwrap_or(1).clamp(1, pages);
    let mut html = format!(
        "<section><h2>Runs</h2><p class=\"note\"><span id=\"count\">{}</span> runs, the latest first</p>\n\
         <form method=\"get\" action=\"/compare\"><div class=\"wide\"><table id=\"runs\"><thead><tr>\
         <th scope=\"col\">first</th><th scope=\"col\">second</th><th scope=\"col\">run</th><th scope=\"col\">state</th>",
        runs.len()
    );
    for f in columns {
        let name = table.map_or("", |t| t.factors[*f].name.as_str());
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(name));
    }
    html += "<th scope=\"col\" class=\"figure\">steps</th><th scope=\"col\" class=\"figure\">samples/s</th>\
             <th scope=\"col\" class=\"figure\">accuracy, %</th></tr></thead><tbody>\n";
    for run in runs.iter().rev().skip((at - 1) * ROWS).take(ROWS) {
        let (name, link) = (escape(&run.run), escape(&format!("/run/{}", encode(&run.run))));
        let _ = write!(
            html,
            "<tr><td><input type=\"radio\" name=\"a\" value=\"{name}\" aria-label=\"{name} first\"></td>\
             <td><input type=\"radio\" name=\"b\" value=\"{name}\" aria-label=\"{name} second\"></td>\
             <td><a href=\"{link}\">{name}</a></td><td>{}</td>",
            escape(&run.state)
        );
        let own = table.and_then(|t| t.runs.iter().find(|r| r.id == run.run).map(|r| (t, r)));
        for f in columns {
            let level = own.map_or("", |(t, r)| t.factors[*f].levels[r.levels[*f]].text.as_str());
            let _ = write!(html, "<td>{}</td>", escape(level));
        }
        let speed = run.samples_done.zip(run.train_s).filter(|(_, s)| *s > 0.0).map(|(n, s)| n as f64 / s);
        let show = |value: Option<f64>| value.map_or_else(String::new, number);
        let _ = writeln!(
            html,
            "<td class=\"figure\">{}</td><td class=\"figure\">{}</td><td class=\"figure\">{}</td></tr>",
            run.steps_done,
            show(speed),
            show(run.accuracy.map(|a| 100.0 * a))
        );
    }
    html += "</tbody></table></div><p><button>Compare first and second</button></p></form>\n";
    if pages > 1 {
        html += "<nav aria-label=\"pages of runs\">";
        for (words, to) in [("newer", at.checked_sub(1).filter(|p| *p > 0)), ("older", Some(at + 1).filter(|p| *p <= pages))] {
            if let Some(to) = to {
                let _ = write!(html, "<a href=\"/{}\">{words}</a> ", escape(&query.with("page", &to.to_string())));
            }
        }
        let _ = write!(html, "page {at} of {pages}</nav>");
    }
    html + "</section>\n"
}

/// One run.
fn one(store: &Store, name: &str) -> Made {
    let name = Query::parse(&format!("n={name}")).get("n").unwrap_or_default().to_owned();
    let run = store.find(&name).map_err(|e| failed(&e))?;
    let mut body = format!("<p>{}, {} of {} steps", escape(&run.state), run.steps_done, run.steps.unwrap_or(0));
    if let Some(error) = &run.error {
        let _ = write!(body, ": {}", escape(error));
    }
    body += "</p>\n";
    match Explanation::new(&Recorded::read(store, &run).map_err(|e| failed(&e))?) {
        Ok(explanation) => body += &explanation_html(&explanation),
        Err(error) => body += &format!("<p class=\"note\">{}</p>\n", escape(&error.to_string())),
    }
    let mut figures: Vec<Figure> =
        charts::run::accuracy(store, std::slice::from_ref(&run)).map_err(|e| failed(&e))?.into_iter().collect();
    figures.extend(charts::run::charts(store, &run).map_err(|e| failed(&e))?);
    body += &figures_html(&figures);
    Ok(page(&format!("Run {}", run.run), &body, run.state == "running"))
}

/// Two runs beside each other.
fn compare(store: &Store, query: &Query) -> Made {
    let (Some(a), Some(b)) = (query.get("a"), query.get("b")) else {
        return Err((StatusCode::BAD_REQUEST, "two runs are needed: /compare?a=…&b=…".into()));
    };
    let mut explained = Vec::new();
    let mut rows = Vec::new();
    for name in [a, b] {
        let run = store.find(name).map_err(|e| failed(&e))?;
        let explanation = Explanation::new(&Recorded::read(store, &run).map_err(|e| failed(&e))?);
        explained.push(explanation.map_err(|e| (StatusCode::CONFLICT, e.to_string()))?);
        rows.push(run);
    }
    let said = Comparison::new(&explained[0], &explained[1]);
    let mut body = format!("<p>{}</p>\n", escape(&said.sentence));
    let figures: Vec<Figure> = charts::run::accuracy(store, &rows).map_err(|e| failed(&e))?.into_iter().collect();
    body += &figures_html(&figures);
    explained.iter().for_each(|explanation| body += &explanation_html(explanation));
    Ok(page(&format!("{} beside {}", rows[0].run, rows[1].run), &body, false))
}
