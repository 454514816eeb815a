//! Where the texts of a chart stand, so that no two meet: whatever draws it asks here how much room labels, titles and
//! the legend need, and which of them are turned, shortened or left out.

use super::ruler::Ruler;
use super::text::{fitted, lines, width};
use super::{AxisScale, ChartMark, Figure, Panel};

/// Room of the longest label of an axis of names: below a chart, where it stands upright, and beside one.
const LONGEST: (f64, f64) = (150.0, 190.0);
/// Room of the longest note.
const NOTE: f64 = 190.0;

/// What a drawing can do with its room.
pub struct DrawingStyle {
    /// Size of the font in pixels.
    pub size: f64,
    /// Panels side by side.
    pub columns: usize,
    /// Width of the whole, with which texts are placed.
    pub width: f64,
    /// Height between the axes of a panel.
    pub plot: f64,
    /// Room that a scale of colours takes at the right.
    pub scale: f64,
}

/// Labels of an axis; a label may have several lines.
pub struct TickLabels {
    pub ticks: Vec<(f64, String)>,
    /// Whether they are turned by a quarter.
    pub upright: bool,
    /// Pixels that they need away from the axis.
    pub room: f64,
}

/// A label beside a panel, and the point that it belongs to.
pub struct PlacedNote {
    pub text: String,
    pub point: (f64, f64),
    /// Pixels from the top of the panel's plot.
    pub at: f64,
}

/// A panel's texts, and where its plot lies, in pixels from the top left of all panels.
pub struct PanelLayout {
    pub title: String,
    pub x: TickLabels,
    pub y: TickLabels,
    pub x_title: Vec<String>,
    pub y_title: Vec<String>,
    pub notes: Vec<PlacedNote>,
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
}

/// All panels of a chart.
pub struct ChartLayout {
    pub panels: Vec<PanelLayout>,
    /// Height of all rows.
    pub height: f64,
    pub line: f64,
}

impl Panel {
    /// What lies along an axis.
    pub(super) fn values(&self, along_x: bool) -> Vec<f64> {
        let mut all = Vec::new();
        all.extend(self.span.filter(|_| !along_x).into_iter().flat_map(|(low, high)| [low, high]));
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

    /// The axes between these pixels.
    pub(super) fn rulers(&self, x: (f64, f64), y: (f64, f64)) -> (Ruler<'_>, Ruler<'_>) {
        let x = Ruler::new(&self.x, self.values(true).into_iter(), x);
        (x, Ruler::new(&self.y, self.values(false).into_iter(), y))
    }

    /// How many names there are one above the other.
    fn rows(&self) -> usize {
        match &self.y.scale {
            AxisScale::Names(names) => names.len(),
            _ => 0,
        }
    }

    fn is_heat(&self) -> bool {
        self.marks.iter().any(|mark| matches!(mark, ChartMark::Heat { .. }))
    }
}

/// Labels that fit below an axis: flat where they can be, in lines if need be, else upright; of too many, every second,
/// third, …
fn below(panel: &Panel, ruler: &Ruler<'_>, style: &DrawingStyle) -> TickLabels {
    let mut ticks = ruler.ticks();
    if let AxisScale::Units(unit) = panel.x.scale {
        let mut places = panel.values(true);
        places.sort_by(f64::total_cmp);
        places.dedup();
        // Labels where something was measured, if there is room for them.
        if places.len() <= 7 {
            ticks = places.into_iter().map(|place| (place, unit.show(place))).collect();
        }
    }
    let gap = 0.7 * style.size;
    let flat = |ticks: &[(f64, String)]| {
        let half = |text: &str| width(text, style.size) / 2.0;
        let apart = |pair: &[(f64, String)]| {
            ruler.at(pair[1].0) - ruler.at(pair[0].0) >= half(&pair[0].1) + half(&pair[1].1) + gap
        };
        // Labels at the ends may stand out a little.
        ticks.windows(2).all(apart) && ticks.iter().all(|(_, text)| half(text) < LONGEST.0 / 2.0)
    };
    let every = |n: usize| ticks.iter().step_by(n).cloned().collect::<Vec<_>>();
    let words = ticks.iter().any(|(_, text)| text.parse::<f64>().is_err()) && !panel.x.has_unit();
    // Numbers may be left out: one sees what stands between; of names, all are wanted.
    let thinned = if words { 1..=1 } else { 1..=ticks.len().div_ceil(4).max(1) };
    if let Some(n) = thinned.into_iter().find(|n| flat(&every(*n))) {
        return TickLabels { ticks: every(n), upright: false, room: style.size + 9.0 };
    }
    let step = match &panel.x.scale {
        AxisScale::Names(_) => ruler.step(),
        _ => 1.6 * style.size,
    };
    if words && let Some(broken) = in_lines(&ticks, step - gap, style.size) {
        let most = broken.iter().map(|(_, text)| text.lines().count()).max().unwrap_or(1);
        return TickLabels { ticks: broken, upright: false, room: 1.3 * style.size * most as f64 + 7.0 };
    }
    let n = (1.35 * style.size / step).ceil().max(1.0) as usize;
    let cut = |(at, text): (f64, String)| (at, fitted(&text, style.size, LONGEST.0));
    let ticks: Vec<(f64, String)> = every(n).into_iter().map(cut).collect();
    let room = ticks.iter().map(|(_, text)| width(text, style.size)).fold(0.0, f64::max) + 8.0;
    TickLabels { ticks, upright: true, room }
}

/// Labels in lines, where each fits whole.
fn in_lines(ticks: &[(f64, String)], room: f64, size: f64) -> Option<Vec<(f64, String)>> {
    let whole = |(at, text): &(f64, String)| {
        let broken = lines(text, size, room, 4);
        let kept = |text: &str| text.chars().filter(|c| *c != ' ').count();
        let all = kept(&broken.concat()) == kept(text) && broken.len() < 4;
        all.then(|| (*at, broken.join("\n")))
    };
    ticks.iter().map(whole).collect()
}

/// Labels that fit beside an axis.
fn beside(panel: &Panel, ruler: &Ruler<'_>, style: &DrawingStyle) -> TickLabels {
    let every = match &panel.y.scale {
        AxisScale::Names(_) => (1.3 * style.size / ruler.step()).ceil().max(1.0) as usize,
        _ => 1,
    };
    let cut = |(at, text): (f64, String)| (at, fitted(&text, style.size, LONGEST.1));
    let ticks: Vec<(f64, String)> = ruler.ticks().into_iter().step_by(every).map(cut).collect();
    let room = ticks.iter().map(|(_, text)| width(text, style.size)).fold(0.0, f64::max) + 8.0;
    TickLabels { ticks, upright: false, room }
}

/// Places of labels that are at least `gap` apart and within `room`, as near as can be to where they want to be; these
/// are in rising order.
fn spread(wanted: &[f64], gap: f64, room: f64) -> Vec<f64> {
    let mut places: Vec<f64> = Vec::new();
    for at in wanted {
        let least = places.last().map_or(gap / 2.0, |last| last + gap);
        places.push(at.max(least));
    }
    let mut most = room - gap / 2.0;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - gap;
    }
    places
}

fn notes(panel: &Panel, y: &Ruler<'_>, plot: f64, style: &DrawingStyle) -> Vec<PlacedNote> {
    let gap = 1.4 * style.size;
    let shown = panel.notes.iter().take((plot / gap) as usize);
    let mut all: Vec<PlacedNote> = shown
        .map(|note| PlacedNote {
            text: fitted(&note.label, style.size, NOTE),
            point: (note.x, note.y),
            at: y.at(note.y),
        })
        .collect();
    all.sort_by(|a, b| a.at.total_cmp(&b.at));
    let places = spread(&all.iter().map(|note| note.at).collect::<Vec<_>>(), gap, plot);
    all.iter_mut().zip(places).for_each(|(note, at)| note.at = at);
    all
}

impl Figure {
    /// Places the texts of all panels.
    pub(super) fn layout(&self, style: &DrawingStyle) -> ChartLayout {
        let line = 1.3 * style.size;
        let wide = style.width / style.columns as f64;
        let titled = self.panels.iter().any(|panel| !panel.title.is_empty());
        let above = if titled { 1.9 * style.size } else { 0.6 * style.size };
        let (mut panels, mut top): (Vec<PanelLayout>, f64) = (Vec::new(), 0.0);
        for row in self.panels.chunks(style.columns) {
            let most = row.iter().map(Panel::rows).max().unwrap_or(0) as f64;
            let plot = style.plot.max((most * 1.9 * style.size).min(2.2 * style.plot));
            // What stands left of a panel decides how wide its plot is, and that what fits below.
            let mut begun: Vec<PanelLayout> = Vec::new();
            for (column, panel) in row.iter().enumerate() {
                let (x_ruler, y_ruler) = panel.rulers((0.0, 1.0), (plot, 0.0));
                let (y, notes) = (beside(panel, &y_ruler, style), notes(panel, &y_ruler, plot, style));
                let y_title = lines(&panel.y.title, style.size, plot - style.size, 2);
                let left = y.room + line * y_title.len() as f64 + 6.0;
                let noted = notes.iter().map(|note| width(&note.text, style.size) + 26.0).fold(0.0, f64::max);
                let beside = noted.max(if panel.is_heat() { style.scale } else { 0.0 });
                let usual = 1.4 * style.size;
                // How far the last number below reaches beyond the plot.
                let ticks =
                    if let AxisScale::Names(_) = panel.x.scale { Vec::new() } else { x_ruler.ticks() };
                let over = ticks.last().map_or(0.0, |(at, text)| {
                    let plot_width = wide - left - beside - usual;
                    width(text, style.size) / 2.0 + 2.0 - (1.0 - x_ruler.at(*at)) * plot_width
                });
                let right = beside + usual.max(over);
                let (from, to) = (wide * column as f64 + left, wide * (column + 1) as f64 - right);
                let (x_ruler, _) = panel.rulers((from, to), (plot, 0.0));
                begun.push(PanelLayout {
                    title: fitted(&panel.title, 1.15 * style.size, wide - 24.0),
                    x: below(panel, &x_ruler, style),
                    x_title: lines(&panel.x.title, style.size, to - from + left.min(right), 2),
                    y,
                    y_title,
                    notes,
                    left: from,
                    right: to,
                    top: top + above,
                    bottom: top + above + plot,
                });
            }
            let under = |p: &PanelLayout| p.x.room + line * p.x_title.len() as f64;
            let under = begun.iter().map(under).fold(0.0, f64::max) + 0.9 * style.size;
            top += above + plot + under;
            panels.extend(begun);
        }
        ChartLayout { panels, height: top, line }
    }
}

/// Rows of a legend, by the first and the last name in each: `sample` pixels for what a name belongs to.
pub fn legend_places(names: &[String], size: f64, sample: f64, room: f64) -> Vec<(f64, usize)> {
    let (mut x, mut row) = (0.0, 0);
    let place = |name: &String| {
        let entry = sample + width(name, size) + size;
        if x > 0.0 && x + entry > room {
            (x, row) = (0.0, row + 1);
        }
        let place = (x, row);
        x += entry;
        place
    };
    names.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{ChartAxis, Dot};

    const STYLE: DrawingStyle =
        DrawingStyle { size: 11.0, columns: 1, width: 400.0, plot: 200.0, scale: 0.0 };

    fn panel(x: ChartAxis) -> Panel {
        Panel::new(x, ChartAxis::linear("s"), vec![ChartMark::dots("", vec![Dot::new(0.0, 1.0, "")])])
    }

    fn labels(names: &[&str]) -> (bool, Vec<String>) {
        let panel = panel(ChartAxis::names("x", names.iter().map(|n| (*n).to_owned())));
        let (ruler, _) = panel.rulers((60.0, 380.0), (200.0, 0.0));
        let labels = below(&panel, &ruler, &STYLE);
        (labels.upright, labels.ticks.into_iter().map(|(_, text)| text).collect())
    }

    #[test]
    fn names_lie_flat_where_they_fit_and_stand_where_they_do_not() {
        assert_eq!(labels(&["asp", "bsp"]), (false, vec!["asp".into(), "bsp".into()]));
        let (upright, shown) =
            labels(&["parameter-server", "ring-allreduce", "recursive-halving", "gossip", "tree"]);
        assert!(upright && shown.len() == 5, "{shown:?}");
    }

    #[test]
    fn numbers_that_do_not_fit_are_left_out_and_names_that_cannot_stand_too() {
        let numbers: Vec<String> = (0..40).map(|i| (1000 + i).to_string()).collect();
        let (upright, shown) = labels(&numbers.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(!upright && (4..15).contains(&shown.len()), "{shown:?}");
        let names: Vec<String> = (0..200).map(|i| format!("n{i}")).collect();
        let (upright, shown) = labels(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(upright && shown.len() < 30, "{shown:?}");
    }

    #[test]
    fn labels_are_spread_and_stay_within_their_room() {
        assert_eq!(spread(&[50.0, 100.0], 10.0, 200.0), [50.0, 100.0]);
        assert_eq!(spread(&[50.0, 51.0, 52.0], 10.0, 200.0), [50.0, 60.0, 70.0]);
        assert_eq!(spread(&[195.0, 196.0, 197.0], 10.0, 200.0), [175.0, 185.0, 195.0]);
        let many = spread(&[0.0; 20], 10.0, 200.0);
        assert!(many.windows(2).all(|p| p[1] - p[0] >= 10.0) && many[19] <= 195.0, "{many:?}");
    }

    #[test]
    fn a_legend_that_is_too_long_for_one_row_has_several() {
        let names = vec!["a long name".to_owned(); 9];
        let places = legend_places(&names, 12.0, 30.0, 480.0);
        assert!(places.iter().all(|(x, _)| *x < 380.0), "{places:?}");
        assert_eq!((places[0], places[8].1), ((0.0, 0), 2));
    }
}
