//! Checkpoints of a model that is cut into stages, cut anew: into other stages, or into none.
//!
//! Each rank's part says where it begins in the whole model. What the ranks of a replica have is put together, and handed out
//! as the new stages need it, bit for bit: parameters, state, and what optimisers remember, whose ranges end where stages do.
//! The servers' parts are those of one more replica.

use std::ops::Range;

use paceline_nn::GraphPart;
use paceline_protocol::Setup;
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

/// What one rank has of a model.
struct Holding<'a> {
    part: &'a RankState,
    account: &'a Account,
    /// Where the rank's buffers begin in the whole, and which elements it has.
    start: usize,
    params: Range<usize>,
}

/// A whole model.
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

impl Holding<'_> {
    /// What the optimiser remembers: the elements of the whole, the updates, the numbers.
    fn memory(&self) -> Vec<(Range<usize>, u64, &[f32])> {
        let Self { part, account, start, params } = self;
        if let Some(updates) = account.inherited {
            return vec![(params.clone(), updates, part.numbers(OPTIMISER))];
        }
        let mut offsets = account.updates.clone();
        offsets.sort_unstable();
        let ends = offsets.iter().skip(1).map(|(offset, _)| start + offset).chain([params.end]);
        let ranges = offsets.iter().zip(ends).map(|(&(offset, updates), end)| {
            (start + offset..end, updates, part.numbers(&format!("{OPTIMISER}.{offset}")))
        });
        ranges.collect()
    }
}

impl WholeModel {
    /// Out of what ranks have, in the order of the model.
    fn of(held: &[Holding<'_>], len: usize) -> Result<Self, TrainError> {
        let state = held.iter().flat_map(|holding| holding.part.numbers("state")).copied().collect();
        let mut whole = Self { params: vec![0.0; len], state, memory: Vec::new(), updates: 0 };
        let mut counted = None;
        for holding in held {
            let (found, own) = (holding.part.numbers("params"), holding.params.clone());
            if found.len() != own.len() || own.end > len {
                let problem =
                    format!("params: {} numbers were expected, {} were found", own.len(), found.len());
                return Err(refused(problem));
            }
            whole.params[own].copy_from_slice(found);
            // A stage may have no parameters (it pools, say), and then remembers nothing.
            for (range, updates, memory) in
                holding.memory().into_iter().filter(|(range, ..)| !range.is_empty())
            {
                let blocks = memory.len() / range.len().max(1);
                let alike = *counted.get_or_insert((updates, blocks)) == (updates, blocks);
                if range.end > len || memory.len() != blocks * range.len() || !alike {
                    return Err(refused(
                        "its ranks have made different updates of different parameters: it goes on with the stages that it has",
                    ));
                }
                whole.memory.resize(blocks * len, 0.0);
                for (n, block) in memory.chunks(range.len().max(1)).enumerate() {
                    whole.memory[n * len..][range.clone()].copy_from_slice(block);
                }
            }
        }
        whole.updates = counted.map_or(0, |(updates, _)| updates);
        Ok(whole)
    }

    /// What a rank gets whose buffers hold `buffers`, of which these parameters are its own.
    fn part(&self, buffers: &PartRanges, params: Range<usize>, account: Account) -> RankState {
        let len = self.params.len().max(1);
        let block = |n: usize| &self.memory[n * len..][buffers.params.clone()];
        let memory = (0..self.memory.len() / len).flat_map(block).copied().collect();
        let mut tensors = vec![
            (OPTIMISER.into(), memory),
            ("params".into(), self.params[params].to_vec()),
            ("state".into(), self.state[buffers.state.clone()].to_vec()),
        ];
        tensors.retain(|(name, _): &(String, Vec<f32>)| name != "state" || !buffers.state.is_empty());
        let account = Account { inherited: Some(self.updates), updates: Vec::new(), ..account };
        RankState { tensors, account: serde_json::to_string(&account).expect("an account is plain data") }
    }
}

/// How many stages the parts of a checkpoint belong to, whatever its run's plan says by now.
pub(crate) fn stages_of(parts: &[RankState]) -> Result<usize, TrainError> {
    let accounts = parts.iter().take(1).map(account).collect::<Result<Vec<_>, _>>()?;
    Ok(stages(&accounts))
}

/// The stages of a checkpoint: one if it is not cut.
fn stages(accounts: &[Account]) -> usize {
    accounts.first().and_then(|account| account.place).map_or(1, |place| place.stages).max(1)
}

fn place(account: &Account) -> (usize, usize) {
    account.place.map_or((0, 0), |place| (place.params, place.state))
}

/// Whether the workers' parts are those of these stages.
fn fits(parts: &[RankState], accounts: &[Account], ranges: &[PartRanges]) -> bool {
    let own = |(rank, (part, account)): (usize, (&RankState, &Account))| {
        let range = &ranges[rank % ranges.len()];
        place(account) == (range.params.start, range.state.start)
            && part.numbers("params").len() == range.params.len()
    };
    stages(accounts) == ranges.len() && parts.iter().zip(accounts).enumerate().all(own)
}

/// The parameters of each server: server `i` has stage `i mod stages`, of which it is shard `i / stages`.
fn server_ranges(stages: &[Range<usize>], servers: usize) -> Vec<Range<usize>> {
    let shard = |i: usize| {
        let stage = &stages[i % stages.len()];
        let shards = Setup::new(1, servers / stages.len(), stage.len(), 0).shards();
        let own = &shards[i / stages.len()];
        stage.start + own.start..stage.start + own.end
    };
    (0..servers).map(shard).collect()
}

/// The parts of `workers` and `servers` ranks for these stages, from those of a checkpoint; none if they are theirs already.
pub fn recut(
    parts: &[RankState],
    (workers, servers): (usize, usize),
    ranges: &[PartRanges],
) -> Result<Option<Vec<RankState>>, TrainError> {
    let accounts = parts.iter().map(account).collect::<Result<Vec<_>, _>>()?;
    let (old, new) = (stages(&accounts), ranges.len());
    let replicas = workers / new;
    if old == 1 && new == 1 {
        return Ok(None);
    }
    if parts.len() != replicas * old + servers {
        let (found, expected) = (parts.len(), replicas * old + servers);
        return Err(refused(format!("it has the parts of {found} ranks, and {expected} were expected")));
    }
    if !servers.is_multiple_of(old) || !servers.is_multiple_of(new) {
        return Err(refused(format!(
            "{servers} servers cannot be shared by {old} and by {new} stages alike"
        )));
    }
    let (of_workers, of_servers) = parts.split_at(replicas * old);
    if fits(of_workers, &accounts[..of_workers.len()], ranges) {
        return Ok(None);
    }
    let len = ranges.last().map_or(0, |range| range.params.end);
    let mut cut = Vec::new();
    for replica in 0..replicas {
        let own = &accounts[replica * old..(replica + 1) * old];
        let held = own.iter().zip(&of_workers[replica * old..]).map(|(account, part)| {
            let start = place(account).0;
            Holding { part, account, start, params: start..start + part.numbers("params").len() }
        });
        let whole = WholeModel::of(&held.collect::<Vec<_>>(), len)?;
        if ranges.last().is_some_and(|range| range.state.end != whole.state.len()) {
            return Err(refused(format!("state: {} numbers were found", whole.state.len())));
        }
        for (stage, range) in ranges.iter().enumerate() {
            // The last stage counts samples and knows the loss.
            let last = stage + 1 == new;
            let known = own[if last { old - 1 } else { stage.min(old - 1) }].clone();
            let place = StagePlace { stages: new, params: range.params.start, state: range.state.start };
            let account = Account {
                samples: if last { known.samples } else { 0 },
                last_loss: if last { known.last_loss } else { 0.0 },
                last_samples: if last { known.last_samples } else { 0 },
                // Whom somebody waited for is another rank now.
                wait_for: Vec::new(),
                place: (new > 1).then_some(place),
                ..known
            };
            cut.push(whole.part(range, range.params.clone(), account));
        }
    }
    if servers > 0 {
        cut.extend(servers_cut(of_servers, &accounts, old, ranges, len)?);
    }
    Ok(Some(cut))
}

/// The servers' parts; `accounts` are those of all ranks.
fn servers_cut(
    parts: &[RankState],
    accounts: &[Account],
    old: usize,
    ranges: &[PartRanges],
    len: usize,
) -> Result<Vec<RankState>, TrainError> {
    let (servers, new) = (parts.len(), ranges.len());
    let starts: Vec<usize> = accounts[..old].iter().map(|account| place(account).0).collect();
    let ends = starts.iter().skip(1).copied().chain([len]);
    let old_stages: Vec<Range<usize>> =
        starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect();
    let own = &accounts[accounts.len() - servers..];
    let mut held: Vec<Holding<'_>> = parts
        .iter()
        .zip(own)
        .zip(server_ranges(&old_stages, servers))
        .enumerate()
        .map(|(i, ((part, account), params))| Holding { part, account, start: starts[i % old], params })
        .collect();
    held.sort_by_key(|holding| holding.params.start);
    let whole = WholeModel::of(&held, len)?;
    let stages: Vec<Range<usize>> = ranges.iter().map(|range| range.params.clone()).collect();
    let part = |(i, params): (usize, Range<usize>)| {
        let buffers = PartRanges { params: stages[i % new].clone(), state: 0..0 };
        let place = StagePlace { stages: new, params: buffers.params.start, state: 0 };
        let account = Account { wait_for: Vec::new(), place: (new > 1).then_some(place), ..own[i].clone() };
        whole.part(&buffers, params, account)
    };
    Ok(server_ranges(&stages, servers).into_iter().enumerate().map(part).collect())
}
