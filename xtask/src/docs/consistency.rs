//! The page of consistency models.

use paceline_protocol::consistency::ConsistencyModel;
use paceline_protocol::{CONSISTENCIES, STRATEGIES};

use super::markdown::Page;
use super::measured::Measured;
use super::{command, parameters, sync_flags};
use crate::process::Outcome;

/// Every consistency model, and how they compare.
pub fn page(measured: &Measured) -> Outcome<String> {
    let mut page = Page::new("Consistency models");
    let chosen: Vec<_> = STRATEGIES.iter().filter(|s| s.gated).collect();
    let links: Vec<_> = chosen.iter().map(|s| format!("[{0}](strategies/{0}.md)", s.name)).collect();
    page.text(&format!(
        "When a worker may go on to its next step: `--sync NAME`. The default is `bsp`. Strategies with a \
         choice: {}. With the others, who waits for whom follows from their path.",
        links.join(", "),
    ));
    let row = |model: &ConsistencyModel| vec![format!("[{0}](#{0})", model.name), model.about.to_owned()];
    page.table(&["model", "what it is"], &CONSISTENCIES.iter().map(row).collect::<Vec<_>>());
    for model in CONSISTENCIES {
        page.heading(model.name);
        page.motto(model.about);
        page.text(model.detail);
        if !model.parameters.is_empty() {
            parameters(&mut page, model.parameters);
        }
        page.code(&chosen.iter().map(|s| command(s, &sync_flags(model))).collect::<Vec<_>>());
    }
    page.heading("Measured");
    measured.stragglers(&mut page)?;
    Ok(page.done())
}
