//! One forward, one backward in turn (Narayanan et al. 2019; flushed at the end of every batch).

use super::{Pipeline, PipelinePlace};
use paceline_protocol::Work;

pub(super) const PIPELINE: Pipeline = Pipeline {
    name: "1f1b",
    about: "one forward, one backward in turn: no slower than gpipe, and stage i of s keeps at most s−i micro-batches",
    bubble: "(s−1)/(m+s−1)",
    slots: "min(s−i, m)",
    order,
};

fn order(PipelinePlace { rank, ranks, micro_batches }: PipelinePlace) -> Vec<Work> {
    // So many are under way when the first one comes back.
    let ahead = (ranks - rank).min(micro_batches);
    let mut work: Vec<Work> = (0..ahead).map(|micro| Work::forward(rank, micro)).collect();
    for micro in 0..micro_batches {
        work.push(Work::backward(rank, micro));
        if micro + ahead < micro_batches {
            work.push(Work::forward(rank, micro + ahead));
        }
    }
    work
}
