//! A table of runs that others have made is explored as if they were made now.

use paceline_explore::{Exploration, ExplorationRequest, LookupTable};
use paceline_plan::{Condition, Goal, Objective, Sheet, Value};
use paceline_registry::Registry;

const TABLE: &str =
    "\u{feff}vm,\"cores, total\",cost,accuracy\r\nsmall,1,3.5,0.9\nlarge,8,1,0.8\n\nlarge,1,\"2\",0.95\n";

fn parsed(text: &str) -> LookupTable {
    Sheet::parse(text).unwrap().into()
}

fn ask() -> ExplorationRequest {
    ExplorationRequest {
        axes: vec!["vm".into(), "cores, total".into()],
        objectives: vec![Objective { metric: "cost".into(), goal: Goal::Minimize }],
        constraints: vec![Condition::parse("accuracy >= 0.85").unwrap()],
        budget: 9,
        prior: None,
    }
}

#[test]
fn a_table_is_read_with_quotes_marks_and_blank_lines() {
    let table = parsed(TABLE);
    assert_eq!(table.columns, ["vm", "cores, total", "cost", "accuracy"]);
    assert_eq!(table.rows.len(), 3);
    assert_eq!(table.rows[2][2], Value::Number(2.0));
}

#[test]
fn every_row_is_looked_up_once_and_the_regret_ends_at_nothing() {
    let exploration = Exploration::new(parsed(TABLE), &ask()).unwrap();
    for sampler in ["grid", "random", "lhs", "sobol", "bayes"] {
        let explored = exploration.run(&Registry::default(), sampler, 3).unwrap();
        let mut rows = explored.rows.clone();
        rows.sort_unstable();
        assert_eq!(rows, [0, 1, 2], "{sampler}");
        assert_eq!(exploration.regrets(&explored.rows).unwrap()[2], 0.0);
    }
    // Feasible: 3.5 and 2. Row 1 is not, so the worst feasible one counts.
    assert_eq!(exploration.regrets(&[1, 0, 2]).unwrap(), [0.75, 0.75, 0.0]);
    assert!(
        exploration.run(&Registry::default(), "halving", 1).unwrap_err().to_string().contains("shortened")
    );
}

#[test]
fn a_column_may_say_what_was_expected() {
    let table = "x,cost,expected\n1,5,9\n2,4,8\n3,1,7\n4,3,10\n";
    let ask = ExplorationRequest {
        axes: vec!["x".into()],
        constraints: Vec::new(),
        prior: Some("expected".into()),
        ..ask()
    };
    let exploration = Exploration::new(parsed(table), &ask).unwrap();
    assert_eq!(exploration.run(&Registry::default(), "bayes", 1).unwrap().rows[..2], [2, 1]);
    let wrong = ExplorationRequest { prior: Some("x y".into()), ..ask };
    let error = Exploration::new(parsed(table), &wrong).unwrap_err().to_string();
    assert!(error.contains("--prior x y: there is no such column"), "{error}");
}

#[test]
fn what_does_not_fit_the_table_is_named() {
    let fails = |change: &dyn Fn(&mut ExplorationRequest)| {
        let mut ask = ask();
        change(&mut ask);
        Exploration::new(parsed(TABLE), &ask).unwrap_err().to_string()
    };
    assert!(
        fails(&|a| a.axes[0] = "vn".into())
            .contains("--axis vn: there is no such column; did you mean `vm`?")
    );
    assert!(fails(&|a| a.axes.truncate(1)).contains("rows 2 and 3 have the same levels"));
    assert!(fails(&|a| a.axes.clear()).contains("name the columns"));
    assert!(fails(&|a| a.objectives[0].metric = "vm".into()).contains("row 1 has `small`, not a number"));
    let condition = |text: &str| Condition::parse(text).unwrap();
    assert!(
        fails(&|a| a.constraints[0] = condition("acc > 1")).contains("--constraint acc: there is no such")
    );
    assert!(fails(&|a| a.constraints[0] = condition("vm = 'huge'")).contains("no row meets"));
}
