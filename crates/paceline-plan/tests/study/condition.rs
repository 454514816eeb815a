//! Conditions as users write them.

use paceline_plan::{Condition, Value};

fn point(name: &str) -> Option<Value> {
    match name {
        "workers" => Some(Value::Number(4.0)),
        "servers" => Some(Value::Number(2.0)),
        "sync" => Some(Value::Text("ssp".into())),
        "lr-scaling" => Some(Value::Text("linear".into())),
        "pin" => Some(Value::Flag(false)),
        "strange name" => Some(Value::Number(1.0)),
        _ => None,
    }
}

#[test]
fn conditions_are_true_false_or_unknown() {
    for (text, truth) in [
        ("servers <= workers", Some(true)),
        ("servers * 2 = workers", Some(true)),
        ("servers * 2 + 1 > workers and workers - 1 == 3", Some(true)),
        ("workers < -1", Some(false)),
        ("sync = 'ssp' and not (workers < 4)", Some(true)),
        ("sync != \"ssp\" or lr-scaling = \"linear\"", Some(true)),
        ("pin", Some(false)),
        ("not pin and true", Some(true)),
        ("`strange name` ≥ 1e0", Some(true)),
        ("staleness > 1", None),
        ("staleness > 1 and workers > 9", Some(false)),
        ("staleness > 1 or workers > 1", Some(true)),
        ("not staleness > 1", None),
        ("workers / 0 > 1", None),
    ] {
        assert_eq!(Condition::parse(text).unwrap().truth(&point), truth, "{text}");
    }
}

#[test]
fn margins_say_by_how_much() {
    for (text, margin) in [
        ("workers >= 1", Some(3.0)),
        ("workers <= 1", Some(-3.0)),
        ("workers > 4", Some(-f64::MIN_POSITIVE)),
        ("workers >= 1 and servers <= 3", Some(1.0)),
        ("workers >= 9 or servers <= 3", Some(1.0)),
        ("sync = 'asp'", Some(-1.0)),
        ("other > 1", None),
    ] {
        assert_eq!(Condition::parse(text).unwrap().margin(&point), margin, "{text}");
    }
}

#[test]
fn mistakes_say_where_and_what_would_be_right() {
    for (text, column, part) in [
        ("servers <", 10, "is missing"),
        ("servers <= <= 2", 12, "is needed, found a comparison"),
        ("1 < workers < 3", 13, "a < b and b < c"),
        ("workers + 1", 1, "a comparison is needed"),
        ("(workers > 1", 1, "has no partner"),
        ("sync = 'ssp", 8, "has no partner"),
        ("a && b", 3, "write `and`"),
        ("a ! b", 3, "`not` or `!=`"),
        ("a > 1x", 5, "no number"),
        ("a > 1 b", 7, "nothing is expected"),
        ("a > 1 § 2", 7, "not part of conditions"),
        ("", 1, "is missing"),
    ] {
        let error = Condition::parse(text).unwrap_err();
        assert_eq!(error.column, column, "{error}");
        assert!(error.problem.contains(part), "{error}");
    }
}

#[test]
fn values_of_different_kinds_are_not_compared() {
    let mixed = |text: &str| Condition::parse(text).unwrap().mixed_kinds(&point);
    assert_eq!(mixed("servers <= workers and sync = 'asp'"), None);
    assert!(mixed("sync > 3").unwrap().contains("`ssp` (text)"));
    assert!(mixed("workers = 'four'").unwrap().contains("(a number)"));
    assert_eq!(Condition::parse("a < b and b < c").unwrap().names(), ["a", "b", "c"]);
}
