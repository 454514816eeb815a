//! What holds the exchange up: servers, links, messages, or exchanging itself.

use super::advice::Change;
use super::links::{NEAR_S, quantile};
use super::sentence::{Part, Sentence, count, gigabits, megabytes, name, percent, plain, seconds};
use super::verdict::{Case, Cause, Verdict};
use super::{LinkCosts, RankTimes, Shares, WhatIf};

/// Messages below this, many of them, are small.
const SMALL_BYTES: f64 = 24.0 * 1024.0;
/// Pieces that gradients are cut into that are many.
const MANY: f64 = 24.0;
/// Part of its time for which a server of a real run is at work at least if it sets the pace: reading what has come
/// halfway counts as waiting.
const AT_WORK: f64 = 0.2;
/// Spread of waits, relative to their middle, below which they are steady.
const STEADY: f64 = 0.3;
/// Part of the waiting that a message round the ring takes at least where latency is what is waited for.
const FAR: f64 = 0.3;
/// A server that works so many times as long as the others is slow.
const SLOWER: f64 = 1.5;
/// Part of what is exchanged that a run with `--strategy local` saves.
const LOCAL: f64 = 7.0 / 8.0;

fn small(wires: &LinkCosts) -> bool {
    wires.message_bytes < SMALL_BYTES && wires.pieces >= MANY
}

impl Case<'_> {
    /// Verdicts on the exchange.
    pub fn exchange(&self) -> Vec<Verdict> {
        if self.ranks.len() < 2 {
            return Vec::new();
        }
        match (self.path, self.wires) {
            (Some(path), Some(wires)) => self.judge(path, wires, path.hops_per_step),
            (_, Some(wires)) => {
                let (path, hops) = self.estimate(wires);
                self.judge(&path, wires, hops)
            }
            _ => {
                let share = self.exchanging();
                let sentence = Sentence::new(
                    "Workers spend {} of the time exchanging",
                    [percent("exchange_share", share)],
                );
                vec![Verdict::of(Cause::Exchange, share, sentence, Vec::new())]
            }
        }
    }

    /// Part of a step that whoever exchanges least spends on it. (A stage waits for others' passes, too.)
    pub(super) fn exchanging(&self) -> f64 {
        let spends = |r: &&RankTimes| (r.wait_s + r.send_s - self.filling_s(r)).max(0.0) / self.step_s;
        self.workers().iter().map(spends).fold(f64::INFINITY, f64::min).min(1.0)
    }

    /// The chain without a trace: waits are divided by what counts and empty messages tell. And its hops.
    fn estimate(&self, wires: &LinkCosts) -> (Shares, f64) {
        let workers = self.workers();
        let send = self.typical(|r| r.send_s) / self.step_s;
        let mut left = (self.exchanging() - send).max(0.0);
        // There and back at least; round the ring at most.
        let round =
            if self.recorded.servers().is_empty() { 2.0 * (workers.len().max(2) - 1) as f64 } else { 2.0 };
        let once = wires.latency_s / self.step_s;
        // Greetings alone can have been held up by whoever else uses the cores.
        let near = if self.recorded.simulated { NEAR_S } else { 10.0 * NEAR_S };
        let far = wires.latency_s >= near && round * once > FAR * left;
        let hops = if far { (left / once).clamp(2.0, round) } else { 2.0 };
        let mut path = Shares { handling: send, hops_per_step: hops, ..Shares::default() };
        if wires.latency_s >= near {
            path.latency = (hops * once).min(left);
            left -= path.latency;
        }
        let server = self.ranks.iter().filter(|r| r.role == "server").map(|r| r.busy).fold(0.0, f64::max);
        if server > AT_WORK {
            path.server = left;
        } else if wires.could_be_thin(left * self.step_s, self.steady_waits()) && !small(wires) {
            path.bytes = left;
        } else {
            path.handling += left;
        }
        (path, hops)
    }

    /// Whether workers wait about as long in each step: links are steady, cores that others use are not.
    fn steady_waits(&self) -> bool {
        let spread = |rank: usize| {
            let waits: Vec<f64> = self.recorded.steady(rank).iter().map(|s| s.wait_s).collect();
            let at = |below: f64| quantile(waits.clone(), below).unwrap_or(0.0);
            (at(0.75) - at(0.25)) / at(0.5).max(1e-9)
        };
        self.typical(|r| spread(r.rank)) < STEADY
    }

    fn judge(&self, path: &Shares, wires: &LinkCosts, hops: f64) -> Vec<Verdict> {
        let mut path = path.clone();
        let short_of_cores = self.share_cores();
        if self.one_machine() {
            // Bytes go through memory: ranks move them themselves.
            path.handling += std::mem::take(&mut path.bytes);
            if short_of_cores {
                // Messages are late because nobody has a core to take them in.
                path.handling += std::mem::take(&mut path.latency);
            }
        }
        // Encoding and decoding are a cause of their own,
        let mut handling = (path.handling - self.encoding()).max(0.0);
        let mut found = vec![self.thin_links(&path, wires), self.far_links(&path, wires, hops)];
        if small(wires) {
            found.push(self.small_messages(handling + path.server, wires));
            return found;
        }
        found.extend(self.servers(&path));
        if short_of_cores {
            // and so is waiting for those who have no core.
            handling = (handling - (self.lost_to_cores() - self.held_off_cores())).max(0.0);
        }
        let sentence = Sentence::new(
            "Exchanging itself sets the pace: sending, summing, copying and waking up take {} of the time. Links are as \
             fast as ranks are",
            [percent("handling_share", handling)],
        );
        let changes = self.changes([(WhatIf::Local, handling * LOCAL)]);
        found.push(Verdict::of(Cause::Exchange, handling, sentence, changes));
        found
    }

    fn thin_links(&self, path: &Shares, wires: &LinkCosts) -> Verdict {
        let pace = match wires.bytes_per_s {
            Some(bytes) => Sentence::new("go at {}, which is", [gigabits("link_bits_per_s", 8.0 * bytes)]),
            None => Sentence::new("take", []),
        };
        let sentence = Sentence::new(
            "Links are thin: the {} that a rank moves per step {} {} of the time",
            [
                megabytes("bytes_per_step", wires.bytes_per_step),
                Part::Sentence(pace),
                percent("bytes_share", path.bytes),
            ],
        );
        let mut changes = self.changes([
            (WhatIf::Bandwidth, path.bytes * 0.9),
            (WhatIf::Local, (path.bytes + path.latency) * LOCAL),
        ]);
        // A codec that is there already saves more than half.
        if self.recorded.plan.as_ref().is_none_or(|plan| plan.compression.is_none()) {
            changes.extend(self.change(WhatIf::Half, path.bytes / 2.0));
        }
        Verdict::of(Cause::Bandwidth, path.bytes, sentence, changes)
    }

    fn far_links(&self, path: &Shares, wires: &LinkCosts, hops: f64) -> Verdict {
        let sentence = Sentence::new(
            "Messages are long under way: {} each whatever their size, {} of them one after another per step, which is \
             {} of the time",
            [
                seconds("latency_s", wires.latency_s),
                plain("hops_per_step", hops),
                percent("latency_share", path.latency),
            ],
        );
        let changes = self.changes([
            (WhatIf::Latency, path.latency * 0.9),
            (WhatIf::FewerHops, path.latency / 2.0),
            (WhatIf::Local, (path.bytes + path.latency) * LOCAL),
        ]);
        Verdict::of(Cause::Latency, path.latency, sentence, changes)
    }

    fn small_messages(&self, share: f64, wires: &LinkCosts) -> Verdict {
        let sentence = Sentence::new(
            "Messages are many and small: a rank sends {} per step of {} bytes on average, and handling them takes {} of \
             the time",
            [
                count("messages_per_step", wires.messages_per_step.round() as usize),
                count("message_bytes", wires.message_bytes.round() as usize),
                percent("handling_share", share),
            ],
        );
        let gain = share * (1.0 - (MANY / 2.0 / wires.pieces).min(1.0));
        Verdict::of(Cause::SmallMessages, share, sentence, self.changes([(WhatIf::Bucket, gain)]))
    }

    fn servers(&self, path: &Shares) -> Option<Verdict> {
        let servers: Vec<&RankTimes> = self.ranks.iter().filter(|r| r.role == "server").collect();
        if let Some(verdict) = self.slow_server(&servers, path.server) {
            return Some(verdict);
        }
        let busiest = servers.iter().max_by(|a, b| a.busy.total_cmp(&b.busy))?;
        let share = path.server;
        let sentence = Sentence::new(
            "{} the pace: server {} is at work {} of the time, while workers wait {} of theirs",
            [
                Part::Words(if servers.len() == 1 { "The server sets" } else { "Servers set" }),
                count("server_rank", busiest.rank),
                percent("server_busy", busiest.busy),
                percent("wait_share", self.part(|r| r.wait_s)),
            ],
        );
        let faster = Sentence::new(
            "a faster machine for server {}: as fast as the workers are",
            [count("server_rank", busiest.rank)],
        );
        let mut changes = self.changes([(WhatIf::MoreServers, share / 2.0), (WhatIf::Ring, share * 0.4)]);
        changes.push(Change::new(WhatIf::FasterServers, share / 2.0, faster));
        Some(Verdict::of(Cause::Server, share, sentence, changes).about(busiest.rank))
    }

    /// One server that works longer than the others for as many updates.
    fn slow_server(&self, servers: &[&RankTimes], share: f64) -> Option<Verdict> {
        let work = |r: &RankTimes| r.send_s + r.apply_s;
        let slowest = servers.iter().max_by(|a, b| work(a).total_cmp(&work(b)))?;
        let others: Vec<f64> = servers.iter().filter(|r| r.rank != slowest.rank).map(|r| work(r)).collect();
        let usual = quantile(others, 0.5)?;
        if work(slowest) < SLOWER * usual {
            return None;
        }
        let sentence = Sentence::new(
            "Server {} on {} holds everybody up: it works {} times as long per update as the other servers ({} against \
             {}), while workers wait {} of their time",
            [
                count("server_rank", slowest.rank),
                name(&slowest.host),
                plain("slow_server_times", work(slowest) / usual.max(1e-12)),
                seconds("slow_server_s", work(slowest)),
                seconds("usual_server_s", usual),
                percent("wait_share", self.part(|r| r.wait_s)),
            ],
        );
        let replace = Sentence::new(
            "free or replace server {} on {}: as fast as the other servers are",
            [count("server_rank", slowest.rank), name(&slowest.host)],
        );
        let mut changes = vec![Change::new(WhatIf::NoSlowServer, share, replace)];
        changes.extend(self.change(WhatIf::Ring, share * 0.4));
        Some(Verdict::of(Cause::Server, share, sentence, changes).about(slowest.rank))
    }
}
