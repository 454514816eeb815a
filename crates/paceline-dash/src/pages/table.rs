//! The table of a group's runs: chosen, sorted and cut into pages by the address, with boxes to pick runs to compare.

use std::fmt::Write;

use paceline_analyze::sheet::escape;
use paceline_analyze::table::{number, short};

use super::parts::badge;
use crate::group::{Group, Member};
use crate::query::{Query, encode};
use crate::select::{ROWS, sort};

const FACTORS: usize = 9;
/// Picks that an address may have.
const PICKS: usize = 8;

/// The table; `base` is the page's path.
pub fn html(base: &str, group: &Group, mut chosen: Vec<&Member>, query: &Query) -> String {
    let (all, found) = (group.members.len(), chosen.len());
    let wanted = query.get("sort");
    sort(group, &mut chosen, wanted);
    let pages = found.div_ceil(ROWS).max(1);
    let at = query.get("page").and_then(|p| p.parse::<usize>().ok()).unwrap_or(1).clamp(1, pages);
    let shown = &chosen[(at - 1) * ROWS..(at * ROWS).min(found)];
    let count = if found == all {
        format!("{all} {}", if all == 1 { "run" } else { "runs" })
    } else {
        format!("{found} of {all} runs")
    };
    let order = if wanted.is_some() { "" } else { ", the latest first" };
    let mut html = format!(
        "<section id=\"runs\" data-live aria-labelledby=\"runs-title\"><h2 id=\"runs-title\">Runs</h2>\n\
         <p class=\"note\"><span id=\"count\" data-count=\"{found}\">{count}</span>{order}</p>\n"
    );
    if found == 0 {
        let words = if all == 0 {
            "<p>No run has begun yet. The first one appears here by itself.</p>".to_owned()
        } else {
            let all = escape(base);
            format!("<p>No run fits these filters.</p><p><a data-go href=\"{all}\">Show all</a></p>")
        };
        return html + "<div class=\"empty\">" + &words + "</div></section>\n";
    }
    let factors: Vec<usize> = group.varied().take(FACTORS).collect();
    let roles = group.members.iter().any(|m| !m.role.is_empty());
    html += "<form method=\"get\" action=\"/compare\" id=\"picks\"><div class=\"wide\"><table><thead><tr>\
             <th scope=\"col\"><span class=\"unseen\">pick to compare</span></th>";
    let mut head = |name: &str, title: &str, figure: bool| {
        let (rising, falling) = (wanted == Some(name), wanted == Some(&format!("-{name}")));
        let next = if rising { format!("-{name}") } else { name.to_owned() };
        let sorted = match (rising, falling) {
            (true, _) => " aria-sort=\"ascending\"",
            (_, true) => " aria-sort=\"descending\"",
            _ => "",
        };
        let class = if figure { " class=\"figure\"" } else { "" };
        let to = format!("{base}{}", query.with("sort", &next).with("page", "").address());
        let [to, title] = [&to, title].map(escape);
        let _ = write!(html, "<th scope=\"col\"{class}{sorted}><a data-go href=\"{to}\">{title}</a></th>");
    };
    head("run", "run", false);
    head("state", "state", false);
    factors.iter().for_each(|f| head(&group.factors[*f], &group.factors[*f], false));
    group.responses.iter().for_each(|r| head(&r.name, &r.named(), true));
    html += "</tr></thead><tbody>\n";
    let picks: Vec<&str> = query.all("pick").take(PICKS).collect();
    for member in shown {
        html += &row(group, member, &factors, roles, &picks);
    }
    html += "</tbody></table></div>\n";
    // What was picked on another page stays picked.
    let here = |pick: &str| shown.iter().any(|m| m.run.as_deref() == Some(pick));
    for pick in picks.iter().filter(|pick| !here(pick)) {
        let _ = writeln!(html, "<input type=\"hidden\" name=\"pick\" value=\"{}\">", escape(pick));
    }
    html += "<div class=\"under\"><button id=\"compare\">Compare two picked runs</button>";
    html += &turn(base, query, at, pages);
    html + "</div></form></section>\n"
}

fn row(group: &Group, member: &Member, factors: &[usize], roles: bool, picks: &[&str]) -> String {
    let (name, mut html) = (escape(&member.name()), String::from("<tr>"));
    let _ = match &member.run {
        Some(run) => {
            let mark = if picks.contains(&run.as_str()) { " checked" } else { "" };
            write!(
                html,
                "<td><input type=\"checkbox\" name=\"pick\" value=\"{name}\" aria-label=\"pick {name}\"{mark}></td>\
                 <th scope=\"row\"><a href=\"/run/{}\">{name}</a>",
                encode(run)
            )
        }
        None => write!(html, "<td></td><th scope=\"row\">{name}"),
    };
    if roles && member.role != "point" {
        let _ = write!(html, " <span class=\"role\">{}</span>", escape(member.role));
    }
    let _ = write!(html, "</th><td>{}", badge(&member.state));
    if let Some((done, all)) = member.progress {
        let _ = write!(html, " <span class=\"n\">{done}/{all} steps</span>");
    }
    if let Some(error) = &member.error {
        let _ = write!(html, "<details><summary>why</summary>{}</details>", escape(error));
    }
    html += "</td>";
    for f in factors {
        let level = member.levels.get(*f).map_or_else(String::new, |level| escape(&short(level)));
        let _ = write!(html, "<td>{level}</td>");
    }
    for r in 0..group.responses.len() {
        let value = member.value(r).map_or_else(|| "–".into(), number);
        let _ = write!(html, "<td class=\"figure\">{value}</td>");
    }
    html + "</tr>\n"
}

fn turn(base: &str, query: &Query, at: usize, pages: usize) -> String {
    if pages == 1 {
        return String::new();
    }
    let to = |page: usize, words: &str| {
        let page = if page == 1 { String::new() } else { page.to_string() };
        let to = escape(&format!("{base}{}", query.with("page", &page).address()));
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
