//! What goes from one stage of a model to another: memory for each crossing, apart from the network's own, so that
//! messages come and go while a pass computes.

use std::io;

use paceline_memory::{Allocator, TensorStorage};
use paceline_protocol::{Buf, Stage, StageSetup};

/// The values and the gradients of a stage's crossings, slot by slot.
#[derive(Default)]
pub struct Crossings {
    values: Vec<TensorStorage>,
    /// Empty where no gradient comes back.
    slopes: Vec<TensorStorage>,
    /// Elements of one slot of each.
    room: Vec<usize>,
}

impl Crossings {
    /// Memory for the crossings of a stage.
    pub fn new(setup: &StageSetup, stage: &Stage, allocator: Allocator) -> io::Result<Self> {
        let room: Vec<usize> = stage.crossings.iter().map(|crossing| setup.room(crossing)).collect();
        let values = room.iter().map(|room| allocator.zeros(stage.slots * room));
        let slopes = stage.crossings.iter().zip(&room).map(|(crossing, room)| match crossing.gradient {
            true => allocator.zeros(stage.slots * room),
            false => Ok(TensorStorage::default()),
        });
        Ok(Self {
            values: values.collect::<io::Result<_>>()?,
            slopes: slopes.collect::<io::Result<_>>()?,
            room,
        })
    }

    /// The buffer of a crossing; none if it is another kind of buffer.
    pub(crate) fn buffer(&self, buf: Buf) -> Option<&TensorStorage> {
        match buf {
            Buf::Value(n) => Some(&self.values[usize::from(n)]),
            Buf::Slope(n) => Some(&self.slopes[usize::from(n)]),
            _ => None,
        }
    }

    pub(crate) fn buffer_mut(&mut self, buf: Buf) -> Option<&mut TensorStorage> {
        match buf {
            Buf::Value(n) => Some(&mut self.values[usize::from(n)]),
            Buf::Slope(n) => Some(&mut self.slopes[usize::from(n)]),
            _ => None,
        }
    }

    /// All buffers, with what they are called.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = (Buf, &TensorStorage)> {
        let values = self.values.iter().zip(0..).map(|(storage, n)| (Buf::Value(n), storage));
        let slopes = self.slopes.iter().zip(0..).map(|(storage, n)| (Buf::Slope(n), storage));
        values.chain(slopes).filter(|(_, storage)| !storage.is_empty())
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.buffers().map(|(_, storage)| size_of_val(&storage[..])).sum()
    }

    /// The first `len` values of a crossing's slot.
    pub fn value(&self, n: usize, slot: usize, len: usize) -> &[f32] {
        &self.values[n][slot * self.room[n]..][..len]
    }

    /// The same, to be changed.
    pub fn value_mut(&mut self, n: usize, slot: usize, len: usize) -> &mut [f32] {
        &mut self.values[n][slot * self.room[n]..][..len]
    }

    /// The first `len` gradients of a crossing's slot.
    pub fn slope(&self, n: usize, slot: usize, len: usize) -> &[f32] {
        &self.slopes[n][slot * self.room[n]..][..len]
    }

    /// The same, to be changed.
    pub fn slope_mut(&mut self, n: usize, slot: usize, len: usize) -> &mut [f32] {
        &mut self.slopes[n][slot * self.room[n]..][..len]
    }
}
