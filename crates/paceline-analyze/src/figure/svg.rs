//! A chart as SVG that is readable on light and on dark ground, and on paper: at most two panels side by side.

use std::fmt::Write;

use super::layout::{ChartLayout, DrawingStyle, PanelLayout, TickLabels, legend_places};
use super::ruler::{Ruler, round};
use super::text::{fitted, lines};
use super::{ChartMark, Figure, Panel, heat_fits, shape_of};
use crate::sheet::escape;
use crate::table::number;

/// Left and right of everything.
const EDGE: f64 = 16.0;
const COLOURS: usize = 8;
/// Colours that differ for colour-blind eyes too, on light and on dark ground.
const STYLE: &str = include_str!("svg.css");
/// Charts of benchmarks, whose axes have units, stand alone in a document.
const LARGE: &str = "text{font-size:12px}.title{font-size:16px}.line{stroke-width:2}";

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, anchor: &str, words: &str) {
    let (x, y, words) = (round(x), round(y), escape(words));
    let _ =
        writeln!(svg, "<text x=\"{x}\" y=\"{y}\" class=\"{class}\" text-anchor=\"{anchor}\">{words}</text>");
}

fn upright(svg: &mut String, (x, y): (f64, f64), class: &str, anchor: &str, words: &str) {
    let (x, y, words) = (round(x), round(y), escape(words));
    let _ = writeln!(
        svg,
        "<text transform=\"translate({x} {y}) rotate(-90)\" class=\"{class}\" text-anchor=\"{anchor}\">{words}</text>"
    );
}

/// Something that says what it is when it is pointed at.
fn element(svg: &mut String, tag: &str, attributes: &str, label: &str) {
    let title = if label.is_empty() { String::new() } else { format!("<title>{}</title>", escape(label)) };
    let _ = writeln!(svg, "<{tag} {attributes}>{title}</{tag}>");
}

fn shape(series: usize, (x, y): (f64, f64), label: &str) -> String {
    let path = match shape_of(series) {
        0 => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        1 => "m-3.5 -3.5h7v7h-7z",
        2 => "m0 -4.5l4.5 8h-9z",
        _ => "m0 -5l5 5l-5 5l-5 -5z",
    };
    let mut svg = String::new();
    let attributes = format!("class=\"mark c{}\" d=\"M{x} {y}{path}\"", series % COLOURS);
    element(&mut svg, "path", &attributes, label);
    svg
}

/// From dark blue over green to yellow, evenly bright steps.
fn shade(part: f64) -> [f64; 3] {
    const STOPS: [[f64; 3]; 5] = [
        [68.0, 1.0, 84.0],
        [59.0, 82.0, 139.0],
        [33.0, 145.0, 140.0],
        [94.0, 201.0, 98.0],
        [253.0, 231.0, 37.0],
    ];
    let at = part.clamp(0.0, 1.0) * 4.0;
    let (i, rest) = ((at.floor() as usize).min(3), at - at.floor().min(3.0));
    [0, 1, 2].map(|c| (STOPS[i][c] * (1.0 - rest) + STOPS[i + 1][c] * rest).round())
}

/// Black or white, whichever can be read on a colour: by its luminance.
fn ink(rgb: [f64; 3]) -> &'static str {
    let linear = rgb.map(|v| (v / 255.0).powf(2.2));
    let luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    if luminance > 0.18 { "#111" } else { "#fff" }
}

impl Figure {
    /// The drawing, as it stands alone.
    pub fn svg(&self) -> String {
        self.drawing(&self.title)
    }

    /// The drawing below a heading that has its title.
    pub(crate) fn untitled_svg(&self) -> String {
        self.drawing("")
    }

    fn drawing(&self, heading: &str) -> String {
        let names = self.names();
        let large = self.panels.iter().any(|panel| panel.x.has_unit());
        let columns = self.columns().min(2);
        let style = if large {
            DrawingStyle { size: 12.0, columns, width: 520.0 * columns as f64, plot: 276.0, scale: 0.0 }
        } else {
            let (width, plot) = if columns == 1 { (720.0, 270.0) } else { (820.0, 200.0) };
            DrawingStyle { size: 11.0, columns, width, plot, scale: 0.0 }
        };
        let room = style.width - 2.0 * EDGE;
        let layout = self.layout(&style);
        // Bold letters are wider.
        let title_lines = lines(heading, 1.6 * style.size, room, 2);
        let reading = if large { self.reading.clone() } else { self.counted() };
        let below = lines(&reading, style.size, room, 4);
        let entries: Vec<String> = names.iter().map(|name| fitted(name, style.size, room - 40.0)).collect();
        let places = legend_places(&entries, style.size, 32.0, room);
        let mut y = 8.0 + 1.7 * style.size * title_lines.len() as f64;
        let (titled, told) = (8.0, y);
        y += layout.line * below.len() as f64;
        let keyed = y + layout.line;
        y = places.last().map_or(y, |(_, row)| keyed + 1.5 * style.size * *row as f64) + 0.9 * style.size;
        let (width, height) = (style.width, (y + layout.height + 4.0).ceil());
        let title = escape(&self.title);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<desc>{}</desc>\n\
             <style>{}{}</style>\n<rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n",
            escape(&self.reading),
            STYLE.replace('\n', ""),
            if large { LARGE } else { "" }
        );
        for (i, line) in title_lines.iter().enumerate() {
            text(&mut svg, (EDGE, titled + 1.6 * style.size * (i + 1) as f64), "title", "start", line);
        }
        for (i, line) in below.iter().enumerate() {
            text(&mut svg, (EDGE, told + layout.line * (i + 1) as f64 - 2.0), "faint", "start", line);
        }
        for (i, (name, (x, row))) in entries.iter().zip(places).enumerate() {
            let (x, y) = (round(EDGE + x), round(keyed + 1.5 * style.size * row as f64));
            if self.dotted(names[i]) {
                let attributes =
                    format!("class=\"mark c{}\" cx=\"{}\" cy=\"{y}\" r=\"2.6\"", i % COLOURS, x + 12.0);
                element(&mut svg, "circle", &attributes, "");
            } else {
                let _ = writeln!(svg, "<path class=\"line c{}\" d=\"M{x} {y}h24\"/>", i % COLOURS);
            }
            if self.shaped(names[i]) || large {
                svg += &shape(i, (x + 12.0, y), "");
            }
            text(&mut svg, (x + 29.0, y + 4.0), "", "start", name);
        }
        let _ = writeln!(svg, "<g transform=\"translate(0 {})\">", round(y));
        for (panel, at) in self.panels.iter().zip(&layout.panels) {
            panel.draw(&layout, at, (&names, style.size), &mut svg);
        }
        svg + "</g>\n</svg>\n"
    }
}

impl Panel {
    fn draw(&self, layout: &ChartLayout, at: &PanelLayout, (names, size): (&[&str], f64), svg: &mut String) {
        let PanelLayout { left, right, top, bottom, .. } = *at;
        let (x, y) = self.rulers((left, right), (bottom, top));
        text(svg, (left, top - 0.6 * size), "panel", "start", &at.title);
        let TickLabels { ticks, upright: standing, room } = &at.x;
        for (tick, name) in ticks {
            let at = x.at(*tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{at} {top}V{bottom}\"/>");
            if *standing {
                upright(svg, (at + 0.35 * size, bottom + 8.0), "faint", "end", name);
            } else {
                for (i, line) in name.lines().enumerate() {
                    let below = bottom + size + 7.0 + layout.line * i as f64;
                    text(svg, (at, below), "faint", "middle", line);
                }
            }
        }
        for (tick, name) in &at.y.ticks {
            let at = y.at(*tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{left} {at}H{right}\"/>");
            text(svg, (left - 6.0, at + 0.36 * size), "faint", "end", name);
        }
        for mark in &self.marks {
            mark.draw(names, &x, &y, svg);
        }
        let _ = writeln!(svg, "<path class=\"frame\" d=\"M{left} {top}V{bottom}H{right}\"/>");
        for note in &at.notes {
            let (px, py, height) = (x.at(note.point.0), y.at(note.point.1), round(top + note.at));
            let _ = writeln!(svg, "<path class=\"leader\" d=\"M{px} {py}L{right} {height}h8\"/>");
            text(svg, (right + 12.0, height + 0.36 * size), "", "start", &note.text);
        }
        for (i, line) in at.x_title.iter().enumerate() {
            let y = bottom + room + layout.line * (i + 1) as f64 - 1.0;
            text(svg, ((left + right) / 2.0, y), "", "middle", line);
        }
        let first = left - at.y.room - layout.line * (at.y_title.len() as f64 - 1.0) - 4.0;
        for (i, line) in at.y_title.iter().enumerate() {
            upright(svg, (first + layout.line * i as f64, (top + bottom) / 2.0), "", "middle", line);
        }
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
                    if *line {
                        *svg += &shape(series, (at, height), &p.label);
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
                let (wide, tall) = (x.step(), y.step());
                let fits = heat_fits(cells, (wide, tall), 11.0);
                for (j, row) in cells.iter().enumerate() {
                    for (i, cell) in row.iter().enumerate() {
                        let Some(cell) = cell else { continue };
                        let part = if high > low { (cell - low) / (high - low) } else { 0.5 };
                        let (cx, cy) = (x.at(i as f64), y.at(j as f64));
                        let [x, y, width, height] = [cx - wide / 2.0, cy - tall / 2.0, wide, tall].map(round);
                        let shape = format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"");
                        let label = format!("{value}: {}", number(*cell));
                        let [r, g, b] = shade(part);
                        element(svg, "rect", &format!("{shape} fill=\"rgb({r},{g},{b})\""), &label);
                        if fits {
                            let _ = writeln!(
                                svg,
                                "<text x=\"{cx}\" y=\"{}\" text-anchor=\"middle\" style=\"fill:{}\">{}</text>",
                                round(cy + 4.0),
                                ink([r, g, b]),
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
    use super::super::{AxisScale, Bar, ChartAxis, Dot};
    use super::*;
    use crate::chart::ChartUnit;
    use crate::statistics::Spread;

    fn figure(marks: Vec<ChartMark>, x: ChartAxis, y: ChartAxis) -> Figure {
        let panel = Panel::new(x, y, marks).titled("p <1>");
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
        assert_eq!(svg.matches("class=\"mark c0\"").count(), 5, "the legend and four points");
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
    fn numbers_in_cells_can_be_read_on_their_colour() {
        assert_eq!([0.0, 0.25, 0.75, 1.0].map(|part| ink(shade(part))), ["#fff", "#fff", "#111", "#111"]);
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
