//! A chart as SVG that is readable on light and on dark ground.

use std::fmt::Write;

use super::{AxisScale, ChartAxis, ChartMark, Figure, Panel};
use crate::sheet::escape;
use crate::table::number;

struct Layout {
    panel: (f64, f64),
    /// Left, top, right and bottom of the rectangle inside a panel's axes.
    inset: (f64, f64, f64, f64),
    /// The legend: length of a line, where the name begins, room of an entry, and per character of its name.
    entry: (f64, f64, f64, f64),
    /// Between two rows of the legend, and from the last one to the panels.
    rows: (f64, f64),
    /// What differs from [`STYLE`].
    style: &'static str,
}

const USUAL: Layout = Layout {
    panel: (400.0, 300.0),
    inset: (84.0, 30.0, 18.0, 62.0),
    entry: (18.0, 23.0, 34.0, 6.2),
    rows: (18.0, 16.0),
    style: "",
};

/// Charts of benchmarks, whose axes have units, stand alone in a document.
const LARGE: Layout = Layout {
    panel: (480.0, 360.0),
    inset: (86.0, 34.0, 30.0, 50.0),
    entry: (24.0, 30.0, 54.0, 7.0),
    rows: (20.0, 22.0),
    style: "text{font-size:12px}.title{font-size:16px}.line{stroke-width:2}",
};

const COLOURS: usize = 8;
/// Names of an axis longer than this are cut.
const LONGEST: usize = 22;

/// Colours that differ for colour-blind eyes too, on light and on dark ground.
const STYLE: &str = include_str!("svg.css");

struct Ruler<'a> {
    axis: &'a ChartAxis,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl<'a> Ruler<'a> {
    fn new(axis: &'a ChartAxis, values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Self {
        let log = axis.is_log();
        let usable = values.filter(|v| v.is_finite() && (!log || *v > 0.0));
        let (mut low, mut high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
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
            let room = if high > low { 0.05 * (high - low) } else { 0.5 * low.abs().max(1.0) };
            // An axis that begins at nothing shows it.
            low = if low == 0.0 { 0.0 } else { low - room };
            high += room;
        }
        Self { axis, low, high, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let part = if self.axis.is_log() {
            (value.max(1e-300) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        round(self.from + (self.to - self.from) * part.clamp(-0.02, 1.02))
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match &self.axis.scale {
            AxisScale::Names(names) => {
                let every = names.len().div_ceil(12).max(1);
                let all = names.iter().enumerate().step_by(every);
                all.map(|(i, name)| (i as f64, cut(name))).collect()
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
                all.filter(|t| (self.low..=self.high).contains(t)).map(|t| (t, number(t))).collect()
            }
            AxisScale::Linear => {
                let rough = (self.high - self.low) / 5.0;
                let power = 10f64.powf(rough.log10().floor());
                let steps = [1.0, 2.0, 5.0, 10.0].map(|m| m * power);
                let step = steps.into_iter().find(|s| *s >= rough).unwrap_or(rough);
                let first = (self.low / step).ceil() as i64;
                let last = (self.high / step).floor() as i64;
                (first..=last).map(|i| i as f64 * step).map(|t| (t, number(t))).collect()
            }
        }
    }
}

fn cut(name: &str) -> String {
    if name.chars().count() <= LONGEST {
        name.into()
    } else {
        name.chars().take(LONGEST - 1).collect::<String>() + "…"
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, anchor: &str, words: &str) {
    let words = escape(words);
    let _ =
        writeln!(svg, "<text x=\"{x}\" y=\"{y}\" class=\"{class}\" text-anchor=\"{anchor}\">{words}</text>");
}

fn turned(svg: &mut String, (x, y): (f64, f64), degrees: i32, style: &str, words: &str) {
    let words = escape(words);
    let _ = writeln!(svg, "<text transform=\"translate({x} {y}) rotate({degrees})\" {style}>{words}</text>");
}

/// Something that says what it is when it is pointed at.
fn element(svg: &mut String, tag: &str, attributes: &str, label: &str) {
    let title = if label.is_empty() { String::new() } else { format!("<title>{}</title>", escape(label)) };
    let _ = writeln!(svg, "<{tag} {attributes}>{title}</{tag}>");
}

/// A shape of its own for each line, so that colour is not all that tells them apart.
fn shape(i: usize, (x, y): (f64, f64)) -> String {
    let shape = match i % 4 {
        0 => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        1 => "m-3.5 -3.5h7v7h-7z",
        2 => "m0 -4.5l4.5 8h-9z",
        _ => "m0 -5l5 5l-5 5l-5 -5z",
    };
    format!("<path class=\"mark c{}\" d=\"M{x} {y}{shape}\"/>\n", i % COLOURS)
}

/// Where the legend's entries begin: in rows below the title and what is counted.
fn legend(layout: &Layout, names: &[&str], width: f64) -> Vec<(f64, f64)> {
    let (mut x, mut y) = (16.0, 66.0);
    let place = |name: &&str| {
        let room = layout.entry.2 + layout.entry.3 * name.chars().count() as f64;
        if x > 16.0 && x + room > width {
            (x, y) = (16.0, y + layout.rows.0);
        }
        let place = (x, y);
        x += room;
        place
    };
    names.iter().map(place).collect()
}

/// From dark blue over green to yellow, evenly bright steps.
fn shade(part: f64) -> String {
    const STOPS: [[f64; 3]; 5] = [
        [68.0, 1.0, 84.0],
        [59.0, 82.0, 139.0],
        [33.0, 145.0, 140.0],
        [94.0, 201.0, 98.0],
        [253.0, 231.0, 37.0],
    ];
    let at = part.clamp(0.0, 1.0) * 4.0;
    let (i, rest) = ((at.floor() as usize).min(3), at - at.floor().min(3.0));
    let [r, g, b] = [0, 1, 2].map(|c| (STOPS[i][c] * (1.0 - rest) + STOPS[i + 1][c] * rest).round());
    format!("rgb({r},{g},{b})")
}

impl Figure {
    /// The drawing.
    pub fn svg(&self) -> String {
        let (columns, names) = (self.columns(), self.names());
        let rows = self.panels.len().div_ceil(columns);
        let large = self.panels.iter().any(|panel| panel.x.has_unit());
        let (layout, below) =
            if large { (LARGE, self.reading.clone()) } else { (USUAL, format!("n = {}", self.n)) };
        let width = (layout.panel.0 * columns as f64).max(560.0);
        let places = legend(&layout, &names, width);
        let head = places.last().map_or(66.0, |(_, y)| *y) + layout.rows.1;
        let height = head + layout.panel.1 * rows as f64;
        let title = escape(&self.title);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<desc>{}</desc>\n\
             <style>{}{}</style>\n<rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n",
            escape(&self.reading),
            STYLE.replace('\n', ""),
            layout.style
        );
        text(&mut svg, (16.0, 24.0), "title", "start", &self.title);
        text(&mut svg, (16.0, 44.0), "faint", "start", &below);
        let (line, begin, ..) = layout.entry;
        for (i, (name, (at, y))) in names.iter().zip(places).enumerate() {
            let _ = writeln!(svg, "<path class=\"line c{}\" d=\"M{at} {y}h{line}\"/>", i % COLOURS);
            if large {
                svg += &shape(i, (at + line / 2.0, y));
            }
            text(&mut svg, (at + begin, y + 4.0), "", "start", name);
        }
        for (i, panel) in self.panels.iter().enumerate() {
            let (wide, tall) = layout.panel;
            let (x, y) = (wide * (i % columns) as f64, head + tall * (i / columns) as f64);
            let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
            panel.draw(&layout, &names, &mut svg);
            svg += "</g>\n";
        }
        svg + "</svg>\n"
    }
}

impl Panel {
    fn values(&self, along_x: bool) -> Vec<f64> {
        let mut all = Vec::new();
        for mark in &self.marks {
            match mark {
                ChartMark::Points { points, .. } if along_x => all.extend(points.iter().map(|p| p.x)),
                ChartMark::Points { points, .. } => points.iter().for_each(|p| {
                    all.push(p.y);
                    all.extend(p.range.map(|r| [r.0, r.1]).into_iter().flatten());
                }),
                ChartMark::Bars { bars, lying, .. } if *lying == along_x => bars.iter().for_each(|b| {
                    all.extend([b.from, b.to]);
                    all.extend(b.range.map(|r| [r.0, r.1]).into_iter().flatten());
                }),
                ChartMark::Bars { .. } | ChartMark::Heat { .. } => {}
            }
        }
        all
    }

    fn draw(&self, layout: &Layout, names: &[&str], svg: &mut String) {
        let ((left, top, right, bottom), (wide, tall)) = (layout.inset, layout.panel);
        let (far, low) = (wide - right, tall - bottom);
        let x = Ruler::new(&self.x, self.values(true).into_iter(), (left, far));
        let y = Ruler::new(&self.y, self.values(false).into_iter(), (low, top));
        text(svg, (left, 20.0), "panel", "start", &self.title);
        let mut ticks = x.ticks();
        if let AxisScale::Units(unit) = self.x.scale {
            let mut places = self.values(true);
            places.sort_by(f64::total_cmp);
            places.dedup();
            // Labels where something was measured, if there is room for them.
            if places.len() <= 7 {
                ticks = places.into_iter().map(|place| (place, unit.show(place))).collect();
            }
        }
        // Names that would not fit side by side are turned.
        let crowded =
            ticks.iter().map(|(_, n)| 6.5 * n.chars().count() as f64 + 8.0).sum::<f64>() > far - left;
        for (tick, name) in ticks {
            let at = x.at(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{at} {top}V{low}\"/>");
            if crowded {
                turned(svg, (at, low + 14.0), -28, "class=\"faint\" text-anchor=\"end\"", &name);
            } else {
                text(svg, (at, low + 16.0), "faint", "middle", &name);
            }
        }
        for (tick, name) in y.ticks() {
            let at = y.at(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{left} {at}H{far}\"/>");
            text(svg, (left - 6.0, at + 4.0), "faint", "end", &name);
        }
        for mark in &self.marks {
            mark.draw(names, &x, &y, svg);
        }
        let _ = writeln!(svg, "<path class=\"frame\" d=\"M{left} {top}V{low}H{far}\"/>");
        text(svg, ((left + far) / 2.0, tall - 8.0), "", "middle", &self.x.title);
        turned(svg, (13.0, (top + low) / 2.0), -90, "text-anchor=\"middle\"", &self.y.title);
    }
}

impl ChartMark {
    fn draw(&self, names: &[&str], x: &Ruler<'_>, y: &Ruler<'_>, svg: &mut String) {
        let series = names.iter().position(|name| *name == self.name()).unwrap_or(0);
        let colour = series % COLOURS;
        match self {
            Self::Points { line, dots, points, .. } => {
                if *line {
                    for part in points.split(|p| !p.y.is_finite()).filter(|part| part.len() > 1) {
                        let path: Vec<String> =
                            part.iter().map(|p| format!("{} {}", x.at(p.x), y.at(p.y))).collect();
                        let class = if *dots { "line" } else { "thin" };
                        let _ =
                            writeln!(svg, "<path class=\"{class} c{colour}\" d=\"M{}\"/>", path.join("L"));
                    }
                }
                for p in points.iter().filter(|p| *dots && p.y.is_finite()) {
                    let at = x.at(p.x);
                    if let Some((low, high)) = p.range {
                        let (low, high) = (y.at(low), y.at(high));
                        let _ = writeln!(svg, "<path class=\"bar c{colour}\" d=\"M{at} {low}V{high}\"/>");
                    }
                    let height = y.at(p.y);
                    if x.axis.has_unit() {
                        *svg += &shape(series, (at, height));
                        continue;
                    }
                    let shape = format!("class=\"mark c{colour}\" cx=\"{at}\" cy=\"{height}\" r=\"2.6\"");
                    element(svg, "circle", &shape, &p.label);
                }
            }
            Self::Bars { lying, bars, .. } => {
                let (places, lengths) = if *lying { (y, x) } else { (x, y) };
                let thick = round((places.at(0.0) - places.at(0.8)).abs());
                for b in bars {
                    let middle = places.at(b.at);
                    let (from, to) = (lengths.at(b.from), lengths.at(b.to));
                    let (start, length) = (from.min(to), round((to - from).abs()));
                    let side = round(middle - thick / 2.0);
                    let shape = if *lying {
                        format!("x=\"{start}\" y=\"{side}\" width=\"{length}\" height=\"{thick}\"")
                    } else {
                        format!("x=\"{side}\" y=\"{start}\" width=\"{thick}\" height=\"{length}\"")
                    };
                    element(svg, "rect", &format!("class=\"mark c{colour}\" {shape}"), &b.label);
                    if let Some((low, high)) = b.range {
                        let (low, high) = (lengths.at(low), lengths.at(high));
                        let path = if *lying {
                            format!("M{low} {middle}H{high}")
                        } else {
                            format!("M{middle} {low}V{high}")
                        };
                        let _ = writeln!(svg, "<path class=\"frame\" d=\"{path}\"/>");
                    }
                }
            }
            Self::Heat { value, cells } => {
                let all = || cells.iter().flatten().flatten().copied();
                let (low, high) =
                    (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
                let wide = (x.at(1.0) - x.at(0.0)).abs();
                let tall = (y.at(1.0) - y.at(0.0)).abs();
                for (j, row) in cells.iter().enumerate() {
                    for (i, cell) in row.iter().enumerate() {
                        let Some(cell) = cell else { continue };
                        let part = if high > low { (cell - low) / (high - low) } else { 0.5 };
                        let (cx, cy) = (x.at(i as f64), y.at(j as f64));
                        let [x, y, width, height] = [cx - wide / 2.0, cy - tall / 2.0, wide, tall].map(round);
                        let shape = format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"");
                        let label = format!("{value}: {}", number(*cell));
                        element(svg, "rect", &format!("{shape} fill=\"{}\"", shade(part)), &label);
                        if wide > 30.0 && tall > 12.0 {
                            let ink = if part > 0.6 { "#111" } else { "#fff" };
                            let _ = writeln!(
                                svg,
                                "<text x=\"{cx}\" y=\"{}\" text-anchor=\"middle\" style=\"fill:{ink}\">{}</text>",
                                cy + 4.0,
                                number(*cell)
                            );
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bar, Dot};
    use super::*;
    use crate::chart::ChartUnit;
    use crate::statistics::Spread;

    fn figure(marks: Vec<ChartMark>, x: ChartAxis, y: ChartAxis) -> Figure {
        let panel = Panel { title: "p <1>".into(), x, y, marks };
        Figure {
            id: "f".into(),
            title: "a & b".into(),
            reading: "how".into(),
            n: "2 runs".into(),
            panels: vec![panel],
        }
    }

    #[test]
    fn lines_are_interrupted_and_words_are_escaped() {
        let dot = |x: f64, y: f64| Dot { x, y, range: Some((y / 2.0, y * 2.0)), label: "<r>".into() };
        let points = vec![dot(1.0, 1.0), dot(2.0, 10.0), dot(3.0, f64::NAN), dot(4.0, 100.0), dot(5.0, 50.0)];
        let x = ChartAxis::names("n", (0..6).map(|i| i.to_string()));
        let y = ChartAxis::fitting("t, s", points.iter().map(|p| p.y).filter(|y| y.is_finite()));
        assert_eq!(y.scale, AxisScale::Log);
        let svg = figure(vec![ChartMark::line("one", points)], x, y).svg();
        assert_eq!(svg.matches("class=\"line c0\" d=\"M").count(), 3, "the legend and two parts: {svg}");
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("p &lt;1&gt;") && svg.contains("&lt;r&gt;") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn bars_and_heat_are_drawn_and_told_as_numbers() {
        let bars = vec![Bar { at: 1.0, to: 3.0, label: "=x".into(), ..Bar::default() }];
        let names = || ChartAxis::names("", ["a".into(), "b".into()]);
        let marks = vec![ChartMark::Bars { name: "s".into(), lying: true, bars }];
        let bar = figure(marks, ChartAxis::linear("share, %"), names());
        assert_eq!(bar.svg().matches("<rect class=\"mark").count(), 1);
        assert!(bar.csv().contains("p <1>,s,b,3,0,3,'=x\n"), "{}", bar.csv());
        let cells = vec![vec![Some(1.0), None], vec![Some(2.0), Some(3.5)]];
        let heat = figure(vec![ChartMark::Heat { value: "loss, %".into(), cells }], names(), names());
        assert_eq!(heat.svg().matches("fill=\"rgb(").count(), 3);
        assert_eq!(heat.csv().lines().count(), 4);
        assert!(!heat.is_empty());
        assert_eq!(heat.plotly()["data"][0]["type"], "heatmap");
        assert!(heat.plotly()["data"][0]["z"][0][1].is_null());
    }

    #[test]
    fn a_legend_that_is_too_long_for_one_row_has_several() {
        let places = legend(&LARGE, &["a long name"; 9], 480.0);
        assert!(places.iter().all(|(x, _)| *x < 400.0), "{places:?}");
        assert_eq!((places[0], places[8].1), ((16.0, 66.0), 66.0 + 20.0 * 2.0));
    }

    #[test]
    fn axes_with_units_have_a_line_and_a_shape_per_name_in_each_panel() {
        let spread = Spread { median: 2.0, least: 1.0, greatest: 3.0 };
        let dots = vec![Dot::spread(64.0, spread), Dot::spread(4096.0, spread)];
        let marks = vec![ChartMark::line("a", dots.clone()), ChartMark::line("b", dots)];
        let (x, y) =
            (ChartAxis::units("size", ChartUnit::Bytes), ChartAxis::units("time", ChartUnit::Seconds));
        let mut chart = figure(marks, x, y);
        chart.panels.push(chart.panels[0].clone());
        let svg = chart.svg();
        // Two panels of two lines, and two entries of the legend.
        assert_eq!(svg.matches("class=\"line ").count(), 6);
        assert_eq!(svg.matches("class=\"bar ").count(), 8);
        assert!(svg.contains("a &amp; b") && svg.contains(">4 KiB<") && !svg.contains("NaN"), "{svg}");
        chart.panels.iter_mut().for_each(|panel| panel.marks.clear());
        assert!(!chart.svg().contains("NaN"));
    }
}
