//! What messages cost. How fast two cores exchange something may change from minute to minute (cores of a virtual
//! machine are moved about): rounds are spread over the whole calibration, and their mean is taken, which is what
//! a run meets.

use paceline_bench::{Bench, BenchProgram, Row};
use paceline_wire::TransportKind;

use super::Effort;
use super::rounds::RoundSchedule;
use crate::calibration::{LARGE, MedianEstimate, MessageTime, SMALL, TransportCost, lent_name};
use crate::error::VirtualError;

/// Bytes that a pass touches between two exchanges: more than a core's own cache holds.
const PASS: usize = 4 << 20;

/// Messages over every transport, in rounds.
pub(super) struct Transports<'a> {
    effort: Effort,
    by: &'a BenchProgram<'a>,
    rounds: RoundSchedule,
    each: Vec<Exchanged>,
}

struct Exchanged {
    name: String,
    transport: &'static str,
    lent: bool,
    /// Seconds of a small message, one way.
    there: Vec<f64>,
    /// Nanoseconds of each end's work per byte, of few and of many elements.
    per_byte: Vec<f64>,
    large: Vec<f64>,
    measured: Vec<MessageTime>,
}

impl<'a> Transports<'a> {
    /// Nothing is measured yet.
    pub(super) fn new(effort: Effort, by: &'a BenchProgram<'a>) -> Self {
        let nothing = |kind: &TransportKind, lent: bool| Exchanged {
            name: if lent { lent_name(kind.name) } else { kind.name.to_owned() },
            transport: kind.name,
            lent,
            there: vec![],
            per_byte: vec![],
            large: vec![],
            measured: vec![],
        };
        let ways = |kind| [Some(nothing(kind, false)), kind.lends.then(|| nothing(kind, true))];
        let each = by.registries.transports.iter().flat_map(ways).flatten().collect();
        Self { effort, by, rounds: RoundSchedule::new(effort.rounds, effort.apart), each }
    }

    /// The next round, if it is time for it.
    pub(super) fn between(&mut self) -> Result<(), VirtualError> {
        if self.rounds.due() {
            self.round()?;
        }
        Ok(())
    }

    /// The rounds that are left, and what came of all.
    pub(super) fn finish(mut self) -> Result<Vec<TransportCost>, VirtualError> {
        while self.rounds.left() {
            self.round()?;
        }
        let summed_up = |Exchanged { name, there, per_byte, large, measured, .. }| {
            // Who waits for a small message cannot tell its latency from both ends' work: half is taken as latency.
            let one_way = MedianEstimate::of_rounds(&there);
            TransportCost {
                name,
                latency_s: one_way.times(0.5),
                message_s: one_way.times(0.25),
                ns_per_byte: MedianEstimate::of_rounds(&per_byte),
                large_ns_per_byte: Some(MedianEstimate::of_rounds(&large)),
                measured,
            }
        };
        Ok(self.each.into_iter().map(summed_up).collect())
    }

    fn round(&mut self) -> Result<(), VirtualError> {
        for exchanged in &mut self.each {
            for duplex in [false, true] {
                let bench = Bench {
                    what: "p2p".into(),
                    transport: exchanged.transport.into(),
                    lent: exchanged.lent,
                    workers: 2,
                    duplex,
                    touched: PASS,
                    // Long ones first: rings and buffers have been used all through when it comes to short ones.
                    sizes: vec![LARGE, SMALL, 16 << 10, 1 << 10, 1],
                    seconds: self.effort.exchange_s,
                    ..Bench::default()
                };
                exchanged.take(duplex, &bench.run(self.by)?);
            }
        }
        self.rounds.count();
        Ok(())
    }
}

impl Exchanged {
    fn take(&mut self, duplex: bool, rows: &[Row]) {
        let [large, long, short, .., least] = rows else { return };
        if duplex {
            // Each side spends this on what it sends and what it receives.
            let slope = |more: &Row, less: &Row| {
                let seconds = more.seconds_median - less.seconds_median;
                1e9 * (seconds / (more.bytes - less.bytes) as f64).max(0.0) / 2.0
            };
            self.per_byte.push(slope(long, short));
            self.large.push(slope(large, long));
        } else {
            self.there.push(least.seconds_median / 2.0);
        }
        if self.there.len().max(self.per_byte.len()) == 1 {
            self.measured.extend(rows.iter().rev().map(|row| MessageTime {
                bytes: row.bytes,
                duplex,
                median_s: row.seconds_median,
                p95_s: row.seconds_p95,
            }));
        }
    }
}
