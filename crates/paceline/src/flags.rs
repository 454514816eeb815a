//! The settings of a run as flags: clap's arguments, made from the table of `paceline_resolve`.

use std::ffi::OsStr;
use std::sync::OnceLock;

use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use paceline_resolve::{PlanSettings, RunSetting, SettingKind, SettingSection, is_strategy_file};
use paceline_study::AllRegistries;

/// What the program's names stand for. One per process: clap makes and reads derived arguments by functions without
/// parameters.
pub static REGISTRIES: OnceLock<AllRegistries> = OnceLock::new();

pub fn registries() -> &'static AllRegistries {
    REGISTRIES.get_or_init(AllRegistries::default)
}

/// What was given of one of the [`GROUPS`] of settings.
#[derive(Clone, Debug)]
pub struct SettingFlags<const GROUP: usize>(pub PlanSettings);

/// Which settings are flags of a verb.
const GROUPS: [fn(&RunSetting) -> bool; 4] = [
    |setting| setting.section != SettingSection::Recording,
    |setting| setting.section == SettingSection::Recording,
    |setting| ["data", "data-dir", "model", "model-file"].contains(&setting.name),
    |setting| setting.name == "data-dir",
];

/// Flags of what is run.
pub type PlanFlags = SettingFlags<0>;
/// Flags of what is recorded.
pub type RecordingFlags = SettingFlags<1>;
/// Flags of a network and its samples.
pub type NetworkFlags = SettingFlags<2>;
/// The flag of where datasets lie.
pub type PlaceFlags = SettingFlags<3>;

/// A parser of registered names that shows what each one is.
pub fn names(entries: impl Iterator<Item = (&'static str, &'static str)>) -> PossibleValuesParser {
    let value = |(name, about): (&'static str, &'static str)| match about {
        "" => PossibleValue::new(name),
        about => PossibleValue::new(name).help(about),
    };
    PossibleValuesParser::new(entries.map(value).collect::<Vec<_>>())
}

/// A parser of registered names that takes a strategy file as well.
#[derive(Clone)]
struct NameOrFile(PossibleValuesParser);

impl TypedValueParser for NameOrFile {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        match value.to_str().filter(|text| is_strategy_file(text)) {
            Some(file) => Ok(file.to_owned()),
            None => self.0.parse_ref(command, arg, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

fn arg(setting: &'static RunSetting) -> Arg {
    let mut arg = Arg::new(setting.name).long(setting.name).help(setting.about.as_ref());
    if let SettingKind::Switch = setting.kind {
        arg = arg.action(ArgAction::SetTrue);
    } else {
        arg = arg.value_name(setting.value_name.as_ref()).default_value(setting.default);
        arg = arg.value_parser(match &setting.kind {
            SettingKind::Name(all) if setting.name == "strategy" => {
                ValueParser::new(NameOrFile(names(all.iter().copied())))
            }
            SettingKind::Name(all) => ValueParser::new(names(all.iter().copied())),
            SettingKind::Path => ValueParser::new(PathBufValueParser::new()),
            _ => ValueParser::new(move |text: &str| setting.check(text).map(|()| text.to_owned())),
        });
    }
    if let SettingKind::List = setting.kind {
        arg = arg.action(ArgAction::Append).value_delimiter(',');
    }
    if let Some(bare) = setting.bare {
        arg = arg.num_args(0..=1).default_missing_value(bare).hide_default_value(true);
    }
    if setting.section == SettingSection::Parameters {
        arg = arg.help_heading("Parameters of single strategies and consistency models");
    }
    arg = setting.conflicts.map_or(arg.clone(), |other| arg.clone().conflicts_with(other));
    setting.requires.map_or(arg.clone(), |other| arg.requires(other))
}

impl<const GROUP: usize> SettingFlags<GROUP> {
    fn settings() -> impl Iterator<Item = &'static RunSetting> {
        registries().settings.iter().filter(|setting| GROUPS[GROUP](setting))
    }
}

impl<const GROUP: usize> clap::FromArgMatches for SettingFlags<GROUP> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = PlanSettings::new(&registries().settings);
        let from_user = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        for setting in Self::settings().filter(|setting| from_user(setting.name)) {
            // As it was typed; of a flag that is given several times, all values.
            let texts = matches
                .get_raw(setting.name)
                .into_iter()
                .flatten()
                .filter(|_| !matches!(setting.kind, SettingKind::Switch));
            given.put(setting.name, texts.collect::<Vec<_>>().join(OsStr::new(",")));
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<const GROUP: usize> clap::Args for SettingFlags<GROUP> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::settings().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
