//! The learning rate over the course of a run.

use std::fmt;
use std::str::FromStr;

/// How the rate changes, as a function of the fraction of the work that is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// Always the same.
    Constant,
    /// Multiplied by `factor` after every `every` epochs.
    Step {
        /// Epochs between changes.
        every: f64,
        /// What the rate is multiplied by.
        factor: f64,
    },
    /// Falls to zero along half a cosine.
    Cosine,
}

/// Where in a run a step stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Fraction of the run's samples that came before this step.
    pub fraction: f64,
    /// Epochs that came before this step.
    pub epochs: f64,
}

impl Schedule {
    /// The forms that a user can write.
    pub const FORMS: &'static str = "constant, cosine, or step,every=EPOCHS,factor=F";

    /// The factor of the base rate. `warmup` is the fraction of the run over which it rises linearly
    /// from zero.
    pub fn factor(self, at: Progress, warmup: f64) -> f64 {
        let rise = if at.fraction < warmup { at.fraction / warmup } else { 1.0 };
        let fall = match self {
            Schedule::Constant => 1.0,
            Schedule::Step { every, factor } => factor.powf((at.epochs / every).floor()),
            Schedule::Cosine => {
                let rest = ((at.fraction - warmup) / (1.0 - warmup)).clamp(0.0, 1.0);
                0.5 * (1.0 + (std::f64::consts::PI * rest).cos())
            }
        };
        rise * fall
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Constant => f.write_str("constant"),
            Schedule::Cosine => f.write_str("cosine"),
            Schedule::Step { every, factor } => write!(f, "step,every={every},factor={factor}"),
        }
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let (mut every, mut factor) = (None, None);
        for part in parts {
            let slot = match part.split_once('=') {
                Some(("every", _)) if name == "step" => &mut every,
                Some(("factor", _)) if name == "step" => &mut factor,
                _ => return Err(format!("`{part}` is not a setting of `{name}`; possible: {}", Self::FORMS)),
            };
            let value = part.split_once('=').map_or("", |(_, v)| v);
            match value.parse::<f64>() {
                Ok(v) if v > 0.0 && v.is_finite() => *slot = Some(v),
                _ => return Err(format!("`{part}`: a positive number is needed")),
            }
        }
        match name {
            "constant" => Ok(Schedule::Constant),
            "cosine" => Ok(Schedule::Cosine),
            "step" => match (every, factor) {
                (Some(every), Some(factor)) => Ok(Schedule::Step { every, factor }),
                _ => Err("step needs both settings: step,every=EPOCHS,factor=F".into()),
            },
            _ => Err(format!("possible: {}", Self::FORMS)),
        }
    }
}

/// How the rate follows the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LrScaling {
    /// It does not.
    None,
    /// In proportion: p workers make a p-fold batch.
    Linear,
}

impl LrScaling {
    /// The factor of the rate for a number of workers.
    pub fn factor(self, workers: usize) -> f64 {
        match self {
            LrScaling::None => 1.0,
            LrScaling::Linear => workers as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(fraction: f64, epochs: f64) -> Progress {
        Progress { fraction, epochs }
    }

    #[test]
    fn schedules_start_at_the_rate_and_fall_as_they_say() {
        assert_eq!(Schedule::Constant.factor(at(0.7, 3.0), 0.0), 1.0);
        let step = Schedule::Step { every: 2.0, factor: 0.1 };
        assert_eq!(step.factor(at(0.0, 1.99), 0.0), 1.0);
        assert!((step.factor(at(0.5, 4.0), 0.0) - 0.01).abs() < 1e-15);
        assert_eq!(Schedule::Cosine.factor(at(0.0, 0.0), 0.0), 1.0);
        assert!(Schedule::Cosine.factor(at(1.0, 9.0), 0.0).abs() < 1e-15);
    }

    #[test]
    fn warm_up_rises_from_zero_to_the_schedule() {
        assert_eq!(Schedule::Constant.factor(at(0.0, 0.0), 0.1), 0.0);
        assert_eq!(Schedule::Constant.factor(at(0.05, 0.0), 0.1), 0.5);
        assert_eq!(Schedule::Cosine.factor(at(0.1, 0.0), 0.1), 1.0);
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for s in [Schedule::Constant, Schedule::Cosine, Schedule::Step { every: 2.5, factor: 0.1 }] {
            assert_eq!(s.to_string().parse(), Ok(s));
        }
        for bad in ["", "cos", "step", "step,every=0,factor=1", "constant,every=1", "step,every=1,factor=x"] {
            assert!(bad.parse::<Schedule>().is_err(), "{bad}");
        }
    }
}
