//! The chain that sets the pace: from the end of the run backwards, always to what was waited for.
//!
//! A rank that waited was released by the message that came last; before that lies what its sender did, until the
//! sender itself was released. What is not on this chain could be faster without any effect.

use serde::Serialize;

use super::links::{LinkCosts, NEAR_S, pauses, was_waiting};
use super::{Message, RecordedRun};

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    pub steps: f64,
    pub seconds: f64,
    /// Computing on workers, by rank.
    pub compute: Vec<f64>,
    /// Sending, receiving, summing and updating on workers; copying and waking up for messages between them.
    pub handling: f64,
    /// The same on servers, and for messages from and to them.
    pub server: f64,
    /// Messages on thin links: what grows with bytes, queueing included.
    pub bytes: f64,
    /// Messages on their way: what does not.
    pub latency: f64,
    /// Hops from one rank to another per step.
    pub hops_per_step: f64,
}

/// The chain covers so many of a run's last steps, at most.
const STEPS: f64 = 60.0;

impl Shares {
    pub fn new(recorded: &RecordedRun, wires: &LinkCosts) -> Option<Self> {
        let pauses = pauses(recorded);
        let mut into: Vec<Vec<Message>> = vec![Vec::new(); recorded.ranks.len()];
        for m in &recorded.messages {
            into[m.to].push(*m);
        }
        into.iter_mut().for_each(|of| of.sort_by(|a, b| a.received_s.total_cmp(&b.received_s)));
        // From the last traced arrival at a worker.
        let last = recorded.messages.iter().filter(|m| recorded.ranks[m.to].worker);
        let last = last.max_by(|a, b| a.received_s.total_cmp(&b.received_s))?;
        let typical = {
            let all: Vec<f64> =
                recorded.workers().iter().flat_map(|w| recorded.steady(*w)).map(|s| s.duration_s()).collect();
            if all.is_empty() { return None } else { paceline_statistics::median(&all) }
        };
        let begin = (last.received_s - STEPS * typical)
            .max(recorded.messages.iter().map(|m| m.sent_s).fold(f64::INFINITY, f64::min));
        let (mut rank, mut now, mut hops) = (last.to, last.received_s, 0.0);
        let mut shares = Self { compute: vec![0.0; recorded.ranks.len()], ..Self::default() };
        let end = now;
        while now > begin {
            // The latest arrival that released this rank from waiting.
            let before = into[rank].partition_point(|m| m.received_s <= now);
            let releases = |m: &&Message| was_waiting(&pauses[rank], m.received_s) && m.sent_s < m.received_s;
            let released = into[rank][..before].iter().rev().find(releases);
            let Some(message) = released else {
                // Nobody holds it up: all that is left is its own.
                shares.work(recorded, &pauses[rank], rank, begin, now);
                now = begin;
                break;
            };
            shares.work(recorded, &pauses[rank], rank, message.received_s.max(begin), now);
            if message.received_s <= begin {
                now = begin;
                break;
            }
            shares.flight(recorded, wires, message, message.received_s - message.sent_s.max(begin));
            hops += 1.0;
            (rank, now) = (message.from, message.sent_s);
        }
        shares.seconds = end - now.max(begin).min(end);
        if shares.seconds <= 0.0 {
            return None;
        }
        shares.steps = shares.seconds / typical;
        shares.hops_per_step = hops / shares.steps;
        for part in shares.compute.iter_mut().chain([
            &mut shares.handling,
            &mut shares.server,
            &mut shares.bytes,
            &mut shares.latency,
        ]) {
            *part /= shares.seconds;
        }
        Some(shares)
    }

    /// A message that was waited for, so long.
    fn flight(&mut self, recorded: &RecordedRun, wires: &LinkCosts, message: &Message, under_way: f64) {
        let Message { from, to, .. } = *message;
        let latency = wires.latency(from, to).min(under_way);
        if latency >= NEAR_S {
            self.latency += latency;
        } else {
            // A way as short as that is waking up whoever waits at its end.
            *self.ends(recorded, from, to) += latency;
        }
        let rest = under_way - latency;
        if wires.is_thin(from, to) {
            self.bytes += rest;
        } else {
            *self.ends(recorded, from, to) += rest;
        }
    }

    /// Where what is done at the ends of a message is counted.
    fn ends(&mut self, recorded: &RecordedRun, from: usize, to: usize) -> &mut f64 {
        let workers = recorded.ranks[from].worker && recorded.ranks[to].worker;
        if workers { &mut self.handling } else { &mut self.server }
    }

    /// What a rank did between two moments: its time without waits, divided as its steps there are.
    fn work(
        &mut self,
        recorded: &RecordedRun,
        pauses: &[super::RecordedPause],
        rank: usize,
        from: f64,
        to: f64,
    ) {
        let waited: f64 =
            pauses.iter().map(|p| (p.to_s.min(to) - p.from_s.max(from)).max(0.0)).sum::<f64>().min(to - from);
        let worked = to - from - waited;
        // A wait on the chain that nothing released is the message's handling.
        if !recorded.ranks[rank].worker {
            self.server += worked + waited;
            return;
        }
        let (mut compute, mut rest) = (0.0, 0.0);
        for step in recorded.steps.iter().filter(|s| s.rank == rank) {
            let over = (step.begin_s + step.duration_s()).min(to) - step.begin_s.max(from);
            if over > 0.0 {
                let part = over / step.duration_s().max(1e-12);
                compute += part * step.compute_s;
                rest += part * (step.send_s + step.apply_s);
            }
        }
        let share = if compute + rest > 0.0 { compute / (compute + rest) } else { 0.0 };
        self.compute[rank] += worked * share;
        self.handling += worked * (1.0 - share) + waited;
    }
}
