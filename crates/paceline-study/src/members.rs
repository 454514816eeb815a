//! Which study a recorded run belongs to.

use std::collections::HashMap;
use std::path::Path;

use paceline_record::store::RunRow;

use crate::registries::AllRegistries;
use crate::state::{StudyState, names};

/// Names the studies of runs that were recorded before runs said so themselves: the journals know. A journal that
/// cannot be read names none.
pub fn name_studies(store: &Path, runs: &mut [RunRow], registries: &AllRegistries) {
    if runs.iter().all(|run| run.labels.study.is_some()) {
        return;
    }
    let mut studies = HashMap::new();
    for name in names(store) {
        let Ok(known) = StudyState::peek(store, &name, registries) else { continue };
        studies.extend(known.runs.into_iter().flatten().map(|run| (run, name.clone())));
    }
    for run in runs.iter_mut().filter(|run| run.labels.study.is_none()) {
        run.labels.study = studies.get(&run.run).cloned();
    }
}
