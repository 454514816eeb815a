//! Settings from a file: `paceline train --config FILE`.

use std::path::Path;
use std::sync::Arc;

use paceline_plan::study::SettingsFile;
use paceline_plan::{PlanError, StudyError, Value};

use crate::settings::PlanSettings;
use crate::table::SettingTable;

/// Words that a file can hold beside settings: what people call the run.
const LABELS: [&str; 3] = ["name", "tag", "note"];

/// Settings and labels of a run, as a file has them.
#[derive(Clone, Debug)]
pub struct RunConfig {
    file: SettingsFile,
    /// The settings.
    pub settings: PlanSettings,
}

impl RunConfig {
    /// Reads a file: its keys are settings, or `name`, `tag` and `note`.
    pub fn read(path: &Path, table: &Arc<SettingTable>) -> Result<Self, StudyError> {
        let name = path.display().to_string();
        let unreadable = |error: std::io::Error| StudyError {
            file: name.clone(),
            line: 1,
            key: String::new(),
            problem: error.to_string(),
        };
        let text =
            paceline_files::open_or_pipe(path).and_then(std::io::read_to_string).map_err(unreadable)?;
        let file = SettingsFile::read(&name, &text)?;
        let mut settings = PlanSettings::new(table);
        for (key, value) in file.values.iter().filter(|(key, _)| !LABELS.contains(&key.as_str())) {
            settings.set(key, value).map_err(|error| file.source.error(key, error.to_string()))?;
        }
        Ok(Self { file, settings })
    }

    /// A label, as `check` reads it: `name`, `note`, or each `tag` of a list.
    pub fn labels(
        &self,
        key: &str,
        check: fn(&str) -> Result<String, String>,
    ) -> Result<Vec<String>, StudyError> {
        let Some(value) = self.file.values.get(key) else { return Ok(Vec::new()) };
        let wrong = |problem: String| self.file.source.error(key, problem);
        let Value::Text(text) = value else { return Err(wrong("text in quotes is needed".into())) };
        let words: Vec<&str> = if key == "tag" { text.split(',').collect() } else { vec![text] };
        words.into_iter().map(|word| check(word).map_err(wrong)).collect()
    }

    /// Where in the file a refused setting stands; the refusal itself where `flags` gave it.
    pub fn place(&self, error: PlanError, flags: &PlanSettings) -> Result<StudyError, PlanError> {
        let key = error.flag.trim_start_matches('-');
        if flags.given(key) || !self.settings.given(key) {
            return Err(error);
        }
        let PlanError { value, problem, .. } = &error;
        Ok(self.file.source.error(key, format!("{value}: {problem}")))
    }
}
