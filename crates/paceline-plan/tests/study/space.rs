//! Spaces: their points, scales and mistakes.

use std::collections::BTreeMap;

use paceline_plan::{Axis, Condition, Scale, Space, Value};

fn numbers(name: &str, levels: &[f64]) -> Axis {
    Axis::new(name, levels.iter().map(|l| Value::Number(*l)).collect())
}

fn words(name: &str, levels: &[&str]) -> Axis {
    Axis::new(name, levels.iter().map(|l| Value::Text((*l).into())).collect())
}

fn condition(text: &str) -> Condition {
    Condition::parse(text).unwrap()
}

fn space() -> Space {
    let staleness = Axis { when: Some(condition("sync = 'ssp'")), ..numbers("staleness", &[1.0, 3.0]) };
    let axes = vec![
        staleness,
        numbers("workers", &[1.0, 2.0, 4.0]),
        numbers("servers", &[1.0, 2.0]),
        words("sync", &["bsp", "ssp"]),
    ];
    Space::new(axes, vec![condition("servers <= workers")]).unwrap()
}

#[test]
fn points_are_the_constrained_product_with_conditional_axes_where_they_belong() {
    let points = space().points(1000).unwrap();
    // (workers, servers): 5 pairs; bsp once, ssp with two staleness levels.
    assert_eq!(points.len(), 5 * (1 + 2));
    for point in &points {
        let named = space().named(point);
        assert_eq!(named.contains_key("staleness"), named["sync"] == Value::Text("ssp".into()));
        assert!(named["servers"].number() <= named["workers"].number());
        assert_eq!(space().point(&named).as_ref(), Some(point));
    }
    assert_eq!(space().points(14), None);
    assert_eq!(space().combinations(), 24);
}

#[test]
fn a_point_lacks_nothing_and_has_nothing_that_does_not_belong() {
    let named = |pairs: &[(&str, Value)]| -> BTreeMap<String, Value> {
        pairs.iter().map(|(n, v)| ((*n).into(), v.clone())).collect()
    };
    let (w, s) = (("workers", Value::Number(2.0)), ("servers", Value::Number(1.0)));
    let (bsp, ssp) = (("sync", Value::Text("bsp".into())), ("sync", Value::Text("ssp".into())));
    let stale = ("staleness", Value::Number(3.0));
    assert!(space().point(&named(&[w.clone(), s.clone(), bsp.clone()])).is_some());
    assert!(space().point(&named(&[w.clone(), s.clone(), ssp.clone(), stale.clone()])).is_some());
    assert!(space().point(&named(&[w.clone(), s.clone(), bsp, stale])).is_none());
    assert!(space().point(&named(&[w.clone(), s.clone(), ssp])).is_none());
    assert!(space().point(&named(&[w, s, ("colour", Value::Number(1.0))])).is_none());
}

#[test]
fn scales_follow_the_levels() {
    assert_eq!(numbers("lr", &[0.1, 0.001, 0.01]).scale, Scale::Log);
    assert_eq!(numbers("workers", &[1.0, 2.0, 4.0]).scale, Scale::Linear);
    assert_eq!(numbers("x", &[0.0, 100.0]).scale, Scale::Linear);
    assert_eq!(words("sync", &["bsp", "ssp"]).scale, Scale::Names);
    assert!((numbers("lr", &[0.1, 0.001, 0.01]).position(1) - 0.5).abs() < 1e-12);
    assert_eq!(numbers("one", &[7.0]).position(0), 0.0);
}

#[test]
fn senseless_spaces_say_which_axis_or_constraint() {
    let one = || numbers("workers", &[1.0, 2.0]);
    let fails = |axes: Vec<Axis>, constraints: Vec<Condition>| Space::new(axes, constraints).unwrap_err();
    let cyclic = |name: &str, on: &str| Axis { when: Some(condition(on)), ..numbers(name, &[1.0]) };
    for (error, subject, part) in [
        (fails(vec![], vec![]), "axes", "at least one axis"),
        (fails(vec![numbers("a", &[])], vec![]), "axes.a", "at least one level"),
        (fails(vec![one(), one()], vec![]), "axes.workers", "there twice"),
        (fails(vec![numbers("a", &[1.0, 1.0])], vec![]), "axes.a", "the level 1 is there twice"),
        (fails(vec![one()], vec![condition("wrkers > 1")]), "constraints[0]", "did you mean `workers`?"),
        (fails(vec![one()], vec![condition("workers = 'two'")]), "constraints[0]", "cannot be compared"),
        (fails(vec![cyclic("a", "b = 1"), cyclic("b", "a = 1")], vec![]), "axes.a", "depends on itself"),
    ] {
        assert_eq!(error.subject, subject, "{error}");
        assert!(error.problem.contains(part), "{error}");
    }
}
