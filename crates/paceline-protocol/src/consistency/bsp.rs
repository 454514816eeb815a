//! Bulk-synchronous: everybody waits for everybody.

use super::{Consistency, ConsistencyModel};

pub(super) const BSP: ConsistencyModel = ConsistencyModel {
    name: "bsp",
    about: "everybody waits for everybody (or for whom its path needs) after each step",
    detail: "With ps or an exact path this is the reference: p workers do exactly what one worker \
             does with the p-fold batch, and a step takes as long as its slowest worker. With the \
             other strategies workers wait for those whose message they need.",
    parameters: &[],
    whole_batches: true,
    make: |_, _| Consistency::bsp(),
};
