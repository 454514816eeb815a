//! The document of `paceline bench channels`: every repeat as it was measured, and what they come to.

use paceline_analyze::chart::{Chart, ChartUnit};
use paceline_analyze::sheet::TableColumn;
use paceline_analyze::{Quantiles, Spread, distinct};
use serde::{Deserialize, Serialize};

use crate::document::{Channels, panel};

/// One kind of message over one kind of channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Channel {
    /// What the ranks talk over.
    pub transport: String,
    /// Bytes of each connection's buffer; what the transport chooses if absent.
    pub buffer_bytes: Option<usize>,
    /// How sizes are distributed.
    pub payload: String,
    /// The mean size of a message.
    pub bytes: usize,
    /// Sizes of the messages, in turn.
    pub sizes_bytes: Vec<usize>,
    /// Half of a round trip: the median over repeats of each repeat's quantiles.
    pub latency_s: Quantiles,
    /// Repeats' medians of the same.
    pub latency_spread_s: Spread,
    /// Bytes per second one way, all pairs together, over repeats.
    pub bandwidth_bytes_per_s: Spread,
    /// CPU seconds that senders spend per 10⁹ bytes, over repeats.
    pub sender_cpu_s_per_gb: Spread,
    /// CPU seconds that receivers spend per 10⁹ bytes, over repeats.
    pub receiver_cpu_s_per_gb: Spread,
    /// As measured.
    pub repeats: Vec<ChannelRepeat>,
}

/// One repeat: processes of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelRepeat {
    /// Its place in the order of all repeats of all points.
    pub order: usize,
    /// Round trips timed, all pairs together.
    pub round_trips: usize,
    /// Half of a round trip.
    pub latency_s: Quantiles,
    /// Messages sent one way, all pairs together.
    pub messages: u64,
    /// Bytes sent, without headers.
    pub sent_bytes: u64,
    /// Bytes that arrived.
    pub received_bytes: u64,
    /// From the first message to the word that the last has come: the slowest pair's.
    pub seconds: f64,
    /// CPU seconds of the senders meanwhile.
    pub sender_cpu_s: f64,
    /// CPU seconds of the receivers meanwhile.
    pub receiver_cpu_s: f64,
}

impl ChannelRepeat {
    /// Bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.sent_bytes as f64 / self.seconds
    }
}

impl Channel {
    /// A point out of its repeats, at least one.
    pub fn new(
        transport: &str,
        buffer_bytes: Option<usize>,
        payload: &str,
        sizes_bytes: Vec<usize>,
        repeats: Vec<ChannelRepeat>,
    ) -> Self {
        let over = |figure: fn(&ChannelRepeat) -> f64| Spread::of(repeats.iter().map(figure));
        let per_gb = |seconds: f64, repeat: &ChannelRepeat| seconds / (repeat.sent_bytes as f64 / 1e9);
        Self {
            transport: transport.into(),
            buffer_bytes,
            payload: payload.into(),
            bytes: sizes_bytes.iter().sum::<usize>() / sizes_bytes.len(),
            sizes_bytes,
            latency_s: Quantiles::medians(repeats.iter().map(|r| r.latency_s)),
            latency_spread_s: over(|r| r.latency_s.median),
            bandwidth_bytes_per_s: over(ChannelRepeat::bandwidth),
            sender_cpu_s_per_gb: Spread::of(repeats.iter().map(|r| per_gb(r.sender_cpu_s, r))),
            receiver_cpu_s_per_gb: Spread::of(repeats.iter().map(|r| per_gb(r.receiver_cpu_s, r))),
            repeats,
        }
    }
}

impl Channels {
    /// Points of one buffer and one payload, as they were asked for.
    pub fn of<'a>(
        &'a self,
        buffer: Option<usize>,
        payload: &'a str,
    ) -> impl Iterator<Item = &'a Channel> + 'a {
        self.points.iter().filter(move |p| p.buffer_bytes == buffer && p.payload == payload)
    }

    /// Transports in the order of their appearance.
    pub fn transports(&self) -> Vec<&str> {
        distinct(self.points.iter().map(|point| point.transport.as_str()))
    }

    /// Latency and bandwidth by size, a line per transport.
    pub fn chart(&self, buffer: Option<usize>, payload: &str) -> Chart {
        let points: Vec<_> = self.of(buffer, payload).collect();
        let panel = |title: &str, what: &str, unit: ChartUnit, figure: fn(&Channel) -> Spread| {
            let dot = |point: &&Channel| (point.transport.clone(), point.bytes as f64, figure(point));
            let size = ("size of a message", ChartUnit::Bytes);
            panel(title, size, (what, unit), points.iter().map(dot).collect())
        };
        let pairs = self.pairs.unwrap_or(1);
        let pairs = if pairs == 1 { "1 pair".into() } else { format!("{pairs} pairs") };
        let buffer_words = buffer.map_or_else(
            || "default buffers".into(),
            |bytes| format!("buffers of {}", ChartUnit::Bytes.show(bytes as f64)),
        );
        let panels = vec![
            panel("One-way latency (half a round trip)", "latency", ChartUnit::Seconds, |p| {
                p.latency_spread_s
            }),
            panel("One-way bandwidth", "bandwidth", ChartUnit::BytesPerSecond, |p| p.bandwidth_bytes_per_s),
        ];
        let title = format!("Channels between ranks of one machine, {payload} payload");
        self.drawn("channels", title, &format!("{pairs}, {buffer_words}; "), panels)
    }

    pub fn text(&self) -> String {
        let seconds = |value: f64| ChartUnit::Seconds.show(value);
        let columns: [TableColumn<'_, Channel>; 12] = [
            ("transport", &|point| point.transport.clone()),
            ("buffer", &|point| buffer_words(point.buffer_bytes)),
            ("payload", &|point| point.payload.clone()),
            ("size", &|point| ChartUnit::Bytes.show(point.bytes as f64)),
            ("latency", &|point| seconds(point.latency_s.median)),
            ("±", &|point| point.latency_spread_s.percent()),
            ("p5", &|point| seconds(point.latency_s.p5)),
            ("p95", &|point| seconds(point.latency_s.p95)),
            ("bandwidth", &|point| ChartUnit::BytesPerSecond.show(point.bandwidth_bytes_per_s.median)),
            ("±", &|point| point.bandwidth_bytes_per_s.percent()),
            ("send CPU s/GB", &|point| format!("{:.2}", point.sender_cpu_s_per_gb.median)),
            ("receive CPU s/GB", &|point| format!("{:.2}", point.receiver_cpu_s_per_gb.median)),
        ];
        let pairs = self.pairs.unwrap_or(1);
        let plural = if pairs == 1 { "pair" } else { "pairs" };
        self.table(&format!("{pairs} {plural}, "), &columns, 4)
    }
}

pub(crate) fn buffer_words(buffer: Option<usize>) -> String {
    buffer.map_or_else(|| "default".into(), |bytes| ChartUnit::Bytes.show(bytes as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeat(latency: f64, seconds: f64) -> ChannelRepeat {
        ChannelRepeat {
            order: 0,
            round_trips: 10,
            latency_s: Quantiles { p5: latency / 2.0, median: latency, p95: latency * 2.0 },
            messages: 4,
            sent_bytes: 4_000_000_000,
            received_bytes: 4_000_000_000,
            seconds,
            sender_cpu_s: 2.0,
            receiver_cpu_s: 1.0,
        }
    }

    #[test]
    fn a_point_sums_up_its_repeats() {
        let repeats = vec![repeat(3.0, 4.0), repeat(1.0, 1.0), repeat(2.0, 2.0)];
        let point = Channel::new("tcp", None, "uniform", vec![1 << 30], repeats);
        assert_eq!(point.latency_s, Quantiles { p5: 1.0, median: 2.0, p95: 4.0 });
        assert_eq!(point.latency_spread_s, Spread { median: 2.0, least: 1.0, greatest: 3.0 });
        assert_eq!(point.bandwidth_bytes_per_s, Spread { median: 2e9, least: 1e9, greatest: 4e9 });
        assert_eq!((point.sender_cpu_s_per_gb.median, point.receiver_cpu_s_per_gb.median), (0.5, 0.25));
        assert_eq!(point.bytes, 1 << 30);
        let text = serde_json::to_string(&point).unwrap();
        let back: Channel = serde_json::from_str(&text).unwrap();
        assert_eq!(back.repeats, point.repeats);
    }
}
