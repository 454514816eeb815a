//! PowerSGD: a gradient matrix M (with what was left over before) is approximated by P·Qᵀ. P = M·Q is summed
//! over the workers and made orthonormal, then Q = Mᵀ·P is summed; Q starts the next step warm. What P·Qᵀ
//! misses stays with the workers. Vectors, and matrices too small to gain, travel as they are.

use super::regions;
use crate::codec::Coder;
use crate::exchange::{Exchange, Schedules};
use crate::schedule::CollectivePath;
use crate::setup::{Setup, Tensor};
use crate::step_driver::StepProtocol;
use crate::vocabulary::{
    Action, Actions, Buf, GradientScale, Matrix, MsgId, OpId, Rank, Region, Tag, Transposed,
};

/// What has not been sent yet, laid out like the gradients.
const REST: Buf = Buf::Scratch(0);
/// The factors, one matrix behind the other.
const P: Buf = Buf::Scratch(1);
const Q: Buf = Buf::Scratch(2);

/// Phases from here on belong to the second exchange: far beyond the rounds of any schedule.
const SECOND: u32 = u32::MAX / 2;

/// Sums factors of gradients.
pub struct LowRank {
    first: Exchange,
    second: Exchange,
    matrices: Vec<Factored>,
    workers: usize,
    params: usize,
    seed: u64,
    step: u64,
    /// The second exchange has begun; the update is made.
    halfway: bool,
    applied: bool,
}

/// A matrix and its factors.
#[derive(Clone, Copy)]
struct Factored {
    whole: Tensor,
    p: Matrix,
    q: Matrix,
}

impl Factored {
    fn matrix(&self, buf: Buf) -> Matrix {
        let Tensor { offset, rows, cols } = self.whole;
        Matrix { region: Region { buf, offset, len: rows * cols }, rows, cols }
    }
}

impl LowRank {
    /// A worker's part along a path.
    pub fn new(setup: &Setup, rank: Rank, path: CollectivePath, coder: Coder) -> Self {
        let columns = coder.setting as usize;
        let (mut matrices, mut plain) = (Vec::new(), Vec::new());
        let (mut p_len, mut q_len, mut at) = (0, 0, 0);
        for &whole in &setup.tensors {
            let Tensor { offset, rows, cols } = whole;
            plain.push(at..offset);
            at = offset + rows * cols;
            if columns * (rows + cols) >= rows * cols {
                plain.push(offset..at);
                continue;
            }
            let factor = |buf, offset, rows| Matrix {
                region: Region { buf, offset, len: rows * columns },
                rows,
                cols: columns,
            };
            matrices.push(Factored { whole, p: factor(P, p_len, rows), q: factor(Q, q_len, cols) });
            p_len += rows * columns;
            q_len += cols * columns;
        }
        plain.push(at..setup.params);
        let mut schedules = Schedules::new(path.reduce, setup, rank);
        let mut cut = |buf, range: std::ops::Range<usize>| {
            let lanes = if range.is_empty() { Vec::new() } else { schedules.cut(setup, &range) };
            regions(buf, lanes).collect::<Vec<_>>()
        };
        let mut lanes: Vec<_> = plain.into_iter().flat_map(|range| cut(Buf::Grad, range)).collect();
        lanes.extend(cut(P, 0..p_len));
        let first = Exchange::new(setup, lanes, 0);
        let second = Exchange::new(setup, cut(Q, 0..q_len), SECOND);
        let (workers, params, seed) = (setup.workers, setup.params, setup.seed);
        let (step, halfway, applied) = (0, false, false);
        Self { first, second, matrices, workers, params, seed, step, halfway, applied }
    }

    /// Goes on with what has become possible.
    fn go_on(&mut self, out: &mut Actions) {
        if !self.halfway && self.first.over() {
            self.halfway = true;
            for m in &self.matrices {
                out.push(Action::Orthonormalise(m.p));
                let (a, transposed) = (m.matrix(REST), Transposed::First);
                out.push(Action::MatMul { dst: m.q, a, b: m.p, transposed });
            }
            for lane in 0..self.second.len() {
                self.second.start(lane, out);
            }
        }
        if self.halfway && !self.applied && self.second.over() {
            self.applied = true;
            for m in &self.matrices {
                let (dst, transposed) = (m.matrix(Buf::Grad), Transposed::Second);
                out.push(Action::MatMul { dst, a: m.p, b: m.q, transposed });
                // The sum of what all workers keep is what the sum of all gradients lost.
                let add = -1.0 / self.workers as f32;
                out.push(Action::Mix { dst: m.matrix(REST).region, keep: 1.0, src: dst.region, add });
            }
            let [params, grad] = [Buf::Param, Buf::Grad].map(|buf| Region::new(buf, 0..self.params));
            out.push(Action::Apply { params, grad, step: self.step, whole: true });
        }
    }
}

impl StepProtocol for LowRank {
    fn scale(&self) -> GradientScale {
        GradientScale::Part
    }

    fn begin(&mut self, step: u64, out: &mut Actions) {
        (self.step, self.halfway, self.applied) = (step, false, false);
        self.first.begin(step);
        self.second.begin(step);
        if step == 0 {
            for (i, m) in self.matrices.iter().enumerate() {
                out.push(Action::Randomise { dst: m.q.region, key: self.seed.wrapping_add(i as u64) });
            }
        }
    }

    fn gradients(&mut self, _: usize, _: &mut Actions) {}

    fn backward_done(&mut self, out: &mut Actions) {
        for m in &self.matrices {
            let (rest, grad) = (m.matrix(REST), m.matrix(Buf::Grad));
            out.push(Action::Reduce { dst: rest.region, src: grad.region });
            out.push(Action::MatMul { dst: m.p, a: rest, b: m.q, transposed: Transposed::None });
        }
        for lane in 0..self.first.len() {
            self.first.start(lane, out);
        }
        self.go_on(out);
    }

    fn message(&mut self, _: Rank, tag: Tag, msg: Option<MsgId>, out: &mut Actions) {
        let exchange = if tag.phase < SECOND { &mut self.first } else { &mut self.second };
        msg.and_then(|msg| exchange.message(tag, msg, out));
        self.go_on(out);
    }

    fn sent(&mut self, op: OpId, out: &mut Actions) {
        self.first.sent(op, out);
        self.second.sent(op, out);
        self.go_on(out);
    }

    fn over(&self) -> bool {
        self.applied
    }

    fn waiting_for(&self) -> Option<Rank> {
        self.first.waiting_for().or_else(|| self.second.waiting_for())
    }

    fn release(&mut self, out: &mut Actions) {
        self.first.release(out);
        self.second.release(out);
    }

    fn scratch(&self) -> Vec<usize> {
        let len = |f: fn(&Factored) -> usize| self.matrices.iter().map(f).sum();
        vec![self.params, len(|m| m.p.region.len), len(|m| m.q.region.len)]
    }
}
