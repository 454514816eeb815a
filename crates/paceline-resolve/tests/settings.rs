//! Settings, the plans that they make, and what a plan's names stand for.

use std::sync::Arc;

use paceline_plan::{Plan, Value};
use paceline_record::Recording;
use paceline_resolve::{PlanSettings, Registries, SettingTable, TypedPlan, resolve};

fn table() -> Arc<SettingTable> {
    Arc::new(SettingTable::new(Registries::default()))
}

fn set(name: &str, value: Value) -> Result<PlanSettings, String> {
    PlanSettings::from_values(&table(), [(&name.to_owned(), &value)]).map_err(|error| error.to_string())
}

#[test]
fn what_cannot_be_set_says_why_and_what_could() {
    let text = |text: &str| Value::Text(text.into());
    for (name, value, problem) in [
        ("epoch", Value::Number(1.0), "paceline train has no flag --epoch; did you mean `epochs`?"),
        ("epochs", text("one"), "invalid value 'one' for '--epochs <EPOCHS>': invalid float literal"),
        ("averages", text("x"), "'--averages <AVERAGES>'; [possible values: gradients, weights]"),
        ("workers", Value::Flag(true), "a value is required for '--workers <WORKERS>'"),
        ("pin", Value::Number(3.0), "unexpected value '3' for '--pin' found"),
        ("strange-name", Value::Flag(false), "`paceline train --help` lists every flag"),
    ] {
        let said = set(name, value).unwrap_err();
        assert!(said.contains(problem), "{said}");
    }
}

#[test]
fn a_setting_without_a_value_has_its_bare_one_and_false_takes_it_away() {
    assert_eq!(set("trace", Value::Flag(true)).unwrap().recording().unwrap().trace, 50_000);
    assert_eq!(set("workers", Value::Flag(false)), Ok(PlanSettings::new(&table())));
    assert_eq!(PlanSettings::new(&table()).recording().unwrap(), Recording::default());
}

#[test]
fn a_name_of_another_version_is_refused_with_its_flag() {
    let plan = resolve(&PlanSettings::new(&table())).unwrap();
    assert_eq!(TypedPlan::new(&plan, &Registries::default()).unwrap().optimiser.name, "sgd");
    for (flag, plan) in [
        ("--strategy", Plan { strategy: "telepathy".into(), ..plan.clone() }),
        ("--shard", Plan { shard: "halves".into(), workers: 2, ..plan.clone() }),
        ("--lr-scaling", Plan { lr_scaling: "square".into(), ..plan.clone() }),
        ("--compression", Plan { compression: Some("zip".into()), ..plan.clone() }),
    ] {
        assert_eq!(TypedPlan::new(&plan, &Registries::default()).map(drop).unwrap_err().flag, flag);
    }
}
