//! Asynchronous: nobody waits.

use super::{Consistency, ConsistencyModel, Free};

pub(super) const ASP: ConsistencyModel = ConsistencyModel {
    name: "asp",
    about: "nobody waits",
    detail: "Each push is an update of its own, applied on arrival to whatever the parameters are by \
             then. \
             The fastest; updates are as stale as the others are busy, so it wants a smaller learning rate or less momentum than bsp.",
    parameters: &[],
    whole_batches: false,
    make: |_, _| Consistency::gated(|_| Box::new(Free)),
};
