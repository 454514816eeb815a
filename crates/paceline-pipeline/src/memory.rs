//! What a rank of each stage needs of memory, known before anything runs.

use paceline_nn::Graph;
use serde::Serialize;

use crate::stage_plan::StagePlan;

/// Bytes that a rank of a stage needs besides its process and its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StageMemory {
    /// Parameters and their gradients.
    pub parameters: usize,
    /// What the optimiser remembers.
    pub optimiser: usize,
    /// Activations of all slots, and the gradients of activations, besides what goes over cuts.
    pub passes: usize,
    /// What goes to other stages and comes from them, slot by slot.
    pub crossings: usize,
    /// Messages that wait for their slot, at most.
    pub held: usize,
}

impl StageMemory {
    /// What the rank's own buffers take: all but messages.
    pub fn buffers(&self) -> usize {
        let Self { parameters, optimiser, passes, crossings, held: _ } = self;
        parameters + optimiser + passes + crossings
    }

    /// All of it.
    pub fn bytes(&self) -> usize {
        self.buffers() + self.held
    }
}

impl StagePlan {
    /// What a rank of each stage needs, with an optimiser that remembers so many numbers per parameter.
    pub fn memory(&self, graph: &Graph, remembered: usize) -> Vec<StageMemory> {
        let number = size_of::<f32>();
        let stage = |stage: usize| {
            let (part, slots) = (&self.parts[stage], self.program.slots(stage));
            let room = number * self.capacity;
            let both = |gradient: bool| 1 + usize::from(gradient);
            let edges = || part.receives.iter().chain(&part.sends);
            // A micro-batch under way has a slot in the earlier stage: so many are under way between the two at most.
            let coming = part.receives.iter().map(|edge| self.program.slots(edge.part) * edge.size);
            let returning = part.sends.iter().filter(|edge| edge.gradient).map(|edge| slots * edge.size);
            StageMemory {
                parameters: 2 * number * part.params.len(),
                optimiser: remembered * number * part.params.len(),
                passes: part.pass_memory(graph).bytes(self.capacity, slots),
                crossings: edges().map(|edge| both(edge.gradient) * slots * room * edge.size).sum(),
                held: room * coming.chain(returning).sum::<usize>(),
            }
        };
        (0..self.parts.len()).map(stage).collect()
    }
}
