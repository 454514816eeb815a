//! What the thread that trains lets others see of its links and messages. It is asked now and then, and never
//! waits: between two questions it looks at one flag.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::metric::{LinkReading, Metrics, values};
use crate::process::monotonic_ns;
use crate::row::{TraceRow, Values};

/// A rank's links and messages, shared by the thread that trains and the one that records.
#[derive(Debug, Default)]
pub struct Observer {
    metrics: Metrics,
    asked: AtomicBool,
    links: Mutex<Vec<(usize, u64, Values)>>,
    /// Traced rows that there is still room for.
    room: AtomicU64,
    trace: Mutex<Vec<TraceRow>>,
}

impl Observer {
    /// Nothing has been seen yet; `trace` messages and waits will be kept at most.
    pub fn new(trace: u64, metrics: &Metrics) -> Self {
        Self { room: trace.into(), asked: true.into(), metrics: metrics.clone(), ..Self::default() }
    }

    /// Whether somebody wants to know how the links are.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Asks for the links.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Answers how the links are, by peer.
    pub fn publish(&self, links: impl Iterator<Item = (usize, LinkReading)>) {
        let now = monotonic_ns();
        let rows = links.map(|(peer, reading)| (peer, now, values(&self.metrics.link, &reading))).collect();
        if let Ok(mut kept) = self.links.lock() {
            *kept = rows;
        }
        self.asked.store(false, Ordering::Relaxed);
    }

    /// The links as they were published last; empty if they were not published since this was last called.
    pub fn links(&self) -> Vec<(usize, u64, Values)> {
        self.links.lock().map(|mut links| std::mem::take(&mut *links)).unwrap_or_default()
    }

    /// Whether messages are traced.
    pub fn traces(&self) -> bool {
        self.room.load(Ordering::Relaxed) > 0
    }

    /// Keeps a message or a wait, if there is room.
    pub fn trace(&self, row: TraceRow) {
        let room = self.room.load(Ordering::Relaxed);
        if room == 0 {
            return;
        }
        self.room.store(room - 1, Ordering::Relaxed);
        if let Ok(mut rows) = self.trace.lock() {
            rows.push(row);
        }
    }

    /// Takes what was traced.
    pub fn traced(&self) -> Vec<TraceRow> {
        self.trace.lock().map(|mut rows| std::mem::take(&mut *rows)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_published_when_asked_for_and_traces_end_where_the_room_does() {
        let observer = Observer::new(2, &Metrics::default());
        assert!(observer.asked(), "the first question comes with the start");
        observer.publish([(1, LinkReading { sent_bytes: 7, ..LinkReading::default() })].into_iter());
        assert!(!observer.asked());
        let links = observer.links();
        assert_eq!((links[0].0, links[0].2[0], links[0].2.last().unwrap()), (1, Some(7.0), &None));
        assert!(observer.links().is_empty());
        observer.ask();
        assert!(observer.asked());
        for n in 0..3 {
            observer.trace(TraceRow { n, ..TraceRow::default() });
        }
        assert_eq!((observer.traced().len(), observer.traces()), (2, false));
    }
}
