//! An analysis as small tables.

use serde_json::json;

use crate::analysis::{Analysis, WorkloadBest};
use crate::anova::Estimate;
use crate::best::Ranking;
use crate::charts::levels::spread_out;
use crate::findings::LEVEL;
use crate::sheet::TextTable;
use crate::table::{Response, number};
use crate::transfer::SharedTrait;
use crate::tuned::{TunedComparison, TuningMethod};

/// Rows of a sheet in which there could be thousands.
const MOST_ROWS: usize = 10;

fn chance(p: Option<f64>) -> String {
    match p {
        None => "–".into(),
        Some(p) if p < 1e-4 => format!("{p:.0e}"),
        Some(p) => format!("{p:.4}"),
    }
}

fn interval(estimate: &Estimate, show: impl Fn(f64) -> String) -> String {
    match estimate.low.zip(estimate.high) {
        Some((low, high)) => format!("{} [{}, {}]", show(estimate.value), show(low), show(high)),
        None => show(estimate.value),
    }
}

/// A value and its interval as measured.
fn measured(response: &Response, estimate: &Estimate) -> String {
    interval(estimate, |value| number(response.unscaled(value)))
}

/// A change and its interval, in percent for logarithms.
fn change(response: &Response, estimate: &Estimate) -> String {
    let size = |v: f64| if response.log { 100.0 * v.exp_m1() } else { v };
    interval(estimate, |v| format!("{}{}", if size(v) > 0.0 { "+" } else { "" }, number(size(v))))
}

impl Analysis {
    /// All tables of the analysis, in the order in which they are read.
    pub fn sheets(&self) -> Vec<TextTable> {
        let mut sheets = self.best_sheets();
        sheets.extend(self.front_sheet());
        sheets.extend(self.anova_sheets());
        sheets.extend(self.importance_sheet());
        sheets.extend(self.influence_sheet());
        sheets.extend(self.rank_sheet());
        sheets.extend(self.transfer_sheets());
        sheets.extend(self.comparisons.iter().flat_map(|one| self.comparison_sheets(one)));
        sheets.extend(self.scaling_sheet());
        sheets
    }

    fn unit(&self) -> String {
        let unit = self.response.unit;
        if unit.is_empty() { String::new() } else { format!(", {unit}") }
    }

    fn best_sheets(&self) -> Vec<TextTable> {
        let on = |one: &WorkloadBest| {
            self.best_sheet(&format!("Best configurations on {}", one.workload), &one.best)
        };
        let mut sheets: Vec<TextTable> = self.each.iter().map(on).collect();
        if self.each.is_empty() {
            sheets.push(self.best_sheet("Best configurations", &self.best));
        } else if !self.best.configurations.is_empty() {
            sheets.push(self.best_sheet("Best configurations for all workloads", &self.best));
        }
        sheets
    }

    fn best_sheet(&self, title: &str, ranking: &Ranking) -> TextTable {
        let value = format!("{}{} [95%]", self.response.name, self.unit());
        let mut sheet = TextTable::new(
            title,
            &["configuration", "n", &value, "may be best"],
            1,
            "means over runs; a configuration may be best if its difference from the first could be noise (Holm, 5%)",
        );
        for c in ranking.configurations.iter().take(MOST_ROWS) {
            let may = c.may_be_best.map_or("not known", |may| if may { "yes" } else { "no" });
            let name = if c.configuration.is_empty() { "the only one" } else { &c.configuration };
            let mean = measured(&self.response, &c.mean);
            sheet.rows.push(vec![name.into(), c.runs.len().to_string(), mean, may.into()]);
        }
        sheet
    }

    fn front_sheet(&self) -> Option<TextTable> {
        let names = &self.front_names[..self.front.first()?.values.len()];
        let head: Vec<&str> = ["configuration"].into_iter().chain(names.iter().map(String::as_str)).collect();
        let note = "no other configuration is better in one and not worse in another";
        let mut sheet = TextTable::new("Pareto front", &head, 1, note);
        for point in self.front.iter().take(3 * MOST_ROWS) {
            let values = point.values.iter().map(|v| number(*v));
            sheet.rows.push([point.configuration.clone()].into_iter().chain(values).collect());
        }
        Some(sheet)
    }

    fn anova_sheets(&self) -> Vec<TextTable> {
        let Some(anova) = &self.anova else { return Vec::new() };
        let mut table = TextTable::new(
            &format!("Analysis of variance of {} (n = {})", self.response.words(), anova.n),
            &["term", "df", "sum of squares", "F", "p", "p (Holm)", "η²", "partial η²", "partial ω²"],
            1,
            "type II: each term beyond all terms that do not contain it; p (Holm) is corrected over all terms",
        );
        for s in &anova.sources {
            let figure = |v: Option<f64>| v.map_or_else(|| "–".into(), number);
            table.rows.push(vec![
                s.term.clone(),
                s.df.to_string(),
                number(s.sum_sq),
                figure(s.f),
                chance(s.p),
                chance(s.p_holm),
                number(s.eta_sq),
                number(s.partial_eta_sq),
                figure(s.partial_omega_sq),
            ]);
        }
        let mut residual =
            vec!["residual".into(), anova.residual_df.to_string(), number(anova.residual_sum_sq)];
        residual.resize(table.head.len(), String::new());
        table.rows.push(residual);
        let change_unit = if self.response.log { ", %".into() } else { self.unit() };
        let mut effects = TextTable::new(
            "Main effects",
            &[
                "factor",
                "level",
                "n",
                &format!("mean{} [95%]", self.unit()),
                &format!("from the mean of all levels{change_unit} [95%]"),
            ],
            2,
            "averaged over the levels of all other factors, each level counting alike; of a factor of many levels, some \
             are shown",
        );
        for effect in &anova.effects {
            for level in spread_out(effect.levels.len()).into_iter().map(|i| &effect.levels[i]) {
                let missing = || "not determined".to_owned();
                effects.rows.push(vec![
                    effect.factor.clone(),
                    level.level.clone(),
                    level.n.to_string(),
                    level.mean.map_or_else(missing, |m| measured(&self.response, &m)),
                    level.effect.map_or_else(missing, |e| change(&self.response, &e)),
                ]);
            }
        }
        vec![table, effects]
    }

    fn importance_sheet(&self) -> Option<TextTable> {
        let importance = self.importance.as_ref()?;
        let note = if importance.together.is_some() {
            "shares of the variation over all levels, each counting alike, and of the noise of one run: they add up"
        } else {
            "the runs are too few to tell noise from factors acting together: these share the last row"
        };
        let mut sheet = TextTable::new("What mattered", &["", "share, % [95%]"], 1, note);
        for (share, percent) in importance.percents() {
            let [low, high] = [share.low, share.high].map(|v| number((100.0 * v).round()));
            sheet.rows.push(vec![importance.label(share), format!("{percent} [{low}, {high}]")]);
        }
        Some(sheet)
    }

    fn influence_sheet(&self) -> Option<TextTable> {
        let model = self.influence.as_ref()?;
        let note = format!(
            "{}; accounts for {}% of the variation, {}% of runs left out one at a time; intervals do not know that \
             terms were chosen",
            model.formula(&self.response.words()),
            number(100.0 * model.r_sq),
            number(100.0 * model.foretold)
        );
        let mut sheet =
            TextTable::new("Performance-influence model", &["term", "coefficient [95%]"], 1, &note);
        for term in &model.terms {
            sheet.rows.push(vec![term.term.clone(), interval(&term.coefficient, number)]);
        }
        Some(sheet)
    }

    fn rank_sheet(&self) -> Option<TextTable> {
        let mut sheet = TextTable::new(
            "Rank tests",
            &["factor", "test", "n", "statistic", "p", "p (Holm)"],
            2,
            "n counts pairs or groups of runs that are alike otherwise, and runs for kruskal-wallis",
        );
        for r in &self.rank_tests {
            let test = json!(r.test).as_str().unwrap_or_default().to_owned();
            let (p, holm) = (chance(Some(r.p)), chance(Some(r.p_holm)));
            sheet.rows.push(vec![r.factor.clone(), test, r.n.to_string(), number(r.statistic), p, holm]);
        }
        (!sheet.rows.is_empty()).then_some(sheet)
    }

    fn transfer_sheets(&self) -> Vec<TextTable> {
        let Some(transfer) = &self.transfer else { return Vec::new() };
        let mut ranks = TextTable::new(
            &format!("Do configurations rank alike across {}?", transfer.workload),
            &["one", "other", "n", "Spearman [95%]", "p", "Kendall", "p"],
            2,
            "1: the same order; 0: no relation; −1: the opposite order",
        );
        for a in &transfer.agreements {
            let interval =
                a.spearman_interval.map_or_else(String::new, |(l, h)| format!(" [{l:.2}, {h:.2}]"));
            let value = |c: Option<crate::ranks::Correlation>| {
                c.map_or_else(|| "–".into(), |c| format!("{:.2}", c.value))
            };
            ranks.rows.push(vec![
                a.a.clone(),
                a.b.clone(),
                a.n.to_string(),
                value(a.spearman) + &interval,
                chance(a.spearman.map(|c| c.p)),
                value(a.kendall),
                chance(a.kendall.map(|c| c.p)),
            ]);
        }
        let mut losses = TextTable::new(
            "Transfer table",
            &["best configuration of", "used on", "loss, % [95%]", "n", "configuration"],
            2,
            "what is lost against the best configuration of the workload itself; intervals allow for both being chosen",
        );
        for l in transfer.losses.iter().chain(&transfer.for_all) {
            let percent = |part: f64| number(100.0 * part);
            let least = if l.missed > 0 { "at least " } else { "" };
            let ends = l.interval.map(|(low, high)| format!(" [{}, {}]", percent(low), percent(high)));
            let loss = format!("{least}{}{}", percent(l.loss), ends.unwrap_or_default());
            losses.rows.push(vec![
                l.from.clone(),
                l.to.clone(),
                loss,
                l.n.to_string(),
                l.configuration.clone(),
            ]);
        }
        let mut sheets = vec![ranks];
        sheets.extend(self.group_sheet());
        sheets.push(losses);
        sheets
    }

    fn group_sheet(&self) -> Option<TextTable> {
        let groups = &self.transfer.as_ref()?.groups;
        let mut sheet = TextTable::new(
            "Do ranks follow the model or the data?",
            &["workloads that share", "pairs", "mean of Spearman [95%]"],
            1,
            "means over pairs; pairs share workloads and configurations, so their ends are averaged too",
        );
        for group in groups {
            let shared = match group.shared {
                SharedTrait::Model => "the model",
                SharedTrait::Data => "the data",
                SharedTrait::Neither => "neither",
            };
            let ends = group.interval.map(|(low, high)| format!(" [{low:.2}, {high:.2}]"));
            let mean = format!("{:.2}{}", group.spearman, ends.unwrap_or_default());
            sheet.rows.push(vec![shared.into(), group.pairs.to_string(), mean]);
        }
        (!sheet.rows.is_empty()).then_some(sheet)
    }

    fn comparison_sheets(&self, one: &TunedComparison) -> [TextTable; 2] {
        let on = one.workload.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
        let own = if one.tuned.is_empty() { "setting".into() } else { one.tuned.join(", ") };
        let note = match one.method {
            TuningMethod::LeaveOneOut => {
                "each repeat is judged with the setting that the others choose; `as chosen by all`: how many of these runs \
                 had what all runs together choose"
            }
            TuningMethod::SameRuns => "chosen and judged on the same runs: intervals allow for the choice",
        };
        let value = format!("{}{} [95%]", self.response.name, self.unit());
        let mut levels = TextTable::new(
            &format!("{} at its own best {own}{on}", one.factor),
            &[&one.factor, "best setting", "settings tried", "runs", "as chosen by all", &value],
            2,
            note,
        );
        for l in &one.levels {
            let settings =
                if l.settings.iter().all(String::is_empty) { "–".into() } else { l.settings.join(" or ") };
            let counts = [l.tried, l.runs, l.agreed].map(|n| n.to_string());
            let figure = l.figure(&self.response);
            levels.rows.push([l.level.clone(), settings].into_iter().chain(counts).chain([figure]).collect());
        }
        let unit = if self.response.log { ", %".into() } else { self.unit() };
        let mut pairs = TextTable::new(
            &format!("Differences between levels of {}{on}", one.factor),
            &["better", "other", &format!("other against better{unit} [95%]"), "p (Holm)", "can be told"],
            2,
            "each level at its own best setting; p is corrected over all pairs",
        );
        for pair in &one.pairs {
            let told = pair.p_holm.map_or("not known", |p| if p < LEVEL { "yes" } else { "no" });
            let apart = change(&self.response, &pair.difference);
            pairs.rows.push(vec![
                pair.better.clone(),
                pair.other.clone(),
                apart,
                chance(pair.p_holm),
                told.into(),
            ]);
        }
        [levels, pairs]
    }

    fn scaling_sheet(&self) -> Option<TextTable> {
        let mut sheet = TextTable::new(
            "Scaling",
            &[
                "configuration",
                "workers",
                "n",
                "speed-up",
                "efficiency, %",
                "one at a time (USL), %",
                "fastest at",
            ],
            1,
            "speed-up over the least number of workers; the last two come from the universal scalability law",
        );
        for series in self.scaling.iter().take(MOST_ROWS) {
            for (i, rung) in series.rungs.iter().enumerate() {
                let law = series.usl.as_ref().filter(|_| i == 0);
                let name = if i == 0 { series.configuration.clone() } else { String::new() };
                sheet.rows.push(vec![
                    name,
                    number(rung.workers),
                    rung.n.to_string(),
                    number(rung.speed_up),
                    number(100.0 * rung.efficiency),
                    law.map_or_else(String::new, |l| number(100.0 * l.contention.value)),
                    law.and_then(|l| l.peak).map_or_else(String::new, |p| format!("{} workers", number(p))),
                ]);
            }
        }
        (!sheet.rows.is_empty()).then_some(sheet)
    }
}
