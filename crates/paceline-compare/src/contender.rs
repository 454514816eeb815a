//! What is compared: strategies by name, and strategy files.

use std::collections::BTreeMap;
use std::path::Path;

use paceline_plan::{PlanError, nearest};
use paceline_protocol::options::Kind;
use paceline_resolve::{Registries, is_strategy_file, strategy_description, strategy_program};
use serde::{Deserialize, Serialize};

use crate::error::CompareFailure;

/// Whom a rule is compared with unless somebody says otherwise; the first one sets the targets.
pub const DEFAULT_RIVALS: [&str; 4] = ["ring-allreduce", "ps", "local", "stepwise"];

/// The parameter that strategies have several variants by.
const VARIANT: &str = "variant";

/// Workers that share a server, where a strategy has servers.
const WORKERS_PER_SERVER: usize = 4;

/// One strategy, or the best of its variants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contender {
    /// What it is called.
    pub label: String,
    /// Its variants, at least one: the search chooses between them.
    pub variants: Vec<ContenderVariant>,
}

/// A strategy with everything that it is set to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContenderVariant {
    /// What it is called.
    pub label: String,
    /// Its settings, as flags of `paceline train`.
    pub settings: BTreeMap<String, String>,
    /// Whether it needs servers.
    pub servers: bool,
    /// The text of its file, where it has one.
    pub text: Option<String>,
}

impl ContenderVariant {
    /// Its servers with so many workers.
    pub fn servers(&self, workers: usize) -> usize {
        if self.servers { workers.div_ceil(WORKERS_PER_SERVER) } else { 0 }
    }
}

impl Contender {
    /// A rule and its rivals, each with a label of its own.
    pub fn parse_all(
        mine: &str,
        rivals: &[String],
        registries: &Registries,
    ) -> Result<Vec<Self>, CompareFailure> {
        let mut all = vec![Self::parse(mine, "MINE", registries)?];
        for rival in rivals {
            all.push(Self::parse(rival, "--against", registries)?);
        }
        Self::tell_apart(&mut all);
        Ok(all)
    }

    /// A strategy file, or the name of a strategy: the best of its variants where it has some, or one (`stepwise:naive`).
    fn parse(word: &str, flag: &str, registries: &Registries) -> Result<Self, PlanError> {
        if is_strategy_file(word) {
            return Self::of_file(word);
        }
        let (name, only) = word.split_once(':').map_or((word, None), |(name, variant)| (name, Some(variant)));
        let strategies = &registries.protocols.strategies;
        let Some(strategy) = strategies.find(name) else {
            let names: Vec<&str> = strategies.described().map(|(name, _)| name).collect();
            let near = nearest(name, names.iter().copied()).map(|near| format!("did you mean `{near}`? "));
            let problem = format!(
                "is neither a strategy file (FILE.toml) nor a strategy; {}possible: {}",
                near.unwrap_or_default(),
                names.join(", ")
            );
            return Err(PlanError::new(flag, word, problem));
        };
        let choices =
            strategy.parameters.iter().find(|p| p.name == VARIANT).map(|parameter| match parameter.kind {
                Kind::Choice(choices) => choices,
                _ => &[],
            });
        let variant = |chosen: Option<&str>| {
            let mut settings = BTreeMap::from([("strategy".to_owned(), name.to_owned())]);
            settings.extend(chosen.map(|chosen| (VARIANT.to_owned(), chosen.to_owned())));
            let label = chosen.map_or_else(|| name.to_owned(), |chosen| format!("{name} {chosen}"));
            ContenderVariant { label, settings, servers: strategy.servers, text: None }
        };
        let choices = choices.unwrap_or_default();
        let variants: Vec<ContenderVariant> = match only {
            Some(only) if !choices.contains(&only) => {
                let problem = format!("there is no such variant; possible: {}", choices.join(", "));
                return Err(PlanError::new(flag, word, problem));
            }
            Some(only) => vec![variant(Some(only))],
            None if choices.is_empty() => vec![variant(None)],
            None => choices.iter().map(|choice| variant(Some(choice))).collect(),
        };
        let label = if let [one] = &variants[..] { one.label.clone() } else { format!("best {name}") };
        Ok(Self { label, variants })
    }

    fn of_file(file: &str) -> Result<Self, PlanError> {
        let (name, text) = strategy_description(Path::new(file))?;
        let program = strategy_program(&name, &text)?;
        let path = std::path::absolute(file)
            .map_or_else(|_| file.into(), |path| path.to_string_lossy().into_owned());
        let settings = BTreeMap::from([("strategy-file".to_owned(), path)]);
        let label = program.name().to_owned();
        let variant = ContenderVariant { label: label.clone(), settings, servers: false, text: Some(text) };
        Ok(Self { label, variants: vec![variant] })
    }

    /// Gives each contender a label of its own: a second one of the same is numbered.
    fn tell_apart(all: &mut [Self]) {
        for i in 1..all.len() {
            let taken = all[..i].iter().filter(|other| other.label == all[i].label).count();
            if taken > 0 {
                all[i].label = format!("{} ({})", all[i].label, taken + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_with_variants_is_the_best_of_them() {
        let registries = Registries::default();
        let parse = |word: &str| Contender::parse(word, "--against", &registries);
        let all = parse("stepwise").unwrap();
        assert_eq!((all.label.as_str(), all.variants.len()), ("best stepwise", 6));
        let one = parse("stepwise:naive").unwrap();
        assert_eq!((one.label.as_str(), one.variants.len()), ("stepwise naive", 1));
        let ps = parse("ps").unwrap();
        assert_eq!([1, 4, 5, 16].map(|workers| ps.variants[0].servers(workers)), [1, 1, 2, 4]);
        assert_eq!(parse("local").unwrap().variants[0].servers(16), 0);
        for (word, why) in
            [("rung", "neither"), ("stepwise:best", "no such variant"), ("ps:x", "no such variant")]
        {
            assert!(parse(word).unwrap_err().to_string().contains(why), "{word}");
        }
        let mut twice = [parse("ps").unwrap(), parse("ps").unwrap()];
        Contender::tell_apart(&mut twice);
        assert_eq!(twice[1].label, "ps (2)");
    }
}
