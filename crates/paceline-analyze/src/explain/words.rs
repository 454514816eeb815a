//! Explanations in words.

use super::sentence::{ExactFigures, Sentence, count, name, plain, seconds, show_seconds};
use super::{Cause, Explanation, Shares};
use crate::sheet::TextTable;

impl Explanation {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.summary());
        if let Some(plan) = self.plan.as_ref().filter(|plan| !plan.paths.is_empty()) {
            text += &format!("averaged along {}\n", plan.averaging());
        }
        text += &format!("\n{}\n", self.verdict.sentence);
        if !self.verdict.changes.is_empty() {
            text += "\nWhat would help most comes first\n";
            for change in &self.verdict.changes {
                text += &format!("- {}\n", change.words());
            }
        }
        if let Some(alone) = &self.alone {
            text += &format!("\n{}\n", alone.sentence);
        }
        if !self.membership.is_empty() {
            text += "\nChanges of members\n";
            self.membership.iter().for_each(|change| text += &format!("- {change}\n"));
        }
        for gap in &self.cannot_tell {
            text += &format!("\nnote: {gap}\n");
        }
        for sheet in self.sheets() {
            text += &format!("\n{}", sheet.text());
        }
        text
    }

    /// How fast it was.
    fn summary(&self) -> Sentence {
        let template = match self.origin {
            "measured" => "{}: a step takes {}, {} samples/s",
            _ => "{}, simulated: a step takes {}, {} samples/s",
        };
        let (step_s, rate) = (seconds("step_s", self.step_s), plain("samples_per_s", self.samples_per_s));
        Sentence::new(template, [name(&self.run), step_s, rate])
    }

    /// All its sentences.
    pub fn sentences(&self) -> Vec<Sentence> {
        let mut all = vec![self.summary(), self.verdict.sentence.clone()];
        all.extend(self.verdict.changes.iter().map(super::Change::words));
        all.extend(self.alone.iter().map(|alone| alone.sentence.clone()));
        all.extend(self.membership.iter().cloned());
        all.extend(self.cannot_tell.iter().cloned());
        all.extend(self.path.as_ref().map(Shares::about));
        all
    }

    /// The exact values of all numbers in its sentences.
    pub fn figures(&self) -> ExactFigures {
        self.sentences().iter().flat_map(|sentence| sentence.figures().clone()).collect()
    }

    /// Gradients of a script that were final last: nothing can be sent of them before.
    fn late_gradients(&self) -> Option<TextTable> {
        let mut sheet = TextTable::new(
            "Gradients that were ready last",
            &["tensor", "numbers", "ready after backward began"],
            1,
            "in the slowest worker's last step; what is ready late is sent late",
        );
        let row = |(name, len, ready_s): &(String, usize, f64)| {
            vec![name.clone(), len.to_string(), show_seconds(*ready_s)]
        };
        sheet.rows = self.late_gradients.iter().map(row).collect();
        (!sheet.rows.is_empty()).then_some(sheet)
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
        let observed = self.verdict.cause != Cause::NotObserved;
        let seen = |shown: String| if observed { shown } else { "not observed".to_owned() };
        for r in &self.ranks {
            let waits = r
                .waits_for
                .map_or_else(String::new, |(on, part)| format!("rank {on} ({:.0}%)", 100.0 * part));
            ranks.rows.push(vec![
                r.rank.to_string(),
                r.role.into(),
                r.host.clone(),
                show_seconds(r.step_s),
                show_seconds(r.compute_s),
                seen(show_seconds(r.send_s)),
                seen(show_seconds(r.wait_s)),
                show_seconds(r.apply_s),
                seen(format!("{:.0}%", 100.0 * r.busy)),
                waits,
            ]);
        }
        let mut sheets = vec![ranks];
        sheets.extend(self.late_gradients());
        if let Some(path) = &self.path {
            let mut sheet =
                TextTable::new("The chain that sets the pace", &["part", "share"], 1, &path.about());
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
                sheet.rows.push(vec![wait.rank.to_string(), wait.on.to_string(), show_seconds(wait.seconds)]);
            }
            sheets.push(sheet);
        }
        sheets
    }
}

impl Shares {
    /// What the chain covers.
    fn about(&self) -> Sentence {
        Sentence::new(
            "over the last {} steps, {} hops from rank to rank per step; what is not on this chain could be faster \
             without any effect",
            [
                count("chain_steps", self.steps.round() as usize),
                plain("chain_hops_per_step", self.hops_per_step),
            ],
        )
    }
}
