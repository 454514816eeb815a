//! Some runs of a group, as an address asks for: `f.NAME=LEVEL` (several: any of them), `min.NAME` and `max.NAME` of
//! what is a number, `state=…`; `sort=NAME` or `-NAME`, `page=N`, and `pick=RUN` for those that are to be compared.

use std::cmp::Ordering;
use std::collections::HashSet;

use crate::group::{Group, Member, by_level};
use crate::query::Query;

/// Runs of one page of a table.
pub const ROWS: usize = 100;

pub struct RunFilter<'a> {
    group: &'a Group,
    levels: Vec<(usize, HashSet<String>)>,
    ranges: Vec<(NumericColumn, f64, f64)>,
    states: HashSet<String>,
}

/// What has a number: a factor or a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NumericColumn {
    Factor(usize),
    Response(usize),
}

impl NumericColumn {
    pub fn of(self, member: &Member) -> Option<f64> {
        match self {
            Self::Factor(f) => member.levels.get(f)?.parse().ok(),
            Self::Response(r) => member.value(r),
        }
    }

    pub fn named(group: &Group, name: &str) -> Option<Self> {
        let factor = || group.factors.iter().position(|f| f == name).map(Self::Factor);
        group.responses.iter().position(|r| r.is(name)).map(Self::Response).or_else(factor)
    }
}

/// A part of an address that chooses runs.
pub fn chooses(name: &str) -> bool {
    name == "state" || ["f.", "min.", "max."].iter().any(|begin| name.starts_with(begin))
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
            if let Some(figure) =
                NumericColumn::named(group, name).filter(|_| least.is_some() || most.is_some())
            {
                ranges.push((figure, least.unwrap_or(f64::NEG_INFINITY), most.unwrap_or(f64::INFINITY)));
            }
        }
        Self { group, levels, ranges, states: query.all("state").map(String::from).collect() }
    }

    pub fn narrows(&self) -> bool {
        !(self.levels.is_empty() && self.ranges.is_empty() && self.states.is_empty())
    }

    pub fn fits(&self, member: &Member) -> bool {
        self.levels.iter().all(|(f, wanted)| member.levels.get(*f).is_some_and(|l| wanted.contains(l)))
            && self.ranges.iter().all(|(figure, least, most)| {
                figure.of(member).is_some_and(|value| (*least..=*most).contains(&value))
            })
            && (self.states.is_empty() || self.states.contains(&member.state))
    }

    /// The runs that are wanted, in the order of the group.
    pub fn members(&self) -> Vec<&'a Member> {
        self.group.members.iter().filter(|member| self.fits(member)).collect()
    }
}

/// Puts runs in the order that is asked for; the latest first where none is. Those without a figure come last.
pub fn sort(group: &Group, members: &mut [&Member], wanted: Option<&str>) {
    let Some(wanted) = wanted else {
        members.sort_by_key(|member| std::cmp::Reverse(member.number));
        return;
    };
    let (name, falling) = wanted.strip_prefix('-').map_or((wanted, false), |name| (name, true));
    let turned = |order: Ordering| if falling { order.reverse() } else { order };
    match (name, NumericColumn::named(group, name)) {
        ("run", _) => members.sort_by(|a, b| turned(a.number.cmp(&b.number))),
        ("state", _) => members.sort_by(|a, b| turned(a.state.cmp(&b.state))),
        (_, Some(NumericColumn::Factor(f))) => {
            members.sort_by(|a, b| turned(by_level(&a.levels[f], &b.levels[f])));
        }
        (_, Some(figure)) => members.sort_by(|a, b| match (figure.of(a), figure.of(b)) {
            (Some(a), Some(b)) => turned(a.total_cmp(&b)),
            (a, b) => b.is_some().cmp(&a.is_some()),
        }),
        _ => {}
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
    fn runs_without_a_figure_come_last_in_either_order() {
        assert_eq!(chosen("sort=time_s"), [1, 3, 0, 2]);
        assert_eq!(chosen("sort=-time_s"), [0, 3, 1, 2]);
        assert_eq!(chosen("sort=workers"), [0, 1, 2, 3], "numbers as numbers");
        assert_eq!(chosen("sort=run"), [0, 1, 2, 3]);
    }
}
