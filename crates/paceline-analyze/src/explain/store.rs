//! A run out of the store.

use std::collections::{BTreeSet, HashMap};

use paceline_record::store::{RunRow, TableRows};
use paceline_record::{RecordError, ScriptRecord, Store};

use super::links::machine;
use super::{Message, RecordedLink, RecordedPause, RecordedRank, RecordedRun, RecordedStep, RecordedWait};

/// The numbers of some columns, row by row; 0 where there is no value.
fn numbers<const N: usize>(rows: &TableRows, names: [&str; N]) -> Vec<[f64; N]> {
    let columns = names.map(|name| rows.numbers(name));
    let row = |i: usize| columns.each_ref().map(|column| column[i].unwrap_or_default());
    (0..rows.rows.len()).map(row).collect()
}

impl RecordedRun {
    /// Reads what was recorded of a run; its plan is for advice alone.
    pub fn read(store: &Store, run: &RunRow) -> Result<Self, RecordError> {
        let own = store.rows("runs", run)?;
        let simulated = own.texts("origin").first().is_some_and(|o| o.as_deref() == Some("simulated"));
        let params = numbers(&own, ["parameters"]).first().map_or(0, |[params]| *params as usize);
        let plan = run.plan.clone();
        let mut recorded = Self { run: run.run.clone(), simulated, params, plan, ..Self::default() };
        recorded.samples_per_s = run.result.as_ref().map(|result| result.samples_per_s);
        recorded.read_ranks(&store.rows("ranks", run)?);
        let steps = store.rows("steps", run)?;
        let since = recorded.cut_anew(&steps);
        recorded.read_hosts(&store.rows("hosts", run)?);
        recorded.read_steps(&steps, since);
        recorded.membership = store.membership(run)?;
        if recorded.plan.as_ref().is_some_and(|plan| plan.elastic.is_some()) {
            recorded.leave_out_the_idle();
        }
        let world = recorded.ranks.len();
        for [rank, on, seconds] in numbers(&store.rows("waits", run)?, ["rank", "wait_for", "wait_s"]) {
            let (rank, on) = (rank as usize, on as usize);
            if rank < world && on < world {
                recorded.waits.push(RecordedWait { rank, on, seconds });
            }
        }
        recorded.read_trace(&store.rows("trace", run)?);
        recorded.read_links(&store.rows("links", run)?, since);
        recorded.script = ScriptRecord::read(store, run)?;
        if recorded.script.is_some() {
            // It is the script that computes: whether it had a core is not seen from its rank.
            recorded.steps.iter_mut().for_each(|step| step.core_wait_s = None);
        }
        Ok(recorded)
    }

    fn read_ranks(&mut self, rows: &TableRows) {
        let (roles, hosts) = (rows.texts("role"), rows.texts("host"));
        for (([rank], role), host) in numbers(rows, ["rank"]).into_iter().zip(roles).zip(hosts) {
            let rank = rank as usize;
            if self.ranks.len() <= rank {
                self.ranks.resize(rank + 1, RecordedRank { worker: true, ..RecordedRank::default() });
            }
            let (worker, host) = (role.as_deref() != Some("server"), host.unwrap_or_default());
            self.ranks[rank] = RecordedRank { worker, host, ..RecordedRank::default() };
        }
    }

    /// The attempt since which a run has the ranks that it ended with: 0 unless its network was cut into other stages on the way.
    /// Ranks of before are left out.
    fn cut_anew(&mut self, steps: &TableRows) -> f64 {
        let Some(plan) = self.plan.as_ref().filter(|plan| plan.elastic.is_none()) else { return 0.0 };
        let rows = numbers(steps, ["attempt", "rank"]);
        let last = rows.iter().map(|[attempt, _]| *attempt).fold(0.0, f64::max);
        let ranks = |of_last: bool| -> BTreeSet<usize> {
            let own = rows.iter().filter(|[attempt, _]| (*attempt == last) == of_last);
            own.map(|[_, rank]| *rank as usize).collect()
        };
        let (now, before) = (ranks(true), ranks(false));
        if before.is_empty() || now == before {
            return 0.0;
        }
        self.ranks.truncate(plan.workers + plan.servers);
        self.ranks.iter_mut().enumerate().for_each(|(n, rank)| rank.worker = n < plan.workers);
        last
    }

    /// Members with too few steps to say anything of them.
    fn leave_out_the_idle(&mut self) {
        let mut steps = vec![0; self.ranks.len()];
        self.steps.iter().for_each(|step| steps[step.rank] += 1);
        self.ranks.iter_mut().zip(steps).for_each(|(rank, steps)| rank.idle = rank.worker && steps < 3);
    }

    fn read_hosts(&mut self, rows: &TableRows) {
        for (host, cores) in rows.texts("host").into_iter().zip(rows.numbers("usable_cores")) {
            let of = |rank: &&mut RecordedRank| Some(machine(&rank.host)) == host.as_deref();
            let cores = cores.filter(|cores| *cores >= 1.0).map(|cores| cores as usize);
            self.ranks.iter_mut().filter(of).for_each(|rank| rank.cores = cores);
        }
    }

    fn read_steps(&mut self, rows: &TableRows, since: f64) {
        let names = ["data_ns", "forward_ns", "backward_ns", "overlap_ns"];
        let passes = numbers(rows, names);
        // Records of before do not have it.
        let core_waits = rows.numbers("core_wait_ns");
        let of_stages = ["wait_up_ns", "wait_down_ns", "live_slots"].map(|name| rows.numbers(name));
        let names =
            ["rank", "step", "t_ns", "send_ns", "wait_ns", "apply_ns", "samples", "codec_ns", "attempt"];
        for (i, [rank, step, t, send, wait, apply, samples, codec, attempt]) in
            numbers(rows, names).into_iter().enumerate()
        {
            if (rank as usize) < self.ranks.len() && attempt >= since {
                let [data, forward, backward, overlap] = passes[i];
                let compute = data + forward + backward;
                let of_stage = |n: usize| of_stages[n].get(i).copied().flatten().unwrap_or_default();
                // What was exchanged during the pass had its part of the time without a core.
                let own = if overlap > 0.0 { compute / (compute + overlap) } else { 1.0 };
                self.steps.push(RecordedStep {
                    rank: rank as usize,
                    step: step as u64,
                    begin_s: 1e-9 * t,
                    compute_s: 1e-9 * compute,
                    data_s: 1e-9 * data,
                    backward_s: 1e-9 * backward,
                    core_wait_s: core_waits
                        .get(i)
                        .copied()
                        .flatten()
                        .map(|ns| 1e-9 * (own * ns).min(compute)),
                    send_s: 1e-9 * send,
                    wait_s: 1e-9 * wait,
                    wait_up_s: 1e-9 * of_stage(0),
                    wait_down_s: 1e-9 * of_stage(1),
                    live_slots: of_stage(2) as u64,
                    apply_s: 1e-9 * apply,
                    codec_s: 1e-9 * codec,
                    samples: samples as u64,
                });
            }
        }
    }

    /// The last sample of each link.
    fn read_links(&mut self, rows: &TableRows, since: f64) {
        let names = ["rank", "peer", "t_ns", "sent_messages", "sent_bytes", "received_bytes", "attempt"];
        let greetings = rows.numbers("greeting_s");
        let world = self.ranks.len() as f64;
        let mut last: HashMap<(usize, usize), (f64, RecordedLink)> = HashMap::new();
        for (i, [rank, peer, t, sent_messages, sent_bytes, received_bytes, attempt]) in
            numbers(rows, names).into_iter().enumerate()
        {
            if rank >= world || peer >= world || attempt < since {
                continue;
            }
            let (rank, peer) = (rank as usize, peer as usize);
            let greeting_s = greetings.get(i).copied().flatten();
            let link = RecordedLink { rank, peer, sent_messages, sent_bytes, received_bytes, greeting_s };
            let known = last.entry((rank, peer)).or_insert((t, link));
            if t >= known.0 {
                *known = (t, link);
            }
        }
        self.links = last.into_values().map(|(_, link)| link).filter(|l| l.sent_messages > 0.0).collect();
        self.links.sort_by_key(|link| (link.rank, link.peer));
    }

    /// The n-th message that one side sends is the n-th that the other receives.
    fn read_trace(&mut self, rows: &TableRows) {
        let names = ["rank", "peer", "n", "t_ns", "bytes", "step", "duration_ns", "attempt", "bucket"];
        let (kinds, all) = (rows.texts("kind"), numbers(rows, names));
        let world = self.ranks.len() as f64;
        let last = all.iter().map(|row| row[7]).fold(0.0, f64::max);
        let mut sent: HashMap<(usize, usize, u64), f64> = HashMap::new();
        let mut received = Vec::new();
        for ([rank, peer, n, t, bytes, step, duration, attempt, bucket], kind) in all.into_iter().zip(kinds) {
            // Of a run that was begun again, the last attempt counts.
            if rank >= world || attempt < last {
                continue;
            }
            let (rank, at) = (rank as usize, 1e-9 * t);
            match kind.as_deref() {
                Some("wait") => {
                    self.pauses.push(RecordedPause { rank, from_s: at, to_s: at + 1e-9 * duration });
                }
                Some("send") if peer < world && peer >= 0.0 => {
                    sent.insert((rank, peer as usize, n as u64), at);
                }
                Some("receive") if peer < world && peer >= 0.0 => {
                    let (from, step, bucket) = (peer as usize, step as u64, bucket as u64);
                    let (to, received_s, sent_s) = (rank, at, f64::NAN);
                    received.push((n as u64, Message { from, to, received_s, bytes, step, bucket, sent_s }));
                }
                _ => {}
            }
        }
        for (n, message) in received {
            if let Some(sent_s) = sent.get(&(message.from, message.to, n)) {
                self.messages.push(Message { sent_s: *sent_s, ..message });
            }
        }
    }
}
