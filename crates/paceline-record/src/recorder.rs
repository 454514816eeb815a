//! Recording inside a rank: the thread that trains hands over rows and never waits; a second thread samples the
//! process at a steady rate and ships everything in batches. What there is no room for is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_gpu::Nvml;
use serde::{Deserialize, Serialize};

use crate::metric::cgroup::Cgroup;
use crate::metric::{GpuReading, HostReading, InterfaceReading, Metrics, ProcessReading, values};
use crate::observer::Observer;
use crate::process::monotonic_ns;
use crate::row::{Batch, RankSample, StepRow};
use crate::site::RunEnvironment;

/// Samples per second where nothing else is said.
pub const SAMPLE_HZ: f64 = 10.0;
const SHIP: Duration = Duration::from_millis(100);
/// Most rows of one kind that are shipped at once: 100 KiB fit into a pipe.
const SHIPMENT: usize = 1024;
/// The same of samples, which are larger where there are many links.
const SAMPLES: usize = 8;
/// Most rows of one kind that wait on either side of the handing over.
const WAITING: usize = 32 * 1024;
/// Handed-over packets that may wait for the second thread.
const PACKETS: usize = 4;

/// What is recorded of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// Samples per second; 0 for none.
    pub sample_hz: f64,
    /// Whether this rank tells of its process: of several in one process, one does.
    pub process: bool,
    /// Whether this rank tells of its machine: of several on one machine, one does.
    pub host: bool,
    /// Whether it tells of the machine's GPUs as well, where NVML does.
    #[serde(default)]
    pub devices: bool,
    /// Messages and waits to keep at most.
    pub trace: u64,
}

impl Default for Recording {
    fn default() -> Self {
        Self { sample_hz: SAMPLE_HZ, process: true, host: true, devices: false, trace: 0 }
    }
}

/// Takes a batch, or says that there is no room for it now.
pub type Ship = Box<dyn FnMut(&Batch, WaitForRoom) -> bool + Send>;

/// Whether to wait until there is room: only when training is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitForRoom(pub bool);

/// What the second thread is handed.
enum Packet {
    Rows(Vec<StepRow>),
    /// Everything is to be shipped now; told when it is.
    Flush(SyncSender<()>),
}

/// A rank's record, as the thread that trains sees it.
pub struct Recorder {
    rows: Vec<StepRow>,
    /// When rows were last handed over.
    handed_ns: u64,
    to: Option<SyncSender<Packet>>,
    dropped: Arc<AtomicU64>,
    observer: Arc<Observer>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Begins to record; `ship` takes the batches, on a thread of its own.
    pub fn start(recording: Recording, metrics: &Metrics, ship: Ship) -> Self {
        let (to, from) = sync_channel(PACKETS);
        let observer = Arc::new(Observer::new(recording.trace, metrics));
        let dropped = Arc::new(AtomicU64::new(0));
        let clerk = Clerk {
            recording,
            metrics: metrics.clone(),
            ship,
            observer: Arc::clone(&observer),
            dropped: Arc::clone(&dropped),
            cgroup: Cgroup::own(),
            nvml: None,
            batch: Batch { site: Some(Box::new(RunEnvironment::own())), ..Batch::default() },
        };
        let spawned = std::thread::Builder::new().name("record".into()).spawn(move || clerk.work(&from));
        // Without a second thread nothing is recorded, and everything counts as dropped.
        let thread = spawned.ok();
        Self { rows: Vec::new(), handed_ns: 0, to: Some(to), dropped, observer, thread }
    }

    /// What the rank's links and messages are told to.
    pub fn observer(&self) -> Arc<Observer> {
        Arc::clone(&self.observer)
    }

    /// Adds a step.
    pub fn step(&mut self, row: StepRow) {
        if self.rows.len() >= WAITING {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.rows.push(row);
        if row.begin_ns.saturating_sub(self.handed_ns) >= SHIP.as_nanos() as u64 {
            self.handed_ns = row.begin_ns;
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        let Some(to) = self.to.as_ref().filter(|_| !self.rows.is_empty()) else { return };
        let rows = std::mem::replace(&mut self.rows, Vec::with_capacity(256));
        match to.try_send(Packet::Rows(rows)) {
            Err(TrySendError::Full(Packet::Rows(rows))) => self.rows = rows,
            Err(TrySendError::Disconnected(Packet::Rows(rows))) => {
                self.dropped.fetch_add(rows.len() as u64, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Ships everything so far and waits until it has left: for pauses, in which nobody trains.
    pub fn flush(&mut self) {
        let Some(to) = &self.to else { return };
        let rows = std::mem::take(&mut self.rows);
        let (done, shipped) = sync_channel(1);
        if to.send(Packet::Rows(rows)).is_ok() && to.send(Packet::Flush(done)).is_ok() {
            // A clerk that panicked has said so on standard error.
            let _ = shipped.recv();
        }
    }

    /// Ships what is left, with a last sample; returns the rows that were dropped.
    pub fn finish(mut self) -> u64 {
        self.close();
        self.dropped.load(Ordering::Relaxed)
    }

    fn close(&mut self) {
        if let Some(to) = self.to.take() {
            // Training is over: now there is time to wait.
            let rows = std::mem::take(&mut self.rows);
            let lost = rows.len() as u64;
            if to.send(Packet::Rows(rows)).is_err() {
                self.dropped.fetch_add(lost, Ordering::Relaxed);
            }
        }
        if let Some(thread) = self.thread.take() {
            // A clerk that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.close();
    }
}

struct Clerk {
    recording: Recording,
    metrics: Metrics,
    ship: Ship,
    observer: Arc<Observer>,
    dropped: Arc<AtomicU64>,
    cgroup: Cgroup,
    nvml: Option<Nvml>,
    batch: Batch,
}

impl Clerk {
    fn work(mut self, from: &Receiver<Packet>) {
        let period =
            (self.recording.sample_hz > 0.0).then(|| Duration::from_secs_f64(1.0 / self.recording.sample_hz));
        // Loading it takes a while: not the time of the thread that trains.
        self.nvml = period.filter(|_| self.recording.devices).and_then(|_| Nvml::load().ok());
        let begun = Instant::now();
        let (mut next_sample, mut next_shipment) = (begun, begun);
        loop {
            let now = Instant::now();
            if let Some(period) = period.filter(|_| now >= next_sample) {
                self.sample();
                // After a pause of the whole process samples go on, they are not made up for.
                next_sample = (next_sample + period).max(now);
            }
            if now >= next_shipment {
                self.take_traces();
                self.ship(WaitForRoom(false));
                next_shipment = (next_shipment + SHIP).max(now);
            }
            let until = if period.is_some() { next_sample.min(next_shipment) } else { next_shipment };
            match from.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Packet::Flush(done)) => {
                    self.take_traces();
                    self.ship(WaitForRoom(true));
                    // Whoever asked may have stopped waiting.
                    let _ = done.send(());
                }
                Ok(Packet::Rows(rows)) => {
                    let room = WAITING.saturating_sub(self.batch.steps.len()).min(rows.len());
                    self.batch.steps.extend_from_slice(&rows[..room]);
                    self.dropped.fetch_add((rows.len() - room) as u64, Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if period.is_some() {
            self.sample();
        }
        self.take_traces();
        self.ship(WaitForRoom(true));
    }

    fn take_traces(&mut self) {
        // Their number is bounded from the start.
        self.batch.trace.append(&mut self.observer.traced());
    }

    fn sample(&mut self) {
        if self.batch.samples.len() >= WAITING {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Recording { process, host, .. } = self.recording;
        let at_ns = monotonic_ns();
        let interfaces = if host { InterfaceReading::all() } else { Vec::new() };
        self.batch.samples.push(RankSample {
            at_ns,
            process: if process {
                values(&self.metrics.process, &ProcessReading::now(&self.cgroup))
            } else {
                Vec::new()
            },
            links: self.observer.links(),
            host: if host { values(&self.metrics.host, &HostReading::now()) } else { Vec::new() },
            interfaces: interfaces
                .iter()
                .map(|(name, r)| (name.clone(), values(&self.metrics.interface, r)))
                .collect(),
            gpus: self
                .nvml
                .iter()
                .flat_map(GpuReading::all)
                .map(|(gpu, r)| (gpu, values(&self.metrics.gpu, &r)))
                .collect(),
        });
        self.observer.ask();
    }

    fn ship(&mut self, wait: WaitForRoom) {
        loop {
            let cut = |len: usize| len.min(SHIPMENT);
            let samples = self.batch.samples.len().min(SAMPLES);
            let mut part = Batch {
                site: self.batch.site.take(),
                samples: self.batch.samples.drain(..samples).collect(),
                steps: self.batch.steps.drain(..cut(self.batch.steps.len())).collect(),
                trace: self.batch.trace.drain(..cut(self.batch.trace.len())).collect(),
                dropped: self.dropped.load(Ordering::Relaxed),
            };
            let rest = self.batch.rows() > 0;
            if part.rows() == 0 && part.site.is_none() && !wait.0 {
                return;
            }
            if !(self.ship)(&part, wait) {
                // There is no room now: back into the queue, in order.
                part.samples.append(&mut self.batch.samples);
                part.steps.append(&mut self.batch.steps);
                part.trace.append(&mut self.batch.trace);
                self.batch = part;
                return;
            }
            if !rest {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn row(step: u64) -> StepRow {
        StepRow { step, begin_ns: step * SHIP.as_nanos() as u64, ..StepRow::default() }
    }

    /// A recorder whose batches are kept, `room` deciding whether one is taken.
    fn kept(
        recording: Recording,
        room: impl Fn(usize) -> bool + Send + 'static,
    ) -> (Recorder, Arc<Mutex<Vec<Batch>>>) {
        let all = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&all);
        let mut asked = 0;
        let ship = move |batch: &Batch, wait: WaitForRoom| {
            asked += 1;
            let taken = wait.0 || room(asked);
            if taken {
                into.lock().unwrap().push(batch.clone());
            }
            taken
        };
        (Recorder::start(recording, &Metrics::default(), Box::new(ship)), all)
    }

    #[test]
    fn every_step_arrives_once_and_in_order_however_often_there_is_no_room() {
        let (mut recorder, all) = kept(Recording::default(), |asked| asked % 3 == 0);
        (1..=5000).for_each(|step| recorder.step(row(step)));
        let dropped = recorder.finish();
        let all = all.lock().unwrap();
        let steps: Vec<u64> = all.iter().flat_map(|b| b.steps.iter().map(|s| s.step)).collect();
        assert_eq!((steps, dropped), ((1..=5000).collect(), 0));
        assert!(all[0].site.is_some() && all[1..].iter().all(|batch| batch.site.is_none()));
        let samples: Vec<&RankSample> = all.iter().flat_map(|b| &b.samples).collect();
        assert!(samples.len() >= 2, "one at the start and one at the end");
        assert!(samples.is_sorted_by_key(|s| s.at_ns));
        assert!(
            samples.iter().all(|s| s.process.len() == crate::metric::PROCESS.len() && s.process[0].is_some())
        );
    }

    #[test]
    fn a_flush_ships_every_step_so_far() {
        let (mut recorder, all) = kept(Recording { sample_hz: 0.0, ..Recording::default() }, |_| false);
        for last in [1, 7, 3000] {
            let steps = || all.lock().unwrap().iter().map(|b| b.steps.len() as u64).sum::<u64>();
            (steps() + 1..=last).for_each(|step| recorder.step(row(step)));
            recorder.flush();
            assert_eq!(steps(), last);
        }
        assert_eq!(recorder.finish(), 0);
    }

    #[test]
    fn what_there_is_no_room_for_is_dropped_and_counted_and_nobody_waits() {
        // Nothing is taken before the end, as from a launcher that stands still.
        let (mut recorder, all) = kept(Recording { sample_hz: 0.0, ..Recording::default() }, |_| false);
        let steps = 4 * WAITING as u64;
        (1..=steps).for_each(|step| recorder.step(row(step)));
        let dropped = recorder.finish();
        let all = all.lock().unwrap();
        let kept: usize = all.iter().map(|b| b.steps.len()).sum();
        assert!(dropped > 0 && kept > 0, "{dropped} dropped, {kept} kept");
        assert_eq!(kept as u64 + dropped, steps);
        assert_eq!(all.last().unwrap().dropped, dropped);
        assert!(all.iter().all(|b| b.samples.is_empty()));
    }
}
