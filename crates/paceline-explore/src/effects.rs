//! Which axis mattered most: the share of the variation between points that an axis's levels account for.

use paceline_plan::{Point, Space, Value};

/// What an axis did.
#[derive(Clone, Debug)]
pub struct AxisEffect {
    /// The axis.
    pub axis: String,
    /// Share of the variation that its levels account for, 0 to 1; shares of axes that go together overlap.
    pub share: f64,
    /// Mean figure by level (geometric where all figures are positive), and of how many points.
    pub levels: Vec<(Value, f64, usize)>,
}

/// The axes by how much they mattered, most first; those that had one level only are left out.
pub fn effects(space: &Space, points: &[(Point, f64)]) -> Vec<AxisEffect> {
    let log = points.iter().all(|(_, value)| *value > 0.0);
    let scaled = |value: f64| if log { value.ln() } else { value };
    let n = points.len() as f64;
    let mean = points.iter().map(|(_, v)| scaled(*v)).sum::<f64>() / n.max(1.0);
    let total: f64 = points.iter().map(|(_, v)| (scaled(*v) - mean).powi(2)).sum();
    let mut effects = Vec::new();
    for (i, axis) in space.axes().iter().enumerate() {
        let mut levels = Vec::new();
        let mut between = 0.0;
        for (l, level) in axis.levels.iter().enumerate() {
            let here: Vec<f64> =
                points.iter().filter(|(p, _)| p.0[i] == Some(l as u32)).map(|(_, v)| scaled(*v)).collect();
            if here.is_empty() {
                continue;
            }
            let own = here.iter().sum::<f64>() / here.len() as f64;
            between += here.len() as f64 * (own - mean).powi(2);
            levels.push((level.clone(), if log { own.exp() } else { own }, here.len()));
        }
        if levels.len() > 1 && total > 0.0 {
            effects.push(AxisEffect { axis: axis.name.clone(), share: (between / total).min(1.0), levels });
        }
    }
    effects.sort_by(|a, b| b.share.total_cmp(&a.share));
    effects
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_plan::Axis;

    #[test]
    fn the_axis_that_matters_comes_first_with_the_means_of_its_levels() {
        let axis = |name: &str| Axis::new(name, (0..3).map(|n| Value::Number(f64::from(n))).collect());
        let space = Space::new(vec![axis("idle"), axis("busy"), axis("fixed")], vec![]).unwrap();
        let points: Vec<(Point, f64)> = (0..9)
            .map(|i| {
                let (idle, busy) = (i % 3, i / 3);
                (
                    Point(vec![Some(idle), Some(busy), Some(0)]),
                    10f64.powi(busy as i32) * (1.0 + 0.01 * f64::from(idle)),
                )
            })
            .collect();
        let effects = effects(&space, &points);
        assert_eq!(effects.iter().map(|e| e.axis.as_str()).collect::<Vec<_>>(), ["busy", "idle"]);
        assert!(effects[0].share > 0.99 && effects[1].share < 0.01);
        assert!((effects[0].levels[2].1 - 100.0).abs() < 2.0 && effects[0].levels[2].2 == 3);
    }
}
