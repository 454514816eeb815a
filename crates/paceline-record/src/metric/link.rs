//! What is sampled of the link between a rank and one of its peers.

use super::{Metric, counter, gauge};

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
    counter("sent_bytes", "bytes", "messages sent to the peer, frame headers included")
        .read("the transport's count", |r| Some(r.sent_bytes as f64)),
    counter("sent_messages", "messages", "messages sent to the peer")
        .read("the transport's count", |r| Some(r.sent_messages as f64)),
    counter("received_bytes", "bytes", "messages received from the peer, frame headers included")
        .read("the transport's count", |r| Some(r.received_bytes as f64)),
    counter("received_messages", "messages", "messages received from the peer")
        .read("the transport's count", |r| Some(r.received_messages as f64)),
    gauge("round_trip_s", "s", "the kernel's smoothed round trip (TCP only)")
        .read("TCP_INFO", |r| r.tcp.map(|tcp| tcp.round_trip_s)),
    counter("retransmits", "segments", "segments that the kernel sent again (TCP only)")
        .read("TCP_INFO", |r| r.tcp.map(|tcp| tcp.retransmits as f64)),
    gauge("window_bytes", "bytes", "the kernel's congestion window (TCP only)")
        .read("TCP_INFO", |r| r.tcp.map(|tcp| tcp.window_bytes as f64)),
    gauge(
        "greeting_s",
        "s",
        "an empty message to the peer and back before the first step, the fastest of several",
    )
    .read("the rank's clock", |r| r.greeting_s),
];
