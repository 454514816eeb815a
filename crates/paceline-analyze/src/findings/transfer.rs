//! Whether answers carry over from workload to workload, in sentences.

use crate::analysis::WorkloadBest;
use crate::phrases::list;
use crate::table::{WorkloadTraits, number};
use crate::transfer::{GroupAgreement, SharedTrait, TransferLoss, WorkloadAgreement};

use super::{Evidence, Finding, FindingKind};

/// A loss below this is none to speak of.
const LITTLE: f64 = 0.05;
/// Ranks that agree less than this do not carry over.
const ALIKE: f64 = 0.5;
/// Pairs of workloads that are told one by one.
const MOST_PAIRS: usize = 3;
/// Bytes per FLOP differ clearly by this factor, wait shares by this much.
const TIMES_THE_BYTES: f64 = 2.0;
const MORE_WAITING: f64 = 0.1;

/// A loss in percent with its interval.
pub fn lost(loss: &TransferLoss) -> String {
    let percent = |part: f64| number((1e3 * part).round() / 10.0);
    match loss.interval {
        _ if loss.missed > 0 => format!("at least {}%", percent(loss.loss)),
        Some((low, high)) => format!("{}% [{}, {}]", percent(loss.loss), percent(low), percent(high)),
        None => format!("{}%", percent(loss.loss)),
    }
}

/// A correlation with its interval.
fn rho(value: f64, interval: Option<(f64, f64)>) -> String {
    let interval = interval.map_or_else(String::new, |(low, high)| format!(" [{low:.2}, {high:.2}]"));
    format!("{value:.2}{interval}").replace('-', "−")
}

/// How alike ranks are by what workloads share.
fn by_group(groups: &[GroupAgreement]) -> Option<String> {
    let find = |shared| groups.iter().find(|group| group.shared == shared);
    let (model, data) = (find(SharedTrait::Model)?, find(SharedTrait::Data)?);
    let figure = |group: &GroupAgreement| rho(group.spearman, group.interval);
    let of_model = format!("{} between datasets with the same model", figure(model));
    let of_data = format!("{} between models with the same data", figure(data));
    let neither = find(SharedTrait::Neither)
        .map_or_else(String::new, |group| format!(", {} where both differ", figure(group)));
    let words = match model.interval.zip(data.interval) {
        Some((m, d)) if m.0 > d.1 => format!("Ranks follow the model: ρ = {of_model}, {of_data}"),
        Some((m, d)) if d.0 > m.1 => format!("Ranks follow the data: ρ = {of_data}, {of_model}"),
        Some((m, d)) if m.0.min(d.0) > ALIKE => {
            format!("Configurations rank alike across data and across models: ρ = {of_model}, {of_data}")
        }
        _ => format!("Whether ranks follow the model or the data cannot be told: ρ = {of_model}, {of_data}"),
    };
    Some(words + &neither)
}

/// How alike ranks are by pair.
fn by_pair(agreements: &[WorkloadAgreement]) -> Option<String> {
    let mut told: Vec<(&WorkloadAgreement, f64)> =
        agreements.iter().filter_map(|pair| Some((pair, pair.spearman?.value))).collect();
    told.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words = |(pair, value): &(&WorkloadAgreement, f64)| {
        format!("{} between {} and {}", rho(*value, pair.spearman_interval), pair.a, pair.b)
    };
    let (first, last) = (told.first()?, told.last()?);
    let n = told.iter().map(|(pair, _)| pair.n).max().unwrap_or(0);
    let parts = if told.len() <= MOST_PAIRS {
        list(&told.iter().map(words).collect::<Vec<_>>(), "and")
    } else {
        let mean = told.iter().map(|(_, value)| value).sum::<f64>() / told.len() as f64;
        let mean = rho(mean, None);
        format!("{} down to {}; {mean} on average over {} pairs", words(first), words(last), told.len())
    };
    Some(format!("Ranks of configurations (n = {n}) correlate with ρ = {parts}"))
}

/// What the record says about two workloads on which configurations rank differently, if it says something clear: the one
/// that sends more bytes for its work also waits more.
fn reason(a: &WorkloadTraits, b: &WorkloadTraits) -> Option<String> {
    let (few, many) = if a.bytes_per_flop? <= b.bytes_per_flop? { (a, b) } else { (b, a) };
    let (less, more) = (few.bytes_per_flop?, many.bytes_per_flop?);
    let (short, long) = (few.wait_share?, many.wait_share?);
    (less > 0.0 && more / less >= TIMES_THE_BYTES && long - short >= MORE_WAITING).then(|| {
        let [less, more] = [less, more].map(|bytes| number(1e3 * bytes));
        let [short, long] = [short, long].map(|share| number((100.0 * share).round()));
        format!(
            "The likely reason, from the record: {} has {more} bytes of gradient per thousand FLOPs, {} has {less}; sending \
             and waiting take {long}% of its workers' time, and {short}% on {}",
            many.name, few.name, few.name
        )
    })
}

impl Evidence<'_> {
    /// How ranks and the best configurations carry over, and why they do not.
    pub(super) fn transfer(&self) -> Vec<Finding> {
        let Some(transfer) = self.transfer else { return Vec::new() };
        let told =
            |sentence: String| self.finding(FindingKind::Transfer, sentence, vec![transfer.workload.clone()]);
        let ranks = by_group(&transfer.groups).or_else(|| by_pair(&transfer.agreements));
        let mut found: Vec<Finding> = ranks.map(told).into_iter().collect();
        found.extend(self.worst_loss());
        let costs = |loss: &TransferLoss, pair: &WorkloadAgreement| {
            let between = [(&pair.a, &pair.b), (&pair.b, &pair.a)].contains(&(&loss.from, &loss.to));
            between && loss.interval.is_some_and(|(low, _)| low > LITTLE)
        };
        let fails = |pair: &&WorkloadAgreement| {
            let differ = pair.spearman_interval.is_some_and(|(_, high)| high < ALIKE);
            differ || transfer.losses.iter().any(|loss| costs(loss, pair))
        };
        let mut apart: Vec<&WorkloadAgreement> = transfer.agreements.iter().filter(fails).collect();
        let alike = |pair: &WorkloadAgreement| pair.spearman.map_or(1.0, |c| c.value);
        apart.sort_by(|a, b| alike(a).total_cmp(&alike(b)));
        let why =
            |pair: &&WorkloadAgreement| reason(self.table.traits(&pair.a)?, self.table.traits(&pair.b)?);
        found.extend(apart.iter().find_map(why).map(told));
        found
    }

    fn worst_loss(&self) -> Option<Finding> {
        let transfer = self.transfer?;
        let sure = |loss: &TransferLoss| match loss.interval {
            _ if loss.missed > 0 => f64::INFINITY,
            Some((low, _)) => low,
            None => 0.0,
        };
        let order = |a: &&TransferLoss, b: &&TransferLoss| {
            sure(a).total_cmp(&sure(b)).then(a.loss.total_cmp(&b.loss))
        };
        let worst = transfer.losses.iter().max_by(order)?;
        let all = transfer.losses.len();
        let known = transfer.losses.iter().filter_map(|loss| loss.interval);
        let (mut little, mut much) = (0, 0);
        for (low, high) in known {
            little += usize::from(high < LITTLE);
            much += usize::from(low > LITTLE);
        }
        let others = if self.noise.is_some() {
            format!("of {all} such changes {little} lose less than 5% and {much} more, as far as can be told")
        } else {
            let carried = transfer.losses.iter().filter(|loss| loss.loss < LITTLE).count();
            format!("{carried} of {all} such changes lose less than 5%")
        };
        let missed = match worst.missed {
            0 => String::new(),
            runs => format!(", where {runs} of its runs missed {}", self.scale().name),
        };
        let sentence = format!(
            "The best configuration of {} {} loses {} on {}{missed} against the best one there (n = {} configurations); \
             {others}",
            transfer.workload,
            worst.from,
            lost(worst),
            worst.to,
            worst.n,
        );
        let finding = self.finding(FindingKind::Transfer, sentence, vec![transfer.workload.clone()]);
        Some(Finding { assured: worst.loss.max(0.0).ln_1p(), ..finding })
    }

    /// What several workloads leave open.
    pub(super) fn transfer_gaps(&self) -> Vec<String> {
        let mut gaps = Vec::new();
        let open = |one: &&WorkloadBest| one.best.as_good().is_some_and(|of| !of.is_empty());
        let open: Vec<String> = self.each.iter().filter(open).map(|one| one.workload.clone()).collect();
        if !open.is_empty() {
            gaps.push(format!("which of those that may be best is the best on {}", list(&open, "and")));
        }
        let Some(transfer) = self.transfer.filter(|_| !self.each.is_empty()) else { return gaps };
        let unknown = |loss: &&TransferLoss| loss.interval.is_some_and(|(l, h)| l <= LITTLE && h >= LITTLE);
        let unsure = transfer.losses.iter().filter(unknown).count();
        if unsure > 0 {
            let all = transfer.losses.len();
            gaps.push(format!("whether {unsure} of {all} borrowed configurations lose more than 5%"));
        }
        if transfer.agreements.iter().all(|pair| pair.spearman.is_none()) {
            gaps.push(
                "how ranks carry over (fewer than three configurations were run on two workloads)".into(),
            );
        }
        gaps
    }
}
