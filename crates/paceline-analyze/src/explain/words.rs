//! Explanations in words, and two runs beside each other.

use paceline_statistics::median;
use serde::Serialize;

use super::verdict::seconds;
use super::{Change, Explanation, RankTimes, workers};
use crate::sheet::TextTable;
use crate::table::number;

/// Two runs beside each other.
#[derive(Clone, Debug, Serialize)]
pub struct RunComparison {
    /// Samples per second of the first over those of the second.
    pub speed: f64,
    /// By how much the first's step is longer, in seconds, by what it is spent on: computing, handling, waiting, updating.
    pub longer_s: [(&'static str, f64); 4],
    /// A direct answer.
    pub sentence: String,
}

impl RunComparison {
    /// Why is the first slower (or faster) than the second?
    pub fn new(a: &Explanation, b: &Explanation) -> Self {
        let typical = |of: &Explanation, part: fn(&RankTimes) -> f64| {
            median(&workers(&of.ranks).iter().map(|r| part(r)).collect::<Vec<_>>())
        };
        type Part = (&'static str, fn(&RankTimes) -> f64);
        let parts: [Part; 4] = [
            ("computing", |r| r.compute_s),
            ("sending, receiving and summing", |r| r.send_s),
            ("waiting", |r| r.wait_s),
            ("updating", |r| r.apply_s),
        ];
        let longer_s = parts.map(|(name, part)| (name, typical(a, part) - typical(b, part)));
        let speed = a.samples_per_s / b.samples_per_s;
        let most = longer_s.iter().max_by(|x, y| (x.1 * sign(speed)).total_cmp(&(y.1 * sign(speed))));
        let most = most.copied().unwrap_or(("computing", 0.0));
        let (na, nb) = (workers(&a.ranks).len(), workers(&b.ranks).len());
        let who = |n: usize| if n == 1 { "1 worker".into() } else { format!("{n} workers") };
        let faster = if speed < 1.0 { "slower" } else { "faster" };
        let times = if speed < 1.0 { 1.0 / speed } else { speed };
        let mut sentence = format!(
            "{} ({}, {} samples/s) is {} times {faster} than {} ({}, {} samples/s): a step takes {} instead of {}; the \
             greatest difference is {}, {} per step",
            a.run,
            who(na),
            number(a.samples_per_s),
            number(times),
            b.run,
            who(nb),
            number(b.samples_per_s),
            seconds(a.step_s),
            seconds(b.step_s),
            most.0,
            if most.1 >= 0.0 {
                format!("{} more", seconds(most.1))
            } else {
                format!("{} less", seconds(-most.1))
            },
        );
        if speed < 1.0 && na > nb {
            let gained = typical(b, |r| r.step_s) * na as f64 / nb as f64;
            sentence += &format!(
                ". {} do {} times the work per step and would be faster if a step took less than {}, but exchanging \
                 takes {} of it: {}",
                who(na),
                number(na as f64 / nb as f64),
                seconds(gained),
                seconds(typical(a, |r| r.send_s) + typical(a, |r| r.wait_s)),
                a.verdict.sentence
            );
        }
        Self { speed, longer_s, sentence }
    }
}

/// Which way a difference explains a speed.
fn sign(speed: f64) -> f64 {
    if speed < 1.0 { 1.0 } else { -1.0 }
}

impl Change {
    /// In words: what is saved, how that is known, and what to do.
    pub fn words(&self) -> String {
        let then = match self.step_s {
            Some(step_s) => format!("a step of {}, predicted by simulation", seconds(step_s)),
            None => "at most, by the recorded chain; not simulated".into(),
        };
        format!("{:.0}% less ({then}): {}", 100.0 * self.gain, self.what)
    }
}

impl Explanation {
    /// For people.
    pub fn text(&self) -> String {
        let origin = if self.origin == "measured" { "" } else { ", simulated" };
        let mut text = format!(
            "{}{origin}: a step takes {}, {} samples/s\n\n{}\n",
            self.run,
            seconds(self.step_s),
            number(self.samples_per_s),
            self.verdict.sentence
        );
        if !self.verdict.changes.is_empty() {
            text += "\nWhat would help most comes first\n";
            for change in &self.verdict.changes {
                text += &format!("- {}\n", change.words());
            }
        }
        if let Some(alone) = &self.alone {
            text += &format!("\n{}\n", alone.sentence);
        }
        for gap in &self.cannot_tell {
            text += &format!("\nnote: {gap}\n");
        }
        for sheet in self.sheets() {
            text += &format!("\n{}", sheet.text());
        }
        text
    }

    /// Tables of an explanation.
    pub fn sheets(&self) -> Vec<TextTable> {
        let mut ranks = TextTable::new(
            "Where the time of a step went",
            &[
                "rank",
                "role",
                "host",
                "step",
                "computing",
                "sending, summing",
                "waiting",
                "updating",
                "busy",
                "waits for",
            ],
            3,
            "medians over steps; of a server means over its updates",
        );
        for r in &self.ranks {
            let waits = r
                .waits_for
                .map_or_else(String::new, |(on, part)| format!("rank {on} ({:.0}%)", 100.0 * part));
            ranks.rows.push(vec![
                r.rank.to_string(),
                r.role.into(),
                r.host.clone(),
                seconds(r.step_s),
                seconds(r.compute_s),
                seconds(r.send_s),
                seconds(r.wait_s),
                seconds(r.apply_s),
                format!("{:.0}%", 100.0 * r.busy),
                waits,
            ]);
        }
        let mut sheets = vec![ranks];
        if let Some(path) = &self.path {
            let note = format!(
                "over the last {:.0} steps, {:.1} hops from rank to rank per step; what is not on this chain could be \
                 faster without any effect",
                path.steps, path.hops_per_step
            );
            let mut sheet = TextTable::new("The chain that sets the pace", &["part", "share"], 1, &note);
            let share = |v: f64| format!("{:.1}%", 100.0 * v);
            for (rank, part) in path.compute.iter().enumerate().filter(|(_, part)| **part > 0.0005) {
                sheet.rows.push(vec![format!("computing on rank {rank}"), share(*part)]);
            }
            for (name, part) in [
                ("sending, summing, updating on workers", path.handling),
                ("servers", path.server),
                ("bytes on links", path.bytes),
                ("latency of links", path.latency),
            ] {
                sheet.rows.push(vec![name.into(), share(part)]);
            }
            sheets.push(sheet);
        }
        if !self.waits.is_empty() {
            let mut sheet =
                TextTable::new("Who waited for whom", &["rank", "for rank", "time"], 2, "over the whole run");
            for wait in self.waits.iter().take(10) {
                sheet.rows.push(vec![wait.rank.to_string(), wait.on.to_string(), seconds(wait.seconds)]);
            }
            sheets.push(sheet);
        }
        sheets
    }
}
