//! Synthetic studies with known effects, interactions and noise: intervals of 95% contain the truth as often as they
//! say, and no more is found that is not there than the nominal rate.

use crate::synthetic::{Covered, KINDS, SyntheticOutcome, told};
use serde_json::json;

use super::{Line, Report, Setup};
use crate::process::Outcome;

const STUDIES: u64 = 1000;

fn sum<'a>(studies: impl Iterator<Item = &'a SyntheticOutcome>, of: fn(&SyntheticOutcome) -> Covered) -> f64 {
    let add = |a: Covered, t: &SyntheticOutcome| Covered { all: a.all + of(t).all, hit: a.hit + of(t).hit };
    studies.fold(Covered::default(), add).share()
}

/// Coverage and false findings over a thousand studies.
pub fn measure(_: &Setup) -> Outcome<Report> {
    let all: Vec<SyntheticOutcome> = (0..STUDIES).map(told).collect();
    let between = |claim: &str, share: f64| {
        let line =
            |claim: String, wanted: f64, at_most: bool| Line { claim, reached: share, wanted, at_most };
        [line(format!("{claim}, at least"), 0.93, false), line(format!("{claim}, at most"), 0.97, true)]
    };
    let mut lines: Vec<Line> = Vec::new();
    lines.extend(between("95% intervals of main effects hold the truth", sum(all.iter(), |t| t.alone)));
    lines.extend(between("95% intervals of interactions hold the truth", sum(all.iter(), |t| t.together)));
    for (k, (name, ..)) in KINDS.iter().enumerate() {
        let own = || all.iter().filter(|t| t.seed % KINDS.len() as u64 == k as u64);
        lines.extend(between(&format!("{name}: main effects"), sum(own(), |t| t.alone)));
        lines.extend(between(&format!("{name}: interactions"), sum(own(), |t| t.together)));
    }
    let count = |of: fn(&SyntheticOutcome) -> usize| all.iter().map(of).sum::<usize>() as f64;
    let (claims, wrong) = (count(|t| t.claims), count(|t| t.wrong));
    for (claim, reached, wanted, at_most) in [
        ("all changes of a factor at once hold the truth", sum(all.iter(), |t| t.jointly), 0.93, false),
        (
            "studies that tell of an effect that is not there",
            count(|t| usize::from(t.wrong > 0)) / STUDIES as f64,
            0.05,
            true,
        ),
        ("false findings among all findings of effects", wrong / claims, 0.05, true),
        ("effects that are there and are told", (claims - wrong) / count(|t| t.there), 0.5, false),
    ] {
        lines.push(Line { claim: claim.into(), reached, wanted, at_most });
    }
    Ok(Report { lines, runs: all.iter().map(|t| json!(t)).collect() })
}
