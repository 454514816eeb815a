//! What a rank lets be recorded of itself: a row per step, and its links and messages when somebody asks.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_protocol::{Rank, Tag, WorkKind};
use paceline_record::metric::{LinkReading, TcpReading};
use paceline_record::process::{CoreWait, monotonic_ns};
use paceline_record::{NOBODY, Observer, StepRow, TraceKind, TraceRow};
use paceline_wire::{Traffic, Transport};

use crate::clock::{Clock, Phase};
use crate::engine::{StagePass, Times};

/// Watches an engine's links and messages.
pub struct Watch {
    observer: Arc<Observer>,
    /// Messages sent to and received from each rank.
    counts: Vec<[u64; 2]>,
    /// The least time of an empty message to each rank and back, in seconds.
    round_trips: Vec<Option<f64>>,
    /// The member of each rank, where members change; and what went over connections that were given up, by member.
    members: Vec<Rank>,
    before: Vec<Traffic>,
}

impl Watch {
    /// Tells `observer` of a rank among `world`.
    pub fn new(observer: Arc<Observer>, world: usize) -> Self {
        let (members, before) = (Vec::new(), Vec::new());
        Self { observer, counts: vec![[0; 2]; world], round_trips: vec![None; world], members, before }
    }

    /// An empty message has come back.
    pub fn round_trip(&mut self, peer: Rank, took: Duration) {
        let peer = self.member(peer);
        let least = self.round_trips[peer].map_or(f64::INFINITY, |known| known);
        self.round_trips[peer] = Some(least.min(took.as_secs_f64()));
    }

    /// The member that a rank is.
    fn member(&self, rank: Rank) -> Rank {
        self.members.get(rank).copied().unwrap_or(rank)
    }

    /// Says which member each rank is from now on, of `most` in all: the connections are new ones.
    pub fn regroup(&mut self, members: &[Rank], most: usize) {
        self.members = members.to_vec();
        self.round_trips.resize(most, None);
        self.counts.resize(most, [0; 2]);
        self.before.resize(most, Traffic::default());
    }

    /// Notes what went over connections that are given up.
    pub fn keep(&mut self, links: &[Rank], transport: &dyn Transport) {
        for &peer in links {
            let (member, Some(t)) = (self.member(peer), transport.traffic().get(peer)) else { continue };
            if let Some(before) = self.before.get_mut(member) {
                before.sent_bytes += t.sent_bytes;
                before.sent_messages += t.sent_messages;
                before.received_bytes += t.received_bytes;
                before.received_messages += t.received_messages;
            }
        }
    }

    /// Answers how the links are, if somebody has asked.
    pub fn links(&self, links: &[Rank], transport: &dyn Transport) {
        if self.observer.asked() {
            self.publish(links, transport);
        }
    }

    /// Tells how the links are.
    pub fn publish(&self, links: &[Rank], transport: &dyn Transport) {
        let traffic = transport.traffic();
        self.observer.publish(links.iter().filter_map(|&peer| {
            let (t, member) = (traffic.get(peer)?, self.member(peer));
            let before = self.before.get(member).copied().unwrap_or_default();
            let tcp = transport.kernel(peer).map(|view| TcpReading {
                round_trip_s: f64::from(view.round_trip_us) * 1e-6,
                retransmits: view.retransmits.into(),
                window_bytes: view.window_bytes,
            });
            let reading = LinkReading {
                sent_bytes: before.sent_bytes + t.sent_bytes,
                sent_messages: before.sent_messages + t.sent_messages,
                received_bytes: before.received_bytes + t.received_bytes,
                received_messages: before.received_messages + t.received_messages,
                tcp,
                greeting_s: self.round_trips[member],
            };
            Some((member, reading))
        }));
    }

    /// A message was sent or received.
    pub fn message(&mut self, kind: TraceKind, peer: Rank, tag: Tag, elements: usize) {
        let Tag { step, bucket, phase, .. } = tag;
        let count = &mut self.counts[peer][kind as usize];
        let n = *count;
        *count += 1;
        if self.observer.traces() {
            self.observer.trace(TraceRow {
                kind,
                at_ns: monotonic_ns(),
                peer: peer as u64,
                n,
                step: step.into(),
                bucket: bucket.into(),
                phase: phase.into(),
                bytes: 4 * elements as u64,
                duration_ns: 0,
            });
        }
    }

    /// A pass through the rank's stage is over.
    pub fn pass(&self, step: u64, pass: &StagePass, duration: Duration) {
        if self.observer.traces() {
            let duration_ns = duration.as_nanos() as u64;
            self.observer.trace(TraceRow {
                kind: match pass.work.kind {
                    WorkKind::Forward => TraceKind::Forward,
                    WorkKind::Backward => TraceKind::Backward,
                },
                at_ns: monotonic_ns().saturating_sub(duration_ns),
                peer: NOBODY,
                step,
                bucket: pass.work.micro as u64,
                phase: pass.slot as u64,
                duration_ns,
                ..TraceRow::default()
            });
        }
    }

    /// The rank had to wait.
    pub fn wait(&self, step: u64, peer: Option<Rank>, since: Instant, duration: Duration) {
        if self.observer.traces() {
            let at_ns = monotonic_ns().saturating_sub(since.elapsed().as_nanos() as u64);
            self.observer.trace(TraceRow {
                kind: TraceKind::Wait,
                at_ns,
                peer: peer.map_or(NOBODY, |peer| peer as u64),
                // Waits are told apart by their time.
                n: 0,
                step,
                duration_ns: duration.as_nanos() as u64,
                ..TraceRow::default()
            });
        }
    }
}

/// Turns clocks that only run into the times of single steps.
pub struct Steps {
    core_wait: CoreWait,
    /// At the beginning of the pass under way.
    pass_began: Option<u64>,
    /// Nanoseconds without a core in the passes of the step under way.
    without_core: Option<u64>,
    began: Moment,
}

/// The clocks at a moment.
struct Moment {
    at_ns: u64,
    clock: [Duration; 4],
    times: Times,
}

/// The phases of the clock that steps tell of.
const PHASES: [Phase; 4] = [Phase::Data, Phase::Forward, Phase::Backward, Phase::Apply];

impl Steps {
    /// The first step of the calling thread begins now.
    pub fn begin(clock: &Clock, times: &Times) -> Self {
        let (core_wait, began) = (CoreWait::of_this_thread(), Moment::now(clock, times));
        Self { core_wait, pass_began: None, without_core: None, began }
    }

    /// A pass begins: until it ends, time without a core counts. (Who waits for messages gives its core away.)
    pub fn pass_begins(&mut self) {
        self.pass_began = self.core_wait.ns();
    }

    /// It ends.
    pub fn pass_ends(&mut self) {
        if let Some((began, now)) = self.pass_began.take().zip(self.core_wait.ns()) {
            self.without_core = Some(self.without_core.unwrap_or(0) + now.saturating_sub(began));
        }
    }

    /// Nanoseconds that were spent on waiting for these ranks in the step that ends now.
    pub fn waited(&self, times: &Times, ranks: Range<Rank>) -> u64 {
        let waits = times.wait_for.iter().zip(&self.began.times.wait_for).skip(ranks.start).take(ranks.len());
        waits.map(|(now, began)| now.saturating_sub(*began).as_nanos() as u64).sum()
    }

    /// A step (or some updates) ends now: what it took since the last one.
    pub fn end(&mut self, step: u64, clock: &Clock, times: &Times) -> StepRow {
        let now = Moment::now(clock, times);
        let began = &self.began;
        let ns = |d: Duration| d.as_nanos() as u64;
        // A phase can lose what is counted elsewhere afterwards.
        let spent = |i: usize| ns(now.clock[i].saturating_sub(began.clock[i]));
        let since = |of: fn(&Times) -> Duration| ns(of(times).saturating_sub(of(&began.times)));
        let waits = times.wait_for.iter().zip(&began.times.wait_for).map(|(a, b)| a.saturating_sub(*b));
        let longest = waits.enumerate().max_by_key(|(_, wait)| *wait).filter(|(_, wait)| !wait.is_zero());
        let row = StepRow {
            step,
            begin_ns: began.at_ns,
            data_ns: spent(0),
            forward_ns: spent(1),
            backward_ns: spent(2),
            send_ns: since(|t| t.send),
            wait_ns: since(|t| t.wait),
            wait_for: longest.map(|(rank, _)| rank as u64),
            apply_ns: since(|t| t.apply) + spent(3),
            codec_ns: since(|t| t.codec),
            core_wait_ns: self.without_core.take(),
            loss: f64::NAN,
            ..StepRow::default()
        };
        self.began = now;
        row
    }

    /// What has passed since the last step belongs to no step (an evaluation).
    pub fn skip(&mut self, clock: &Clock, times: &Times) {
        (self.began, self.without_core) = (Moment::now(clock, times), None);
    }
}

impl Moment {
    fn now(clock: &Clock, times: &Times) -> Self {
        Self { at_ns: monotonic_ns(), clock: PHASES.map(|p| clock.spent()[p as usize]), times: times.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_the_clocks_ran_since_the_last_one() {
        let clock = Clock::default();
        let mut times = Times { wait_for: vec![Duration::ZERO; 3], ..Times::default() };
        let mut steps = Steps::begin(&clock, &times);
        let first = steps.end(1, &clock, &times);
        assert_eq!((first.wait_for, first.duration_ns()), (None, 0));
        times.wait += Duration::from_nanos(70);
        times.wait_for[1] += Duration::from_nanos(20);
        times.wait_for[2] += Duration::from_nanos(50);
        times.send += Duration::from_nanos(5);
        let second = steps.end(2, &clock, &times);
        assert_eq!((second.wait_ns, second.wait_for, second.send_ns), (70, Some(2), 5));
        assert!(second.begin_ns >= first.begin_ns);
        times.wait += Duration::from_nanos(1000);
        steps.skip(&clock, &times);
        assert_eq!(steps.end(3, &clock, &times).wait_ns, 0);
    }
}
