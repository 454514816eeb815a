//! Gradients of a script: a process beside, attached by shared memory and a socket (`docs/attach.md`).

mod accounts;
mod exchange;
mod failing;
mod flat;
mod given;
mod handing;
mod starting;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use paceline_attach::{
    Arrivals, AttachError, Attached, Gives, PROTOCOL, RankMessage, ScriptListener, ScriptMessage,
    ScriptPlace, ScriptProcess, ScriptSocket, StepAccount, Takes, Welcome,
};
use paceline_memory::{Allocator, TensorStorage};
use paceline_nn::Outcome;
use paceline_plan::TrainingLength;
use paceline_protocol::{GradientScale, Rank, Setup};
use paceline_record::FailureKind;

use crate::clock::Clock;
use crate::engine::Begin;
use crate::error::TrainError;
use crate::source::{AfterStep, GradientSink, GradientSource, Layout, SourceCosts, SourceReport};

pub use exchange::{USED_TENSORS, script_exchange, script_layout};
pub use failing::script_failed;
pub use starting::ScriptRequest;

use failing::{gone, refuse, refuse_script};
use flat::{OpenRanges, merged, packed, unpacked};
use given::Given;
use handing::Handing;
use starting::{DEVICE, check, check_file, check_version, command};

/// Longest single wait for a script, so that other things are looked at.
const WAIT: Duration = Duration::from_millis(100);
/// Most bytes that a script keeps: no more travels at once.
const MOST_KEPT: usize = 4 << 30;

/// What a script waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// The start.
    Start,
    /// The end of this step's exchange.
    Settled(u64),
    /// What comes after it has saved itself.
    Go,
    /// Nothing: it computes.
    Nothing,
    /// Nothing any more: it has no more work.
    Left,
}

/// A script as the source of a worker's gradients.
pub struct ScriptSource {
    process: ScriptProcess,
    socket: ScriptSocket,
    /// What it said of itself.
    pub attached: Attached,
    layout: Layout,
    /// Tensors of the layout before the script's own.
    flags: usize,
    gives: Gives,
    takes: Takes,
    workers: usize,
    /// The number of a worker that the script goes by: which share of the data it reads.
    number: Rank,
    /// The buffers, until the worker takes them; and the parameters once more, to read what the script leaves there.
    memory: Option<(TensorStorage, TensorStorage)>,
    params: TensorStorage,
    /// Whether the worker has parameters of its own: other members may be handed what servers have answered, which the
    /// script's memory holds only until the script writes there.
    apart: bool,
    /// What the script has given of its step, where members may change.
    given: Option<Given>,
    /// Whether what it keeps is wanted for somebody who joins.
    handing: Handing,
    start: Vec<f32>,
    waits: Waits,
    /// Steps that nothing was exchanged in, and that are not accounted for yet.
    alone: VecDeque<StepAccount>,
    /// The script's own step, its CPU time in seconds.
    step: u64,
    cpu_s: f64,
    /// Bytes that it keeps, as numbers: see `packed`.
    state: Vec<f32>,
    /// The pieces of them that have come.
    parts: Vec<u8>,
    saves_every: Option<u64>,
    reports: Vec<SourceReport>,
    /// When its tensors were ready, of the last step that told.
    ready_us: Vec<u32>,
    staging: Duration,
    rss_peak_bytes: u64,
}

impl ScriptSource {
    /// Starts a script and waits until it has attached, and has shown its own parameters.
    /// `started` is told its process.
    pub fn attach(
        request: &ScriptRequest<'_>,
        listener: ScriptListener,
        started: &mut dyn FnMut(u32),
    ) -> Result<Self, TrainError> {
        let ScriptRequest { plan, rank, .. } = *request;
        let script = plan.script.as_ref().expect("the plan of a script");
        check_file(script)?;
        let command = command(plan, script, rank, request);
        let begun = ScriptProcess::start(&command, rank == 0, listener);
        let (process, mut socket) = begun.map_err(|error| TrainError::Script {
            message: format!("{} cannot be started: {error}", script.python),
            hint: "--python PROGRAM, or PACELINE_PYTHON, names the Python that runs the script".into(),
            kind: FailureKind::Plan,
        })?;
        started(process.pid());
        let attached = loop {
            match socket.next(WAIT) {
                Ok(None) => {}
                Ok(Some(ScriptMessage::Hello(attached))) => break attached,
                Ok(Some(ScriptMessage::Fault { message, .. })) => process.fault(message),
                Ok(Some(other)) => return Err(refuse(&mut socket, format!("{} before HELLO", other.name()))),
                Err(error) => return Err(gone(&process, &mut socket, error)),
            }
        };
        if let Err(problem) = check_version(&attached) {
            return Err(refuse_script(&mut socket, problem, FailureKind::Protocol));
        }
        if let Err(problem) = check(plan, &attached) {
            return Err(refuse_script(&mut socket, problem, FailureKind::Plan));
        }
        let layout = script_layout(plan, &attached);
        let numbers = layout.params;
        let refused = |source| TrainError::Memory { numbers, source };
        let shared = || Allocator::Shared.zeros(numbers).map_err(refused);
        let (params, grads) = (shared()?, shared()?);
        let descriptors: Vec<BorrowedFd<'_>> =
            [&params, &grads].iter().filter_map(|storage| storage.descriptor()).collect();
        let again = descriptors[0].try_clone_to_owned().and_then(|file| TensorStorage::open(file, numbers));
        let again = again.map_err(refused)?;
        let flags = layout.tensors.len() - attached.tensors.len();
        let (gives, takes) = script_exchange(plan);
        let own = &layout.tensors[flags..];
        let until = match plan.work {
            TrainingLength::Steps(steps) => Some(steps),
            _ => None,
        };
        let welcome = Welcome {
            protocol: PROTOCOL,
            package: env!("CARGO_PKG_VERSION").into(),
            rank: plan.script_number(rank),
            workers: plan.script_workers(),
            seed: plan.seed,
            numbers,
            ranges: own.iter().map(|tensor| (tensor.range.start, tensor.range.len())).collect(),
            used: (flags > 0).then_some(0),
            bucket: plan.bucket,
            gives,
            takes,
            times: request.times,
            until: until.into_iter().chain(plan.stop_after_step).min(),
            saves_every: plan.checkpoint_every,
            delegated: request.delegated.clone(),
            device: plan.gpu_of(rank).map(|_| DEVICE.to_owned()),
        };
        socket.tensors = attached.tensors.len();
        socket.rated = gives == Gives::Gradients && takes == Takes::Parameters;
        let mut source = Self {
            process,
            socket,
            attached,
            layout,
            flags,
            gives,
            takes,
            workers: plan.workers,
            number: plan.script_number(rank),
            params: again,
            start: Vec::new(),
            waits: Waits::Start,
            alone: VecDeque::new(),
            step: 0,
            cpu_s: 0.0,
            state: Vec::new(),
            parts: Vec::new(),
            saves_every: plan.checkpoint_every,
            reports: Vec::new(),
            ready_us: Vec::new(),
            staging: Duration::ZERO,
            rss_peak_bytes: 0,
            memory: None,
            apart: plan.elastic.is_some() && takes == Takes::GradientsFromParameters,
            given: None,
            handing: Handing::NotAsked,
        };
        let told = source.socket.hand_over(&RankMessage::Welcome(&welcome), &descriptors);
        told.map_err(|error| source.gone(error))?;
        source.memory = Some((params, grads));
        match source.hear()? {
            ScriptMessage::Ready => {
                source.process.at(ScriptPlace::Attached, 0);
                Ok(source)
            }
            other => Err(source.nonsense(format!("{} before READY", other.name()))),
        }
    }

    /// The script's own parameters, as it has shown them.
    pub fn own_params(&self) -> &[f32] {
        &self.params
    }

    /// The parameters that all scripts start from.
    pub fn start_from(&mut self, params: Vec<f32>) {
        self.start = params;
    }

    /// The number of a worker that the script goes by once it is started.
    pub fn stand_for(&mut self, number: Rank) {
        self.number = number;
    }

    /// Waits for the script's next word, whatever else happens.
    fn hear(&mut self) -> Result<ScriptMessage, TrainError> {
        loop {
            match self.socket.next(WAIT) {
                Ok(Some(ScriptMessage::Fault { message, .. })) => self.process.fault(message),
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(error) => return Err(self.gone(error)),
            }
        }
    }

    /// Takes what may be said at any time; anything else comes back.
    fn aside(&mut self, message: ScriptMessage, clock: &Clock) -> Result<Option<ScriptMessage>, TrainError> {
        match message {
            ScriptMessage::Report(values) => {
                self.reports.push(SourceReport { step: self.step, train_s: clock.train(), values });
            }
            ScriptMessage::Fault { message, .. } => self.process.fault(message),
            ScriptMessage::Taken { step } => {
                if step != self.step {
                    return Err(self.nonsense(format!("TAKEN of step {step}, settled was {}", self.step)));
                }
                self.step += 1;
                self.process.at(ScriptPlace::Outside, self.step);
            }
            ScriptMessage::Part(bytes) => {
                self.parts.extend(bytes);
                if self.parts.len() > MOST_KEPT {
                    return Err(self.nonsense(format!("PARTs of more than {MOST_KEPT} bytes")));
                }
            }
            ScriptMessage::Saved { bytes, .. } => {
                if bytes != self.parts.len() as u64 {
                    let came = self.parts.len();
                    return Err(self.nonsense(format!("SAVED with {bytes} bytes, of which {came} came")));
                }
                self.state = packed(&std::mem::take(&mut self.parts));
                self.waits = Waits::Go;
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    fn gone(&mut self, error: AttachError) -> TrainError {
        gone(&self.process, &mut self.socket, error)
    }

    fn nonsense(&mut self, what: String) -> TrainError {
        refuse(&mut self.socket, what)
    }

    fn say(&mut self, message: &RankMessage<'_>) -> Result<(), TrainError> {
        self.socket.say(message).map_err(|error| gone(&self.process, &mut self.socket, error))
    }

    /// What a script multiplies a gradient by. Its loss is the mean over its own batch. Where members may change, the rank
    /// multiplies: it may have to do it anew, with other workers.
    fn scale(&self, scale: GradientScale) -> f64 {
        match scale {
            GradientScale::Part if self.given.is_some() => 1.0,
            GradientScale::Part => 1.0 / self.workers as f64,
            GradientScale::Own | GradientScale::Even => 1.0,
        }
    }

    /// Lets a script go on that waits for it.
    fn go_on(&mut self, begin: &Begin, params: &[f32]) -> Result<(), TrainError> {
        let scale = self.scale(begin.scale);
        match self.waits {
            Waits::Start => {
                if self.apart && self.handing != Handing::Received {
                    self.params.copy_from_slice(params);
                }
                self.step = begin.step;
                let (kept, rank) = (unpacked(&self.state), self.number);
                self.say(&RankMessage::Start { step: begin.step, scale, kept: &kept, rank })?;
                self.process.at(ScriptPlace::Outside, begin.step);
            }
            Waits::Go => self.say(&RankMessage::Go { over: false, scale })?,
            Waits::Settled(_) | Waits::Nothing | Waits::Left => return Ok(()),
        }
        self.waits = Waits::Nothing;
        Ok(())
    }

    /// The script's next word on the step that it computes; none if the run has ended meanwhile.
    fn next_word(
        &mut self,
        (begin, params): (&Begin, &[f32]),
        sink: &mut dyn GradientSink<'_>,
        clock: &Clock,
    ) -> Result<Option<ScriptMessage>, TrainError> {
        loop {
            let heard = self.socket.try_next().map_err(|error| self.gone(error))?;
            let waits = heard.is_none();
            if let Some(message) = heard.map_or(Ok(None), |heard| self.aside(heard, clock))? {
                self.computes_on(&message);
                return Ok(Some(message));
            }
            self.saved_itself()?;
            // It has saved itself for a pause that members who changed have ended.
            self.go_on(begin, params)?;
            if waits && sink.wait(WAIT) {
                return Ok(None);
            }
        }
    }
}

impl GradientSource for ScriptSource {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn buffers(
        &mut self,
        positions: usize,
        allocator: Allocator,
    ) -> io::Result<(TensorStorage, Vec<TensorStorage>)> {
        let (shared, grads) = self.memory.take().ok_or_else(|| io::Error::other("they were taken before"))?;
        let params = if self.apart { Allocator::Private.zeros(self.layout.params)? } else { shared };
        self.buffers_anew(positions, allocator, (params, vec![grads]))
    }

    /// The script has mapped its own for good. Nobody else reads them when a generation begins: all that took part in the one
    /// before have stopped, or have ended.
    fn buffers_anew(
        &mut self,
        positions: usize,
        allocator: Allocator,
        (params, mut grads): (TensorStorage, Vec<TensorStorage>),
    ) -> io::Result<(TensorStorage, Vec<TensorStorage>)> {
        grads.truncate(1);
        while grads.len() < positions {
            grads.push(allocator.zeros(self.layout.params)?);
        }
        Ok((params, grads))
    }

    fn start(&mut self, params: &mut [f32]) -> Result<(), TrainError> {
        if self.start.len() == params.len() {
            params.copy_from_slice(&self.start);
        }
        Ok(())
    }

    fn gradient<'g>(
        &mut self,
        begin: &Begin,
        slot: usize,
        params: &[f32],
        grads: &'g mut [f32],
        sink: &mut dyn GradientSink<'g>,
        clock: &mut Clock,
    ) -> Result<Option<Outcome>, TrainError> {
        if slot > 0 {
            // The share of a worker that was lost: nobody computes it.
            grads.fill(0.0);
            sink.finished(0, grads);
            return Ok(Some(Outcome::default()));
        }
        self.go_on(begin, params)?;
        if self.gives == Gives::Nothing {
            let outcome = self.next_alone(sink, clock)?;
            if outcome.is_some() {
                sink.finished(0, grads);
            }
            return Ok(outcome);
        }
        if self.waits == Waits::Left {
            return Ok(None);
        }
        let mut open = OpenRanges(vec![(0, grads)]);
        let (mut inside, mut announced) = (false, 0);
        if let Some(given) = &mut self.given {
            inside = given.give_again(begin.step, &mut open, sink);
            if let Some(outcome) = given.outcome {
                return Ok(Some(outcome));
            }
        }
        let account = loop {
            match self.next_word((begin, params), sink, clock)? {
                None => return Ok(None),
                Some(ScriptMessage::Ticket(ids)) => {
                    if self.gives != Gives::Gradients {
                        return Err(self.nonsense("TICKET where no gradients are exchanged".into()));
                    }
                    self.process.at(ScriptPlace::Backward, begin.step);
                    inside = true;
                    announced += ids.len();
                    if self.socket.rated {
                        // The rate that it is applied with is known at the end.
                        continue;
                    }
                    for range in merged(
                        ids.iter().map(|id| self.layout.tensors[self.flags + *id as usize].range.clone()),
                    ) {
                        let Some(slice) = open.take(range.clone()) else {
                            return Err(self.nonsense("TICKET for a tensor that was announced before".into()));
                        };
                        self.given.iter_mut().for_each(|given| given.keep(range.start, slice));
                        sink.finished(range.start, slice);
                    }
                }
                Some(ScriptMessage::Done(account)) => break account,
                Some(ScriptMessage::Leave) if !inside => {
                    self.waits = Waits::Left;
                    return Ok(None);
                }
                Some(other) => return Err(self.nonsense(format!("{} within a step", other.name()))),
            }
        };
        if account.step != begin.step {
            return Err(self.nonsense(format!("DONE of step {} in place of {}", account.step, begin.step)));
        }
        if self.socket.rated {
            sink.rate(account.rate);
        }
        let held_back = self.socket.rated && announced == self.attached.tensors.len();
        let flags = self.layout.tensors[..self.flags].last().map_or(0, |tensor| tensor.range.end);
        for (offset, slice) in std::mem::take(&mut open.0) {
            if self.gives == Gives::Gradients && !held_back && !slice.is_empty() && offset >= flags {
                let missing = self.layout.tensors.iter().find(|tensor| tensor.range.contains(&offset));
                let name = missing.map_or("?", |tensor| &tensor.name).to_owned();
                return Err(self.nonsense(format!("DONE before the gradient of {name} was announced")));
            }
            self.given.iter_mut().for_each(|given| given.keep(offset, slice));
            sink.finished(offset, slice);
        }
        self.waits = Waits::Settled(begin.step);
        self.process.at(ScriptPlace::Exchange, begin.step);
        if !account.ready_us.is_empty() {
            self.ready_us.clone_from(&account.ready_us);
        }
        let outcome = self.account(&account, clock, false);
        self.given.iter_mut().for_each(|given| given.outcome = Some(outcome));
        Ok(Some(outcome))
    }

    fn settled(&mut self, step: u64, next: AfterStep, params: &[f32]) -> Result<(), TrainError> {
        let scale = match next {
            AfterStep::Next(scale) | AfterStep::HandOver(scale) => self.scale(scale),
            AfterStep::Pause | AfterStep::End => 1.0,
        };
        if let Waits::Settled(_) = self.waits {
            if self.apart {
                self.params.copy_from_slice(params);
            }
            self.process.at(ScriptPlace::Settled, step);
            let save = matches!(next, AfterStep::Pause | AfterStep::HandOver(_));
            self.say(&RankMessage::Settled { step, over: false, save, scale })?;
            self.waits = Waits::Nothing;
            if let AfterStep::HandOver(_) = next {
                self.handing = Handing::Asked;
            }
        }
        if next == AfterStep::End {
            self.say(&RankMessage::Over)?;
        }
        Ok(())
    }

    fn caught_up(&mut self, step: u64, params: &[f32]) -> Result<u64, TrainError> {
        let Waits::Settled(waits) = self.waits else { return Ok(0) };
        if waits >= step {
            return Ok(0);
        }
        self.settled(waits, AfterStep::Next(GradientScale::Part), params)?;
        let outcome = self.given.as_ref().and_then(|given| given.outcome);
        Ok(outcome.map_or(0, |outcome| outcome.samples as u64))
    }

    fn beside(&self) -> Option<Arc<UnixStream>> {
        Some(self.socket.wakes())
    }

    fn arrivals(&self) -> Option<Arrivals> {
        (self.attached.arrivals && self.takes == Takes::Gradients).then(|| self.socket.arrivals())
    }

    fn cpu_seconds(&self) -> f64 {
        self.cpu_s
    }

    fn costs(&self) -> SourceCosts {
        let Self { staging, ref ready_us, cpu_s, rss_peak_bytes, .. } = *self;
        SourceCosts { staging, ready_us: ready_us.clone(), cpu_s, rss_peak_bytes }
    }

    fn reports(&mut self) -> Vec<SourceReport> {
        std::mem::take(&mut self.reports)
    }

    fn finish(&mut self, clock: &mut Clock) -> Result<Option<Vec<f32>>, TrainError> {
        let over = |step| RankMessage::Settled { step, over: true, save: false, scale: 1.0 };
        match self.waits {
            Waits::Start => {
                let (step, rank) = (self.step, self.number);
                self.say(&RankMessage::Start { step, scale: 1.0, kept: &[], rank })?;
            }
            Waits::Settled(step) => self.say(&over(step))?,
            Waits::Go => self.say(&RankMessage::Go { over: true, scale: 1.0 })?,
            Waits::Nothing => self.say(&RankMessage::Over)?,
            Waits::Left => {}
        }
        self.process.at(ScriptPlace::Outside, self.step);
        while self.waits != Waits::Left {
            let heard = self.hear()?;
            match self.aside(heard, clock)? {
                Some(ScriptMessage::Done(account)) => self.say(&over(account.step))?,
                Some(ScriptMessage::Leave) => self.waits = Waits::Left,
                Some(ScriptMessage::Ticket(_) | ScriptMessage::Steps(_)) => {}
                None if self.waits == Waits::Go => {
                    self.say(&RankMessage::Go { over: true, scale: 1.0 })?;
                    self.waits = Waits::Nothing;
                }
                None => {}
                Some(other) => return Err(self.nonsense(format!("{} at the end", other.name()))),
            }
        }
        self.rss_peak_bytes = self.process.peak_memory_bytes();
        self.process.release();
        self.say(&RankMessage::Bye)?;
        let own = self.layout.tensors.get(self.flags).map_or(0, |tensor| tensor.range.start);
        let params = self.params[own..].to_vec();
        self.process.end().map_or(Ok(Some(params)), |failure| Err(script_failed(failure)))
    }

    fn evaluates(&self) -> bool {
        false
    }

    fn evaluate(&mut self, _: &[f32], _: bool) -> Result<Outcome, TrainError> {
        Ok(Outcome::default())
    }

    fn evaluates_after(&self, _: u64) -> bool {
        false
    }

    fn samples_before(&self, _: u64) -> u64 {
        0
    }

    fn state(&self) -> &[f32] {
        &self.state
    }

    fn params_to_save(&self) -> Option<&[f32]> {
        self.apart.then_some(&self.params[..])
    }

    fn save(&mut self) -> Result<(), TrainError> {
        // One that exchanges nothing saves itself at the steps that it was told before.
        let by_itself = self.saves_every.is_some_and(|every| self.step.is_multiple_of(every));
        if self.gives == Gives::Nothing && !by_itself && self.waits == Waits::Nothing {
            self.say(&RankMessage::Save)?;
        }
        let clock = Clock::default();
        while self.waits == Waits::Nothing {
            let heard = self.hear()?;
            match self.aside(heard, &clock)? {
                None => {}
                Some(ScriptMessage::Leave) => self.waits = Waits::Left,
                Some(ScriptMessage::Steps(accounts)) => self.alone.extend(accounts),
                Some(other) => {
                    return Err(self.nonsense(format!("{} where it was to save itself", other.name())));
                }
            }
        }
        Ok(())
    }

    fn restore(&mut self, state: &[f32]) -> Result<(), TrainError> {
        self.state = state.to_vec();
        Ok(())
    }

    fn restore_own(&mut self, params: &[f32]) {
        if params.len() == self.params.len() {
            self.params.copy_from_slice(params);
            self.handing = Handing::Received;
        }
    }

    fn handed_over(&mut self) -> Option<Result<(), String>> {
        self.handing.told()
    }

    fn take_place(&mut self, setup: &Setup, _: Rank) -> Result<(), TrainError> {
        let flags = self.layout.tensors[..self.flags].last().map_or(0, |tensor| tensor.range.end);
        let given = self.given.get_or_insert_with(|| Given::new(self.layout.params, flags));
        given.workers(setup.workers);
        self.handing.forget();
        self.process.bear_with();
        Ok(())
    }
}
