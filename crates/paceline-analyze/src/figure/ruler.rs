//! An axis in pixels: where values lie, and where it has its labels.

use super::{AxisScale, ChartAxis};
use crate::table::{number, short};

pub struct Ruler<'a> {
    pub axis: &'a ChartAxis,
    pub low: f64,
    pub high: f64,
    /// Whether all values are one.
    pub single: bool,
    from: f64,
    to: f64,
}

impl<'a> Ruler<'a> {
    pub fn new(axis: &'a ChartAxis, values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Self {
        let log = axis.is_log();
        let usable = values.filter(|v| v.is_finite() && (!log || *v > 0.0));
        let (mut low, mut high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let single = low == high;
        if let AxisScale::Names(names) = &axis.scale {
            (low, high) = (-0.6, names.len() as f64 - 0.4);
        } else if low > high {
            (low, high) = if log { (1.0, 10.0) } else { (0.0, 1.0) };
        } else if log {
            let widen = match axis.scale {
                AxisScale::Log => 1.15,
                _ if low == high => 2.0,
                _ => 1.25,
            };
            (low, high) = (low / widen, high * widen);
        } else {
            let alone = if low == 0.0 { 1.0 } else { 0.5 * low.abs() };
            let room = if high > low { 0.05 * (high - low) } else { alone };
            // An axis that begins at nothing shows it.
            low = if low == 0.0 { 0.0 } else { low - room };
            high += room;
        }
        Self { axis, low, high, single, from, to }
    }

    /// Pixels between two neighbouring names.
    pub fn step(&self) -> f64 {
        (self.to - self.from).abs() / (self.high - self.low)
    }

    pub fn at(&self, value: f64) -> f64 {
        let part = if self.axis.is_log() {
            (value.max(1e-300) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        round(self.from + (self.to - self.from) * part.clamp(-0.02, 1.02))
    }

    /// Labels in rising order; those of names are all there.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        match &self.axis.scale {
            AxisScale::Names(names) => {
                names.iter().enumerate().map(|(i, name)| (i as f64, short(name))).collect()
            }
            AxisScale::Units(unit) => {
                unit.ticks((self.low, self.high)).into_iter().map(|t| (t, unit.show(t))).collect()
            }
            AxisScale::Log => {
                let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
                let step = ((last - first) / 6).max(1);
                let decades: Vec<i32> = (first..=last).filter(|d| d % step == 0).collect();
                let few =
                    decades.iter().filter(|d| (self.low..=self.high).contains(&10f64.powi(**d))).count() < 3;
                let parts: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let all = decades.iter().flat_map(|d| parts.iter().map(|p| p * 10f64.powi(*d)));
                let shown: Vec<(f64, String)> =
                    all.filter(|t| (self.low..=self.high).contains(t)).map(|t| (t, number(t))).collect();
                // What spans little has hardly a label there.
                if shown.len() < 3 { self.even() } else { shown }
            }
            AxisScale::Linear => self.even(),
        }
    }

    fn even(&self) -> Vec<(f64, String)> {
        let rough = (self.high - self.low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|m| m * power);
        let step = steps.into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        // As many digits as tell two labels apart.
        let digits = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
        let show = |t: f64| match digits {
            0..=6 if t.abs() < 1e9 => format!("{t:.digits$}"),
            _ => number(t),
        };
        (first..=last).map(|i| i as f64 * step).map(|t| (t, show(t))).collect()
    }
}

pub fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_labels_differ() {
        let axis = ChartAxis::linear("s");
        for values in [[0.9001, 0.9052], [1_000_000.0, 1_000_400.0], [0.0, 30.0], [1e-7, 9e-7]] {
            let ticks = Ruler::new(&axis, values.into_iter(), (0.0, 300.0)).ticks();
            assert!(ticks.len() >= 3, "{ticks:?}");
            assert!(ticks.windows(2).all(|pair| pair[0].1 != pair[1].1), "{ticks:?}");
        }
        let log = ChartAxis { scale: AxisScale::Log, ..axis };
        for values in [[2.2, 4.4], [7.0, 26.0], [0.6, 1.9]] {
            let ticks = Ruler::new(&log, values.into_iter(), (0.0, 300.0)).ticks();
            assert!(ticks.len() >= 3, "{ticks:?}");
        }
    }
}
