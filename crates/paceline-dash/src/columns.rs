//! Columns of the table of runs: which there are, how runs are ordered by them, and which of them a page has room for.

use std::cmp::Ordering;
use std::collections::HashSet;

use paceline_analyze::table::{NONE, number, short};

use crate::group::{Group, Member, by_level};
use crate::query::Query;

/// Settings that tell runs apart at a glance: they are shown before others.
pub const FIRST: [&str; 8] = ["study", "workload", "model", "data", "strategy", "workers", "batch", "lr"];
/// Characters that a level is cut to; the whole stands in its title.
pub const LONGEST: usize = 18;
/// Room for columns on a page of 1,400 pixels, in pixels.
const ROOM: f64 = 1340.0;
/// Room that a character and the sides of a cell take, in pixels: those of a wide font.
const CHARACTER: f64 = 7.8;
const SIDES: f64 = 17.0;
/// Characters of columns that every table has: the box, the run, when it began, its state.
const ALWAYS: usize = 3 + 20 + 12 + 9;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunColumn {
    Run,
    Began,
    State,
    Study,
    Workload,
    Factor(usize),
    Response(usize),
}

impl RunColumn {
    /// The column of a name in an address.
    pub fn named(group: &Group, name: &str) -> Option<Self> {
        let factor = || group.factors.iter().position(|f| f == name).map(Self::Factor);
        let response = || group.responses.iter().position(|r| r.is(name)).map(Self::Response);
        match name {
            "run" => Some(Self::Run),
            "began" => Some(Self::Began),
            "state" => Some(Self::State),
            "study" => Some(Self::Study),
            _ => response().or_else(factor).or_else(|| (name == "workload").then_some(Self::Workload)),
        }
    }

    pub fn name(self, group: &Group) -> &str {
        match self {
            Self::Run => "run",
            Self::Began => "began",
            Self::State => "state",
            Self::Study => "study",
            Self::Workload => "workload",
            Self::Factor(f) => &group.factors[f],
            Self::Response(r) => &group.responses[r].name,
        }
    }

    pub fn unit(self, group: &Group) -> &str {
        match self {
            Self::Began => "UTC",
            Self::Response(r) => group.responses[r].unit,
            _ => "",
        }
    }

    /// A run's number there, where it is one.
    pub fn number(self, member: &Member) -> Option<f64> {
        match self {
            Self::Run => Some(member.number as f64),
            Self::Began => member.began_s,
            Self::Factor(f) => member.levels.get(f)?.parse().ok(),
            Self::Response(r) => member.value(r),
            _ => None,
        }
    }

    /// What it says of a run; nothing where there is nothing to say.
    pub fn text(self, member: &Member) -> &str {
        match self {
            Self::State => &member.state,
            Self::Study => member.study.as_deref().unwrap_or_default(),
            Self::Workload => member.workload.as_deref().unwrap_or_default(),
            Self::Factor(f) => member.levels.get(f).map_or("", String::as_str),
            _ => "",
        }
    }

    /// The order of two runs by this column; those that have nothing there come last in either direction.
    pub fn compare(self, a: &Member, b: &Member, falling: bool) -> Ordering {
        let turned = |order: Ordering| if falling { order.reverse() } else { order };
        match self {
            Self::Run | Self::Began | Self::Response(_) => match (self.number(a), self.number(b)) {
                (Some(a), Some(b)) => turned(a.total_cmp(&b)),
                (a, b) => b.is_some().cmp(&a.is_some()),
            },
            Self::State | Self::Study | Self::Workload | Self::Factor(_) => {
                let (a, b) = (self.text(a), self.text(b));
                a.is_empty().cmp(&b.is_empty()).then_with(|| turned(by_level(a, b)))
            }
        }
    }

    /// Whether runs differ in it; one alone is told whole.
    fn differs(self, members: &[&Member]) -> bool {
        members.len() == 1 || members.windows(2).any(|pair| self.text(pair[0]) != self.text(pair[1]))
    }

    /// Room that it takes, in pixels.
    fn width(self, group: &Group, members: &[&Member]) -> f64 {
        let cell = |member: &&Member| match self {
            Self::Response(r) => member.value(r).map_or(0, |value| number(value).len()),
            _ => short(self.text(member)).chars().count(),
        };
        // Heads break at signs between words.
        let head = self.name(group).split(['-', '_', '.']).map(|part| part.len() + 1).max().unwrap_or(0);
        let widest = members.iter().map(cell).max().unwrap_or(0).min(LONGEST);
        CHARACTER * widest.max(head).max(self.unit(group).len()) as f64 + SIDES
    }
}

/// The columns of a table of some runs.
pub struct TableColumns {
    /// Those that are shown, beside the run and its state.
    pub shown: Vec<RunColumn>,
    /// Those that can be shown, in the same order.
    pub all: Vec<RunColumn>,
    /// What is the same for all of these runs.
    pub constants: Vec<(String, String)>,
}

impl TableColumns {
    /// Those that `col=…` asks for; else those that differ between these runs, as many as there is room for.
    pub fn choose(group: &Group, members: &[&Member], query: &Query) -> Self {
        let mut factors: Vec<usize> = (0..group.factors.len()).collect();
        let place = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
        factors.sort_by_key(|f| place(&group.factors[*f]));
        let has = |response: &RunColumn| members.iter().any(|member| response.number(member).is_some());
        let responses: Vec<RunColumn> =
            (0..group.responses.len()).map(RunColumn::Response).filter(has).collect();
        let belongs = [RunColumn::Study, RunColumn::Workload].into_iter();
        let belongs = belongs.filter(|column| members.iter().any(|member| !column.text(member).is_empty()));
        let settings: Vec<RunColumn> = belongs.chain(factors.into_iter().map(RunColumn::Factor)).collect();
        let mut all = Vec::new();
        if members.iter().any(|member| member.began_s.is_some()) {
            all.push(RunColumn::Began);
        }
        all.extend(settings.iter().copied().chain(responses.iter().copied()));
        let asked: HashSet<&str> = query.all("col").collect();
        let mut left = ROOM - CHARACTER * ALWAYS as f64 - 4.0 * SIDES;
        left -= responses.iter().map(|column| column.width(group, members)).sum::<f64>();
        let mut fits = |column: &RunColumn| {
            let width = column.width(group, members);
            let shown = column.differs(members) && width <= left;
            left -= if shown { width } else { 0.0 };
            shown
        };
        let shown = all.iter().filter(|column| match column {
            _ if !asked.is_empty() => asked.contains(column.name(group)),
            RunColumn::Began | RunColumn::Response(_) => true,
            column => fits(column),
        });
        let shown = shown.copied().collect();
        // What no run here has is not worth a word.
        let same = |column: &&RunColumn| !column.differs(members) && !members.is_empty();
        let value = |column: &RunColumn| (column.name(group).to_owned(), column.text(members[0]).to_owned());
        let of_these = settings.iter().filter(same).map(value);
        let mut constants: Vec<(String, String)> = of_these.chain(group.constants.iter().cloned()).collect();
        constants.retain(|(_, level)| !level.is_empty() && level != NONE);
        constants.sort_by_key(|(name, _)| place(name));
        Self { shown, all, constants }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_analyze::table::Response;

    fn group(factors: usize) -> Group {
        let names = (0..factors).map(|f| if f == factors - 1 { "lr".into() } else { format!("setting-{f}") });
        let member = |number: u64| {
            let levels =
                (0..factors).map(|f| if f == 0 { "same".into() } else { number.to_string() }).collect();
            Member { number, levels, state: "ok".into(), ..Member::default() }.measuring([Some(1.0)])
        };
        let responses = vec![Response::parse("time_s").unwrap()];
        Group::new("t", names.collect(), responses, (0..4).map(member).collect())
    }

    fn chosen(factors: usize, query: &str) -> (Vec<String>, Vec<(String, String)>) {
        let group = group(factors);
        let members: Vec<&Member> = group.members.iter().collect();
        let columns = TableColumns::choose(&group, &members, &Query::parse(query));
        (columns.shown.iter().map(|c| c.name(&group).to_owned()).collect(), columns.constants)
    }

    #[test]
    fn columns_that_differ_are_shown_and_the_same_ones_told_once() {
        let (shown, constants) = chosen(4, "");
        assert_eq!(shown, ["lr", "setting-1", "setting-2", "time_s"], "known settings come first");
        assert_eq!(constants, [("setting-0".to_owned(), "same".to_owned())]);
    }

    #[test]
    fn one_run_alone_has_its_settings_in_columns() {
        let group = group(3);
        let columns = TableColumns::choose(&group, &[&group.members[0]], &Query::default());
        assert_eq!((columns.shown.len(), columns.constants.len()), (4, 0));
    }

    #[test]
    fn no_more_columns_are_shown_than_there_is_room_for_unless_asked_for() {
        let (shown, _) = chosen(60, "");
        assert!(shown.len() < 20 && shown[0] == "lr" && shown.last().unwrap() == "time_s", "{shown:?}");
        assert_eq!(chosen(60, "col=setting-0&col=setting-55").0, ["setting-0", "setting-55"]);
    }
}
