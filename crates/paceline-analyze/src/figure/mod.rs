//! A chart as data, whatever draws it: an interactive page, an SVG, or a table of its numbers.

mod layout;
mod plotly;
mod ruler;
mod svg;
mod text;

use paceline_plan::{Terminator, to_csv};
use paceline_statistics::distinct;

use crate::chart::ChartUnit;
use crate::statistics::Spread;
use crate::table::number;

pub use plotly::SCRIPT;

/// A chart: one or more panels, with everything that a reader needs.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name in files and addresses.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// How to read it, in a sentence.
    pub reading: String,
    /// What is counted as `n`, e.g. `384 runs`.
    pub n: String,
    /// Its panels, from left to right and from top to bottom.
    pub panels: Vec<Panel>,
}

/// One pair of axes.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Panel {
    /// What it shows; may be empty if there is one only.
    pub title: String,
    pub x: ChartAxis,
    pub y: ChartAxis,
    pub marks: Vec<ChartMark>,
    /// Points whose labels are written beside the panel, the most important first: those for which there is no room
    /// are left out.
    pub notes: Vec<Dot>,
    /// What its upright axis shows at least.
    pub span: Option<(f64, f64)>,
}

impl Panel {
    /// Marks between two axes, without a title.
    pub fn new(x: ChartAxis, y: ChartAxis, marks: Vec<ChartMark>) -> Self {
        Self { title: String::new(), x, y, marks, notes: Vec::new(), span: None }
    }

    /// The same with a title.
    pub fn titled(self, title: impl Into<String>) -> Self {
        Self { title: title.into(), ..self }
    }

    /// Panels whose upright axes are the same, so that what is steep in one is steep in all.
    pub fn on_one_scale(mut panels: Vec<Self>) -> Vec<Self> {
        let values: Vec<f64> = panels.iter().flat_map(|panel| panel.values(false)).collect();
        let ends = |(low, high): (f64, f64), v: &f64| (low.min(*v), high.max(*v));
        let span = values.iter().filter(|v| v.is_finite()).fold((f64::INFINITY, f64::NEG_INFINITY), ends);
        panels.iter_mut().for_each(|panel| panel.span = (span.0 <= span.1).then_some(span));
        panels
    }

    /// The same with labels beside it.
    pub fn noted(self, notes: Vec<Dot>) -> Self {
        Self { notes, ..self }
    }
}

/// An axis.
#[derive(Clone, Debug)]
pub struct ChartAxis {
    /// What it measures, with the unit.
    pub title: String,
    /// How places become numbers.
    pub scale: AxisScale,
}

/// How an axis is divided.
#[derive(Clone, Debug, PartialEq)]
pub enum AxisScale {
    /// Evenly.
    Linear,
    /// By factors of ten.
    Log,
    /// By factors, with the unit at each label.
    Units(ChartUnit),
    /// The place `i` has the name `i`.
    Names(Vec<String>),
}

impl ChartAxis {
    /// An even axis.
    pub fn linear(title: &str) -> Self {
        Self { title: title.into(), scale: AxisScale::Linear }
    }

    /// An axis of factors of ten where all values are positive and far apart, else an even one.
    pub fn fitting(title: &str, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
        let scale = if low > 0.0 && high / low >= 20.0 { AxisScale::Log } else { AxisScale::Linear };
        let title = if scale == AxisScale::Log { format!("{title} (log)") } else { title.into() };
        Self { title, scale }
    }

    /// An axis of factors whose labels have a unit.
    pub fn units(title: &str, unit: ChartUnit) -> Self {
        Self { title: format!("{title} (log)"), scale: AxisScale::Units(unit) }
    }

    /// An axis of names.
    pub fn names(title: &str, names: impl IntoIterator<Item = String>) -> Self {
        Self { title: title.into(), scale: AxisScale::Names(names.into_iter().collect()) }
    }

    fn has_unit(&self) -> bool {
        matches!(self.scale, AxisScale::Units(_))
    }

    fn is_log(&self) -> bool {
        self.scale == AxisScale::Log || self.has_unit()
    }

    fn name(&self, at: f64) -> String {
        match &self.scale {
            AxisScale::Names(names) if at >= 0.0 && at.fract() == 0.0 => {
                names.get(at as usize).cloned().unwrap_or_else(|| at.to_string())
            }
            _ => at.to_string(),
        }
    }
}

/// What is drawn.
#[derive(Clone, Debug)]
pub enum ChartMark {
    /// Points, joined or not; a place that is not a number interrupts the line.
    Points {
        /// Its name in the legend; empty for none.
        name: String,
        /// Whether points are joined.
        line: bool,
        /// Whether single points are shown.
        dots: bool,
        /// The points.
        points: Vec<Dot>,
    },
    /// Bars from one value to another, each at a place of the axis of names.
    Bars {
        /// Its name in the legend; empty for none.
        name: String,
        /// Whether bars lie along x.
        lying: bool,
        /// Place, from, to, and an interval around `to`.
        bars: Vec<Bar>,
    },
    /// Values of two axes of names.
    Heat {
        /// What colours mean, with the unit.
        value: String,
        /// By row (y), then column (x).
        cells: Vec<Vec<Option<f64>>>,
    },
}

/// A point.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Dot {
    pub x: f64,
    pub y: f64,
    pub range: Option<(f64, f64)>,
    pub label: String,
}

/// A bar.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Bar {
    pub at: f64,
    pub from: f64,
    pub to: f64,
    pub range: Option<(f64, f64)>,
    pub label: String,
}

impl Dot {
    /// A point and what it is.
    pub fn new(x: f64, y: f64, label: impl Into<String>) -> Self {
        Self { x, y, range: None, label: label.into() }
    }

    /// The median of repeats, between the least and the greatest of them.
    pub fn spread(x: f64, y: Spread) -> Self {
        Self { x, y: y.median, range: Some((y.least, y.greatest)), label: String::new() }
    }
}

impl ChartMark {
    /// Points without lines.
    pub fn dots(name: &str, points: Vec<Dot>) -> Self {
        Self::Points { name: name.into(), line: false, dots: true, points }
    }

    /// Joined points.
    pub fn line(name: &str, points: Vec<Dot>) -> Self {
        Self::Points { name: name.into(), line: true, dots: true, points }
    }

    /// A line without points.
    pub fn curve(name: &str, points: Vec<Dot>) -> Self {
        Self::Points { name: name.into(), line: true, dots: false, points }
    }

    fn name(&self) -> &str {
        match self {
            Self::Points { name, .. } | Self::Bars { name, .. } => name,
            Self::Heat { .. } => "",
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Points { points, .. } => points.is_empty(),
            Self::Bars { bars, .. } => bars.is_empty(),
            Self::Heat { cells, .. } => cells.iter().flatten().all(Option::is_none),
        }
    }
}

impl Figure {
    /// Whether there is anything to see.
    pub fn is_empty(&self) -> bool {
        self.panels.iter().all(|panel| panel.marks.iter().all(ChartMark::is_empty))
    }

    /// Names in the legend, without repetition; they decide colours.
    fn names(&self) -> Vec<&str> {
        let marks = self.panels.iter().flat_map(|panel| &panel.marks);
        distinct(marks.map(ChartMark::name).filter(|name| !name.is_empty()))
    }

    /// What is counted, and what cells say.
    fn counted(&self) -> String {
        let heat = self.panels.iter().flat_map(|panel| &panel.marks).find_map(|mark| match mark {
            ChartMark::Heat { value, .. } => Some(format!("; in each cell: {value}")),
            _ => None,
        });
        format!("n = {}{}", self.n, heat.unwrap_or_default())
    }

    /// Whether points of a name have a shape of their own: those on lines.
    fn shaped(&self, name: &str) -> bool {
        self.has(name, |mark| matches!(mark, ChartMark::Points { line: true, dots: true, .. }))
    }

    /// Whether points of a name stand alone.
    fn dotted(&self, name: &str) -> bool {
        self.has(name, |mark| matches!(mark, ChartMark::Points { line: false, .. }))
    }

    fn has(&self, name: &str, kind: fn(&ChartMark) -> bool) -> bool {
        self.panels.iter().flat_map(|panel| &panel.marks).any(|mark| kind(mark) && mark.name() == name)
    }

    fn columns(&self) -> usize {
        match self.panels.len() {
            0 | 1 => 1,
            2 | 4 => 2,
            _ => 3,
        }
    }

    /// The numbers, as comma-separated values.
    pub fn csv(&self) -> String {
        let mut rows = vec![["panel", "series", "x", "y", "low", "high", "label"].map(String::from)];
        for panel in &self.panels {
            for mark in &panel.marks {
                let mut row = |series: &str, x: String, y: String, ends: Option<(f64, f64)>, label: &str| {
                    let [low, high] =
                        ends.map_or_else(Default::default, |(l, h)| [l.to_string(), h.to_string()]);
                    rows.push([&panel.title, series, &x, &y, &low, &high, label].map(plain));
                };
                match mark {
                    ChartMark::Points { name, points, .. } => {
                        for p in points.iter().filter(|p| p.y.is_finite()) {
                            row(name, panel.x.name(p.x), panel.y.name(p.y), p.range, &p.label);
                        }
                    }
                    ChartMark::Bars { name, bars, lying } => {
                        let axis = if *lying { &panel.y } else { &panel.x };
                        for b in bars {
                            let ends = b.range.or(Some((b.from, b.to)));
                            row(name, axis.name(b.at), b.to.to_string(), ends, &b.label);
                        }
                    }
                    ChartMark::Heat { cells, value } => {
                        let all = cells.iter().enumerate().flat_map(|(j, row)| {
                            row.iter().enumerate().filter_map(move |(i, cell)| Some((i, j, (*cell)?)))
                        });
                        for (i, j, cell) in all {
                            let (x, y) = (panel.x.name(i as f64), panel.y.name(j as f64));
                            row(&cell.to_string(), x, y, None, &format!("{value} {cell}"));
                        }
                    }
                }
            }
        }
        to_csv(Terminator::Any(b'\n'), rows)
    }
}

/// Which of four shapes the points of a line have: lines that share a colour differ in it.
fn shape_of(series: usize) -> usize {
    (series + series / 8) % 4
}

/// Whether every cell has room for its number.
fn heat_fits(cells: &[Vec<Option<f64>>], (wide, tall): (f64, f64), size: f64) -> bool {
    let longest = cells.iter().flatten().flatten().map(|cell| text::width(&number(*cell), size));
    longest.fold(0.0, f64::max) + 4.0 <= wide && 1.2 * size <= tall
}

/// A field of comma-separated values. What spreadsheets would take for a formula is quoted as text.
fn plain(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@']) && text.parse::<f64>().is_err();
    if formula { format!("'{text}") } else { text.into() }
}
