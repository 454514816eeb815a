//! What is sampled of the link between a rank and one of its peers.

use super::{Metric, MetricKind};

/// A link at a moment, as the rank's transport sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkReading {
    /// Bytes of the messages sent, with their frame headers.
    pub sent_bytes: u64,
    /// Messages sent.
    pub sent_messages: u64,
    /// Bytes of the messages received.
    pub received_bytes: u64,
    /// Messages received.
    pub received_messages: u64,
    /// The kernel's view, where the link is a TCP connection.
    pub tcp: Option<TcpReading>,
    /// The least time of an empty message to the peer and back before the first step, in seconds.
    pub greeting_s: Option<f64>,
}

/// The kernel's view of a TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TcpReading {
    /// Smoothed round trip in seconds.
    pub round_trip_s: f64,
    /// Segments sent again, from the start.
    pub retransmits: u64,
    /// Congestion window in bytes.
    pub window_bytes: u64,
}

/// Metrics of a link.
pub static LINK: &[Metric<LinkReading>] = &[
    Metric {
        name: "sent_bytes",
        unit: "bytes",
        kind: MetricKind::Counter,
        about: "messages sent to the peer, frame headers included",
        source: "the transport's count",
        read: |r| Some(r.sent_bytes as f64),
    },
    Metric {
        name: "sent_messages",
        unit: "messages",
        kind: MetricKind::Counter,
        about: "messages sent to the peer",
        source: "the transport's count",
        read: |r| Some(r.sent_messages as f64),
    },
    Metric {
        name: "received_bytes",
        unit: "bytes",
        kind: MetricKind::Counter,
        about: "messages received from the peer, frame headers included",
        source: "the transport's count",
        read: |r| Some(r.received_bytes as f64),
    },
    Metric {
        name: "received_messages",
        unit: "messages",
        kind: MetricKind::Counter,
        about: "messages received from the peer",
        source: "the transport's count",
        read: |r| Some(r.received_messages as f64),
    },
    Metric {
        name: "round_trip_s",
        unit: "s",
        kind: MetricKind::Gauge,
        about: "the kernel's smoothed round trip (TCP only)",
        source: "TCP_INFO",
        read: |r| r.tcp.map(|tcp| tcp.round_trip_s),
    },
    Metric {
        name: "retransmits",
        unit: "segments",
        kind: MetricKind::Counter,
        about: "segments that the kernel sent again (TCP only)",
        source: "TCP_INFO",
        read: |r| r.tcp.map(|tcp| tcp.retransmits as f64),
    },
    Metric {
        name: "window_bytes",
        unit: "bytes",
        kind: MetricKind::Gauge,
        about: "the kernel's congestion window (TCP only)",
        source: "TCP_INFO",
        read: |r| r.tcp.map(|tcp| tcp.window_bytes as f64),
    },
    Metric {
        name: "greeting_s",
        unit: "s",
        kind: MetricKind::Gauge,
        about: "an empty message to the peer and back before the first step, the fastest of several",
        source: "the rank's clock",
        read: |r| r.greeting_s,
    },
];
