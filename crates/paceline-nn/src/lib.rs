//! Networks, kernels and optimisers on flat buffers.
//!
//! A model is one flat parameter buffer, one flat gradient buffer of the same layout and one state
//! buffer, all in memory that the caller supplies (so that it can be shared or registered), with a
//! table of named tensors over them. Backward hands out each tensor's gradient as soon as it is final.
//! No pass allocates, and results do not depend on the number of threads.
//!
//! # Layout
//! - `graph`: a network as data: layers, connections, tensors, cost, initial values
//! - [`description`]: a network as text; `summary`: what it is, for tables and documents
//! - `part`: consecutive layers that are computed apart, and what goes in and out
//! - `tiers`: which layers of a network with early exits are a device's, an edge's, a cloud's
//! - `network`: a graph or a part with memory: forward, loss, backward; `gradient_plan`: where gradients of values lie
//! - [`layers`]: one file per layer
//! - [`models`]: the registry of networks, one file per family
//! - [`optim`]: the registry of optimisers; `schedule`: the learning rate over time
//! - `loss`: what is minimised
//! - `real`: `f32` and the reference `f64`; `functions`: exponentials in `f32`
//! - `compute`: instruction set and threads of a worker
//! - [`accel`]: everything compiled per instruction set or shared between threads; the only `unsafe`
//!
//! # Deliberately absent
//! Anything distributed; datasets; files; clocks.

pub mod accel;
mod compute;
pub mod description;
mod functions;
mod gradient_plan;
mod graph;
pub mod layers;
mod loss;
pub mod models;
mod network;
pub mod optim;
mod part;
mod real;
mod schedule;
mod shape;
mod summary;
mod tiers;

pub use compute::{Compute, OuterMemory};
pub use graph::{EarlyExit, Graph, Node, PassMemory, ShapeError, Tensor, ValueId};
pub use layers::Pass;
pub use loss::{Outcome, Targets};
pub use network::Network;
pub use part::{GraphPart, PartEdge};
pub use real::Real;
pub use schedule::{LrScaling, Progress, Schedule};
pub use shape::Shape;
pub use summary::{GraphSummary, LayerSummary, TensorSummary};
pub use tiers::{Tier, TierEdge, Tiers, normalised_entropy};
