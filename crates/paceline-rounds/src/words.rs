//! What `paceline strategy check` says, in words and tables.

use crate::matrix::SquareMatrix;
use crate::program::Program;
use crate::report::StrategyReport;

/// Most workers that are checked.
const MOST: usize = 1024;

/// Numbers of workers: `4`, `2,4,8` or `2..64`; otherwise, what is needed.
pub fn worker_counts(text: &str) -> Result<Vec<usize>, String> {
    let form = || format!("numbers from 1 to {MOST} are needed, e.g. 4, 2,4,8 or 2..64");
    let one =
        |text: &str| text.trim().parse::<usize>().ok().filter(|n| (1..=MOST).contains(n)).ok_or_else(form);
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            Some((first, last)) => {
                let (first, last) = (one(first)?, one(last.trim_start_matches('='))?);
                if first > last {
                    return Err(form());
                }
                all.extend(first..=last);
            }
            None => all.push(one(part)?),
        }
    }
    Ok(all)
}

/// Makes a table of its head and its rows.
type MakeTable<'a> = &'a dyn Fn(&[&str], &[Vec<String>]) -> String;

/// What is known of a rule, for people: of one number of workers everything, of several a table.
pub fn report_text(program: &Program, reports: &[StrategyReport], aligned: MakeTable<'_>) -> String {
    let mut text = format!("{}: {}\n", program.name(), program.about());
    if let [report] = reports {
        text.push_str(&format!("{} workers\n", report.workers));
        text.push_str(&report.text());
        if let Some(mixing) = report.mixing.as_ref().filter(|_| report.workers <= 8) {
            for (step, matrix) in mixing.iterations.iter().take(4).enumerate() {
                let what = if mixing.carried { "from the start to the end of" } else { "of" };
                text.push_str(&format!("\nmatrix {what} iteration {step}\n{}", rows(matrix)));
            }
            if let Some(product) = mixing.over_period.as_ref().filter(|_| mixing.period != Some(1)) {
                text.push_str(&format!("\nmatrix of a period\n{}", rows(product)));
            }
        }
        return text;
    }
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.3}"));
    let row = |report: &StrategyReport| {
        let mixing = report.mixing.as_ref();
        let contraction = mixing.map(|mixing| mixing.contraction);
        vec![
            report.workers.to_string(),
            report.agreement.to_owned(),
            mixing.and_then(|m| m.period).map_or_else(|| "-".into(), |period| period.to_string()),
            number(contraction.and_then(|c| c.variance_left)),
            number(contraction.map(|c| c.per_iteration)),
            number(mixing.and_then(|m| m.bias)),
            number(mixing.and_then(|m| m.noise)),
            format!("{:.2}", report.traffic[0].models),
            format!("{:.1}", report.traffic[0].messages),
            format!("{:.2}", 1e3 * report.virtual_time.period_s),
            format!("{:.2}", 1e3 * report.virtual_time.ring_allreduce_s),
        ]
    };
    let head = [
        "workers",
        "replicas",
        "period",
        "variance left",
        "per iteration",
        "bias",
        "noise",
        "models sent",
        "messages",
        "ms",
        "ring ms",
    ];
    text.push_str(&aligned(&head, &reports.iter().map(row).collect::<Vec<_>>()));
    text.push_str(
        "Every run ends, nothing is sent to nobody or to the finished, and rows sum to one; a lost worker ends the run, \
         and all others name it.\nvariance left: of the workers' disagreement, after one iteration in the worst case; per \
         iteration: what distances shrink to in the long run;\nbias: the share of the worker that counts most, 1 if all \
         count the same; noise: 1 is the mean of all, p one worker alone;\nmodels sent, messages: per worker and \
         iteration; ms, ring ms: an iteration behind the link, and one of ring all-reduce\n",
    );
    text
}

fn rows(matrix: &SquareMatrix) -> String {
    let row = |row: &[f64]| {
        let cells: Vec<String> = row.iter().map(|value| format!("{value:7.4}")).collect();
        format!("  {}\n", cells.join(" "))
    };
    matrix.rows().map(row).collect()
}
