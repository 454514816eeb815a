//! Lines on logarithmic axes, as SVG that is readable on light and on dark ground.

use std::fmt::Write;

use crate::figure::svg::{COLOURS, STYLE, round, text};
use crate::sheet::escape;
use crate::statistics::{Spread, distinct};

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
    fn ticks(self, (low, high): (f64, f64)) -> Vec<f64> {
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

/// A measured point.
#[derive(Clone, Copy, Debug)]
pub struct Dot {
    /// Where it lies.
    pub x: f64,
    /// What was measured there.
    pub y: Spread,
}

/// What belongs together.
#[derive(Clone, Debug)]
pub struct ChartSeries {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub dots: Vec<Dot>,
}

/// One pair of axes: words, and what is counted.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// The axis to the right.
    pub x: (String, ChartUnit),
    /// The axis upwards.
    pub y: (String, ChartUnit),
    /// What is drawn.
    pub lines: Vec<ChartSeries>,
}

/// Panels side by side.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// How it came about.
    pub subtitle: String,
    /// From left to right; lines of one name have one colour.
    pub panels: Vec<Panel>,
}

/// A panel's room with its axes, and the rectangle inside them.
const PANEL: (f64, f64) = (480.0, 360.0);
const INSET: (f64, f64, f64, f64) = (86.0, 34.0, 30.0, 50.0);
/// Room between the legend and the panels.
const HEAD: f64 = 22.0;

/// What differs from the style of other charts.
const LARGER: &str = "text{font-size:12px}.title{font-size:16px}.line{stroke-width:2}";

impl Chart {
    /// The drawing.
    pub fn svg(&self) -> String {
        let (names, width) = (self.names(), PANEL.0 * self.panels.len() as f64);
        let places = legend(&names, width);
        let head = places.last().map_or(0.0, |(_, y)| *y) + HEAD;
        let height = head + PANEL.1;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-label=\"{0}\">\n<title>{0}</title>\n<style>{STYLE}{LARGER}</style>\n\
             <rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n",
            escape(&self.title)
        );
        text(&mut svg, (16.0, 26.0), "title", "start", &self.title);
        text(&mut svg, (16.0, 46.0), "faint", "start", &self.subtitle);
        for (i, (name, (at, y))) in names.iter().zip(places).enumerate() {
            let _ = writeln!(svg, "<path class=\"line c{}\" d=\"M{at} {y}h24\"/>", i % COLOURS);
            svg += &mark(i, (at + 12.0, y));
            text(&mut svg, (at + 30.0, y + 4.0), "", "start", name);
        }
        for (i, panel) in self.panels.iter().enumerate() {
            let _ = writeln!(svg, "<g transform=\"translate({} {head})\">", PANEL.0 * i as f64);
            panel.draw(&names, &mut svg);
            svg += "</g>\n";
        }
        svg + "</svg>\n"
    }

    fn names(&self) -> Vec<&str> {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines);
        distinct(lines.map(|line| line.name.as_str()))
    }
}

impl Panel {
    fn draw(&self, names: &[&str], svg: &mut String) {
        let (left, top, right, bottom) = INSET;
        let (far, low) = (PANEL.0 - right, PANEL.1 - bottom);
        let dots = || self.lines.iter().flat_map(|line| &line.dots);
        let xs = range(dots().map(|dot| dot.x), 1.3);
        let ys = range(dots().flat_map(|dot| [dot.y.least, dot.y.greatest]), 1.25);
        let x = |value: f64| round(left + (far - left) * part(value, xs));
        let y = |value: f64| round(low - (low - top) * part(value, ys));
        text(svg, (left, 20.0), "panel", "start", &self.title);
        // Labels where something was measured, if there is room for them.
        let mut measured = distinct(dots().map(|dot| dot.x));
        measured.sort_by(f64::total_cmp);
        let labels = if measured.len() <= 7 { measured } else { self.x.1.ticks(xs) };
        for tick in labels {
            let at = x(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{at} {top}V{low}\"/>");
            text(svg, (at, low + 18.0), "faint", "middle", &self.x.1.show(tick));
        }
        for tick in self.y.1.ticks(ys) {
            let at = y(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{left} {at}H{far}\"/>");
            text(svg, (left - 6.0, at + 4.0), "faint", "end", &self.y.1.show(tick));
        }
        let _ = writeln!(svg, "<path class=\"frame\" d=\"M{left} {top}V{low}H{far}\"/>");
        text(svg, ((left + far) / 2.0, low + 40.0), "", "middle", &format!("{} (log)", self.x.0));
        let middle = (top + low) / 2.0;
        let _ = writeln!(
            svg,
            "<text transform=\"translate(14 {middle}) rotate(-90)\" text-anchor=\"middle\">{} (log)</text>",
            escape(&self.y.0)
        );
        for line in &self.lines {
            let i = names.iter().position(|name| *name == line.name).unwrap_or(0);
            let points: Vec<_> =
                line.dots.iter().map(|dot| format!("{} {}", x(dot.x), y(dot.y.median))).collect();
            let _ = writeln!(svg, "<path class=\"line c{}\" d=\"M{}\"/>", i % COLOURS, points.join("L"));
            for dot in &line.dots {
                let (at, from, to) = (x(dot.x), y(dot.y.least), y(dot.y.greatest));
                let _ = writeln!(svg, "<path class=\"bar c{}\" d=\"M{at} {from}V{to}\"/>", i % COLOURS);
                *svg += &mark(i, (at, y(dot.y.median)));
            }
        }
    }
}

/// Where the legend's entries begin: in rows below title and subtitle.
fn legend(names: &[&str], width: f64) -> Vec<(f64, f64)> {
    let (mut x, mut y) = (16.0, 66.0);
    let place = |name: &&str| {
        let room = 54.0 + 7.0 * name.chars().count() as f64;
        if x > 16.0 && x + room > width {
            (x, y) = (16.0, y + 20.0);
        }
        let place = (x, y);
        x += room;
        place
    };
    names.iter().map(place).collect()
}

/// A shape of its own for each line, so that colour is not all that tells them apart.
fn mark(i: usize, (x, y): (f64, f64)) -> String {
    let shape = match i % 4 {
        0 => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        1 => "m-3.5 -3.5h7v7h-7z",
        2 => "m0 -4.5l4.5 8h-9z",
        _ => "m0 -5l5 5l-5 5l-5 -5z",
    };
    format!("<path class=\"mark c{}\" d=\"M{x} {y}{shape}\"/>\n", i % COLOURS)
}

/// From the least to the greatest of positive values, widened by a factor.
fn range(values: impl Iterator<Item = f64>, widen: f64) -> (f64, f64) {
    let fold = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
    let (low, high) = values.filter(|v| *v > 0.0).fold((f64::INFINITY, 0.0), fold);
    match (low, high) {
        (low, high) if low > high => (1.0, 10.0),
        (low, high) if low == high => (low / 2.0, high * 2.0),
        (low, high) => (low / widen, high * widen),
    }
}

/// How far a value lies between the ends of a logarithmic axis.
fn part(value: f64, (low, high): (f64, f64)) -> f64 {
    ((value / low).ln() / (high / low).ln()).clamp(0.0, 1.0)
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

    #[test]
    fn a_legend_that_is_too_long_for_one_row_has_several() {
        let places = legend(&["a long name"; 9], 480.0);
        assert!(places.iter().all(|(x, _)| *x < 400.0), "{places:?}");
        assert_eq!((places[0], places[8].1), ((16.0, 66.0), 66.0 + 20.0 * 2.0));
    }

    #[test]
    fn a_chart_has_a_line_per_name_in_each_panel_and_escapes_its_words() {
        let spread = Spread { median: 2.0, least: 1.0, greatest: 3.0 };
        let dots = vec![Dot { x: 64.0, y: spread }, Dot { x: 4096.0, y: spread }];
        let line = |name: &str| ChartSeries { name: name.into(), dots: dots.clone() };
        let panel = Panel {
            title: "panel".into(),
            x: ("size".into(), ChartUnit::Bytes),
            y: ("time".into(), ChartUnit::Seconds),
            lines: vec![line("a"), line("b")],
        };
        let chart =
            Chart { title: "a < b".into(), subtitle: String::new(), panels: vec![panel.clone(), panel] };
        let svg = chart.svg();
        // Two panels of two lines, and two entries of the legend.
        assert_eq!(svg.matches("class=\"line ").count(), 6);
        assert_eq!(svg.matches("class=\"bar ").count(), 8);
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"), "{svg}");
        let empty = Chart { panels: vec![Panel { lines: Vec::new(), ..chart.panels[0].clone() }], ..chart };
        assert!(!empty.svg().contains("NaN"));
    }
}
