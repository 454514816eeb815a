//! Parts of sentences: amounts with their intervals, lists, the best configuration, speeds.

use crate::anova::Estimate;
use crate::best::Ranking;
use crate::noise::{Noise, NoiseSource};
use crate::table::{Response, number};

/// An amount without its sign, and its interval, e.g. `31% [24, 37]`.
pub fn amount(response: &Response, change: &Estimate) -> String {
    let down = change.value < 0.0;
    // Percentages of a decrease are parts of what was there before.
    let show = |value: f64| {
        let size = if response.log { 100.0 * value.exp_m1() } else { value };
        number(if down { -size } else { size })
    };
    let unit = if response.log { "%".into() } else { format!(" {}", response.unit) };
    let interval = match (change.low, change.high) {
        (Some(low), Some(high)) => {
            let (low, high) = if down { (high, low) } else { (low, high) };
            format!(" [{}, {}]", show(low), show(high))
        }
        _ => " (no interval: the noise is not known)".into(),
    };
    format!("{}{}{interval}", show(change.value), unit.trim_end())
}

/// A change with its sign and interval, e.g. `−3% [−9, 4]`.
pub fn signed(response: &Response, change: &Estimate) -> String {
    let show = |value: f64| number(if response.log { 100.0 * value.exp_m1() } else { value });
    let unit = if response.log { "%".into() } else { format!(" {}", response.unit) };
    let interval = change.low.zip(change.high);
    let interval = interval.map_or_else(String::new, |(l, h)| format!(" [{}, {}]", show(l), show(h)));
    format!("{}{}{interval}", show(change.value), unit.trim_end()).replace('-', "−")
}

/// Names with commas, and a word before the last one.
pub fn list(names: &[String], word: &str) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} {word} {last}", all.join(", ")),
    }
}

/// The best configuration in words.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct BestWords {
    pub configuration: String,
    /// Its mean with unit and interval.
    pub figure: String,
    /// Of how many runs.
    pub n: String,
    /// Whether others may be as good; begins with a semicolon, if anything can be said.
    pub beside: String,
}

impl BestWords {
    /// Of a ranking.
    pub fn new(scale: &Response, ranking: &Ranking, noise: Option<&Noise>) -> Option<Self> {
        let best = ranking.configurations.first()?;
        let figure = match (best.mean.low, best.mean.high) {
            (Some(low), Some(high)) => {
                let [low, high] = [low, high].map(|v| number(scale.unscaled(v)));
                format!("{} [{low}, {high}]", scale.show(best.value))
            }
            _ if best.missed > 0 => format!("at least {}", scale.show(best.value)),
            _ => scale.show(best.value),
        };
        let from = match noise.map(|noise| noise.source) {
            Some(NoiseSource::Repeats) => "the noise of repeats",
            _ => "what the model leaves as noise",
        };
        let beside = match ranking.as_good().as_deref() {
            _ if ranking.configurations.len() == 1 => String::new(),
            None => "; whether others are as good cannot be told".into(),
            Some([]) => "; no other can be as good".to_owned(),
            Some([other]) => {
                let other = &other.configuration;
                format!("; {other} may be as good: the two cannot be told apart, given {from}")
            }
            Some(others) => format!("; {} others may be as good, given {from}", others.len()),
        };
        let missed = match best.missed {
            0 => String::new(),
            missed => format!(", {missed} of which missed it"),
        };
        let runs = if best.runs.len() == 1 { "run" } else { "runs" };
        let configuration = match best.configuration.as_str() {
            "" => "the only configuration".into(),
            words => words.into(),
        };
        Some(Self { configuration, figure, n: format!("n = {} {runs}{missed}", best.runs.len()), beside })
    }
}

/// How many times as fast, in words that also fit speeds that are alike.
pub fn times_as_fast(speed_up: f64) -> String {
    match number(speed_up).as_str() {
        "1" => "only as fast as".into(),
        times => format!("{times} times as fast as"),
    }
}

/// Which part of the work is done by one worker at a time, with its interval.
pub fn one_at_a_time(contention: &Estimate) -> String {
    if contention.value >= 0.995 {
        return "; no part of the work goes on side by side".into();
    }
    let mut words =
        format!("; {}% of the work is done by one worker at a time", number(100.0 * contention.value));
    if let Some((low, high)) = contention.low.zip(contention.high) {
        words += &format!(" [{}, {}]", number(100.0 * low.max(0.0)), number(100.0 * high.min(1.0)));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_workers_are_not_1_times_as_fast() {
        assert_eq!(times_as_fast(1.002), "only as fast as");
        assert_eq!(times_as_fast(0.8), "0.8 times as fast as");
        assert_eq!(times_as_fast(3.1), "3.1 times as fast as");
    }

    #[test]
    fn not_100_percent_of_the_work_is_queued_for() {
        let of = |value| one_at_a_time(&Estimate { value, low: Some(-0.1), high: Some(0.4) });
        assert_eq!(of(1.0), "; no part of the work goes on side by side");
        assert_eq!(of(0.25), "; 25% of the work is done by one worker at a time [0, 40]");
    }
}
