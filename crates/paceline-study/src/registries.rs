//! What a study can name.

use std::sync::Arc;

use paceline_explore::samplers::SamplerKind;
use paceline_record::figures::Figures;
use paceline_registry::Registry;
use paceline_resolve::SettingTable;

/// What a study can name. [`Default`] has what the program brings.
#[derive(Clone)]
pub struct StudyRegistries {
    /// The settings of its runs, and what their values can name.
    pub settings: Arc<SettingTable>,
    /// Samplers.
    pub samplers: Registry<SamplerKind>,
    /// Figures that are measured.
    pub figures: Figures,
}

impl Default for StudyRegistries {
    fn default() -> Self {
        let settings = Arc::clone(SettingTable::builtin());
        Self { settings, samplers: Registry::default(), figures: Figures::default() }
    }
}
