//! The page of one run: how far it is, why it took as long as it did, its charts, ranks and settings.

use std::fmt::Write;

use paceline_analyze::charts::run as drawn;
use paceline_analyze::figure::Figure;
use paceline_analyze::report::explanation_html;
use paceline_analyze::sheet::{TextTable, escape};
use paceline_analyze::table::{number, settings};
use paceline_analyze::{Explanation, RecordedRun};
use paceline_record::store::RunRow;
use paceline_record::{GpuUse, RecordError, ScriptRecord, ScriptReport, Store};

use super::parts::{self, bytes, called, moment, progress, seconds, state, study_link, tagged, tags, tile};
use super::{Page, PageResult, Room, failed, frame, note, of_store};
use crate::background::{BackgroundResult, Fragment};
use crate::group::stamp;
use crate::query::encode;
use crate::route::ServerState;

/// The run of a name; what it left is read elsewhere.
pub fn find(site: &ServerState, name: &str) -> Result<RunRow, Page> {
    let found = site.cache.open().and_then(|store| store.find(name));
    found.map_err(|error| failed(&error))
}

pub fn page(site: &ServerState, name: &str) -> PageResult {
    let run = find(site, name)?;
    let shown = explained(site, &run);
    let group = site.cache.group().ok();
    let member = group.iter().flat_map(|group| &group.members).find(|m| m.run.as_deref() == Some(&run.run));
    let mut body = head(&run, member.and_then(|m| m.study.as_deref()));
    body += &commands(&run);
    body += &parts::told(&shown);
    body += &parts::charts(&shown, &format!("/run/{}/charts", encode(&run.run)));
    body += &ranks(&run);
    body += &plan(&run);
    Ok(frame(Room::None, &format!("Run {}", called(&run)), &body))
}

pub fn charts(site: &ServerState, name: &str) -> PageResult {
    Ok(Page::charts(explained(site, &find(site, name)?)))
}

/// What changes when a run has gone on.
pub fn version(run: &RunRow) -> u64 {
    stamp(&(run.id, &run.state, run.steps_done, run.seen_s.to_bits(), run.attempts))
}

fn explained(site: &ServerState, run: &RunRow) -> BackgroundResult {
    let own = run.clone();
    of_store(site, &format!("/run/{}", run.run), version(run), move |store| fragment(store, &own))
}

fn fragment(store: &Store, run: &RunRow) -> Result<Fragment, RecordError> {
    let recorded = RecordedRun { run: called(run).to_owned(), ..RecordedRun::read(store, run)? };
    let mut told = match Explanation::new(&recorded) {
        Ok(explanation) => explanation_html(&explanation),
        Err(error) => note(&error) + "\n",
    };
    told += &recorded.script.as_ref().map(script).unwrap_or_default();
    let one = std::slice::from_ref(run);
    let mut figures: Vec<Figure> =
        [drawn::loss(store, one)?, drawn::accuracy(store, one)?].into_iter().flatten().collect();
    figures.extend(drawn::charts(store, run)?);
    Ok(Fragment { told, charts: parts::figures(&figures), of: format!("{} steps", run.steps_done) })
}

fn head(run: &RunRow, study: Option<&str>) -> String {
    let steps = run.steps.or_else(|| (run.state == "ok").then_some(run.steps_done));
    let news = format!("run {}: {}", run.run, run.state);
    let what = run.plan.as_ref().map_or_else(String::new, |p| {
        let servers = if p.servers > 0 { format!(" and {} servers", p.servers) } else { String::new() };
        let workers = if p.workers == 1 { "1 worker".into() } else { format!("{} workers", p.workers) };
        let transport = if p.delegated() { String::new() } else { format!(", {}", p.transport) };
        format!("{}, {workers}{servers}, {}, {}{transport}", p.subject(), p.strategy, p.sync)
    });
    let noted = run.labels.note.as_ref();
    let noted = noted.map_or_else(String::new, |note| format!("<p class=\"noted\">{}</p>\n", escape(note)));
    let mut html = format!(
        "<div id=\"head\" data-live data-news=\"{}\"><p class=\"crumbs\"><a href=\"/\">Overview</a> / \
         <a href=\"/runs\">Runs</a> / Run</p>\
         <h1>{} {}</h1>\n{}<p class=\"note\">{}{}; began {} on {}</p>\n<p class=\"long\">{}</p>\n",
        escape(&news),
        escape(called(run)),
        state(run),
        tags(&run.labels.tags, false, tagged) + &noted,
        escape(&what),
        belongs(run, study),
        moment(run.started_s),
        escape(&run.host),
        progress(run.steps_done, steps, "steps")
    );
    if let Some(error) = &run.error {
        let _ = writeln!(html, "<p class=\"error\" role=\"note\"><b>Why it ended:</b> {}</p>", escape(error));
    }
    html += "<dl class=\"tiles\">";
    let speed = run.samples_per_s();
    let or = |value: Option<f64>, unit: &str| {
        value.map_or_else(|| "–".into(), |v| format!("{} {unit}", number(v)).trim_end().to_owned())
    };
    html += &tile("speed", &or(speed, "samples/s"), "over the training clock");
    html += &tile("training loss", &or(run.train_loss, ""), "last step");
    html += &tile("accuracy", &or(run.accuracy.map(|a| 100.0 * a), "%"), "last evaluation, test split");
    let clock = run.train_s.map_or_else(|| "–".into(), seconds);
    // While it runs, what the wall clock says would be wrong a moment later.
    let wall =
        if run.ended_s.is_some() { format!("of {} in all", seconds(run.age_s())) } else { String::new() };
    html += &tile("training clock", &clock, &wall);
    if let Some(reached) = run.result.as_ref().and_then(|r| r.time_to_accuracy_s) {
        html += &tile("time to accuracy", &seconds(reached), "the target was reached");
    }
    html + "</dl></div>\n"
}

/// Its id where it has a name, and the study and workload that it belongs to.
fn belongs(run: &RunRow, study: Option<&str>) -> String {
    let mut html = String::new();
    if run.labels.name.is_some() {
        let _ = write!(html, "; run <code>{}</code>", escape(&run.run));
    }
    if let Some(study) = study {
        let _ = write!(html, "; study {}", study_link(study));
    }
    if let Some(workload) = &run.labels.workload {
        let to = format!("/runs?workload={}", encode(workload));
        let _ = write!(html, "; workload <a href=\"{to}\">{}</a>", escape(workload));
    }
    html
}

/// What a run's scripts are, what they reported, and which of their gradients were ready last.
fn script(record: &ScriptRecord) -> String {
    let mut html = String::new();
    record.lines().iter().for_each(|line| html += &format!("<p class=\"note\">{}</p>\n", escape(line)));
    let mut reported =
        TextTable::new("Reported", &["step", "training, s", "figures"], 3, "by rank 0's script");
    let report = |one: &ScriptReport| vec![one.step.to_string(), number(one.train_s), one.words()];
    reported.rows = record.reported.iter().map(report).collect();
    let head = ["tensor", "numbers", "ready after backward began, ms"];
    let about = "the last ones, in the slowest worker's last step: what is ready late is sent late";
    let mut late = TextTable::new("Gradients that were ready last", &head, 1, about);
    let row =
        |(name, len, ready): (&str, usize, f64)| vec![name.into(), len.to_string(), number(1e3 * ready)];
    late.rows = record.late().into_iter().map(row).collect();
    let head = ["GPU", "model", "workers", "utilisation, %", "memory, GB", "power, W"];
    let about = "means over the run, of memory the most; of everybody on the GPU";
    let mut gpus = TextTable::new("GPUs", &head, 3, about);
    let row = |one: &&GpuUse| {
        let some = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
        let workers: Vec<String> = one.workers.iter().map(ToString::to_string).collect();
        let memory = one.memory_used_bytes.map(|bytes| bytes / 1e9);
        let name = one.name.clone().unwrap_or_default();
        vec![
            one.gpu.clone(),
            name,
            workers.join(", "),
            some(one.utilisation_percent),
            some(memory),
            some(one.power_w),
        ]
    };
    gpus.rows = record.own_gpus().iter().map(row).collect();
    [gpus, reported, late]
        .iter()
        .filter(|sheet| !sheet.rows.is_empty())
        .for_each(|sheet| html += &sheet.html());
    html
}

/// How the run is made again, how it gets a name, and what it can be compared with.
fn commands(run: &RunRow) -> String {
    let mut html = String::from("<section id=\"commands\" data-live>");
    if let Some(command) = &run.labels.command {
        html += &copyable("again", "The same run again, with its seed", command);
    }
    let edit = format!("paceline runs edit {} --name NAME --tag TAG --note TEXT", run.run);
    html += "<details><summary>Give it a name, tags or a note</summary>";
    html += &copyable("edit", "On the command line: these pages change nothing", &edit);
    let _ = write!(
        html,
        "</details><p><a href=\"/runs?pick={}\">Compare it with others</a></p>",
        encode(&run.run)
    );
    html + "</section>\n"
}

/// A command with a button that copies it; `live.js` shows the button.
fn copyable(id: &str, words: &str, command: &str) -> String {
    format!(
        "<p class=\"note\">{words}:</p><div class=\"command\"><pre><code id=\"command-{id}\">{}</code></pre>\
         <button type=\"button\" data-copy=\"command-{id}\" hidden>copy</button></div>",
        escape(command)
    )
}

fn ranks(run: &RunRow) -> String {
    let Some(result) = &run.result else { return "<div id=\"ranks\" data-live></div>\n".into() };
    let head = [
        "rank",
        "role",
        "host",
        "compute, s",
        "send, s",
        "wait, s",
        "update, s",
        "sent",
        "received",
        "CPU, s",
        "peak memory",
    ];
    let mut sheet = TextTable::new("Ranks", &head, 3, "Where each rank's time went over the whole run.");
    let delegated = run.plan.as_ref().is_some_and(paceline_plan::Plan::delegated);
    for rank in &result.ranks {
        let mut row = vec![rank.rank.to_string(), rank.role.to_string(), rank.host.to_string()];
        let seen = |shown: String| if delegated { "not observed".to_owned() } else { shown };
        let [send, wait] = [rank.send_s, rank.wait_s].map(|s| seen(number(s)));
        row.extend([number(rank.compute_s), send, wait, number(rank.apply_s)]);
        row.extend([rank.sent_bytes, rank.received_bytes].map(|b| seen(bytes(b as f64))));
        row.extend([number(rank.cpu_s), bytes(rank.rss_peak_bytes as f64)]);
        sheet.rows.push(row);
    }
    format!("<div id=\"ranks\" data-live>{}</div>\n", sheet.html())
}

fn plan(run: &RunRow) -> String {
    let mut sheet =
        TextTable::new("Settings", &["setting", "value"], 2, "The plan: it fully determines the run.");
    sheet.rows = settings(run).into_iter().map(|(name, value)| vec![name, value]).collect();
    if sheet.rows.is_empty() {
        return "<p class=\"note\">The plan cannot be read: another version of paceline made it.</p>\n"
            .into();
    }
    let [version, commit, _] = &run.build;
    format!(
        "<details class=\"more\"><summary>Settings</summary>{}<p class=\"note\">made by paceline {} ({})</p></details>\n",
        sheet.html(),
        escape(version),
        escape(commit)
    )
}
