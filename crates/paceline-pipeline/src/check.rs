//! What must hold of a program before anything runs, and what follows from it.

use crate::program::{PipelineProgram, ProgramError, RankProgram};
use paceline_protocol::{Work, WorkKind};

/// A program that can be run: each stage does each micro-batch once forward and once backward, in ascending order (so
/// that gradients and running statistics have the bits of one worker), and no rank waits for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedProgram {
    ranks: Vec<RankProgram>,
    micro_batches: usize,
    rank_of: Vec<usize>,
    slots: Vec<usize>,
    order: Vec<Work>,
}

impl CheckedProgram {
    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.rank_of.len()
    }

    /// Number of micro-batches.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// The work of each rank, in order.
    pub fn ranks(&self) -> &[RankProgram] {
        &self.ranks
    }

    /// The rank that has a stage.
    pub fn rank_of(&self, stage: usize) -> usize {
        self.rank_of[stage]
    }

    /// The most micro-batches that are between forward and backward in a stage at once.
    pub fn slots(&self, stage: usize) -> usize {
        self.slots[stage]
    }

    /// The slot that a micro-batch has from its forward to its backward pass. Slots are used in turn.
    pub fn slot(&self, work: Work) -> usize {
        work.micro % self.slots[work.stage]
    }

    /// The work of all ranks in an order in which nothing waits for what comes later.
    pub fn order(&self) -> &[Work] {
        &self.order
    }
}

/// What is known of a stage's work while it is walked through.
#[derive(Clone)]
struct StageState {
    rank: Option<usize>,
    /// Passes so far: forward, backward.
    done: [usize; 2],
    /// Most passes that were forward and not yet backward.
    most: usize,
}

impl PipelineProgram {
    /// Checks the program, for this many stages and micro-batches where they are given.
    pub fn check(
        self,
        stages: Option<usize>,
        micro_batches: Option<usize>,
    ) -> Result<CheckedProgram, ProgramError> {
        let all = || self.ranks.iter().flat_map(|rank| &rank.work);
        let found = [all().map(|work| work.stage + 1).max(), all().map(|work| work.micro + 1).max()];
        let [Some(found_stages), Some(found_micro)] = found else {
            return Err(ProgramError::Table("the program has no work".into()));
        };
        for (flag, asked, found) in
            [("--stages", stages, found_stages), ("--micro-batches", micro_batches, found_micro)]
        {
            if let Some(asked) = asked.filter(|&asked| asked != found) {
                return Err(ProgramError::Size { flag, asked, found });
            }
        }
        if let Some(rank) = self.ranks.iter().find(|rank| rank.work.is_empty()) {
            return Err(ProgramError::Table(format!("line {}: a rank without work", rank.line)));
        }
        let states = self.stages(found_stages)?;
        for (stage, state) in states.iter().enumerate() {
            for (kind, done) in [WorkKind::Forward, WorkKind::Backward].into_iter().zip(state.done) {
                if done < found_micro {
                    let line = state.rank.map(|rank| self.ranks[rank].line);
                    return Err(ProgramError::Missing { line, work: Work { stage, kind, micro: done } });
                }
            }
        }
        let rank_of: Vec<usize> = states.iter().map(|state| state.rank.unwrap_or_default()).collect();
        let order = self.order(&rank_of)?;
        let slots = states.iter().map(|state| state.most).collect();
        Ok(CheckedProgram { ranks: self.ranks, micro_batches: found_micro, rank_of, slots, order })
    }

    /// Walks through each rank's work: every stage on one rank, every pass once and in its turn.
    fn stages(&self, count: usize) -> Result<Vec<StageState>, ProgramError> {
        let mut states = vec![StageState { rank: None, done: [0; 2], most: 0 }; count];
        for (at, rank) in self.ranks.iter().enumerate() {
            for &work in &rank.work {
                let refuse = |problem| Err(ProgramError::Work { line: rank.line, work, problem });
                let state = &mut states[work.stage];
                let home = *state.rank.get_or_insert(at);
                if home != at {
                    let line = self.ranks[home].line;
                    return refuse(format!("line {line} has this stage already"));
                }
                let next = state.done[work.kind as usize];
                if work.micro < next {
                    return refuse("is there twice".into());
                }
                if work.micro > next {
                    let next = Work { micro: next, ..work };
                    return refuse(format!("micro-batches must ascend: {next} has to come before it"));
                }
                if work.kind == WorkKind::Backward && work.micro >= state.done[0] {
                    let forward = Work::forward(work.stage, work.micro);
                    return refuse(format!("its forward pass {forward} has to come before it"));
                }
                state.done[work.kind as usize] += 1;
                state.most = state.most.max(state.done[0] - state.done[1]);
            }
        }
        Ok(states)
    }

    /// All work in an order in which nothing waits for what comes later.
    fn order(&self, rank_of: &[usize]) -> Result<Vec<Work>, ProgramError> {
        let stages = rank_of.len();
        let total: usize = self.ranks.iter().map(|rank| rank.work.len()).sum();
        let (mut at, mut done) = (vec![0; self.ranks.len()], vec![[0; 2]; stages]);
        let mut order = Vec::with_capacity(total);
        // Passes of a stage come in their turn, so counting them tells which ones are done.
        let waits = |work: Work, done: &[[usize; 2]]| {
            work.waits_for(stages).filter(|other| done[other.stage][other.kind as usize] <= other.micro)
        };
        while order.len() < total {
            let before = order.len();
            for (rank, at) in self.ranks.iter().zip(&mut at) {
                while let Some(&work) = rank.work.get(*at).filter(|work| waits(**work, &done).is_none()) {
                    done[work.stage][work.kind as usize] += 1;
                    order.push(work);
                    *at += 1;
                }
            }
            if order.len() == before {
                return Err(self.circle(&at, rank_of, |work| waits(work, &done)));
            }
        }
        Ok(order)
    }

    /// Who waits for whom, where every rank waits.
    fn circle(&self, at: &[usize], rank_of: &[usize], waits: impl Fn(Work) -> Option<Work>) -> ProgramError {
        let next = |rank: usize| self.ranks[rank].work.get(at[rank]).copied();
        let mut rank = (0..self.ranks.len()).find(|&rank| next(rank).is_some()).unwrap_or_default();
        // After as many steps as there are ranks, it goes round.
        let follow = |rank: usize| next(rank).and_then(&waits).map_or(rank, |other| rank_of[other.stage]);
        for _ in 0..self.ranks.len() {
            rank = follow(rank);
        }
        let (begin, mut words) = (rank, Vec::new());
        while let Some((work, other)) = next(rank).and_then(|work| Some((work, waits(work)?))) {
            words.push(format!("{work} waits for {other}"));
            rank = rank_of[other.stage];
            match next(rank) {
                Some(head) if head != other => words.push(format!("which comes behind {head}")),
                _ => {}
            }
            if rank == begin || words.len() > 2 * self.ranks.len() {
                break;
            }
        }
        let work = next(begin).unwrap_or(Work::forward(0, 0));
        let problem = format!("the ranks wait for each other: {}", words.join(", "));
        ProgramError::Work { line: self.ranks[begin].line, work, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(lines: &[&str]) -> PipelineProgram {
        PipelineProgram::parse(&lines.join("\n")).unwrap()
    }

    fn refusal(lines: &[&str]) -> String {
        program(lines).check(None, None).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_stage_and_work() {
        for (lines, said) in [
            (&["0F0,0B0", "1F0,1F0,1B0"][..], "line 2, 1F0 (stage 1): is there twice"),
            (&["0F0,0B0", "1F0"], "1B0 (stage 1) is missing in line 2"),
            (&["0F0,0B0", "2F0,2B0"], "1F0 (stage 1) is missing"),
            (&["0F0,0F1,0B0,0B1", "1F0,1B0"], "1F1 (stage 1) is missing in line 2"),
            (
                &["0F0,0F1,0B1,0B0"],
                "line 1, 0B1 (stage 0): micro-batches must ascend: 0B0 has to come before it",
            ),
            (&["0F1,0F0,0B0,0B1"], "micro-batches must ascend: 0F0 has to come before it"),
            (&["0B0,0F0"], "line 1, 0B0 (stage 0): its forward pass 0F0 has to come before it"),
            (&["0F0,0B0", "0F1,0B1"], "line 2, 0F1 (stage 0): line 1 has this stage already"),
            (
                &["0F0,0B0,0F1,0B1", "1F0,1F1,1B0,1B1"],
                "the ranks wait for each other: 0B0 waits for 1B0, which comes behind 1F1, 1F1 waits for 0F1, which comes behind 0B0",
            ),
        ] {
            let refused = refusal(lines);
            assert!(refused.contains(said), "{lines:?}: {refused}");
        }
    }

    #[test]
    fn another_size_than_was_asked_for_names_the_flag() {
        let refused = |stages, micro| program(&["0F0,0B0"]).check(stages, micro).unwrap_err().to_string();
        assert_eq!(refused(Some(2), None), "--stages 2: the program has 1");
        assert_eq!(refused(None, Some(3)), "--micro-batches 3: the program has 1");
    }

    #[test]
    fn a_rank_may_have_several_stages() {
        let checked = program(&["0F0,2F0,2B0,0B0", "1F0,3F0,3B0,1B0"]).check(Some(4), Some(1)).unwrap();
        assert_eq!([0, 1, 2, 3].map(|stage| checked.rank_of(stage)), [0, 1, 0, 1]);
        assert_eq!(checked.order().len(), 8);
    }

    #[test]
    fn slots_of_passes_that_are_under_way_at_once_differ() {
        let checked = program(&["0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3"]).check(None, None).unwrap();
        assert_eq!(checked.slots(0), 3);
        let mut taken = [None; 3];
        for work in checked.order() {
            let slot = checked.slot(*work);
            match work.kind {
                WorkKind::Forward => assert_eq!(taken[slot].replace(work.micro), None),
                WorkKind::Backward => assert_eq!(taken[slot].take(), Some(work.micro)),
            }
        }
    }
}
