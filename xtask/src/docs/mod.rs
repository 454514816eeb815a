//! `cargo xtask docs`: the pages in `docs/`, out of the registries and out of what was measured. Nothing in
//! them is written by hand, so nothing in them can say what the program does not do.
//!
//! - `strategies`, `consistency`, `codecs`, `channels`, `datasets`, `record`: one function per page
//! - `networks`: the page of models and layers; `pipelines`: the page of stages and schedules
//! - `studies`: the page of studies, its words from `studies.md`
//! - pages of the studies that are kept in `studies/` come from [`crate::study`]
//! - `peers`: the page of other systems beside ours, out of a study that is kept there too
//! - `measured`: tables out of `bench/accept/`
//! - `markdown`: headings, paragraphs, tables

mod channels;
mod codecs;
mod consistency;
mod datasets;
mod markdown;
mod measured;
mod networks;
mod peers;
mod pipelines;
mod record;
mod strategies;
mod studies;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use paceline_data::DATASETS;
use paceline_protocol::{
    Averages, CODECS, CONSISTENCIES, Codec, Coder, Options, Parameter, Protocols, Refusal, STRATEGIES, Setup,
    Strategy, consistency as models,
};
use paceline_wire::TRANSPORTS;

use crate::process::{Outcome, root};
pub use markdown::MARK;
use markdown::{Page, code};
use measured::Measured;

/// Texts by path from the repository's root.
type Pages = BTreeMap<String, String>;

/// Writes every page, and removes those that were generated once and are not any more.
pub fn write() -> Outcome {
    let pages = generated()?;
    for path in strangers(&root(), &pages) {
        fs::remove_file(root().join(&path)).map_err(|error| format!("{path}: {error}"))?;
    }
    for (path, text) in &pages {
        let file = root().join(path);
        let folder = file.parent().expect("pages lie in folders");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&file, text))
            .map_err(|error| format!("{path}: {error}"))?;
    }
    println!("{} pages in docs/ and studies/", pages.len());
    Ok(())
}

/// Fails if a page on disk is not what would be written.
pub fn check() -> Outcome {
    compare(&root(), &generated()?)
}

/// The page of other systems beside ours, from a kept measurement.
pub fn peers_page(document: &serde_json::Value) -> Outcome<String> {
    peers::page(Some(document))
}

fn generated() -> Outcome<Pages> {
    let channels = crate::channels::read(&root().join(crate::channels::FILE))?;
    let mut measured = Measured::read(&root().join("bench/accept"))?;
    measured.channels = channels;
    let mut pages = pages(&measured)?;
    pages.extend(crate::study::pages()?);
    Ok(pages)
}

fn compare(root: &Path, pages: &Pages) -> Outcome {
    let same = |(path, text): &(&String, &String)| {
        fs::read_to_string(root.join(path)).is_ok_and(|there| there == **text)
    };
    let wrong = pages.iter().find(|page| !same(page)).map(|(path, _)| path.clone());
    match wrong.or_else(|| strangers(root, pages).into_iter().next()) {
        Some(path) => Err(format!("{path} is not what would be generated: run cargo xtask docs")),
        None => Ok(()),
    }
}

/// Generated pages on disk that are not among these.
fn strangers(root: &Path, pages: &Pages) -> Vec<String> {
    let mut strangers = Vec::new();
    for folder in ["docs", "docs/strategies"] {
        for entry in fs::read_dir(root.join(folder)).into_iter().flatten().flatten() {
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            if text.starts_with(MARK) && !pages.contains_key(&path) {
                strangers.push(path);
            }
        }
    }
    strangers.sort();
    strangers
}

fn pages(measured: &Measured) -> Outcome<Pages> {
    let mut pages = Pages::from([
        ("docs/README.md".into(), index()),
        ("docs/consistency.md".into(), consistency::page(measured)?),
        ("docs/codecs.md".into(), codecs::page(measured)?),
        ("docs/record.md".into(), record::page()),
        ("docs/channels.md".into(), channels::page(measured.channels.as_ref())),
        ("docs/datasets.md".into(), datasets::page()),
        ("docs/models.md".into(), networks::page()?),
        ("docs/pipelines.md".into(), pipelines::page()?),
        ("docs/studies.md".into(), studies::page()),
        ("docs/peers.md".into(), peers::page(measured.peers.as_ref())?),
        ("docs/strategies/README.md".into(), strategies::index(measured)?),
    ]);
    if let Some(measured) = &measured.channels {
        pages.insert("docs/channels.svg".into(), measured.chart(None, channels::PAYLOAD).svg());
    }
    for strategy in STRATEGIES {
        let text = strategies::page(strategy, measured)?;
        pages.insert(format!("docs/strategies/{}.md", strategy.name), text);
    }
    Ok(pages)
}

fn index() -> String {
    let mut page = Page::new("How workers train together");
    page.text(
        "Reference pages for `paceline train` with more than one worker. A run chooses one of each: along \
         which path workers average, when a worker may go on, how messages are made shorter, what they \
         travel over, and what is trained on.",
    );
    let names = |names: Vec<&str>| names.join(", ");
    let of = |about: &str, all: Vec<&str>| format!("{about}: {}.", names(all));
    page.items([
        of("[Strategies](strategies/README.md) (`--strategy`)", STRATEGIES.iter().map(|s| s.name).collect()),
        of("[Consistency models](consistency.md) (`--sync`)", CONSISTENCIES.iter().map(|c| c.name).collect()),
        of("[Codecs](codecs.md) (`--compression`)", CODECS.iter().map(|c| c.name).collect()),
        of("[Channels](channels.md) (`--transport`)", TRANSPORTS.iter().map(|t| t.name).collect()),
        of("[Datasets](datasets.md) (`--data`)", DATASETS.iter().map(|d| d.name).collect()),
    ]);
    page.text(
        "What they train is on a page of its own: [models and layers](models.md); how a global batch is cut up on \
         another: [shares and micro-batches](batches.md); and how a network is cut into stages on a third: \
         [pipelines](pipelines.md). Networks that answer at several places have [early exits](exits.md). Which combination is the best is a question for \
         [studies](studies.md), and so is whether another system is better: [other systems beside ours](peers.md).",
    );
    page.text(
        "What every run leaves behind: [the record](record.md), its tables, its metrics and where they come from. What \
         runs say: [analysis](analysis.md), and [the live pages](serve.md).",
    );
    page.text(
        "Scripts as workers: [PyTorch](pytorch.md), and [the protocol](attach.md) behind it. By hand: [every verb by \
         example](commands.md), [what works today](status.md), [how fast](speed.md).",
    );
    page.text(
        "[An averaging rule of your own](own-strategy.md): strategies from files, checked before they run, and \
         [compared with others](compare.md).",
    );
    page.text(
        "`cargo xtask docs` writes the rest out of the registries in `crates/paceline-protocol`, \
         `crates/paceline-wire`, `crates/paceline-data`, `crates/paceline-nn`, `crates/paceline-pipeline`, \
         `crates/paceline-record` and `crates/paceline-explore`, and the raw runs in `bench/`; \
         `cargo xtask test` fails if a page is out of date.",
    );
    page.done()
}

/// The table of a strategy's or model's parameters.
fn parameters(page: &mut Page, parameters: &[&Parameter]) {
    if parameters.is_empty() {
        page.text("None.");
        return;
    }
    let row =
        |p: &&Parameter| vec![code(&format!("--{}", p.name)), p.about.to_owned(), p.range(), code(p.default)];
    let rows: Vec<_> = parameters.iter().map(row).collect();
    page.table(&["flag", "what it sets", "possible values", "default"], &rows);
}

/// The command that a page shows, up to what is particular; the rest is as in `accept averaging`.
fn command(strategy: &Strategy, rest: &str) -> String {
    let servers = if strategy.servers { " --servers 2" } else { "" };
    let name = strategy.name;
    format!("paceline train --workers 4{servers} --batch 16 --epochs 12 --lr 0.02 --strategy {name}{rest}")
}

/// A consistency model with its parameters, as flags.
fn sync_flags(model: &models::ConsistencyModel) -> String {
    let flags = model.parameters.iter().map(|p| format!(" --{} {}", p.name, p.default));
    format!(" --sync {}{}", model.name, flags.collect::<String>())
}

/// What a strategy says to a combination, with its other parameters left out.
fn tried(
    strategy: &Strategy,
    averages: Averages,
    sync: &str,
    codec: Option<&'static Codec>,
) -> Result<(), Refusal> {
    const STEPS: u64 = 100;
    let mut options = Options::default();
    Protocols::default().resolve(strategy, sync, &mut options)?;
    let model = models::find(sync).expect("strategies name models that exist");
    strategy.check(&Setup {
        sync: (model.make)(&options, STEPS),
        averages,
        coder: codec.map(Coder::new),
        options,
        ..Setup::new(4, usize::from(strategy.servers), 1000, STEPS)
    })
}

/// Names by the reason that they are refused for; allowed ones have none.
fn by_reason<'a>(
    tries: impl IntoIterator<Item = (&'a str, Result<(), Refusal>)>,
) -> Vec<(Option<String>, Vec<&'a str>)> {
    let mut reasons: Vec<(Option<String>, Vec<&str>)> = Vec::new();
    for (name, tried) in tries {
        let reason = tried.err().map(|refusal| refusal.problem);
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(name),
            None => reasons.push((reason, vec![name])),
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Pages {
        pages(&Measured::default()).unwrap()
    }

    #[test]
    fn there_is_a_page_per_strategy_and_each_says_that_it_is_generated() {
        let pages = all();
        assert_eq!(pages.len(), 11 + STRATEGIES.len());
        for (path, text) in &pages {
            assert!(text.starts_with(MARK) && text.ends_with('\n') && !text.ends_with("\n\n"), "{path}");
        }
    }

    #[test]
    fn every_link_leads_to_a_page_and_a_heading_that_exist() {
        let pages = all();
        for (path, text) in &pages {
            for target in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let folder = Path::new(path).parent().unwrap();
                let file = match file.strip_prefix("../") {
                    _ if file.is_empty() => path.into(),
                    Some(file) => folder.parent().unwrap().join(file),
                    None => folder.join(file),
                };
                // Files that are not generated only have to be there.
                if !pages.contains_key(file.to_str().unwrap()) && root().join(&file).exists() {
                    continue;
                }
                let there = pages.get(file.to_str().unwrap());
                let there = there.unwrap_or_else(|| panic!("{path}: {target}"));
                let found = there.lines().any(|line| line.to_lowercase() == format!("## {heading}"));
                assert!(heading.is_empty() || found, "{path}: {target}");
            }
        }
    }

    #[test]
    fn pages_on_disk_are_what_would_be_generated() {
        assert_eq!(check(), Ok(()));
    }

    #[test]
    fn a_page_that_differs_is_missing_or_is_left_over_is_named() {
        let root = std::env::temp_dir().join(format!("xtask-docs-{}", std::process::id()));
        fs::create_dir_all(root.join("docs/strategies")).unwrap();
        let pages = Pages::from([("docs/a.md".into(), format!("{MARK}\n"))]);
        let problem = || compare(&root, &pages).unwrap_err();
        assert!(problem().starts_with("docs/a.md is not"), "missing: {}", problem());
        fs::write(root.join("docs/a.md"), "other").unwrap();
        assert!(problem().contains("docs/a.md") && problem().contains("run cargo xtask docs"));
        fs::write(root.join("docs/a.md"), format!("{MARK}\n")).unwrap();
        fs::write(root.join("docs/by-hand.md"), "left alone").unwrap();
        assert_eq!(compare(&root, &pages), Ok(()));
        fs::write(root.join("docs/strategies/old.md"), MARK).unwrap();
        assert!(problem().starts_with("docs/strategies/old.md"));
        fs::remove_dir_all(root).unwrap();
    }
}
