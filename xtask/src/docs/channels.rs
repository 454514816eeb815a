//! The page of channels: every transport, and which one when, in words that follow from the figures.

use paceline_analyze::chart::ChartUnit;
use paceline_analyze::{Spread, distinct};
use paceline_bench::{Channel, Channels};
use paceline_wire::{TRANSPORTS, TransportKind};

use super::markdown::{Page, code};
use crate::channels::{COMMAND, FILE};

/// The payload that transports are compared with.
pub const PAYLOAD: &str = "uniform";
/// The size by which a transport's bandwidth is judged.
const LARGE: usize = 1 << 20;

/// Every transport, and how they compare.
pub fn page(measured: Option<&Channels>) -> String {
    let mut page = Page::new("Channels");
    page.text(
        "What ranks talk over: `--transport NAME`. The default, `auto`, is `shm`: shared memory within a machine, TCP \
         between machines. Handshake, frames and checksums are the same over all that connect processes, \
         and so are the results of a run along a named path (`--strategy auto` may take another one for another \
         transport: sums are then rounded in another order).",
    );
    let Some(measured) = measured.map(Figures) else {
        let row = |kind: &TransportKind| vec![code(kind.name), kind.about.into(), sized(kind)];
        page.table(
            &["transport", "ranks are", "`--buffer` sizes"],
            &TRANSPORTS.iter().map(row).collect::<Vec<_>>(),
        );
        page.text("Nothing has been measured yet. `cargo xtask bench channels`, then `cargo xtask docs`, puts it here.");
        return page.done();
    };
    page.heading("Which transport when");
    measured.choice(&mut page);
    page.heading("By size");
    measured.by_size(&mut page);
    page.heading("Buffers");
    measured.buffers(&mut page);
    page.heading("Payload");
    measured.payloads(&mut page);
    page.heading("How this was measured");
    measured.method(&mut page);
    page.done()
}

fn sized(kind: &TransportKind) -> String {
    kind.buffer.unwrap_or("nothing: there is none").into()
}

/// Whether more or less of a figure is better.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    More,
    Less,
}

/// How many times as fast `a` is as `b`; none if their repeats overlap.
fn times(a: Spread, b: Spread, better: Better) -> Option<f64> {
    let ratio = if better == Better::More { a.median / b.median } else { b.median / a.median };
    (!a.overlaps(&b)).then_some(ratio)
}

fn show(bytes: usize) -> String {
    ChartUnit::Bytes.show(bytes as f64)
}

fn buffer_name(buffer: Option<usize>) -> String {
    buffer.map_or_else(|| "default".into(), show)
}

/// What was measured, and what follows from it.
struct Figures<'a>(&'a Channels);

impl Figures<'_> {
    fn sizes(&self) -> Vec<usize> {
        let mut sizes = distinct(self.0.points.iter().map(|point| point.bytes));
        sizes.sort_unstable();
        sizes
    }

    fn find(&self, transport: &str, buffer: Option<usize>, payload: &str, bytes: usize) -> Option<&Channel> {
        let mut points = self.0.points.iter();
        points.find(|p| {
            p.transport == transport && p.buffer_bytes == buffer && p.payload == payload && p.bytes == bytes
        })
    }

    /// A transport's plain figure at a size: its own buffers, messages all alike.
    fn plain(&self, transport: &str, bytes: usize) -> Option<&Channel> {
        self.find(transport, None, PAYLOAD, bytes)
    }

    /// The table of transports, and which of those between processes is best at what.
    fn choice(&self, page: &mut Page) {
        let small = self.sizes()[0];
        let large = self.sizes().into_iter().min_by_key(|size| size.abs_diff(LARGE)).unwrap_or(small);
        let row = |kind: &TransportKind| {
            let at = |bytes, show: &dyn Fn(&Channel) -> String| {
                self.plain(kind.name, bytes).map_or_else(|| "–".into(), show)
            };
            vec![
                code(kind.name),
                kind.about.into(),
                at(small, &|p| ChartUnit::Seconds.show(p.latency_s.median)),
                at(large, &|p| ChartUnit::BytesPerSecond.show(p.bandwidth_bytes_per_s.median)),
                at(large, &|p| {
                    format!("{:.2} s/GB", p.sender_cpu_s_per_gb.median + p.receiver_cpu_s_per_gb.median)
                }),
                self.advice(kind),
            ]
        };
        let (latency, bandwidth) =
            (format!("latency, {}", show(small)), format!("bandwidth, {}", show(large)));
        let cpu = format!("CPU of both ends, {}", show(large));
        let head = ["transport", "ranks are", &latency, &bandwidth, &cpu, "choose it"];
        page.table(&head, &TRANSPORTS.iter().map(row).collect::<Vec<_>>());
        if let Some(words) = self.disturbed() {
            page.text(&words);
        }
        page.text(
            "What is “of one machine” cannot leave it. Where repeats of two transports overlap, neither is called \
             faster. What the figures say of transports between processes:",
        );
        page.items([
            self.best("Latency", "times as fast as", |p| p.latency_spread_s, Better::Less),
            self.best("Bandwidth", "times as fast as", |p| p.bandwidth_bytes_per_s, Better::More),
            self.best("CPU time of both ends", "times less than", both_ends, Better::Less),
        ]);
    }

    /// Transports between processes that were measured.
    fn between_processes(&self) -> Vec<&'static str> {
        let measured = self.0.transports();
        let kinds = TRANSPORTS.iter().filter(|kind| kind.bind.is_some() && measured.contains(&kind.name));
        kinds.map(|kind| kind.name).collect()
    }

    /// The best transport between processes at a size, and the next best.
    fn ranking(
        &self,
        bytes: usize,
        figure: fn(&Channel) -> Spread,
        better: Better,
    ) -> Vec<(&'static str, Spread)> {
        let names = self.between_processes().into_iter();
        let mut all: Vec<_> =
            names.filter_map(|name| self.plain(name, bytes).map(|point| (name, figure(point)))).collect();
        all.sort_by(|(_, a), (_, b)| match better {
            Better::More => b.median.total_cmp(&a.median),
            Better::Less => a.median.total_cmp(&b.median),
        });
        all
    }

    /// Transports that are best at a size: the best one, and those whose repeats overlap with its own.
    fn leaders(&self, bytes: usize, figure: fn(&Channel) -> Spread, better: Better) -> Vec<&'static str> {
        let ranking = self.ranking(bytes, figure, better);
        let Some(&(_, best)) = ranking.first() else { return Vec::new() };
        ranking.into_iter().filter(|(_, spread)| spread.overlaps(&best)).map(|(name, _)| name).collect()
    }

    /// When a transport is the one to choose.
    fn advice(&self, kind: &TransportKind) -> String {
        if self.plain(kind.name, self.sizes()[0]).is_none() {
            return "not measured yet".into();
        }
        if kind.bind.is_none() {
            return "where all ranks may be threads of one process".into();
        }
        let wins = |figure, better| {
            let sizes = self.sizes();
            let won = |bytes: &usize| self.leaders(*bytes, figure, better).contains(&kind.name);
            sizes.into_iter().filter(won).map(show).collect::<Vec<_>>()
        };
        let latency = wins(|p| p.latency_spread_s, Better::Less);
        let bandwidth = wins(|p| p.bandwidth_bytes_per_s, Better::More);
        let part = |what: &str, sizes: &[String]| {
            let all = sizes.len() == self.sizes().len();
            let which = if all { "every size".into() } else { list(sizes) };
            (!sizes.is_empty()).then(|| format!("{what} at {which}"))
        };
        let parts: Vec<_> =
            [part("latency", &latency), part("bandwidth", &bandwidth)].into_iter().flatten().collect();
        match parts.as_slice() {
            [] => "where no faster one can be used".into(),
            parts => format!("none is better in {}", parts.join("; ")),
        }
    }

    /// Who is best at which sizes, beside the default.
    fn best(&self, what: &str, than: &str, figure: fn(&Channel) -> Spread, better: Better) -> String {
        let default = TRANSPORTS[0].name;
        let mut sentences = Vec::new();
        for bytes in self.sizes() {
            let (leaders, ranking) =
                (self.leaders(bytes, figure, better), self.ranking(bytes, figure, better));
            let (Some(&(best, spread)), size) = (ranking.first(), show(bytes)) else { continue };
            let usual = ranking.iter().find(|(name, _)| *name == default && best != default);
            let beside = usual.or_else(|| ranking.get(1));
            let times =
                beside.and_then(|(name, other)| times(spread, *other, better).map(|times| (name, times)));
            sentences.push(match (leaders.as_slice(), times) {
                ([_], Some((name, times))) => {
                    format!("{best} with messages of {size}, {times:.1} {than} {name}")
                }
                ([_], None) => format!("{best} alone was measured with messages of {size}"),
                (leaders, Some((name, times))) => format!(
                    "{} with messages of {size}, which cannot be told apart, {best} {times:.1} {than} {name}",
                    list(leaders)
                ),
                (leaders, None) => {
                    format!("{} with messages of {size}, which cannot be told apart", list(leaders))
                }
            });
        }
        format!("{what}, the best: {}.", sentences.join("; "))
    }

    fn by_size(&self, page: &mut Page) {
        page.text("![Latency and bandwidth by size, one line per transport](channels.svg)");
        let seconds = |s: Spread| with_range(s, ChartUnit::Seconds);
        let rate = |s: Spread| with_range(s, ChartUnit::BytesPerSecond);
        page.text("One-way latency, half of a round trip: median (least to greatest repeat).");
        self.table(page, &|point| seconds(point.latency_spread_s));
        page.text("One-way bandwidth: median (least to greatest repeat).");
        self.table(page, &|point| rate(point.bandwidth_bytes_per_s));
        page.text("CPU seconds per 10⁹ bytes one way: sender + receiver.");
        self.table(page, &|point| {
            format!("{:.2} + {:.2}", point.sender_cpu_s_per_gb.median, point.receiver_cpu_s_per_gb.median)
        });
    }

    /// Sizes beside transports.
    fn table(&self, page: &mut Page, cell: &dyn Fn(&Channel) -> String) {
        let head: Vec<_> = ["size"].into_iter().chain(TRANSPORTS.iter().map(|kind| kind.name)).collect();
        let row = |bytes: usize| {
            let cells =
                TRANSPORTS.iter().map(|kind| self.plain(kind.name, bytes).map_or_else(|| "–".into(), cell));
            [show(bytes)].into_iter().chain(cells).collect()
        };
        page.table(&head, &self.sizes().into_iter().map(row).collect::<Vec<_>>());
    }

    fn buffers(&self, page: &mut Page) {
        let row = |kind: &TransportKind| vec![code(kind.name), sized(kind)];
        page.table(&["transport", "`--buffer` sizes"], &TRANSPORTS.iter().map(row).collect::<Vec<_>>());
        let buffers = distinct(self.0.points.iter().map(|point| point.buffer_bytes));
        if buffers.len() < 2 {
            page.text("Only one size of buffers was measured.");
            return;
        }
        page.text("Bandwidth with each, messages all alike (medians):");
        let mut rows = Vec::new();
        for kind in TRANSPORTS.iter().filter(|kind| kind.buffer.is_some()) {
            for bytes in self.sizes() {
                let cell = |&buffer: &Option<usize>| {
                    let point = self.find(kind.name, buffer, PAYLOAD, bytes);
                    point.map_or_else(
                        || "–".into(),
                        |p| ChartUnit::BytesPerSecond.show(p.bandwidth_bytes_per_s.median),
                    )
                };
                rows.push(
                    [code(kind.name), show(bytes)].into_iter().chain(buffers.iter().map(cell)).collect(),
                );
            }
        }
        let names: Vec<_> = buffers.iter().map(|buffer| buffer_name(*buffer)).collect();
        let head: Vec<_> =
            ["transport", "size"].into_iter().chain(names.iter().map(String::as_str)).collect();
        page.table(&head, &rows);
        page.text("Beside what the transport chooses by itself, where repeats do not overlap:");
        let mut items = Vec::new();
        for kind in TRANSPORTS.iter().filter(|kind| kind.buffer.is_some()) {
            for &buffer in buffers.iter().filter(|buffer| buffer.is_some()) {
                let compared = self.sizes().into_iter().map(|bytes| {
                    let own = self.plain(kind.name, bytes)?;
                    let other = self.find(kind.name, buffer, PAYLOAD, bytes)?;
                    Some((bytes, own.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s))
                });
                if let Some(words) = differences(compared.flatten()) {
                    items.push(format!("{} with {}: {words}.", code(kind.name), buffer_name(buffer)));
                }
            }
        }
        page.items(items);
    }

    fn payloads(&self, page: &mut Page) {
        let model = &self.0.model;
        page.items(self.0.payloads.iter().map(|scheme| {
            let whose = if scheme.name == "skewed" { format!(" (here {model})") } else { String::new() };
            format!("{}: {}{whose}.", code(&scheme.name), scheme.about)
        }));
        let others: Vec<_> = self.0.payloads.iter().filter(|scheme| scheme.name != PAYLOAD).collect();
        if others.is_empty() {
            page.text("Only one was measured.");
            return;
        }
        page.text(&format!(
            "Bandwidth beside `{PAYLOAD}` messages of the same mean size, default buffers, where repeats do not \
             overlap:"
        ));
        let mut items = Vec::new();
        for scheme in others {
            for kind in TRANSPORTS {
                let compared = self.sizes().into_iter().map(|bytes| {
                    let alike = self.plain(kind.name, bytes)?;
                    let other = self.find(kind.name, None, &scheme.name, bytes)?;
                    Some((bytes, alike.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s))
                });
                if let Some(words) = differences(compared.flatten()) {
                    items.push(format!("{} over {}: {words}.", code(&scheme.name), code(kind.name)));
                }
            }
        }
        page.items(items);
    }

    /// A warning, if the machine had other things to do.
    fn disturbed(&self) -> Option<String> {
        let (load, cores) = (self.0.load_average, self.0.machine.cores);
        (load > 0.5).then(|| {
            format!(
                "**The machine had other work to do** (load average {load:.1} on {cores} cores before the \
                 measurement began): these figures show that too, and are worth measuring again."
            )
        })
    }

    fn method(&self, page: &mut Page) {
        let Channels { machine, pairs, repeats, seconds, seed, version, .. } = self.0;
        page.text(&format!(
            "On one machine: {}, {} cores, {}; paceline {version}. {repeats} repeats of each point, each of about \
             {seconds} s with processes of its own, {} at a time, in an order drawn anew for each repeat (seed {seed}). \
             Latency is half of the time until a message has come back. Bandwidth counts a message's bytes without \
             headers, from the first message until the receiver has said that the last one is there. Messages over \
             512 KiB travel in parts of 512 KiB, as in training. The receiver looks at checksums, not at values. \
             CPU time includes short waits, in which a rank stays awake.",
            machine.cpu,
            machine.cores,
            machine.kernel,
            match pairs.unwrap_or(1) {
                1 => "one pair".to_owned(),
                pairs => format!("{pairs} pairs"),
            },
        ));
        page.text(&format!(
            "Every repeat is in `{FILE}`. To measure again, on a machine that does nothing else:"
        ));
        page.code(&["cargo xtask bench channels".into(), "cargo xtask docs".into()]);
        page.text("The first of these builds the program and runs");
        page.code(&[format!("paceline {COMMAND}")]);
        page.text("To look at a few points only:");
        page.code(
            &["paceline bench channels --transport tcp,shm --sizes 64,1MiB --plot channels.svg".into()],
        );
    }
}

/// CPU seconds of both ends per 10⁹ bytes. The least and the greatest are those of the ends, added.
fn both_ends(point: &Channel) -> Spread {
    let (a, b) = (point.sender_cpu_s_per_gb, point.receiver_cpu_s_per_gb);
    Spread { median: a.median + b.median, least: a.least + b.least, greatest: a.greatest + b.greatest }
}

fn with_range(spread: Spread, unit: ChartUnit) -> String {
    let Spread { median, least, greatest } = spread;
    format!("{} ({} to {})", unit.show(median), unit.show(least), unit.show(greatest))
}

/// At which sizes the second is faster or slower than the first, and how many times; none without sizes.
fn differences(compared: impl Iterator<Item = (usize, Spread, Spread)>) -> Option<String> {
    let (mut clear, mut any) = (Vec::new(), false);
    for (bytes, base, other) in compared {
        any = true;
        if let Some(times) = times(other, base, Better::More) {
            clear.push(format!("{times:.2} times the bandwidth at {}", show(bytes)));
        }
    }
    let none = || "no difference beyond the spread".to_owned();
    any.then(|| if clear.is_empty() { none() } else { clear.join(", ") })
}

/// Names in a sentence.
fn list<T: AsRef<str>>(names: &[T]) -> String {
    match names {
        [] => "none".into(),
        [one] => one.as_ref().into(),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(AsRef::as_ref).collect();
            format!("{} and {}", first.join(", "), last.as_ref())
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_analyze::Quantiles;
    use paceline_bench::{ChannelRepeat, SizeDistribution};

    use super::*;

    /// A point of two repeats, 5% to either side.
    fn point(transport: &str, buffer: Option<usize>, payload: &str, bytes: usize, rate: f64) -> Channel {
        let repeat = |factor: f64| ChannelRepeat {
            order: 0,
            round_trips: 1,
            latency_s: Quantiles { p5: 1e-6, median: factor / rate, p95: 1.0 },
            messages: 1,
            sent_bytes: 1_000_000,
            received_bytes: 1_000_000,
            seconds: 1e6 / (rate * factor),
            sender_cpu_s: 1e-3,
            receiver_cpu_s: 1e-3,
        };
        Channel::new(transport, buffer, payload, vec![bytes], vec![repeat(0.95), repeat(1.05)])
    }

    fn measured() -> Channels {
        let scheme = |name: &str| SizeDistribution { name: name.into(), about: format!("about {name}") };
        Channels {
            bench: "channels".into(),
            version: "0".into(),
            machine: serde_json::from_value(
                serde_json::json!({"cpu": "Abacus", "cores": 2, "usable_cores": 2, "kernel": "Linux"}),
            )
            .unwrap(),
            load_average: 0.1,
            pairs: Some(1),
            repeats: 2,
            seconds: 0.1,
            seed: 1,
            model: "lenet".into(),
            payloads: vec![scheme("uniform"), scheme("skewed")],
            left_out: Vec::new(),
            points: vec![
                point("tcp", None, "uniform", 64, 1e6),
                point("uds", None, "uniform", 64, 1.02e6),
                point("shm", None, "uniform", 64, 5e6),
                point("tcp", None, "uniform", LARGE, 2e9),
                point("uds", None, "uniform", LARGE, 4e9),
                point("shm", None, "uniform", LARGE, 4.1e9),
                point("tcp", Some(65536), "uniform", LARGE, 1e9),
                point("tcp", None, "skewed", LARGE, 2.02e9),
                point("uds", None, "skewed", LARGE, 8e9),
            ],
        }
    }

    fn flat(page: &str) -> String {
        page.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn words_follow_from_the_figures() {
        let text = flat(&page(Some(&measured())));
        for words in [
            "Bandwidth, the best: shm with messages of 64 B, 5.0 times as fast as tcp",
            "shm and uds with messages of 1 MiB, which cannot be told apart, shm 2.0 times as fast as tcp",
            "none is better in latency at every size",
            "`tcp` with 64 KiB: 0.50 times the bandwidth at 1 MiB.",
            "`skewed` over `tcp`: no difference beyond the spread.",
            "`skewed` over `uds`: 2.00 times the bandwidth at 1 MiB.",
            "about skewed (here lenet).",
            "Abacus, 2 cores",
            "where no faster one can be used",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        assert!(!text.contains("other work to do"));
        // Other figures, other words.
        let mut other = Channels { load_average: 7.0, ..measured() };
        other.points[2] = point("shm", None, "uniform", 64, 0.5e6);
        let text = flat(&page(Some(&other)));
        assert!(text.contains("uds and tcp with messages of 64 B, which cannot be told apart"), "{text}");
        assert!(text.contains("load average 7.0 on 2 cores"), "{text}");
    }

    #[test]
    fn what_was_not_measured_says_so() {
        let text = page(Some(&measured()));
        let inproc = text.lines().find(|line| line.starts_with("| `inproc`")).unwrap();
        assert!(inproc.contains("not measured yet"), "{inproc}");
        assert!(page(None).contains("Nothing has been measured yet"));
    }

    #[test]
    fn the_command_on_the_page_is_the_one_that_measures() {
        assert!(page(Some(&measured())).contains(&format!("paceline {COMMAND}")));
    }
}
