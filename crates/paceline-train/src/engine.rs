//! Drives a participant with a transport, real memory and the real clock.
//!
//! The engine runs on the thread that computes: while backward goes on it is called after each tensor,
//! sends what is finished and takes in what has come; after backward it waits for what is missing.
//!
//! - [`greetings`]: what is said before the first step and after the last one
//! - [`members`]: from one generation of members to the next
//! - [`beside`]: where a script computes beside the rank

mod beside;
mod greetings;
mod members;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_attach::Arrivals;
use paceline_memory::TensorStorage;
use paceline_protocol::{
    Action, Actions, Buf, GradientScale, Input, MessageHead, MsgId, OpId, Outcome, Participant, Rank, Region,
    Tag, Time, Trace, Work, WorkUnit,
};
use paceline_record::TraceKind;
use paceline_wire::{Body, Event, Span, Transport, WireError};

use crate::error::TrainError;
use crate::memory::{Bodies, Memory, span};
use crate::meta::{ANSWER, GOODBYE, GREETING, RATE, pack, unpack};
use crate::observe::Watch;
use crate::segment::StepGate;
use greetings::{GOODBYES, GREETINGS};

/// Longest single wait, so that deadlines are looked at.
const WAIT: Duration = Duration::from_millis(100);

/// The same where members may change: so soon the word that somebody else was lost is heard.
const WAIT_OF_MEMBERS: Duration = Duration::from_millis(5);

/// Least time without any progress before a run is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Seconds that a rank spent on others.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Sending, receiving and summing.
    pub send: Duration,
    /// Waiting with nothing to do.
    pub wait: Duration,
    /// The same, by the rank that was waited for.
    pub wait_for: Vec<Duration>,
    /// Updating parameters.
    pub apply: Duration,
    /// Encoding and decoding, while sending or waiting.
    pub codec: Duration,
}

/// A step to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// This worker's step.
    pub step: u64,
    /// The work.
    pub unit: WorkUnit,
    /// How its gradient is weighted.
    pub scale: GradientScale,
}

/// A pass through this rank's stage, to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePass {
    /// What is reported when it is done.
    pub op: OpId,
    /// The work.
    pub work: Work,
    /// Where its micro-batch lies.
    pub slot: usize,
}

/// A participant at work.
pub struct Engine {
    participant: Box<dyn Participant>,
    transport: Box<dyn Transport>,
    links: Vec<Rank>,
    actions: Actions,
    bodies: Vec<Option<Body>>,
    free: Vec<u32>,
    /// What cannot be done before backward is over, and the elements that it has to do with.
    deferred: VecDeque<Action>,
    untouchable: Vec<Region>,
    events: Vec<Event>,
    begin: Option<Begin>,
    pass: Option<StagePass>,
    outcome: Option<Outcome>,
    /// Peers that have said goodbye: their leaving is no loss.
    departed: Vec<bool>,
    waiting_for: Option<Rank>,
    /// Messages of another generation than this one are put by for a successor.
    generation: u32,
    later: Vec<Event>,
    /// When each peer's last greeting left and which one that was, while peers are greeted.
    greeted: Vec<(Rank, Instant, u32)>,
    /// Why a peer was lost.
    cause: String,
    /// The member of each rank, where members may change: a peer that is gone then ends the generation, not the run.
    members: Option<Vec<Rank>>,
    /// What asks the members of a generation to stop where they are.
    gate: Option<Arc<StepGate>>,
    /// Bytes sent and received over connections that were given up.
    earlier: (u64, u64),
    /// A peer that could not be sent something, and why: told once the present actions are done.
    gone: Option<(Rank, String)>,
    step: u64,
    /// Messages that have not left yet.
    leaving: usize,
    /// Peers whose goodbye has not left yet.
    goodbyes: Vec<Rank>,
    clock: Instant,
    /// Time waited since something of use came.
    silence: Duration,
    patience: Duration,
    /// Whether the transport can be woken by something else.
    woken: bool,
    /// The learning rate of each rank, as a multiple of its first one; the own one is what the others were told.
    rates: Vec<f64>,
    /// Time spent on others.
    pub times: Times,
    /// Staleness of every update.
    pub staleness: Vec<u64>,
    /// Strangers that were turned away.
    pub refused: Vec<String>,
    /// What was done, if somebody wants to know.
    pub trace: Option<Trace>,
    /// Who is told of parts of a script's mean gradient as soon as they are there.
    pub arrivals: Option<Arrivals>,
    /// Who records links and messages.
    pub watch: Option<Watch>,
}

impl Engine {
    /// A participant with its transport; `links` are the ranks it exchanges messages with.
    pub fn new(
        participant: Box<dyn Participant>,
        transport: Box<dyn Transport>,
        links: Vec<Rank>,
        world: usize,
    ) -> Self {
        let now = Instant::now();
        Self {
            participant,
            transport,
            links,
            actions: Actions::default(),
            bodies: Vec::new(),
            free: Vec::new(),
            deferred: VecDeque::new(),
            untouchable: Vec::new(),
            events: Vec::new(),
            begin: None,
            pass: None,
            outcome: None,
            departed: vec![false; world],
            waiting_for: None,
            generation: 0,
            later: Vec::new(),
            greeted: Vec::new(),
            cause: String::new(),
            members: None,
            gate: None,
            earlier: (0, 0),
            gone: None,
            step: 0,
            leaving: 0,
            goodbyes: Vec::new(),
            clock: now,
            silence: Duration::ZERO,
            patience: PATIENCE,
            woken: false,
            rates: vec![1.0; world],
            times: Times { wait_for: vec![Duration::ZERO; world], ..Times::default() },
            staleness: Vec::new(),
            refused: Vec::new(),
            trace: None,
            arrivals: None,
            watch: None,
        }
    }

    /// Bytes sent and received so far, over all peers.
    pub fn traffic(&self) -> (u64, u64) {
        let all = self.transport.traffic().iter();
        all.fold(self.earlier, |(sent, received), t| (sent + t.sent_bytes, received + t.received_bytes))
    }

    /// Lets another participant take over, of a later generation. What has come for it already is not
    /// lost: a faster peer may have begun with it.
    pub fn succeed(&mut self, participant: Box<dyn Participant>, generation: u32) {
        self.participant = participant;
        self.generation = generation;
        self.actions = Actions::default();
        self.bodies.clear();
        self.free.clear();
        self.deferred.clear();
        self.untouchable.clear();
        (self.begin, self.pass, self.outcome, self.waiting_for) = (None, None, None, None);
        self.greeted.clear();
        self.goodbyes.clear();
        self.cause.clear();
        (self.step, self.leaving, self.gone) = (0, 0, None);
        (self.clock, self.silence) = (Instant::now(), Duration::ZERO);
    }

    /// Lengths of the scratch buffers that the participant needs.
    pub fn scratch(&self) -> Vec<usize> {
        self.participant.scratch()
    }

    /// Starts the participant.
    pub fn start(&mut self, memory: &mut dyn Memory) -> Result<(), TrainError> {
        self.input(Input::Start, memory)?;
        for event in std::mem::take(&mut self.later) {
            self.event(event, memory)?;
        }
        Ok(())
    }

    /// Gives the participant an input and does what it asks for.
    pub fn input(&mut self, input: Input, memory: &mut dyn Memory) -> Result<(), TrainError> {
        let now = self.clock.elapsed().as_nanos() as Time;
        let mut actions = std::mem::take(&mut self.actions);
        self.participant.on(now, input, &mut actions);
        for action in actions.drain() {
            if let Some(trace) = &mut self.trace {
                trace.note(&action);
            }
            self.act(action, memory)?;
        }
        self.actions = actions;
        if let Some((rank, cause)) = self.gone.take()
            && !self.departed[rank]
        {
            (self.leaving, self.cause, self.departed[rank]) = (0, cause, true);
            return self.input(Input::Lost(rank), memory);
        }
        Ok(())
    }

    /// Gives the participant an input while a worker computes, and counts the time of what it asks for.
    pub fn input_of_pass(&mut self, input: Input, memory: &mut dyn Memory) -> Result<(), TrainError> {
        let (start, applied) = (Instant::now(), self.times.apply);
        let done = self.input(input, memory);
        self.times.send += self.besides_updates(start, applied);
        done
    }

    /// Does an action now, or later if the memory says so.
    fn act(&mut self, action: Action, memory: &mut dyn Memory) -> Result<(), TrainError> {
        // Nothing overtakes what was put off if the two have anything to do with each other.
        let awaits = |region: Region| self.untouchable.iter().any(|other| other.overlaps(&region));
        if action.regions().into_iter().flatten().any(awaits) {
            self.defer(action);
            return Ok(());
        }
        let done = match action {
            Action::Send { op, to, tag, head, src } => {
                let body = src.map_or(Span::EMPTY, span);
                let sent = self.transport.send(to, pack(tag, head, src.is_some()), body, op.0);
                if let (Err(WireError::Gone { to, cause }), Some(_)) = (&sent, &self.members) {
                    // What follows is done all the same: the participant takes it for done.
                    self.gone = Some((*to, cause.clone()));
                    return Ok(());
                }
                sent.map_err(|error| match error {
                    // Messages that came before the loss was noticed are answered before it is told.
                    WireError::Gone { to, cause } => TrainError::Lost { rank: to, step: self.step, cause },
                    error => error.into(),
                })?;
                let recorded = self.recorded(to);
                if let Some(watch) = &mut self.watch {
                    watch.message(TraceKind::Send, recorded, tag, body.len);
                }
                self.leaving += 1;
                true
            }
            Action::Reduce { .. }
            | Action::Copy { .. }
            | Action::Mix { .. }
            | Action::Scale { .. }
            | Action::Randomise { .. }
            | Action::Encode { .. }
            | Action::Decode { .. }
            | Action::MatMul { .. }
            | Action::Orthonormalise(_) => {
                let start = action.is_codec().then(Instant::now);
                let done = memory.compute(&action, Bodies(&self.bodies));
                self.times.codec += start.map_or(Duration::ZERO, |start| start.elapsed());
                done
            }
            // The script makes the update; what it makes it of is there.
            Action::Apply { grad, .. } if self.arrivals.is_some() && grad.buf == Buf::Grad => {
                self.arrivals.iter_mut().for_each(|arrivals| arrivals.tell(grad.offset, grad.len));
                true
            }
            Action::Apply { .. } => {
                let start = Instant::now();
                let done = memory.compute(&action, Bodies(&self.bodies));
                self.times.apply += start.elapsed();
                done
            }
            // What is put off may still need the body.
            Action::Release(_) if !self.deferred.is_empty() => false,
            Action::Release(msg) => {
                self.bodies[msg.0 as usize] = None;
                self.free.push(msg.0);
                true
            }
            Action::BeginStep { step, unit, scale } => {
                self.begin = Some(Begin { step, unit, scale });
                self.step = step;
                true
            }
            Action::Run { op, work, slot } => {
                self.pass = Some(StagePass { op, work, slot });
                true
            }
            Action::WaitingFor(rank) => {
                self.waiting_for = Some(rank);
                true
            }
            Action::Staleness(versions) => {
                self.staleness.push(versions);
                true
            }
            Action::Finish(outcome) => {
                self.outcome = Some(outcome);
                true
            }
        };
        if !done {
            self.defer(action);
        }
        Ok(())
    }

    /// Puts an action off. Lanes are finished one after the other, so their regions grow together.
    fn defer(&mut self, action: Action) {
        for region in action.regions().into_iter().flatten().filter(|r| !matches!(r.buf, Buf::Msg(_))) {
            let touches = |other: &&mut Region| {
                other.buf == region.buf
                    && other.offset <= region.offset + region.len
                    && region.offset <= other.offset + other.len
            };
            match self.untouchable.iter_mut().find(touches) {
                Some(other) => {
                    let end = (other.offset + other.len).max(region.offset + region.len);
                    other.offset = other.offset.min(region.offset);
                    other.len = end - other.offset;
                }
                None => self.untouchable.push(region),
            }
        }
        self.deferred.push_back(action);
    }

    /// Does what was put off.
    pub fn catch_up(&mut self, memory: &mut dyn Memory) -> Result<(), TrainError> {
        let (start, applied) = (Instant::now(), self.times.apply);
        self.untouchable.clear();
        for action in std::mem::take(&mut self.deferred) {
            self.act(action, memory)?;
        }
        self.times.send += self.besides_updates(start, applied);
        Ok(())
    }

    /// Moves messages without waiting.
    pub fn poll(&mut self, memory: &mut dyn Memory) -> Result<(), TrainError> {
        let (start, applied) = (Instant::now(), self.times.apply);
        let done = self.exchange(None, memory);
        self.times.send += self.besides_updates(start, applied);
        done.map(drop)
    }

    /// Moves messages, waiting for some if there is nothing to do; an error after too long a silence.
    pub fn wait(&mut self, memory: &mut dyn Memory) -> Result<(), TrainError> {
        let (start, applied) = (Instant::now(), self.times.apply);
        if self.is_asked_to_stop() {
            return self.stop_here(memory);
        }
        if self.exchange(None, memory)? {
            self.times.send += self.besides_updates(start, applied);
            return Ok(());
        }
        let wait = if self.members.is_some() { WAIT_OF_MEMBERS } else { WAIT };
        let moved = self.exchange(Some(wait), memory)?;
        let spent = self.besides_updates(start, applied);
        let waiting_for = self.waiting_for.map(|rank| self.recorded(rank));
        if let Some(watch) = &self.watch {
            watch.wait(self.step, waiting_for, start, spent);
        }
        self.times.wait += spent;
        if let Some(rank) = waiting_for {
            self.times.wait_for[rank] += spent;
        }
        // A process that was suspended has waited no longer than one wait.
        self.silence += start.elapsed().min(2 * WAIT);
        if !moved && self.silence > self.patience {
            let rank = self.waiting_for.unwrap_or(0);
            return Err(TrainError::Silent { rank, seconds: self.patience.as_secs(), step: self.step });
        }
        Ok(())
    }

    /// Time since `start` without what was spent on updates meanwhile: that is counted by itself.
    fn besides_updates(&self, start: Instant, applied: Duration) -> Duration {
        start.elapsed().saturating_sub(self.times.apply - applied)
    }

    /// Bears silence for so long at least.
    pub fn be_patient(&mut self, patience: Duration) {
        self.patience = self.patience.max(patience);
    }

    /// Gives a run more patience if its steps are long.
    pub fn set_patience(&mut self, median_step: Duration) {
        self.patience = PATIENCE.max(20 * median_step);
    }

    fn exchange(&mut self, wait: Option<Duration>, memory: &mut dyn Memory) -> Result<bool, TrainError> {
        let mut events = std::mem::take(&mut self.events);
        self.transport.progress(&*memory, wait, &mut events)?;
        let moved = !events.is_empty();
        // Strangers who knock do not bring a run forward.
        let progress = events.iter().any(|event| !matches!(event, Event::Refused { .. } | Event::Woken));
        for event in events.drain(..) {
            self.event(event, memory)?;
        }
        self.events = events;
        if let Some(watch) = &self.watch {
            watch.links(&self.links, &*self.transport);
        }
        if progress {
            self.silence = Duration::ZERO;
        }
        Ok(moved)
    }

    fn event(&mut self, event: Event, memory: &mut dyn Memory) -> Result<(), TrainError> {
        match event {
            Event::Message { from, meta, body } => {
                let (tag, head, has_body) = unpack(&meta);
                if tag.phase == GOODBYE {
                    self.departed[from] = true;
                    return Ok(());
                }
                if tag.phase == GREETING {
                    let back = pack(Tag { phase: ANSWER, ..tag }, MessageHead::default(), false);
                    let _ = self.transport.send(from, back, Span::EMPTY, GREETINGS);
                    return Ok(());
                }
                if tag.phase == ANSWER {
                    self.answered(from, tag.step);
                    return Ok(());
                }
                if tag.phase == RATE {
                    self.rates[from] = f64::from_bits(head.unit);
                    return Ok(());
                }
                if tag.generation > self.generation || !self.greeted.is_empty() {
                    self.later.push(Event::Message { from, meta, body });
                    return Ok(());
                }
                let recorded = self.recorded(from);
                if let Some(watch) = &mut self.watch {
                    watch.message(TraceKind::Receive, recorded, tag, body.len());
                }
                let body = has_body.then(|| self.hold(body));
                memory.set_rate(self.rates[from]);
                self.input(Input::Message { from, tag, head, body }, memory)
            }
            Event::Sent { op } if op >= GOODBYES => {
                self.goodbyes.retain(|&peer| GOODBYES + peer as u64 != op);
                Ok(())
            }
            Event::Sent { op } if op == GREETINGS => Ok(()),
            // The participant has not started yet.
            lost @ Event::Lost { .. } if !self.greeted.is_empty() => {
                self.later.push(lost);
                Ok(())
            }
            Event::Sent { op } => {
                self.leaving = self.leaving.saturating_sub(1);
                self.input(Input::Done(OpId(op)), memory)
            }
            Event::Lost { rank, .. } if self.departed[rank] || !self.links.contains(&rank) => {
                self.goodbyes.retain(|&peer| peer != rank);
                Ok(())
            }
            Event::Lost { rank, cause } => {
                // What was still to go there is dropped without a word.
                self.leaving = 0;
                self.cause = cause;
                self.departed[rank] = true;
                self.input(Input::Lost(rank), memory)
            }
            Event::Refused { cause } => {
                self.refused.push(cause);
                Ok(())
            }
            Event::Woken => Ok(()),
        }
    }

    fn hold(&mut self, body: Body) -> MsgId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.bodies.push(None);
            self.bodies.len() as u32 - 1
        });
        self.bodies[slot as usize] = Some(body);
        MsgId(slot)
    }

    /// The next step's work, once the participant has asked for it; `None` at the end of the run.
    pub fn next_step(&mut self, memory: &mut dyn Memory) -> Result<Option<Begin>, TrainError> {
        loop {
            // A worker that is left alone waits for nobody, and hears here that others join.
            if self.is_asked_to_stop() {
                self.stop_here(memory)?;
            }
            let over = self.over()?;
            if let Some(begin) = self.begin.take() {
                return Ok(Some(begin));
            }
            if over {
                return Ok(None);
            }
            self.wait(memory)?;
        }
    }

    /// The next pass through this rank's stage, once the participant has asked for it; `None` at the end of the run.
    pub fn next_pass(&mut self, memory: &mut dyn Memory) -> Result<Option<StagePass>, TrainError> {
        loop {
            if let Some(pass) = self.pass.take() {
                return Ok(Some(pass));
            }
            if self.over()? {
                return Ok(None);
            }
            self.wait(memory)?;
        }
    }

    /// Waits until the step under way is over: the next one's work is known, or the run has ended.
    pub fn step_over(&mut self, memory: &mut dyn Memory) -> Result<(), TrainError> {
        while self.begin.is_none() && !self.over()? {
            self.wait(memory)?;
        }
        Ok(())
    }

    /// The next step's work, if it is known already.
    pub fn next_begin(&self) -> Option<&Begin> {
        self.begin.as_ref()
    }

    /// Whether bodies of this rank can stay where they are while peers take them in.
    pub fn lends(&self) -> bool {
        self.transport.lends()
    }

    /// Lets peers read a buffer of this rank's, if it lies in memory that can be shared.
    pub fn lend(&mut self, buf: Buf, storage: &TensorStorage) -> Result<(), TrainError> {
        let numbers = storage.len();
        let file = storage.descriptor_to_read().map_err(|source| TrainError::Memory { numbers, source })?;
        if let Some(file) = file {
            self.transport.lend(span(Region { buf, offset: 0, len: 0 }).buffer, file)?;
        }
        Ok(())
    }

    /// Whether the participant has finished; an error if it could not go on.
    pub fn over(&mut self) -> Result<bool, TrainError> {
        match self.outcome {
            Some(Outcome::Completed | Outcome::Left { .. }) => Ok(true),
            Some(Outcome::Lost(rank)) => {
                let (rank, cause) = (self.recorded(rank), std::mem::take(&mut self.cause));
                Err(TrainError::Lost { rank, step: self.step, cause })
            }
            None => Ok(false),
        }
    }

    /// The worker that has left, and the step that it did not compute, if that ended the run.
    pub fn left(&self) -> Option<(Rank, u64)> {
        if let Some(Outcome::Left { worker, before }) = self.outcome { Some((worker, before)) } else { None }
    }

    /// Tells the engine that it was left alone on purpose (an evaluation): silence meanwhile is no loss.
    pub fn rest(&mut self) {
        self.silence = Duration::ZERO;
    }
}
