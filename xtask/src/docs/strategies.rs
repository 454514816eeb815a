//! The pages of strategies.

use paceline_protocol::options::Kind;
use paceline_protocol::{
    Averages, CODECS, Options, Parameter, Protocols, ReplicaAgreement, STRATEGIES, Setup, Strategy,
    consistency,
};

use super::markdown::{Page, code};
use super::measured::Measured;
use super::{by_reason, command, parameters, sync_flags, tried};
use crate::process::Outcome;

const NOTATION: &str = "p workers, n bytes of gradient, α latency per message, B bandwidth, k servers";

/// All strategies beside one another.
pub fn index(measured: &Measured) -> Outcome<String> {
    let mut page = Page::new("Strategies");
    page.text(
        "A strategy is the path along which workers average: `--strategy NAME`. The default, with more than \
         one worker, is `auto`.",
    );
    let row = |s: &Strategy| {
        let syncs: Vec<_> = sync_names(s).into_iter().map(sync_link).collect();
        let codecs: Vec<_> = s.codecs().into_iter().map(codec_link).collect();
        let averages: Vec<_> = s.averages.iter().map(|a| a.name()).collect();
        let name = format!("[{0}]({0}.md)", s.name);
        vec![name, s.about.into(), s.cost.into(), syncs.join(", "), codecs.join(", "), averages.join(", ")]
    };
    let head = ["strategy", "what it is", "cost of a step", "consistency", "codecs", "averages"];
    page.table(&head, &STRATEGIES.iter().map(row).collect::<Vec<_>>());
    page.text(
        "Of what a strategy averages, the first is the default, and the codecs are those that go with it.",
    );
    page.heading("Notation");
    page.text(&format!(
        "{NOTATION}; weights take as many bytes as gradients. The cost is the time of one step's communication of the whole buffer, with fixed costs \
         and without overlap; in a run, buckets are sent while backward goes on."
    ));
    page.heading("Measured");
    measured.averaging(&mut page, None)?;
    Ok(page.done())
}

/// One strategy.
pub fn page(strategy: &Strategy, measured: &Measured) -> Outcome<String> {
    let mut page = Page::new(strategy.name);
    page.motto(strategy.about);
    page.heading("What it does");
    page.text(strategy.detail);
    page.heading("What a step costs");
    page.quote(strategy.cost);
    page.text(&format!("with {NOTATION} ([more](README.md#notation))."));
    page.heading("When it is good");
    page.text(strategy.good);
    page.heading("What it is bad at");
    page.text(strategy.bad);
    if !strategy.loss.is_empty() {
        page.heading("When a worker is lost");
        page.text(strategy.loss);
        page.text(
            "Shares, spares and what is refused: [runs that survive](../elastic.md#weights-of-ones-own).",
        );
    }
    page.heading("Parameters");
    parameters(&mut page, strategy.parameters);
    presets(&mut page, strategy);
    page.heading("What it averages");
    page.items(strategy.averages.iter().map(|averages| averaged(strategy, *averages)));
    page.text(agreement(strategy));
    page.heading("Consistency models");
    syncs(&mut page, strategy);
    page.heading("Codecs");
    page.items(strategy.averages.iter().filter_map(|averages| codecs(strategy, *averages)));
    page.heading("How to run it");
    page.code(&examples(strategy));
    page.heading("Measured");
    measured.averaging(&mut page, Some(strategy.name))?;
    page.text("All strategies beside one another: [strategies](README.md#measured).");
    Ok(page.done())
}

fn sync_link(name: &str) -> String {
    format!("[{name}](../consistency.md#{name})")
}

fn codec_link(name: &str) -> String {
    format!("[{name}](../codecs.md#{name})")
}

/// The consistency models that a strategy can be run with.
fn sync_names(strategy: &Strategy) -> Vec<&'static str> {
    Protocols::default().syncs(strategy)
}

/// The consistency models to choose from.
fn syncs(page: &mut Page, strategy: &Strategy) {
    let names = sync_names(strategy);
    if let [only] = names[..] {
        let link = sync_link(only);
        page.text(&format!("No choice, only {link}: who waits for whom follows from the strategy's path."));
        return;
    }
    page.items(names.into_iter().map(|name| {
        let about = consistency::find(name).map_or("", |model| model.about);
        format!("{}: {about}", sync_link(name))
    }));
}

/// The values of a parameter that chooses among words.
fn choices(parameter: &Parameter) -> &'static [&'static str] {
    match parameter.kind {
        Kind::Choice(words) => words,
        _ => &[],
    }
}

/// What each value of a strategy's presets, if it has any, stands for.
fn presets(page: &mut Page, strategy: &Strategy) {
    let Some((first, rest)) = strategy.parameters.split_first() else { return };
    let row = |choice: &&str| {
        let mut options = Options::of(&[(first.name, choice)]);
        (strategy.presets)(&mut options);
        let values = rest.iter().map(|p| options.0.get(p.name).map(|value| code(value)));
        values.collect::<Option<Vec<_>>>().map(|values| [vec![code(choice)], values].concat())
    };
    let rows: Vec<_> = choices(first).iter().filter_map(row).collect();
    if !rest.is_empty() && !rows.is_empty() {
        page.text(&format!("What each `--{}` stands for; a flag that is given as well wins:", first.name));
        let head: Vec<_> = strategy.parameters.iter().map(|p| code(&format!("--{}", p.name))).collect();
        page.table(&head.iter().map(String::as_str).collect::<Vec<_>>(), &rows);
    }
}

/// Whether something can be averaged, and with which consistency models.
fn averaged(strategy: &Strategy, averages: Averages) -> String {
    let mut text = code(averages.name());
    if averages == strategy.averages[0] {
        text += " (the default)";
    }
    let all = sync_names(strategy);
    for (reason, syncs) in by_reason(all.iter().map(|s| (*s, tried(strategy, averages, s, None)))) {
        if let Some(reason) = reason {
            let with = if syncs == all { "the other defaults".into() } else { syncs.join(", ") };
            text += &format!("; refused with {with}: “{reason}”");
        }
    }
    text
}

fn agreement(strategy: &Strategy) -> &'static str {
    let setup =
        Setup { averages: strategy.averages[0], ..Setup::new(4, usize::from(strategy.servers), 1000, 100) };
    match (strategy.agreement)(&setup) {
        ReplicaAgreement::Exact => {
            "With the defaults, every worker has after each step the model that one worker with the p-fold \
             batch would have."
        }
        ReplicaAgreement::Common => "With the defaults, all workers have the same model after each step.",
        ReplicaAgreement::Apart => {
            "With the defaults, the workers' models differ; the one that is evaluated is their mean."
        }
    }
}

/// The codecs that can be used when this is averaged, unless it is refused without one.
fn codecs(strategy: &Strategy, averages: Averages) -> Option<String> {
    let sync = "bsp";
    tried(strategy, averages, sync, None).ok()?;
    let mut text = format!("When {} are averaged:", averages.name());
    for (reason, names) in
        by_reason(CODECS.iter().map(|codec| (codec.name, tried(strategy, averages, sync, Some(codec)))))
    {
        let names = names.into_iter().map(codec_link).collect::<Vec<_>>().join(", ");
        match reason {
            None => text += &format!(" {names}."),
            Some(reason) => text += &format!(" Refused: {names}: “{reason}”."),
        }
    }
    Some(text)
}

/// Commands for the strategy: with each consistency model, or with each value of its first choice.
fn examples(strategy: &Strategy) -> Vec<String> {
    if strategy.gated {
        let models = sync_names(strategy).into_iter().filter_map(consistency::find);
        return models.map(|model| command(strategy, &sync_flags(model))).collect();
    }
    match strategy.parameters.iter().find(|p| !choices(p).is_empty()) {
        Some(p) => {
            choices(p).iter().map(|value| command(strategy, &format!(" --{} {value}", p.name))).collect()
        }
        None => vec![command(strategy, "")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str) -> &'static Strategy {
        paceline_protocol::find(name).unwrap()
    }

    #[test]
    fn examples_have_servers_models_and_variants_where_these_are_needed() {
        assert_eq!(examples(find("tree")).len(), 1);
        assert!(examples(find("stepwise")).iter().any(|line| line.ends_with(" --variant push-sum")));
        let ps = examples(find("ps"));
        assert!(ps.iter().all(|line| line.contains(" --servers 2 ")), "{ps:?}");
        assert!(ps.iter().any(|line| line.ends_with(" --sync ssp --staleness 3")), "{ps:?}");
    }

    #[test]
    fn what_is_refused_is_said_with_the_reason() {
        let weights = averaged(find("ps"), Averages::Weights);
        assert!(weights.starts_with("`weights`; refused with asp, ssp, "), "{weights}");
        let gradients = averaged(find("stepwise"), Averages::Gradients);
        assert!(gradients.contains("refused with the other defaults: “"), "{gradients}");
        assert_eq!(codecs(find("stepwise"), Averages::Gradients), None);
        let codecs = codecs(find("ps"), Averages::Gradients).unwrap();
        assert!(codecs.contains("Refused: [powersgd](../codecs.md#powersgd): “"), "{codecs}");
    }
}
