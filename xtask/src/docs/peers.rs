//! The page of other systems beside ours, from the study that `cargo xtask accept peers` keeps.

use paceline_statistics::mean;
use rusqlite::Connection;
use serde_json::Value;

use super::markdown::{Page, code};
use super::measured::nothing;
use crate::process::Outcome;
use crate::study::compare;

/// Systems that do the same, and the peer beside which the others are held.
struct Family {
    title: &'static str,
    reference: &'static str,
    systems: &'static [&'static str],
}

const FAMILIES: &[Family] = &[
    Family {
        title: "Exact averaging",
        reference: "torch-ddp",
        systems: &["paceline-auto", "paceline-tcp", "torch-ddp", "horovod"],
    },
    Family {
        title: "An asynchronous parameter server",
        reference: "tf-ps",
        systems: &["paceline-ps", "tf-ps"],
    },
];

/// What the names stand for.
const SYSTEMS: &[(&str, &str)] = &[
    ("paceline-auto", "`paceline train` as it is: --strategy auto over shared memory"),
    ("paceline-tcp", "the same over TCP (`--transport tcp`), which is what gloo uses"),
    ("paceline-ps", "--strategy ps --servers 1 --sync asp: workers push to one server and wait for nobody"),
    ("torch-ddp", "PyTorch's DistributedDataParallel over gloo, started by torchrun"),
    ("horovod", "Horovod's DistributedOptimizer with PyTorch over gloo, started by horovodrun"),
    ("tf-ps", "TensorFlow's ParameterServerStrategy: a coordinator, workers and one server, over gRPC"),
];

/// The page; without runs, how it gets them.
pub fn page(document: Option<&Value>) -> Outcome<String> {
    let mut page = Page::new("Other systems beside ours");
    page.text(
        "Is another system faster for what you train? A study can tell: `paceline init` writes one (`--peer`), with the other \
         systems as levels of an axis, each in its own program, with the figures that our runs have.",
    );
    page.code(&[
        "paceline init --peer torch-ddp,tf-ps peers.toml      # or horovod; the programs lie in peers-peers/"
            .into(),
        "paceline explore peers.toml --report".into(),
    ]);
    page.items(SYSTEMS.iter().map(|(name, about)| format!("{}: {about}.", code(name))));
    page.text(
        "A package that cannot be imported ends the study before anything is run, and is named with the command of pip \
         that installs it. PACELINE_PYTHON names the Python when the files are written; afterwards it is a word of the \
         study file. The programs are yours to change: another network, another dataset (`paceline data export` writes \
         any), more steps.",
    );
    page.heading("What is the same, and what is counted");
    page.items(SAME.iter().map(|line| (*line).to_owned()));
    page.heading("What was measured");
    let runs: Vec<&Value> = document.and_then(|d| d["runs"].as_array()).into_iter().flatten().collect();
    match (document, runs.split_first()) {
        (Some(document), Some((about, runs))) => measured(&mut page, document, about, runs)?,
        _ => page.text(&nothing("peers")),
    }
    page.heading("What these figures do not say");
    page.items(LIMITS.iter().map(|line| (*line).to_owned()));
    Ok(page.done())
}

const SAME: &[&str] = &[
    "Network (`mlp` or `lenet`, layer by layer), samples and their normalisation (the built-in dataset `synthetic`), \
     samples per worker and step, steps, learning rate, momentum, one thread per worker, one machine. Each system \
     shuffles with its own generator and starts from its own random weights.",
    "Every system is run once, in random order, before any is run again; our default is run again in between as \
     the control. A repeat has its own seed.",
    "`samples_per_s` and `step_s` are of the training clock: steps alone, no start-up and no evaluation. A peer's clock \
     begins after its first step, which builds graphs and buffers; ours counts all steps.",
    "`seconds.startup` is from the start of the system's launcher to that clock, `seconds.total` to its end; `wall_s`, \
     `cpu_s`, `rss_peak_bytes` and `processes` are measured from outside, of all processes of a run, launchers included.",
    "`loopback_bytes` are all bytes of a run that crossed the loopback device, in a network namespace of its own (as root): \
     start-up and headers included. Shared memory is not among them.",
    "`final_accuracy` and `final_loss` are of the whole test split, after the last step.",
];

const LIMITS: &[&str] = &[
    "The kernels differ: ours are Paceline's own engine's, PyTorch's and TensorFlow's are oneDNN's and Eigen's. A faster step \
     is mostly a faster convolution or product on this machine, not a better exchange; `--strategy ddp-gloo` of a script \
     ([pytorch.md](pytorch.md)) compares exchanges with the same kernels.",
    "Two workers on one machine: nothing is said about networks, GPUs or many workers. The peers are made for those.",
    "Asynchronous steps are not those of exact averaging: compare within a table.",
    "Programs are as their systems' guides write them, without tuning (no channels-last, no graph compiler, no fusion beyond \
     the defaults).",
    "A peer's first step does not count; ours does. Start-up is shown apart because short runs are mostly that.",
    "Memory is the sum over processes of what is resident: pages that several share are counted in each.",
];

/// What was tried by hand, beside the reason that a measurement keeps.
const HOROVOD: &str = "What came of building it is in `bench/peers/horovod-build.txt`.";

fn measured(page: &mut Page, document: &Value, about: &Value, runs: &[&Value]) -> Outcome {
    let machine = &document["machine"];
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let versions = about["versions"].as_object().into_iter().flatten();
    let versions: Vec<String> = versions.map(|(name, version)| format!("{name} {}", text(version))).collect();
    let points: Vec<&Value> = runs.iter().copied().filter(|run| run["role"] == "point").collect();
    let failed = points.iter().filter(|run| run["end"]["state"] != "ok").count();
    let study = about["study"].as_str().unwrap_or_default();
    let built = if about["profile"] == "checked" { " (built with assertions on: slower)" } else { "" };
    page.text(&format!(
        "{} runs of one study on {} ({} cores): {} workers, {} samples per worker and step, {} steps; {failed} failed. {}, {}. Load \
         average before and after: {} and {}. Every run is in `bench/accept/peers.json`.",
        points.len(),
        text(&machine["cpu"]),
        machine["cores"],
        given(study, "--workers"),
        given(study, "--batch"),
        given(study, "--steps"),
        text(&about["paceline"]) + built,
        versions.join(", "),
        load(&about["load"][0]),
        load(&about["load"][1]),
    ));
    let busiest =
        [0, 1].map(|i| load(&about["load"][i]).parse::<f64>().unwrap_or(0.0)).into_iter().fold(0.0, f64::max);
    if busiest > 2.0 * machine["cores"].as_f64().unwrap_or(f64::MAX) {
        page.text(
            "**The machine had other work to do** all the while: times are those of a crowded machine and intervals are wide; \
             accuracies, bytes and memory do not depend on that. `cargo xtask accept peers` on a quiet machine replaces them.",
        );
    }
    for (name, why) in about["left_out"].as_object().into_iter().flatten() {
        page.text(&format!("Without {name}: {}. {HOROVOD}", text(why)));
    }
    let mut models: Vec<&str> = points.iter().filter_map(|run| run["model"].as_str()).collect();
    models.sort_unstable();
    models.dedup();
    for family in FAMILIES {
        for model in &models {
            let title = format!("**{}, {model}**", family.title);
            table(page, &title, family, model, &points)?;
        }
    }
    page.text(
        "Throughput and how many times the peer's it is are means of the repeats with intervals of 95% (geometric means; the \
         systems of a table share one deviation, that of their repeats); `≈` where the two are not told apart, corrected for all comparisons of a table. The \
         other columns are plain means.",
    );
    Ok(())
}

/// The value of a flag in the study's command.
fn given<'a>(study: &'a str, flag: &str) -> &'a str {
    let behind = study.split(&format!("\"{flag}\", \"")).nth(1);
    behind.and_then(|rest| rest.split('"').next()).unwrap_or("?")
}

/// The load average of the last minute.
fn load(text: &Value) -> String {
    text.as_str().and_then(|text| text.split(' ').next()).unwrap_or("?").to_owned()
}

fn table(page: &mut Page, title: &str, family: &Family, model: &str, points: &[&Value]) -> Outcome {
    let of = |system: &str, figure: &str| -> Vec<f64> {
        let own = points.iter().filter(|run| run["system"] == system && run["model"] == model);
        own.filter_map(|run| run["end"]["metrics"][figure].as_f64()).collect()
    };
    let there: Vec<&str> =
        family.systems.iter().copied().filter(|name| !of(name, "samples_per_s").is_empty()).collect();
    if !there.contains(&family.reference) {
        return Ok(());
    }
    let database = Connection::open_in_memory().map_err(|error| error.to_string())?;
    let wrong = |error: rusqlite::Error| error.to_string();
    database.execute_batch("CREATE TABLE runs (system, rate)").map_err(wrong)?;
    for system in &there {
        for rate in of(system, "samples_per_s") {
            database.execute("INSERT INTO runs VALUES (?, ?)", (system, rate)).map_err(wrong)?;
        }
    }
    let asked = format!(
        "name = \"told\"\nscale = \"log\"\nnoise = \"pooled\"\nreference = \"{}\"\nsql = \"SELECT system, rate FROM runs\"",
        family.reference
    );
    compare(&asked, &database)?;
    let mut rows = Vec::new();
    for system in &there {
        let one = |column: &str| -> Outcome<Option<f64>> {
            let sql = format!("SELECT {column} FROM told WHERE system = ?");
            database.query_row(&sql, [system], |row| row.get(0)).map_err(wrong)
        };
        let interval = |columns: [&str; 3], digits: usize, unit: &str| -> Outcome<String> {
            let [Some(middle), low, high] = [one(columns[0])?, one(columns[1])?, one(columns[2])?] else {
                return Ok("–".into());
            };
            let range = low.zip(high).map(|(low, high)| format!(" ({low:.digits$} to {high:.digits$})"));
            Ok(format!("{middle:.digits$}{unit}{}", range.unwrap_or_default()))
        };
        let middle =
            |figure: &str| Some(of(system, figure)).filter(|all| !all.is_empty()).map(|all| mean(&all));
        let cell = |value: Option<f64>, show: &dyn Fn(f64) -> String| value.map_or("–".into(), show);
        let told_apart = one("real")? != Some(0.0);
        let sign = if told_apart { "" } else { "≈ " };
        let per_step = middle("loopback_bytes").zip(middle("steps")).map(|(bytes, steps)| bytes / steps);
        rows.push(vec![
            (*system).to_owned(),
            interval(["mean", "low", "high"], 0, "")?,
            format!("{sign}{}", interval(["beside", "beside_low", "beside_high"], 2, "×")?),
            cell(middle("step_s"), &|s| format!("{:.1} ms", 1e3 * s)),
            cell(middle("seconds.startup"), &|s| format!("{s:.1} s")),
            cell(middle("wall_s"), &|s| format!("{s:.1} s")),
            cell(middle("final_accuracy"), &|share| format!("{:.1}%", 100.0 * share)),
            cell(middle("cpu_s"), &|s| format!("{s:.1} s")),
            cell(middle("rss_peak_bytes"), &|bytes| format!("{:.0} MB", bytes / 1e6)),
            cell(per_step, &|bytes| format!("{:.1} MB", bytes / 1e6)),
        ]);
    }
    page.text(title);
    let beside = format!("times {}", family.reference);
    page.table(
        &[
            "system",
            "samples/s",
            &beside,
            "a step",
            "start-up",
            "whole run",
            "accuracy",
            "CPU time",
            "memory",
            "loopback per step",
        ],
        &rows,
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn systems_are_held_beside_their_peer_and_what_is_missing_is_left_out() {
        let run = |system: &str, rate: f64| {
            let metrics = json!({"samples_per_s": rate, "step_s": 0.01, "steps": 10, "loopback_bytes": 2e7});
            json!({"role": "point", "system": system, "model": "mlp", "end": {"state": "ok", "metrics": metrics}})
        };
        let about = json!({
            "paceline": "paceline 0", "versions": {"torch": "9"}, "left_out": {"horovod": "no compiler"},
            "study": "run = [\"--workers\", \"3\",\n\"--steps\", \"10\"]",
        });
        let mut runs = vec![about];
        for repeat in [0.99, 1.0, 1.01] {
            runs.extend([run("torch-ddp", 100.0 * repeat), run("paceline-auto", 200.0 * repeat)]);
            runs.push(run("paceline-ps", 50.0 * repeat));
        }
        let text = page(Some(&json!({"runs": runs, "machine": {"cpu": "X", "cores": 2}}))).unwrap();
        assert!(text.contains("| paceline-auto | 200 (") && text.contains("| 2.00× ("), "{text}");
        assert!(text.contains("| 2.0 MB |") && text.contains("Without horovod: no compiler. What"), "{text}");
        assert!(text.contains("3 workers, ? samples per worker and step, 10 steps"), "{text}");
        assert!(
            !text.contains("| paceline-ps |"),
            "without its peer there is nothing to hold it beside: {text}"
        );
        assert!(page(None).unwrap().contains("Nothing has been measured yet"));
    }
}
