//! What goes from one stage of a model to another: memory for each crossing, slot by slot. A pass takes its slot's memory
//! into the network and works there; messages come and go in that of other slots meanwhile.

use std::io;

use paceline_memory::{Allocator, TensorStorage};
use paceline_nn::OuterMemory;
use paceline_protocol::{Buf, Region, Stage, StageSetup};

/// The values and the gradients of a stage's crossings, slot by slot.
#[derive(Default)]
pub struct Crossings {
    values: Vec<SlotBuffers>,
    /// Empty where no gradient comes back.
    slopes: Vec<SlotBuffers>,
}

/// One buffer, of which each slot is lent apart from the others.
#[derive(Default)]
struct SlotBuffers {
    /// Elements of a slot.
    room: usize,
    slots: Vec<OuterMemory<f32>>,
    /// What peers map the buffer by.
    storage: TensorStorage,
}

impl SlotBuffers {
    fn new(slots: usize, room: usize, allocator: Allocator) -> io::Result<Self> {
        let mut storage = allocator.zeros(slots * room)?;
        let part = |part| Box::new(part) as OuterMemory<f32>;
        let slots = storage.take_parts(room).into_iter().map(part).collect();
        Ok(Self { room, slots, storage })
    }

    /// A region, which lies in one slot. (One without elements may lie anywhere.)
    fn get(&self, region: Region) -> &[f32] {
        let Some(slot) = self.slots.get(region.offset / self.room.max(1)) else { return &[] };
        &slot[region.offset % self.room..][..region.len]
    }

    fn get_mut(&mut self, region: Region) -> &mut [f32] {
        let Some(slot) = self.slots.get_mut(region.offset / self.room.max(1)) else { return &mut [] };
        &mut slot[region.offset % self.room..][..region.len]
    }
}

impl Crossings {
    /// Memory for the crossings of a stage.
    pub fn new(setup: &StageSetup, stage: &Stage, allocator: Allocator) -> io::Result<Self> {
        let buffers = |room| SlotBuffers::new(stage.slots, room, allocator);
        let rooms = || stage.crossings.iter().map(|crossing| (crossing, setup.room(crossing)));
        let slopes = rooms().map(|(crossing, room)| if crossing.gradient { room } else { 0 });
        Ok(Self {
            values: rooms().map(|(_, room)| buffers(room)).collect::<io::Result<_>>()?,
            slopes: slopes.map(buffers).collect::<io::Result<_>>()?,
        })
    }

    /// The elements of a crossing's region; none if it is one of another kind of buffer. A pass that is under way has those
    /// of its slot.
    pub(crate) fn get(&self, region: Region) -> Option<&[f32]> {
        match region.buf {
            Buf::Value(n) => Some(self.values[usize::from(n)].get(region)),
            Buf::Slope(n) => Some(self.slopes[usize::from(n)].get(region)),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, region: Region) -> Option<&mut [f32]> {
        match region.buf {
            Buf::Value(n) => Some(self.values[usize::from(n)].get_mut(region)),
            Buf::Slope(n) => Some(self.slopes[usize::from(n)].get_mut(region)),
            _ => None,
        }
    }

    /// All buffers as they are handed to peers, with what they are called.
    pub(crate) fn storages(&self) -> impl Iterator<Item = (Buf, &TensorStorage)> {
        let values = self.values.iter().zip(0..).map(|(own, n)| (Buf::Value(n), own));
        let slopes = self.slopes.iter().zip(0..).map(|(own, n)| (Buf::Slope(n), own));
        values.chain(slopes).filter(|(_, own)| !own.slots.is_empty()).map(|(buf, own)| (buf, &own.storage))
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        let all = self.values.iter().chain(&self.slopes).flat_map(|own| &own.slots);
        all.map(|slot| size_of_val(&slot[..])).sum()
    }

    /// The memory of a crossing's value in a slot.
    pub(crate) fn value(&mut self, n: usize, slot: usize) -> &mut OuterMemory<f32> {
        &mut self.values[n].slots[slot]
    }

    /// The memory of its gradient.
    pub(crate) fn slope(&mut self, n: usize, slot: usize) -> &mut OuterMemory<f32> {
        &mut self.slopes[n].slots[slot]
    }

    /// Hands the first `len` elements of a value on from one crossing to another.
    pub(crate) fn hand_on_value(&mut self, [from, to]: [usize; 2], slot: usize, len: usize) {
        hand_on(&mut self.values, [from, to], slot, len);
    }

    /// The same with its gradient.
    pub(crate) fn hand_on_slope(&mut self, [from, to]: [usize; 2], slot: usize, len: usize) {
        hand_on(&mut self.slopes, [from, to], slot, len);
    }
}

fn hand_on(buffers: &mut [SlotBuffers], crossings: [usize; 2], slot: usize, len: usize) {
    let [from, to] = buffers.get_disjoint_mut(crossings).expect("two crossings");
    to.slots[slot][..len].copy_from_slice(&from.slots[slot][..len]);
}
