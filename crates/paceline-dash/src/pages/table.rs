//! The table of a group's runs: chosen, sorted and cut into pages by the address, with boxes to pick runs to compare.

use std::fmt::Write;

use paceline_analyze::sheet::escape;
use paceline_analyze::table::{number, short};

use super::compare::MOST;
use super::parts::{badge, day, study_link, tags};
use crate::columns::{LONGEST, RunColumn, TableColumns};
use crate::group::{Group, Member};
use crate::query::{Query, encode};
use crate::select::{ROWS, limit, sort};

/// Settings that are named above the table; more of them are folded.
const TOLD: usize = 6;
/// Numbers of rows that are offered.
const LIMITS: [usize; 4] = [25, ROWS, 250, 1000];

/// A page's path, and what its address says.
#[derive(Clone, Copy)]
struct Place<'a> {
    base: &'a str,
    query: &'a Query,
}

impl Place<'_> {
    /// A link to the same page with another value of a name, at its first rows.
    fn link(self, name: &str, value: &str, words: &str) -> String {
        let to = format!("{}{}", self.base, self.query.with("page", "").with(name, value).address());
        format!("<a data-go href=\"{}\">{words}</a>", escape(&to))
    }
}

/// The table; `base` is the page's path.
pub fn html(base: &str, group: &Group, mut chosen: Vec<&Member>, query: &Query) -> String {
    let place = Place { base, query };
    let found = chosen.len();
    let archived = group.members.iter().filter(|m| m.archived).count();
    let all = group.members.len() - if query.get("archived") == Some("yes") { 0 } else { archived };
    let wanted = query.get("sort");
    sort(group, &mut chosen, wanted);
    let rows = limit(query);
    let pages = found.div_ceil(rows).max(1);
    let at = query.get("page").and_then(|p| p.parse::<usize>().ok()).unwrap_or(1).clamp(1, pages);
    let shown = &chosen[(at - 1) * rows..(at * rows).min(found)];
    let count = if found == all {
        format!("{all} {}", if all == 1 { "run" } else { "runs" })
    } else {
        format!("{found} of {all} runs")
    };
    let order = if wanted.is_some() { "" } else { ", the latest first" };
    let mut html = format!(
        "<section id=\"runs\" data-live aria-labelledby=\"runs-title\"><h2 id=\"runs-title\">Runs</h2>\n\
         <p class=\"note\"><span id=\"count\" data-count=\"{found}\">{count}</span>{order}"
    );
    if archived > 0 {
        let (value, words) = match query.get("archived") {
            Some("yes") => ("", "hide archived runs".to_owned()),
            _ => ("yes", format!("show {archived} archived")),
        };
        let _ = write!(html, " · {}", place.link("archived", value, &words));
    }
    html += "</p>\n";
    if found == 0 {
        let words = if all == 0 {
            "<p>No run has begun yet. The first one appears here by itself.</p>".to_owned()
        } else {
            let all = escape(base);
            format!("<p>No run fits these filters.</p><p><a data-go href=\"{all}\">Show all</a></p>")
        };
        return html + "<div class=\"empty\">" + &words + "</div></section>\n";
    }
    let columns = TableColumns::choose(group, &chosen, query);
    html += "<div class=\"over\">";
    html += &told_once(&columns, found);
    html += &chooser(place, group, &columns);
    html += "</div>\n";
    html += "<form method=\"get\" action=\"/compare\" id=\"picks\"><div class=\"wide\"><table><thead><tr>\
             <th scope=\"col\"><span class=\"unseen\">pick to compare</span></th>";
    for column in [RunColumn::Run, RunColumn::State].iter().chain(&columns.shown) {
        html += &head(place, group, *column, wanted);
    }
    html += "</tr></thead><tbody>\n";
    let picks: Vec<&str> = query.all("pick").take(MOST).collect();
    for member in shown {
        html += &row(place, member, &columns.shown, &picks);
    }
    html += "</tbody></table></div>\n";
    // What was picked on another page stays picked.
    let here = |pick: &str| shown.iter().any(|m| m.run.as_deref() == Some(pick));
    for pick in picks.iter().filter(|pick| !here(pick)) {
        let _ = writeln!(html, "<input type=\"hidden\" name=\"pick\" value=\"{}\">", escape(pick));
    }
    let _ = write!(
        html,
        "<div class=\"under\"><button id=\"compare\" data-most=\"{MOST}\">Compare the picked runs</button>"
    );
    html += &turn(place, at, pages);
    html += &limits(place, rows, found);
    html + "</div></form></section>\n"
}

/// What is the same in all runs of the table, so that it needs no columns.
fn told_once(columns: &TableColumns, found: usize) -> String {
    if columns.constants.is_empty() || found < 2 {
        return "<p class=\"note\"></p>".into();
    }
    let words = |all: &[(String, String)]| {
        let one =
            |(name, level): &(String, String)| format!("{} <b>{}</b>", escape(name), escape(&short(level)));
        all.iter().map(one).collect::<Vec<_>>().join(" · ")
    };
    let (first, rest) = columns.constants.split_at(TOLD.min(columns.constants.len()));
    let mut html = format!("<div class=\"note\">The same in all {found} runs: {}", words(first));
    if !rest.is_empty() {
        let _ = write!(
            html,
            " <details class=\"same\"><summary>and {} more</summary>{}</details>",
            rest.len(),
            words(rest)
        );
    }
    html + "</div>"
}

/// Boxes that say which columns are shown; a form of its own, so that filters leave the choice alone.
fn chooser(place: Place<'_>, group: &Group, columns: &TableColumns) -> String {
    let own = place.query.without(|name, _| name == "col");
    let mut html = format!(
        "<form method=\"get\" action=\"{}\" class=\"filters\" id=\"columns\">{}<details class=\"filter right\">\
         <summary>columns: <b>{} of {}</b></summary><fieldset><legend class=\"unseen\">columns</legend>",
        escape(place.base),
        own.hidden(),
        columns.shown.len(),
        columns.all.len()
    );
    for column in &columns.all {
        let name = escape(column.name(group));
        let mark = if columns.shown.contains(column) { " checked" } else { "" };
        let _ = write!(
            html,
            "<label><input type=\"checkbox\" name=\"col\" value=\"{name}\"{mark}> {name}</label>"
        );
    }
    let usual = place.link("col", "", "The usual ones");
    let _ = write!(html, "<p><button>Show these</button> {usual}</p></fieldset></details></form>");
    html
}

fn head(place: Place<'_>, group: &Group, column: RunColumn, wanted: Option<&str>) -> String {
    let name = column.name(group);
    let (rising, falling) = (wanted == Some(name), wanted == Some(&format!("-{name}")));
    let next = if rising { format!("-{name}") } else { name.to_owned() };
    let sorted = match (rising, falling) {
        (true, _) => " aria-sort=\"ascending\"",
        (_, true) => " aria-sort=\"descending\"",
        _ => "",
    };
    let class = if matches!(column, RunColumn::Response(_)) { " class=\"figure\"" } else { "" };
    // Long names may break where their words meet.
    let words = escape(name).replace('_', "_<wbr>").replace('.', ".<wbr>");
    let mut html = format!("<th scope=\"col\"{class}{sorted}>{}", place.link("sort", &next, &words));
    let unit = column.unit(group);
    if !unit.is_empty() {
        let _ = write!(html, "<small>{}</small>", escape(unit));
    }
    html + "</th>"
}

fn row(place: Place<'_>, member: &Member, columns: &[RunColumn], picks: &[&str]) -> String {
    let (name, mut html) = (escape(&member.name()), String::new());
    html += if member.archived { "<tr class=\"archived\">" } else { "<tr>" };
    let called = member.given_name.as_deref().map_or_else(|| name.clone(), escape);
    let _ = match &member.run {
        Some(run) => {
            let mark = if picks.contains(&run.as_str()) { " checked" } else { "" };
            let class = if member.given_name.is_none() { " class=\"id\"" } else { "" };
            write!(
                html,
                "<td><input type=\"checkbox\" name=\"pick\" value=\"{name}\" aria-label=\"pick {name}\"{mark}></td>\
                 <th scope=\"row\"><a href=\"/run/{}\" title=\"{name}\"{class}>{called}</a>",
                encode(run)
            )
        }
        None => write!(html, "<td></td><th scope=\"row\">{name}"),
    };
    if !member.role.is_empty() && member.role != "point" {
        let _ = write!(html, " <span class=\"role\">{}</span>", escape(member.role));
    }
    html += &tags(&member.tags, true, |tag| {
        let more = if place.query.all("tag").any(|known| known == tag) {
            place.query.clone()
        } else {
            let mut more = place.query.with("page", "");
            more.0.push(("tag".into(), tag.to_owned()));
            more
        };
        format!("{}{}", place.base, more.address())
    });
    let _ = write!(html, "</th><td>{}", badge(&member.state));
    for (word, holds) in [("archived", member.archived), ("simulated", member.simulated)] {
        if holds {
            let _ = write!(html, " <span class=\"role\">{word}</span>");
        }
    }
    if let Some((done, all)) = member.progress {
        let all = if all == 0 { String::new() } else { format!("/{all}") };
        let _ = write!(html, " <span class=\"n\">{done}{all} steps</span>");
    }
    if let Some(error) = &member.error {
        let _ = write!(html, "<details><summary>why</summary>{}</details>", escape(error));
    }
    html += "</td>";
    columns.iter().for_each(|column| html += &cell(*column, member));
    html + "</tr>\n"
}

fn cell(column: RunColumn, member: &Member) -> String {
    match column {
        RunColumn::Response(r) => {
            format!("<td class=\"figure\">{}</td>", member.value(r).map_or_else(|| "–".into(), number))
        }
        RunColumn::Began => format!("<td class=\"n\">{}</td>", member.began_s.map_or_else(String::new, day)),
        RunColumn::Study => match &member.study {
            Some(study) => format!("<td>{}</td>", study_link(study)),
            None => "<td>–</td>".into(),
        },
        _ => {
            let (level, whole) = (short(column.text(member)), escape(column.text(member)));
            match level.char_indices().nth(LONGEST) {
                Some((end, _)) => format!("<td title=\"{whole}\">{}…</td>", escape(&level[..end])),
                None => format!("<td>{}</td>", escape(&level)),
            }
        }
    }
}

/// Links to other numbers of rows.
fn limits(place: Place<'_>, rows: usize, found: usize) -> String {
    let least = LIMITS[0];
    if found <= least {
        return String::new();
    }
    let mut html = String::from("<nav aria-label=\"Rows of a page\"><span class=\"n\">rows:</span>");
    // One that shows all of them is enough.
    let needed = LIMITS.iter().position(|limit| *limit >= found).unwrap_or(LIMITS.len() - 1);
    for limit in &LIMITS[..=needed] {
        html += &match *limit {
            same if same == rows => format!("<b>{same}</b>"),
            other => {
                let value = if other == ROWS { String::new() } else { other.to_string() };
                place.link("limit", &value, &other.to_string())
            }
        };
    }
    html + "</nav>"
}

fn turn(place: Place<'_>, at: usize, pages: usize) -> String {
    if pages == 1 {
        return String::new();
    }
    let to = |page: usize, words: &str| {
        let page = if page == 1 { String::new() } else { page.to_string() };
        let to = escape(&format!("{}{}", place.base, place.query.with("page", &page).address()));
        format!("<a data-go href=\"{to}\">{words}</a>")
    };
    let mut html = String::from("<nav aria-label=\"Pages of runs\">");
    if at > 1 {
        html += &to(1, "first");
        html += &to(at - 1, "previous");
    }
    let _ = write!(html, "<span class=\"n\">page {at} of {pages}</span>");
    if at < pages {
        html += &to(at + 1, "next");
        html += &to(pages, "last");
    }
    html + "</nav>"
}
