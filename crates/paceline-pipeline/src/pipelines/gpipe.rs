//! All forward, then all backward (Huang et al. 2019).

use super::{Pipeline, PipelinePlace};
use paceline_protocol::Work;

pub(super) const PIPELINE: Pipeline = Pipeline {
    name: "gpipe",
    about: "all micro-batches forward, then all backward: every stage keeps the activations of all of them",
    bubble: "(s−1)/(m+s−1)",
    slots: "m",
    order,
};

fn order(PipelinePlace { rank, micro_batches, .. }: PipelinePlace) -> Vec<Work> {
    let forward = (0..micro_batches).map(|micro| Work::forward(rank, micro));
    forward.chain((0..micro_batches).map(|micro| Work::backward(rank, micro))).collect()
}
