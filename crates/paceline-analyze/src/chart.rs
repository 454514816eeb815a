//! Units of what is measured: numbers that carry them, and where their logarithmic axes have labels.

pub use crate::figure::Figure as Chart;

/// Seconds, as people say them.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChartUnit {
    /// Bytes, in powers of 1024.
    Bytes,
    /// Seconds.
    Seconds,
    /// Bytes per second, in powers of 1000.
    BytesPerSecond,
    /// Things.
    Count,
}

impl ChartUnit {
    /// A number with its unit: three digits at most, and no zeros behind them.
    pub fn show(self, value: f64) -> String {
        let (step, names): (f64, &[&str]) = match self {
            Self::Bytes => (1024.0, &["B", "KiB", "MiB", "GiB"]),
            Self::Seconds => (1000.0, &["ns", "µs", "ms", "s"]),
            Self::BytesPerSecond => (1000.0, &["B/s", "kB/s", "MB/s", "GB/s"]),
            Self::Count => (f64::INFINITY, &[""]),
        };
        let mut value = if self == Self::Seconds { value * 1e9 } else { value };
        let mut at = 0;
        while value >= step * 0.9995 && at + 1 < names.len() {
            value /= step;
            at += 1;
        }
        let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
        let text = format!("{value:.digits$}");
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        format!("{text} {}", names[at]).trim_end().to_owned()
    }

    /// Where an axis has its labels.
    pub(crate) fn ticks(self, (low, high): (f64, f64)) -> Vec<f64> {
        let base: f64 = if matches!(self, Self::Bytes | Self::Count) { 2.0 } else { 10.0 };
        let first = (low.ln() / base.ln() - 1e-9).ceil() as i32;
        let last = (high.ln() / base.ln() + 1e-9).floor() as i32;
        // At most seven labels; sizes go in steps of 4, 16, 64, …
        let steps = if self == Self::Bytes { [2, 4, 6, 8, 10] } else { [1, 2, 3, 4, 5] };
        let step = steps.into_iter().find(|step| (last - first) / step < 7).unwrap_or(20);
        let powers: Vec<f64> =
            (first..=last).filter(|power| power % step == 0).map(|power| base.powi(power)).collect();
        if base == 2.0 || powers.len() >= 3 {
            return powers;
        }
        let between = (first - 1..=last).flat_map(|power| [1.0, 2.0, 5.0].map(|n| n * base.powi(power)));
        between.filter(|tick| (low..=high).contains(tick)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_with_their_unit_and_three_digits() {
        for (unit, value, shown) in [
            (ChartUnit::Bytes, 64.0, "64 B"),
            (ChartUnit::Bytes, 4096.0, "4 KiB"),
            (ChartUnit::Bytes, 1.5 * 1048576.0, "1.5 MiB"),
            (ChartUnit::Seconds, 2.346e-6, "2.35 µs"),
            (ChartUnit::Seconds, 0.12, "120 ms"),
            (ChartUnit::Seconds, 0.9999e-3, "1 ms"),
            (ChartUnit::BytesPerSecond, 3.0e9, "3 GB/s"),
            (ChartUnit::Count, 4.0, "4"),
            (ChartUnit::Count, 2048.0, "2048"),
            (ChartUnit::BytesPerSecond, 812_345_678.0, "812 MB/s"),
        ] {
            assert_eq!(unit.show(value), shown);
        }
    }

    #[test]
    fn axes_have_few_labels_and_these_are_powers() {
        assert_eq!(ChartUnit::Bytes.ticks((64.0, 16777216.0)).len(), 5);
        let decades = ChartUnit::Seconds.ticks((2e-6, 0.3));
        assert_eq!(decades.len(), 5);
        assert!(decades[0] > 9e-6 && decades[0] < 11e-6);
        assert_eq!(ChartUnit::Seconds.ticks((0.3, 3.0)), [0.5, 1.0, 2.0]);
    }
}
