//! Gradients of a script: a process beside, attached by shared memory and a socket (`docs/attach.md`).

mod failing;
mod flat;
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
use paceline_protocol::{GradientScale, SINGLE};
use paceline_record::FailureKind;
use paceline_resolve::TypedPlan;

use crate::clock::{Clock, Phase};
use crate::engine::Begin;
use crate::error::TrainError;
use crate::source::{
    AfterStep, GradientSink, GradientSource, Layout, SourceCosts, SourceReport, TensorLayout,
};

pub use failing::script_failed;
pub use starting::ScriptRequest;

use failing::{gone, refuse, refuse_script};
use flat::{OpenRanges, merged, packed, unpacked};
use starting::{DEVICE, check, check_file, check_version, command};

/// The name in a layout of the numbers that say which tensors were used; they come before the script's own.
pub const USED_TENSORS: &str = "(used)";

/// Longest single wait for a script, so that other things are looked at.
const WAIT: Duration = Duration::from_millis(100);
/// What the scripts of a plan hand over and take back.
pub fn script_exchange(plan: &TypedPlan<'_>) -> (Gives, Takes) {
    let apply_server = plan.script.as_ref().is_some_and(|script| script.apply == "server");
    let staged = plan.script.as_ref().is_some_and(|script| script.staged);
    let nobody = plan.document.strategy == SINGLE && !staged || plan.strategy.delegated.is_some();
    match (nobody, &plan.document.averages[..], plan.servers) {
        (true, ..) => (Gives::Nothing, Takes::Nothing),
        (_, "weights", _) => (Gives::Parameters, Takes::Parameters),
        (_, _, 0) => (Gives::Gradients, Takes::Gradients),
        _ if apply_server => (Gives::Gradients, Takes::Parameters),
        _ if plan.sync == "bsp" => (Gives::Gradients, Takes::GradientsFromParameters),
        _ => (Gives::Updates, Takes::Parameters),
    }
}

/// Whether which tensors were used is exchanged with the gradients: a lossy code would make something else of it.
fn tells_used(plan: &TypedPlan<'_>) -> bool {
    let (_, takes) = script_exchange(plan);
    matches!(takes, Takes::Gradients | Takes::GradientsFromParameters) && plan.coder.is_none()
}

/// The flat buffers of a script's tensors: in its own order, behind one number for each that says whether it was used.
/// (Exchanges go from the end to the start, and these are known last.)
pub fn script_layout(plan: &TypedPlan<'_>, attached: &Attached) -> Layout {
    let mut layout = Layout::default();
    let mut push = |name: &str, shape: &[usize]| {
        let range = layout.params..layout.params + shape.iter().product::<usize>();
        layout.params = range.end;
        layout.tensors.push(TensorLayout { name: name.to_owned(), shape: shape.to_vec(), range });
    };
    if tells_used(plan) {
        push(USED_TENSORS, &[attached.tensors.len()]);
    }
    attached.tensors.iter().for_each(|tensor| push(&tensor.name, &tensor.shape));
    layout
}

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
    /// The buffers, until the worker takes them; and the parameters once more, to read what the script leaves there.
    memory: Option<(TensorStorage, TensorStorage)>,
    params: TensorStorage,
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
            rank,
            workers: plan.workers,
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
        };
        let told = source.socket.hand_over(&RankMessage::Welcome(&welcome), &descriptors);
        told.map_err(|error| source.gone(error))?;
        source.memory = Some((params, grads));
        match source.hear()? {
            ScriptMessage::Ready => Ok(source),
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
            ScriptMessage::Part(bytes) => self.parts.extend(bytes),
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

    /// What a gradient is multiplied by. A script's loss is the mean over its own batch.
    fn scale(&self, scale: GradientScale) -> f64 {
        match scale {
            GradientScale::Part => 1.0 / self.workers as f64,
            GradientScale::Own | GradientScale::Even => 1.0,
        }
    }

    /// Lets a script go on that waits for it.
    fn go_on(&mut self, begin: &Begin) -> Result<(), TrainError> {
        let scale = self.scale(begin.scale);
        match self.waits {
            Waits::Start => {
                self.step = begin.step;
                let kept = unpacked(&self.state);
                self.say(&RankMessage::Start { step: begin.step, scale, kept: &kept })?;
                self.process.at(ScriptPlace::Outside, begin.step);
            }
            Waits::Go => self.say(&RankMessage::Go { over: false, scale })?,
            Waits::Settled(_) | Waits::Nothing | Waits::Left => return Ok(()),
        }
        self.waits = Waits::Nothing;
        Ok(())
    }

    /// Counts what a script has measured.
    fn account(&mut self, account: &StepAccount, clock: &mut Clock, beside: bool) -> Outcome {
        self.cpu_s += account.cpu_ns as f64 * 1e-9;
        self.staging += Duration::from_nanos(account.staging_ns);
        let ns = Duration::from_nanos;
        let phases = [
            (account.data_ns, Phase::Data),
            (account.forward_ns, Phase::Forward),
            (account.update_ns, Phase::Apply),
        ];
        if beside {
            // Nobody here waited for it.
            phases.into_iter().for_each(|(time, phase)| clock.spend(ns(time), phase));
            clock.spend(ns(account.evaluated_ns), Phase::Evaluate);
            clock.spend(ns(account.backward_ns + account.staging_ns), Phase::Backward);
        } else {
            let before = clock.seconds(Phase::Backward);
            clock.lap(Phase::Backward);
            let passed = Duration::from_secs_f64((clock.seconds(Phase::Backward) - before).max(0.0));
            phases.into_iter().for_each(|(time, phase)| clock.shift(ns(time), Phase::Backward, phase));
            // Evaluating does not count as training; what is left is the way there and back.
            let evaluated = ns(account.evaluated_ns).min(passed);
            clock.shift(evaluated, Phase::Backward, Phase::Evaluate);
            let told = [
                account.data_ns,
                account.forward_ns,
                account.backward_ns,
                account.staging_ns,
                account.update_ns,
            ];
            let rest = (passed - evaluated).saturating_sub(ns(told.iter().sum()));
            clock.shift(rest, Phase::Backward, Phase::Exchange);
        }
        let samples = usize::try_from(account.samples).unwrap_or(usize::MAX);
        Outcome { loss: account.loss * samples as f64, samples, ..Outcome::default() }
    }

    /// The next step of a script that exchanges nothing; none if it has no more work.
    fn next_alone(
        &mut self,
        sink: &mut dyn GradientSink<'_>,
        clock: &mut Clock,
    ) -> Result<Option<Outcome>, TrainError> {
        loop {
            if let Some(account) = self.alone.pop_front() {
                if account.step != self.step {
                    let expected = self.step;
                    return Err(
                        self.nonsense(format!("the account of step {} in place of {expected}", account.step))
                    );
                }
                self.step += 1;
                self.process.at(ScriptPlace::Outside, self.step);
                return Ok(Some(self.account(&account, clock, true)));
            }
            if self.waits == Waits::Left || sink.wait(Duration::ZERO) {
                return Ok(None);
            }
            let heard = match self.socket.next(WAIT) {
                Ok(heard) => heard,
                Err(error) => return Err(self.gone(error)),
            };
            match heard.map_or(Ok(None), |heard| self.aside(heard, clock))? {
                None => {}
                Some(ScriptMessage::Steps(accounts)) => self.alone.extend(accounts),
                Some(ScriptMessage::Leave) => self.waits = Waits::Left,
                Some(other) => {
                    return Err(self.nonsense(format!("{} where nothing is exchanged", other.name())));
                }
            }
        }
    }

    /// The script's next word on the step that it computes; none if the run has ended meanwhile.
    fn next_word(
        &mut self,
        sink: &mut dyn GradientSink<'_>,
        clock: &Clock,
    ) -> Result<Option<ScriptMessage>, TrainError> {
        loop {
            let heard = self.socket.try_next().map_err(|error| self.gone(error))?;
            let waits = heard.is_none();
            if let Some(message) = heard.map_or(Ok(None), |heard| self.aside(heard, clock))? {
                return Ok(Some(message));
            }
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

    fn buffers(&mut self, _: usize, _: Allocator) -> io::Result<(TensorStorage, Vec<TensorStorage>)> {
        let (params, grads) = self.memory.take().ok_or_else(|| io::Error::other("they were taken before"))?;
        Ok((params, vec![grads]))
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
        _: usize,
        _: &[f32],
        grads: &'g mut [f32],
        sink: &mut dyn GradientSink<'g>,
        clock: &mut Clock,
    ) -> Result<Option<Outcome>, TrainError> {
        self.go_on(begin)?;
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
        let account = loop {
            match self.next_word(sink, clock)? {
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
            sink.finished(offset, slice);
        }
        self.waits = Waits::Settled(begin.step);
        self.process.at(ScriptPlace::Exchange, begin.step);
        if !account.ready_us.is_empty() {
            self.ready_us.clone_from(&account.ready_us);
        }
        Ok(Some(self.account(&account, clock, false)))
    }

    fn settled(&mut self, step: u64, next: AfterStep) -> Result<(), TrainError> {
        let scale = if let AfterStep::Next(scale) = next { self.scale(scale) } else { 1.0 };
        if let Waits::Settled(_) = self.waits {
            self.process.at(ScriptPlace::Settled, step);
            let save = next == AfterStep::Pause;
            self.say(&RankMessage::Settled { step, over: false, save, scale })?;
            self.waits = Waits::Nothing;
        }
        if next == AfterStep::End {
            self.say(&RankMessage::Over)?;
        }
        Ok(())
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
            Waits::Start => self.say(&RankMessage::Start { step: self.step, scale: 1.0, kept: &[] })?,
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
}
