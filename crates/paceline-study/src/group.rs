//! Studies as the live page shows them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use paceline_analyze::table::{ABSENT, RawRun};
use paceline_dash::{Group, Member, Studies, StudyOverview};
use paceline_explore::schedule::{End, Role, StudyRun};

use crate::registries::AllRegistries;
use crate::state::{self, StudyHistory, StudyState};
use crate::table;

/// The studies of a store, and what they can name.
pub struct StudyStore(pub PathBuf, pub AllRegistries);

impl Studies for StudyStore {
    fn names(&self) -> Vec<String> {
        state::names(&self.0)
    }

    /// A journal only grows; and somebody is at work on it, or not.
    fn stamp(&self, name: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        let file = state::journal(&self.0, name).metadata();
        let length = file.as_ref().map_or(0, std::fs::Metadata::len);
        let changed = file.and_then(|f| f.modified()).ok();
        (length, changed, StudyState::busy(&self.0, name)).hash(&mut hasher);
        hasher.finish()
    }

    fn read(&self, name: &str) -> Result<StudyOverview, String> {
        let known = StudyState::peek(&self.0, name, &self.1).map_err(|failure| failure.to_string())?;
        let busy = StudyState::busy(&self.0, name);
        Ok(study(&known, busy))
    }
}

fn study(known: &StudyHistory, busy: bool) -> StudyOverview {
    let axes = known.factors();
    let responses = table::responses(known);
    let analysed = table::runs(known, &responses);
    let member = |((made, run), analysed): ((&StudyRun, &Option<String>), Option<RawRun>)| {
        let (job, levels) = (&made.job, known.levels(&made.job));
        let level = |name: &String| levels.get(name).map_or_else(|| ABSENT.to_owned(), ToString::to_string);
        let first = responses.first().map(|r| r.name.as_str()).unwrap_or_default();
        let clock = crate::clock(&known.study, &known.registries.figures);
        let (state, error) = match &made.end {
            // What was begun when the study was interrupted is made again.
            None if busy => ("running", None),
            None => ("interrupted", None),
            Some(End::Ok { .. }) if made.bound(first, clock).is_some() => ("missed", None),
            Some(End::Ok { .. }) => ("ok", None),
            Some(End::Beaten { .. }) => ("ended early", None),
            Some(End::Failed { cause }) => ("failed", Some(cause.clone())),
            Some(End::Refused { cause }) => ("refused", Some(cause.clone())),
            Some(End::Diverged { cause }) => ("diverged", Some(cause.clone())),
        };
        Member {
            number: job.id,
            run: run.clone(),
            role: match job.role {
                Role::WarmUp => "warm-up",
                Role::Control => "control",
                Role::Baseline => "baseline",
                Role::Point => "point",
            },
            state: state.into(),
            error,
            levels: axes.iter().map(level).collect(),
            counts: analysed.is_some(),
            analysed,
            ..Member::default()
        }
        .measuring(responses.iter().map(|r| made.metrics().and_then(|m| m.get(&r.name).copied())))
    };
    let members: Vec<Member> = known.made.iter().zip(&known.runs).zip(analysed.clone()).map(member).collect();
    let (ended, expected) = (known.ended(), known.expected());
    let best = crate::report::BestSoFar::new(known).and_then(|best| best.figure());
    StudyOverview {
        state: known.phase(busy),
        sampler: known.study.sampler.clone(),
        expected,
        left_s: (ended > 0 && !known.finished).then(|| known.seconds_each() * (expected - ended) as f64),
        group: Group {
            alone: table::alone(known),
            repeats: table::repeats(known),
            timed: true,
            best,
            ..Group::new(&known.study.name, axes, responses, members)
        },
    }
}
