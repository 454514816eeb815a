//! Where axes can act. With one worker there is nobody to talk to, so strategy, transport, servers and the like mean
//! nothing; servers belong to strategies that have them, and parameters to strategies and consistency models; where a
//! script's own framework averages, nothing that is about our exchange acts. Stages of a network talk to each other, whose
//! pipeline and cuts mean nothing without them. Points that differ in such an axis alone
//! are one point.

use std::collections::BTreeMap;

use paceline_plan::{Axis, Condition, Space, Study, Value, Workload};
use paceline_protocol::{DELEGATED, Parameter, Strategy};
use paceline_resolve::{OWN_CONDITIONS, OWN_EXCHANGE, SCRIPT_ARGUMENT};

use crate::registries::AllRegistries;

/// Settings that mean nothing for one worker alone, apart from the parameters of strategies.
pub(crate) const OF_SEVERAL: &str = "servers strategy sync transport compression buffer bucket network hosts averages \
                                     placement shard lr-scaling apply";

/// Those of them that are about messages: stages of one replica have some, too.
const OF_MESSAGES: [&str; 4] = ["transport", "buffer", "network", "hosts"];

/// Whether a strategy leaves averaging to a script's own framework.
pub(crate) fn delegated(strategy: &Value) -> bool {
    DELEGATED.iter().any(|one| matches!(strategy, Value::Text(name) if name == one.name))
}

/// The same study, its axes only there where they can act; of several workloads, where they can for each.
pub(crate) fn collapsed(mut study: Study, registries: &AllRegistries) -> Study {
    let narrowed = |part: &Study| match &part.workload {
        Workload::Train(fixed) => {
            let told = |axis: &Axis| where_it_acts(&part.space, fixed, registries, &axis.name);
            part.space.clone().narrowed(told)
        }
        Workload::Command { .. } => part.space.clone(),
    };
    let whole = study.part.is_none();
    let spaces: Vec<Space> =
        if whole { study.parts().iter().map(narrowed).collect() } else { vec![narrowed(&study)] };
    // Where they differ, a point may have a level that means nothing to one of them: its own part takes it out.
    if spaces.iter().all(|space| space.axes() == spaces[0].axes()) {
        study.space = spaces[0].clone();
    }
    study
}

/// What holds of a setting: a condition on an axis, or a fact.
enum Holds {
    Where(String),
    Always,
    Never,
}

impl Holds {
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Always, _) | (_, Self::Always) => Self::Always,
            (Self::Never, other) | (other, Self::Never) => other,
            (Self::Where(a), Self::Where(b)) => Self::Where(format!("({a}) or ({b})")),
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::Always, other) | (other, Self::Always) => other,
            (Self::Where(a), Self::Where(b)) => Self::Where(format!("({a}) and ({b})")),
        }
    }
}

fn where_it_acts(
    space: &Space,
    fixed: &BTreeMap<String, Value>,
    registries: &AllRegistries,
    name: &str,
) -> Option<Condition> {
    let protocols = &registries.settings.registries.protocols;
    let axis = |name: &str| space.axes().iter().find(|axis| axis.name == name);
    let fact = |holds: bool| if holds { Holds::Always } else { Holds::Never };
    // Whether a setting is one of some names: by its axis, by the workload, or by what holds otherwise.
    let is_one = |setting: &str, otherwise: &str, names: &[&str]| match (axis(setting), fixed.get(setting)) {
        (Some(_), _) => {
            let each = names.iter().map(|name| Holds::Where(format!("{setting} = \"{name}\"")));
            each.fold(Holds::Never, Holds::or)
        }
        (None, Some(value)) => fact(names.contains(&value.to_string().as_str())),
        (None, None) => fact(names.contains(&otherwise)),
    };
    let strategies = |which: &dyn Fn(&Strategy) -> bool| {
        let names: Vec<&str> = protocols.strategies.iter().filter(|s| which(s)).map(|s| s.name).collect();
        is_one("strategy", paceline_protocol::AUTO, &names)
    };
    // Whether this program exchanges, and not a script's framework.
    let ours = || match (axis("strategy"), fixed.get("strategy")) {
        (Some(axis), _) => {
            let other = |level: &Value| Holds::Where(format!("strategy != \"{level}\""));
            axis.levels.iter().filter(|level| delegated(level)).map(other).fold(Holds::Always, Holds::and)
        }
        (None, strategy) => fact(!strategy.is_some_and(delegated)),
    };
    let has = |parameters: &[&Parameter]| parameters.iter().any(|p| p.name == name);
    let of_parameter = || {
        let models = protocols.consistencies.iter().filter(|c| has(c.parameters));
        let models: Vec<&str> = models.map(|c| c.name).collect();
        let by_sync = is_one("sync", "bsp", &models).and(strategies(&|s| s.gated));
        strategies(&|s| has(s.parameters)).or(by_sync)
    };
    let parameter = protocols.parameters().iter().any(|p| p.name == name);
    let script = fixed.contains_key("script") || axis("script").is_some();
    let native = registries.settings.find(name).is_some_and(|setting| setting.native);
    let staged = || match (axis("stages"), fixed.get("stages")) {
        (Some(_), _) => Holds::Where("stages > 1".into()),
        (None, stages) => fact(stages.and_then(Value::number).is_some_and(|stages| stages > 1.0)),
    };
    let own = match name {
        "pipeline" | "cuts" => fact(!script).and(staged()),
        _ if native => fact(!script),
        _ if name.starts_with(SCRIPT_ARGUMENT) => fact(script),
        "servers" | "placement" | "apply" => strategies(&|s| s.servers),
        "sync" => strategies(&|s| s.gated),
        _ if parameter => of_parameter(),
        _ if OWN_EXCHANGE.contains(&name) || OWN_CONDITIONS.contains(&name) => ours(),
        _ => Holds::Always,
    };
    let several = if !parameter && OF_SEVERAL.split_whitespace().all(|several| several != name) {
        Holds::Always
    } else if axis("workers").is_some() {
        Holds::Where("workers > 1".into())
    } else {
        let workers = fixed.get("workers").and_then(Value::number).unwrap_or(1.0);
        // A fixed strategy of one worker and a server is meant as it is written.
        fact(workers > 1.0 || fixed.contains_key("strategy"))
    };
    let several = if OF_MESSAGES.contains(&name) { several.or(staged()) } else { several };
    let text = match own.and(several) {
        Holds::Always => return None,
        Holds::Never => "false".to_owned(),
        Holds::Where(text) => text,
    };
    Condition::parse(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(workload: &str, axes: &str) -> Space {
        let text = format!(
            "sampler = \"grid\"\n[workload]\n{workload}\n[axes]\n{axes}\n[[objectives]]\nmetric = \"step_s\"\n\
             goal = \"minimize\"\n"
        );
        collapsed(Study::read("s.toml", "s", &text).unwrap(), &AllRegistries::default()).space
    }

    #[test]
    fn what_means_nothing_for_one_worker_is_no_other_point() {
        let axes = "workers = [1, 2]\nstrategy = [\"ring-allreduce\", \"ps\"]\nservers = [1, 2]\n\
                    sync = [\"bsp\", \"ssp\"]\nstaleness = [1, 4]\ntransport = [\"tcp\", \"shm\"]\nbatch = [8, 16]";
        let space = space("", axes);
        // Two batches of one worker; of two workers, rings over two transports, and servers with bsp or two bounds.
        let ring = 2;
        let ps = 2 * 2 * (1 + 2);
        assert_eq!(space.points(1000).unwrap().len(), 2 * (1 + ring + ps));
        let named = |point| space.named(point);
        let points = space.points(1000).unwrap();
        let alone: Vec<_> = points.iter().map(named).filter(|p| p["workers"] == Value::Number(1.0)).collect();
        assert!(alone.iter().all(|p| p.len() == 2), "{alone:?}");
        assert!(
            points
                .iter()
                .map(named)
                .all(|p| p.contains_key("staleness") == (p.get("sync") == Some(&Value::Text("ssp".into()))))
        );
    }

    #[test]
    fn what_is_about_our_exchange_is_not_there_where_a_scripts_framework_averages() {
        let axes = "workers = [1, 2]\nstrategy = [\"ring-allreduce\", \"ps\", \"ddp-gloo\"]\nservers = [1, 2]\n\
                    sync = [\"bsp\", \"asp\"]\ntransport = [\"tcp\", \"shm\"]\nnetwork = [\"1gbit,1ms\", \"10gbit,1ms\"]\n\
                    apply = [\"worker\", \"server\"]\nargs.lr = [0.01, 0.1]\nstraggler = [\"moving,factor=2\"]";
        let space = space("script = \"train.py\"", axes);
        let (ring, ps, ddp) = (2 * 2, 2 * 2 * 2 * 2 * 2, 1);
        let points = space.points(1000).unwrap();
        assert_eq!(points.len(), 2 * (1 + ring + ps + ddp));
        let ddp: Vec<_> = points
            .iter()
            .map(|point| space.named(point))
            .filter(|levels| levels.get("strategy") == Some(&Value::Text("ddp-gloo".into())))
            .collect();
        let names = |levels: &BTreeMap<String, Value>| levels.keys().cloned().collect::<Vec<_>>();
        assert!(ddp.iter().all(|levels| names(levels) == ["args.lr", "strategy", "workers"]), "{ddp:?}");
    }

    #[test]
    fn what_means_nothing_to_one_of_several_workloads_is_not_there_for_it() {
        let text = "sampler = \"grid\"\n[[workload]]\nname = \"a\"\nscript = \"a.py\"\n[[workload]]\nname = \"b\"\n\
                    model = \"mlp\"\n[axes]\nargs.lr = [1, 2, 3]\nbatch = [8, 16]\n[[objectives]]\n\
                    metric = \"step_s\"\ngoal = \"minimize\"\n";
        let registries = AllRegistries::default();
        let study = collapsed(Study::read("s.toml", "s", text).unwrap(), &registries);
        let parts = crate::parts(&study, &registries);
        let points: Vec<usize> = parts.iter().map(|part| part.space.points(100).unwrap().len()).collect();
        assert_eq!(points, [3, 2]);
    }

    #[test]
    fn what_the_workload_says_counts_too() {
        let count = |workload: &str, axes: &str| space(workload, axes).points(1000).unwrap().len();
        assert_eq!(count("workers = 4", "staleness = [1, 2]\nbatch = [8, 16]"), 2, "bsp has no staleness");
        let ssp = "workers = 4\nstrategy = \"ps\"\nservers = 1\nsync = \"ssp\"";
        assert_eq!(count(ssp, "staleness = [1, 2]\nbatch = [8, 16]"), 4);
        assert_eq!(count("", "transport = [\"tcp\", \"shm\"]\nbatch = [8, 16]"), 2, "one worker alone");
        assert_eq!(count("workers = 2", "transport = [\"tcp\", \"shm\"]\nbatch = [8, 16]"), 4);
    }

    #[test]
    fn pipelines_act_where_there_are_stages_and_stages_talk() {
        let count = |workload: &str, axes: &str| space(workload, axes).points(1000).unwrap().len();
        let axes = "stages = [1, 2, 3]\npipeline = [\"gpipe\", \"1f1b\"]\ntransport = [\"tcp\", \"shm\"]";
        assert_eq!(count("", axes), 1 + 2 * 2 * 2);
        assert_eq!(count("", "pipeline = [\"gpipe\", \"1f1b\"]\nbatch = [8, 16]"), 2);
        assert_eq!(count("stages = 2", "cuts = [\"auto\", \"fc2\"]\nbatch = [8, 16]"), 4);
    }
}
