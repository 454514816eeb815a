//! The page of studies: its words are in `studies.md` beside this file, its tables come from the registries.

use paceline_explore::samplers::{SAMPLERS, SamplerKind};
use paceline_record::figures::{Figures, RunFigure};

use super::markdown::{MARK, code, table};

const WORDS: &str = include_str!("studies.md");

/// Study files, samplers, figures, and how measurement is kept honest.
pub fn page() -> String {
    let known = Figures::default();
    let parts = [
        ("samplers", samplers()),
        ("figures", figures(known.of_runs(), |figure| figure.of_runs)),
        ("of-commands", figures(known.of_commands(), |figure| figure.of_commands)),
    ];
    let mut text = format!("{MARK}\n\n{WORDS}");
    for (name, table) in parts {
        let place = format!("<!-- {name} -->\n");
        assert!(text.contains(&place), "studies.md has no place for {name}");
        text = text.replace(&place, &table);
    }
    text
}

fn samplers() -> String {
    let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
    let name = |kind: &SamplerKind| {
        let variants = kind.variants.iter().map(|variant| code(&format!("{}:{variant}", kind.name)));
        std::iter::once(code(kind.name)).chain(variants).collect::<Vec<_>>().join(", ")
    };
    let row = |kind: &SamplerKind| vec![name(kind), kind.about.into(), yes(kind.adaptive), yes(kind.finite)];
    let rows: Vec<_> = SAMPLERS.iter().map(row).collect();
    table(&["name", "points", "learns from runs", "ends without a budget"], &rows)
}

fn figures(
    figures: impl Iterator<Item = &'static RunFigure>,
    about: fn(&RunFigure) -> &'static str,
) -> String {
    let row = |figure: &RunFigure| {
        let unit = if figure.unit.is_empty() { "—" } else { figure.unit };
        vec![code(figure.name), unit.into(), about(figure).into()]
    };
    table(&["figure", "unit", "what it is"], &figures.map(row).collect::<Vec<_>>())
}
