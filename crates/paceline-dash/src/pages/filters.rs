//! The filters of a group's runs: a form that works without scripts, and what is chosen as links that take it away.

use std::collections::BTreeSet;
use std::fmt::Write;

use paceline_analyze::sheet::escape;
use paceline_analyze::table::short;

use crate::columns::FIRST;
use crate::group::{Group, Member};
use crate::query::Query;
use crate::select::{RunFilter, chooses};

/// Levels of a factor that are listed one by one; of more, a range is chosen.
pub const LEVELS: usize = 16;
/// Filters beside those by the settings that matter first; more are folded.
const OFFERED: usize = 8;

/// The filters of a page, and what of them is in use.
pub fn html(base: &str, group: &Group, query: &Query, used: &RunFilter<'_>) -> String {
    let mut html = format!(
        "<section id=\"filters\" data-live aria-labelledby=\"filters-title\"><h2 id=\"filters-title\">Filters</h2>\
         <form method=\"get\" action=\"{}\" class=\"filters\">\n\
         <input type=\"search\" name=\"find\" value=\"{}\" placeholder=\"name, tag or id\" aria-label=\"find by name, tag or id\">\n\
         <input type=\"search\" name=\"where\" class=\"where\" value=\"{}\" \
         placeholder=\"e.g. workers &gt;= 2 and lr &lt; 0.1\" aria-label=\"condition on settings and figures\">\n",
        escape(base),
        escape(query.get("find").unwrap_or_default()),
        escape(query.get("where").unwrap_or_default())
    );
    html += &words(group, query, "study", |m| m.study.iter().collect());
    html += &words(group, query, "workload", |m| m.workload.iter().collect());
    html += &words(group, query, "tag", |m| m.tags.iter().collect());
    let of_factor = |f: usize| {
        let (name, levels) = (&group.factors[f], &group.levels[f]);
        match levels.len() {
            // Many words cannot be told apart by a range.
            n if n > LEVELS && levels.iter().filter(|level| level.parse::<f64>().is_ok()).count() < 2 => None,
            n if n > LEVELS => Some(range(query, name, name)),
            _ => Some(several(query, &format!("f.{name}"), name, levels)),
        }
    };
    let known = |f: &usize| FIRST.contains(&group.factors[*f].as_str());
    let (mut first, rest): (Vec<usize>, Vec<usize>) = group.varied().partition(known);
    first.sort_by_key(|f| FIRST.iter().position(|name| group.factors[*f] == *name));
    first.into_iter().filter_map(of_factor).for_each(|filter| html += &filter);
    html += &words(group, query, "state", |m| vec![&m.state]);
    let mut rest: Vec<String> = rest.into_iter().filter_map(of_factor).collect();
    rest.extend(group.responses.iter().map(|response| range(query, &response.name, &response.named())));
    if rest.len() <= OFFERED {
        html += &rest.concat();
    } else {
        let _ = write!(
            html,
            "<details class=\"rest\"{}><summary>{} more filters</summary><div class=\"filters\">{}</div></details>",
            if rest.iter().any(|filter| !filter.contains("<b>any</b>")) { " open" } else { "" },
            rest.len(),
            rest.concat()
        );
    }
    let others = query.without(|name, _| name == "pick" || name == "page" || chooses(name));
    html += &others.hidden();
    if let Some(archived) = query.get("archived") {
        html += &Query(vec![("archived".into(), archived.into())]).hidden();
    }
    html += "<button>Apply</button></form>\n";
    for problem in &used.problems {
        let _ = write!(html, "<p class=\"error\" role=\"note\">{}</p>", escape(problem));
    }
    if used.narrows() {
        html += &chips(base, query);
    }
    html + "</section>\n"
}

/// What is chosen, as links that take it away.
fn chips(base: &str, query: &Query) -> String {
    let mut html = String::from("<ul class=\"chips\" aria-label=\"Filters in use\">");
    for (name, value) in query.0.iter().filter(|(name, _)| chooses(name)) {
        let less = query.without(|n, v| n == name && v == value).with("page", "");
        let words = match name.split_once('.') {
            Some(("f", name)) => format!("{name} = {value}"),
            Some(("min", name)) => format!("{name} ≥ {value}"),
            Some(("max", name)) => format!("{name} ≤ {value}"),
            _ if name == "find" => format!("“{value}”"),
            _ if name == "where" => value.clone(),
            _ if name == "archived" => "archived too".to_owned(),
            _ => format!("{name} = {value}"),
        };
        let [to, words] = [&format!("{base}{}", less.address()), &words].map(|text| escape(text));
        let _ = write!(
            html,
            "<li><a data-go href=\"{to}\" aria-label=\"remove filter {words}\">{words} \
             <span aria-hidden=\"true\">×</span></a></li>"
        );
    }
    let none = query.without(|name, _| chooses(name)).with("page", "");
    let to = escape(&format!("{base}{}", none.address()));
    html + &format!("<li><a data-go href=\"{to}\">Clear all</a></li></ul>")
}

/// A filter by words that runs have beside their settings; none where all have the same.
fn words(group: &Group, query: &Query, name: &str, of: impl Fn(&Member) -> Vec<&String>) -> String {
    let found: BTreeSet<String> = group.members.iter().flat_map(of).cloned().collect();
    let found = Vec::from_iter(found);
    let least = if name == "state" { 2 } else { 1 };
    if found.len() < least && query.get(name).is_none() {
        return String::new();
    }
    several(query, name, name, &found)
}

/// Boxes of which several can be ticked.
fn several(query: &Query, name: &str, title: &str, levels: &[String]) -> String {
    let ticked: Vec<&str> = query.all(name).collect();
    let words = match ticked.as_slice() {
        [] => "any".to_owned(),
        [one] => (*one).to_owned(),
        more => format!("{} of {}", more.len(), levels.len()),
    };
    let field = |level: &String| {
        let mark = if ticked.contains(&level.as_str()) { " checked" } else { "" };
        let [name, value, shown] = [name, level, &short(level)].map(escape);
        format!("<label><input type=\"checkbox\" name=\"{name}\" value=\"{value}\"{mark}> {shown}</label>")
    };
    filter(title, &words, levels.iter().map(field).collect())
}

/// Fields that a click unfolds; `words` say what they hold.
fn filter(title: &str, words: &str, fields: String) -> String {
    let [title, words] = [title, words].map(escape);
    format!(
        "<details class=\"filter\"><summary>{title}: <b>{words}</b></summary><fieldset>\
         <legend class=\"unseen\">{title}</legend>{fields}</fieldset></details>\n"
    )
}

/// The least and the greatest that are let through.
fn range(query: &Query, name: &str, title: &str) -> String {
    let ends = ["min", "max"].map(|end| query.get(&format!("{end}.{name}")).map(str::to_owned));
    let words = match &ends {
        [None, None] => "any".to_owned(),
        [Some(least), None] => format!("≥ {least}"),
        [None, Some(most)] => format!("≤ {most}"),
        [Some(least), Some(most)] => format!("{least} to {most}"),
    };
    let field = |end: &str, value: &Option<String>, words: &str| {
        let [name, value] = [name, value.as_deref().unwrap_or_default()].map(escape);
        format!(
            "<label>{words} <input type=\"number\" step=\"any\" name=\"{end}.{name}\" value=\"{value}\"></label>"
        )
    };
    let fields = field("min", &ends[0], "at least") + &field("max", &ends[1], "at most");
    filter(title, &words, fields)
}
