//! What messages tell about the wires: how fast bytes go, what a message costs besides, and how long it is under way.

use serde::Serialize;

use super::{Pause, Recorded};
use crate::statistics::median;

/// Wires as messages see them.
#[derive(Clone, Debug, Serialize)]
pub struct Wires {
    /// Messages that it stands on.
    pub messages: usize,
    /// Bytes per second while messages queue; absent if they never do.
    pub bytes_per_s: Option<f64>,
    /// From handing over to arriving, without queueing and bytes.
    pub latency_s: f64,
    /// Mean bytes of a message.
    pub message_bytes: f64,
    /// Messages that a rank sends per step, at most over ranks.
    pub messages_per_step: f64,
    /// Bytes that a rank sends or receives per step, at most over ranks.
    pub bytes_per_step: f64,
}

/// Whether a rank was waiting when something arrived: only then is the moment of arrival known.
pub fn was_waiting(pauses: &[Pause], at: f64) -> bool {
    // By their begin; the last one that begins before is the only candidate.
    let next = pauses.partition_point(|p| p.from_s <= at);
    next > 0 && at <= pauses[next - 1].to_s + 20e-6
}

/// Pauses of each rank in their order.
pub fn pauses(recorded: &Recorded) -> Vec<Vec<Pause>> {
    let mut by_rank = vec![Vec::new(); recorded.ranks.len()];
    for pause in &recorded.pauses {
        by_rank[pause.rank].push(*pause);
    }
    by_rank.iter_mut().for_each(|p: &mut Vec<Pause>| p.sort_by(|a, b| a.from_s.total_cmp(&b.from_s)));
    by_rank
}

impl Wires {
    /// Of a run; none with too few messages.
    pub fn new(recorded: &Recorded) -> Option<Self> {
        if recorded.messages.len() < 20 {
            return None;
        }
        let pauses = pauses(recorded);
        let mut arrivals = recorded.messages.clone();
        arrivals.sort_by(|a, b| a.received_s.total_cmp(&b.received_s));
        // Two messages that follow each other into a rank, the second already under way when the first came: what
        // lies between is the second's own time on the wire.
        let mut paces: Vec<(f64, f64)> = Vec::new();
        for (rank, own) in pauses.iter().enumerate() {
            let into: Vec<_> = arrivals.iter().filter(|m| m.to == rank).collect();
            for pair in into.windows(2) {
                let (before, after) = (pair[0], pair[1]);
                let known = was_waiting(own, after.received_s);
                let gap = after.received_s - before.received_s;
                if known && after.sent_s < before.received_s && after.bytes >= 256.0 && gap > 0.0 {
                    paces.push((after.bytes / gap, after.bytes));
                }
            }
        }
        // Half of the bytes go at this pace or faster.
        paces.sort_by(|a, b| a.0.total_cmp(&b.0));
        let half = paces.iter().map(|(_, bytes)| bytes).sum::<f64>() / 2.0;
        let mut seen = 0.0;
        let middle = paces.iter().find(|(_, bytes)| {
            seen += bytes;
            seen >= half
        });
        let bytes_per_s = middle.filter(|_| paces.len() >= 10).map(|(pace, _)| *pace);
        let mut alone: Vec<f64> = arrivals
            .iter()
            .filter(|m| was_waiting(&pauses[m.to], m.received_s))
            .map(|m| (m.received_s - m.sent_s - bytes_per_s.map_or(0.0, |b| m.bytes / b)).max(0.0))
            .collect();
        alone.sort_by(f64::total_cmp);
        let latency_s = alone.get(alone.len() / 10).copied().unwrap_or(0.0);
        let steps: Vec<f64> = recorded
            .workers()
            .iter()
            .map(|w| recorded.steps.iter().filter(|s| s.rank == *w).count() as f64)
            .collect();
        let steps = median(&steps).max(1.0);
        let (mut sent, mut out, mut into) = (
            vec![0.0; recorded.ranks.len()],
            vec![0.0; recorded.ranks.len()],
            vec![0.0; recorded.ranks.len()],
        );
        for m in &recorded.messages {
            sent[m.from] += 1.0;
            out[m.from] += m.bytes;
            into[m.to] += m.bytes;
        }
        let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
        // A trace may end before the run does.
        let traced =
            recorded.messages.iter().map(|m| m.step).max().map_or(steps, |s| (s as f64).clamp(1.0, steps));
        Some(Self {
            messages: recorded.messages.len(),
            bytes_per_s,
            latency_s,
            message_bytes: recorded.messages.iter().map(|m| m.bytes).sum::<f64>()
                / recorded.messages.len() as f64,
            messages_per_step: most(&sent) / traced,
            bytes_per_step: most(&out).max(most(&into)) / traced,
        })
    }
}
