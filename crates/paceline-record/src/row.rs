//! The dense part of a run's record: one row per step, sample or traced message, shipped in batches.

use serde::{Deserialize, Serialize};

use crate::site::RunEnvironment;

/// One step of a worker, or the updates that a server has applied since its last row.
///
/// Times are in nanoseconds; a moment is one of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepRow {
    /// The worker's steps so far, this one included; a server's updates so far.
    pub step: u64,
    /// When it began.
    pub begin_ns: u64,
    /// Gathering and normalising the batch.
    pub data_ns: u64,
    /// Forward pass and loss.
    pub forward_ns: u64,
    /// Backward pass, without what was exchanged meanwhile.
    pub backward_ns: u64,
    /// The part of `send_ns` that happened during backward.
    pub overlap_ns: u64,
    /// Sending, receiving and summing.
    pub send_ns: u64,
    /// Waiting with nothing to do.
    pub wait_ns: u64,
    /// The rank that was waited for the longest.
    pub wait_for: Option<u64>,
    /// Updating parameters.
    pub apply_ns: u64,
    /// Making messages shorter and taking them apart again: a part of `send_ns` and `wait_ns`.
    pub codec_ns: u64,
    /// Time of the passes in which the thread that trains was ready to run and had no core: a part of `data_ns`,
    /// `forward_ns` and `backward_ns`; none where the kernel does not say.
    pub core_wait_ns: Option<u64>,
    /// Samples of this rank's share.
    pub samples: u64,
    /// Mean loss over them; NaN where there is none.
    pub loss: f64,
    /// Largest number of versions between reading and writing of these updates (servers).
    pub staleness: Option<u64>,
    /// What a stage of a network did, where it is cut into stages.
    pub stage: Option<StageRow>,
}

/// What a stage did in a step. What is left of `wait_ns` was spent on averaging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageRow {
    /// Waiting for values of earlier stages: a part of `wait_ns`.
    pub wait_up_ns: u64,
    /// Waiting for gradients of later stages: a part of `wait_ns`.
    pub wait_down_ns: u64,
    /// Most micro-batches that were between their forward and their backward pass at once.
    pub live_slots: u64,
    /// Bytes that their values took, besides those that go over cuts, and what layers keep of them.
    pub activation_bytes: u64,
}

/// Words of a step on its way.
const STEP: usize = 19;

impl StepRow {
    fn words(&self) -> [u64; STEP] {
        let some = |n: Option<u64>| n.map_or(0, |n| n + 1);
        [
            self.step,
            self.begin_ns,
            self.data_ns,
            self.forward_ns,
            self.backward_ns,
            self.overlap_ns,
            self.send_ns,
            self.wait_ns,
            some(self.wait_for),
            self.apply_ns,
            self.samples,
            self.loss.to_bits(),
            some(self.staleness),
            self.codec_ns,
            some(self.core_wait_ns),
            some(self.stage.map(|stage| stage.wait_up_ns)),
            some(self.stage.map(|stage| stage.wait_down_ns)),
            some(self.stage.map(|stage| stage.live_slots)),
            some(self.stage.map(|stage| stage.activation_bytes)),
        ]
    }

    fn of(w: &[u64; STEP]) -> Self {
        Self {
            step: w[0],
            begin_ns: w[1],
            data_ns: w[2],
            forward_ns: w[3],
            backward_ns: w[4],
            overlap_ns: w[5],
            send_ns: w[6],
            wait_ns: w[7],
            wait_for: w[8].checked_sub(1),
            apply_ns: w[9],
            samples: w[10],
            loss: f64::from_bits(w[11]),
            staleness: w[12].checked_sub(1),
            codec_ns: w[13],
            core_wait_ns: w[14].checked_sub(1),
            stage: w[15].checked_sub(1).map(|wait_up_ns| StageRow {
                wait_up_ns,
                wait_down_ns: w[16].saturating_sub(1),
                live_slots: w[17].saturating_sub(1),
                activation_bytes: w[18].saturating_sub(1),
            }),
        }
    }

    /// From its beginning to its end, in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.data_ns + self.forward_ns + self.backward_ns + self.send_ns + self.wait_ns + self.apply_ns
    }
}

/// What a traced row tells of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceKind {
    /// A message was handed to the transport.
    #[default]
    Send,
    /// A message was taken from the transport.
    Receive,
    /// The rank had nothing to do but to wait.
    Wait,
    /// The forward pass of a micro-batch through a stage.
    Forward,
    /// Its backward pass.
    Backward,
}

impl TraceKind {
    /// All of them, by their number on the way.
    pub const ALL: [Self; 5] = [Self::Send, Self::Receive, Self::Wait, Self::Forward, Self::Backward];

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Wait => "wait",
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

/// The peer of a wait for nobody in particular; in the store it is -1.
pub const NOBODY: u64 = u64::MAX;

/// One message, one wait, or one pass through a stage, of a run with `--trace`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceRow {
    /// What it is.
    pub kind: TraceKind,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The other side, or who was waited for ([`NOBODY`] in particular).
    pub peer: u64,
    /// Which message it is of all on this link in this direction, from 0: the n-th that one side sends is the
    /// n-th that the other receives.
    pub n: u64,
    /// The message's step.
    pub step: u64,
    /// The message's bucket, or the pass's micro-batch.
    pub bucket: u64,
    /// The message's phase, or the pass's slot.
    pub phase: u64,
    /// Bytes of its body.
    pub bytes: u64,
    /// How long the wait or the pass was, in nanoseconds.
    pub duration_ns: u64,
}

/// Words of a traced row on its way.
const TRACE: usize = 9;

impl TraceRow {
    fn words(&self) -> [u64; TRACE] {
        let Self { kind, at_ns, peer, n, step, bucket, phase, bytes, duration_ns } = *self;
        [kind as u64, at_ns, peer, n, step, bucket, phase, bytes, duration_ns]
    }

    fn of(w: &[u64; TRACE]) -> Self {
        let [kind, at_ns, peer, n, step, bucket, phase, bytes, duration_ns] = *w;
        let kind = TraceKind::ALL.get(kind as usize).copied().unwrap_or_default();
        Self { kind, at_ns, peer, n, step, bucket, phase, bytes, duration_ns }
    }
}

/// Values in the order of a registry.
pub type Values = Vec<Option<f64>>;

/// What was sampled at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankSample {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The process ([`crate::metric::PROCESS`]); empty where another rank tells of it.
    pub process: Values,
    /// Links by peer ([`crate::metric::LINK`]), each with the moment of its own.
    pub links: Vec<(usize, u64, Values)>,
    /// The machine ([`crate::metric::HOST`]); empty where another rank tells of it.
    pub host: Values,
    /// Its interfaces by name ([`crate::metric::INTERFACE`]).
    pub interfaces: Vec<(String, Values)>,
    /// Its GPUs by number ([`crate::metric::GPU`]).
    #[serde(default)]
    pub gpus: Vec<(String, Values)>,
}

/// What a rank ships at once. As a document it leaves out the rows of steps and traces: those travel as numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    /// Where the rank runs; in its first batch.
    pub site: Option<Box<RunEnvironment>>,
    /// Samples.
    pub samples: Vec<RankSample>,
    /// Steps.
    #[serde(skip)]
    pub steps: Vec<StepRow>,
    /// Messages and waits.
    #[serde(skip)]
    pub trace: Vec<TraceRow>,
    /// Rows that this rank had no room for, from its start.
    pub dropped: u64,
}

impl Batch {
    /// Rows of all kinds.
    pub fn rows(&self) -> usize {
        self.samples.len() + self.steps.len() + self.trace.len()
    }

    /// Steps and traces as numbers: 64-bit words in halves, whose bits are all that counts.
    pub fn numbers(&self) -> Vec<f32> {
        let words = 1 + self.steps.len() * STEP + self.trace.len() * TRACE;
        let mut numbers = Vec::with_capacity(2 * words);
        let mut put = |word: u64| {
            numbers.push(f32::from_bits(word as u32));
            numbers.push(f32::from_bits((word >> 32) as u32));
        };
        put(self.steps.len() as u64);
        self.steps.iter().flat_map(StepRow::words).for_each(&mut put);
        self.trace.iter().flat_map(TraceRow::words).for_each(&mut put);
        numbers
    }

    /// Puts the rows back that [`Batch::numbers`] gave; what is cut off is left out.
    pub fn with_numbers(mut self, numbers: &[f32]) -> Self {
        let word = |pair: &[f32; 2]| u64::from(pair[0].to_bits()) | u64::from(pair[1].to_bits()) << 32;
        let words: Vec<u64> = numbers.as_chunks().0.iter().map(word).collect();
        let Some((&steps, rest)) = words.split_first() else { return self };
        let at = (steps as usize).saturating_mul(STEP).min(rest.len());
        self.steps = rest[..at].as_chunks().0.iter().map(StepRow::of).collect();
        self.trace = rest[at..].as_chunks().0.iter().map(TraceRow::of).collect();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_survives_its_way_through_document_and_numbers() {
        let step = StepRow {
            step: u64::MAX,
            begin_ns: 1 << 50,
            wait_for: Some(0),
            loss: -0.1,
            staleness: Some(7),
            codec_ns: 3,
            core_wait_ns: Some(0),
            stage: Some(StageRow {
                wait_up_ns: 0,
                wait_down_ns: 7,
                live_slots: 3,
                activation_bytes: 1 << 40,
            }),
            // Halves that are signalling NaNs as f32.
            data_ns: 0x7fa0_0001_7fa0_0001,
            ..StepRow::default()
        };
        let trace =
            TraceRow { kind: TraceKind::Wait, at_ns: 3, peer: 1, duration_ns: 9, ..TraceRow::default() };
        let sample = RankSample { at_ns: 5, process: vec![Some(1.5), None], ..RankSample::default() };
        let batch = Batch {
            steps: vec![step, StepRow { loss: 2.5, ..StepRow::default() }],
            trace: vec![trace; 3],
            samples: vec![sample.clone()],
            dropped: 4,
            site: None,
        };
        let text = serde_json::to_string(&batch).unwrap();
        let back = serde_json::from_str::<Batch>(&text).unwrap().with_numbers(&batch.numbers());
        assert_eq!((&back.steps, &back.trace, &back.samples), (&batch.steps, &batch.trace, &vec![sample]));
        assert_eq!((back.dropped, back.rows()), (4, 6));
        let cut = Batch::default().with_numbers(&batch.numbers()[..20]);
        assert!(cut.steps.is_empty() && cut.trace.is_empty());
    }
}
