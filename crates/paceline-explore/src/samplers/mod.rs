//! The registry of samplers. To add one: write its file, then add its line to [`SAMPLERS`]; it then appears in the
//! command line, in study files and in the conformance suite.

mod bayes;
mod fractional;
mod grid;
mod halving;
mod lhs;
mod pick;
mod random;
mod sobol;

use paceline_plan::nearest;
use paceline_registry::Registry;

use crate::problem::{Observation, Problem, Suggestion};

/// Chooses points. What it keeps is a cache: the answer depends on the problem and the history alone.
pub trait Sampler: Send {
    /// The next point after a history; `None` when there is nothing left to suggest.
    fn next(&mut self, history: &[Observation]) -> Option<Suggestion>;

    /// What a user should know about the points, e.g. the generators of a design.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A sampler that users can name.
pub struct SamplerKind {
    /// The name, on the command line and in study files.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// What may stand after a colon, e.g. `fractional:V`; empty if nothing.
    pub variants: &'static [&'static str],
    /// Whether what runs measured changes what is suggested.
    pub adaptive: bool,
    /// Whether it begins with shortened runs.
    pub shortens: bool,
    /// Whether it ends by itself without a budget.
    pub finite: bool,
    /// The sampler for a problem.
    pub make: Make,
}

paceline_registry::entries!(SamplerKind, SAMPLERS);

/// Makes a sampler for a problem, in a variant.
pub type Make = fn(&Problem, &str) -> Result<Box<dyn Sampler>, SamplerError>;

/// A sampler that does not suit the problem, or does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SamplerError(pub String);

/// Every sampler.
pub static SAMPLERS: &[SamplerKind] = &[
    grid::GRID,
    fractional::FRACTIONAL,
    random::RANDOM,
    lhs::LHS,
    sobol::SOBOL,
    bayes::BAYES,
    halving::HALVING,
];

/// The sampler of that name, and its variant.
pub fn find<'n>(
    samplers: &Registry<SamplerKind>,
    name: &'n str,
) -> Result<(&'static SamplerKind, &'n str), SamplerError> {
    let (base, variant) = name.split_once(':').unwrap_or((name, ""));
    let Some(kind) = samplers.find(base) else {
        let names = samplers.names();
        let hint =
            nearest(base, names.iter().copied()).map(|n| format!("did you mean `{n}`? ")).unwrap_or_default();
        let all = names.join(", ");
        return Err(SamplerError(format!("there is no sampler `{base}`; {hint}possible: {all}")));
    };
    if variant.is_empty() || kind.variants.contains(&variant) {
        return Ok((kind, variant));
    }
    let possible = match kind.variants {
        [] => format!("`{base}` stands alone"),
        variants => format!("possible: {}", variants.join(", ")),
    };
    Err(SamplerError(format!("there is no `{name}`; {possible}")))
}

/// The sampler of that name for a problem.
pub fn make(
    samplers: &Registry<SamplerKind>,
    name: &str,
    problem: &Problem,
) -> Result<Box<dyn Sampler>, SamplerError> {
    let (kind, variant) = find(samplers, name)?;
    (kind.make)(problem, variant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplers_are_found_by_name_and_mistakes_show_what_is_possible() {
        assert_eq!(
            find(&Registry::default(), "fractional:V").map(|(k, v)| (k.name, v)),
            Ok(("fractional", "V"))
        );
        let problem = |name: &str| find(&Registry::default(), name).map(|_| ()).unwrap_err().0;
        assert!(problem("bayse").contains("did you mean `bayes`?"));
        assert!(problem("fractional:VII").contains("III, IV, V, plackett-burman"));
        assert!(problem("grid:fine").contains("stands alone"));
    }
}
