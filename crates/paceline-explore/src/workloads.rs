//! The order of a study's runs. With several workloads, these take turns, so that a machine that becomes slower does so
//! for all of them. Either they are run at the same points, which one sampler chooses for all, or each has its own.

use std::collections::BTreeMap;

use paceline_plan::{Objective, Point, Value};
use paceline_statistics::mean;

use crate::problem::Problem;
use crate::schedule::{End, Next, PlannedRun, Role, StudyRun, WorkloadSchedule};

/// A study's schedule.
pub struct StudySchedule {
    /// The workloads; one without a name where there is one only.
    workloads: Vec<Option<String>>,
    /// One for each workload, or one whose runs are made once for each.
    schedules: Vec<WorkloadSchedule>,
    paired: bool,
}

impl StudySchedule {
    /// Of the only workload.
    pub fn one(schedule: WorkloadSchedule) -> Self {
        Self { workloads: vec![None], schedules: vec![schedule], paired: false }
    }

    /// Of several workloads that are run at the same points.
    pub fn paired(names: Vec<String>, schedule: WorkloadSchedule) -> Self {
        Self { workloads: names.into_iter().map(Some).collect(), schedules: vec![schedule], paired: true }
    }

    /// Of several workloads, each with points of its own.
    pub fn own(all: Vec<(String, WorkloadSchedule)>) -> Self {
        let (workloads, schedules) = all.into_iter().map(|(name, schedule)| (Some(name), schedule)).unzip();
        Self { workloads, schedules, paired: false }
    }

    /// What samplers say about their points.
    pub fn notes(&self) -> Vec<String> {
        paceline_statistics::distinct(self.schedules.iter().flat_map(WorkloadSchedule::notes))
    }

    /// Whether every point is known beforehand.
    pub fn known(&self) -> bool {
        self.schedules.iter().all(|schedule| schedule.known().is_some())
    }

    /// How many runs there will be, all kinds together, as far as can be said.
    pub fn expected(&self) -> u64 {
        let each: u64 = self.schedules.iter().map(WorkloadSchedule::expected).sum();
        if self.paired { each * self.workloads.len() as u64 } else { each }
    }

    /// What to do after these runs, in the order in which they began.
    pub fn next(&mut self, made: &[StudyRun]) -> Next {
        let next = match self.paired {
            true => next_of_pairs(&self.workloads, &mut self.schedules[0], made),
            false => next_of_own(&self.workloads, &mut self.schedules, made),
        };
        match next {
            Next::Run(job) => Next::Run(PlannedRun { id: made.len() as u64, ..job }),
            other => other,
        }
    }

    /// The next control that closes the bracket around a workload's last points, of a study that ends before its time.
    pub fn closing(&self, made: &[StudyRun]) -> Option<PlannedRun> {
        let mut schedules = self.schedules.iter().cycle();
        self.workloads.iter().find_map(|workload| {
            let job = schedules.next()?.closing(&of(workload, made))?;
            Some(PlannedRun { id: made.len() as u64, workload: workload.clone(), ..job })
        })
    }
}

/// The runs of a workload.
fn of(workload: &Option<String>, made: &[StudyRun]) -> Vec<StudyRun> {
    made.iter().filter(|run| run.job.workload == *workload).cloned().collect()
}

/// The workload with the fewest runs comes next.
fn next_of_own(workloads: &[Option<String>], schedules: &mut [WorkloadSchedule], made: &[StudyRun]) -> Next {
    let mut turns: Vec<(usize, Vec<StudyRun>)> =
        workloads.iter().map(|workload| of(workload, made)).enumerate().collect();
    turns.sort_by_key(|(_, own)| own.len());
    let mut wait = false;
    for (i, own) in turns {
        match schedules[i].next(&own) {
            Next::Run(job) => return Next::Run(PlannedRun { workload: workloads[i].clone(), ..job }),
            Next::Wait => wait = true,
            Next::Finished => {}
        }
    }
    if wait { Next::Wait } else { Next::Finished }
}

/// What was begun for some workloads is made for the others; then comes what is next for all.
fn next_of_pairs(workloads: &[Option<String>], schedule: &mut WorkloadSchedule, made: &[StudyRun]) -> Next {
    let groups = groups(made);
    // Who is first changes, so that none is always made on the warmer machine.
    let turn = |group: usize, k: usize| &workloads[(group + k) % workloads.len()];
    for (g, runs) in groups.iter().enumerate() {
        let missing = (0..workloads.len())
            .map(|k| turn(g, k))
            .find(|workload| runs.iter().all(|run| run.job.workload != **workload));
        if let Some(workload) = missing {
            return Next::Run(PlannedRun { workload: workload.clone(), ..runs[0].job.clone() });
        }
    }
    let joint = joint(schedule.problem(), &groups, workloads);
    match schedule.next(&joint) {
        Next::Run(job) => Next::Run(PlannedRun { workload: turn(groups.len(), 0).clone(), ..job }),
        other => other,
    }
}

/// What runs that differ in their workload alone have in common: role, levels, share, repeat.
type Common<'a> = (u8, &'a [Option<u32>], u64, u64);

/// The same run of all workloads, in the order in which the first of each began.
fn groups(made: &[StudyRun]) -> Vec<Vec<&StudyRun>> {
    let mut places: BTreeMap<Common<'_>, usize> = BTreeMap::new();
    let mut groups: Vec<Vec<&StudyRun>> = Vec::new();
    for run in made {
        let PlannedRun { role, levels, share, repeat, .. } = &run.job;
        let place = *places.entry((*role as u8, levels, share.to_bits(), *repeat)).or_insert(groups.len());
        if place == groups.len() {
            groups.push(Vec::new());
        }
        groups[place].push(run);
    }
    groups
}

/// What the one sampler is told: the runs of all workloads as one.
fn joint(problem: &Problem, groups: &[Vec<&StudyRun>], workloads: &[Option<String>]) -> Vec<StudyRun> {
    let units = units(problem, groups, workloads);
    let joined = |(id, runs): (usize, &Vec<&StudyRun>)| StudyRun {
        job: PlannedRun { id: id as u64, workload: None, ..runs[0].job.clone() },
        end: together(problem, runs, &units),
    };
    groups.iter().enumerate().map(joined).collect()
}

/// A workload's unit of each objective: what it reached in the first run that counts and that reached it everywhere.
/// What takes one workload an hour and another one a second then counts alike.
type Units = BTreeMap<(Option<String>, String), f64>;

fn units(problem: &Problem, groups: &[Vec<&StudyRun>], workloads: &[Option<String>]) -> Units {
    let mut units = Units::new();
    for Objective { metric, .. } in &problem.objectives {
        let reached = |run: &&StudyRun| match &run.end {
            Some(End::Ok { metrics }) => metrics.get(metric).copied().filter(|value| value.abs() > 0.0),
            _ => None,
        };
        let counts = groups.iter().filter(|runs| runs[0].job.role != Role::WarmUp);
        let mut whole = counts.filter(|runs| runs.len() == workloads.len());
        let first =
            whole.find_map(|runs| runs.iter().map(reached).collect::<Option<Vec<f64>>>().map(|v| (runs, v)));
        if let Some((runs, values)) = first {
            let middle = mean(&values.iter().map(|v| v.abs()).collect::<Vec<_>>());
            let unit = |(run, value): (&&StudyRun, f64)| {
                ((run.job.workload.clone(), metric.clone()), value.abs() / middle)
            };
            units.extend(runs.iter().zip(values).map(unit));
        }
    }
    units
}

/// How the same run of all workloads ended: with the mean of its figures, objectives in each workload's unit. A limit
/// that does not hold for one workload does not hold.
fn together(problem: &Problem, runs: &[&StudyRun], units: &Units) -> Option<End> {
    if runs.iter().any(|run| run.end.is_none()) {
        return None;
    }
    let all: Option<Vec<&BTreeMap<String, f64>>> = runs.iter().map(|run| run.metrics()).collect();
    let Some(all) = all else {
        let mut causes = runs.iter().filter_map(|run| match &run.end {
            Some(End::Failed { cause } | End::Refused { cause } | End::Diverged { cause }) => Some(cause),
            _ => None,
        });
        return Some(End::Failed { cause: causes.next().cloned().unwrap_or_default() });
    };
    let everywhere = all[0].keys().filter(|name| all.iter().all(|metrics| metrics.contains_key(*name)));
    let of_all = |name: &String| (name.clone(), mean(&all.iter().map(|m| m[name]).collect::<Vec<_>>()));
    let mut metrics: BTreeMap<String, f64> = everywhere.map(of_all).collect();
    let mut missed = runs.iter().any(|run| matches!(run.end, Some(End::Beaten { .. })));
    for (i, Objective { metric, .. }) in problem.objectives.iter().enumerate() {
        let clock = problem.clock.as_deref().filter(|_| i == 0);
        let in_units = |run: &&StudyRun| {
            let bound = run.bound(metric, clock);
            let value = bound.or_else(|| run.metrics()?.get(metric).copied())?;
            let unit = units.get(&(run.job.workload.clone(), metric.clone())).copied().unwrap_or(1.0);
            Some((value / unit, bound.is_some()))
        };
        let values: Option<Vec<(f64, bool)>> = runs.iter().map(in_units).collect();
        match values {
            Some(values) => {
                missed |= values.iter().any(|(_, bound)| *bound);
                metrics.insert(
                    metric.clone(),
                    mean(&values.iter().map(|(value, _)| *value).collect::<Vec<_>>()),
                );
            }
            None => drop(metrics.remove(metric)),
        }
    }
    for limit in &problem.limits {
        let margin = |own: &BTreeMap<String, f64>| {
            let point = Point(runs[0].job.levels.clone());
            limit.margin(&|name: &str| {
                let level = || problem.space.value(&point, name).cloned();
                own.get(name).map(|v| Value::Number(*v)).or_else(level)
            })
        };
        let worst = all.iter().filter_map(|own| Some((margin(own)?, own))).min_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((_, own)) = worst.filter(|(margin, _)| *margin < 0.0) {
            let told = limit.names().into_iter().filter_map(|name| own.get_key_value(name));
            metrics.extend(told.map(|(name, value)| (name.clone(), *value)));
        }
    }
    Some(if missed { End::Beaten { metrics } } else { End::Ok { metrics } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_plan::{Axis, Condition, Goal, Space};

    fn problem() -> Problem {
        let axis = Axis::new("a", vec![Value::Number(1.0), Value::Number(2.0)]);
        Problem {
            space: Space::new(vec![axis], vec![]).unwrap(),
            objectives: vec![Objective { metric: "time".into(), goal: Goal::Minimize }],
            limits: vec![Condition::parse("accuracy >= 0.5").unwrap()],
            seed: 1,
            budget: None,
            duplicates: false,
            prior: None,
            joins: BTreeMap::new(),
            clock: Some("given".into()),
        }
    }

    fn ended(workload: &str, end: End) -> StudyRun {
        let levels = vec![Some(0)];
        let (role, workload) = (Role::Point, Some(workload.into()));
        StudyRun { job: PlannedRun { id: 0, role, workload, levels, share: 1.0, repeat: 0 }, end: Some(end) }
    }

    fn ok(workload: &str, metrics: &[(&str, f64)]) -> StudyRun {
        let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        ended(workload, End::Ok { metrics })
    }

    fn joined(runs: &[StudyRun]) -> Option<End> {
        let runs: Vec<&StudyRun> = runs.iter().collect();
        let unit = |name: &str, unit: f64| ((Some(name.to_owned()), "time".to_owned()), unit);
        together(&problem(), &runs, &[unit("x", 1.0), unit("y", 100.0)].into())
    }

    #[test]
    fn workloads_count_alike_whatever_their_scale() {
        let both = [("x", 3.0, 0.9), ("y", 500.0, 0.7)];
        let runs = both.map(|(name, time, accuracy)| ok(name, &[("time", time), ("accuracy", accuracy)]));
        let Some(End::Ok { metrics }) = joined(&runs) else { panic!("both ended well") };
        assert_eq!((metrics["time"], metrics["accuracy"]), (4.0, 0.8));
    }

    #[test]
    fn a_limit_that_one_workload_breaks_is_broken_and_a_failure_fails() {
        let good = ok("x", &[("time", 3.0), ("accuracy", 0.9)]);
        let broken = [good.clone(), ok("y", &[("time", 500.0), ("accuracy", 0.4)])];
        let Some(End::Ok { metrics }) = joined(&broken) else { panic!("both ended well") };
        assert_eq!(metrics["accuracy"], 0.4, "not the mean, which would be good enough");
        let failed = [good, ended("y", End::Diverged { cause: "not a number".into() })];
        assert_eq!(joined(&failed), Some(End::Failed { cause: "not a number".into() }));
    }

    #[test]
    fn a_target_that_one_workload_misses_is_a_bound_for_both() {
        let reached = ok("x", &[("time", 3.0), ("given", 9.0), ("accuracy", 0.9)]);
        let missed = ok("y", &[("given", 700.0), ("accuracy", 0.6)]);
        let Some(End::Beaten { metrics }) = joined(&[reached, missed]) else { panic!("it is a bound") };
        assert_eq!(metrics["time"], 5.0);
    }
}
