//! What messages tell about the wires: how fast bytes go, what a message costs besides, and how long it is under way.

use serde::Serialize;

use super::{Message, Pause, Recorded};
use crate::statistics::median;

/// Wires as messages see them.
#[derive(Clone, Debug, Serialize)]
pub struct Wires {
    /// Messages that it stands on.
    pub messages: usize,
    /// Bytes per second of the links; absent if messages neither queue nor differ in size.
    pub bytes_per_s: Option<f64>,
    /// From handing over to arriving, without queueing and bytes; with bytes where these cannot be told apart.
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

/// The tenth that is least: what is not held up by anything else.
fn least(times: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.map(|t| t.max(0.0)).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 10).copied().unwrap_or(0.0)
}

/// Bytes per second from messages that follow each other into a rank, the second under way well before the first came:
/// what lies between them is the second's own time on the wire. None if few do.
fn queued(arrivals: &[Message], pauses: &[Vec<Pause>]) -> Option<f64> {
    let (mut paces, mut pairs): (Vec<(f64, f64)>, usize) = (Vec::new(), 0);
    for (rank, own) in pauses.iter().enumerate() {
        let into: Vec<&Message> = arrivals.iter().filter(|m| m.to == rank).collect();
        for pair in into.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            let gap = after.received_s - before.received_s;
            if !was_waiting(own, after.received_s) || gap <= 0.0 {
                continue;
            }
            pairs += 1;
            // One that is sent when the first arrives, as an answer to it, has not queued; nor have two that
            // arrive as far apart as they were sent.
            let apart = (after.sent_s - before.sent_s).abs();
            if after.sent_s < before.received_s - 0.2 * gap && gap > 1.3 * apart && after.bytes >= 256.0 {
                paces.push((after.bytes / gap, after.bytes));
            }
        }
    }
    if paces.len() < 10 || paces.len() * 10 < pairs {
        return None;
    }
    // Half of the bytes go at this pace or faster.
    paces.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = paces.iter().map(|(_, bytes)| bytes).sum::<f64>() / 2.0;
    let mut seen = 0.0;
    let middle = paces.iter().find(|(_, bytes)| {
        seen += bytes;
        seen >= half
    });
    middle.map(|(pace, _)| *pace)
}

/// Bytes per second and latency from messages of different sizes: the larger are longer under way.
fn by_size(known: &[Message]) -> Option<(f64, f64)> {
    let mut sizes: Vec<f64> = known.iter().map(|m| m.bytes).collect();
    sizes.sort_by(f64::total_cmp);
    let (small, large) = (*sizes.get(sizes.len() / 10)?, *sizes.get(sizes.len() * 9 / 10)?);
    let times = |fits: &dyn Fn(f64) -> bool| {
        let own: Vec<f64> = known.iter().filter(|m| fits(m.bytes)).map(|m| m.received_s - m.sent_s).collect();
        (own.len() >= 5).then(|| least(own.into_iter()))
    };
    if large < 4.0 * small.max(64.0) {
        return None;
    }
    let (short, long) = (times(&|b| b <= 2.0 * small.max(64.0))?, times(&|b| b >= 0.5 * large)?);
    let pace = (long > short).then(|| (large - small) / (long - short))?;
    Some((pace, (short - small / pace).max(0.0)))
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
        let known: Vec<Message> =
            arrivals.iter().filter(|m| was_waiting(&pauses[m.to], m.received_s)).copied().collect();
        let (bytes_per_s, latency_s) = match queued(&arrivals, &pauses) {
            Some(pace) => (Some(pace), least(known.iter().map(|m| m.received_s - m.sent_s - m.bytes / pace))),
            None => by_size(&known).map_or_else(
                || (None, least(known.iter().map(|m| m.received_s - m.sent_s))),
                |(pace, latency)| (Some(pace), latency),
            ),
        };
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
