//! The words after `accept`.

use super::Measurement;
use crate::process::Outcome;

/// Names of measurements, and flags.
#[derive(Debug, Default, PartialEq)]
pub struct Options<'a> {
    /// The measurements; none means all.
    pub names: Vec<&'a str>,
    /// Whether measurements are only listed.
    pub list: bool,
    /// The program to measure, instead of one that is built.
    pub binary: Option<&'a str>,
    /// The peers' Python, instead of a virtual environment.
    pub python: Option<&'a str>,
    /// The folder of raw runs.
    pub out: Option<&'a str>,
    /// The earlier program of `before`.
    pub before: Option<&'a str>,
    /// The one part that is measured.
    pub only: Option<&'a str>,
    /// The seed of a campaign.
    pub seed: Option<u64>,
    /// The rounds of a campaign.
    pub rounds: Option<u64>,
}

impl<'a> Options<'a> {
    /// Parses the words; refuses names, flags and values that mean nothing.
    pub fn parse(words: &[&'a str], measurements: &[Measurement]) -> Outcome<Self> {
        let mut options = Self::default();
        let mut own = Vec::new();
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            let mut value = || words.next().filter(|value| !value.starts_with("--"));
            let mut text = || value().ok_or_else(|| format!("{word} needs a value"));
            let number =
                |text: &str| text.parse::<u64>().map_err(|_| format!("{word} needs a number, not {text}"));
            match word {
                "--list" => options.list = true,
                "--binary" => options.binary = Some(text()?),
                "--python" => options.python = Some(text()?),
                "--out" => options.out = Some(text()?),
                "--before" => options.before = Some(text()?),
                "--only" => options.only = Some(text()?),
                "--seed" => options.seed = Some(number(text()?)?),
                "--rounds" => options.rounds = Some(number(text()?)?),
                flag if flag.starts_with('-') => {
                    return Err(format!("accept has no flag {flag}: cargo xtask help"));
                }
                name => options.names.push(name),
            }
            if matches!(word, "--before" | "--only" | "--seed" | "--rounds") {
                own.push(word);
            }
        }
        let find = |name: &str| measurements.iter().find(|m| m.name == name);
        if let Some(unknown) = options.names.iter().find(|name| find(name).is_none()) {
            let known: Vec<_> = measurements.iter().map(|m| m.name).collect();
            return Err(format!("no measurement `{unknown}`; possible: {}", known.join(", ")));
        }
        for flag in own {
            let alone = if let [name] = options.names[..] { find(name) } else { None };
            let has = |m: &&Measurement| match flag {
                "--only" => !m.parts().is_empty(),
                flag => m.flags.contains(&flag),
            };
            if !alone.as_ref().is_some_and(has) {
                let having: Vec<_> = measurements.iter().filter(has).map(|m| m.name).collect();
                return Err(format!("{flag} is a flag of one measurement alone: {}", having.join(" or ")));
            }
        }
        let parts = options.names.first().and_then(|name| find(name)).map_or(&[][..], Measurement::parts);
        match options.only {
            Some(part) if !parts.contains(&part) => {
                Err(format!("--only has {}, not {part}", parts.join(", ")))
            }
            _ => Ok(options),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MEASUREMENTS;
    use super::*;

    fn parse<'a>(words: &[&'a str]) -> Outcome<Options<'a>> {
        Options::parse(words, MEASUREMENTS)
    }

    #[test]
    fn names_and_flags_may_stand_in_any_order() {
        let words = ["--binary", "./paceline", "overhead", "--python", "python3", "report", "--out", "runs"];
        let options = Options {
            names: vec!["overhead", "report"],
            binary: Some("./paceline"),
            python: Some("python3"),
            out: Some("runs"),
            ..Options::default()
        };
        assert_eq!(parse(&words), Ok(options));
        assert_eq!(parse(&[]), Ok(Options::default()));
    }

    #[test]
    fn flags_of_a_campaign_are_numbers_with_names() {
        let of = |words: &[&str]| parse(words).map(|options| (options.seed, options.rounds));
        assert_eq!(of(&["attack"]), Ok((None, None)));
        assert_eq!(of(&["chaos", "--rounds", "3", "--seed", "9"]), Ok((Some(9), Some(3))));
        for wrong in [&["--seed"][..], &["--seed", "x"], &["--luck", "1"], &["--only", "test"]] {
            assert!(of(&[&["chaos"], wrong].concat()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn unknown_names_flags_and_parts_are_refused() {
        for (words, said) in [
            (&["speed"][..], "no measurement `speed`; possible: compute, "),
            (&["overhead", "--fast"], "accept has no flag --fast"),
            (&["--binary"], "--binary needs a value"),
            (&["--binary", "--python", "python3"], "--binary needs a value"),
            (
                &["overhead", "--seed", "1"],
                "--seed is a flag of one measurement alone: compare or survive or survive-predicted or chaos or attack",
            ),
            (&["--rounds", "1"], "--rounds is a flag of one measurement alone"),
            (&["chaos", "attack", "--seed", "1"], "--seed is a flag of one measurement alone"),
            (&["build", "--only", "debug"], "--only has release, test, warm, not debug"),
        ] {
            let refused = parse(words).expect_err("refused");
            assert!(refused.starts_with(said), "{words:?}: {refused}");
        }
    }
}
