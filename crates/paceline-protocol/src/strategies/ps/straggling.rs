//! Who is a straggler: a worker whose step time is over median + 3·MAD for several steps in a row.

use crate::vocabulary::Rank;

/// Steps in a row that make a straggler, and that end it.
const STEPS: u32 = 5;

/// The last step time of each worker, and for how long it has been out of line.
pub(super) struct Straggling {
    times: Vec<Option<f32>>,
    over: Vec<u32>,
    under: Vec<u32>,
    slow: Vec<bool>,
}

impl Straggling {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            times: vec![None; workers],
            over: vec![0; workers],
            under: vec![0; workers],
            slow: vec![false; workers],
        }
    }

    /// A worker's step has taken so long.
    pub(super) fn step(&mut self, worker: Rank, seconds: f32) {
        self.times[worker] = Some(seconds);
        let times: Vec<f32> = self.times.iter().flatten().copied().collect();
        let middle = median(&times);
        let deviation = median(&times.iter().map(|t| (t - middle).abs()).collect::<Vec<f32>>());
        // Equal times have no deviation at all; a hundredth of the median is noise anywhere.
        let out_of_line = seconds > middle + 3.0 * deviation.max(0.01 * middle);
        let (up, down) =
            if out_of_line { (&mut self.over, &mut self.under) } else { (&mut self.under, &mut self.over) };
        up[worker] += 1;
        down[worker] = 0;
        if up[worker] >= STEPS {
            self.slow[worker] = out_of_line;
        }
    }

    /// Whether there is a straggler now.
    pub(super) fn any(&self) -> bool {
        self.slow.contains(&true)
    }
}

fn median(values: &[f32]) -> f32 {
    paceline_statistics::median(&values.iter().copied().map(f64::from).collect::<Vec<_>>()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_slow_steps_make_a_straggler_and_five_ordinary_ones_end_it() {
        let mut straggling = Straggling::new(4);
        let mut round = |slow: f32| {
            (0..3).for_each(|w| straggling.step(w, 1.0 + 0.01 * w as f32));
            straggling.step(3, slow);
            straggling.any()
        };
        let seen: Vec<bool> = (0..6).map(|_| round(3.0)).collect();
        assert_eq!(seen, [false, false, false, false, true, true]);
        assert!(round(1.0) && round(1.0) && round(3.0), "one slow step starts the count anew");
        let seen: Vec<bool> = (0..5).map(|_| round(1.0)).collect();
        assert_eq!(seen, [true, true, true, true, false]);
    }

    #[test]
    fn equal_workers_have_no_straggler() {
        let mut straggling = Straggling::new(3);
        (0..30).for_each(|i| straggling.step(i % 3, 0.5));
        assert!(!straggling.any());
    }
}
