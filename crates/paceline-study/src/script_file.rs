//! A study file to start from, for a script of the user's.

use std::path::Path;

use paceline_plan::Value;
use paceline_resolve::quoted;

use crate::error::StudyFailure;

/// What is written, with places for what is known of the script.
const TEMPLATE: &str = include_str!("script.toml");

/// A study file for a script.
pub struct ScriptStudy {
    /// What belongs into the file.
    pub text: String,
    /// What the script still lacks.
    pub note: Option<String>,
}

/// The study file `study` for a script with these arguments.
pub fn script_study(study: &Path, script: &Path, args: &[String]) -> Result<ScriptStudy, StudyFailure> {
    let unreadable = |source| StudyFailure::File { path: script.to_owned(), source };
    let source = paceline_files::open(script).and_then(std::io::read_to_string).map_err(unreadable)?;
    let lacks = !source.contains("paceline");
    let note = "the script does not import paceline yet: docs/pytorch.md shows the lines that it needs";
    let folder = study.parent().unwrap_or(Path::new(""));
    let text = filled(folder, script, &source, args);
    Ok(ScriptStudy { text, note: lacks.then(|| note.to_owned()) })
}

/// The template with what is known of a script: its place from `folder`, its own `text`, arguments.
fn filled(folder: &Path, script: &Path, text: &str, args: &[String]) -> String {
    let name = script.file_name().unwrap_or(script.as_os_str()).to_string_lossy();
    let file = match (std::path::absolute(script), std::path::absolute(folder.join("."))) {
        (Ok(script), Ok(folder)) => script.strip_prefix(&folder).unwrap_or(&script).to_path_buf(),
        _ => script.to_path_buf(),
    };
    let reports = |figure: &str| {
        text.match_indices("report(").any(|(at, _)| {
            let call = text[at..].split(')').next().unwrap_or_default();
            call.contains(&format!("{figure}="))
        })
    };
    let torch = text.contains("torch");
    let words = args.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let (constraints, objective) = if reports("accuracy") {
        (
            "# constraints = [\"final_accuracy >= 0.9\"]",
            "[[objectives]]\nmetric = \"final_accuracy\"\ngoal = \"maximize\"\n",
        )
    } else if reports("loss") {
        (
            "# constraints = [\"final_loss <= 0.5\"]",
            "[[objectives]]\nmetric = \"final_loss\"\ngoal = \"minimize\"\n",
        )
    } else {
        ("# constraints = [\"workers <= 2\"]", "")
    };
    let mut strategies = vec!["ring-allreduce", "ps", "local"];
    strategies.extend(torch.then_some("ddp-gloo"));
    let strategies: Vec<String> = strategies.iter().map(|name| format!("\"{name}\"")).collect();
    let given = match words.is_empty() {
        true => "# args = \"--epochs 1\"    # its arguments".to_owned(),
        false => format!("args = {}", quoted_toml(&words)),
    };
    let places = [
        ("{SCRIPT}", name.as_ref()),
        ("{FILE}", &quoted_toml(&file.to_string_lossy())),
        ("{ARGS}", &given),
        ("{STRATEGIES}", &strategies.join(", ")),
        ("{EXAMPLE}", &example(args)),
        ("{CONSTRAINTS}", constraints),
        ("{OBJECTIVE}", objective),
    ];
    places.iter().fold(TEMPLATE.to_owned(), |text, (place, with)| text.replace(place, with))
}

/// An axis of an argument with a number, where there is one.
fn example(words: &[String]) -> String {
    let pair = words.windows(2).find_map(|pair| {
        let name = pair[0].strip_prefix("--").filter(|name| !name.contains('='))?;
        Some((name, Value::read(&pair[1]).number().filter(|number| *number > 0.0)?))
    });
    let (name, number) = pair.unwrap_or(("lr", 0.1));
    let other = if number.fract() == 0.0 { number * 2.0 } else { number / 10.0 };
    let mut levels = [number, other];
    levels.sort_by(f64::total_cmp);
    format!("# args.{name} = [{}, {}]", Value::Number(levels[0]), Value::Number(levels[1]))
}

/// A text as TOML writes it.
fn quoted_toml(text: &str) -> String {
    serde_json::to_string(text).expect("a text is plain data")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AllRegistries;

    #[test]
    fn what_is_written_for_a_script_is_a_study_that_can_be_run() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train it.py");
        let texts = [
            ("import paceline.torch\nrun.report(loss=a, accuracy=b)\n", 7, Some("final_accuracy")),
            ("from paceline import attach\nrun.report(\n  loss=l)\n", 6, Some("final_loss")),
            ("from paceline import attach\n", 6, None),
        ];
        for (text, points, second) in texts {
            std::fs::write(&script, text).unwrap();
            let args = ["--lr".to_owned(), "0.05".into(), "--name".into(), "it's \"one\"".into()];
            let file = folder.path().join("study.toml");
            let written = script_study(&file, &script, &args).unwrap().text;
            assert!(written.contains("script = \"train it.py\""), "{written}");
            std::fs::write(&file, &written).unwrap();
            let study =
                crate::read(&file, &AllRegistries::default()).unwrap_or_else(|e| panic!("{e}: {written}"));
            assert_eq!(study.space.points(1000).unwrap().len(), points, "{written}");
            assert_eq!(study.objectives.get(1).map(|o| o.metric.as_str()), second);
            assert!(written.contains("# args.lr = [0.005, 0.05]"), "{written}");
            // The commented axis can be used as it stands.
            let used = written.replace("# args.", "args.");
            std::fs::write(&file, &used).unwrap();
            let study =
                crate::read(&file, &AllRegistries::default()).unwrap_or_else(|e| panic!("{e}: {used}"));
            assert_eq!(study.space.points(1000).unwrap().len(), 4 * points);
        }
    }
}
