//! What was measured: its scale, its unit, and whether less or more of it is wanted.

use paceline_plan::Goal;
use paceline_record::figures::{Figures, unit_by_name};
use serde::Serialize;

/// Something that runs measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Response {
    /// The column.
    pub name: String,
    /// Whether its logarithm is explained: effects are then factors, told in percent.
    pub log: bool,
    /// What is wanted.
    pub goal: Goal,
    /// Its unit; empty for a plain number.
    #[serde(skip)]
    pub unit: &'static str,
    /// Other names that it is found by.
    #[serde(skip)]
    pub old_names: &'static [&'static str],
}

impl Response {
    /// `name` or `log(name)`, of which less is wanted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let inner = text.strip_prefix("log(").and_then(|rest| rest.strip_suffix(')'));
        let name = inner.unwrap_or(text).trim();
        if name.is_empty() || name.contains(['(', ')']) {
            return Err(format!("`{text}` is neither a column nor `log(column)`"));
        }
        let unit = unit_by_name(name);
        Ok(Self { name: name.into(), log: inner.is_some(), goal: Goal::Minimize, unit, old_names: &[] })
    }

    /// A figure, as the registry has it; one that it does not have is told by its name.
    pub fn figure(figures: &Figures, name: &str, log: bool) -> Self {
        let (name, unit, known) = (figures.name(name).into(), figures.unit(name), figures.find(name));
        let (goal, old_names) = known.map_or((Goal::Minimize, &[][..]), |f| (f.goal, f.old_names));
        Self { name, log, goal, unit, old_names }
    }

    /// Whether this is its name, or one that it had before.
    pub fn is(&self, name: &str) -> bool {
        self.name == name || self.old_names.contains(&name)
    }

    /// The same, of which this is wanted.
    pub fn wanted(self, goal: Goal) -> Self {
        Self { goal, ..self }
    }

    /// As it was asked for.
    pub fn words(&self) -> String {
        if self.log { format!("log({})", self.name) } else { self.name.clone() }
    }

    /// The name with its unit.
    pub fn named(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{}, {}", self.name, self.unit) }
    }

    /// A measured value on the scale that is explained; none where it has no logarithm.
    pub fn scaled(&self, value: f64) -> Option<f64> {
        let scaled = if self.log { value.ln() } else { value };
        scaled.is_finite().then_some(scaled)
    }

    /// Back from the scale that is explained.
    pub fn unscaled(&self, value: f64) -> f64 {
        if self.log { value.exp() } else { value }
    }

    /// A value with its unit.
    pub fn show(&self, value: f64) -> String {
        format!("{} {}", number(value), self.unit).trim_end().to_owned()
    }

    /// Whether `a` is better than `b`.
    pub fn better(&self, a: f64, b: f64) -> bool {
        self.goal.better(a, b)
    }
}

/// A level as it is shown: a long number with four digits that count.
pub fn short(level: &str) -> String {
    match level.parse::<f64>() {
        Ok(value) if level.len() > 8 && value.is_finite() => {
            let text = format!("{value:.3e}").parse::<f64>().map_or_else(|_| level.into(), |v| v.to_string());
            if text.len() > 12 { format!("{value:.3e}") } else { text }
        }
        _ => level.to_owned(),
    }
}

/// Three digits that count.
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-4..7).contains(&magnitude) {
        return format!("{value:.2e}");
    }
    let text = format!("{value:.*}", usize::try_from(2 - magnitude).unwrap_or(0));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_a_column_or_its_logarithm() {
        let plain = Response::parse("accuracy").unwrap();
        assert_eq!((plain.log, plain.unit, plain.words().as_str()), (false, "", "accuracy"));
        let log = Response::parse(" log( training_time_s ) ").unwrap();
        assert_eq!((log.name.as_str(), log.log, log.unit), ("training_time_s", true, "s"));
        assert_eq!(Response::parse("samples_per_s").unwrap().unit, "1/s");
        let figure = Response::figure(&Figures::default(), "train_s", false);
        assert_eq!((figure.named().as_str(), figure.is("train_s")), ("seconds.train, s", true));
        assert_eq!(Response::parse("seconds.train").unwrap().named(), "seconds.train, s");
        assert!(Response::parse("log()").is_err() && Response::parse("sqrt(x)").is_err());
    }

    #[test]
    fn figures_have_three_digits_that_count() {
        assert_eq!([number(1234.5), number(0.012345), number(12.0)], ["1234", "0.0123", "12"]);
        assert_eq!(Response::parse("t_s").unwrap().show(0.25), "0.25 s");
        assert_eq!(
            ["0.041246263829", "16", "0.05", "ring-allreduce", "0.000000000123456"].map(short),
            ["0.04125", "16", "0.05", "ring-allreduce", "1.235e-10"]
        );
    }
}
