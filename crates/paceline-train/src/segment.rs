//! Where a run pauses and goes on: segments of steps, the gate that ends one early, and what a rank keeps from one to
//! the next, in this process or in another one.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline_record::RankState;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::engine::Times;
use crate::error::TrainError;
use crate::members::MemberControl;
use crate::memory::Scratch;
use crate::update::Update;

/// Steps that are done without a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The first one.
    pub from: u64,
    /// The step before which the segment ends.
    pub to: u64,
    /// Which generation of messages it has.
    pub generation: u32,
}

/// A rank at the end of a segment: nothing is under way, and the run can go on from here.
#[derive(Debug)]
pub struct Pause {
    /// Steps done by everybody together, if this rank knows.
    pub step: Option<u64>,
    /// What the rank needs to go on.
    pub part: RankState,
}

/// Longest wait for the verdict on an evaluation: the launcher waits for those who are missing, then evaluates.
pub const VERDICT: Duration = Duration::from_secs(1200);

/// What leads a rank through a run, segment by segment.
pub struct SegmentControl<'a> {
    /// What the rank had when the run paused, if it goes on.
    pub restored: Option<RankState>,
    /// The segment to begin with.
    pub segment: Segment,
    /// Ends a segment early.
    pub gate: Arc<StepGate>,
    /// Called at the end of each segment but the run's last. Returns the next one, or none if the run stops; an error if
    /// members regroup instead.
    pub pause: &'a mut dyn FnMut(Pause) -> Result<Option<Segment>, TrainError>,
    /// Called after each evaluation but the last one, with the steps done, if workers stand still meanwhile. Returns
    /// whether the run ends there.
    pub verdict: Option<&'a mut dyn FnMut(u64) -> Result<bool, TrainError>>,
    /// Leads through generations, where members may change.
    pub members: Option<&'a mut dyn MemberControl>,
}

/// Lets a run be stopped at a step that all workers agree on, or at one that the servers choose.
///
/// Workers without servers must be told the same step before any of them begins it. So they are first held: each
/// computes no step beyond the present one until it is told, and says before which step it could stop. The largest
/// of these is where all stop.
#[derive(Debug, Default)]
pub struct StepGate {
    state: Mutex<GateState>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// The step that is being computed, or the next one.
    step: u64,
    /// Compute no step from this one on.
    limit: Option<u64>,
    stop: Option<u64>,
    /// Whether the run was given up.
    abandoned: bool,
    /// The generation whose members are to stop where they are.
    asked: Option<u32>,
    /// The generation in which this worker hands over what somebody who joins begins with.
    hands_over: Option<u32>,
}

impl StepGate {
    /// The gate of a worker whose first step is `step`.
    pub fn starting_at(step: u64) -> Self {
        Self { state: Mutex::new(GateState { step, ..GateState::default() }), bell: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the worker; the first step before which it could stop.
    pub fn hold(&self) -> u64 {
        let mut state = self.lock();
        state.limit = Some(state.step + 1);
        // The step after the present one may have begun, but not been computed.
        state.step + 2
    }

    /// Tells where to stop, and lets the worker go on until then.
    pub fn stop_at(&self, step: u64) {
        let mut state = self.lock();
        (state.stop, state.limit) = (Some(step), None);
        self.bell.notify_all();
    }

    /// Asks the members of a generation to stop where they are; what was told before does not hold any more.
    pub fn ask_to_stop(&self, generation: u32) {
        let mut state = self.lock();
        (state.asked, state.stop, state.limit) = (Some(generation), None, None);
        state.hands_over = state.hands_over.filter(|hands_over| *hands_over > generation);
        self.bell.notify_all();
    }

    /// Asks for what somebody who joins begins with, at the end of a step of this generation, which may not have begun.
    pub fn ask_to_hand_over(&self, generation: u32) {
        self.lock().hands_over = Some(generation);
    }

    /// Whether that was asked for in this generation, or before a pause; then it is not any more.
    pub(crate) fn takes_hand_over(&self, generation: u32) -> bool {
        self.lock().hands_over.take_if(|asked| *asked <= generation).is_some()
    }

    /// Whether the members of this generation are to stop where they are.
    pub(crate) fn asked_to_stop(&self, generation: u32) -> bool {
        self.lock().asked.is_some_and(|asked| asked >= generation)
    }

    /// The run was given up: the rank ends before its next step, wherever the others are.
    pub fn abandon(&self) {
        let mut state = self.lock();
        (state.abandoned, state.limit) = (true, None);
        self.bell.notify_all();
    }

    /// Whether the run was given up.
    pub(crate) fn abandoned(&self) -> bool {
        self.lock().abandoned
    }

    /// Where to stop, if that was told.
    pub fn stop(&self) -> Option<u64> {
        self.lock().stop
    }

    /// To be called before a step is computed: waits while the worker is held. Where to stop, if that was told.
    pub(crate) fn step(&self, step: u64) -> Option<u64> {
        let mut state = self.lock();
        while state.limit.is_some_and(|limit| step >= limit) {
            state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.step = step;
        state.stop
    }
}

/// What a rank has done so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Account {
    pub steps: u64,
    /// Steps that this rank has computed itself: where workers do not go on together, another number.
    pub own_steps: u64,
    pub samples: u64,
    /// The last step's summed loss and samples.
    #[serde(deserialize_with = "paceline_record::number")]
    pub last_loss: f64,
    pub last_samples: usize,
    /// Nanoseconds of each of the clock's phases.
    pub clock: Vec<u64>,
    pub send: u64,
    pub wait: u64,
    pub wait_for: Vec<u64>,
    pub apply: u64,
    pub staleness: Vec<u64>,
    /// Updates of each range that the optimiser has memory of, by the range's start.
    pub updates: Vec<(usize, u64)>,
    /// Updates of all parameters, where the optimiser's memory of them is in one piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inherited: Option<u64>,
    /// Which part of the model the rank has, if it is cut into stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<StagePlace>,
}

/// Where a rank's part of a model begins in the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagePlace {
    /// Number of stages.
    pub stages: usize,
    /// Its first parameter.
    pub params: usize,
    /// Its first number of state.
    pub state: usize,
}

/// The name of an optimiser's memory of all parameters of a rank.
pub(crate) const OPTIMISER: &str = "optimiser";

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Account {
    /// Notes what the clock and the engine have measured.
    pub(crate) fn note(mut self, clock: &Clock, times: &Times) -> Self {
        self.clock = clock.spent().map(nanoseconds).to_vec();
        (self.send, self.wait) = (nanoseconds(times.send), nanoseconds(times.wait));
        self.wait_for = times.wait_for.iter().copied().map(nanoseconds).collect();
        self.apply = nanoseconds(times.apply);
        self
    }

    /// The times that were noted.
    pub(crate) fn times(&self, world: usize) -> Times {
        let mut wait_for: Vec<_> = self.wait_for.iter().copied().map(Duration::from_nanos).collect();
        wait_for.resize(world, Duration::ZERO);
        Times {
            send: Duration::from_nanos(self.send),
            wait: Duration::from_nanos(self.wait),
            wait_for,
            apply: Duration::from_nanos(self.apply),
            // Only differences between steps are told of it.
            codec: Duration::ZERO,
        }
    }
}

/// Puts together what a rank needs to go on.
pub(crate) fn part(
    mut account: Account,
    named: &[(&str, &[f32])],
    update: &Update,
    scratch: &Scratch,
) -> RankState {
    let mut tensors: Vec<(String, Vec<f32>)> =
        named.iter().map(|(name, numbers)| ((*name).to_owned(), numbers.to_vec())).collect();
    for (offset, updates, memory) in update.remembered() {
        account.updates.push((offset, updates));
        tensors.push((format!("optimiser.{offset}"), memory.to_vec()));
    }
    if let Some((updates, memory)) = update.inherited() {
        account.inherited = Some(updates);
        tensors.push((OPTIMISER.into(), memory.to_vec()));
    }
    for (n, buffer) in scratch.buffers.iter().enumerate() {
        tensors.push((format!("scratch.{n}"), buffer.to_vec()));
    }
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    RankState { tensors, account: serde_json::to_string(&account).expect("an account is plain data") }
}

/// The same of a member of an elastic run: what its optimiser remembers of the `params` parameters in one piece, after
/// `updates` updates of each, so that whoever goes on may have other ranges.
pub(crate) fn part_in_one_piece(
    account: Account,
    named: &[(&str, &[f32])],
    update: &Update,
    params: usize,
    updates: u64,
) -> RankState {
    let account = Account { inherited: Some(updates), ..account };
    let mut tensors: Vec<(String, Vec<f32>)> =
        named.iter().map(|(name, numbers)| ((*name).to_owned(), numbers.to_vec())).collect();
    let memory = (0..update.blocks()).flat_map(|block| update.block(block, 0..params)).collect();
    tensors.push((OPTIMISER.into(), memory));
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    RankState { tensors, account: serde_json::to_string(&account).expect("an account is plain data") }
}

/// Takes up what a rank had; `named` are filled.
pub(crate) fn restore(
    part: &RankState,
    named: &mut [(&str, &mut [f32])],
    update: &mut Update,
    scratch: &mut Scratch,
) -> Result<Account, TrainError> {
    let account: Account = serde_json::from_str(&part.account)
        .map_err(|e| TrainError::Restore { problem: format!("the account: {e}") })?;
    for (name, numbers) in named {
        fill(part, name, numbers)?;
    }
    for &(offset, updates) in &account.updates {
        update.remember(offset, updates, part.numbers(&format!("optimiser.{offset}")));
    }
    if let Some(updates) = account.inherited {
        update.inherit(updates, part.numbers(OPTIMISER));
        // Whoever had other ranges had other scratch, of which nothing is needed between two steps.
        return Ok(account);
    }
    for (n, buffer) in scratch.buffers.iter_mut().enumerate() {
        fill(part, &format!("scratch.{n}"), buffer)?;
    }
    Ok(account)
}

fn fill(part: &RankState, name: &str, numbers: &mut [f32]) -> Result<(), TrainError> {
    let found = part.numbers(name);
    if found.len() != numbers.len() {
        let (expected, found) = (numbers.len(), found.len());
        let problem = format!("{name}: {expected} numbers were expected, {found} were found");
        return Err(TrainError::Restore { problem });
    }
    numbers.copy_from_slice(found);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_worker_computes_no_step_that_the_others_may_not_reach() {
        let gate = Arc::new(StepGate::default());
        assert_eq!(gate.step(0), None);
        assert_eq!(gate.step(1), None);
        // It computes step 1, and step 2 may have begun: before step 3 it can stop.
        assert_eq!(gate.hold(), 3);
        let worker = std::thread::spawn({
            let gate = Arc::clone(&gate);
            move || gate.step(2)
        });
        gate.stop_at(5);
        assert_eq!(worker.join().unwrap(), Some(5));
        assert_eq!(gate.step(3), Some(5));
    }
}
