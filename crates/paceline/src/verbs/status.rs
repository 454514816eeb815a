//! `paceline status`: how far studies are.

use paceline_explore::schedule::{End, Role};
use serde_json::json;

use super::resume;
use crate::failure::Failure;
use crate::output::{self, Show};
use crate::study::report::Findings;
use crate::study::state::{self, State};
use crate::study::{self, Store};

/// Flags of `paceline status`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A study's name or file; all studies if left out
    study: Option<String>,
    #[command(flatten)]
    store: Store,
}

/// `paceline status`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let store = args.store.folder();
    if let Some(text) = &args.study {
        let name = resume::study(&store, text)?.ok_or_else(|| Failure::no_study(&store, text))?;
        let known = State::peek(&store, &name)?;
        let path = state::journal(&store, &name);
        let findings = Findings::new(&known);
        let folder = path.parent().unwrap_or(&store);
        if show.json {
            return Ok(output::json(&findings.json(folder))?);
        }
        let expected = study::schedule(&known.study, known.added)?.expected();
        let ended = known.made.iter().filter(|m| m.end.is_some()).count() as u64;
        let left = expected.saturating_sub(ended);
        let each = known.wall_s / ended.max(1) as f64;
        let state = match (known.finished, left) {
            (true, _) => "finished".to_owned(),
            _ => format!(
                "{ended} runs done, about {left} left, {}",
                study::drive::duration(each * left as f64)
            ),
        };
        return Ok(output::text(&format!("{name}: {state}\n{}", findings.text(folder)))?);
    }
    let (mut rows, mut text) = (Vec::new(), String::new());
    for name in state::names(&store) {
        let known = State::peek(&store, &name)?;
        let count = |which: &dyn Fn(&paceline_explore::schedule::Made) -> bool| {
            known.made.iter().filter(|m| which(m)).count()
        };
        let ended = count(&|m| m.end.is_some());
        let points = count(&|m| m.job.role == Role::Point);
        let failed = count(&|m| matches!(m.end, Some(End::Failed { .. } | End::Diverged { .. })));
        rows.push(json!({
            "study": name, "runs": known.made.len(), "ended": ended, "points": points, "failed": failed,
            "finished": known.finished,
        }));
        let state = if known.finished { "finished" } else { "unfinished" };
        text += &format!("{name:<24} {state:<11} {ended} runs, {failed} of them failed\n");
    }
    if show.json {
        return Ok(output::json(&json!({"type": "result", "studies": rows}))?);
    }
    if text.is_empty() {
        text = format!("no studies in {}\n", store.display());
    }
    Ok(output::text(&text)?)
}
