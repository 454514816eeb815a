//! What holds a worker up in its own work: no core, no samples, memory, compression.

use super::links::machine;
use super::sentence::{Part, Sentence, counted, megabytes, name, percent, seconds};
use super::verdict::{Case, Cause, Verdict};
use super::{RankTimes, WhatIf};

/// Part of a step without a core below which nothing is said of cores: the launcher and the kernel need some too.
const CROWDED: f64 = 0.1;
/// So many times the cores are more ranks than cores: servers that work for a short time find one.
const MORE: f64 = 1.4;
/// A server that is at work for this part of its time is waited for itself.
const SERVING: f64 = 0.4;
/// Bytes that a pass and an update touch per parameter.
const TOUCHED: f64 = 32.0;

impl Case<'_> {
    /// Verdicts on each worker's own work.
    pub fn own_work(&self) -> Vec<Verdict> {
        [self.cores(), self.data(), self.memory(), self.codec()].into_iter().flatten().collect()
    }

    /// Part of a step in which a worker that could have gone on had no core.
    pub fn held_off_cores(&self) -> f64 {
        self.part(|r| r.core_wait_s.unwrap_or(0.0))
    }

    /// Ranks on the first worker's machine, and its name.
    fn neighbours(&self) -> (usize, String) {
        let own = |r: &RankTimes| machine(&r.host).to_owned();
        let host = self.workers().first().map(|r| own(r)).unwrap_or_default();
        (self.ranks.iter().filter(|r| own(r) == host).count(), host)
    }

    /// Whether more ranks than cores want to work at the same time on the workers' machine. In virtual time nobody else
    /// is there.
    pub fn crowded(&self) -> bool {
        let Some(cores) = self.recorded.cores().filter(|_| !self.recorded.simulated) else { return true };
        let (_, host) = self.neighbours();
        let own = self.on_own_core().max(1e-12);
        let at_once = |r: &RankTimes| match r.role {
            "worker" => 1.0,
            _ => (r.busy * self.step_s / own).min(1.0),
        };
        let all: f64 = self.ranks.iter().filter(|r| machine(&r.host) == host).map(at_once).sum();
        all >= MORE * cores as f64
    }

    /// Whether workers have no core because other ranks do.
    pub fn share_cores(&self) -> bool {
        self.crowded() && self.lost_to_cores() >= CROWDED
    }

    /// Seconds of a step that a worker would need on a core of its own, without waiting.
    fn on_own_core(&self) -> f64 {
        self.typical(|r| r.on_core_s() + r.send_s + r.apply_s)
    }

    /// Part of a step that is lost because there are fewer cores than ranks: passes without a core, or, as the work of
    /// all takes its turns on the cores, waiting for others who have none.
    pub fn lost_to_cores(&self) -> f64 {
        let served = self.ranks.iter().any(|r| r.role == "server" && r.busy > SERVING);
        let cores = self.recorded.cores().filter(|_| !self.recorded.simulated && !served && self.crowded());
        let turns = cores.map_or(0.0, |cores| {
            let (_, host) = self.neighbours();
            let here = self.workers().iter().filter(|r| machine(&r.host) == host).count();
            (here as f64 / cores as f64 - 1.0) * self.on_own_core() / self.step_s
        });
        self.held_off_cores().max(turns.clamp(0.0, 1.0))
    }

    /// Whether all ranks are on one machine, and no links are emulated between them.
    pub fn one_machine(&self) -> bool {
        let first = self.ranks.first().map(|r| &r.host);
        !self.recorded.simulated && self.ranks.iter().all(|r| Some(&r.host) == first && !r.host.contains('#'))
    }

    fn cores(&self) -> Option<Verdict> {
        let (ranks, host) = self.neighbours();
        let cores = self.recorded.cores().filter(|_| !self.recorded.simulated);
        let place = match cores {
            Some(cores) => Sentence::new(
                "{} on the {} of {}",
                [
                    counted("ranks_on_host", ranks, "rank runs", "ranks run"),
                    counted("cores", cores, "core", "cores"),
                    name(&host),
                ],
            ),
            None => Sentence::new("there are more of them than cores", []),
        };
        let held_off = self.held_off_cores();
        if !self.share_cores() {
            let sentence = Sentence::new(
                "Other programs use the cores: {}, yet a worker is ready to go on and has no core for {} of a step",
                [Part::Sentence(place), percent("core_wait_share", held_off)],
            );
            let changes = self.changes([(WhatIf::OwnCores, held_off)]);
            return (held_off >= CROWDED)
                .then(|| Verdict::of(Cause::OtherPrograms, held_off, sentence, changes));
        }
        let share = self.lost_to_cores();
        let sentence = Sentence::new(
            "Ranks share cores and slow each other down: {}; a worker would need {} for a step's work on a core of its \
             own, and {} of a step is lost because it, or whom it waits for, has no core",
            [
                Part::Sentence(place),
                seconds("own_core_step_s", self.on_own_core()),
                percent("shared_cores_share", share),
            ],
        );
        let changes = self.changes([(WhatIf::OwnCores, share), (WhatIf::FewerWorkers, share)]);
        Some(Verdict::of(Cause::SharedCores, share, sentence, changes))
    }

    fn data(&self) -> Option<Verdict> {
        // Whose batch comes first waits for the others instead.
        let worst = self.workers().into_iter().max_by(|a, b| a.data_s.total_cmp(&b.data_s))?;
        let share = (worst.data_s / self.step_s).min(1.0);
        let sentence = Sentence::new(
            "Samples come too slowly: a worker waits {} per step until its batch is read and decoded, which is {} of \
             the time; forward and backward pass take {}",
            [
                seconds("data_s", worst.data_s),
                percent("data_share", share),
                seconds("pass_s", self.typical(|r| r.compute_s - r.data_s)),
            ],
        );
        let spare = self.recorded.cores().is_none_or(|cores| self.ranks.len() * 2 <= cores);
        let more = spare.then(|| self.change(WhatIf::MoreDecoders, share / 2.0)).flatten();
        let changes = more.into_iter().chain(self.change(WhatIf::NoDecoding, share)).collect();
        (share > 0.0).then(|| Verdict::of(Cause::Data, share, sentence, changes))
    }

    /// Part of a step in which a pass moves parameters rather than computing.
    pub fn moving_in_pass(&self) -> f64 {
        self.part(|r| r.moving_s)
    }

    fn memory(&self) -> Option<Verdict> {
        let update = self.part(|r| r.apply_s);
        let share = update + self.moving_in_pass();
        if self.recorded.params == 0 || update <= 0.0 {
            return None;
        }
        let bytes = TOUCHED * self.recorded.params as f64;
        let sentence = Sentence::new(
            "Memory sets the pace: a step moves about {} of parameters, gradients and optimiser state for {}, which is \
             {} of the time; the update alone takes {}",
            [
                megabytes("moved_bytes", bytes),
                counted(
                    "samples_per_worker",
                    self.typical(|r| r.samples).round() as usize,
                    "sample of a worker",
                    "samples of a worker",
                ),
                percent("memory_share", share),
                seconds("apply_s", self.typical(|r| r.apply_s)),
            ],
        );
        Some(Verdict::of(Cause::Memory, share, sentence, self.changes([(WhatIf::LargerBatch, share / 2.0)])))
    }

    /// Part of a step that whoever encodes most spends on it.
    pub fn encoding(&self) -> f64 {
        let servers = self.ranks.iter().filter(|r| r.role == "server");
        // A server's row is about one worker's push.
        let of_servers = servers.map(|r| r.codec_s / r.step_s.max(1e-12)).fold(0.0, f64::max);
        self.part(|r| r.codec_s).max(of_servers.min(1.0))
    }

    fn codec(&self) -> Option<Verdict> {
        let share = self.encoding();
        let sentence = Sentence::new(
            "Compression sets the pace: encoding and decoding messages takes {} per step, {} of the time, on {}; a rank \
             moves {} per step",
            [
                seconds("codec_s", share * self.step_s),
                percent("codec_share", share),
                counted("codec_ranks", self.ranks.len(), "rank", "ranks"),
                megabytes("bytes_per_step", self.wires.map_or(0.0, |wires| wires.bytes_per_step)),
            ],
        );
        let changes = self.changes([(WhatIf::NoCodec, share), (WhatIf::Half, share * 0.8)]);
        (share > 0.0).then(|| Verdict::of(Cause::Codec, share, sentence, changes))
    }
}
