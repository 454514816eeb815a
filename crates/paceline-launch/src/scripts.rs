//! The script of a rank: started and attached before the rank knows its peers.

use std::path::PathBuf;

use paceline_attach::{DelegatedGroup, ScriptEvent, ScriptListener};
use paceline_record::metric::sample_script;
use paceline_record::process;
use paceline_resolve::TypedPlan;
use paceline_train::{GradientSource, ScriptRequest, ScriptSource, script_failed};

use crate::control::{RankEvent, ScriptCommon};
use crate::devices::ScriptConditions;
use crate::rank::failed;

/// The package that scripts import, as it came with this program: name and text of each file.
const PACKAGE: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/package.rs"));

/// What the launcher is told of a script.
pub(crate) fn event(event: ScriptEvent) -> RankEvent {
    match event {
        ScriptEvent::Said(line) => RankEvent::Said { line },
        ScriptEvent::Notice(text) => RankEvent::Waiting { text },
        ScriptEvent::Failed(failure) => failed(&script_failed(failure)),
        ScriptEvent::Ended => RankEvent::Script { pid: 0 },
    }
}

/// Starts the script of a rank, waits until it has attached, and tells the launcher what it is.
pub(crate) fn attach(
    plan: &TypedPlan<'_>,
    rank: usize,
    times: bool,
    conditions: &ScriptConditions,
    listener: ScriptListener,
    say: &mut dyn FnMut(RankEvent, &[f32]),
) -> Result<ScriptSource, RankEvent> {
    let delegated = plan.strategy.delegated.zip(conditions.meeting).map(|(backend, port)| DelegatedGroup {
        backend: backend.into(),
        address: "127.0.0.1".into(),
        port,
    });
    let environment = conditions.environment.clone();
    let request = ScriptRequest { plan, rank, times, packages: packages(), delegated, environment };
    let source = ScriptSource::attach(&request, listener, &mut |pid| {
        sample_script(pid);
        say(RankEvent::Script { pid }, &[]);
    })
    .map_err(|error| failed(&error))?;
    let common =
        ScriptCommon { layout: source.layout().clone(), optimizer: source.attached.optimizer.clone() };
    let params = if rank == 0 { source.own_params() } else { &[] };
    say(RankEvent::Attached { common, framework: source.attached.framework.clone() }, params);
    Ok(source)
}

/// A folder with the package that scripts import: that of this program, whatever else is installed. None where it
/// cannot be written: then what is installed must do.
fn packages() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let folder = cache.or_else(home)?.join("paceline").join(format!("python-{}", digest()));
    for (name, text) in PACKAGE {
        let file = folder.join("paceline").join(name);
        std::fs::create_dir_all(file.parent()?).ok()?;
        if std::fs::read_to_string(&file).is_ok_and(|known| known == *text) {
            continue;
        }
        // Other ranks may write the same at the same moment: each file appears whole.
        let fresh = file.with_extension(format!("{}.{}", process::host(), std::process::id()));
        std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &file)).ok()?;
    }
    Some(folder)
}

/// What tells this version of the package from others.
fn digest() -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    PACKAGE.iter().for_each(|(name, text)| {
        hash.update(name.as_bytes());
        hash.update(text.as_bytes());
    });
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}
