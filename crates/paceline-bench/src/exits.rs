//! Answers of a network with early exits whose tiers are ranks of their own: devices, a gateway that decides by their
//! scores, and the tiers above it. What goes from tier to tier are real messages over a real transport.
//!
//! For each batch, devices send scores to the gateway; the gateway answers what is certain enough and says which samples
//! stay open; devices send the features of those to the next tier, and so on upwards.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_launch::{LaunchError, RankAccount};
use paceline_nn::{Compute, TierEdge};
use paceline_plan::{NetworkLimits, Plan};
use paceline_train::worker::MESSAGE;
use paceline_train::{
    ExitAnswer, ExitAnswers, ExitModel, ExitRequest, ExitsReport, TierNetwork, TrainError, pack_signs,
    unpack_signs,
};
use paceline_wire::{Event, META, Source, Span, Transport};
use serde::{Deserialize, Serialize};

use crate::exchange::{Account, Bench, BenchProgram, PATIENCE, RankPart, Task};

/// Samples of a batch, unless others are asked for or a message holds fewer.
const BATCH: usize = 64;

/// What is sent, as counted: scores, features, and which samples stay open.
const SCORES: usize = 0;
const FEATURES: usize = 1;
const DECISIONS: usize = 2;
const KINDS: usize = 3;

/// What the ranks are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExitTask {
    /// The network, its samples and its weights are what a run of this plan would begin with.
    pub plan: Plan,
    /// Where datasets are looked for.
    pub folders: Vec<PathBuf>,
    /// A sample leaves at the first exit whose normalised entropy is at most this.
    pub threshold: f64,
    /// Devices whose view is blank.
    pub lost: Vec<usize>,
    /// Samples that are answered together; none: as many as usual.
    pub batch: Option<usize>,
    /// Threads of each rank.
    pub threads: usize,
}

/// Answers over a transport.
pub struct DistributedExits {
    /// What the ranks do.
    pub task: ExitTask,
    /// What they talk over; between threads if that is what it is for, else between processes.
    pub transport: String,
    /// Emulated links; each rank is a host of its own.
    pub network: Option<NetworkLimits>,
}

/// What the devices have sent, in all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierTraffic {
    /// The tier.
    pub tier: String,
    /// Bytes of scores.
    pub scores_bytes: u64,
    /// Bytes of features.
    pub features_bytes: u64,
    /// Bytes that say which samples stay open.
    pub decisions_bytes: u64,
    /// Messages.
    pub messages: u64,
    /// Everything else of the messages sent: headers, and what fills bodies up to four bytes.
    pub header_bytes: u64,
}

impl TierTraffic {
    /// Scores and features.
    pub fn body_bytes(&self) -> u64 {
        self.scores_bytes + self.features_bytes
    }
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct ExitRun {
    /// What the ranks talked over.
    pub transport: String,
    /// Emulated links.
    pub network: Option<String>,
    /// Whether the ranks were processes; otherwise threads.
    pub processes: bool,
    /// Samples that were answered.
    pub samples: usize,
    /// Samples that were answered together.
    pub batch: usize,
    /// Threads that each rank computed with.
    pub threads: usize,
    /// From the first batch to the last answer, by the last tier's clock.
    pub seconds: f64,
    /// Samples whose exit, class or entropy is not, bit for bit, that of the evaluation in one process.
    pub different: usize,
    /// What each tier has sent.
    pub tiers: Vec<TierTraffic>,
    /// Bytes of bodies that devices should have sent: samples · scores + samples that stayed open · features.
    pub formula_bytes: u64,
    /// Bytes of bodies that they have sent.
    pub body_bytes: u64,
    /// Bytes of headers of the devices' messages.
    pub header_bytes: u64,
}

/// What came out in one process, and over a transport.
#[derive(Clone, Debug, Serialize)]
pub struct AnsweredExits {
    /// In one process.
    #[serde(flatten)]
    pub evaluated: ExitsReport,
    /// Devices whose view was blank in the run over a transport.
    pub lost: Vec<usize>,
    /// Over a transport.
    pub distributed: ExitRun,
}

impl DistributedExits {
    /// Answers the test split in this process, then tier by tier; `tell` gets a line before each.
    pub fn answer(&self, by: &BenchProgram<'_>, tell: &dyn Fn(&str)) -> Result<AnsweredExits, LaunchError> {
        let ExitTask { plan, folders, threshold, lost, threads, .. } = &self.task;
        let model = ExitModel::load(plan, folders, by.registries)?;
        let devices = model.tiers.devices;
        if let Some(&device) = lost.iter().find(|device| **device >= devices) {
            let model = plan.model.clone();
            return Err(TrainError::NoSuchDevice { device, model, last: devices - 1 }.into());
        }
        let (batch, threads) = (self.task.batch(&model)?, *threads);
        let request = ExitRequest { plan, model: &model, threshold: *threshold, batch, threads };
        let (evaluated, mut answers) = request.evaluate(tell)?;
        if !lost.is_empty() {
            answers = request.without(lost)?;
        }
        let above = model.tiers.upper().len();
        tell(&format!("the same over {}: {devices} devices and {above} tiers above them", self.transport));
        let distributed = self.run(&model, batch, &answers, by)?;
        Ok(AnsweredExits { evaluated, lost: lost.clone(), distributed })
    }

    /// Runs the tiers, and compares what they answer with what one process did.
    fn run(
        &self,
        model: &ExitModel,
        batch: usize,
        wanted: &ExitAnswers,
        by: &BenchProgram<'_>,
    ) -> Result<ExitRun, LaunchError> {
        let (tiers, samples) = (&model.tiers, model.dataset.test.len());
        let bench = Bench {
            what: "exits".into(),
            task: Task::Answer(Box::new(self.task.clone())),
            transport: self.transport.clone(),
            network: self.network,
            workers: tiers.tiers.len(),
            // What the slowest machine may take for a sample: patience, nothing is measured by it.
            seconds: samples as f64 * 0.01,
            ..Bench::default()
        };
        let accounts = bench.accounts(by)?;
        let mut answered: BTreeMap<usize, (usize, ExitAnswer)> = BTreeMap::new();
        let (mut traffic, mut threads) = (Vec::new(), 0);
        for (rank, (account, numbers)) in accounts.iter().enumerate() {
            let words: Vec<u32> = numbers.iter().map(|n| n.to_bits()).collect();
            let (counts, answers) = words.split_at(2 * KINDS + 2);
            threads = threads.max(counts[2 * KINDS + 1] as usize);
            let bytes = |kind: usize| u64::from(counts[2 * kind]) | u64::from(counts[2 * kind + 1]) << 32;
            for answer in answers.chunks_exact(4) {
                let entropy = f64::from_bits(u64::from(answer[2]) | u64::from(answer[3]) << 32);
                let answer = (answer[0] as usize, ExitAnswer { class: answer[1] as u16, entropy });
                answered.insert(answer.0, (rank - tiers.devices, answer.1));
            }
            let bodies: u64 = (0..KINDS).map(bytes).sum();
            traffic.push(TierTraffic {
                tier: tiers.tiers[rank].name.clone(),
                scores_bytes: bytes(SCORES),
                features_bytes: bytes(FEATURES),
                decisions_bytes: bytes(DECISIONS),
                messages: u64::from(counts[2 * KINDS]),
                header_bytes: account.sent_bytes - bodies,
            });
        }
        let same = |i: &usize| {
            let (tier, answer) = wanted.leaving(*i, self.task.threshold);
            answered.get(i).is_some_and(|&(at, found)| {
                (at, found.class) == (tier, answer.class)
                    && found.entropy.to_bits() == answer.entropy.to_bits()
            })
        };
        let devices = &traffic[..tiers.devices];
        Ok(ExitRun {
            transport: self.transport.clone(),
            network: self.network.map(|network| network.to_string()),
            processes: by.registries.transports.find(&self.transport).is_some_and(|kind| kind.mesh.is_none()),
            samples: answered.len(),
            batch,
            threads,
            seconds: accounts.iter().map(|(account, _)| account.train_s).fold(0.0, f64::max),
            different: (0..samples).filter(|i| !same(i)).count(),
            formula_bytes: self.formula(model, batch, wanted),
            body_bytes: devices.iter().map(TierTraffic::body_bytes).sum(),
            header_bytes: devices.iter().map(|device| device.header_bytes).sum(),
            tiers: traffic,
        })
    }

    /// Bytes of bodies of all devices: each hands on its scores of every sample, and what a tier reads of those that are
    /// open there.
    fn formula(&self, model: &ExitModel, size: usize, wanted: &ExitAnswers) -> u64 {
        let (tiers, samples) = (&model.tiers, model.dataset.test.len());
        let at: Vec<usize> = (0..samples).map(|i| wanted.leaving(i, self.task.threshold).0).collect();
        let mut total = 0;
        for upper in 0..tiers.upper().len() {
            for batch in at.chunks(size) {
                let open = batch.iter().filter(|tier| **tier >= upper).count();
                let edges = (0..tiers.devices).flat_map(|device| tiers.from_device(device, upper));
                total += edges.map(|edge| edge.bytes(open) as u64).sum::<u64>();
            }
        }
        total
    }
}

impl ExitRun {
    /// For people.
    pub fn text(&self) -> String {
        let Self { transport, network, samples, batch, threads, seconds, different, .. } = self;
        let ranks = if self.processes { "processes" } else { "threads" };
        let network =
            network.as_ref().map_or(String::new(), |network| format!(", emulated links of {network}"));
        let mut text = format!(
            "\n{} {ranks} of {threads} thread{} over {transport}{network}: {samples} samples, {batch} at once, in \
             {seconds:.2} s; {different} of them answered differently than in one process\n\n",
            self.tiers.len(),
            if *threads == 1 { "" } else { "s" }
        );
        text += &format!(
            "{:<10} {:>14} {:>16} {:>17} {:>10} {:>14}\n",
            "sent by",
            "scores (bytes)",
            "features (bytes)",
            "decisions (bytes)",
            "messages",
            "headers (bytes)"
        );
        for tier in &self.tiers {
            text += &format!(
                "{:<10} {:>14} {:>16} {:>17} {:>10} {:>14}\n",
                tier.tier,
                tier.scores_bytes,
                tier.features_bytes,
                tier.decisions_bytes,
                tier.messages,
                tier.header_bytes
            );
        }
        text += &format!(
            "\nbodies of the devices: {} bytes, {} by the formula; their headers: {} bytes\n",
            self.body_bytes, self.formula_bytes, self.header_bytes
        );
        text
    }
}

/// Whom a rank talks with: everybody.
pub(crate) fn links(world: usize, rank: usize) -> Vec<usize> {
    (0..world).filter(|other| *other != rank).collect()
}

impl ExitTask {
    /// A task of one batch size and one number of threads, if any are given of each.
    pub fn new(
        plan: Plan,
        folders: Vec<PathBuf>,
        threshold: f64,
        lost: Vec<usize>,
        [batches, threads]: [&[usize]; 2],
    ) -> Result<Self, TrainError> {
        let one = |flag: &'static str, given: &[usize]| match given {
            [] => Ok(None),
            [number] => Ok(Some(*number)),
            more => {
                let value = more.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
                let problem = "the test split is answered once, not measured for each number".into();
                Err(TrainError::ExitFlag { flag, value, problem })
            }
        };
        let (batch, threads) = (one("batch", batches)?, one("threads", threads)?.unwrap_or(1));
        Ok(Self { plan, folders, threshold, lost, batch, threads })
    }

    /// Samples of a batch: a message holds every value of all of them.
    fn batch(&self, model: &ExitModel) -> Result<usize, TrainError> {
        let edges = model.tiers.upper().iter().flat_map(|tier| &tier.reads);
        let most = edges.map(|edge| (MESSAGE / edge.size).max(1)).min().unwrap_or(usize::MAX);
        match self.batch {
            None => Ok(most.min(BATCH)),
            Some(batch) if batch <= most => Ok(batch),
            Some(batch) => {
                let model = &self.plan.model;
                let problem = format!("a message holds what the tiers of {model} hand on of {most} samples");
                Err(TrainError::ExitFlag { flag: "batch", value: batch.to_string(), problem })
            }
        }
    }

    pub(crate) fn play(&self, part: RankPart<'_>) -> Result<Account, TrainError> {
        let model = ExitModel::load(&self.plan, &self.folders, part.registries)?;
        let (rank, world) = (part.rank, model.tiers.tiers.len());
        let size = self.batch(&model)?;
        let compute = Arc::new(Compute::new(self.threads, false));
        let network = model.network(&model.tiers.tiers[rank].part, size, &compute);
        let post = Post::new(part.transport, world);
        let mut tier = TierRank { task: self, model: &model, rank, size, network, post, answers: Vec::new() };
        let begun = Instant::now();
        match rank < model.tiers.devices {
            true => tier.device(&compute)?,
            false => tier.upper()?,
        }
        let train_s = begun.elapsed().as_secs_f64();
        tier.post.finish()?;
        let halves = |number: u64| [number as u32, (number >> 32) as u32];
        let mut words: Vec<u32> = tier.post.bytes.iter().flat_map(|bytes| halves(*bytes)).collect();
        words.extend([tier.post.messages as u32, compute.pool.threads() as u32]);
        for (sample, answer) in &tier.answers {
            words.extend([*sample as u32, u32::from(answer.class)]);
            words.extend(halves(answer.entropy.to_bits()));
        }
        let traffic = tier.post.transport.traffic();
        let account = RankAccount {
            train_s,
            sent_bytes: traffic.iter().map(|peer| peer.sent_bytes).sum(),
            received_bytes: traffic.iter().map(|peer| peer.received_bytes).sum(),
            ..RankAccount::default()
        };
        Ok((account, words.into_iter().map(f32::from_bits).collect()))
    }
}

/// A rank with what it computes.
struct TierRank<'a> {
    task: &'a ExitTask,
    model: &'a ExitModel,
    rank: usize,
    /// Samples of a batch.
    size: usize,
    network: TierNetwork,
    post: Post,
    /// What this tier has answered, by sample.
    answers: Vec<(usize, ExitAnswer)>,
}

impl TierRank<'_> {
    fn batches(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (size, samples) = (self.size, self.model.dataset.test.len());
        (0..samples).step_by(size).map(move |first| (first, size.min(samples - first)))
    }

    /// Rank of the tier above the devices with this number.
    fn above(&self, upper: usize) -> usize {
        self.model.tiers.devices + upper
    }

    /// What a tier above reads of this rank.
    fn read_by(&self, upper: usize) -> Vec<TierEdge> {
        let reads = &self.model.tiers.upper()[upper].reads;
        reads.iter().copied().filter(|edge| edge.from == self.rank).collect()
    }

    fn device(&mut self, compute: &Arc<Compute>) -> Result<(), TrainError> {
        let mut cutter = self.model.cutter(self.size, compute);
        let view = self.model.view(self.rank);
        for (first, n) in self.batches() {
            cutter.read(self.model, first..first + n)?;
            let place = self.network.input(view, n);
            match self.task.lost.contains(&self.rank) {
                true => place.fill(0.0),
                false => place.copy_from_slice(cutter.view(self.model, self.rank, n)),
            }
            self.network.run(n);
            let all: Vec<usize> = (0..n).collect();
            for edge in self.read_by(0) {
                self.hand_on(edge, &all, n, self.above(0), SCORES)?;
            }
            self.hand_on_what_stays_open(1, n)?;
        }
        Ok(())
    }

    /// Waits for the decisions of the tiers below each one that reads something of this rank, from tier `from` on.
    fn hand_on_what_stays_open(&mut self, from: usize, n: usize) -> Result<(), TrainError> {
        for upper in from..self.model.tiers.upper().len() {
            let edges = self.read_by(upper);
            if edges.is_empty() {
                continue;
            }
            let open = self.decision(self.above(upper - 1), n)?;
            for edge in edges {
                self.hand_on(edge, &open, n, self.above(upper), FEATURES)?;
            }
        }
        Ok(())
    }

    /// Sends a value of some of the batch's samples, which the network has just made.
    fn hand_on(
        &mut self,
        edge: TierEdge,
        samples: &[usize],
        n: usize,
        to: usize,
        kind: usize,
    ) -> Result<(), TrainError> {
        if samples.is_empty() {
            return Ok(());
        }
        let values = self.network.value(edge.value, n);
        let numbers = samples.iter().flat_map(|i| &values[i * edge.size..(i + 1) * edge.size]);
        let mut body = Vec::new();
        if edge.binary {
            pack_signs(numbers, &mut body);
        } else {
            body.extend(numbers);
        }
        self.post.send(to, body, kind, edge.bytes(samples.len()))
    }

    /// The samples of a batch that a tier leaves open.
    fn decision(&mut self, from: usize, n: usize) -> Result<Vec<usize>, TrainError> {
        let words = self.post.receive(from)?;
        let mut open = vec![0.0; n];
        unpack_signs(&words, &mut open);
        Ok((0..n).filter(|i| open[*i] > 0.0).collect())
    }

    fn upper(&mut self) -> Result<(), TrainError> {
        let tiers = &self.model.tiers;
        let (own, last) = (self.rank - tiers.devices, tiers.upper().len() - 1);
        let (reads, answer) = (tiers.tiers[self.rank].reads.clone(), tiers.tiers[self.rank].answer());
        let classes = self.model.graph.output().c;
        for (first, n) in self.batches() {
            let open: Vec<usize> = match own {
                0 => (0..n).collect(),
                _ => self.decision(self.above(own - 1), n)?,
            };
            if !open.is_empty() {
                for edge in &reads {
                    let words = self.post.receive(edge.from)?;
                    let place = self.network.input(edge.value, open.len());
                    if edge.binary {
                        unpack_signs(&words, place);
                    } else {
                        place.copy_from_slice(&words);
                    }
                }
                self.network.run(open.len());
            }
            let scores = self.network.value(answer, open.len()).chunks_exact(classes);
            let answers: Vec<ExitAnswer> = scores.map(ExitAnswer::of).collect();
            let mut stays = vec![-1.0; n];
            let mut rows = Vec::new();
            for (row, (&i, answer)) in open.iter().zip(&answers).enumerate() {
                if own == last || answer.leaves(self.task.threshold) {
                    self.answers.push((first + i, *answer));
                } else {
                    stays[i] = 1.0;
                    rows.push(row);
                }
            }
            if own < last {
                self.decide(own + 1, &stays, &rows, open.len())?;
            }
        }
        Ok(())
    }

    /// Says which samples of the batch stay open for the tier above: to it, and to whoever hands it something. What it
    /// reads of this rank is sent along: rows of this rank's values.
    fn decide(&mut self, upper: usize, stays: &[f32], rows: &[usize], n: usize) -> Result<(), TrainError> {
        let mut told: Vec<usize> =
            self.model.tiers.upper()[upper].reads.iter().map(|edge| edge.from).collect();
        told.push(self.above(upper));
        told.retain(|rank| *rank != self.rank);
        told.sort_unstable();
        told.dedup();
        for to in told {
            let mut body = Vec::new();
            pack_signs(stays.iter(), &mut body);
            self.post.send(to, body, DECISIONS, stays.len().div_ceil(8))?;
        }
        for edge in self.read_by(upper) {
            self.hand_on(edge, rows, n, self.above(upper), FEATURES)?;
        }
        Ok(())
    }
}

/// Whole messages to and from other ranks.
struct Post {
    transport: Box<dyn Transport>,
    leaving: Leaving,
    /// What has come, by sender.
    inbox: Vec<VecDeque<Vec<f32>>>,
    lost: Vec<Option<String>>,
    events: Vec<Event>,
    /// Bytes of bodies sent, by kind.
    bytes: [u64; KINDS],
    /// Messages sent, which number them too.
    messages: u64,
}

/// Bodies that have not left, and to whom they go, by the number of their message.
#[derive(Default)]
struct Leaving(BTreeMap<u32, (usize, Vec<f32>)>);

impl Source for Leaving {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        f(&self.0[&span.buffer].1[span.offset..span.offset + span.len]);
    }
}

impl Post {
    fn new(transport: Box<dyn Transport>, world: usize) -> Self {
        Self {
            transport,
            leaving: Leaving::default(),
            inbox: (0..world).map(|_| VecDeque::new()).collect(),
            lost: vec![None; world],
            events: Vec::new(),
            bytes: [0; KINDS],
            messages: 0,
        }
    }

    /// Queues a body of which so many bytes count.
    fn send(&mut self, to: usize, body: Vec<f32>, kind: usize, bytes: usize) -> Result<(), TrainError> {
        let number = self.messages as u32;
        let span = Span { buffer: number, offset: 0, len: body.len() };
        self.leaving.0.insert(number, (to, body));
        self.bytes[kind] += bytes as u64;
        self.messages += 1;
        Ok(self.transport.send(to, [0; META], span, u64::from(number))?)
    }

    /// The next message of a rank.
    fn receive(&mut self, from: usize) -> Result<Vec<f32>, TrainError> {
        let begun = Instant::now();
        loop {
            if let Some(body) = self.inbox[from].pop_front() {
                return Ok(body);
            }
            if let Some(cause) = &self.lost[from] {
                return Err(TrainError::Lost { rank: from, step: 0, cause: cause.clone() });
            }
            self.pump(from, begun)?;
        }
    }

    /// Moves messages, waiting for some.
    fn pump(&mut self, from: usize, begun: Instant) -> Result<(), TrainError> {
        let wait = PATIENCE.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
        self.transport.progress(&self.leaving, Some(wait), &mut self.events)?;
        if self.events.is_empty() && begun.elapsed() >= PATIENCE {
            return Err(TrainError::Silent { rank: from, seconds: PATIENCE.as_secs(), step: 0 });
        }
        for event in self.events.drain(..) {
            match event {
                Event::Sent { op } => drop(self.leaving.0.remove(&(op as u32))),
                Event::Message { from, body, .. } => {
                    let mut numbers = vec![0.0; body.len()];
                    body.copy_to(0, &mut numbers);
                    self.inbox[from].push_back(numbers);
                }
                Event::Lost { rank, cause } => {
                    // Whoever is gone gets nothing more; whether somebody needed it, the others say.
                    self.leaving.0.retain(|_, (to, _)| *to != rank);
                    self.lost[rank] = Some(cause);
                }
                Event::Refused { .. } | Event::Woken => {}
            }
        }
        Ok(())
    }

    /// Waits until everything has left.
    fn finish(&mut self) -> Result<(), TrainError> {
        let begun = Instant::now();
        while let Some((_, (to, _))) = self.leaving.0.first_key_value() {
            self.pump(*to, begun)?;
        }
        Ok(())
    }
}
