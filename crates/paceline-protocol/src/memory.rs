//! The arithmetic of actions on plain buffers: what every driver with real numbers shares. Updates are the
//! driver's own.

use std::ops::DerefMut;

use paceline_random::{Purpose, Stream};

use crate::linear;
use crate::vocabulary::{Action, Buf, Matrix, MsgId, Region, Transposed};

/// A buffer that an owner lends: a vector, or memory that is shared with others.
pub trait Buffer: Default + DerefMut<Target = [f32]> {}

impl<B: Default + DerefMut<Target = [f32]>> Buffer for B {}

/// A participant's buffers.
pub struct Buffers<'a, B> {
    /// Parameters.
    pub param: &'a mut B,
    /// Gradients, of each position that the rank hosts.
    pub grads: &'a mut [B],
    /// What the strategy asked for.
    pub scratch: &'a mut [B],
    /// Room for codecs to work in.
    pub work: &'a mut Vec<u32>,
    /// `dst += src`, as fast as the driver can.
    pub accumulate: fn(dst: &mut [f32], src: &[f32]),
}

impl<B: Buffer> Buffers<'_, B> {
    /// The elements of a region of these buffers.
    pub fn get(&self, region: Region) -> &[f32] {
        let buffer = match region.buf {
            Buf::Param => &*self.param,
            Buf::Grad => &self.grads[0],
            Buf::HostedGrad(n) => &self.grads[usize::from(n)],
            Buf::Scratch(n) => &self.scratch[usize::from(n)],
            Buf::Value(_) | Buf::Slope(_) | Buf::Optimiser(_) | Buf::Msg(_) => {
                panic!("{:?} lies with the driver", region.buf)
            }
        };
        &buffer[region.range()]
    }

    fn buffer(&mut self, buf: Buf) -> &mut B {
        match buf {
            Buf::Param => self.param,
            Buf::Grad => &mut self.grads[0],
            Buf::HostedGrad(n) => &mut self.grads[usize::from(n)],
            Buf::Scratch(n) => &mut self.scratch[usize::from(n)],
            Buf::Optimiser(_) => panic!("the optimiser's memory lies with the driver"),
            Buf::Msg(_) => panic!("a received body is read only"),
            Buf::Value(_) | Buf::Slope(_) => panic!("{buf:?} lies with the driver"),
        }
    }

    /// Lets `f` change a region while the other buffers can be read.
    fn change(&mut self, dst: Region, f: impl FnOnce(&mut Self, &mut [f32])) {
        let mut taken = std::mem::take(self.buffer(dst.buf));
        f(self, &mut taken[dst.range()]);
        *self.buffer(dst.buf) = taken;
    }

    /// Lets `f` change a region that depends on another one, which may be a received body.
    fn combine<'b>(
        &mut self,
        dst: Region,
        src: Region,
        body: &dyn Fn(MsgId) -> &'b [f32],
        f: impl FnOnce(&mut Self, &mut [f32], &[f32]),
    ) {
        if let Buf::Msg(msg) = src.buf {
            let body = body(msg);
            assert_eq!(body.len(), src.len, "a body of the region's length");
            return self.change(dst, |all, dst| f(all, dst, body));
        }
        assert_ne!(dst.buf, src.buf, "a region of another buffer");
        self.change(dst, |all, dst| {
            let other = std::mem::take(all.buffer(src.buf));
            f(all, dst, &other[src.range()]);
            *all.buffer(src.buf) = other;
        });
    }

    /// Does a computation; `body` finds received bodies. Actions that are none, and updates, are not for
    /// this.
    pub fn compute<'b>(&mut self, action: &Action, body: &dyn Fn(MsgId) -> &'b [f32]) {
        match *action {
            Action::Reduce { dst, src } => {
                self.combine(dst, src, body, |all, dst, src| (all.accumulate)(dst, src));
            }
            Action::Copy { dst, src } => self.combine(dst, src, body, |_, dst, src| dst.copy_from_slice(src)),
            Action::Mix { dst, keep, src, add } => {
                self.combine(dst, src, body, |_, dst, src| mix(dst, keep, src, add));
            }
            Action::Scale { dst, by } => self.change(dst, |_, dst| dst.iter_mut().for_each(|d| *d *= by)),
            Action::Randomise { dst, key } => self.change(dst, |_, dst| {
                let stream = Stream::new(key, Purpose::Protocol).fork(1);
                dst.iter_mut().enumerate().for_each(|(i, d)| *d = stream.normal(i as u64) as f32);
            }),
            Action::Encode { coder, dst, src, feedback: false } => {
                self.combine(dst, src, body, |all, dst, src| coder.encode(src, dst, all.work));
            }
            Action::Encode { coder, dst, src, feedback: true } => self.change(dst, |all, code| {
                all.change(src, |all, rest| coder.encode_and_keep_rest(rest, code, all.work));
            }),
            Action::Decode { coder, dst, src, into } => {
                self.combine(dst, src, body, |_, dst, src| coder.decode(src, dst, into));
            }
            Action::MatMul { dst, a, b, transposed } => self.multiply(dst, a, b, transposed),
            Action::Orthonormalise(Matrix { region, rows, cols }) => {
                self.change(region, |_, matrix| linear::orthonormalise(matrix, rows, cols));
            }
            _ => unreachable!("{action:?} is no computation on buffers"),
        }
    }

    fn multiply(&mut self, dst: Matrix, a: Matrix, b: Matrix, transposed: Transposed) {
        let inner = if transposed == Transposed::First { a.rows } else { a.cols };
        let shape = (dst.rows, dst.cols, inner);
        let (first, second) = (transposed == Transposed::First, transposed == Transposed::Second);
        self.change(dst.region, |all, out| {
            linear::multiply(out, shape, all.get(a.region), first, all.get(b.region), second);
        });
    }
}

/// `dst = keep·dst + add·src`; what is not kept does not matter, not even if it is not a number.
fn mix(dst: &mut [f32], keep: f32, src: &[f32], add: f32) {
    assert_eq!(dst.len(), src.len(), "regions of equal length");
    match (keep, add) {
        (0.0, 1.0) => dst.copy_from_slice(src),
        (0.0, add) => dst.iter_mut().zip(src).for_each(|(d, s)| *d = add * s),
        (1.0, add) => dst.iter_mut().zip(src).for_each(|(d, s)| *d += add * s),
        (keep, add) => dst.iter_mut().zip(src).for_each(|(d, s)| *d = keep * *d + add * s),
    }
}
