//! What a run's settings can name.

use paceline_data::DatasetKind;
use paceline_nn::models::Model;
use paceline_nn::optim::Optimiser;
use paceline_pipeline::Pipeline;
use paceline_protocol::Protocols;
use paceline_record::metric::Metrics;
use paceline_registry::Registry;
use paceline_wire::TransportKind;

/// What a run's settings can name. [`Default`] has what the program brings.
#[derive(Clone, Debug, Default)]
pub struct Registries {
    /// Strategies and consistency models.
    pub protocols: Protocols,
    /// Transports.
    pub transports: Registry<TransportKind>,
    /// Datasets.
    pub datasets: Registry<DatasetKind>,
    /// Networks.
    pub models: Registry<Model>,
    /// Optimisers.
    pub optimisers: Registry<Optimiser>,
    /// Orders of the work of a pipeline's stages.
    pub pipelines: Registry<Pipeline>,
    /// What is sampled while a run goes on.
    pub metrics: Metrics,
}
