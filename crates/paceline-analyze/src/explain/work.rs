//! What holds a worker up in its own work: no core, no samples, memory, compression.

use super::links::machine;
use super::sentence::{Part, Sentence, counted, megabytes, name, percent, seconds};
use super::verdict::{Case, Cause, Verdict};
use super::{RankTimes, WhatIf};

/// Part of a step without a core below which nothing is said of cores: the launcher and the kernel need some too.
const CROWDED: f64 = 0.1;
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

    /// Whether workers have no core because other ranks do.
    pub fn share_cores(&self) -> bool {
        // In virtual time nobody else is there.
        let crowded = self.recorded.cores().is_none_or(|cores| self.neighbours().0 > cores);
        self.held_off_cores() >= CROWDED && (self.recorded.simulated || crowded)
    }

    fn cores(&self) -> Option<Verdict> {
        let share = self.held_off_cores();
        if share < CROWDED {
            return None;
        }
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
        let parts = [
            Part::Sentence(place),
            percent("core_wait_share", share),
            seconds("core_wait_s", self.typical(|r| r.core_wait_s.unwrap_or(0.0))),
        ];
        let mut changes = self.changes([(WhatIf::OwnCores, share)]);
        if !self.share_cores() {
            let sentence = Sentence::new(
                "Other programs use the cores: {}, yet a worker is ready to go on and has no core for {} of a step ({})",
                parts,
            );
            return Some(Verdict::of(Cause::OtherPrograms, share, sentence, changes));
        }
        let sentence = Sentence::new(
            "Ranks share cores and slow each other down: {}, and a worker is ready to go on and has no core for {} of a \
             step ({})",
            parts,
        );
        changes.extend(self.change(WhatIf::FewerWorkers, share));
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
