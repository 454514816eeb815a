//! What a run was bound by, and which changes would help, in order.

use serde::Serialize;

use super::{Recorded, Shares, Spent, Wires};
use crate::statistics::median;

/// What sets the pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Everybody computes most of the time.
    Compute,
    /// One worker is slower than the others.
    Straggler,
    /// Servers have more to do than they can.
    Server,
    /// Links carry too few bytes per second.
    Bandwidth,
    /// Messages are too long under way, whatever their size.
    Latency,
    /// Messages are too many and too small.
    SmallMessages,
    /// Exchange, but what about it cannot be told.
    Exchange,
}

impl Cause {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Compute => "computing",
            Self::Straggler => "a straggler",
            Self::Server => "the servers",
            Self::Bandwidth => "the bandwidth of links",
            Self::Latency => "the latency of links",
            Self::SmallMessages => "many small messages",
            Self::Exchange => "exchanging",
        }
    }
}

/// Something that would help.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// What to do.
    pub what: String,
    /// Part of a step's time that it could save, at most: the chain behind the one that is shortened is not known.
    pub gain: f64,
}

/// What a run was bound by.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The cause.
    pub cause: Cause,
    /// Part of a step's time that it is responsible for.
    pub share: f64,
    /// The rank, where one is.
    pub rank: Option<usize>,
    /// In a sentence.
    pub sentence: String,
    /// What would help most comes first.
    pub changes: Vec<Change>,
}

/// A worker whose computing takes so many times that of the others is a straggler.
const SLOWER: f64 = 1.4;
/// Messages below this, many of them, are small.
const SMALL_BYTES: f64 = 24.0 * 1024.0;
/// Messages per step that are many.
const MANY: f64 = 12.0;
/// Time per message below which what it costs is handling, not bytes.
const HANDLING_S: f64 = 4e-4;

fn percent(share: f64) -> String {
    format!("{}%", (100.0 * share).round())
}

impl Verdict {
    pub(super) fn new(
        recorded: &Recorded,
        ranks: &[Spent],
        step_s: f64,
        path: Option<&Shares>,
        wires: Option<&Wires>,
    ) -> Self {
        let mut found = vec![Self::computing(ranks, step_s)];
        found.extend(Self::straggler(recorded, ranks, step_s));
        found.extend(Self::servers(recorded, ranks, step_s, path));
        found.extend(Self::network(recorded, ranks, step_s, path, wires));
        // What a straggler costs is waiting for others and computing for itself: it goes first where there is one.
        let weight = |v: &Self| match v.cause {
            Cause::Straggler => v.share * 3.0,
            // Computing is what a run is for: it is named if nothing else takes as much.
            Cause::Compute => v.share * 0.6,
            _ => v.share,
        };
        found.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let others: Vec<Change> = found[1..].iter().flat_map(|v| v.changes.iter().take(1).cloned()).collect();
        let mut verdict = found.swap_remove(0);
        verdict.changes.extend(others);
        verdict.changes.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        verdict.changes.retain(|c| c.gain >= 0.02);
        verdict
    }

    fn computing(ranks: &[Spent], step_s: f64) -> Self {
        let workers: Vec<&Spent> = ranks.iter().filter(|r| r.role == "worker").collect();
        let compute = median(&workers.iter().map(|r| r.compute_s).collect::<Vec<_>>());
        let share = (compute / step_s).min(1.0);
        let sentence = format!(
            "Workers compute {} of the time: it is bound by computing, and exchanging takes little beside it",
            percent(share)
        );
        let changes = vec![Change {
            what: "more workers at the same total batch, faster cores or more threads: computing halves with twice as \
                   many"
                .into(),
            gain: share / 2.0,
        }];
        Self { cause: Cause::Compute, share, rank: None, sentence, changes }
    }

    fn straggler(recorded: &Recorded, ranks: &[Spent], step_s: f64) -> Option<Self> {
        let workers: Vec<&Spent> = ranks.iter().filter(|r| r.role == "worker").collect();
        if workers.len() < 2 {
            return None;
        }
        let slowest = workers.iter().max_by(|a, b| a.compute_s.total_cmp(&b.compute_s))?;
        let others: Vec<f64> =
            workers.iter().filter(|r| r.rank != slowest.rank).map(|r| r.compute_s).collect();
        let usual = median(&others);
        if slowest.compute_s < SLOWER * usual {
            return None;
        }
        // If nobody is held up by it, it costs only its own share of the work.
        let rate = |r: &Spent| 1.0 / r.step_s.max(1e-12);
        let held_up = step_s > 0.75 * slowest.step_s;
        let share = if held_up {
            (slowest.compute_s - usual) / slowest.step_s
        } else {
            let all: f64 = workers.iter().map(|r| rate(r)).sum();
            let wanted = all - rate(slowest) + workers.iter().map(|r| rate(r)).fold(0.0, f64::max);
            1.0 - all / wanted
        };
        let times = slowest.compute_s / usual;
        let effect = if held_up { "the others wait for it" } else { "the others go on without it" };
        let sentence = format!(
            "Worker {} on {} is a straggler: it computes {:.1} times as long per step as the others ({} against {}), \
             and {effect}",
            slowest.rank,
            slowest.host,
            times,
            seconds(slowest.compute_s),
            seconds(usual)
        );
        let mut changes = vec![Change {
            what: format!(
                "free or replace rank {} (look at what else runs on {})",
                slowest.rank, slowest.host
            ),
            gain: share,
        }];
        if held_up {
            let servers = !recorded.servers().is_empty();
            let what = if servers {
                "let the others go on: --sync asp, ssp or dssp".into()
            } else {
                "let the others go on: --strategy ps with --sync asp or ssp, or gossip".to_owned()
            };
            changes.push(Change { what, gain: share * (workers.len() - 1) as f64 / workers.len() as f64 });
        }
        Some(Self { cause: Cause::Straggler, share, rank: Some(slowest.rank), sentence, changes })
    }

    fn servers(recorded: &Recorded, ranks: &[Spent], step_s: f64, path: Option<&Shares>) -> Option<Self> {
        let servers: Vec<&Spent> = ranks.iter().filter(|r| r.role == "server").collect();
        let busiest = servers.iter().max_by(|a, b| a.busy.total_cmp(&b.busy))?;
        let workers: Vec<&Spent> = ranks.iter().filter(|r| r.role == "worker").collect();
        let waiting = median(&workers.iter().map(|r| r.wait_s).collect::<Vec<_>>()) / step_s;
        let share = match path {
            Some(path) => path.server,
            // Without messages: a server that is busy while workers wait.
            None if busiest.busy > 0.6 => waiting * busiest.busy,
            None => return None,
        };
        if share < 0.1 {
            return None;
        }
        let count = recorded.servers().len();
        let sentence = format!(
            "{} the pace: server {} is busy {} of the time, while workers wait {} of theirs",
            if count == 1 { "The server sets" } else { "Servers set" },
            busiest.rank,
            percent(busiest.busy),
            percent(waiting)
        );
        let changes = vec![
            Change {
                what: format!("twice as many servers (--servers {}), on cores of their own", 2 * count),
                gain: share / 2.0,
            },
            Change { what: "--strategy ring-allreduce: every worker sums a part".into(), gain: share * 0.4 },
        ];
        Some(Self { cause: Cause::Server, share, rank: Some(busiest.rank), sentence, changes })
    }

    fn network(
        recorded: &Recorded,
        ranks: &[Spent],
        step_s: f64,
        path: Option<&Shares>,
        wires: Option<&Wires>,
    ) -> Vec<Self> {
        let workers: Vec<&Spent> = ranks.iter().filter(|r| r.role == "worker").collect();
        if workers.len() < 2 && recorded.servers().is_empty() {
            return Vec::new();
        }
        let (Some(path), Some(wires)) = (path, wires) else {
            let least = workers.iter().map(|r| (r.wait_s + r.send_s) / step_s).fold(f64::INFINITY, f64::min);
            let sentence = format!("Workers spend {} of the time exchanging", percent(least));
            return vec![Self {
                cause: Cause::Exchange,
                share: least,
                rank: None,
                sentence,
                changes: Vec::new(),
            }];
        };
        // Many small messages are to blame unless their bytes alone, or the way, take long.
        let per_message = wires.bytes_per_s.map_or(0.0, |b| wires.message_bytes / b);
        let on_the_wire = wires.bytes_per_s.map_or(0.0, |b| wires.bytes_per_step / b) / step_s;
        let many =
            wires.messages_per_step >= MANY && per_message < HANDLING_S && wires.latency_s < HANDLING_S
                || wires.messages_per_step >= 5.0 * MANY;
        let far = path.hops_per_step * wires.latency_s / step_s;
        let many_small = wires.message_bytes < SMALL_BYTES && many && on_the_wire < 0.5 && far < 0.4;
        if many_small {
            let share = path.handling + path.server + path.bytes + path.latency;
            let sentence = format!(
                "Messages are many and small: a rank sends {:.0} per step of {} bytes on average, and handling them \
                 takes {} of the time",
                wires.messages_per_step,
                wires.message_bytes.round(),
                percent(share)
            );
            let keep = (MANY / 2.0 / wires.messages_per_step).min(1.0);
            let changes = vec![Change {
                what: "larger buckets (--bucket 1MiB or more): the same bytes in fewer messages".into(),
                gain: share * (1.0 - keep),
            }];
            return vec![Self { cause: Cause::SmallMessages, share, rank: None, sentence, changes }];
        }
        if wires.bytes_per_s.is_none() {
            let sentence = format!(
                "Links set the pace: messages of {:.0} bytes are {} under way, which is {} of the time. They are all \
                 of one size and never queue, so whether links are thin or far cannot be told; a smaller --bucket \
                 would show it",
                wires.message_bytes,
                seconds(wires.latency_s),
                percent(path.latency)
            );
            let changes = vec![Change {
                what: "exchange every 8 steps: --strategy local (another algorithm: look at the accuracy)"
                    .into(),
                gain: path.latency * 7.0 / 8.0,
            }];
            return vec![Self { cause: Cause::Exchange, share: path.latency, rank: None, sentence, changes }];
        }
        let mut found = Vec::new();
        let pace = wires.bytes_per_s.map_or_else(String::new, |b| format!(" at {:.3} Gbit/s", 8e-9 * b));
        found.push(Self {
            cause: Cause::Bandwidth,
            share: path.bytes,
            rank: None,
            sentence: format!(
                "Links are thin: the {:.2} MB that a rank moves per step go{pace}, which is {} of the time",
                wires.bytes_per_step / 1e6,
                percent(path.bytes)
            ),
            changes: vec![
                Change { what: "half of the bytes: --compression fp16".into(), gain: path.bytes / 2.0 },
                Change {
                    what:
                        "exchange every 8 steps: --strategy local (another algorithm: look at the accuracy)"
                            .into(),
                    gain: (path.bytes + path.latency) * 7.0 / 8.0,
                },
            ],
        });
        found.push(Self {
            cause: Cause::Latency,
            share: path.latency,
            rank: None,
            sentence: format!(
                "Messages are long under way: {} each whatever their size, {:.1} of them one after another per step, \
                 which is {} of the time",
                seconds(wires.latency_s),
                path.hops_per_step,
                percent(path.latency)
            ),
            changes: vec![
                Change {
                    what: "fewer messages one after another: halving-doubling or tree instead of a ring, larger buckets"
                        .into(),
                    gain: path.latency / 2.0,
                },
                Change {
                    what: "exchange every 8 steps: --strategy local (another algorithm: look at the accuracy)".into(),
                    gain: (path.bytes + path.latency) * 7.0 / 8.0,
                },
            ],
        });
        found
    }
}

/// Seconds in a readable unit.
pub(super) fn seconds(value: f64) -> String {
    crate::chart::Unit::Seconds.show(value)
}
