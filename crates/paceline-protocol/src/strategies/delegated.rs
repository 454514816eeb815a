//! Averaging by a script's own framework: a rank then has nobody to exchange with, and sees nothing of the links.

use super::{COLLECTIVE, Strategy, ring_allreduce};
use crate::setup::{Averages, Setup};

pub(super) const DDP_GLOO: Strategy = Strategy {
    name: "ddp-gloo",
    about: "PyTorch's DistributedDataParallel over gloo, for --script: what we are measured beside",
    detail: "The same script under torch's own DistributedDataParallel. Its messages are not ours: links and waits are \
             not observed.",
    averages: &[Averages::Gradients],
    // Each rank goes on by itself, as one worker alone does.
    make: |setup, _| (ring_allreduce::RING_ALLREDUCE.make)(&Setup { workers: 1, ..setup.clone() }, 0),
    links: |_, _| Vec::new(),
    delegated: Some("gloo"),
    ..COLLECTIVE
};

pub(super) const DDP_NCCL: Strategy = Strategy {
    name: "ddp-nccl",
    about: "The same over NCCL, for --script with a GPU for each worker (--gpus)",
    delegated: Some("nccl"),
    ..DDP_GLOO
};
