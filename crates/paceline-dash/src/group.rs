//! Runs that are looked at together: those of a study, or all recorded ones.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use paceline_analyze::table::{self, NONE, RawRun, RepeatCost, Response, RunRole};
use paceline_analyze::{Ranking, StudyTable, WorkloadTraits};
use paceline_record::figures::Figures;
use paceline_record::store::RunRow;

/// Where studies are known from.
pub trait Studies: Send + Sync {
    /// Their names.
    fn names(&self) -> Vec<String>;
    /// A number that is another one once something has changed about a study.
    fn stamp(&self, name: &str) -> u64;
    /// What is known about one; otherwise why nothing is.
    fn read(&self, name: &str) -> Result<StudyOverview, String>;
}

/// A study.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct StudyOverview {
    /// `running`, `interrupted` or `finished`.
    pub state: &'static str,
    pub sampler: String,
    pub expected: u64,
    /// How long the rest will take.
    pub left_s: Option<f64>,
    pub group: Group,
}

/// What a run was told, by name.
pub type RunSettings = Arc<Vec<(String, String)>>;

/// The settings of a run, and where it was made.
pub fn settings(row: &RunRow) -> RunSettings {
    let mut own = table::settings(row);
    own.push(("origin".into(), row.origin.clone()));
    Arc::new(own)
}

/// Runs that are looked at together.
#[derive(Clone, Debug)]
pub struct Group {
    /// What they are called.
    pub title: String,
    /// What varied on purpose.
    pub factors: Vec<String>,
    /// Settings that are the same in all of them.
    pub constants: Vec<(String, String)>,
    /// What was measured; the first is the one that is explained.
    pub responses: Vec<Response>,
    /// The runs, in the order in which they began.
    pub members: Vec<Member>,
    /// The levels of each factor, as points of the study have them (controls and warm-ups may lie elsewhere): numbers in
    /// ascending order, words by the alphabet.
    pub levels: Vec<Vec<String>>,
    /// Whether their order tells when they were made: then a drift of the machine shows.
    pub timed: bool,
    /// Which of them had one worker alone, whatever their levels say.
    pub alone: Vec<RunRole>,
    /// What is known about their workloads, where they are a study's.
    pub workloads: Vec<WorkloadTraits>,
    /// What one more run of each configuration would take.
    pub repeats: Option<RepeatCost>,
    /// The best configuration and its figure, as the analysis of all of them has it.
    pub best: Option<(String, f64)>,
}

/// One run.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Member {
    /// Its number, from 0.
    pub number: u64,
    /// Its id in the store, where it has one.
    pub run: Option<String>,
    /// The name that somebody gave it.
    pub given_name: Option<String>,
    pub tags: Vec<String>,
    /// Whether it is only shown where archived runs are asked for.
    pub archived: bool,
    /// When it began, in seconds since 1970.
    pub began_s: Option<f64>,
    /// The study that made it, and which of its workloads it was.
    pub study: Option<String>,
    pub workload: Option<String>,
    /// What it is for; empty for runs that belong to no study.
    pub role: &'static str,
    /// `running`, `ok`, or how else it ended.
    pub state: String,
    pub error: Option<String>,
    pub levels: Vec<String>,
    /// What it measured, by response.
    pub values: Vec<Option<f64>>,
    /// Steps done, and of how many, while it is under way.
    pub progress: Option<(u64, u64)>,
    /// Whether charts and findings count it.
    pub counts: bool,
    /// How an analysis takes it, where it belongs to a study.
    pub analysed: Option<RawRun>,
    /// Whether it was made in virtual time.
    pub simulated: bool,
}

impl Member {
    /// The same with these figures.
    pub fn measuring(mut self, values: impl IntoIterator<Item = Option<f64>>) -> Self {
        self.values = values.into_iter().map(|value| value.filter(|v| v.is_finite())).collect();
        self
    }

    /// The same with what people call it, and where it belongs.
    fn labelled(mut self, row: &RunRow) -> Self {
        let labels = row.labels.clone();
        (self.given_name, self.tags, self.archived) = (labels.name, labels.tags, row.archived);
        (self.study, self.workload, self.began_s) = (labels.study, labels.workload, Some(row.started_s));
        self
    }

    /// What it measured.
    pub fn value(&self, response: usize) -> Option<f64> {
        self.values.get(response).copied().flatten()
    }

    /// Whether it tells of the machine or is there to be compared with, and is no point of its own.
    pub fn aside(&self) -> bool {
        self.analysed.as_ref().is_some_and(|run| run.role != RunRole::Point)
    }

    /// Its id; its number where it has none.
    pub fn name(&self) -> String {
        self.run.clone().unwrap_or_else(|| format!("#{}", self.number))
    }
}

impl Hash for Member {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.number, &self.run, &self.state, &self.levels, self.progress, self.counts).hash(state);
        self.values.iter().for_each(|value| value.map(f64::to_bits).hash(state));
    }
}

/// Numbers as numbers, before words.
pub fn by_level(a: &str, b: &str) -> Ordering {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(x), Ok(y)) => x.total_cmp(&y),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        _ => a.cmp(b),
    }
}

impl Group {
    /// Of these runs.
    pub fn new(title: &str, factors: Vec<String>, responses: Vec<Response>, members: Vec<Member>) -> Self {
        let points = || members.iter().filter(|m| m.role.is_empty() || m.role == "point");
        let of_factor = |f: usize| {
            let mut levels: Vec<&String> = points().filter_map(|m| m.levels.get(f)).collect();
            levels.sort_by(|a, b| by_level(a, b));
            levels.dedup();
            levels.into_iter().cloned().collect()
        };
        let levels = (0..factors.len()).map(of_factor).collect();
        let (timed, alone, workloads, repeats, best, constants) =
            (false, Vec::new(), Vec::new(), None, None, Vec::new());
        Self {
            title: title.into(),
            factors,
            constants,
            responses,
            members,
            levels,
            timed,
            alone,
            workloads,
            repeats,
            best,
        }
    }

    /// All recorded runs, each with its settings: what differs between them are the factors.
    pub fn recorded(rows: &[(Arc<RunRow>, RunSettings)], figures: &Figures) -> Self {
        // A plan that cannot be read has no settings, and says nothing about what differs.
        let readable: Vec<&[(String, String)]> =
            rows.iter().map(|(_, own)| own.as_slice()).filter(|own| own.len() > 1).collect();
        let factors = table::varied(&readable);
        let same = |(name, _): &&(String, String)| !factors.contains(name);
        let constants =
            readable.first().map_or_else(Vec::new, |own| own.iter().filter(same).cloned().collect());
        let shown = [
            ("samples_per_s", true),
            ("final_accuracy", false),
            ("train_loss", false),
            ("seconds.train", true),
        ];
        let responses: Vec<Response> =
            shown.into_iter().map(|(name, log)| Response::figure(figures, name, log)).collect();
        let read = responses.iter().map(|response| figures.find(&response.name)).collect::<Vec<_>>();
        let member = |(row, own): &(Arc<RunRow>, RunSettings)| {
            let level = |name: &String| {
                own.iter().find(|(known, _)| known == name).map_or_else(|| NONE.into(), |(_, v)| v.clone())
            };
            Member {
                number: row.id as u64,
                run: Some(row.run.clone()),
                state: row.state.clone(),
                error: row.error.clone(),
                levels: factors.iter().map(level).collect(),
                progress: (row.state == "running").then(|| (row.steps_done, row.steps.unwrap_or(0))),
                counts: row.result.is_some() && row.plan.is_some(),
                simulated: row.origin == "simulated",
                ..Member::default()
            }
            .labelled(row)
            .measuring(read.iter().map(|figure| row.figure((*figure)?)))
        };
        let members = rows.iter().map(member).collect();
        Self { constants, ..Self::new("All recorded runs", factors, responses, members) }
    }

    /// The same, of a study: its runs with what people call them.
    pub fn labelled(mut self, rows: &[Arc<RunRow>]) -> Self {
        let rows: HashMap<&str, &RunRow> = rows.iter().map(|row| (row.run.as_str(), &**row)).collect();
        for member in &mut self.members {
            if let Some(row) = member.run.as_deref().and_then(|run| rows.get(run)) {
                // That all of them belong to this study needs no words, and its workloads are a factor.
                *member = Member { study: None, workload: None, ..std::mem::take(member).labelled(row) };
            }
        }
        self
    }

    /// Notes which runs were made by these studies, where runs of older versions do not say so themselves.
    pub fn belong<'a>(&mut self, studies: impl Iterator<Item = &'a Self>) {
        let mut owners: HashMap<&str, &str> = HashMap::new();
        for study in studies {
            let runs = study.members.iter().filter_map(|member| member.run.as_deref());
            owners.extend(runs.map(|run| (run, study.title.as_str())));
        }
        for member in self.members.iter_mut().filter(|member| member.study.is_none()) {
            let owner = member.run.as_deref().and_then(|run| owners.get(run));
            member.study = owner.map(|study| (*study).to_owned());
        }
    }

    /// Factors that differ between runs.
    pub fn varied(&self) -> impl Iterator<Item = usize> {
        (0..self.factors.len()).filter(|f| self.levels[*f].len() > 1)
    }

    /// Some of the runs as the input of an analysis. Controls are always among them: they tell of the machine.
    pub fn table(&self, chosen: &[&Member]) -> StudyTable {
        let simulated = chosen.iter().filter(|m| m.counts && m.simulated).count();
        let measured = chosen.iter().filter(|m| m.counts && !m.simulated).count();
        // What was measured and what was simulated are never mixed silently.
        let mixed = simulated > 0 && measured > 0;
        let counted = chosen.iter().copied().filter(|m| m.counts && !(mixed && m.simulated));
        let aside = self.members.iter().filter(|m| m.aside());
        let mut raw: Vec<RawRun> = counted
            .filter(|m| !m.aside())
            .chain(aside)
            .map(|member| {
                member.analysed.clone().unwrap_or_else(|| RawRun {
                    id: member.name(),
                    levels: member.levels.clone(),
                    values: (0..self.responses.len()).map(|r| member.value(r)).collect(),
                    order: member.number as f64,
                    ..RawRun::default()
                })
            })
            .collect();
        raw.sort_by(|a, b| a.order.total_cmp(&b.order));
        let mut table = StudyTable::new(&self.title, &self.factors, self.responses.clone(), raw);
        (table.timed, table.alone, table.repeats) = (self.timed, self.alone.clone(), self.repeats);
        table.workloads = self.workloads.clone();
        if mixed {
            table.notes.push(format!(
                "{simulated} simulated runs are left out of findings and charts: filter by origin to see them"
            ));
        }
        table
    }

    /// The best configuration of some runs and its figure: that of the whole study, or the best mean of those chosen.
    pub fn best(&self, chosen: &[&Member]) -> Option<(String, f64)> {
        if self.timed {
            return self.best.clone();
        }
        let table = self.table(chosen);
        let best = Ranking::new(&table, 0, None).configurations.into_iter().next()?;
        Some((best.configuration, best.value))
    }
}

/// A number that is another one once what is looked at has changed.
pub fn stamp(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u64, level: &str, simulated: bool) -> Member {
        let member = Member {
            number,
            levels: vec![level.into()],
            state: "ok".into(),
            counts: true,
            simulated,
            ..Member::default()
        };
        member.measuring([Some(number as f64 + 1.0)])
    }

    #[test]
    fn what_was_simulated_is_not_mixed_with_what_was_measured() {
        let members = vec![member(0, "10", false), member(1, "9", false), member(2, "9", true)];
        let group = Group::new("t", vec!["n".into()], vec![Response::parse("time_s").unwrap()], members);
        assert_eq!(group.levels, [["9", "10"]]);
        let all: Vec<&Member> = group.members.iter().collect();
        let table = group.table(&all);
        assert_eq!((table.runs.len(), table.notes.len()), (2, 1));
        assert_eq!(group.table(&all[2..]).runs.len(), 1, "alone they are shown");
    }
}
