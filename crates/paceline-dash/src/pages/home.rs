//! The overview: what is under way, the studies, the latest runs.

use std::fmt::Write;

use paceline_analyze::sheet::escape;
use paceline_analyze::table::number;
use paceline_record::store::RunRow;

use super::parts::{badge, day, link, progress, seconds, state, study_link, tagged, tags};
use super::{PageResult, Room, failed, frame};
use crate::group::StudyOverview;
use crate::route::ServerState;

const LATEST: usize = 12;
/// Runs under way that are shown.
const UNDER_WAY: usize = 8;

pub fn page(site: &ServerState) -> PageResult {
    let runs = site.cache.runs().map_err(|error| failed(&error))?;
    let studies: Vec<Named> =
        site.cache.studies().into_iter().map(|name| (name.clone(), site.cache.study(&name))).collect();
    let mut body = format!(
        "<h1>Overview</h1>\n<p class=\"note\">Store: <code>{}</code></p>\n",
        escape(&site.cache.folder().display().to_string())
    );
    if runs.is_empty() && studies.is_empty() {
        body += include_str!("../assets/nothing.html");
        return Ok(frame(Room::Overview, "Overview", &body));
    }
    body += &under_way(&runs, &studies);
    body += &table_of_studies(&studies);
    body += "<section id=\"latest\" data-live aria-labelledby=\"latest-title\"><h2 id=\"latest-title\">Latest runs</h2>\n";
    if runs.is_empty() {
        body += "<p class=\"note\">No run is recorded; studies of other programs leave none.</p></section>\n";
        return Ok(frame(Room::Overview, "Overview", &body));
    }
    body += "<div class=\"wide\"><table><thead><tr><th scope=\"col\">run</th><th scope=\"col\">state</th>\
             <th scope=\"col\">what</th><th scope=\"col\">strategy</th><th scope=\"col\" class=\"figure\">workers</th>\
             <th scope=\"col\" class=\"figure\">speed, samples/s</th><th scope=\"col\" class=\"figure\">accuracy, %</th>\
             <th scope=\"col\">began, UTC</th></tr></thead><tbody>\n";
    let listed = || runs.iter().filter(|run| !run.archived);
    listed().rev().take(LATEST).for_each(|run| body += &row(run));
    let _ = writeln!(
        body,
        "</tbody></table></div><p><a href=\"/runs\">All {} {}, with filters and charts</a></p></section>",
        listed().count(),
        if listed().count() == 1 { "run" } else { "runs" }
    );
    Ok(frame(Room::Overview, "Overview", &body))
}

fn row(run: &RunRow) -> String {
    let plan = run.plan.as_ref();
    let what = plan.map_or_else(|| "?".into(), paceline_plan::Plan::subject);
    let ranks = plan.map_or_else(String::new, |p| {
        if p.servers > 0 { format!("{} + {} servers", p.workers, p.servers) } else { p.workers.to_string() }
    });
    let or = |value: Option<f64>| value.map_or_else(|| "–".into(), number);
    format!(
        "<tr><th scope=\"row\">{}{}</th><td>{}</td><td>{}</td><td>{}</td><td class=\"figure\">{}</td>\
         <td class=\"figure\">{}</td><td class=\"figure\">{}</td><td class=\"n\">{}</td></tr>\n",
        link(run),
        tags(&run.labels.tags, false, tagged),
        state(run),
        escape(&what),
        escape(plan.map_or("?", |p| &p.strategy)),
        escape(&ranks),
        or(run.samples_per_s()),
        or(run.accuracy.map(|a| 100.0 * a)),
        day(run.started_s)
    )
}

/// How many runs of a study have ended.
fn ended(study: &StudyOverview) -> String {
    let ended = study.group.members.iter().filter(|m| m.state != "running").count() as u64;
    progress(ended, Some(study.expected.max(ended)), "runs")
}

type Named = (String, Result<std::sync::Arc<StudyOverview>, String>);

fn under_way(runs: &[std::sync::Arc<RunRow>], studies: &[Named]) -> String {
    let mut cards = String::new();
    for (name, study) in studies {
        let Some(study) = study.as_ref().ok().filter(|s| s.state == "running") else { continue };
        let left = study.left_s.map_or_else(String::new, |s| format!("about {} left", seconds(s)));
        let _ = writeln!(
            cards,
            "<li class=\"card\"><h3>Study {}</h3>{}<p class=\"note\">{}</p></li>",
            study_link(name),
            ended(study),
            escape(&left)
        );
    }
    let running: Vec<_> = runs.iter().filter(|run| run.state == "running").collect();
    for run in running.iter().rev().take(UNDER_WAY) {
        let figures = [
            run.samples_per_s().map(|v| format!("{} samples/s", number(v))),
            run.train_loss.map(|v| format!("loss {}", number(v))),
            run.accuracy.map(|v| format!("accuracy {}%", number(100.0 * v))),
        ];
        let figures: Vec<String> = figures.into_iter().flatten().collect();
        let _ = writeln!(
            cards,
            "<li class=\"card\"><h3>Run {}</h3>{}<p class=\"note\">{}</p></li>",
            link(run),
            progress(run.steps_done, run.steps, "steps"),
            escape(&figures.join(", "))
        );
    }
    if running.len() > UNDER_WAY {
        let more = format!("<a href=\"/runs?state=running\">{} more runs</a>", running.len() - UNDER_WAY);
        let _ = writeln!(cards, "<li class=\"card\"><p>{more} are under way</p></li>");
    }
    if cards.is_empty() {
        cards = "<li class=\"card quiet\"><p class=\"note\">Nothing is running now.</p></li>".into();
    }
    format!(
        "<section id=\"under-way\" data-live aria-labelledby=\"under-way-title\"><h2 id=\"under-way-title\">Under way</h2>\
         <ul class=\"cards\">{cards}</ul></section>\n"
    )
}

fn table_of_studies(studies: &[Named]) -> String {
    let mut html = String::from(
        "<section id=\"studies\" data-live aria-labelledby=\"studies-title\"><h2 id=\"studies-title\">Studies</h2>\n",
    );
    if studies.is_empty() {
        html +=
            "<p class=\"note\">There is none yet: <code>paceline explore study.toml</code> makes one.</p>";
        return html + "</section>\n";
    }
    html += "<form method=\"get\" action=\"/compare\"><div class=\"wide\"><table><thead><tr>\
             <th scope=\"col\"><span class=\"unseen\">pick to compare</span></th><th scope=\"col\">study</th><th scope=\"col\">state</th>\
             <th scope=\"col\">runs</th><th scope=\"col\" class=\"figure\">failed</th><th scope=\"col\">best so far</th>\
             <th scope=\"col\">with</th></tr></thead><tbody>\n";
    for (name, study) in studies {
        let title = study_link(name);
        let study = match study {
            Ok(study) => study,
            Err(error) => {
                let _ = writeln!(
                    html,
                    "<tr><td></td><th scope=\"row\">{}</th><td>{}</td><td colspan=\"4\">{}</td></tr>",
                    escape(name),
                    badge("failed"),
                    escape(error)
                );
                continue;
            }
        };
        let (group, picked) = (&study.group, escape(name));
        let bad = group.members.iter().filter(|m| ["failed", "diverged"].contains(&m.state.as_str())).count();
        let (value, with) = group.best.as_ref().map_or_else(Default::default, |(with, value)| {
            (format!("{} {}", group.responses[0].name, group.responses[0].show(*value)), with.clone())
        });
        let _ = writeln!(
            html,
            "<tr><td><input type=\"checkbox\" name=\"study\" value=\"{picked}\" aria-label=\"pick {picked}\"></td>\
             <th scope=\"row\">{title}</th><td>{}</td><td>{}</td><td class=\"figure\">{bad}</td><td>{}</td><td>{}</td></tr>",
            badge(study.state),
            ended(study),
            if value.is_empty() { "–".into() } else { escape(&value) },
            escape(&with)
        );
    }
    html += "</tbody></table></div>";
    if studies.len() > 1 {
        html += "<p class=\"under\"><button>Compare the picked studies</button></p>";
    }
    html + "</form></section>\n"
}
