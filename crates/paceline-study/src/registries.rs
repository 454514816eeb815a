//! Whatever the program can name.

use std::sync::Arc;

use paceline_explore::samplers::SamplerKind;
use paceline_record::figures::{Figures, RunFigure};
use paceline_record::metric::{self, Metric};
use paceline_registry::Registry;
use paceline_resolve::{Registries, SettingTable};

use crate::peers::Peer;

/// Whatever runs and studies can name. [`Default`] has what the program brings.
#[derive(Clone)]
pub struct AllRegistries {
    /// The settings of runs, and what their values can name.
    pub settings: Arc<SettingTable>,
    /// Samplers.
    pub samplers: Registry<SamplerKind>,
    /// Figures that are measured.
    pub figures: Figures,
    /// Systems beside which ours is studied.
    pub peers: Registry<Peer>,
}

impl Default for AllRegistries {
    fn default() -> Self {
        let settings = Arc::new(SettingTable::new(Registries::default()));
        Self {
            settings,
            samplers: Registry::default(),
            figures: Figures::default(),
            peers: Registry::default(),
        }
    }
}

impl AllRegistries {
    /// What the settings of runs can name.
    pub fn runs(&self) -> &Registries {
        &self.settings.registries
    }

    /// One entry more, of any family. It replaces one of the same name.
    pub fn with<T: Registrable>(mut self, entry: &'static T) -> Self {
        let mut runs = self.runs().clone();
        entry.register(&mut runs, &mut self);
        Self { settings: Arc::new(SettingTable::new(runs)), ..self }
    }
}

/// An entry of one of the registries.
pub trait Registrable: Sized + 'static {
    /// Adds it to its registry: among those of runs, or beside them.
    fn register(&'static self, runs: &mut Registries, all: &mut AllRegistries);
}

macro_rules! registrable {
    ($($kind:ty => |$runs:ident, $all:ident| $registry:expr;)*) => {$(
        impl Registrable for $kind {
            fn register(&'static self, $runs: &mut Registries, $all: &mut AllRegistries) {
                $registry = $registry.clone().with(self);
            }
        }
    )*};
}

registrable! {
    paceline_protocol::Strategy => |runs, _all| runs.protocols.strategies;
    paceline_protocol::consistency::ConsistencyModel => |runs, _all| runs.protocols.consistencies;
    paceline_wire::TransportKind => |runs, _all| runs.transports;
    paceline_data::DatasetKind => |runs, _all| runs.datasets;
    paceline_nn::models::Model => |runs, _all| runs.models;
    paceline_nn::optim::Optimiser => |runs, _all| runs.optimisers;
    paceline_pipeline::Pipeline => |runs, _all| runs.pipelines;
    Metric<metric::ProcessReading> => |runs, _all| runs.metrics.process;
    Metric<metric::LinkReading> => |runs, _all| runs.metrics.link;
    Metric<metric::HostReading> => |runs, _all| runs.metrics.host;
    Metric<metric::InterfaceReading> => |runs, _all| runs.metrics.interface;
    SamplerKind => |_runs, all| all.samplers;
    RunFigure => |_runs, all| all.figures;
    Peer => |_runs, all| all.peers;
}
