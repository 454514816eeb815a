//! Events in virtual time.
//!
//! A rank is one thread, as in real runs. While it computes, what comes waits until a part of its pass is over;
//! otherwise it is handled when it comes, or as soon as the rank has done what came before. Messages between
//! hosts pass through the sender's and the receiver's interface, whole and one after the other, in the order in
//! which they come to each.

mod flight;
mod losses;
mod pass;
mod repetition;

use std::collections::{HashMap, VecDeque};

use paceline_protocol::{
    Action, Actions, Buf, Input, MsgId, OpId, Outcome, Participant, Rank, Region, Setup, Time, Trace,
};

use crate::costs::{Costs, Host, PassPart};
use crate::memory::{RankMemory, SizesOnly, StepStart};
use crate::notes::{MessageDirection, Notes};
use crate::queue::{Event, Queue, Slab};
use crate::report::{Arrival, SimulatedTimes, SimulationReport};
use flight::Flight;
pub use losses::Crash;
pub(crate) use losses::run_generation;
use pass::{Pass, StageRun};
use repetition::Repetition;

/// Most ranks of a run whose waiting is told by the rank that was waited for.
const FEW: usize = 64;

struct RankContext {
    participant: Box<dyn Participant>,
    actions: Actions,
    host: usize,
    /// The host whose cores it uses.
    machine: usize,
    /// Until when it is at work.
    busy: Time,
    pass: Option<Pass>,
    /// A pass through its stage that waits until the step may begin, and how many were made.
    asked: Option<StageRun>,
    runs: u64,
    /// What has come while it was at work.
    inbox: VecDeque<Input>,
    /// Bytes of each body that it holds, header included.
    held: Slab<usize>,
    /// What its sends under way read, where somebody checks.
    leaving: Vec<(OpId, Region)>,
    /// The number of its next send.
    next_op: u64,
    transfers: u64,
    waits_for: Option<Rank>,
    /// The step that it has begun, if that is not over.
    step: Option<u64>,
    /// Whether it is held up on purpose, which takes nothing from the other ranks of its host.
    asleep: bool,
    dead: bool,
}

/// A host's interface and what else its ranks share.
struct Site {
    host: Host,
    /// Whether it has several ranks.
    shared: bool,
    sends: Time,
    receives: Time,
    /// The ranks that use its cores, if sharing them slows anybody down.
    crowd: Vec<Rank>,
}

struct Driver<'a, M: RankMemory> {
    setup: &'a Setup,
    costs: &'a Costs,
    parts: Vec<PassPart>,
    memory: &'a mut M,
    members: Vec<RankContext>,
    sites: Vec<Site>,
    queue: Queue,
    inputs: Slab<(Rank, Input)>,
    flights: Slab<Flight<M::Body>>,
    /// When the first bit of each pair's last message arrives, where latencies vary.
    last: HashMap<(Rank, Rank), Time>,
    crashes: Vec<Crash>,
    /// Whether it is over when every live rank has ended, whatever is still under way.
    ends_with_ranks: bool,
    /// Workers that wait before a step, in the order in which they came.
    waiting: Vec<(Rank, StepStart)>,
    /// Whether servers were told to stop.
    stopped: bool,
    /// What is known of states that repeat, where the run is one in which they can.
    repetition: Option<Repetition>,
    /// Steps that were left out because they repeat others, and the time that they take.
    skipped: u64,
    shift: Time,
    detailed: bool,
    report: SimulationReport,
}

/// Steps and virtual time so far, told now and then.
pub type Progress<'a> = &'a mut dyn FnMut(u64, Time);

/// Events between two tellings.
const TELLING: u64 = 1 << 16;

/// Runs the participants of `setup` until all have ended or nothing is left to happen, keeping every detail.
/// `inputs` are given to every rank right before its start.
pub fn simulate<M: RankMemory>(
    setup: &Setup,
    participants: Vec<Box<dyn Participant>>,
    costs: &Costs,
    memory: &mut M,
    crash: Option<Crash>,
    inputs: &[Input],
) -> SimulationReport {
    let mut driver = Driver::new(setup, participants, costs, memory, true);
    driver.start(inputs);
    driver.crashes(crash.as_slice());
    driver.finish(&mut |_, _| {})
}

/// Runs the participants of `setup` without keeping details.
pub fn run<M: RankMemory>(
    setup: &Setup,
    participants: Vec<Box<dyn Participant>>,
    costs: &Costs,
    memory: &mut M,
) -> SimulationReport {
    run_telling(setup, participants, costs, memory, &mut |_, _| {})
}

/// The same, telling how far it is.
pub fn run_telling<M: RankMemory>(
    setup: &Setup,
    participants: Vec<Box<dyn Participant>>,
    costs: &Costs,
    memory: &mut M,
    progress: Progress<'_>,
) -> SimulationReport {
    let mut driver = Driver::new(setup, participants, costs, memory, false);
    driver.start(&[]);
    driver.finish(progress)
}

/// Runs participants that begin every step anew, all workers one together with the others, and without numbers:
/// steps that repeat are driven once. The report is the one of [`run`].
pub fn run_repeating(
    setup: &Setup,
    participants: Vec<Box<dyn Participant>>,
    costs: &Costs,
    progress: Progress<'_>,
) -> SimulationReport {
    let mut memory = SizesOnly;
    let mut driver = Driver::new(setup, participants, costs, &mut memory, false);
    let drawn = costs.spread > 0.0 || !costs.jitter.is_empty();
    let alike = setup.servers == 0 && setup.one_position_each() && setup.stages.is_none();
    if !drawn && alike && setup.steps.is_some() {
        driver.repetition = Some(Repetition::new(setup.workers, setup.from));
    }
    driver.start(&[]);
    driver.finish(progress)
}

/// Runs the participants of `setup`, noting every step of each rank, and up to `trace` of its messages and waits, and
/// telling how far it is.
pub fn record<M: RankMemory>(
    setup: &Setup,
    participants: Vec<Box<dyn Participant>>,
    costs: &Costs,
    memory: &mut M,
    trace: usize,
    progress: Progress<'_>,
) -> SimulationReport {
    let world = participants.len();
    let mut driver = Driver::new(setup, participants, costs, memory, false);
    let round_trips =
        |from: Rank| (0..world).map(|to| driver.empty(from, to) + driver.empty(to, from)).collect();
    let notes = |rank: Rank| {
        let notes = Notes::new(round_trips(rank), trace);
        let first = rank - setup.stage_of(rank).min(rank);
        let staged = setup.stages.is_some() && rank < setup.workers;
        if staged { notes.of_stage(rank, first..first + setup.stage_count()) } else { notes }
    };
    driver.report.notes = (0..world).map(notes).collect();
    driver.start(&[]);
    driver.finish(progress)
}

impl<'a, M: RankMemory> Driver<'a, M> {
    fn new(
        setup: &'a Setup,
        participants: Vec<Box<dyn Participant>>,
        costs: &'a Costs,
        memory: &'a mut M,
        detailed: bool,
    ) -> Self {
        let world = participants.len();
        let last = |rank: Rank| costs.host_of(rank).max(costs.machine_of(rank));
        let hosts = (0..world).map(last).max().map_or(0, |last| last + 1);
        let (mut ranks, mut crowds) = (vec![0; hosts], vec![Vec::new(); hosts]);
        for rank in 0..world {
            ranks[costs.host_of(rank)] += 1;
            crowds[costs.machine_of(rank)].push(rank);
        }
        let site = |(host, crowd): (usize, Vec<Rank>)| {
            let own = costs.host(host);
            let crowd = if own.slowdown.is_empty() { Vec::new() } else { crowd };
            Site { host: own, shared: ranks[host] > 1, sends: 0, receives: 0, crowd }
        };
        let context = |(rank, participant)| RankContext {
            participant,
            actions: Actions::default(),
            host: costs.host_of(rank),
            machine: costs.machine_of(rank),
            busy: 0,
            pass: None,
            asked: None,
            runs: 0,
            inbox: VecDeque::new(),
            held: Slab::default(),
            leaving: Vec::new(),
            next_op: 0,
            transfers: 0,
            waits_for: None,
            step: None,
            asleep: false,
            dead: false,
        };
        let spent = SimulatedTimes {
            wait_for: vec![0; if world <= FEW { world } else { 0 }],
            ..SimulatedTimes::default()
        };
        let many = if detailed { world } else { 0 };
        Self {
            setup,
            costs,
            parts: costs.division(setup.params),
            memory,
            members: participants.into_iter().enumerate().map(context).collect(),
            sites: crowds.into_iter().enumerate().map(site).collect(),
            queue: Queue::default(),
            inputs: Slab::default(),
            flights: Slab::default(),
            last: HashMap::new(),
            crashes: Vec::new(),
            ends_with_ranks: false,
            waiting: Vec::new(),
            stopped: false,
            repetition: None,
            skipped: 0,
            shift: 0,
            detailed,
            report: SimulationReport {
                spent: vec![spent; world],
                finished: vec![Vec::new(); setup.workers],
                outcomes: vec![None; world],
                staleness: vec![Vec::new(); world],
                sent_bytes: vec![0; world],
                traces: vec![Trace::default(); many],
                waits: vec![Vec::new(); many],
                ..SimulationReport::default()
            },
        }
    }

    /// Time of an empty message from one rank to another while nothing else happens.
    fn empty(&self, from: Rank, to: Rank) -> Time {
        let (Site { host: here, .. }, Site { host: there, .. }) =
            (&self.sites[self.members[from].host], &self.sites[self.members[to].host]);
        let handling = |rank: Rank| {
            self.costs.handling(self.costs.header, self.sites[self.members[rank].machine].host.speed)
        };
        let way = if self.members[from].host == self.members[to].host {
            self.costs.local_latency
        } else {
            here.latency.max(there.latency)
                + here.transfer(self.costs.header).max(there.transfer(self.costs.header))
        };
        handling(from) + way + handling(to)
    }

    fn start(&mut self, inputs: &[Input]) {
        for rank in 0..self.members.len() {
            for input in inputs.iter().chain([&Input::Start]) {
                self.put_by(0, rank, *input);
            }
        }
    }

    fn finish(mut self, progress: Progress<'_>) -> SimulationReport {
        self.drive(progress);
        self.report
    }

    /// Whether a rank is alive and has not ended.
    fn open(&self, rank: Rank) -> bool {
        !self.members[rank].dead && self.report.outcomes[rank].is_none()
    }

    fn drive(&mut self, progress: Progress<'_>) {
        let mut events = 0;
        while let Some((now, event)) = self.queue.pop() {
            self.report.end = now + self.shift;
            self.event(now, event);
            if self.repetition.is_some() {
                self.repeat(now);
            }
            events += 1;
            if events % TELLING == 0 {
                let steps: usize = self.report.finished.iter().map(Vec::len).sum();
                progress((steps / self.setup.workers.max(1)) as u64, now + self.shift);
            }
            if !self.waiting.is_empty() {
                self.end_waits();
            }
            if self.memory.stops() && !self.stopped {
                self.stopped = true;
                let servers = self.setup.workers..self.members.len();
                servers.for_each(|rank| self.put_by(now, rank, Input::StopAt(0)));
            }
            if self.memory.enough() {
                break;
            }
            if self.ends_with_ranks && !(0..self.members.len()).any(|rank| self.open(rank)) {
                break;
            }
        }
        self.report.repeated = self.skipped;
        let last = self.report.spent.iter().map(|spent| spent.end).max();
        self.report.end = self.report.end.max(last.unwrap_or(0));
        self.report.stuck = (0..self.members.len()).filter(|rank| self.open(*rank)).collect();
    }

    fn put_by(&mut self, at: Time, rank: Rank, input: Input) {
        let place = self.inputs.insert((rank, input));
        self.queue.push(at, Event::Input(place));
    }

    fn event(&mut self, now: Time, event: Event) {
        match event {
            Event::Input(place) => {
                let (rank, input) = self.inputs.remove(place);
                self.take(now, rank, input);
            }
            Event::Part(rank) => self.part_over(now, rank as Rank),
            Event::Free(rank) => self.catch_up(now, rank as Rank),
            Event::Departs(flight) => self.depart(now, flight),
            Event::Sent(flight) => self.sent(now, flight),
            Event::Reaches(place) => {
                let Flight { to, bytes, last_bit, .. } = *self.flights.get(place);
                let site = &mut self.sites[self.members[to].host];
                site.receives = site.receives.max(now) + site.host.transfer(bytes);
                self.queue.push(site.receives.max(last_bit), Event::Arrived(place));
            }
            Event::Arrived(place) => {
                let Flight { from, to, tag, head, body, left, bytes, .. } = self.flights.remove(place);
                if !left || self.members[to].dead {
                    return;
                }
                let msg = body.map(|body| {
                    let msg = MsgId(self.members[to].held.insert(bytes));
                    self.memory.hold(to, msg, body);
                    msg
                });
                self.report.messages += 1;
                self.report.spent[to].received_bytes += bytes as u64;
                if self.detailed {
                    self.report.arrivals.push(Arrival { from, to, tag, body: msg.is_some() });
                }
                self.take(now, to, Input::Message { from, tag, head, body: msg });
            }
            Event::Crash(place) => self.die(now, self.crashes[place as usize]),
            Event::Stop => self.stop_together(now),
        }
    }

    /// Gives a rank an input, now or when it has time.
    fn take(&mut self, now: Time, rank: Rank, input: Input) {
        let context = &mut self.members[rank];
        if context.dead {
            return;
        }
        if context.pass.is_some() || context.busy > now || !context.inbox.is_empty() {
            context.inbox.push_back(input);
            // Parts of a pass end by themselves.
            if context.pass.is_none() && context.inbox.len() == 1 {
                self.queue.push(self.members[rank].busy, Event::Free(rank as u32));
            }
            return;
        }
        self.handle(now, rank, input);
    }

    /// Handles what has come, until that takes time.
    fn catch_up(&mut self, now: Time, rank: Rank) {
        while self.members[rank].pass.is_none() && self.members[rank].busy <= now {
            let Some(input) = self.members[rank].inbox.pop_front() else { return };
            self.handle(now, rank, input);
        }
        let context = &self.members[rank];
        if context.pass.is_none() && !context.inbox.is_empty() {
            self.queue.push(context.busy, Event::Free(rank as u32));
        }
    }

    /// Gives a rank an input at a time at which it has nothing else to do.
    fn handle(&mut self, now: Time, rank: Rank, input: Input) {
        let context = &mut self.members[rank];
        if context.dead {
            return;
        }
        if context.pass.is_none() && now > context.busy {
            let waited = now - context.busy;
            if let Some(peer) = context.waits_for
                && let Some(sum) = self.report.spent[rank].wait_for.get_mut(peer)
            {
                *sum += waited;
            }
            if let Some(notes) = self.report.notes.get_mut(rank) {
                notes.wait(context.busy, context.waits_for, waited);
            }
        }
        context.busy = context.busy.max(now);
        if let (Some(notes), &Input::Message { from, tag, body, .. }) =
            (self.report.notes.get_mut(rank), &input)
        {
            let bytes = body.map_or(0, |body| context.held.get(body.0).saturating_sub(self.costs.header));
            notes.message(
                MessageDirection::Received,
                context.busy,
                from,
                tag,
                bytes as u64,
                self.costs.header,
            );
        }
        if let Some(repetition) = &mut self.repetition {
            repetition.tell(rank, context.step, input);
        }
        let mut actions = std::mem::take(&mut context.actions);
        context.participant.on(context.busy, input, &mut actions);
        for action in actions.drain() {
            self.act(now, rank, action);
        }
        self.members[rank].actions = actions;
    }

    /// Time that work takes for a rank whose host is shared: as long as those make it that are at work when it
    /// begins.
    fn stretched(&self, rank: Rank, time: Time, shared_by: fn(&Host, usize) -> f64) -> Time {
        let Site { host, crowd, .. } = &self.sites[self.members[rank].machine];
        if crowd.len() < 2 {
            return time;
        }
        let begin = self.members[rank].busy;
        let at_work = |context: &RankContext| {
            !context.asleep && !context.dead && (context.pass.is_some() || context.busy > begin)
        };
        let others = crowd.iter().filter(|other| **other != rank && at_work(&self.members[**other]));
        (time as f64 * shared_by(host, 1 + others.count())) as Time
    }

    /// Lets a rank work on something besides its pass.
    fn work(&mut self, rank: Rank, time: Time) -> Time {
        let time = self.stretched(rank, time, Host::shared_by);
        self.members[rank].busy += time;
        time
    }

    fn act(&mut self, now: Time, rank: Rank, action: Action) {
        if self.detailed {
            self.report.traces[rank].note(&action);
        }
        match action {
            Action::Send { op, to, tag, head, src } => {
                debug_assert_ne!(
                    self.report.outcomes[to],
                    Some(Outcome::Completed),
                    "rank {rank} sends {tag:?} to {to}, who has finished"
                );
                let elements = src.map_or(0, |src| src.len);
                let bytes = self.costs.bytes(elements);
                self.report.sent_bytes[rank] += 4 * elements as u64;
                self.report.spent[rank].sent_bytes += bytes as u64;
                let speed = self.sites[self.members[rank].machine].host.speed;
                let time = self.work(rank, self.costs.handling(bytes, speed));
                self.report.spent[rank].exchange += time;
                let context = &mut self.members[rank];
                context.next_op = op.0 + 1;
                if cfg!(debug_assertions) {
                    src.into_iter().for_each(|src| context.leaving.push((op, src)));
                }
                let (at, local) = (context.busy, self.costs.host_of(to) == context.host);
                if let Some(notes) = self.report.notes.get_mut(rank) {
                    notes.message(
                        MessageDirection::Sent,
                        at,
                        to,
                        tag,
                        4 * elements as u64,
                        self.costs.header,
                    );
                }
                let later = !local && at > now && self.sites[context.host].shared;
                let flight = Flight {
                    from: rank,
                    to,
                    op,
                    tag,
                    head,
                    src,
                    bytes,
                    body: None,
                    left: false,
                    last_bit: 0,
                };
                let place = self.flights.insert(flight);
                if local {
                    self.queue.push(at, Event::Sent(place));
                    let arrives = self.under_way(rank, to, at, self.costs.local_latency);
                    self.queue.push(arrives, Event::Arrived(place));
                } else if later {
                    // Other ranks of the host may send something before.
                    self.queue.push(at, Event::Departs(place));
                } else {
                    self.depart(at, place);
                }
            }
            Action::Release(msg) => {
                let bytes = self.members[rank].held.remove(msg.0);
                let speed = self.sites[self.members[rank].machine].host.speed;
                let time = self.work(rank, self.costs.handling(bytes, speed));
                self.report.spent[rank].exchange += time;
                self.memory.release(rank, msg);
            }
            Action::BeginStep { step, unit, scale } => {
                let slot = self.setup.slot(rank, unit);
                self.begin(rank, StepStart { step, unit, slot, scale });
            }
            Action::Run { op, work, slot } => self.run_stage(rank, StageRun { op, work, slot }),
            Action::WaitingFor(peer) => {
                self.members[rank].waits_for = Some(peer);
                if self.detailed {
                    self.report.waits[rank].push(peer);
                }
            }
            Action::Staleness(versions) => {
                self.report.staleness[rank].push(versions);
                if let Some(notes) = self.report.notes.get_mut(rank) {
                    notes.over(self.members[rank].busy, &self.report.spent[rank]);
                }
                let updates = self.report.staleness[rank].len();
                self.memory.updated(rank, updates, self.members[rank].busy);
            }
            Action::Finish(outcome) => {
                if !matches!(outcome, Outcome::Lost(_)) {
                    self.step_over(rank);
                }
                self.report.outcomes[rank] = Some(outcome);
                self.report.spent[rank].end = self.members[rank].busy + self.shift;
            }
            action => self.compute(rank, &action),
        }
    }

    fn compute(&mut self, rank: Rank, action: &Action) {
        let leaving = &self.members[rank].leaving;
        let sent = |dst: Region| leaving.iter().any(|(_, src)| src.overlaps(&dst));
        debug_assert!(
            !action.changes().into_iter().flatten().any(sent),
            "rank {rank} changes what is still being sent: {action:?}"
        );
        let crosses = |region: Region| matches!(region.buf, Buf::Value(_) | Buf::Slope(_));
        debug_assert!(
            self.members[rank].pass.is_none() || !action.changes().into_iter().flatten().any(crosses),
            "rank {rank} changes values or slopes during a pass: {action:?}"
        );
        let speed = self.sites[self.members[rank].machine].host.speed;
        let time = self.work(rank, (self.costs.work.of(action) / speed) as Time);
        let spent = &mut self.report.spent[rank];
        match action {
            Action::Apply { .. } => spent.apply += time,
            _ => spent.exchange += time,
        }
        if let (Some(notes), true) = (self.report.notes.get_mut(rank), action.is_codec()) {
            notes.codec += time;
        }
        self.memory.compute(rank, action);
    }
}
