//! A chart for plotly's script, which ships inside a crate: nothing is loaded from elsewhere.

use std::sync::LazyLock;

use paceline_plan::printable;
use serde_json::{Value, json};

use super::layout::{DrawingStyle, PanelLayout, TickLabels, legend_places};
use super::ruler::Ruler;
use super::text::{fitted, width as text_width};
use super::{AxisScale, ChartAxis, ChartMark, Figure, heat_fits, shape_of};
use crate::sheet::entities;
use crate::table::number;

/// Colours that differ for colour-blind eyes too, on light and on dark ground.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c6bb1", "#7f7f7f"];
/// Dashes of lines whose colours come again.
const DASHES: [&str; 3] = ["solid", "dash", "dot"];
/// Shapes of points, by [`shape_of`].
const SHAPES: [&str; 4] = ["circle", "square", "triangle-up", "diamond"];
/// Size of the font, which the page's script sets, in pixels.
const SIZE: f64 = 12.0;

/// Plotly's script, as the build took it out of the crate that ships it. Static: a binary has it once.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plotly.js.z"));

/// Plotly's script.
pub static SCRIPT: LazyLock<String> = LazyLock::new(|| {
    let script = std::io::read_to_string(flate2::read::ZlibDecoder::new(PACKED));
    script.expect("the build packed it")
});

/// The colour and the dash of the name at this place of a legend.
pub fn line_style(at: usize) -> (&'static str, &'static str) {
    (COLOURS[at % COLOURS.len()], DASHES[at / COLOURS.len() % DASHES.len()])
}

fn axis(of: &ChartAxis, ruler: &Ruler<'_>, labels: &TickLabels, title: &[String]) -> Value {
    let mut axis = json!({
        "title": {"text": in_lines(title.iter().map(String::as_str)), "standoff": 6}, "automargin": true, "zeroline": false,
        "tickangle": if labels.upright { -90 } else { 0 },
    });
    match &of.scale {
        AxisScale::Linear => {
            axis["nticks"] = 7.into();
            if ruler.single {
                axis["range"] = json!([ruler.low, ruler.high]);
            }
        }
        AxisScale::Log | AxisScale::Units(_) => {
            axis["type"] = "log".into();
            axis["tickformat"] = ".3~r".into();
            // Decades, of few their halves and fifths too; of less than that, labels stay where they are.
            match (ruler.high / ruler.low).log10() {
                decades if decades >= 3.0 => axis["dtick"] = json!((decades / 6.0).ceil()),
                decades if decades >= 1.2 => axis["dtick"] = "D2".into(),
                _ => {
                    let ticks = ruler.ticks();
                    axis["tickvals"] = ticks.iter().map(|(at, _)| *at).collect();
                    axis["ticktext"] = ticks.iter().map(|(_, text)| words(text)).collect();
                }
            }
        }
        AxisScale::Names(names) => {
            axis["tickvals"] = labels.ticks.iter().map(|(at, _)| *at).collect();
            axis["ticktext"] = labels.ticks.iter().map(|(_, name)| in_lines(name.lines())).collect();
            axis["range"] = json!([-0.6, names.len() as f64 - 0.4]);
        }
    }
    axis
}

fn in_lines<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(words).collect::<Vec<_>>().join("<br>")
}

/// Text that means itself to plotly, which reads tags and entities in all text.
fn words(text: &str) -> String {
    entities(&printable(text))
}

/// Pixels of a legend below a chart: plotly gives all entries the room of the longest where they need several rows.
fn legend_height(names: &[String], room: f64) -> f64 {
    const SAMPLE: f64 = 48.0;
    let rows = legend_places(names, SIZE, SAMPLE, room).last().map_or(0, |(_, row)| *row);
    let longest = names.iter().map(|name| text_width(name, SIZE) + SAMPLE).fold(1.0, f64::max);
    let even = names.len().div_ceil((room / longest).floor().max(1.0) as usize);
    20.0 * if rows == 0 { 1.0 } else { even as f64 } + 12.0
}

fn numbers(values: impl Iterator<Item = f64>) -> Value {
    // What is not a number becomes null, which interrupts a line.
    Value::Array(values.map(|v| json!(v)).collect())
}

fn errors(of: impl Iterator<Item = (f64, Option<(f64, f64)>)>) -> Option<Value> {
    let (mut up, mut down, mut any) = (Vec::new(), Vec::new(), false);
    for (value, range) in of {
        any |= range.is_some();
        let (low, high) = range.unwrap_or((value, value));
        up.push(high - value);
        down.push(value - low);
    }
    any.then(
        || json!({"type": "data", "symmetric": false, "array": up, "arrayminus": down, "thickness": 1.2}),
    )
}

impl Figure {
    /// Traces and layout.
    pub fn plotly(&self) -> Value {
        let names = self.names();
        let place = |name: &str| names.iter().position(|n| *n == name).unwrap_or(0);
        let (colour, dash) = (|name: &str| line_style(place(name)).0, |name: &str| line_style(place(name)).1);
        let symbol = |name: &str, line: bool| if line { SHAPES[shape_of(place(name))] } else { SHAPES[0] };
        let columns = self.columns();
        // The page keeps this width at least: texts that do not meet then do not meet in a wider one.
        let (width, plot) = match columns {
            1 => (680.0, 300.0),
            2 => (820.0, 250.0),
            _ => (1000.0, 240.0),
        };
        let style = DrawingStyle { size: SIZE, columns, width, plot, scale: 110.0 };
        let placed = self.layout(&style);
        let shortened: Vec<String> = names.iter().map(|name| fitted(name, SIZE, width - 80.0)).collect();
        let legend = if names.is_empty() { 0.0 } else { legend_height(&shortened, width - 40.0) };
        let first = placed.panels.first().map_or((0.0, 0.0), |panel| (panel.left, panel.top));
        let last = |of: &dyn Fn(&PanelLayout) -> f64| placed.panels.iter().map(of).fold(0.0, f64::max);
        let (right, bottom) = (last(&|panel| panel.right), last(&|panel| panel.bottom));
        let height = placed.height + legend + 20.0;
        let mut layout = json!({
            "height": height, "barmode": "overlay", "hovermode": "closest",
            "margin": {"t": first.1 + 10.0, "l": first.0, "r": width - right, "b": height - 10.0 - bottom},
            "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
            "showlegend": !names.is_empty(), "meta": {"width": width},
        });
        let across = |at: f64| ((at - first.0) / (right - first.0)).clamp(0.0, 1.0);
        let up = |at: f64| (1.0 - (at - first.1) / (bottom - first.1)).clamp(0.0, 1.0);
        let (mut traces, mut annotations) = (Vec::new(), Vec::new());
        let mut shown: Vec<&str> = Vec::new();
        for (i, (panel, at)) in self.panels.iter().zip(&placed.panels).enumerate() {
            let suffix = if i == 0 { String::new() } else { (i + 1).to_string() };
            let (x, y) = panel.rulers((at.left, at.right), (at.bottom, at.top));
            let [x_axis, y_axis] = ["x", "y"].map(|name| format!("{name}axis{suffix}"));
            layout[&x_axis] = axis(&panel.x, &x, &at.x, &at.x_title);
            layout[&x_axis]["domain"] = json!([across(at.left), across(at.right)]);
            layout[&x_axis]["anchor"] = format!("y{suffix}").into();
            // Unseen marks keep the first label here apart from the lowest one of the other axis, wherever that is.
            layout[&x_axis]["ticks"] = "outside".into();
            layout[&x_axis]["ticklen"] = 4.into();
            layout[&x_axis]["tickcolor"] = "rgba(0,0,0,0)".into();
            layout[&y_axis] = axis(&panel.y, &y, &at.y, &at.y_title);
            layout[&y_axis]["domain"] = json!([up(at.bottom), up(at.top)]);
            layout[&y_axis]["anchor"] = format!("x{suffix}").into();
            if self.panels.len() > 1 {
                annotations.push(json!({
                    "text": format!("<b>{}</b>", words(&at.title)), "x": across(at.left), "y": up(at.top),
                    "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": false,
                }));
            }
            if !at.notes.is_empty() {
                layout[&x_axis]["range"] = json!([x.low, x.high]);
                layout[&y_axis]["range"] = json!([y.low, y.high]);
            }
            if panel.span.is_some() {
                let at = |v: f64| if panel.y.is_log() { v.log10() } else { v };
                layout[&y_axis]["range"] = json!([at(y.low), at(y.high)]);
            }
            let mut leaders = (Vec::new(), Vec::new());
            for note in &at.notes {
                let height = y.high - (y.high - y.low) * note.at / (at.bottom - at.top);
                leaders.0.extend([json!(note.point.0), json!(x.high), Value::Null]);
                leaders.1.extend([json!(note.point.1), json!(height), Value::Null]);
                annotations.push(json!({
                    "text": words(&note.text), "x": across(at.right), "xref": "paper", "xanchor": "left", "xshift": 6,
                    "y": height, "yref": format!("y{suffix}"), "yanchor": "middle", "showarrow": false,
                }));
            }
            if !at.notes.is_empty() {
                traces.push(json!({
                    "type": "scatter", "mode": "lines", "x": leaders.0, "y": leaders.1, "hoverinfo": "skip",
                    "line": {"color": "#a8a8a8", "width": 0.7}, "showlegend": false,
                    "xaxis": format!("x{suffix}"), "yaxis": format!("y{suffix}"),
                }));
            }
            for mark in &panel.marks {
                let name = mark.name();
                let legend = !name.is_empty() && !shown.contains(&name);
                if legend {
                    shown.push(name);
                }
                let mut trace = match mark {
                    ChartMark::Points { line, dots, points, .. } => {
                        let mode = match (line, dots) {
                            (true, true) => "lines+markers",
                            // A line of one point would not be seen.
                            (true, false) if points.len() > 1 => "lines",
                            _ => "markers",
                        };
                        let mut trace = json!({
                            "type": "scatter", "mode": mode, "connectgaps": false,
                            "x": numbers(points.iter().map(|p| p.x)), "y": numbers(points.iter().map(|p| p.y)),
                            "line": {"color": colour(name), "dash": dash(name), "width": if *dots { 2.0 } else { 1.5 }},
                            "marker": {"color": colour(name), "size": 6, "symbol": symbol(name, *line)},
                        });
                        if points.iter().any(|p| !p.label.is_empty()) {
                            trace["text"] = points.iter().map(|p| words(&p.label)).collect();
                        }
                        if let Some(errors) = errors(points.iter().map(|p| (p.y, p.range))) {
                            trace["error_y"] = errors;
                        }
                        trace
                    }
                    ChartMark::Bars { lying, bars, .. } => {
                        let (place, length, error) =
                            if *lying { ("y", "x", "error_x") } else { ("x", "y", "error_y") };
                        let mut trace = json!({
                            "type": "bar", "orientation": if *lying { "h" } else { "v" },
                            "base": numbers(bars.iter().map(|b| b.from)),
                            "text": bars.iter().map(|b| words(&b.label)).collect::<Vec<_>>(),
                            "textposition": "none",
                            "marker": {"color": colour(name)},
                        });
                        trace[place] = numbers(bars.iter().map(|b| b.at));
                        trace[length] = numbers(bars.iter().map(|b| b.to - b.from));
                        if let Some(errors) = errors(bars.iter().map(|b| (b.to, b.range))) {
                            trace[error] = errors;
                        }
                        trace
                    }
                    ChartMark::Heat { value, cells } => {
                        let mut trace = json!({
                            "type": "heatmap", "z": cells, "colorscale": "Viridis", "hoverongaps": false,
                            "colorbar": {"title": {"text": words(value), "side": "right"}, "nticks": 6},
                            "x": (0..cells.first().map_or(0, Vec::len)).collect::<Vec<_>>(),
                            "y": (0..cells.len()).collect::<Vec<_>>(),
                            "showscale": i + 1 == self.panels.len(),
                        });
                        if heat_fits(cells, (x.step(), y.step()), SIZE) {
                            let text = |cell: &Option<f64>| cell.map_or_else(String::new, number);
                            let row = |row: &Vec<Option<f64>>| row.iter().map(text).collect::<Vec<_>>();
                            trace["text"] = json!(cells.iter().map(row).collect::<Vec<_>>());
                            trace["texttemplate"] = "%{text}".into();
                            trace["textfont"] = json!({"size": SIZE});
                        }
                        trace
                    }
                };
                trace["xaxis"] = format!("x{suffix}").into();
                trace["yaxis"] = format!("y{suffix}").into();
                let in_legend = names.iter().position(|n| *n == name).map_or("", |at| &shortened[at]);
                trace["name"] = words(in_legend).into();
                trace["legendgroup"] = name.into();
                trace["showlegend"] = legend.into();
                traces.push(trace);
            }
        }
        layout["annotations"] = json!(annotations);
        json!({"data": traces, "layout": layout})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_tags_to_plotly() {
        assert_eq!(words("<a href='x'>a & b\u{202e}</a>"), "&lt;a href='x'&gt;a &amp; b\\u{202e}&lt;/a&gt;");
    }

    #[test]
    fn the_script_is_plotlys_and_stands_alone() {
        assert!((1_000_000..6_000_000).contains(&SCRIPT.len()), "{}", SCRIPT.len());
        assert!(SCRIPT.contains("plotly.js v") && !SCRIPT.contains("</script"));
    }
}
