//! What a participant did, in a form that can be compared between drivers: for each link and bucket, and
//! for each place of the flat buffer, the sequence of actions. Arrivals may interleave differently across
//! buckets; within one, a deterministic strategy does the same everywhere.

use std::collections::BTreeMap;

use crate::codec::Accumulate;
use crate::vocabulary::{Action, Buf, Rank, Region, Tag};
use crate::work::Work;

/// What a sequence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceSubject {
    /// Messages of a bucket to a rank, from one position to another.
    Link(Rank, u32, (u8, u8)),
    /// Computations on a place of the flat buffers (0), of a scratch buffer (from 1), of what a crossing carries (from 2^14), or of
    /// a further position's gradients (from the largest number down).
    Place(u16, usize),
    /// Passes through the rank's stage.
    Passes,
}

/// One action, without what only the driver chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TracedAction {
    /// Sent a region under a tag.
    Sent(Tag, Option<Region>),
    /// Added something of this length.
    Reduced(Region),
    Copied(Region),
    Mixed(Region, f32, f32),
    Scaled(Region, f32),
    Encoded(Region),
    Decoded(Region, Accumulate),
    Multiplied(Region),
    Orthonormalised(Region),
    /// Updated parameters, at the rate of this step.
    Applied(Region, u64),
    /// Passed a micro-batch through the stage, in a slot.
    Passed(Work, usize),
}

/// The sequences of one participant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace(pub BTreeMap<TraceSubject, Vec<TracedAction>>);

impl Trace {
    /// Notes an action; what is no communication or computation is passed over.
    pub fn note(&mut self, action: &Action) {
        let (place, did) = match *action {
            Action::Send { to, tag, head, src, .. } => {
                self.add(TraceSubject::Link(to, tag.bucket, head.of), TracedAction::Sent(tag, src));
                return;
            }
            Action::Run { work, slot, .. } => {
                self.add(TraceSubject::Passes, TracedAction::Passed(work, slot));
                return;
            }
            Action::Reduce { dst, .. } => (dst, TracedAction::Reduced(dst)),
            // Copies for answers are made when somebody asks.
            Action::Copy {
                dst: Region { buf: Buf::Scratch(_), .. },
                src: Region { buf: Buf::Param, .. },
            } => return,
            Action::Copy { dst, .. } => (dst, TracedAction::Copied(dst)),
            Action::Mix { dst, keep, add, .. } => (dst, TracedAction::Mixed(dst, keep, add)),
            Action::Scale { dst, by } => (dst, TracedAction::Scaled(dst, by)),
            Action::Encode { dst, .. } => (dst, TracedAction::Encoded(dst)),
            Action::Decode { dst, into, .. } => (dst, TracedAction::Decoded(dst, into)),
            Action::MatMul { dst, .. } => (dst.region, TracedAction::Multiplied(dst.region)),
            Action::Orthonormalise(matrix) => (matrix.region, TracedAction::Orthonormalised(matrix.region)),
            Action::Apply { params, step, .. } => (params, TracedAction::Applied(params, step)),
            _ => return,
        };
        // Regions without elements share their place with a neighbour.
        if place.len > 0 {
            self.add(TraceSubject::Place(buffer(place.buf), place.offset), did);
        }
    }

    fn add(&mut self, subject: TraceSubject, did: TracedAction) {
        self.0.entry(subject).or_default().push(did);
    }
}

/// The number of the first crossing's values.
const CROSSINGS: u16 = 1 << 14;

/// A buffer's number. What happens in the flat buffers is told by place alone: an update follows its sum.
fn buffer(buf: Buf) -> u16 {
    match buf {
        Buf::Param | Buf::Grad | Buf::Optimiser(_) | Buf::Msg(_) => 0,
        Buf::Scratch(n) => n + 1,
        Buf::Value(n) => CROSSINGS + 2 * n,
        Buf::Slope(n) => CROSSINGS + 2 * n + 1,
        Buf::HostedGrad(n) => u16::MAX - n,
    }
}
