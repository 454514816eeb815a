//! What registers hold, as weights of what all workers began with.

use std::ops::Range;

use paceline_random::{Purpose, Stream};

use crate::statement::{G, Register, X};

/// How much is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Nothing: expressions do not look at it.
    Nothing,
    /// The mass of each register: how much of all models together, and of all gradients.
    Masses,
    /// A few made-up numbers for each worker's model and gradient: enough to tell whether workers have the same, to the
    /// last bit.
    Probes,
    /// The same where messages are encoded, and lose something.
    CodedProbes,
    /// The weight of each worker's model and gradient.
    Weights,
}

/// Numbers of [`Detail::Probes`].
const PROBES: usize = 12;

/// What every worker's registers hold, by chunk.
#[derive(Clone, Debug)]
pub struct RegisterValues {
    pub detail: Detail,
    workers: usize,
    registers: usize,
    width: usize,
    /// Numbers that are followed of each worker's model, and of its gradient.
    columns: usize,
    data: Vec<f64>,
    /// The step in which something was last put there, counted from 1; 0: never.
    written: Vec<u64>,
    /// Gradients that were applied in this iteration: how often, by worker and chunk.
    pub updates: Vec<u32>,
    /// What was applied, by worker and chunk: its mass, and its columns.
    applied: Vec<f64>,
    /// Whether something of an earlier iteration was read.
    pub carried: bool,
}

/// Place of a model's mass in a vector, and of a gradient's; single weights follow.
const MASS_X: usize = 0;
const MASS_G: usize = 1;
const FIRST: usize = 2;

impl RegisterValues {
    pub fn new(detail: Detail, workers: usize, registers: usize, chunks: usize) -> Self {
        let columns = match detail {
            Detail::Nothing | Detail::Masses => 0,
            Detail::Probes | Detail::CodedProbes => PROBES,
            Detail::Weights => workers,
        };
        let width = if detail == Detail::Nothing { 0 } else { FIRST + 2 * columns };
        let cells = chunks * workers;
        let mut values = Self {
            detail,
            workers,
            registers,
            width,
            columns,
            data: vec![0.0; cells * registers * width],
            written: vec![0; cells * registers],
            updates: vec![0; cells],
            applied: vec![0.0; cells * (1 + columns)],
            carried: false,
        };
        if detail == Detail::Nothing {
            values.written.clear();
        }
        values
    }

    /// Begins an iteration: gradients are new; models are what they are, or called new too.
    pub fn begin(&mut self, step: u64, fresh: bool) {
        self.updates.fill(0);
        self.applied.fill(0.0);
        if self.width == 0 {
            return;
        }
        for chunk in 0..self.updates.len() / self.workers {
            for rank in 0..self.workers {
                self.fill(chunk, rank, G, step);
                if fresh || step == 0 {
                    self.fill(chunk, rank, X, step);
                }
            }
        }
    }

    fn fill(&mut self, chunk: usize, rank: usize, register: Register, step: u64) {
        let (columns, detail) = (self.columns, self.detail);
        let cell = self.cell_mut(chunk, rank, register);
        cell.fill(0.0);
        let (mass, first) = if register == X { (MASS_X, FIRST) } else { (MASS_G, FIRST + columns) };
        cell[mass] = 1.0;
        for (column, value) in cell[first..first + columns].iter_mut().enumerate() {
            *value = match detail {
                Detail::Probes | Detail::CodedProbes => probe(column, rank),
                _ => f64::from(u8::from(column == rank)),
            };
        }
        let at = self.index(chunk, rank, register);
        self.written[at] = step + 1;
    }

    fn index(&self, chunk: usize, rank: usize, register: Register) -> usize {
        (chunk * self.workers + rank) * self.registers + register
    }

    fn cell(&self, chunk: usize, rank: usize, register: Register) -> &[f64] {
        let at = self.index(chunk, rank, register) * self.width;
        &self.data[at..at + self.width]
    }

    fn cell_mut(&mut self, chunk: usize, rank: usize, register: Register) -> &mut [f64] {
        let at = self.index(chunk, rank, register) * self.width;
        &mut self.data[at..at + self.width]
    }

    /// The masses of a worker's registers in a chunk.
    pub fn masses(&self, chunk: usize, rank: usize, into: &mut Vec<f64>) {
        into.clear();
        if self.width > 0 {
            into.extend((0..self.registers).map(|register| {
                let cell = self.cell(chunk, rank, register);
                cell[MASS_X] + cell[MASS_G]
            }));
        }
    }

    /// What the chunks of a register hold; none where one of them never got anything.
    pub fn read(
        &mut self,
        chunks: Range<usize>,
        rank: usize,
        register: Register,
        step: u64,
    ) -> Option<Vec<f64>> {
        let mut all = Vec::new();
        if self.width == 0 {
            return Some(all);
        }
        for chunk in chunks {
            let written = self.written[self.index(chunk, rank, register)];
            if written == 0 {
                return None;
            }
            self.carried |= written != step + 1 && register != X;
            all.extend_from_slice(self.cell(chunk, rank, register));
        }
        Some(all)
    }

    /// What an encoded message says of what is sent.
    pub fn encoded(&self, mut what: Vec<f64>) -> Vec<f64> {
        if self.detail == Detail::CodedProbes {
            what.chunks_mut(self.width).for_each(lose);
        }
        what
    }

    /// The sender of a message that is copied has what its receivers have, also where the message has lost something.
    pub fn lose(&mut self, chunks: Range<usize>, rank: usize, register: Register) {
        if self.detail == Detail::CodedProbes {
            chunks.for_each(|chunk| lose(self.cell_mut(chunk, rank, register)));
        }
    }

    /// `register = keep·register + add·what`; false if a part that is kept never got anything.
    #[allow(clippy::too_many_arguments, reason = "a place, and what happens there")]
    pub fn mix(
        &mut self,
        chunks: Range<usize>,
        rank: usize,
        register: Register,
        step: u64,
        keep: f64,
        what: &[f64],
        add: f64,
    ) -> bool {
        if self.width == 0 {
            return true;
        }
        for (chunk, what) in chunks.zip(what.chunks(self.width)) {
            let at = self.index(chunk, rank, register);
            if keep != 0.0 && self.written[at] == 0 {
                return false;
            }
            self.carried |= keep != 0.0 && self.written[at] != step + 1 && register != X;
            for (own, what) in self.cell_mut(chunk, rank, register).iter_mut().zip(what) {
                // What is not kept does not matter, and a weight of one is exact.
                *own = if keep == 0.0 { 0.0 } else { keep * *own } + add * what;
            }
            self.written[at] = step + 1;
        }
        true
    }

    pub fn scale(&mut self, chunks: Range<usize>, rank: usize, register: Register, by: f64) -> bool {
        if self.width == 0 {
            return true;
        }
        for chunk in chunks {
            if self.written[self.index(chunk, rank, register)] == 0 {
                return false;
            }
            self.cell_mut(chunk, rank, register).iter_mut().for_each(|value| *value *= by);
        }
        true
    }

    /// Notes an update with a register; what is wrong with it, if something is.
    pub fn update(&mut self, chunk: usize, rank: usize, with: Register) -> Result<(), &'static str> {
        self.updates[chunk * self.workers + rank] += 1;
        if self.width == 0 {
            return Ok(());
        }
        if self.written[self.index(chunk, rank, with)] == 0 {
            return Err("is read before anything is in it");
        }
        let cell = self.cell(chunk, rank, with).to_vec();
        if cell[MASS_X] != 0.0 {
            return Err("holds something of the model, and the update takes gradients");
        }
        let at = (chunk * self.workers + rank) * (1 + self.columns);
        self.applied[at] = cell[MASS_G];
        self.applied[at + 1..at + 1 + self.columns].copy_from_slice(&cell[FIRST + self.columns..]);
        Ok(())
    }

    /// The masses of a worker's model: of all models, and of all gradients.
    pub fn model_mass(&self, chunk: usize, rank: usize) -> (f64, f64) {
        let cell = self.cell(chunk, rank, X);
        (cell[MASS_X], cell[MASS_G])
    }

    /// The columns of a worker's model.
    pub fn model(&self, chunk: usize, rank: usize) -> &[f64] {
        &self.cell(chunk, rank, X)[FIRST..FIRST + self.columns]
    }

    /// The mass and the columns of the gradient that a worker has applied.
    pub fn applied(&self, chunk: usize, rank: usize) -> (f64, &[f64]) {
        let at = (chunk * self.workers + rank) * (1 + self.columns);
        (self.applied[at], &self.applied[at + 1..at + 1 + self.columns])
    }

    /// What the columns of all workers are on average at first.
    pub fn mean(&self) -> Vec<f64> {
        let mean = |column| match self.detail {
            Detail::Probes | Detail::CodedProbes => {
                (0..self.workers).map(|rank| probe(column, rank)).sum::<f64>() / self.workers as f64
            }
            _ => 1.0 / self.workers as f64,
        };
        (0..self.columns).map(mean).collect()
    }

    /// Chunks that are followed.
    pub fn chunks(&self) -> usize {
        self.updates.len() / self.workers
    }
}

/// What a code loses: the last bits.
fn lose(cell: &mut [f64]) {
    cell[FIRST..].iter_mut().for_each(|value| *value = f64::from(*value as f32));
}

/// A made-up number of a worker. (Of various sizes, so that sums of them are rounded.)
fn probe(column: usize, rank: usize) -> f64 {
    let stream = Stream::new(26, Purpose::Bench).fork(column as u64);
    stream.normal(rank as u64) * stream.fork(1).normal(rank as u64).exp()
}
