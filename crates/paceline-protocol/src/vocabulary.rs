//! What strategies and drivers speak.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::codec::{Accumulate, Coder};
use crate::work::Work;

/// A process of a run: workers first, then servers.
pub type Rank = usize;

/// Nanoseconds of the driver's clock.
pub type Time = u64;

/// An operation that the driver will report as [`Input::Done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// A received body that the driver keeps until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MsgId(pub u32);

/// A buffer of a participant, owned by its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buf {
    /// Parameters.
    Param,
    /// Gradients, laid out like the parameters. Of a rank with several positions: those of the first.
    Grad,
    /// The gradients of a further position of the rank, counted from 1.
    HostedGrad(u16),
    /// What the strategy asked for in [`Participant::scratch`].
    Scratch(u16),
    /// A block of the optimiser's memory, laid out like the parameters: only handed over to ranks that join.
    Optimiser(u16),
    /// What crossing `n` of this rank's stage carries forward ([`crate::Stage::crossings`]): a region of
    /// [`crate::StageSetup::room`] elements for each slot, one behind the other.
    Value(u16),
    /// The gradients that come back over crossing `n`, laid out like its values.
    Slope(u16),
    /// A received body; offsets count from its start.
    Msg(MsgId),
}

/// Elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The buffer.
    pub buf: Buf,
    /// First element.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

impl Region {
    /// A range of a buffer.
    pub fn new(buf: Buf, range: Range<usize>) -> Self {
        Self { buf, offset: range.start, len: range.len() }
    }

    /// Whether both have some element.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.range(), other.range());
        self.buf == other.buf && a.start < b.end && b.start < a.end
    }

    /// The elements.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// What a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// Fences ranks that were declared dead: messages of another generation are dropped.
    pub generation: u32,
    /// The sender's step.
    pub step: u32,
    /// The lane (or part) of the flat buffer.
    pub bucket: u32,
    /// Round of a schedule, or kind of message.
    pub phase: u32,
}

/// The phase of a message without a body that says "your messages of that step were taken", by which a sender that
/// nobody else holds back does not fill its receiver's memory.
pub const TAKEN: u32 = u32::MAX - 64;

/// The few numbers that travel with a message.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MessageHead {
    /// Version of the parameters: read (worker to server) or sent (server to worker).
    pub version: u64,
    /// The unit of work that a gradient comes from, or that is granted next.
    pub unit: u64,
    /// Whether that unit is part of a synchronous step.
    pub together: bool,
    /// How busy the sender is.
    pub load: WorkerLoad,
    /// Which of the sender's positions it comes from, and for which of the receiver's it is.
    pub of: (u8, u8),
}

/// How busy a worker was in its last step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerLoad {
    /// The fraction of a core that it had while it computed.
    pub cpu: f32,
    /// Seconds that it computed.
    pub step_s: f32,
}

/// A piece of the run's work: one worker's share of one global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkUnit {
    /// The global batch.
    pub step: u64,
    /// Which worker's share of it.
    pub share: usize,
}

/// How a worker's gradient is weighted by samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientScale {
    /// Its part of the mean over the whole global batch: the workers' gradients add up to that mean.
    Part,
    /// The mean over its own samples.
    Own,
    /// p times its part: the *mean* of the workers' gradients is the mean over the global batch. For
    /// strategies that update first and then average weights evenly.
    Even,
}

/// A matrix in a buffer, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Its elements.
    pub region: Region,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// What a driver tells a participant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input {
    /// The run begins, or goes on at [`crate::Setup::from`].
    Start,
    /// Every gradient at or behind this offset is final.
    GradReady {
        /// First final element.
        from: usize,
    },
    /// The backward pass is over: all gradients are final.
    BackwardDone,
    /// A message has arrived.
    Message {
        /// Sender.
        from: Rank,
        /// What it belongs to.
        tag: Tag,
        /// Its numbers.
        head: MessageHead,
        /// Its body, to be released.
        body: Option<MsgId>,
    },
    /// A send is over: its region may be written again.
    Done(OpId),
    /// A pass through a stage is over ([`Action::Run`]). Of the last micro-batch's backward pass this comes after its
    /// [`Input::GradReady`] and before [`Input::Load`] and [`Input::BackwardDone`].
    Ran(OpId),
    /// How busy this worker was, for strategies that adapt; told before [`Input::BackwardDone`].
    Load(WorkerLoad),
    /// A rank is gone for good.
    Lost(Rank),
    /// End the run before this step, or as soon after it as everybody can stop together. Workers without
    /// servers must all be told the same step, before any of them begins it; servers decide by themselves.
    StopAt(u64),
    /// This worker has run out of work: the step that it was asked for will not be computed, and the run ends
    /// before that step for everybody.
    Leave,
    /// This worker has run out of work: where the others can do without it they go on, elsewhere it leaves.
    RunOut,
    /// To a participant that has ended because a rank was lost: make the update that it has put off, if it is that of
    /// the step before this one.
    Commit(u64),
}

/// How a participant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All work is done.
    Completed,
    /// It cannot go on without this rank.
    Lost(Rank),
    /// A worker has run out of work, which ended the run before a step.
    Left {
        /// Who.
        worker: Rank,
        /// The step that it did not compute, in its own count.
        before: u64,
    },
}

/// What a participant asks of its driver. Computations are done in the order in which they are asked for,
/// before anything that follows them; only sends go on beside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Send a message; `Done(op)` when the region may be written again.
    Send {
        /// Reported when done.
        op: OpId,
        /// Receiver.
        to: Rank,
        /// What it belongs to.
        tag: Tag,
        /// Its numbers.
        head: MessageHead,
        /// Its body.
        src: Option<Region>,
    },
    /// `dst += src`.
    Reduce {
        /// Changed.
        dst: Region,
        /// Added.
        src: Region,
    },
    /// `dst = src`.
    Copy {
        /// Changed.
        dst: Region,
        /// Read.
        src: Region,
    },
    /// `dst = keep·dst + add·src`.
    Mix {
        /// Changed.
        dst: Region,
        /// What remains of it.
        keep: f32,
        /// Read.
        src: Region,
        /// How much of it is added.
        add: f32,
    },
    /// `dst = by·dst`.
    Scale {
        /// Changed.
        dst: Region,
        /// The factor.
        by: f32,
    },
    /// Fills a region with standard normal numbers, the same for the same key on every rank.
    Randomise {
        /// Changed.
        dst: Region,
        /// Which numbers.
        key: u64,
    },
    /// Writes the code of `src`.
    Encode {
        /// How.
        coder: Coder,
        /// The code.
        dst: Region,
        /// What is encoded.
        src: Region,
        /// Whether `src` keeps what the code does not say (error feedback) instead of itself.
        feedback: bool,
    },
    /// Puts decoded values into `dst`.
    Decode {
        /// How.
        coder: Coder,
        /// Changed.
        dst: Region,
        /// The code.
        src: Region,
        /// Whether they replace what is there, or are added to it.
        into: Accumulate,
    },
    /// `dst = a·b`; the first factor may be stored transposed, or the second.
    MatMul {
        /// Changed.
        dst: Matrix,
        /// First factor, as stored.
        a: Matrix,
        /// Second factor, as stored.
        b: Matrix,
        /// Which of them is stored transposed.
        transposed: Transposed,
    },
    /// Makes a matrix's columns orthonormal.
    Orthonormalise(Matrix),
    /// Update the parameters of a range with a gradient, at the learning rate of global step `step`.
    Apply {
        /// Parameters.
        params: Region,
        /// Their gradient.
        grad: Region,
        /// The global step that the rate belongs to.
        step: u64,
        /// Whether this is the update of a whole global batch, whose rate follows the number of workers if
        /// the plan says so.
        whole: bool,
    },
    /// The body is not needed any more.
    Release(MsgId),
    /// Compute the gradient of a unit of work. In a run with stages: the unit is begun, and its passes are asked for one by
    /// one ([`Action::Run`]).
    BeginStep {
        /// This worker's step.
        step: u64,
        /// The work.
        unit: WorkUnit,
        /// How its gradient is weighted.
        scale: GradientScale,
    },
    /// Pass a micro-batch of the step that has begun through this rank's stage; `Ran(op)` when that is done. No other
    /// pass is asked for before. What goes in lies in [`Buf::Value`] (forward) or [`Buf::Slope`] (backward) of the slot;
    /// what comes out lies there afterwards. Until `Ran(op)` nothing else changes values or slopes; sends may read those
    /// of other slots. The last micro-batch's backward pass announces gradients, as that of an unstaged step does.
    Run {
        /// Reported when done.
        op: OpId,
        /// The work: its stage is this rank's.
        work: Work,
        /// The place of the micro-batch's values from its forward to its backward pass.
        slot: usize,
    },
    /// Nothing can be done before this rank sends something.
    WaitingFor(Rank),
    /// An update was computed from parameters this many versions old.
    Staleness(u64),
    /// The participant is finished.
    Finish(Outcome),
}

impl Action {
    /// Takes a received body into a region, as it is or decoded.
    pub fn take(coder: Option<Coder>, dst: Region, msg: MsgId, into: Accumulate) -> Self {
        let len = coder.map_or(dst.len, |coder| coder.words(dst.len));
        let src = Region { buf: Buf::Msg(msg), offset: 0, len };
        match (coder, into) {
            (Some(coder), into) => Self::Decode { coder, dst, src, into },
            (None, Accumulate::Set) => Self::Copy { dst, src },
            (None, Accumulate::Add) => Self::Reduce { dst, src },
            (None, Accumulate::Subtract) => Self::Mix { dst, keep: 1.0, src, add: -1.0 },
        }
    }

    /// Whether it makes a message shorter, or takes a shorter one apart.
    pub fn is_codec(&self) -> bool {
        matches!(
            self,
            Self::Encode { .. } | Self::Decode { .. } | Self::MatMul { .. } | Self::Orthonormalise(_)
        )
    }

    /// The regions that it changes.
    pub fn changes(&self) -> [Option<Region>; 2] {
        match *self {
            Self::Encode { dst, src, feedback, .. } => [Some(dst), feedback.then_some(src)],
            Self::Send { .. } => [None; 2],
            _ => [self.regions()[0], None],
        }
    }

    /// The regions that it reads or changes.
    pub fn regions(&self) -> [Option<Region>; 3] {
        match *self {
            Self::Send { src, .. } => [src, None, None],
            Self::Reduce { dst, src }
            | Self::Copy { dst, src }
            | Self::Mix { dst, src, .. }
            | Self::Encode { dst, src, .. }
            | Self::Decode { dst, src, .. } => [Some(dst), Some(src), None],
            Self::Scale { dst, .. } | Self::Randomise { dst, .. } => [Some(dst), None, None],
            Self::MatMul { dst, a, b, .. } => [Some(dst.region), Some(a.region), Some(b.region)],
            Self::Orthonormalise(matrix) => [Some(matrix.region), None, None],
            Self::Apply { params, grad, .. } => [Some(params), Some(grad), None],
            Self::Release(_)
            | Self::BeginStep { .. }
            | Self::Run { .. }
            | Self::WaitingFor(_)
            | Self::Staleness(_)
            | Self::Finish(_) => [None; 3],
        }
    }
}

impl Action {
    /// The same action on other regions.
    pub(crate) fn on_regions(mut self, other: impl Fn(Region) -> Region) -> Self {
        match &mut self {
            Self::Send { src, .. } => *src = src.map(other),
            Self::Reduce { dst, src }
            | Self::Copy { dst, src }
            | Self::Mix { dst, src, .. }
            | Self::Encode { dst, src, .. }
            | Self::Decode { dst, src, .. }
            | Self::Apply { params: dst, grad: src, .. } => (*dst, *src) = (other(*dst), other(*src)),
            Self::Scale { dst, .. } | Self::Randomise { dst, .. } => *dst = other(*dst),
            Self::MatMul { dst, a, b, .. } => {
                [dst, a, b].into_iter().for_each(|matrix| matrix.region = other(matrix.region));
            }
            Self::Orthonormalise(matrix) => matrix.region = other(matrix.region),
            Self::Release(_)
            | Self::BeginStep { .. }
            | Self::Run { .. }
            | Self::WaitingFor(_)
            | Self::Staleness(_)
            | Self::Finish(_) => {}
        }
        self
    }
}

/// Which factor of a product is stored transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transposed {
    /// Neither.
    None,
    /// The first.
    First,
    /// The second.
    Second,
}

/// Actions, in order.
#[derive(Debug, Default)]
pub struct Actions {
    list: Vec<Action>,
    next_op: u64,
}

impl Actions {
    /// Asks for a computation or tells something.
    pub fn push(&mut self, action: Action) {
        self.list.push(action);
    }

    /// Asks for a send.
    pub fn send(&mut self, to: Rank, tag: Tag, head: MessageHead, src: Option<Region>) -> OpId {
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.list.push(Action::Send { op, to, tag, head, src });
        op
    }

    /// Asks for a pass through a stage.
    pub fn run(&mut self, work: Work, slot: usize) -> OpId {
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.list.push(Action::Run { op, work, slot });
        op
    }

    /// What was asked for so far.
    pub(crate) fn list(&self) -> &[Action] {
        &self.list
    }

    /// Changes what was asked for since there were `from` actions; those for which there is no other go.
    pub(crate) fn rewrite(&mut self, from: usize, mut other: impl FnMut(Action) -> Option<Action>) {
        let mut kept = from;
        for i in from..self.list.len() {
            if let Some(action) = other(self.list[i]) {
                self.list[kept] = action;
                kept += 1;
            }
        }
        self.list.truncate(kept);
    }

    /// Takes what was asked for, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Action> + '_ {
        self.list.drain(..)
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// One rank's part in a strategy. It has no state at the end of a run that another one, made to go on from there,
/// would need; what lies in its scratch buffers is the driver's to keep.
pub trait Participant: Send {
    /// Takes an input and answers with actions.
    fn on(&mut self, now: Time, input: Input, out: &mut Actions);

    /// Whether the others can go on without this worker: then [`Input::RunOut`] comes to it.
    fn goes_alone(&self) -> bool {
        false
    }

    /// Lengths of the scratch buffers it needs.
    fn scratch(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Where this rank's parameters stand, in a run whose members may change.
    fn standing(&self) -> RankStanding {
        RankStanding::default()
    }
}

/// Where a rank's parameters stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStanding {
    /// Steps whose update was made: of a worker.
    pub at: u64,
    /// Whether the next one's update is complete and put off.
    pub ready: bool,
    /// Whether the worker's parameters are its own: others may stand elsewhere.
    pub own: bool,
    /// Of a server: the updates made to each part that it holds.
    pub parts: Vec<PartStanding>,
    /// Ranges that it was to be handed and does not have yet.
    pub missing: Vec<Range<usize>>,
}

/// Where a part of a server's parameters stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartStanding {
    /// Its number among all parts.
    pub part: u32,
    /// Its elements in the flat buffer.
    pub range: Range<usize>,
    /// Updates made to it: of steps that all make together; else of units of work, those below this number.
    pub made: u64,
    /// The units below that number that it lacks, in rising order.
    pub lacks: Vec<u64>,
}

impl PartStanding {
    /// Whether it has the update of a unit.
    pub fn has(&self, unit: u64) -> bool {
        unit < self.made && self.lacks.binary_search(&unit).is_err()
    }

    /// Notes the update of a unit.
    pub fn note(&mut self, unit: u64) {
        if unit >= self.made {
            self.lacks.extend(self.made..unit);
            self.made = unit + 1;
        } else if let Ok(at) = self.lacks.binary_search(&unit) {
            self.lacks.remove(at);
        }
    }

    /// Updates made to it.
    pub fn updates(&self) -> u64 {
        self.made - self.lacks.len() as u64
    }

    /// The first unit that it lacks.
    pub fn first_missing(&self) -> u64 {
        self.lacks.first().copied().unwrap_or(self.made)
    }
}
