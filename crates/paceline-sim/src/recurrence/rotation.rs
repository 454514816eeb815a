//! Schedules in which every rank makes the same moves, one place further on: it hears from one rank only, and one rank
//! only hears from it.

use std::ops::Range;
use std::thread;

use paceline_protocol::setup::part;
use paceline_protocol::{
    Action, Buf, CollectiveCall, CollectivePath, Combine, Move, Piece, Rank, Region, Schedule, Setup, Time,
};

use crate::costs::{Costs, Host};

/// Moves of a lane after which it is noted when the interface is free again.
pub(super) const MARKS: usize = 16;
/// Fewer ranks are not worth a thread.
const RANKS_PER_CORE: usize = 1024;
/// Where a receive replaces nothing that was sent before.
pub(super) const NOTHING: u32 = u32::MAX;

/// A move of rank 0: those of the others are further on by their rank.
pub(super) struct Turn {
    pub(super) send: u32,
    pub(super) receive: u32,
    pub(super) combine: Combine,
    /// The mark behind the send that must have left before it receives.
    pub(super) needs: u32,
    /// The mark that is made after its send.
    pub(super) mark: u32,
}

/// A schedule that every rank follows from its own place.
pub(super) struct Rotation {
    pub(super) turns: Vec<Turn>,
    /// How far away the rank is that hears from a rank.
    pub(super) distance: usize,
}

impl Rotation {
    /// The rotation that a path is, if it is the same one for every bucket.
    pub(super) fn of(setup: &Setup, path: CollectivePath) -> Option<Self> {
        let (p, topology, paths) = (setup.workers, setup.topology(), &setup.paths[..]);
        let mut bytes: Vec<usize> =
            setup.buckets().iter().map(|bucket| bucket.len() * size_of::<f32>()).collect();
        bytes.sort_unstable();
        bytes.dedup();
        let schedule = |rank: Rank, bytes: usize| {
            (path.reduce)(rank, &CollectiveCall { topology: &topology, bytes, paths })
        };
        let first = schedule(0, *bytes.first()?);
        let distance = first.moves.first()?.send?.peer;
        let mut before = None;
        for step in &first.moves {
            let (send, receive) = (step.send?, step.receive?);
            let single = (send.count, receive.count, first.chunks) == (1, 1, p);
            let alike = (send.peer, receive.peer) == (distance, (p - distance) % p);
            if !(single && alike && before < Some(step.round)) {
                return None;
            }
            before = Some(step.round);
        }
        let all = |rank: Rank| bytes.iter().all(|bytes| turned(&first, &schedule(rank, *bytes), rank, p));
        if !everywhere(p, all) {
            return None;
        }
        let stride = first.moves.len().div_ceil(MARKS);
        let mut sent: Vec<Option<usize>> = vec![None; p];
        let mut turns = Vec::with_capacity(first.moves.len());
        for (k, step) in first.moves.iter().enumerate() {
            let (send, receive) = (step.send?, step.receive?);
            sent[send.first] = Some(k);
            let needs = sent[receive.first].map(|sent| sent.div_ceil(stride));
            if needs.is_some_and(|mark| mark * stride > k) {
                return None;
            }
            turns.push(Turn {
                send: send.first as u32,
                receive: receive.first as u32,
                combine: receive.combine,
                needs: needs.map_or(NOTHING, |mark| mark as u32),
                mark: if k % stride == 0 { (k / stride) as u32 } else { NOTHING },
            });
        }
        Some(Self { turns, distance })
    }
}

/// Whether something holds for all ranks: schedules of many thousand are long, and made on all cores.
pub(super) fn everywhere(p: usize, holds: impl Fn(Rank) -> bool + Sync) -> bool {
    let cores = thread::available_parallelism().map_or(1, usize::from).min(p.div_ceil(RANKS_PER_CORE));
    let own = &|core: usize| (core..p).step_by(cores).all(&holds);
    thread::scope(|scope| {
        let others: Vec<_> = (1..cores).map(|core| scope.spawn(move || own(core))).collect();
        own(0) && others.into_iter().all(|other| other.join().is_ok_and(|held| held))
    })
}

/// Whether a rank's schedule is the first one's, so many places further on.
fn turned(first: &Schedule, own: &Schedule, by: usize, p: usize) -> bool {
    let on = |at: usize| if at + by < p { at + by } else { at + by - p };
    let piece = |a: &Option<Piece>, b: &Option<Piece>| match (a, b) {
        (Some(a), Some(b)) => {
            (on(a.peer), on(a.first), 1, a.combine) == (b.peer, b.first, b.count, b.combine)
        }
        _ => false,
    };
    let step = |(a, b): (&Move, &Move)| {
        a.round == b.round && piece(&a.send, &b.send) && piece(&a.receive, &b.receive)
    };
    (first.chunks, first.moves.len()) == (own.chunks, own.moves.len())
        && first.moves.iter().zip(&own.moves).all(step)
}

/// What a chunk costs, in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct ChunkCosts {
    pub(super) send: u32,
    pub(super) transfer: u32,
    pub(super) add: u32,
    pub(super) replace: u32,
}

impl ChunkCosts {
    /// Of a message with so many elements; none if it takes seconds.
    pub(super) fn new(costs: &Costs, host: &Host, len: usize) -> Option<Self> {
        let work = |action: Action| (costs.work.of(&action) / host.speed) as Time;
        let bytes = costs.bytes(len);
        let handling = costs.handling(bytes, host.speed);
        let [dst, src] = [Buf::Grad, Buf::Scratch(0)].map(|buf| Region { buf, offset: 0, len });
        let small = |time: Time| u32::try_from(time).ok();
        Some(Self {
            send: small(handling)?,
            transfer: small(host.transfer(bytes))?,
            add: small(work(Action::Reduce { dst, src }) + handling)?,
            replace: small(work(Action::Copy { dst, src }) + handling)?,
        })
    }

    pub(super) fn take(self, combine: Combine) -> Time {
        match combine {
            Combine::Add => self.add.into(),
            Combine::Replace => self.replace.into(),
        }
    }
}

pub(super) struct LaneCosts {
    /// The lane's first element, and how many elements each chunk has.
    pub(super) start: usize,
    pub(super) lens: Vec<usize>,
    pub(super) chunks: Vec<ChunkCosts>,
    pub(super) apply: Time,
}

impl LaneCosts {
    /// None if a chunk takes seconds.
    pub(super) fn new(costs: &Costs, host: &Host, lane: &Range<usize>, chunks: usize) -> Option<Self> {
        let work = |action: Action| (costs.work.of(&action) / host.speed) as Time;
        let whole = Region::new(Buf::Grad, lane.clone());
        let params = Region { buf: Buf::Param, ..whole };
        let apply = work(Action::Apply { params, grad: whole, step: 0, whole: true });
        let lens: Vec<usize> = (0..chunks).map(|chunk| part(lane, chunks, chunk).len()).collect();
        let chunks = lens.iter().map(|len| ChunkCosts::new(costs, host, *len)).collect::<Option<_>>()?;
        Some(Self { start: lane.start, lens, chunks, apply })
    }
}
