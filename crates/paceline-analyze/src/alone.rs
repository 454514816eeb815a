//! One worker alone beside the best of several: by how much, and whether that can be told.

use serde::Serialize;

use crate::anova::Estimate;
use crate::best::{Configuration, Ranking, configuration};
use crate::findings::LEVEL;
use crate::noise::Noise;
use crate::table::{RunRole, StudyTable};

/// The best of one worker and the best of several.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct AloneOrTogether {
    pub one: Configuration,
    pub several: Configuration,
    /// Several less one, on the response's scale, allowing for both having been chosen; no interval where the noise is
    /// not known.
    pub difference: Estimate,
    /// Whether one worker alone is the better; absent where that cannot be told.
    pub distribution_loses: Option<bool>,
}

impl AloneOrTogether {
    /// Of a response, by the factor that counts workers (figures as of the middle of the study); `workload` is that of the
    /// ranking, where there are several.
    pub fn new(
        table: &StudyTable,
        response: usize,
        (ranking, noise): (&Ranking, Option<&Noise>),
        workers: Option<usize>,
        workload: Option<usize>,
    ) -> Option<Self> {
        let counts = workers.and_then(|f| Some((f, table.factors[f].numbers()?)));
        let alone = |c: &&Configuration| match &counts {
            Some((f, numbers)) => numbers[c.levels[*f]] <= 1.0,
            None => table.alone.contains(&RunRole::Point),
        };
        let (ones, many): (Vec<&Configuration>, Vec<_>) = ranking.configurations.iter().partition(alone);
        let [mut ones, many] = [ones, many].map(|of| of.into_iter().cloned().collect::<Vec<_>>());
        let mut observed = table.observed(response);
        observed.retain(|(run, _)| table.workload_of(run) == workload);
        for role in table.alone.iter().filter(|role| **role != RunRole::Point) {
            let runs: Vec<_> = observed.iter().filter(|(run, _)| run.role == *role).copied().collect();
            if !runs.is_empty() && runs.iter().all(|(run, _)| !run.forbidden) {
                let mut alone = configuration(table, response, &runs, 0, noise);
                alone.configuration = "one worker alone".into();
                ones.push(alone);
            }
        }
        let scale = &table.responses[response];
        let best = |of: &[Configuration]| {
            let better = |a: &Configuration, b: &Configuration| scale.better(a.mean.value, b.mean.value);
            of.iter().cloned().reduce(|best, c| if better(&c, &best) { c } else { best })
        };
        let (one, several) = (best(&ones)?, best(&many)?);
        // What may be the best of its side was chosen with the help of noise.
        let chosen_of = |of: &[Configuration]| {
            of.iter().filter(|c| c.may_be_best == Some(true)).count().clamp(1, of.len())
        };
        let outside = LEVEL / (chosen_of(&ones) * chosen_of(&many)) as f64;
        let difference = match noise {
            Some(noise) if one.missed + several.missed == 0 => several.against(&one, noise, outside).0,
            _ => Estimate::new(several.mean.value - one.mean.value, None, LEVEL),
        };
        let distribution_loses = difference.signed().then(|| scale.better(0.0, difference.value));
        Some(Self { one, several, difference, distribution_loses })
    }
}
