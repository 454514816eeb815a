//! Where the time of an all-reduce goes, beside what this machine can copy and add with as many processes at once.

use std::hint::black_box;
use std::time::{Duration, Instant};

use paceline_launch::LaunchError;
use paceline_protocol::Action;
use paceline_train::memory::{Bodies, Memory, add};
use paceline_train::worker::MESSAGE;
use paceline_wire::{Source, Span, TransportKind, checksum};
use serde::Serialize;

use crate::exchange::{Bench, BenchProgram, Row, Task};

/// Time that copying, adding and checksums are measured for, each.
const WINDOW: Duration = Duration::from_millis(80);
/// Numbers that a rank tells of a size, behind the times of all repetitions.
const FIGURES: usize = 9;

/// Memory that times what is computed in it, if that is asked for.
pub(crate) struct Timed<M> {
    pub inner: M,
    meter: Option<Meter>,
}

/// What a rank spent since [`Timed::begin`].
#[derive(Clone, Copy)]
struct Meter {
    /// CPU time so far of what the rank is.
    cpu_seconds: fn() -> f64,
    begun: Instant,
    begun_cpu: f64,
    adding: Duration,
    copying: Duration,
    added: usize,
    copied: usize,
}

impl Meter {
    fn new(cpu_seconds: fn() -> f64) -> Self {
        let (adding, copying) = (Duration::ZERO, Duration::ZERO);
        let (begun, begun_cpu) = (Instant::now(), cpu_seconds());
        Self { cpu_seconds, begun, begun_cpu, adding, copying, added: 0, copied: 0 }
    }
}

impl<M> Timed<M> {
    /// With a clock for CPU time it is timed.
    pub fn new(inner: M, cpu_seconds: Option<fn() -> f64>) -> Self {
        Self { inner, meter: cpu_seconds.map(Meter::new) }
    }

    /// What was before does not count.
    pub fn begin(&mut self) {
        self.meter = self.meter.map(|meter| Meter::new(meter.cpu_seconds));
    }

    /// The figures of `repetitions` repetitions with `size` elements, after measuring what the machine can do: every rank
    /// does so at this moment.
    pub fn figures(&self, size: usize, repetitions: usize) -> Vec<f32> {
        let Some(meter) = &self.meter else { return Vec::new() };
        let each = |value: f64| (value / repetitions as f64) as f32;
        let mut figures = vec![
            each(meter.begun.elapsed().as_secs_f64()),
            each((meter.cpu_seconds)() - meter.begun_cpu),
            each(meter.adding.as_secs_f64()),
            each(meter.copying.as_secs_f64()),
            each(4.0 * meter.added as f64),
            each(4.0 * meter.copied as f64),
        ];
        figures.extend(machine_costs(size).map(|seconds| seconds as f32));
        figures
    }
}

impl<M: Source> Source for Timed<M> {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        self.inner.slices(span, f);
    }
}

impl<M: Memory> Memory for Timed<M> {
    fn compute(&mut self, action: &Action, bodies: Bodies<'_>) -> bool {
        let Some(meter) = &mut self.meter else { return self.inner.compute(action, bodies) };
        let start = Instant::now();
        let done = self.inner.compute(action, bodies);
        match *action {
            Action::Reduce { dst, .. } => {
                (meter.adding, meter.added) = (meter.adding + start.elapsed(), meter.added + dst.len);
            }
            Action::Copy { dst, .. } => {
                (meter.copying, meter.copied) = (meter.copying + start.elapsed(), meter.copied + dst.len);
            }
            _ => {}
        }
        done
    }
}

/// Seconds per byte of copying, adding and checksums on buffers of so many elements, in pieces of a message.
fn machine_costs(size: usize) -> [f64; 3] {
    let (mut to, from) = (vec![0.0f32; size.max(1)], vec![1.0f32; size.max(1)]);
    let per_byte = |work: &mut dyn FnMut(&mut [f32], &[f32]), to: &mut [f32]| {
        // Pages that were never touched are no part of it.
        to.fill(0.0);
        let (start, mut bytes) = (Instant::now(), 0);
        while bytes == 0 || start.elapsed() < WINDOW {
            for (to, from) in to.chunks_mut(MESSAGE).zip(from.chunks(MESSAGE)) {
                work(black_box(to), black_box(from));
            }
            bytes += 4 * from.len();
        }
        start.elapsed().as_secs_f64() / bytes as f64
    };
    let copy = per_byte(&mut |to, from| to.copy_from_slice(from), &mut to);
    let sum = per_byte(&mut |to, from| add(to, from), &mut to);
    let check = per_byte(&mut |_, from| _ = black_box(checksum(from)), &mut to);
    [copy, sum, check]
}

/// What a transport does with every byte of a body, at both ends together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct BodyHandling {
    copies: f64,
    checksums: f64,
}

impl BodyHandling {
    fn of(kind: &TransportKind, emulated: bool) -> Self {
        let (copies, checksums) = match kind {
            // Peers read the sender's memory.
            kind if kind.lends && !emulated => (0.0, 0.0),
            // Into a ring, and out of it.
            kind if kind.lends => (2.0, 0.0),
            // Threads hand each other a copy.
            kind if kind.mesh.is_some() => (1.0, 0.0),
            // Into the kernel and out of it, summed at both ends.
            _ => (2.0, 2.0),
        };
        Self { copies, checksums }
    }
}

/// Where the time of an all-reduce of one size goes: seconds of a repetition, the mean of all ranks.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct BreakdownRow {
    pub bytes: usize,
    /// Measured: the median of the slowest rank's times, as without `--explain`.
    pub seconds_median: f64,
    /// Measured: the whole repetition.
    pub whole_s: f64,
    /// Measured: adding what came to what is there.
    pub summing_s: f64,
    /// Measured: taking in what the others have summed.
    pub taking_in_s: f64,
    /// Computed: the transport's copies of every byte that is sent or received.
    pub copying_s: f64,
    /// Computed: the transport's checksums of them.
    pub checksums_s: f64,
    /// Measured: asleep until something came (the whole less the CPU time).
    pub waiting_s: f64,
    /// What is left: waking up, system calls, looking for messages.
    pub waking_s: f64,
    /// Bytes that a rank receives, and sends.
    pub moved_bytes: f64,
    /// Measured with all processes at once: bytes per second of each.
    pub copy_bytes_per_s: f64,
    pub add_bytes_per_s: f64,
    pub checksum_bytes_per_s: f64,
    /// Computed: what summing and taking in would take at these rates.
    pub limit_s: f64,
}

/// Where the time of all-reduces goes.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct ExchangeBreakdown {
    pub strategy: String,
    pub transport: String,
    pub workers: usize,
    handling: BodyHandling,
    pub results: Vec<BreakdownRow>,
}

impl ExchangeBreakdown {
    /// Measures an all-reduce, and the machine beside it.
    pub fn measure(bench: &Bench, by: &BenchProgram<'_>) -> Result<Self, LaunchError> {
        let bench = Bench { task: Task::Explain, ..bench.clone() };
        let kind =
            paceline_launch::run::transport(&by.registries.transports, &bench.transport, bench.buffer)?;
        let accounts = bench.accounts(by)?;
        let times: Vec<Vec<f32>> = accounts.into_iter().map(|(_, times)| times).collect();
        Ok(Self::of(&bench, BodyHandling::of(kind, bench.network.is_some()), &times))
    }

    fn of(bench: &Bench, handling: BodyHandling, times: &[Vec<f32>]) -> Self {
        let rows = bench.rows(times);
        let row = |(i, row): (usize, &Row)| {
            let from_end = FIGURES * (rows.len() - i);
            let mean = |figure: usize| {
                let all = times.iter().map(|rank| f64::from(rank[rank.len() - from_end + figure]));
                all.sum::<f64>() / times.len() as f64
            };
            let [whole, cpu, adding, copying, added, copied] = [0, 1, 2, 3, 4, 5].map(mean);
            let [copy, add, check] = [6, 7, 8].map(mean);
            // What one rank receives another one has sent.
            let moved = added + copied;
            let waiting = (whole - cpu).clamp(0.0, whole);
            let (copies, checks) = (handling.copies * moved * copy, handling.checksums * moved * check);
            BreakdownRow {
                bytes: row.bytes,
                seconds_median: row.seconds_median,
                whole_s: whole,
                summing_s: adding,
                taking_in_s: copying,
                copying_s: copies,
                checksums_s: checks,
                waiting_s: waiting,
                waking_s: (whole - waiting - adding - copying - copies - checks).max(0.0),
                moved_bytes: moved,
                copy_bytes_per_s: 1.0 / copy,
                add_bytes_per_s: 1.0 / add,
                checksum_bytes_per_s: 1.0 / check,
                limit_s: added * add + copied * copy,
            }
        };
        Self {
            strategy: bench.what.clone(),
            transport: bench.transport.clone(),
            workers: bench.workers,
            handling,
            results: rows.iter().enumerate().map(row).collect(),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let Self { strategy, transport, workers, handling, results } = self;
        let mut text = format!(
            "{strategy} over {transport}, {workers} workers: where the µs of an all-reduce go, the mean of all ranks\n\
             {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n",
            "bytes", "median", "whole", "summing", "taking in", "copying", "checksums", "waiting", "waking"
        );
        for row in results {
            let parts = [
                row.seconds_median,
                row.whole_s,
                row.summing_s,
                row.taking_in_s,
                row.copying_s,
                row.checksums_s,
                row.waiting_s,
                row.waking_s,
            ];
            let parts = parts.map(|seconds| format!(" {:>10.1}", 1e6 * seconds)).concat();
            text += &format!("{:>10}{parts}\n", row.bytes);
        }
        text += &format!(
            "\nthis machine with {workers} processes at once, GB/s of each\n{:>10} {:>10} {:>10} {:>10} {:>10}\n",
            "bytes", "copying", "adding", "checksums", "limit µs"
        );
        for row in results {
            let rates = [row.copy_bytes_per_s, row.add_bytes_per_s, row.checksum_bytes_per_s];
            let rates = rates.map(|rate| format!(" {:>10.2}", rate / 1e9)).concat();
            text += &format!("{:>10}{rates} {:>10.1}\n", row.bytes, 1e6 * row.limit_s);
        }
        let BodyHandling { copies, checksums } = handling;
        text + &format!(
            "\nmeasured: the median of the slowest rank; of all ranks whole, summing, taking in (what others have summed) and \
             waiting (asleep: the whole less CPU time); the machine's GB/s, on buffers of that size\n\
             computed: copying and checksums of the transport ({copies} copies and {checksums} checksums of each byte, both ends \
             together) at the machine's rates; the limit: summing and taking in at these rates\n\
             what is left is waking: waking up, system calls, looking for messages\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of two ranks: the second one waits while the first one adds.
    fn times() -> Vec<Vec<f32>> {
        let bench = bench();
        let repetitions: usize = bench.sizes.iter().map(|size| bench.repetitions(*size)).sum();
        let of = |cpu: f32, adding: f32| {
            let figures = [10e-3, cpu, adding, 1e-3, 3e6, 1e6, 1e-9, 0.5e-9, 0.25e-9];
            [vec![11e-3; repetitions], figures.repeat(2)].concat()
        };
        vec![of(10e-3, 4e-3), of(6e-3, 2e-3)]
    }

    fn bench() -> Bench {
        let (what, transport) = ("ring-allreduce".into(), "tcp".into());
        Bench {
            what,
            transport,
            workers: 2,
            sizes: vec![1 << 10, 1 << 20],
            seconds: 1e-3,
            ..Bench::default()
        }
    }

    #[test]
    fn the_parts_are_the_means_of_all_ranks_and_add_up_to_the_whole() {
        let handling = BodyHandling { copies: 1.0, checksums: 2.0 };
        let told = ExchangeBreakdown::of(&bench(), handling, &times());
        assert_eq!(told.results.iter().map(|row| row.bytes).collect::<Vec<_>>(), [4 << 10, 4 << 20]);
        for row in &told.results {
            let near = |found: f64, want: f64| assert!((found - want).abs() < 1e-8, "{found} {want}");
            near(row.seconds_median, 11e-3);
            near(row.whole_s, 10e-3);
            near(row.summing_s, 3e-3);
            near(row.taking_in_s, 1e-3);
            // One rank was awake all the time, the other one slept 4 ms.
            near(row.waiting_s, 2e-3);
            near(row.copying_s, 4e6 * 1e-9);
            near(row.checksums_s, 2.0 * 4e6 * 0.25e-9);
            near(row.limit_s, 3e6 * 0.5e-9 + 1e6 * 1e-9);
            let known = row.summing_s + row.taking_in_s + row.copying_s + row.checksums_s + row.waiting_s;
            near(row.waking_s, (row.whole_s - known).max(0.0));
        }
        let text = told.text();
        for part in
            ["ring-allreduce over tcp, 2 workers", "1 copies and 2 checksums", "measured: ", "computed: "]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn transports_handle_bodies_as_they_are_made() {
        let of = |name: &str, emulated| {
            let kind = paceline_wire::TRANSPORTS.iter().find(|kind| kind.name == name).unwrap();
            let BodyHandling { copies, checksums } = BodyHandling::of(kind, emulated);
            (copies, checksums)
        };
        assert_eq!([of("tcp", false), of("uds", false), of("grpc", true)], [(2.0, 2.0); 3]);
        assert_eq!([of("shm", false), of("inproc", false)], [(0.0, 0.0), (1.0, 0.0)]);
        assert_eq!(of("shm", true), (2.0, 0.0));
    }

    #[test]
    fn memory_that_nobody_times_has_no_figures() {
        let timed = Timed::new((), None);
        assert!(timed.figures(16, 1).is_empty());
        let timed = Timed::new((), Some(|| 0.0));
        let figures = timed.figures(16, 1);
        assert_eq!(figures.len(), FIGURES);
        assert!(figures[6..].iter().all(|seconds| *seconds > 0.0), "{figures:?}");
    }
}
