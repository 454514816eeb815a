//! What a study would run, and how long a run takes.

use std::path::Path;
use std::time::Duration;

use paceline_explore::schedule::{End, Next, PlannedRun, Role, StudyRun};
use paceline_launch::trial::{self, Trial, TrialEvent, TrialPlace};
use paceline_plan::Study;
use serde_json::{Value as Json, json};

use crate::error::StudyFailure;
use crate::reader::FigureReader;
use crate::registries::AllRegistries;
use crate::report::configuration;
use crate::state::StudyHistory;
use crate::workload;
use paceline_analyze::chart::duration;

/// The runs of a study before any is made.
pub struct StudyOutline {
    history: StudyHistory,
    runs: Vec<PlannedRun>,
    total: u64,
    /// Whether every point is known beforehand.
    known: bool,
    notes: Vec<String>,
    /// Wall seconds of a run, if one was made.
    seconds: Option<f64>,
}

impl StudyOutline {
    /// Asks the schedule as if each run had ended without figures: a learning sampler shows its start only.
    pub fn new(
        study: &Study,
        registries: &AllRegistries,
        seconds: Option<f64>,
    ) -> Result<Self, StudyFailure> {
        let mut schedule = crate::schedule(study, registries, 0)?;
        let known = schedule.known();
        let (mut made, mut runs): (Vec<StudyRun>, Vec<PlannedRun>) = (Vec::new(), Vec::new());
        while let Next::Run(job) = schedule.next(&made) {
            runs.push(job.clone());
            made.push(StudyRun { job, end: Some(End::Failed { cause: String::new() }) });
        }
        let total = schedule.expected().max(runs.len() as u64);
        let history = StudyHistory::new(study.clone(), registries.clone());
        Ok(Self { history, runs, total, known, notes: schedule.notes().to_vec(), seconds })
    }

    /// For programs.
    pub fn json(&self) -> Json {
        let Self { history, runs, total, known, notes, seconds } = self;
        let one = |job: &PlannedRun| json!({"role": job.role, "repeat": job.repeat, "share": job.share, "levels": history.levels(job)});
        json!({
            "type": "result", "study": history.study.name, "runs": total, "known": known,
            "seconds_per_run": seconds, "seconds": seconds.map(|s| s * *total as f64),
            "notes": notes, "plan": runs.iter().map(one).collect::<Vec<_>>(),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        for job in &self.runs {
            let levels = || configuration(&workload::levels(self.history.of(job), job));
            let of = job.workload.as_ref().map(|name| format!("{name}, ")).unwrap_or_default();
            let what = match job.role {
                Role::WarmUp => "warm-up".to_owned(),
                Role::Control => format!("control: {}", levels()),
                Role::Baseline => "one worker alone".into(),
                Role::Point if self.known => levels(),
                Role::Point => "a point that the sampler chooses then".into(),
            };
            let part = job.share < 1.0;
            let share =
                if part { format!(" ({:.0}% of the work)", 100.0 * job.share) } else { String::new() };
            text += &format!("{:>4}  {of}{what}{share}\n", job.id);
        }
        let total = self.total;
        text + &match self.seconds {
            Some(each) => {
                format!(
                    "{total} runs, about {} ({each:.1} s for the control)\n",
                    duration(each * total as f64)
                )
            }
            None => format!("{total} runs\n"),
        }
    }
}

/// Runs the control of every workload once: its wall seconds, in the mean.
pub fn probe(study: &Study, registries: &AllRegistries, store: &Path) -> Result<f64, StudyFailure> {
    crate::prepare(study)?;
    let parts = crate::parts(study, registries);
    let seconds: Result<Vec<f64>, _> = parts.iter().map(|part| probe_one(part, registries, store)).collect();
    Ok(paceline_statistics::mean(&seconds?))
}

fn probe_one(study: &Study, registries: &AllRegistries, store: &Path) -> Result<f64, StudyFailure> {
    let job = PlannedRun::control(0);
    let call = workload::call(study, registries, &job, store, trial::cores().len())?;
    let program = std::env::current_exe()?;
    let mut trial = Trial::start(&program, "keeper", TrialPlace::default(), &call.words, &call.text()?)?;
    let mut reader = FigureReader::new(study, &registries.figures);
    loop {
        match trial.hear(Duration::from_secs(1)) {
            Some(TrialEvent::Line(line)) => reader.line(&line),
            Some(TrialEvent::Ended(ended)) if ended.exit.code == Some(0) && reader.complete => {
                let answers =
                    workload::inference(study, registries, &job)?.map_or(0.0, |_| study.infer.seconds);
                return Ok(ended.wall_s + answers);
            }
            Some(TrialEvent::Ended(ended)) => {
                return Err(StudyFailure::FirstRun { name: study.name.clone(), cause: ended.cause() });
            }
            None => {}
        }
    }
}
