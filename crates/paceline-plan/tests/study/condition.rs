//! Conditions as users write them.

use paceline_plan::{Condition, Formula, Scope, Value};

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

/// A scope with functions, as strategy files have one.
struct Functions;

impl Scope for Functions {
    fn value(&self, name: &str) -> Option<Value> {
        match name {
            "rank" => Some(Value::Number(2.0)),
            "workers" => Some(Value::Number(5.0)),
            _ => None,
        }
    }

    fn call(&self, name: &str, arguments: &[Value]) -> Option<Value> {
        match (name, arguments) {
            ("min", [Value::Number(a), Value::Number(b)]) => Some(Value::Number(a.min(*b))),
            _ => None,
        }
    }
}

#[test]
fn formulas_have_mod_functions_and_choices() {
    for (text, value) in [
        ("(rank - 3) mod workers", Value::Number(4.0)),
        ("(rank + 3) mod workers", Value::Number(0.0)),
        ("2 * rank mod workers", Value::Number(4.0)),
        ("1 / min(workers, rank + 2)", Value::Number(0.25)),
        ("10 if rank == 2 else 20", Value::Number(10.0)),
        ("10 if rank == 1 else 20 if workers == 4 else 30", Value::Number(30.0)),
        ("rank mod 2 == 0 and not workers mod 2 == 0", Value::Flag(true)),
    ] {
        assert_eq!(Formula::parse(text).unwrap().value(&Functions), Some(value), "{text}");
    }
    for text in ["1 / (rank - 2)", "max(1, 2)", "min(1)", "other + 1", "10 if rank else 20", "rank mod 0"] {
        assert_eq!(Formula::parse(text).unwrap().value(&Functions), None, "{text}");
    }
    let formula = Formula::parse("min(rank, min(workers, 2)) + rank").unwrap();
    assert_eq!((formula.names(), formula.calls()), (vec!["rank", "workers"], vec![("min", 2), ("min", 2)]));
    for (text, problem) in [
        ("min(1, 2", "the ( of this function has no partner"),
        ("1 if rank == 2", "`else` is missing"),
        ("1 2", "nothing is expected after a whole formula"),
        ("", "is missing"),
    ] {
        let said = Formula::parse(text).unwrap_err().to_string();
        assert!(said.contains(problem), "{text}: {said}");
    }
    let deep = format!("{}1{}", "(".repeat(499), ")".repeat(499));
    assert_eq!(Formula::parse(&deep).unwrap().value(&Functions), Some(Value::Number(1.0)));
    // What formulas have more is no part of conditions.
    for text in ["min(a, b) > 1", "a mod 2 == 0", "a > 1 if b else c"] {
        assert!(Condition::parse(text).is_err(), "{text}");
    }
}
