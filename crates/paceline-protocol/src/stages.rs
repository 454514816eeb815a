//! A model that is cut into stages, each on a rank of its own: who has which part, and what goes from one to another.
//!
//! A *replica* is a model on as many ranks as there are stages: rank = replica · stages + stage. Replicas share the data as
//! workers do without stages; the ranks of one stage average among themselves. Servers are those of a stage, in turn:
//! server `i` has stage `i mod stages`, of which it is shard `i / stages`.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::setup::{Setup, Tensor, part};
use crate::vocabulary::{Buf, Rank, Region};
use crate::work::Work;

/// A model that is cut into stages.
#[derive(Clone, Debug)]
pub struct StageSetup {
    /// The stages, from the model's input to its output.
    pub stages: Vec<Stage>,
    /// Micro-batches of a replica's batch: number `i` has the samples `part(batch, micro_batches, i)`.
    pub micro_batches: usize,
    /// Most samples of a micro-batch.
    pub capacity: usize,
    /// Samples of each step's global batch.
    pub batches: BatchLengths,
}

/// A stage: a range of the model's layers, and so of its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The passes of a step, in order. Those of micro-batches without samples are left out when they come.
    pub work: Vec<Work>,
    /// Micro-batches that are between their forward and their backward pass at most.
    pub slots: usize,
    /// What it receives from earlier stages, then what it sends to later ones, each in the order of the model's values:
    /// [`Buf::Value`] and [`Buf::Slope`] count them. A value that it receives and hands on is there twice.
    pub crossings: Vec<Crossing>,
    /// How many of the crossings come in.
    pub received: usize,
    /// Its elements of the parameters.
    pub params: Range<usize>,
}

/// A value on its way from one stage to another; its gradient comes back the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The stage at the other end.
    pub stage: usize,
    /// Which of that stage's crossings it is.
    pub there: usize,
    /// Elements of a sample.
    pub size: usize,
    /// Whether its gradient comes back: something before it is trained.
    pub gradient: bool,
}

/// Samples of each step's global batch.
#[derive(Clone)]
pub struct BatchLengths(pub Arc<dyn Fn(u64) -> usize + Send + Sync>);

impl BatchLengths {
    /// As many in every step.
    pub fn constant(samples: usize) -> Self {
        Self(Arc::new(move |_| samples))
    }
}

impl fmt::Debug for BatchLengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BatchLengths(…)")
    }
}

impl StageSetup {
    /// Elements of one slot of a crossing.
    pub fn room(&self, crossing: &Crossing) -> usize {
        self.capacity * crossing.size
    }

    /// The samples of a micro-batch among those of its replica's batch.
    pub fn micro_batch(&self, batch: usize, micro: usize) -> Range<usize> {
        part(&(0..batch), self.micro_batches, micro)
    }

    /// Whether a micro-batch of a batch is computed: empty ones are not, unless all are; then the last one is, without
    /// samples. So the last one's backward pass is always the last pass of a step, and finishes the gradients.
    pub fn computes(&self, batch: usize, micro: usize) -> bool {
        !self.micro_batch(batch, micro).is_empty() || batch == 0 && micro + 1 == self.micro_batches
    }

    /// What a crossing carries of a micro-batch of `samples`, in a slot of [`Buf::Value`] or [`Buf::Slope`].
    pub fn region(&self, buf: Buf, crossing: &Crossing, slot: usize, samples: usize) -> Region {
        Region { buf, offset: slot * self.room(crossing), len: samples * crossing.size }
    }
}

impl Stage {
    /// The crossings that come in, with their numbers.
    pub fn inputs(&self) -> impl Iterator<Item = (usize, &Crossing)> {
        self.crossings.iter().enumerate().take(self.received)
    }

    /// The crossings that go out, with their numbers.
    pub fn outputs(&self) -> impl Iterator<Item = (usize, &Crossing)> {
        self.crossings.iter().enumerate().skip(self.received)
    }
}

/// In a run without stages there is one, whose ranks are all.
impl Setup {
    /// Number of stages.
    pub fn stage_count(&self) -> usize {
        self.stages.as_ref().map_or(1, |stages| stages.stages.len())
    }

    /// Models that are trained side by side: each takes a share of the data.
    pub fn replicas(&self) -> usize {
        self.workers / self.stage_count()
    }

    /// The stage of a rank, a server's too.
    pub fn stage_of(&self, rank: Rank) -> usize {
        rank.checked_sub(self.workers).unwrap_or(rank) % self.stage_count()
    }

    /// The rank that has a stage of a replica.
    pub fn stage_rank(&self, replica: usize, stage: usize) -> Rank {
        replica * self.stage_count() + stage
    }

    /// Samples of a replica's batch in a step of a run with stages.
    pub fn replica_batch(&self, step: u64, replica: usize) -> usize {
        let all = self.stages.as_ref().map_or(0, |stages| (stages.batches.0)(step));
        part(&(0..all), self.replicas(), replica).len()
    }

    /// The same run as the ranks of one stage see it that average among themselves: its range of the parameters, a worker
    /// for each replica, its servers.
    pub fn of_stage(&self, stage: usize) -> Self {
        let Some(stages) = &self.stages else { return self.clone() };
        let (count, range) = (stages.stages.len(), stages.stages[stage].params.clone());
        let own = |rank: &Rank| self.stage_of(*rank) == stage;
        let host = |rank: Rank| self.hosts.get(rank).copied();
        let within = |tensor: &&Tensor| range.contains(&tensor.offset);
        let cuts: Vec<usize> = self.cuts.iter().copied().filter(|cut| range.contains(cut)).collect();
        let begins = !cuts.is_empty() && cuts[0] != range.start;
        let cuts = begins.then_some(range.start).into_iter().chain(cuts);
        Self {
            workers: self.workers / count,
            servers: self.servers / count,
            hosts: (0..self.world()).filter(own).filter_map(host).collect(),
            params: range.len(),
            tensors: self
                .tensors
                .iter()
                .filter(within)
                .map(|tensor| Tensor { offset: tensor.offset - range.start, ..*tensor })
                .collect(),
            cuts: cuts.map(|cut| cut - range.start).collect(),
            stages: None,
            ..self.clone()
        }
    }

    /// A server's shard of its stage's parameters.
    pub fn shard_of(&self, server: Rank) -> Range<usize> {
        let own = self.of_stage(self.stage_of(server));
        own.shards()[(server - self.workers) / self.stage_count()].clone()
    }

    /// The number of a rank among those of its stage, as [`Setup::of_stage`] counts them.
    pub(crate) fn rank_in_stage(&self, rank: Rank) -> Rank {
        match rank.checked_sub(self.workers) {
            None => rank / self.stage_count(),
            Some(server) => self.replicas() + server / self.stage_count(),
        }
    }

    /// The rank with this number among those of a stage.
    pub(crate) fn rank_of_stage(&self, stage: usize, number: Rank) -> Rank {
        match number.checked_sub(self.replicas()) {
            None => self.stage_rank(number, stage),
            Some(shard) => self.workers + shard * self.stage_count() + stage,
        }
    }
}
