//! Settings, the plans that they make, and what a plan's names stand for.

use std::sync::Arc;

use paceline_plan::{PathRule, Plan, Value};
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

fn planned(settings: &str) -> Plan {
    let mut all = PlanSettings::new(&table());
    for setting in settings.split_whitespace() {
        let (name, value) = setting.split_once('=').unwrap();
        all.set(name, &Value::Text(value.into())).unwrap();
    }
    resolve(&all).unwrap()
}

#[test]
fn the_choice_of_paths_is_in_the_plan_and_in_no_plan_of_a_named_strategy() {
    for (settings, averaging) in [
        ("workers=4 transport=shm", "auto: direct"),
        ("workers=4 transport=inproc", "auto: direct"),
        ("workers=4 transport=tcp", "auto: halving-doubling below 16 KiB, else direct"),
        (
            "workers=4 transport=shm network=10gbit",
            "auto: halving-doubling below 64 KiB, else ring-allreduce",
        ),
        ("workers=6 transport=tcp", "auto: tree below 16 KiB, else direct"),
        ("workers=4 transport=shm network=10gbit hosts=2", "auto: hierarchical"),
        ("workers=4 transport=tcp hosts=0,0,0,1", "auto: hierarchical"),
        ("workers=2 transport=tcp", "auto: direct"),
        (
            "workers=2 transport=tcp compression=fp16",
            "auto: halving-doubling below 64 KiB, else ring-allreduce",
        ),
        // Whoever computes the shares, the sums are made along the same paths.
        ("workers=2 shares=4 transport=shm", "auto: direct"),
        ("workers=2 shares=4 transport=tcp", "auto: halving-doubling below 16 KiB, else direct"),
        ("workers=1 transport=tcp", "single"),
    ] {
        let plan = planned(&format!("strategy=auto {settings}"));
        assert_eq!(plan.averaging(), averaging, "{settings}");
        let typed = TypedPlan::new(&plan, &Registries::default()).unwrap();
        let names: Vec<&str> = typed.paths.iter().map(|sized| sized.name).collect();
        assert_eq!(names, plan.paths.iter().map(|rule| &rule.path).collect::<Vec<_>>(), "{settings}");
    }
    assert!(planned("strategy=tree workers=4").paths.is_empty());
}

#[test]
fn a_choice_that_leaves_buckets_without_a_path_is_refused() {
    let plan = planned("strategy=auto workers=6 transport=tcp");
    let rule = |below_bytes, path: &str| PathRule { below_bytes, path: path.into() };
    let whole = vec![rule(None, "tree")];
    for (strategy, paths) in [
        ("auto", vec![]),
        ("auto", vec![rule(Some(100), "tree")]),
        ("auto", vec![rule(None, "gossip")]),
        ("auto", vec![rule(None, "auto")]),
        ("auto", vec![rule(None, "telepathy")]),
        ("tree", whole.clone()),
    ] {
        let plan = Plan { strategy: strategy.into(), paths, ..plan.clone() };
        let refused = TypedPlan::new(&plan, &Registries::default()).map(drop).unwrap_err();
        assert_eq!(refused.flag, "--strategy", "{:?}", plan.paths);
    }
    assert!(TypedPlan::new(&Plan { paths: whole, ..plan }, &Registries::default()).is_ok());
}

#[test]
fn auto_is_shared_memory_wherever_ranks_share_a_machine() {
    for (settings, transport) in [
        ("workers=4", "shm"),
        ("workers=4 strategy=ps servers=2", "shm"),
        ("workers=4 network=1gbit,1ms", "shm"),
        ("workers=4 network=1gbit,1ms hosts=2", "shm"),
        ("workers=4 hosts=2", "shm"),
        ("workers=1", "tcp"),
    ] {
        assert_eq!(planned(&format!("transport=auto {settings}")).transport, transport, "{settings}");
    }
}
