//! A chart for plotly's script, which ships inside a crate: nothing is loaded from elsewhere.

use paceline_plan::printable;
use serde_json::{Value, json};

use super::{AxisScale, ChartAxis, ChartMark, Figure};
use crate::sheet::entities;
use crate::table::short;

/// Colours that differ for colour-blind eyes too, on light and on dark ground.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c6bb1", "#7f7f7f"];
/// Dashes of lines whose colours come again.
const DASHES: [&str; 3] = ["solid", "dash", "dot"];
/// Room between panels, as part of the whole.
const GAP: (f64, f64) = (0.09, 0.16);
const MOST_NAMES: usize = 16;
/// Height of a row of panels.
const ROW: usize = 340;

/// Plotly's script, as the build took it out of the crate that ships it. Static: a binary has it once.
pub static SCRIPT: &str = include_str!(concat!(env!("OUT_DIR"), "/plotly.js"));

/// The colour and the dash of the name at this place of a legend.
pub fn line_style(at: usize) -> (&'static str, &'static str) {
    (COLOURS[at % COLOURS.len()], DASHES[at / COLOURS.len() % DASHES.len()])
}

fn axis(of: &ChartAxis, domain: [f64; 2], anchor: &str) -> Value {
    let mut axis = json!({
        "title": {"text": words(&of.title)}, "domain": domain, "anchor": anchor, "automargin": true, "zeroline": false,
    });
    match &of.scale {
        AxisScale::Linear => {}
        AxisScale::Log | AxisScale::Units(_) => axis["type"] = "log".into(),
        AxisScale::Names(names) => {
            // Of many names, as many as can be read.
            let every = names.len().div_ceil(MOST_NAMES).max(1);
            axis["tickvals"] = (0..names.len()).step_by(every).collect();
            axis["ticktext"] = names.iter().step_by(every).map(|name| words(&short(name))).collect();
            axis["range"] = json!([-0.6, names.len() as f64 - 0.4]);
        }
    }
    axis
}

/// Text that means itself to plotly, which reads tags and entities in all text.
fn words(text: &str) -> String {
    entities(&printable(text))
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
        let style = |name: &str| line_style(names.iter().position(|n| *n == name).unwrap_or(0));
        let colour = |name: &str| style(name).0;
        let columns = self.columns();
        let rows = self.panels.len().div_ceil(columns).max(1);
        let mut layout = json!({
            "height": rows * ROW + 80, "barmode": "overlay", "margin": {"t": 40, "r": 24, "b": 64, "l": 72},
            "legend": {"orientation": "h", "y": -0.18}, "showlegend": !names.is_empty(),
        });
        let (mut traces, mut annotations) = (Vec::new(), Vec::new());
        let mut shown: Vec<&str> = Vec::new();
        for (i, panel) in self.panels.iter().enumerate() {
            let (column, row) = (i % columns, i / columns);
            let suffix = if i == 0 { String::new() } else { (i + 1).to_string() };
            let span = |at: usize, of: usize, gap: f64| {
                let width = (1.0 - gap * (of - 1) as f64) / of as f64;
                let from = at as f64 * (width + gap);
                [from, (from + width).min(1.0)]
            };
            let across = span(column, columns, GAP.0);
            let [top, bottom] = span(row, rows, GAP.1).map(|v| 1.0 - v);
            layout[format!("xaxis{suffix}")] = axis(&panel.x, across, &format!("y{suffix}"));
            let along = [bottom.max(0.0), top];
            layout[format!("yaxis{suffix}")] = axis(&panel.y, along, &format!("x{suffix}"));
            if self.panels.len() > 1 {
                annotations.push(json!({
                    "text": words(&panel.title), "x": across[0], "y": top, "xref": "paper", "yref": "paper",
                    "xanchor": "left", "yanchor": "bottom", "showarrow": false,
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
                            "line": {"color": colour(name), "dash": style(name).1, "width": if *dots { 2.0 } else { 1.5 }},
                            "marker": {"color": colour(name), "size": 6},
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
                    ChartMark::Heat { value, cells } => json!({
                        "type": "heatmap", "z": cells, "colorscale": "Viridis", "hoverongaps": false,
                        "colorbar": {"title": {"text": words(value), "side": "right"}},
                        "x": (0..cells.first().map_or(0, Vec::len)).collect::<Vec<_>>(),
                        "y": (0..cells.len()).collect::<Vec<_>>(),
                        "showscale": i + 1 == self.panels.len(),
                    }),
                };
                trace["xaxis"] = format!("x{suffix}").into();
                trace["yaxis"] = format!("y{suffix}").into();
                trace["name"] = words(name).into();
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
