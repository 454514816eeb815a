//! Checkpoints of a model that is cut into stages, cut anew: into other stages, or into none.
//!
//! Each rank's part says where it begins in the whole model. What replicas have is put together, and handed out as the new
//! stages need it, bit for bit: parameters, state, and what optimisers remember, whose ranges end where stages do.

use std::ops::Range;

use paceline_nn::GraphPart;
use paceline_record::RankState;

use crate::error::TrainError;
use crate::segment::{Account, OPTIMISER, StagePlace};

/// A range of parameters and one of state, as ranks hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRanges {
    /// Of the parameters.
    pub params: Range<usize>,
    /// Of the state.
    pub state: Range<usize>,
}

impl PartRanges {
    /// Those of a part of a network.
    pub fn of(part: &GraphPart) -> Self {
        Self { params: part.params.clone(), state: part.state.clone() }
    }
}

/// A replica's whole model.
struct WholeModel {
    params: Vec<f32>,
    state: Vec<f32>,
    /// What optimisers remember, one block of the parameters' length after the other.
    memory: Vec<f32>,
    updates: u64,
}

fn refused(problem: impl Into<String>) -> TrainError {
    TrainError::Restore { problem: problem.into() }
}

fn account(part: &RankState) -> Result<Account, TrainError> {
    serde_json::from_str(&part.account).map_err(|e| refused(format!("the account: {e}")))
}

impl WholeModel {
    /// Out of the parts of one replica, in order.
    fn of(parts: &[(&RankState, &Account)]) -> Result<Self, TrainError> {
        let join = |name| parts.iter().flat_map(|(part, _)| part.numbers(name)).copied().collect();
        let (params, state): (Vec<f32>, Vec<f32>) = (join("params"), join("state"));
        let mut whole = Self { memory: Vec::new(), updates: 0, params, state };
        let mut from = 0;
        let mut counted = None;
        for (part, account) in parts {
            let len = part.numbers("params").len();
            let mut ranges: Vec<(usize, u64, &[f32])> = account
                .updates
                .iter()
                .map(|&(offset, updates)| (offset, updates, part.numbers(&format!("{OPTIMISER}.{offset}"))))
                .collect();
            if let Some(updates) = account.inherited {
                ranges.push((0, updates, part.numbers(OPTIMISER)));
            }
            ranges.sort_by_key(|range| range.0);
            let ends = ranges.iter().skip(1).map(|range| range.0).chain([len]).collect::<Vec<_>>();
            for ((offset, updates, memory), end) in ranges.into_iter().zip(ends) {
                let own = end.checked_sub(offset).filter(|own| *own > 0).unwrap_or(1);
                let blocks = memory.len() / own;
                if memory.len() != blocks * own
                    || *counted.get_or_insert((updates, blocks)) != (updates, blocks)
                {
                    return Err(refused(
                        "its ranks have made different updates of different parameters: it goes on with its own stages only",
                    ));
                }
                let all = whole.params.len();
                whole.memory.resize(blocks * all, 0.0);
                for (n, block) in memory.chunks(own).enumerate() {
                    whole.memory[n * all + from + offset..][..own].copy_from_slice(block);
                }
            }
            from += len;
        }
        whole.updates = counted.map_or(0, |(updates, _)| updates);
        Ok(whole)
    }

    /// The part of it that a rank gets.
    fn part(&self, ranges: &PartRanges, account: Account) -> RankState {
        let all = self.params.len();
        let blocks = self.memory.len() / all.max(1);
        let block = |n: usize| &self.memory[n * all + ranges.params.start..n * all + ranges.params.end];
        let memory = (0..blocks).flat_map(block).copied().collect();
        let tensors = vec![
            (OPTIMISER.into(), memory),
            ("params".into(), self.params[ranges.params.clone()].to_vec()),
            ("state".into(), self.state[ranges.state.clone()].to_vec()),
        ];
        let account = Account { inherited: Some(self.updates), updates: Vec::new(), ..account };
        RankState { tensors, account: serde_json::to_string(&account).expect("an account is plain data") }
    }
}

/// The stages that the workers' parts of a checkpoint have: one if it is not cut.
fn stages(accounts: &[Account]) -> usize {
    accounts.first().and_then(|account| account.place).map_or(1, |place| place.stages)
}

/// Where each rank's part begins, if they are those of these stages.
fn fits(parts: &[RankState], accounts: &[Account], ranges: &[PartRanges]) -> bool {
    let own = |(rank, (part, account)): (usize, (&RankState, &Account))| {
        let range = &ranges[rank % ranges.len()];
        let place = account.place.map_or((0, 0), |place| (place.params, place.state));
        place == (range.params.start, range.state.start)
            && part.numbers("params").len() == range.params.len()
            && part.numbers("state").len() == range.state.len()
    };
    stages(accounts) == ranges.len() && parts.iter().zip(accounts).enumerate().all(own)
}

/// The parts of `workers` ranks for these stages, from those of a checkpoint; none if they are theirs already.
pub fn recut(
    parts: &[RankState],
    workers: usize,
    ranges: &[PartRanges],
) -> Result<Option<Vec<RankState>>, TrainError> {
    let accounts = parts.iter().map(account).collect::<Result<Vec<_>, _>>()?;
    let (old, new) = (stages(&accounts), ranges.len());
    if parts.len() == workers && fits(parts, &accounts, ranges) || old == 1 && new == 1 {
        return Ok(None);
    }
    let replicas = workers / new;
    if parts.len() != replicas * old {
        return Err(refused(format!(
            "it has {} parts of {old} stages, and {replicas} replicas of the model were expected (servers' parts are not cut anew)",
            parts.len()
        )));
    }
    let mut cut = Vec::new();
    for replica in 0..replicas {
        let own: Vec<_> =
            (replica * old..(replica + 1) * old).map(|rank| (&parts[rank], &accounts[rank])).collect();
        let whole = WholeModel::of(&own)?;
        let end = ranges.last().map_or(0, |range| range.params.end);
        if whole.params.len() != end {
            return Err(refused(format!(
                "params: {end} numbers were expected, {} were found",
                whole.params.len()
            )));
        }
        for (stage, range) in ranges.iter().enumerate() {
            // The last stage counts samples and knows the loss.
            let like = if stage + 1 == new { old - 1 } else { stage.min(old - 1) };
            let counts = stage + 1 == new;
            let known = own[like].1.clone();
            let place = StagePlace { stages: new, params: range.params.start, state: range.state.start };
            cut.push(whole.part(
                range,
                Account {
                    samples: if counts { known.samples } else { 0 },
                    last_loss: if counts { known.last_loss } else { 0.0 },
                    last_samples: if counts { known.last_samples } else { 0 },
                    // Whom somebody waited for is another rank now.
                    wait_for: Vec::new(),
                    place: (new > 1).then_some(place),
                    ..known
                },
            ));
        }
    }
    Ok(Some(cut))
}
