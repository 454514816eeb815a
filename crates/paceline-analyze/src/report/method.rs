//! The method section of a report: everything that somebody needs to judge the runs, and to make them again. Whoever
//! writes a report fills in what it knows; what nobody fills in is said not to be known.

use std::fmt::Write;

use paceline_record::store::RunRow;
use paceline_record::{RecordError, Store};
use paceline_statistics::distinct;

use crate::sheet::{TextTable, escape, markdown};
use crate::table::{StudyTable, settings, short};

/// Levels of an axis that are listed.
const MOST_LEVELS: usize = 12;

/// What a set of runs trained.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct MethodWorkload {
    pub name: String,
    pub data: String,
    pub model: String,
    /// The accuracy whose time is asked for; empty without one.
    pub target: String,
    /// What else is its own: settings in which it differs from the other workloads.
    pub settings: Vec<(String, String)>,
}

/// Something that was varied.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct MethodAxis {
    pub name: String,
    pub levels: Vec<String>,
    /// Where it is there at all; empty for everywhere.
    pub when: String,
}

/// How runs were made.
#[derive(Clone, Debug, Default)]
pub struct Method {
    /// A row each; empty where nothing is known.
    pub workloads: Vec<MethodWorkload>,
    /// Settings that were the same in all runs.
    pub settings: Vec<(String, String)>,
    /// What was varied.
    pub axes: Vec<MethodAxis>,
    /// What was measured, and what was wanted.
    pub measured: Option<String>,
    /// Conditions on configurations and on what they measured.
    pub conditions: Option<String>,
    /// How many runs there are, and how they ended.
    pub runs: Option<String>,
    /// How configurations were chosen.
    pub sampler: Option<String>,
    /// Seeds of what is random.
    pub seeds: Option<String>,
    /// How often each configuration was run.
    pub repeats: Option<String>,
    /// Runs that tell noise and drift.
    pub controls: Option<String>,
    /// Machines, each in words.
    pub machines: Vec<String>,
    /// Versions of the program that made the runs, each with its commit and compiler.
    pub versions: Vec<String>,
    /// When the first run began and when the last one ended, in seconds since 1970.
    pub period_s: Option<(f64, f64)>,
    /// Commands that make it again.
    pub commands: Vec<String>,
    /// A file that these commands need: its name and its text.
    pub file: Option<(String, String)>,
    /// Why something is not known, e.g. `a table does not tell`.
    pub unknown: String,
}

impl Method {
    /// What the records of runs tell, each run with the name of its workload: data, models, settings, seeds, machines,
    /// versions, dates.
    pub fn of_records(store: &Store, runs: &[(String, &RunRow)]) -> Result<Self, RecordError> {
        let mut method = Self::default();
        let mut seeds: Vec<u64> = Vec::new();
        for (_, run) in runs {
            let hosts = store.rows("hosts", run)?;
            let [cores, usable, memory] =
                ["cores", "usable_cores", "memory_bytes"].map(|name| hosts.numbers(name));
            let [cpu, kernel] = ["cpu", "kernel"].map(|name| hosts.texts(name));
            for i in 0..hosts.rows.len() {
                let text = |of: &[Option<String>]| of[i].clone().unwrap_or_else(|| "not known".into());
                let count = |of: &[Option<f64>]| of[i].map_or_else(|| "?".to_owned(), |n| n.to_string());
                let (all, used) = (count(&cores), count(&usable));
                let used = if all == used { String::new() } else { format!(" ({used} of them used)") };
                let gib = memory[i].unwrap_or(0.0) / f64::from(1 << 30);
                let (cpu, kernel) = (text(&cpu), text(&kernel));
                method.machines.push(format!("{cpu}, {all} cores{used}, {gib:.1} GiB of memory, {kernel}"));
            }
            let [version, commit, rustc] = &run.build;
            let known =
                [("commit", commit), ("built by", rustc)].into_iter().filter(|(_, text)| !text.is_empty());
            let known: Vec<String> = known.map(|(what, text)| format!("{what} {text}")).collect();
            method.versions.push(format!("{version} ({})", known.join(", ")).replace(" ()", ""));
            let (begun, ended) = (run.started_s, run.ended_s.unwrap_or(run.seen_s));
            let (first, last) = method.period_s.unwrap_or((begun, ended));
            method.period_s = Some((first.min(begun), last.max(ended)));
            seeds.extend(run.plan.as_ref().map(|plan| plan.seed));
        }
        method.machines = distinct(method.machines);
        method.versions = distinct(method.versions);
        seeds.sort_unstable();
        seeds.dedup();
        method.seeds = match &seeds[..] {
            [] => None,
            [seed] => Some(format!("every run has seed {seed}")),
            _ => Some(format!("runs have the seeds {}", listed(&seeds))),
        };
        method.take_settings(runs);
        Ok(method)
    }

    /// Settings that all runs share, and those that are a workload's own.
    fn take_settings(&mut self, runs: &[(String, &RunRow)]) {
        let all: Vec<(&String, Vec<(String, String)>)> = runs
            .iter()
            .filter(|(_, run)| run.plan.is_some())
            .map(|(name, run)| (name, settings(run)))
            .collect();
        let shared = |of: &dyn Fn(&String) -> bool| {
            let mut own = all.iter().filter(|(name, _)| of(name)).map(|(_, settings)| settings);
            let first = own.next().cloned().unwrap_or_default();
            own.fold(first, |mut kept, next| {
                kept.retain(|setting| next.contains(setting));
                kept
            })
        };
        let common = shared(&|_| true);
        let set = |(name, value): &(String, String)| {
            value != crate::table::NONE && name != "data" && name != "model"
        };
        let target = "target-accuracy";
        for name in distinct(all.iter().map(|(name, _)| (*name).clone())) {
            let own = shared(&|of| *of == name);
            let find = |name: &str| own.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
            let differs = |setting: &&(String, String)| {
                !common.contains(setting) && set(setting) && setting.0 != target
            };
            self.workloads.push(MethodWorkload {
                data: match find("script") {
                    Some(_) => "the script's own".into(),
                    None => find("data").unwrap_or_else(|| "several".into()),
                },
                model: find("model").unwrap_or_else(|| "several".into()),
                target: find(target).filter(|t| t != crate::table::NONE).unwrap_or_default(),
                settings: own.iter().filter(differs).cloned().collect(),
                name,
            });
        }
        let with_unit = |(name, value): (String, String)| {
            let bytes = ["bucket", "buffer"].contains(&name.as_str());
            if bytes { (name, format!("{value} bytes")) } else { (name, value) }
        };
        self.settings = common.into_iter().filter(|s| set(s) && s.0 != target).map(with_unit).collect();
    }

    /// Of several studies that are looked at together, each with its name: what they share is told once.
    pub fn together(all: Vec<(String, Self)>) -> Self {
        let names: Vec<&String> = all.iter().map(|(name, _)| name).collect();
        let text = |of: &dyn Fn(&Self) -> Option<String>| {
            let told: Vec<Option<String>> = all.iter().map(|(_, method)| of(method)).collect();
            if told.iter().all(|one| *one == told[0]) {
                return told.into_iter().next().flatten();
            }
            let each = names.iter().zip(told).filter_map(|(name, one)| Some(format!("{name}: {}", one?)));
            Some(each.collect::<Vec<_>>().join("; "))
        };
        let shared = |setting: &(String, String)| all.iter().all(|(_, m)| m.settings.contains(setting));
        let mut axes: Vec<MethodAxis> = Vec::new();
        for axis in all.iter().flat_map(|(_, method)| &method.axes) {
            match axes.iter_mut().find(|known| known.name == axis.name) {
                Some(known) => known.levels = distinct(known.levels.iter().chain(&axis.levels).cloned()),
                None => axes.push(axis.clone()),
            }
        }
        let workloads = all.iter().flat_map(|(_, method)| {
            let own: Vec<_> = method.settings.iter().filter(|setting| !shared(setting)).cloned().collect();
            method.workloads.iter().map(move |workload| {
                let settings = workload.settings.iter().cloned().chain(own.clone()).collect();
                MethodWorkload { settings, ..workload.clone() }
            })
        });
        let every =
            |of: &dyn Fn(&Self) -> Vec<String>| distinct(all.iter().flat_map(|(_, method)| of(method)));
        let periods = all.iter().filter_map(|(_, method)| method.period_s);
        Self {
            workloads: workloads.collect(),
            settings: all[0].1.settings.iter().filter(|setting| shared(setting)).cloned().collect(),
            axes,
            measured: text(&|m| m.measured.clone()),
            conditions: text(&|m| m.conditions.clone()),
            runs: text(&|m| m.runs.clone()),
            sampler: text(&|m| m.sampler.clone()),
            seeds: text(&|m| m.seeds.clone()),
            repeats: text(&|m| m.repeats.clone()),
            controls: text(&|m| m.controls.clone()),
            machines: every(&|m| m.machines.clone()),
            versions: every(&|m| m.versions.clone()),
            period_s: periods.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))),
            commands: every(&|m| m.commands.clone()),
            file: None,
            unknown: text(&|m| Some(m.unknown.clone())).unwrap_or_default(),
        }
    }

    /// Axes, what was measured, runs and repeats, as a table tells them; only what is not yet known is taken.
    pub fn or_of_table(mut self, table: &StudyTable) -> Self {
        if self.axes.is_empty() {
            let axis = |factor: &crate::table::Factor| MethodAxis {
                name: factor.name.clone(),
                levels: factor.levels.iter().map(|level| level.text.clone()).collect(),
                when: String::new(),
            };
            self.axes = table.factors.iter().map(axis).collect();
        }
        self.measured = self.measured.or_else(|| {
            let word = |r: &crate::table::Response| {
                let goal = if r.goal == paceline_plan::Goal::Minimize { "less" } else { "more" };
                let scale = if r.log { ", analysed as its logarithm" } else { "" };
                format!("{} ({goal} is better{scale})", r.named())
            };
            Some(table.responses.iter().map(word).collect::<Vec<_>>().join("; "))
        });
        let (measured, missed) = (table.measured(0).len(), table.missed(0).len());
        let others = table.runs.iter().filter(|run| run.role != crate::table::RunRole::Point).count();
        self.runs = self.runs.or_else(|| {
            let all = table.runs.len();
            let missed = if missed > 0 { format!(", {missed} did not reach it") } else { String::new() };
            let others =
                if others > 0 { format!("; {others} more tell noise and drift") } else { String::new() };
            Some(format!(
                "{}: {measured} measured {}{missed}{others}",
                plural_of(all, "run"),
                table.responses[0].name
            ))
        });
        self.repeats = self.repeats.or_else(|| {
            let counts: Vec<usize> = table.cells(0).values().map(Vec::len).collect();
            let (least, most) = (counts.iter().min()?, counts.iter().max()?);
            let times = if least == most { most.to_string() } else { format!("{least} to {most}") };
            let (n, run) = (plural_of(counts.len(), "configuration"), plural(*most, "run"));
            Some(format!("{n}, {times} {run} of each"))
        });
        self
    }

    fn facts(&self) -> TextTable {
        let mut sheet = TextTable::new("How the runs were made", &["what", "how"], 2, "");
        let unknown =
            if self.unknown.is_empty() { "not known".into() } else { format!("not known: {}", self.unknown) };
        let list = |all: &[String]| (!all.is_empty()).then(|| all.join("; "));
        let period = self.period_s.map(|(first, last)| match (date(first), date(last)) {
            (a, b) if a == b => a,
            (a, b) => format!("{a} to {b}"),
        });
        let mut row = |what: &str, how: Option<String>| {
            sheet.rows.push(vec![what.into(), how.unwrap_or_else(|| unknown.clone())]);
        };
        row("measured", self.measured.clone());
        if let Some(conditions) = &self.conditions {
            row("conditions", Some(conditions.clone()));
        }
        row("runs", self.runs.clone());
        row("sampler", self.sampler.clone());
        row("repeats", self.repeats.clone());
        row("seeds", self.seeds.clone());
        row("controls", self.controls.clone());
        row(if self.machines.len() > 1 { "machines" } else { "machine" }, list(&self.machines));
        row("version of Paceline", list(&self.versions));
        row("date", period);
        sheet
    }

    fn sheets(&self) -> Vec<TextTable> {
        let mut sheets = vec![self.facts()];
        let pairs = |all: &[(String, String)]| {
            all.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
        };
        let title = if self.workloads.len() > 1 { "Workloads" } else { "Workload" };
        let head = ["workload", "data", "model", "target accuracy", "settings of its own"];
        let note = "in brackets: samples of the training and of the test split; parameters of the model";
        let note = if self.workloads.iter().any(|w| w.data.contains('(')) { note } else { "" };
        let mut workloads = TextTable::new(title, &head, 5, note);
        for w in &self.workloads {
            let or = |text: &str| if text.is_empty() { "–".to_owned() } else { text.to_owned() };
            workloads.rows.push(vec![
                w.name.clone(),
                or(&w.data),
                or(&w.model),
                or(&w.target),
                or(&pairs(&w.settings)),
            ]);
        }
        if self.workloads.is_empty() {
            let why = if self.unknown.is_empty() { "not known" } else { &self.unknown };
            workloads.rows.push(vec![
                "not known".into(),
                "not known".into(),
                "not known".into(),
                "–".into(),
                why.into(),
            ]);
        }
        sheets.push(workloads);
        if !self.axes.is_empty() {
            let mut axes =
                TextTable::new("What was varied", &["axis", "number of levels", "levels", "where"], 4, "");
            for axis in &self.axes {
                let when = if axis.when.is_empty() { "everywhere" } else { &axis.when };
                let n = axis.levels.len().to_string();
                axes.rows.push(vec![axis.name.clone(), n, levels(&axis.levels), when.into()]);
            }
            sheets.push(axes);
        }
        if !self.settings.is_empty() {
            let mut same = TextTable::new(
                "The same in all runs",
                &["setting", "value"],
                2,
                "settings are flags of paceline train",
            );
            same.rows = self.settings.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect();
            sheets.push(same);
        }
        sheets
    }

    /// The section as HTML.
    pub fn html(&self) -> String {
        let mut html = "<section id=\"method\"><h2>Method</h2>\n".to_owned();
        self.sheets().iter().for_each(|sheet| html += &sheet.html());
        if !self.commands.is_empty() {
            let _ =
                writeln!(html, "<h3>To make it again</h3><pre>{}</pre>", escape(&self.commands.join("\n")));
        }
        if let Some((name, text)) = &self.file {
            let _ = writeln!(html, "<p class=\"note\">{}:</p><pre>{}</pre>", escape(name), escape(text));
        }
        html + "</section>\n"
    }

    /// The section as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = "## Method\n\n".to_owned();
        self.sheets().iter().for_each(|sheet| text += &sheet.markdown());
        if !self.commands.is_empty() {
            let _ = write!(text, "### To make it again\n\n{}\n", fenced(&self.commands.join("\n")));
        }
        if let Some((name, file)) = &self.file {
            let _ = write!(text, "{}:\n\n{}\n", markdown(name), fenced(file));
        }
        text
    }
}

/// Text as a block of code: its fence is longer than any within. What looks like a tag is written as entities, so that
/// no reader of Markdown takes it for one.
fn fenced(text: &str) -> String {
    let text = paceline_plan::printable_lines(text.trim_end());
    let tag = |pair: &[u8]| pair[0] == b'<' && (pair[1].is_ascii_alphabetic() || b"/!?".contains(&pair[1]));
    if text.as_bytes().windows(2).any(tag) {
        return format!("<pre>\n{}\n</pre>\n", escape(&text));
    }
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat((longest + 1).max(3));
    format!("{fence}\n{text}\n{fence}\n")
}

/// Levels as they are listed; of many, both ends.
fn levels(all: &[String]) -> String {
    let texts: Vec<String> = all.iter().map(|level| short(level)).collect();
    if texts.len() <= MOST_LEVELS {
        return texts.join(", ");
    }
    let (first, last) = (&texts[..MOST_LEVELS - 2], &texts[texts.len() - 1]);
    format!("{}, …, {last}", first.join(", "))
}

fn listed(all: &[u64]) -> String {
    let text: Vec<String> = all.iter().map(ToString::to_string).collect();
    levels(&text)
}

fn plural(n: usize, word: &str) -> String {
    if n == 1 { word.into() } else { format!("{word}s") }
}

/// `1 run`, `2 runs`.
pub fn plural_of(n: usize, word: &str) -> String {
    format!("{n} {}", plural(n, word))
}

/// A moment, in seconds since 1970, as a date and a time of day in UTC.
fn date(seconds: f64) -> String {
    // What is no moment of the calendar is told as one of its ends.
    let seconds = seconds.clamp(0.0, 2.5e11);
    let (mut days, rest) = ((seconds / 86_400.0).floor() as i64, seconds.rem_euclid(86_400.0) as u64);
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        (days, year) = (days - length, year + 1);
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        (days, month) = (days - length, month + 1);
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", days + 1, rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{RawRun, Response};

    #[test]
    fn moments_are_dates_of_the_calendar() {
        assert_eq!(date(0.0), "1970-01-01 00:00 UTC");
        assert_eq!(date(1_709_208_000.0), "2024-02-29 12:00 UTC");
        assert_eq!(date(1_735_689_599.0), "2024-12-31 23:59 UTC");
        assert_eq!(date(1_794_841_944.0), "2026-11-16 15:12 UTC");
    }

    fn table() -> StudyTable {
        let run = |i: usize| RawRun {
            id: i.to_string(),
            levels: vec![["1", "2"][i % 2].into(), "asp".into()],
            values: vec![Some(1.0 + i as f64)],
            ..RawRun::default()
        };
        let names = ["workers", "sync"].map(String::from);
        StudyTable::new("t", &names, vec![Response::parse("log(time_s)").unwrap()], (0..6).map(run).collect())
    }

    #[test]
    fn a_table_tells_axes_and_repeats_and_says_what_it_does_not_know() {
        let method =
            Method { unknown: "the table does not tell".into(), ..Method::default() }.or_of_table(&table());
        for text in [method.markdown(), method.html()] {
            for wanted in [
                "Method",
                "time_s, s (less is better, analysed as its logarithm)",
                "6 runs: 6 measured time_s",
                "2 configurations, 3 runs of each",
                "not known: the table does not tell",
            ] {
                assert!(text.contains(wanted), "{wanted} is missing in {text}");
            }
        }
        // Sampler, seeds, controls, machine, version and date.
        assert_eq!(method.markdown().matches("not known: the table does not tell").count(), 6);
        assert!(method.markdown().contains("| workers | 2 | 1, 2 | everywhere |"), "{}", method.markdown());
    }

    #[test]
    fn each_workload_is_a_row_and_both_forms_say_the_same() {
        let workload = |name: &str, model: &str| MethodWorkload {
            name: name.into(),
            data: "digits".into(),
            model: model.into(),
            target: "0.9".into(),
            settings: vec![("lr".into(), "0.1".into())],
        };
        let method = Method {
            workloads: vec![workload("small", "mlp"), workload("large", "lenet")],
            machines: vec!["a CPU, 2 cores, 4.0 GiB of memory, Linux 6".into()],
            commands: vec!["paceline explore \"a <b>.toml\"".into()],
            file: Some(("a.toml".into(), "x = \"``` and 1 <= 2\"".into())),
            period_s: Some((0.0, 60.0)),
            ..Method::default()
        };
        let (text, page) = (method.markdown(), method.html());
        assert!(text.contains("| large | digits | lenet | 0.9 | lr 0.1 |"), "{text}");
        assert!(text.contains("````\nx = \"``` and 1 <= 2\"\n````"), "{text}");
        assert!(text.contains("<pre>\npaceline explore &quot;a &lt;b&gt;.toml&quot;\n</pre>"), "{text}");
        assert!(
            page.contains("<td>lenet</td>") && page.contains("&lt;b&gt;") && !page.contains("<b>"),
            "{page}"
        );
        for both in ["1970-01-01 00:00 UTC to 1970-01-01 00:01 UTC", "4.0 GiB of memory", "To make it again"]
        {
            assert!(text.contains(both) && page.contains(both), "{both}");
        }
    }

    #[test]
    fn many_levels_are_told_by_both_ends() {
        let all: Vec<String> = (0..40).map(|i| i.to_string()).collect();
        assert_eq!(levels(&all), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …, 39");
        assert_eq!(levels(&all[..3]), "0, 1, 2");
    }
}
