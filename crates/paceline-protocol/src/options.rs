//! The parameters of strategies and consistency models: declared in the registries, written as flags by
//! users, resolved into a plan.

use std::collections::BTreeMap;

use crate::setup::Refusal;

/// A parameter that users can set: `--name value`.
#[derive(Debug)]
pub struct Parameter {
    /// The flag, without its dashes.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// What holds where nothing is said.
    pub default: &'static str,
    /// What it may be.
    pub kind: Kind,
}

/// What a parameter may be.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number from `least` on.
    Count {
        /// The least.
        least: u64,
    },
    /// A number within limits, both included.
    Number {
        /// The least.
        least: f64,
        /// The greatest.
        most: f64,
    },
    /// Two whole numbers `L,U`, the second at least the first.
    Bounds,
    /// One of these words.
    Choice(&'static [&'static str]),
}

impl Parameter {
    /// Whether a value can be; otherwise, what could.
    pub fn check(&self, value: &str) -> Result<(), String> {
        match self.kind {
            Kind::Count { least } => match value.parse::<u64>() {
                Ok(n) if n >= least => Ok(()),
                _ => Err(format!("a whole number of at least {least} is needed")),
            },
            Kind::Number { least, most } => match value.parse::<f64>() {
                Ok(n) if (least..=most).contains(&n) => Ok(()),
                _ => Err(format!("a number between {least} and {most} is needed")),
            },
            Kind::Bounds => match bounds(value) {
                Some((lower, upper)) if lower <= upper && upper <= FARTHEST => Ok(()),
                _ => Err(format!(
                    "two whole numbers up to {FARTHEST}, the smaller one first, e.g. {}",
                    self.default
                )),
            },
            Kind::Choice(words) if words.contains(&value) => Ok(()),
            Kind::Choice(words) => Err(format!("possible: {}", words.join(", "))),
        }
    }

    /// What it may be, in words.
    pub fn range(&self) -> String {
        match self.kind {
            Kind::Count { least } => format!("a whole number from {least}"),
            Kind::Number { least, most } => format!("{least} to {most}"),
            Kind::Bounds => format!("two whole numbers L,U with L ≤ U, up to {FARTHEST}"),
            Kind::Choice(words) => words.join(", "),
        }
    }
}

/// The greatest bound: beyond it a bound means nothing.
const FARTHEST: u64 = 10_000;

fn bounds(value: &str) -> Option<(u64, u64)> {
    let (lower, upper) = value.split_once(',')?;
    Some((lower.trim().parse().ok()?, upper.trim().parse().ok()?))
}

/// Values by parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(pub BTreeMap<String, String>);

impl Options {
    /// These values.
    pub fn of(values: &[(&str, &str)]) -> Self {
        Self(values.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }

    /// Sets what was not said.
    pub fn fill(&mut self, name: &str, value: &str) {
        self.0.entry(name.into()).or_insert_with(|| value.into());
    }

    /// A parameter's value: the one that was given, else its default.
    pub fn text<'a>(&'a self, parameter: &'a Parameter) -> &'a str {
        self.0.get(parameter.name).map_or(parameter.default, String::as_str)
    }

    /// The value of a count.
    pub fn count(&self, parameter: &Parameter) -> u64 {
        self.text(parameter).parse().expect("options are checked before they are used")
    }

    /// The value of a number.
    pub fn number(&self, parameter: &Parameter) -> f64 {
        self.text(parameter).parse().expect("options are checked before they are used")
    }

    /// The value of two bounds.
    pub fn bounds(&self, parameter: &Parameter) -> (u64, u64) {
        bounds(self.text(parameter)).expect("options are checked before they are used")
    }

    /// Refuses values that cannot be, and parameters that are not among `known`; fills in defaults. `owner`
    /// finds to whom a parameter that is not known belongs.
    pub fn resolve(
        &mut self,
        known: &[&'static Parameter],
        owner: impl Fn(&str) -> String,
    ) -> Result<(), Refusal> {
        for (name, value) in &self.0 {
            let refuse = |problem| Err(Refusal { flag: format!("--{name}"), value: value.clone(), problem });
            match known.iter().find(|p| p.name == name) {
                Some(parameter) => parameter.check(value).or_else(refuse)?,
                None => return refuse(format!("belongs to {}", owner(name))),
            }
        }
        known.iter().for_each(|p| self.fill(p.name, p.default));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: Parameter =
        Parameter { name: "steps", about: "", default: "4", kind: Kind::Count { least: 1 } };
    const PAIR: Parameter = Parameter { name: "pair", about: "", default: "1,2", kind: Kind::Bounds };

    #[test]
    fn values_are_checked_and_defaults_filled_in() {
        let mut options = Options::of(&[("pair", "3,5")]);
        options.resolve(&[&STEPS, &PAIR], |_| unreachable!()).unwrap();
        assert_eq!((options.count(&STEPS), options.bounds(&PAIR)), (4, (3, 5)));
        for (name, value, problem) in [
            ("steps", "0", "at least 1"),
            ("steps", "x", "at least 1"),
            ("pair", "5,3", "the smaller one first"),
            ("pair", "5", "the smaller one first"),
            ("other", "1", "belongs to somebody"),
        ] {
            let refused = Options::of(&[(name, value)]).resolve(&[&STEPS, &PAIR], |_| "somebody".into());
            let refused = refused.unwrap_err();
            assert_eq!(refused.flag, format!("--{name}"));
            assert!(refused.problem.contains(problem), "{refused:?}");
        }
    }
}
