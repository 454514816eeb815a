//! Some runs of a group, as an address asks for: `f.NAME=LEVEL` (several: any of them), `min.NAME` and `max.NAME` of
//! what is a number, `study=…`, `workload=…`, `state=…` (any of them), `tag=…` (all of them), `find=TEXT` in what runs are
//! called, `where=CONDITION` on settings, figures and labels; archived ones with `archived=yes`. `sort=NAME` or `-NAME`, `limit=N`, `page=N`, `col=NAME` for columns, and
//! `pick=RUN` for those that are to be compared.

use std::collections::HashSet;

use paceline_analyze::table::NONE;
use paceline_plan::{Condition, Value};

use crate::columns::RunColumn;
use crate::group::{Group, Member};
use crate::query::Query;

/// Runs of one page of a table, where no limit is asked for, and the most that can be.
pub const ROWS: usize = 100;
const MOST_ROWS: usize = 1000;

/// Parts of an address whose values are words of runs themselves.
const WORDS: [&str; 3] = ["state", "study", "workload"];

pub struct RunFilter<'a> {
    group: &'a Group,
    levels: Vec<(usize, HashSet<String>)>,
    ranges: Vec<(RunColumn, f64, f64)>,
    words: Vec<(RunColumn, HashSet<String>)>,
    tags: Vec<String>,
    /// What a run's names must contain, in small letters.
    find: Option<String>,
    conditions: Vec<Condition>,
    archived: bool,
    narrows: bool,
    /// Why a condition chooses nothing.
    pub problems: Vec<String>,
}

/// A part of an address that chooses runs.
pub fn chooses(name: &str) -> bool {
    WORDS.contains(&name)
        || ["tag", "find", "where", "archived"].contains(&name)
        || ["f.", "min.", "max."].iter().any(|begin| name.starts_with(begin))
}

/// How many runs a page has.
pub fn limit(query: &Query) -> usize {
    query.get("limit").and_then(|n| n.parse().ok()).unwrap_or(ROWS).clamp(1, MOST_ROWS)
}

impl<'a> RunFilter<'a> {
    /// What the address says. What it says of something that is not there says nothing.
    pub fn new(group: &'a Group, query: &Query) -> Self {
        let mut levels = Vec::new();
        for (f, name) in group.factors.iter().enumerate() {
            let wanted: HashSet<String> = query.all(&format!("f.{name}")).map(String::from).collect();
            if !wanted.is_empty() {
                levels.push((f, wanted));
            }
        }
        let mut ranges = Vec::new();
        let old = group.responses.iter().flat_map(|r| r.old_names.iter().copied());
        let responses = group.responses.iter().map(|r| r.name.as_str()).chain(old);
        for name in group.factors.iter().map(String::as_str).chain(responses) {
            let end = |which: &str| query.get(&format!("{which}.{name}")).and_then(|v| v.parse::<f64>().ok());
            let (least, most) = (end("min"), end("max"));
            if let Some(figure) = RunColumn::named(group, name).filter(|_| least.is_some() || most.is_some())
            {
                ranges.push((figure, least.unwrap_or(f64::NEG_INFINITY), most.unwrap_or(f64::INFINITY)));
            }
        }
        let mut words = Vec::new();
        for name in WORDS {
            let wanted: HashSet<String> = query.all(name).map(String::from).collect();
            if let Some(column) = RunColumn::named(group, name).filter(|_| !wanted.is_empty()) {
                words.push((column, wanted));
            }
        }
        let (mut conditions, mut problems) = (Vec::new(), Vec::new());
        for text in query.all("where") {
            match Condition::parse(text) {
                Ok(condition) => {
                    let unknown = |name: &&str| !group.members.is_empty() && !known(group, name);
                    problems.extend(condition.names().into_iter().filter(unknown).map(|name| {
                        format!("no run has a setting, a figure or a label that is called {name}")
                    }));
                    conditions.push(condition);
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
        Self {
            group,
            conditions,
            problems,
            levels,
            ranges,
            words,
            tags: query.all("tag").map(String::from).collect(),
            find: query.get("find").map(str::to_lowercase),
            archived: query.get("archived") == Some("yes"),
            narrows: query.0.iter().any(|(name, _)| chooses(name)),
        }
    }

    /// Whether the address chooses at all.
    pub fn narrows(&self) -> bool {
        self.narrows
    }

    pub fn fits(&self, member: &Member) -> bool {
        (self.archived || !member.archived)
            && self.levels.iter().all(|(f, wanted)| member.levels.get(*f).is_some_and(|l| wanted.contains(l)))
            && self.ranges.iter().all(|(figure, least, most)| {
                figure.number(member).is_some_and(|value| (*least..=*most).contains(&value))
            })
            && self.words.iter().all(|(column, wanted)| wanted.contains(column.text(member)))
            && self.tags.iter().all(|tag| member.tags.contains(tag))
            && self.conditions.iter().all(|c| c.truth(&|name| value(self.group, member, name)) == Some(true))
            && self.find.as_ref().is_none_or(|find| {
                let called = [&member.run, &member.given_name, &member.study, &member.workload];
                called
                    .into_iter()
                    .flatten()
                    .chain(&member.tags)
                    .any(|name| name.to_lowercase().contains(find))
            })
    }

    /// The runs that are wanted, in the order of the group.
    pub fn members(&self) -> Vec<&'a Member> {
        self.group.members.iter().filter(|member| self.fits(member)).collect()
    }
}

/// Whether conditions can be about a name.
fn known(group: &Group, name: &str) -> bool {
    name == "name"
        || RunColumn::named(group, name).is_some()
        || group.constants.iter().any(|(n, _)| n == name)
}

/// What a run's label, setting or figure is.
fn value(group: &Group, member: &Member, name: &str) -> Option<Value> {
    let text = match (name, RunColumn::named(group, name)) {
        ("name", _) => member.given_name.as_deref().unwrap_or_default(),
        ("run", _) => member.run.as_deref().unwrap_or_default(),
        (_, Some(RunColumn::Response(r))) => return member.value(r).map(Value::Number),
        (_, Some(column)) => column.text(member),
        (_, None) => group.constants.iter().find(|(known, _)| known == name).map_or("", |(_, level)| level),
    };
    (!text.is_empty() && text != NONE).then(|| Value::read(text))
}

/// Puts runs in the order that is asked for; the latest first where none is. Those without a figure come last.
pub fn sort(group: &Group, members: &mut [&Member], wanted: Option<&str>) {
    let wanted = wanted.unwrap_or("-run");
    let (name, falling) = wanted.strip_prefix('-').map_or((wanted, false), |name| (name, true));
    if let Some(column) = RunColumn::named(group, name) {
        members.sort_by(|a, b| column.compare(a, b, falling));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_analyze::table::Response;

    fn group() -> Group {
        let member = |number: u64, workers: &str, sync: &str, time: Option<f64>| {
            let state = if time.is_some() { "ok" } else { "failed" };
            let levels = vec![workers.into(), sync.into()];
            Member { number, levels, state: state.into(), ..Member::default() }.measuring([time])
        };
        let members = vec![
            member(0, "1", "bsp", Some(3.0)),
            member(1, "2", "asp", Some(1.0)),
            member(2, "10", "bsp", None),
            member(3, "10", "ssp", Some(2.0)),
        ];
        let responses = vec![Response::parse("time_s").unwrap()];
        Group::new("t", vec!["workers".into(), "sync".into()], responses, members)
    }

    fn chosen(query: &str) -> Vec<u64> {
        let (group, query) = (group(), Query::parse(query));
        let mut members = RunFilter::new(&group, &query).members();
        sort(&group, &mut members, query.get("sort"));
        members.iter().map(|m| m.number).collect()
    }

    #[test]
    fn addresses_choose_by_level_by_range_and_by_state() {
        assert_eq!(chosen(""), [3, 2, 1, 0]);
        assert_eq!(chosen("f.sync=bsp&f.sync=asp"), [2, 1, 0]);
        assert_eq!(chosen("min.workers=2&max.time_s=1.5"), [1]);
        assert_eq!(chosen("state=failed"), [2]);
        assert_eq!(chosen("f.sync=none"), [0; 0]);
        assert_eq!(chosen("f.nothing=1&min.nothing=2&max.time_s=x"), [3, 2, 1, 0]);
    }

    #[test]
    fn tags_narrow_names_are_found_and_archived_runs_are_hidden_until_asked_for() {
        let mut group = group();
        group.members[0].tags = vec!["a".into(), "b".into()];
        group.members[1].tags = vec!["b".into()];
        group.members[2].given_name = Some("Best so far".into());
        group.members[3].study = Some("scaling".into());
        group.members[3].archived = true;
        let chosen = |query: &str| {
            let members = RunFilter::new(&group, &Query::parse(query)).members();
            members.iter().map(|m| m.number).collect::<Vec<_>>()
        };
        assert_eq!(chosen(""), [0, 1, 2]);
        assert_eq!(chosen("archived=yes"), [0, 1, 2, 3]);
        assert_eq!((chosen("tag=b"), chosen("tag=a&tag=b")), (vec![0, 1], vec![0]));
        assert_eq!(chosen("find=best"), [2]);
        assert_eq!(chosen("where=workers+%3E+1+and+sync+%3D%3D+%22asp%22"), [1]);
        assert_eq!(chosen("where=name+%3D%3D+%22Best+so+far%22"), [2]);
        assert_eq!((chosen("study=scaling"), chosen("study=scaling&archived=yes")), (vec![], vec![3]));
    }

    #[test]
    fn conditions_that_cannot_be_read_say_why_and_choose_nothing_away() {
        let group = group();
        let filter = |query: &str| {
            let filter = RunFilter::new(&group, &Query::parse(query));
            (filter.members().len(), filter.problems)
        };
        let (found, problems) = filter("where=workers+%3E");
        assert!(found == 4 && problems[0].contains("at column"), "{found} {problems:?}");
        let (found, problems) = filter("where=nothing+%3E+1");
        assert!(found == 0 && problems[0].contains("called nothing"), "{found} {problems:?}");
    }

    #[test]
    fn runs_without_a_figure_come_last_in_either_order() {
        assert_eq!(chosen("sort=time_s"), [1, 3, 0, 2]);
        assert_eq!(chosen("sort=-time_s"), [0, 3, 1, 2]);
        assert_eq!(chosen("sort=workers"), [0, 1, 2, 3], "numbers as numbers");
        assert_eq!(chosen("sort=run"), [0, 1, 2, 3]);
    }
}
