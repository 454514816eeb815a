//! `paceline plan`: what a study would run, and how long it will take.

use std::path::PathBuf;
use std::time::Duration;

use paceline_explore::schedule::{End, Next, PlannedRun, Role, StudyRun};
use paceline_launch::trial::{self, Trial, TrialEvent};
use serde_json::json;

use super::store::Where;
use crate::failure::Failure;
use crate::output::{self, Show};
use crate::study;
use crate::study::drive::duration;
use crate::study::report::configuration;
use crate::study::workload::{self, Reader};

/// Flags of `paceline plan`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The study file
    #[arg(value_name = "STUDY.toml")]
    study: PathBuf,
    /// Do not run the control once to see how long a run takes
    #[arg(long)]
    no_probe: bool,
    #[command(flatten)]
    store: Where,
}

/// `paceline plan`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let study = study::read(&args.study)?;
    let mut schedule = study::schedule(&study, 0)?;
    let mut seconds = None;
    if !args.no_probe {
        if !show.quiet {
            output::note(
                "running the control once, to see how long a run takes (--no-probe leaves that out)",
            );
        }
        seconds = Some(probe(&study, &args.store)?);
    }
    // Runs as if each had ended without figures: a learning sampler shows its start only.
    let known = schedule.known().map(<[_]>::len);
    let (mut made, mut rows): (Vec<StudyRun>, Vec<PlannedRun>) = (Vec::new(), Vec::new());
    while let Next::Run(job) = schedule.next(&made) {
        rows.push(job.clone());
        made.push(StudyRun { job, end: Some(End::Failed { cause: String::new() }) });
    }
    let total = schedule.expected().max(rows.len() as u64);
    if show.json {
        let one = |job: &PlannedRun| json!({"role": job.role, "repeat": job.repeat, "share": job.share, "levels": workload::levels(&study, job)});
        return Ok(output::json(&json!({
            "type": "result", "study": study.name, "runs": total, "known": known.is_some(),
            "seconds_per_run": seconds, "seconds": seconds.map(|s| s * total as f64),
            "notes": schedule.notes(), "plan": rows.iter().map(one).collect::<Vec<_>>(),
        }))?);
    }
    let mut text = String::new();
    schedule.notes().iter().for_each(|note| text += &format!("{note}\n"));
    for job in &rows {
        let what = match job.role {
            Role::WarmUp => "warm-up".to_owned(),
            Role::Control => format!("control: {}", configuration(&workload::levels(&study, job))),
            Role::Baseline => "one worker alone".into(),
            Role::Point if known.is_some() => configuration(&workload::levels(&study, job)),
            Role::Point => "a point that the sampler chooses then".into(),
        };
        let share =
            if job.share < 1.0 { format!(" ({:.0}% of the work)", 100.0 * job.share) } else { String::new() };
        text += &format!("{:>4}  {what}{share}\n", job.id);
    }
    text += &match seconds {
        Some(each) => {
            format!("{total} runs, about {} ({each:.1} s for the control)\n", duration(each * total as f64))
        }
        None => format!("{total} runs\n"),
    };
    Ok(output::text(&text)?)
}

/// Wall seconds of the control.
fn probe(study: &paceline_plan::Study, store: &Where) -> Result<f64, Failure> {
    let job = PlannedRun { id: 0, role: Role::Control, levels: Vec::new(), share: 1.0, repeat: 0 };
    let call = workload::call(study, &job, &store.folder(), trial::cores().len())?;
    let program = std::env::current_exe()?;
    let mut trial = Trial::start(&program, "keeper", &[], None, &call.words, &call.document)?;
    let mut reader = Reader::new(study, &paceline_record::figures::Figures::default());
    loop {
        match trial.hear(Duration::from_secs(1)) {
            Some(TrialEvent::Line(line)) => reader.line(&line),
            Some(TrialEvent::Ended(ended)) if ended.exit.code == Some(0) && reader.complete => {
                let answers = workload::inference(study, &job)?.map_or(0.0, |_| study.infer.seconds);
                return Ok(ended.wall_s + answers);
            }
            Some(TrialEvent::Ended(ended)) => return Err(Failure::first_run(&study.name, &ended.cause())),
            None => {}
        }
    }
}
