//! Settings as a command line that gives the same plan again: what differs from the defaults, and the seed always.

use std::path::Path;

use crate::resolve::resolve;
use crate::settings::PlanSettings;
use crate::table::{SettingKind, SettingSection, is_strategy_file};

/// The weights that training starts from: the file is read to resolve a plan, which may take seconds.
const INIT: [&str; 2] = ["init", "init-partial"];

/// The command line of `paceline VERB` with these settings and then `more` words, quoted for a shell. Files are named by
/// absolute paths, so that it can be typed anywhere. None where a word is not UTF-8, or the settings make no plan.
pub fn command_line(verb: &str, settings: &PlanSettings, more: &[String]) -> Option<String> {
    let mut kept = settings.without(&INIT);
    let hash = resolve(&kept).ok()?.hash();
    // What another setting needs can go when that one has gone.
    loop {
        let before = kept.iter().count();
        for name in settings.iter().map(|(setting, _)| setting.name).filter(|name| *name != "seed") {
            let less = kept.without(&[name]);
            // What the plan does not hold decides where data lie, or what is recorded.
            let counts = kept.iter().any(|(setting, text)| {
                let recorded = setting.section == SettingSection::Recording;
                let path = matches!(setting.kind, SettingKind::Path);
                setting.name == name
                    && (path || recorded && setting.default.is_none_or(|known| text != known))
            });
            if !counts && resolve(&less).is_ok_and(|plan| plan.hash() == hash) {
                kept = less;
            }
        }
        if kept.iter().count() == before {
            break;
        }
    }
    let mut words = vec!["paceline".to_owned(), verb.to_owned()];
    for (setting, text) in settings.iter().filter(|(setting, _)| !["seed", "args"].contains(&setting.name)) {
        if !kept.given(setting.name) && !INIT.contains(&setting.name) {
            continue;
        }
        let flag = format!("--{}", setting.name);
        let text = match setting.kind {
            SettingKind::Switch => {
                words.push(flag);
                continue;
            }
            SettingKind::Path => std::path::absolute(Path::new(text)).ok()?.to_str()?.to_owned(),
            _ => match text.to_str()? {
                file if setting.name == "strategy" && is_strategy_file(file) => {
                    std::path::absolute(file).ok()?.to_str()?.to_owned()
                }
                text => text.to_owned(),
            },
        };
        match text.starts_with('-') {
            true => words.push(format!("{flag}={text}")),
            false => words.extend([flag, text]),
        }
    }
    words.extend(["--seed".into(), settings.text("seed")?.to_owned()]);
    words.extend_from_slice(more);
    let arguments = settings.script_args().ok()?;
    if !arguments.is_empty() {
        words.push("--".into());
        words.extend(arguments);
    }
    Some(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
}

/// A word as a POSIX shell reads it back.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=+:@%,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_change_them() {
        for (word, shown) in [
            ("0.05", "0.05"),
            ("rank=1,factor=2", "rank=1,factor=2"),
            ("dirichlet(0.5)", "'dirichlet(0.5)'"),
            ("", "''"),
            ("it's $HOME", r"'it'\''s $HOME'"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }
}
