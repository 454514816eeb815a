//! What messages tell about the wires: how long one is under way whatever it carries, and how fast bytes go.
//!
//! The first is known from the empty messages that ranks greet each other with before the first step, and never more
//! than the fastest message took. What a message takes beyond that is its bytes, waiting behind others, and, on one
//! machine, the copying at both ends: links that are as fast as a machine copies are no thin ones.

use std::collections::HashMap;

use paceline_statistics::median;
use serde::Serialize;

use super::{Message, RecordedPause, RecordedRun};

/// Below this, what a message takes is its handling, not the length of its way.
pub(super) const NEAR_S: f64 = 1e-4;
/// Bytes per second above which ranks of one machine are held up by copying, not by a link.
const COPYING: f64 = 1.5e9 / 8.0;
const BETWEEN: f64 = 20e9 / 8.0;
/// Messages below this tell nothing about bytes per second,
const TELLING_BYTES: f64 = 16.0 * 1024.0;
/// unless they take longer than this: a smaller time can be their handling.
const TELLING_S: f64 = 2e-3;
/// Links are alike if none is this many times faster than the slowest.
const ALIKE: f64 = 10.0;
/// A server that is at work for this part of its time holds its messages up itself.
const AT_WORK: f64 = 0.3;

#[derive(Clone, Debug, Serialize)]
pub struct LinkCosts {
    /// Single messages that it stands on; none without a trace.
    pub messages: usize,
    /// Bytes per second of links that hold messages up; absent if they are as fast as ranks are.
    pub bytes_per_s: Option<f64>,
    /// How long a message is under way whatever it carries; three of four links are shorter.
    pub latency_s: f64,
    pub message_bytes: f64,
    /// Messages that a rank sends per step, at most over ranks.
    pub messages_per_step: f64,
    /// Bytes that a rank sends or receives per step, at most over ranks.
    pub bytes_per_step: f64,
    /// Pieces that gradients are cut into; an estimate without a trace.
    pub pieces: f64,
    /// The same as the latency, by link.
    #[serde(skip)]
    latencies: HashMap<(usize, usize), f64>,
    #[serde(skip)]
    thin: HashMap<(usize, usize), f64>,
}

/// Whether a rank was waiting when something arrived: only then is the moment of arrival known.
pub fn was_waiting(pauses: &[RecordedPause], at: f64) -> bool {
    // By their begin; the last one that begins before is the only candidate.
    let next = pauses.partition_point(|p| p.from_s <= at);
    next > 0 && at <= pauses[next - 1].to_s + 20e-6
}

pub fn pauses(recorded: &RecordedRun) -> Vec<Vec<RecordedPause>> {
    let mut by_rank = vec![Vec::new(); recorded.ranks.len()];
    for pause in &recorded.pauses {
        by_rank[pause.rank].push(*pause);
    }
    by_rank.iter_mut().for_each(|p: &mut Vec<RecordedPause>| p.sort_by(|a, b| a.from_s.total_cmp(&b.from_s)));
    by_rank
}

/// A rank's machine: emulated hosts are all on one.
pub(super) fn machine(host: &str) -> &str {
    host.split('#').next().unwrap_or(host)
}

/// Bytes per second of messages that queue at one end, by rank: the second is sent before the first has come, so that
/// what lies between the two arrivals is its own time on the wire. 0 where there are few.
fn queued(recorded: &RecordedRun, messages: &[&Message], end: fn(&Message) -> usize) -> Vec<f64> {
    let mut by_end: Vec<Vec<&Message>> = vec![Vec::new(); recorded.ranks.len()];
    messages.iter().for_each(|m| by_end[end(m)].push(m));
    let pace = |mut own: Vec<&Message>| {
        own.sort_by(|a, b| a.received_s.total_cmp(&b.received_s));
        let (mut bytes, mut seconds, mut count) = (0.0, 0.0, 0);
        for pair in own.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            let gap = after.received_s - before.received_s;
            let follows = after.sent_s < before.received_s - 0.2 * gap;
            if follows && gap > 0.0 && after.bytes >= 256.0 {
                (bytes, seconds, count) = (bytes + after.bytes, seconds + gap, count + 1);
            }
        }
        if count >= 10 { bytes / seconds } else { 0.0 }
    };
    by_end.into_iter().map(pace).collect()
}

/// Bytes per second that went over a link, all in all: it carries as much at least.
fn throughput(messages: &[&Message]) -> f64 {
    let begin = messages.iter().map(|m| m.sent_s).fold(f64::INFINITY, f64::min);
    let end = messages.iter().map(|m| m.received_s).fold(0.0, f64::max);
    messages.iter().map(|m| m.bytes).sum::<f64>() / (end - begin).max(1e-9)
}

/// A value with so many of the others below it.
pub(super) fn quantile(mut values: Vec<f64>, below: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(values[(below * last as f64).round() as usize])
}

impl LinkCosts {
    /// Of a run; none where nothing was exchanged, or nothing is known of it.
    pub fn new(recorded: &RecordedRun) -> Option<Self> {
        if recorded.links.is_empty() && recorded.messages.len() < 20 {
            return None;
        }
        let pauses = pauses(recorded);
        let mut by_link: HashMap<(usize, usize), Vec<&Message>> = HashMap::new();
        for m in recorded.messages.iter().filter(|m| was_waiting(&pauses[m.to], m.received_s)) {
            by_link.entry((m.from, m.to)).or_default().push(m);
        }
        let mut latencies: HashMap<(usize, usize), f64> = HashMap::new();
        for link in &recorded.links {
            if let Some(there_and_back) = link.greeting_s {
                let one_way = there_and_back / 2.0;
                for pair in [(link.rank, link.peer), (link.peer, link.rank)] {
                    let known = latencies.entry(pair).or_insert(one_way);
                    *known = known.min(one_way);
                }
            }
        }
        for (pair, messages) in &by_link {
            // A few clocks are read late; hardly any early.
            let Some(fastest) = quantile(messages.iter().map(|m| m.under_way_s()).collect(), 0.02) else {
                continue;
            };
            let known = latencies.entry(*pair).or_insert(fastest);
            *known = known.min(fastest.max(0.0));
        }
        let thin = Self::thin(recorded, &by_link, &latencies);
        let latency_s = quantile(latencies.values().copied().collect(), 0.75).unwrap_or(0.0);
        // Ranks that share a host have a link too, and a fast one: it holds nobody up.
        let least = thin.values().copied().fold(f64::INFINITY, f64::min);
        let slowest: Vec<f64> = thin.values().copied().filter(|pace| *pace <= ALIKE * least).collect();
        let (message_bytes, messages_per_step, bytes_per_step) = traffic(recorded);
        Some(Self {
            messages: recorded.messages.len(),
            bytes_per_s: (!slowest.is_empty()).then(|| median(&slowest)),
            latency_s,
            message_bytes,
            messages_per_step,
            bytes_per_step,
            pieces: pieces(recorded, messages_per_step),
            latencies,
            thin,
        })
    }

    /// Links whose bytes are slower than ranks could be, with their bytes per second: what the faster messages see,
    /// which do not wait behind others.
    fn thin(
        recorded: &RecordedRun,
        by_link: &HashMap<(usize, usize), Vec<&Message>>,
        latencies: &HashMap<(usize, usize), f64>,
    ) -> HashMap<(usize, usize), f64> {
        let mut thin = HashMap::new();
        let all: Vec<&Message> = by_link.values().flatten().copied().collect();
        let (queued, queued_out) = (queued(recorded, &all, |m| m.to), queued(recorded, &all, |m| m.from));
        let busy = |rank: usize| !recorded.ranks[rank].worker && recorded.at_work(rank) > AT_WORK;
        for (pair, messages) in by_link {
            if !recorded.simulated && (busy(pair.0) || busy(pair.1)) {
                continue;
            }
            let latency = latencies.get(pair).copied().unwrap_or(0.0);
            let most = quantile(messages.iter().map(|m| m.bytes).collect(), 0.9).unwrap_or(0.0);
            let beyond = |m: &Message| (m.under_way_s() - latency).max(1e-9);
            let telling = messages.iter().filter(|m| m.bytes >= TELLING_BYTES.min(0.5 * most).max(1.0));
            // Whatever else holds messages up, none is faster than its link.
            let paces = telling.map(|m| m.bytes / beyond(m));
            let Some(pace) = quantile(paces.collect(), 0.95) else { continue };
            let pace = pace.max(queued[pair.1].max(queued_out[pair.0])).max(throughput(messages));
            if !recorded.simulated && most < TELLING_BYTES && most / pace < TELLING_S {
                continue;
            }
            let same = machine(&recorded.ranks[pair.0].host) == machine(&recorded.ranks[pair.1].host);
            let limit = match (recorded.simulated, same) {
                // In virtual time handling is counted by itself: what is left of a message's time is the link's.
                (true, _) => 1e14,
                (false, true) => COPYING,
                (false, false) => BETWEEN,
            };
            if pace < limit {
                thin.insert(*pair, pace);
            }
        }
        thin
    }

    /// How long a message is under way between two ranks whatever it carries.
    pub(super) fn latency(&self, from: usize, to: usize) -> f64 {
        self.latencies.get(&(from, to)).copied().unwrap_or(self.latency_s)
    }

    /// Whether the bytes of a step would take so long on a thin link only; `steady`: always as long.
    pub(super) fn could_be_thin(&self, seconds: f64, steady: bool) -> bool {
        self.bytes_per_step / seconds.max(1e-9) < if steady { COPYING } else { 0.15 * COPYING }
    }

    /// Whether bytes are held up between two ranks.
    pub(super) fn is_thin(&self, from: usize, to: usize) -> bool {
        self.thin.contains_key(&(from, to))
    }
}

fn pieces(recorded: &RecordedRun, messages_per_step: f64) -> f64 {
    let most = recorded.messages.iter().map(|m| m.bucket + 1).max();
    // Each piece goes there and back at least, and round a ring as often as there are workers.
    most.map_or_else(|| messages_per_step / (2 * recorded.workers().len()) as f64, |most| most as f64)
}

/// Mean bytes of a message; messages and bytes of a step, at most over ranks.
fn traffic(recorded: &RecordedRun) -> (f64, f64, f64) {
    let world = recorded.ranks.len();
    let count = |worker: &usize| recorded.steps.iter().filter(|s| s.rank == *worker).count() as f64;
    let mut steps = median(&recorded.workers().iter().map(count).collect::<Vec<_>>()).max(1.0);
    let (mut sent, mut out, mut into) = (vec![0.0; world], vec![0.0; world], vec![0.0; world]);
    if recorded.links.is_empty() {
        for m in &recorded.messages {
            sent[m.from] += 1.0;
            out[m.from] += m.bytes;
            into[m.to] += m.bytes;
        }
        // A trace may end before the run does.
        let last = recorded.messages.iter().map(|m| m.step).max();
        steps = last.map_or(steps, |s| (s as f64 + 1.0).clamp(1.0, steps));
    } else {
        for link in &recorded.links {
            sent[link.rank] += link.sent_messages;
            out[link.rank] += link.sent_bytes;
            into[link.rank] += link.received_bytes;
        }
    }
    let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    let mean = out.iter().sum::<f64>() / sent.iter().sum::<f64>().max(1.0);
    (mean, most(&sent) / steps, most(&out).max(most(&into)) / steps)
}
