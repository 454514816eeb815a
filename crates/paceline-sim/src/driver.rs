//! Events in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use paceline_protocol::{
    Action, Actions, Buf, Head, Input, Load, Matrix, MsgId, OpId, Outcome, Participant, Rank, Region, Setup,
    Tag, Time, Trace, Unit, Weigh,
};

use crate::costs::Costs;
use crate::memory::Memory;

/// Parts of a backward pass after which gradients are announced.
const ANNOUNCEMENTS: usize = 4;

/// A rank that dies.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// Who.
    pub rank: Rank,
    /// When.
    pub at: Time,
    /// How long until the others are told.
    pub noticed_after: Time,
}

/// A step that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// When.
    pub at: Time,
    /// By whom.
    pub rank: Rank,
    /// Which step of its own.
    pub step: u64,
    /// On which work.
    pub unit: Unit,
    /// How its gradient is weighted.
    pub weigh: Weigh,
}

/// A message that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Sender.
    pub from: Rank,
    /// Receiver.
    pub to: Rank,
    /// What it belongs to.
    pub tag: Tag,
    /// Whether it had a body.
    pub body: bool,
}

/// What happened.
#[derive(Debug)]
pub struct Report {
    /// Every arrival, in time.
    pub arrivals: Vec<Arrival>,
    /// How each rank ended; `None` if it crashed or never ended.
    pub outcomes: Vec<Option<Outcome>>,
    /// Live ranks that never ended although nothing was left to happen: a deadlock.
    pub stuck: Vec<Rank>,
    /// Every step's start, in time.
    pub steps: Vec<Started>,
    /// Every update's staleness, by rank.
    pub staleness: Vec<Vec<u64>>,
    /// What each rank did.
    pub traces: Vec<Trace>,
    /// Bytes of bodies that each rank sent.
    pub sent_bytes: Vec<u64>,
    /// For whom each rank said that it waits, in order.
    pub waits: Vec<Vec<Rank>>,
    /// Virtual time at the end.
    pub end: Time,
}

enum Event {
    Input(Rank, Input),
    /// A transfer is over: its body is read, the sender told, the message on its way.
    Transferred {
        from: Rank,
        to: Rank,
        op: OpId,
        tag: Tag,
        head: Head,
        src: Option<Region>,
        arrival: Time,
    },
    Arrived {
        from: Rank,
        to: Rank,
        tag: Tag,
        head: Head,
        body: Option<u64>,
    },
    Crash(Crash),
}

struct Driver<'a, M: Memory> {
    setup: &'a Setup,
    costs: &'a Costs,
    memory: &'a mut M,
    participants: Vec<Box<dyn Participant>>,
    actions: Vec<Actions>,
    /// What happens when; the second number keeps the order of things that happen at once.
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    events: HashMap<u64, Event>,
    sequence: u64,
    /// When each link is free, and when its last message arrives.
    links: HashMap<(Rank, Rank), (Time, Time)>,
    /// Until when each rank computes.
    busy: Vec<Time>,
    transfers: Vec<u64>,
    /// What each rank's sends under way read.
    leaving: Vec<HashMap<OpId, Region>>,
    bodies: HashMap<u64, M::Body>,
    next_body: u64,
    next_msg: Vec<u32>,
    dead: Vec<bool>,
    report: Report,
}

/// Runs the participants of `setup` until all have ended or nothing is left to happen. `inputs` are given
/// to every rank right after its start.
pub fn simulate<M: Memory>(
    setup: &Setup,
    participants: Vec<Box<dyn Participant>>,
    costs: &Costs,
    memory: &mut M,
    crash: Option<Crash>,
    inputs: &[Input],
) -> Report {
    let world = participants.len();
    let mut driver = Driver {
        setup,
        costs,
        memory,
        actions: participants.iter().map(|_| Actions::default()).collect(),
        participants,
        queue: BinaryHeap::new(),
        events: HashMap::new(),
        sequence: 0,
        links: HashMap::new(),
        busy: vec![0; world],
        transfers: vec![0; world],
        leaving: vec![HashMap::new(); world],
        bodies: HashMap::new(),
        next_body: 0,
        next_msg: vec![0; world],
        dead: vec![false; world],
        report: Report {
            arrivals: Vec::new(),
            outcomes: vec![None; world],
            stuck: Vec::new(),
            steps: Vec::new(),
            staleness: vec![Vec::new(); world],
            traces: vec![Trace::default(); world],
            sent_bytes: vec![0; world],
            waits: vec![Vec::new(); world],
            end: 0,
        },
    };
    for rank in 0..world {
        for input in inputs.iter().chain([&Input::Start]) {
            driver.schedule(0, Event::Input(rank, *input));
        }
    }
    if let Some(crash) = crash {
        driver.schedule(crash.at, Event::Crash(crash));
    }
    driver.run();
    let report = &mut driver.report;
    report.stuck = (0..world).filter(|&r| !driver.dead[r] && report.outcomes[r].is_none()).collect();
    driver.report
}

impl<M: Memory> Driver<'_, M> {
    fn schedule(&mut self, at: Time, event: Event) {
        self.queue.push(Reverse((at, self.sequence)));
        self.events.insert(self.sequence, event);
        self.sequence += 1;
    }

    fn run(&mut self) {
        while let Some(Reverse((now, number))) = self.queue.pop() {
            let event = self.events.remove(&number).expect("every number has its event");
            self.report.end = now;
            match event {
                Event::Input(rank, input) => self.input(now, rank, input),
                Event::Transferred { from, to, op, tag, head, src, arrival } => {
                    if self.dead[from] {
                        continue;
                    }
                    self.leaving[from].remove(&op);
                    let body = src.map(|src| {
                        let number = self.next_body;
                        self.next_body += 1;
                        self.bodies.insert(number, self.memory.read(from, src));
                        number
                    });
                    self.schedule(arrival, Event::Arrived { from, to, tag, head, body });
                    self.input(now, from, Input::Done(op));
                }
                Event::Arrived { from, to, tag, head, body } => {
                    let body = body.and_then(|number| self.bodies.remove(&number));
                    if self.dead[to] {
                        continue;
                    }
                    let msg = body.map(|body| {
                        let msg = MsgId(self.next_msg[to]);
                        self.next_msg[to] += 1;
                        self.memory.hold(to, msg, body);
                        msg
                    });
                    self.report.arrivals.push(Arrival { from, to, tag, body: msg.is_some() });
                    self.input(now, to, Input::Message { from, tag, head, body: msg });
                }
                Event::Crash(crash) => {
                    if self.report.outcomes[crash.rank].is_some() {
                        continue;
                    }
                    self.dead[crash.rank] = true;
                    for rank in (0..self.participants.len()).filter(|&r| r != crash.rank) {
                        self.schedule(now + crash.noticed_after, Event::Input(rank, Input::Lost(crash.rank)));
                    }
                }
            }
        }
    }

    fn input(&mut self, now: Time, rank: Rank, input: Input) {
        if self.dead[rank] {
            return;
        }
        let mut actions = std::mem::take(&mut self.actions[rank]);
        self.participants[rank].on(now, input, &mut actions);
        self.busy[rank] = self.busy[rank].max(now);
        for action in actions.drain() {
            self.act(rank, action);
        }
        self.actions[rank] = actions;
    }

    fn act(&mut self, rank: Rank, action: Action) {
        self.report.traces[rank].note(&action);
        match action {
            Action::Send { op, to, tag, head, src } => {
                debug_assert_ne!(
                    self.report.outcomes[to],
                    Some(Outcome::Completed),
                    "rank {rank} sends {tag:?} to {to}, who has finished"
                );
                src.map(|src| self.leaving[rank].insert(op, src));
                let elements = src.map_or(0, |src| src.len);
                self.report.sent_bytes[rank] += 4 * elements as u64;
                let (free, last) = self.links.get(&(rank, to)).copied().unwrap_or_default();
                let end = free.max(self.busy[rank]) + self.costs.transfer(elements);
                let arrival = (end + self.costs.delay(rank, self.transfers[rank])).max(last);
                self.transfers[rank] += 1;
                self.links.insert((rank, to), (end, arrival));
                self.schedule(end, Event::Transferred { from: rank, to, op, tag, head, src, arrival });
            }
            Action::Reduce { dst, .. }
            | Action::Copy { dst, .. }
            | Action::Mix { dst, .. }
            | Action::Scale { dst, .. }
            | Action::Randomise { dst, .. }
            | Action::Encode { src: dst, .. }
            | Action::Decode { dst, .. }
            | Action::MatMul { dst: Matrix { region: dst, .. }, .. }
            | Action::Orthonormalise(Matrix { region: dst, .. })
            | Action::Apply { params: dst, .. } => {
                let sent = |dst: Region| self.leaving[rank].values().any(|src| src.overlaps(&dst));
                debug_assert!(
                    !action.changes().into_iter().flatten().any(sent),
                    "rank {rank} changes what is still being sent: {action:?}"
                );
                self.busy[rank] += self.costs.elements(dst.len);
                self.memory.compute(rank, &action);
            }
            Action::Release(msg) => self.memory.release(rank, msg),
            Action::BeginStep { step, unit, weigh } => {
                debug_assert!(
                    self.leaving[rank].values().all(|src| src.buf != Buf::Grad),
                    "rank {rank} begins a step while its gradients are still being sent"
                );
                let start = self.busy[rank];
                self.report.steps.push(Started { at: start, rank, step, unit, weigh });
                self.memory.gradient(rank, unit, weigh);
                let (whole, params) = (self.costs.step(rank, step), self.setup.params);
                // Forward takes a third; backward announces its gradients on the way.
                for i in 1..=ANNOUNCEMENTS {
                    let at = start + whole / 3 + whole * 2 / 3 * i as Time / ANNOUNCEMENTS as Time;
                    let from = params - params * i / ANNOUNCEMENTS;
                    self.schedule(at, Event::Input(rank, Input::GradReady { from }));
                }
                let load = Load { cpu: 1.0, step_s: whole as f32 * 1e-9 };
                self.schedule(start + whole, Event::Input(rank, Input::Load(load)));
                self.schedule(start + whole, Event::Input(rank, Input::BackwardDone));
            }
            Action::SetTimer { id, after } => {
                self.schedule(self.busy[rank] + after, Event::Input(rank, Input::Timer(id)));
            }
            Action::WaitingFor(peer) => self.report.waits[rank].push(peer),
            Action::Staleness(versions) => self.report.staleness[rank].push(versions),
            Action::Finish(outcome) => self.report.outcomes[rank] = Some(outcome),
        }
    }
}
