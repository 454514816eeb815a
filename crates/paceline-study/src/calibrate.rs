//! The passes that a study's points make: which of them a calibration lacks, and measuring those.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use paceline_data::Dataset;
use paceline_plan::{Plan, PlanError, Point, Study};
use paceline_resolve::TypedPlan;
use paceline_virtual::calibrate::ScriptSubject;
use paceline_virtual::{Calibration, PassCoverage, PassKey, ScriptTime, VirtualError, calibrate};
use serde::Serialize;

use crate::error::StudyFailure;
use crate::predict::{all_points, refused};
use crate::registries::AllRegistries;
use crate::workload::{self, Datasets};

/// Seconds that measuring a pass takes, roughly: alone, and on each number of workers at once.
const ALONE_S: f64 = 1.5;
const WORKERS_S: f64 = 1.5;
/// Most workers per core that are measured at once: beyond that, times grow in proportion.
const CROWD: usize = 2;

/// The passes of a study's points, each once, in the order of the points.
pub(crate) struct StudyPasses<'r> {
    registries: &'r AllRegistries,
    /// The study file.
    file: String,
    passes: Vec<StudyPass>,
    datasets: Datasets,
    /// Workloads that are scripts.
    scripts: Vec<String>,
}

/// A pass that points of a study make.
struct StudyPass {
    key: PassKey,
    /// A plan that makes it.
    plan: Plan,
    /// Numbers of workers that make it at once, beginning with one.
    workers: BTreeSet<usize>,
}

impl StudyPass {
    /// Whether a calibration lacks it, has it for fewer workers, or not as a later micro-batch.
    fn missing(&self, calibration: &Calibration) -> bool {
        let most = self.workers.last().copied().unwrap_or(1);
        calibration.coverage(&self.key) != PassCoverage::Measured
            || calibration.shares_less(&self.key, most)
            || (self.plan.micro_batches > 1 && calibration.lacks_later_ones(&self.key))
    }

    /// Seconds that measuring it takes, roughly.
    fn cost_s(&self) -> f64 {
        ALONE_S + WORKERS_S * self.workers.len().saturating_sub(1) as f64
    }
}

/// A pass that was measured for a study.
#[derive(Serialize)]
struct AddedPass {
    #[serde(flatten)]
    key: PassKey,
    /// The median of its seconds.
    pass_s: f64,
    /// Seconds that measuring it took.
    seconds: f64,
}

/// What a study asks of a calibration, for programs.
#[derive(Serialize)]
struct StudyCalibration {
    study: String,
    /// Passes of the study that were measured before.
    known: usize,
    added: Vec<AddedPass>,
    /// Passes that are still to be measured: a dry run's.
    missing: Vec<PassKey>,
}

/// What a calibration's file has now, for programs.
#[derive(Serialize)]
pub struct CalibrationSummary {
    r#type: &'static str,
    out: String,
    seconds: f64,
    passes: usize,
    transports: usize,
    cpu: String,
    cores: usize,
    #[serde(flatten)]
    study: Option<StudyCalibration>,
    /// What was measured of a script, as the file has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    script: Option<ScriptTime>,
}

/// Measures a whole machine, and tells what comes next.
pub type MachineMeasurement<'a> = dyn Fn(&mut dyn FnMut(&str)) -> Result<Calibration, VirtualError> + 'a;

/// What is to be measured, and into which file.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct CalibrationRequest<'a> {
    pub out: &'a Path,
    /// The study whose passes are added to the file; none: the machine is measured anew.
    pub study: Option<&'a Path>,
    /// The script whose steps are added to the file, and the program whose runs measure it.
    pub script: Option<(&'a ScriptSubject, &'a Path)>,
    /// Nothing is measured: it is told what would be.
    pub dry_run: bool,
    pub quick: bool,
}

impl CalibrationRequest<'_> {
    /// Measures: the whole machine with `machine` where there is no file to add to, then what the study lacks.
    pub fn execute(
        &self,
        registries: &AllRegistries,
        machine: &MachineMeasurement<'_>,
        note: &dyn Fn(&str),
    ) -> Result<CalibrationSummary, StudyFailure> {
        let Self { out, study, script, dry_run, quick } = *self;
        let start = Instant::now();
        // Mistakes in a study, and a file that cannot be written, are told of before a minute is spent.
        let study = study.map(|file| crate::read(file, registries)).transpose()?;
        let passes = study.map(|study| StudyPasses::of_points(&study, registries, &all_points(&study)?));
        let passes = passes.transpose()?;
        let say = &mut |what: &str| note(&format!("{:>6.1} s  {what}", start.elapsed().as_secs_f64()));
        let there = out.metadata().is_ok_and(|found| found.len() > 0);
        let adds = passes.is_some() || script.is_some();
        let (mut calibration, mut fresh) = match adds {
            true if there => (Calibration::load(out)?, false),
            true if dry_run => (Calibration::defaults(), false),
            _ => {
                if !out.exists() {
                    let failed = |source| StudyFailure::File { path: out.to_owned(), source };
                    std::fs::File::create(out).map_err(failed)?;
                }
                let measured = machine(say).inspect_err(|_| {
                    // Nothing is left that looks like a calibration.
                    let _ = there || std::fs::remove_file(out).is_ok();
                })?;
                measured.save(out)?;
                (measured, true)
            }
        };
        if dry_run && !there {
            note(&format!(
                "{} is not there: this machine would be measured first, as a whole",
                out.display()
            ));
        }
        let mut added = None;
        if let Some(passes) = &passes {
            passes.outline(&calibration, dry_run).iter().for_each(|line| note(line));
            added = Some(match dry_run {
                true => passes.dry_run(&calibration),
                false => passes.measure(&mut calibration, out, quick, say)?,
            });
            fresh |= added.as_ref().is_some_and(|added| !added.added.is_empty());
        }
        let mut timed = None;
        if let Some((script, program)) = script {
            calibration.check_machine(out)?;
            let measured = script.measure(program, say)?;
            note(&script_line(&measured));
            calibration.add_script(measured.clone());
            calibration.save(out)?;
            (timed, fresh) = (Some(measured), true);
        }
        let seconds = start.elapsed().as_secs_f64();
        match fresh {
            true => note(&format!("wrote {} after {seconds:.1} s", out.display())),
            false => note(&format!("{} stays as it is", out.display())),
        }
        Ok(CalibrationSummary {
            r#type: "calibration",
            out: out.display().to_string(),
            seconds,
            passes: calibration.pass.len(),
            transports: calibration.transport.len(),
            cpu: calibration.cpu,
            cores: calibration.cores,
            study: added,
            script: timed,
        })
    }
}

/// What was measured of a script, for people.
fn script_line(time: &ScriptTime) -> String {
    let ms = |seconds: f64| format!("{:.3} ms", 1e3 * seconds);
    let several = time.sharing.iter().skip(1).map(|sharing| {
        format!("; {:.2} times as long with {} workers at once", sharing.slowdown.median, sharing.processes)
    });
    format!(
        "{}: a pass of {} samples takes {}, {} with its gradients handed over ({} of copying {:.3} MB), an update {}{}",
        time.file,
        time.samples,
        ms(time.alone_s.median),
        ms(time.pass_s.median),
        ms(time.staging_s),
        time.gradient_bytes() as f64 / 1e6,
        ms(time.update_s),
        several.collect::<String>()
    )
}

/// Before points of a study are predicted: measures what the calibration in `file` lacks if `measure` says so, or else
/// tells what it lacks and the command for it.
pub fn complete_calibration(
    study: &Study,
    registries: &AllRegistries,
    points: &[Point],
    known: &mut Option<Calibration>,
    file: Option<PathBuf>,
    measure: bool,
    note: &dyn Fn(&str),
) -> Result<(), StudyFailure> {
    let (Some(calibration), Some(file)) = (known, file) else {
        let problem = format!(
            "adds to --calibration FILE, and there is none: `paceline calibrate --study {} --out FILE` measures all that \
             is needed",
            study.source.file
        );
        return if measure { Err(PlanError::new("--calibrate", "", problem).into()) } else { Ok(()) };
    };
    let passes = StudyPasses::of_points(study, registries, points)?;
    if measure {
        passes.outline(calibration, false).iter().for_each(|line| note(line));
        passes.measure(calibration, &file, false, &mut |line| note(line))?;
    } else if let Some(offer) = passes.offer(calibration, &file) {
        note(&format!("{offer}, and so does `paceline predict --calibrate`"));
    }
    Ok(())
}

/// Whether two plans make the same passes.
fn alike(a: &Plan, b: &Plan) -> bool {
    let of = |plan: &Plan| (plan.batch, plan.micro_batches, plan.threads, plan.image_size, plan.window);
    (of(a), &a.data, &a.model, &a.model_file) == (of(b), &b.data, &b.model, &b.model_file)
}

impl<'r> StudyPasses<'r> {
    /// The passes of some points.
    pub fn of_points(
        study: &Study,
        registries: &'r AllRegistries,
        points: &[Point],
    ) -> Result<Self, StudyFailure> {
        let mut all = Self {
            registries,
            file: study.source.file.clone(),
            passes: Vec::new(),
            datasets: Datasets::new(),
            scripts: Vec::new(),
        };
        let (_, cores) = calibrate::machine();
        for part in crate::parts(study, registries) {
            if workload::scripted(&part) {
                all.scripts.push(part.workload_name().unwrap_or(&part.name).to_owned());
                continue;
            }
            for point in points {
                let mut point = point.clone();
                part.space.settle(&mut point);
                let levels = part.space.named(&point);
                let planned = workload::planned(&part, registries, &levels, &mut all.datasets);
                let (plan, dataset) = planned.map_err(|problem| refused(&part, &levels, &problem))?;
                let most = (CROWD * cores / plan.threads).max(1);
                let workers = plan.workers.min(most);
                if let Some(known) = all.passes.iter_mut().find(|known| alike(&known.plan, &plan)) {
                    known.workers.insert(workers);
                    continue;
                }
                let key = key(&plan, dataset, registries)?;
                match all.passes.iter_mut().find(|known| known.key == key) {
                    Some(known) => _ = known.workers.insert(workers),
                    None => all.passes.push(StudyPass { key, plan, workers: [1, workers].into() }),
                }
            }
        }
        Ok(all)
    }

    /// The passes that a calibration lacks.
    fn missing(&self, calibration: &Calibration) -> Vec<&StudyPass> {
        self.passes.iter().filter(|pass| pass.missing(calibration)).collect()
    }

    /// What people are told before anything is measured.
    fn outline(&self, calibration: &Calibration, dry_run: bool) -> Vec<String> {
        let study = &self.file;
        let missing = self.missing(calibration);
        let (all, lacks) = (self.passes.len(), missing.len());
        let mut lines: Vec<String> = self.scripts.iter().map(|name| script(name)).collect();
        lines.push(match lacks {
            0 if all == 0 => format!("{study} has no passes to measure"),
            0 => format!("{} of {study}: all were measured before", passes(all)),
            _ => format!(
                "{} of {study}: {} measured before, {lacks} to measure in about {:.0} s",
                passes(all),
                all - lacks,
                missing.iter().map(|pass| pass.cost_s()).sum::<f64>()
            ),
        });
        if dry_run {
            let mark = |pass: &StudyPass| if pass.missing(calibration) { "to measure" } else { "known" };
            lines.extend(self.passes.iter().map(|pass| format!("  {:10}  {}", mark(pass), pass.key)));
        }
        lines
    }

    /// What a prediction lacks, and the command that measures it; none where nothing lies outside of the calibration.
    pub fn offer(&self, calibration: &Calibration, file: &Path) -> Option<String> {
        let outside = |pass: &&&StudyPass| {
            matches!(calibration.coverage(&pass.key), PassCoverage::Outside { .. } | PassCoverage::Unknown)
        };
        let missing = self.missing(calibration);
        let first = &missing.iter().find(outside)?.key;
        let count = missing.iter().filter(outside).count();
        let (more, them) = match count {
            1 => (String::new(), "it"),
            _ => (format!(" and {} more", count - 1), "them"),
        };
        Some(format!(
            "{} lacks {} of this study ({first}{more}): `paceline calibrate --study {} --out {}` measures {them} in about \
             {:.0} s",
            file.display(),
            passes(count),
            self.file,
            file.display(),
            missing.iter().map(|pass| pass.cost_s()).sum::<f64>()
        ))
    }

    /// Measures what a calibration lacks and adds it to the file, pass by pass: what was measured stays, whatever
    /// happens then.
    fn measure(
        &self,
        calibration: &mut Calibration,
        file: &Path,
        quick: bool,
        say: &mut dyn FnMut(&str),
    ) -> Result<StudyCalibration, StudyFailure> {
        let missing = self.missing(calibration);
        if !missing.is_empty() {
            calibration.check_machine(file)?;
        }
        let known = self.passes.len() - missing.len();
        let mut added: Vec<AddedPass> = Vec::with_capacity(missing.len());
        for StudyPass { plan, key, workers } in &missing {
            let begun = Instant::now();
            let typed = TypedPlan::new(plan, self.registries.runs())?;
            let dataset = workload::loaded(plan, &self.datasets).expect("it was there for the key");
            let workers: Vec<usize> = workers.iter().copied().collect();
            let pass = calibrate::pass(&typed, dataset, &workers, quick)?;
            let (pass_s, seconds) = (pass.seconds.median, begun.elapsed().as_secs_f64());
            calibration.add(pass);
            calibration.save(file)?;
            added.push(AddedPass { key: key.clone(), pass_s, seconds });
            let (at, of) = (added.len(), missing.len());
            say(&format!("pass {at} of {of}: {key}: {:.3} ms, measured in {seconds:.1} s", 1e3 * pass_s));
        }
        Ok(StudyCalibration { study: self.file.clone(), known, added, missing: Vec::new() })
    }

    /// What would be measured.
    fn dry_run(&self, calibration: &Calibration) -> StudyCalibration {
        let missing: Vec<PassKey> =
            self.missing(calibration).into_iter().map(|pass| pass.key.clone()).collect();
        let known = self.passes.len() - missing.len();
        StudyCalibration { study: self.file.clone(), known, added: Vec::new(), missing }
    }
}

fn key(plan: &Plan, dataset: &Dataset, registries: &AllRegistries) -> Result<PassKey, StudyFailure> {
    let typed = TypedPlan::new(plan, registries.runs())?;
    let graph = paceline_train::model::graph(&typed, dataset).map_err(VirtualError::from)?;
    Ok(PassKey::new(plan, &graph))
}

fn passes(count: usize) -> String {
    format!("{count} {}", if count == 1 { "pass" } else { "passes" })
}

fn script(name: &str) -> String {
    format!(
        "{name} is a script: what it takes is not measured here; `paceline calibrate --script FILE` does that, and recorded \
         runs tell it, too (`paceline train --script FILE`)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDY: &str = r#"
        sampler = "grid"
        [common]
        steps = 4
        [[workload]]
        name = "waves"
        data = "series"
        model = "gru"
        [[workload]]
        name = "shapes"
        data = "digits"
        model-file = "net.toml"
        micro-batches = 2
        [axes]
        workers = [1, 2]
        strategy = ["ring-allreduce", "tree"]
        batch = [8, 16]
        threads = [1, 2]
        [[objectives]]
        metric = "samples_per_s"
        goal = "maximize"
        [control]
        every = 0
    "#;
    const NETWORK: &str =
        "[[layer]]\nkind = \"dense\"\noutputs = 16\n\n[[layer]]\nkind = \"dense\"\noutputs = \"classes\"\n";

    /// A folder with a network, and a study of it.
    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("net.toml"), NETWORK).unwrap();
        let file = folder.path().join("s.toml");
        std::fs::write(&file, STUDY).unwrap();
        (folder, file)
    }

    /// The passes of every point of a study file.
    fn passes<'r>(file: &Path, registries: &'r AllRegistries) -> StudyPasses<'r> {
        let study = crate::read(file, registries).unwrap();
        StudyPasses::of_points(&study, registries, &all_points(&study).unwrap()).unwrap()
    }

    fn names(passes: &[&StudyPass]) -> Vec<String> {
        passes.iter().map(|pass| pass.key.to_string()).collect()
    }

    #[test]
    fn a_study_lacks_each_pass_of_its_workloads_once_whatever_else_its_points_are() {
        let ((_folder, file), registries) = (folder(), AllRegistries::default());
        let study = passes(&file, &registries);
        let mut calibration = Calibration::defaults();
        let all = names(&study.missing(&calibration));
        assert_eq!(
            all,
            [
                "gru on 1×32×3, a batch of 8, 1 thread",
                "gru on 1×32×3, a batch of 8, 2 threads",
                "gru on 1×32×3, a batch of 16, 1 thread",
                "gru on 1×32×3, a batch of 16, 2 threads",
                // Micro-batches are passes of their own.
                "net.toml on 8×8×1, a batch of 4, 1 thread",
                "net.toml on 8×8×1, a batch of 4, 2 threads",
                "net.toml on 8×8×1, a batch of 8, 1 thread",
                "net.toml on 8×8×1, a batch of 8, 2 threads",
            ]
        );
        let offer = study.offer(&calibration, Path::new("here.toml")).unwrap();
        let command = format!("`paceline calibrate --study {} --out here.toml`", file.display());
        assert!(offer.contains("here.toml lacks 8 passes") && offer.contains(&command), "{offer}");
        assert!(offer.contains("(gru on 1×32×3, a batch of 8, 1 thread and 7 more)"), "{offer}");

        let StudyPass { plan, key, workers } = &study.passes[4];
        assert_eq!(workers.iter().collect::<Vec<_>>(), [&1, &2]);
        let dataset = workload::loaded(plan, &study.datasets).unwrap();
        let typed = TypedPlan::new(plan, registries.runs()).unwrap();
        let mut pass = calibrate::pass(&typed, dataset, &[1, 2], true).unwrap();
        assert_eq!(&pass.key, key);
        calibration.add(pass.clone());
        assert_eq!(names(&study.missing(&calibration)), [&all[..4], &all[5..]].concat());
        // Between two batches times lie on a line: nothing is offered, and it is still measured when asked for.
        for (batch, threads) in [(2, 1), (64, 1), (2, 2), (64, 2)] {
            for key in [&study.passes[0].key, &study.passes[4].key] {
                pass.key = PassKey { batch, threads, ..key.clone() };
                calibration.add(pass.clone());
            }
        }
        assert_eq!(study.offer(&calibration, Path::new("here.toml")), None);
        assert_eq!(study.missing(&calibration).len(), 7);
    }

    #[test]
    fn what_was_measured_is_in_the_file_and_is_not_measured_again() {
        let ((folder, file), registries) = (folder(), AllRegistries::default());
        let out = folder.path().join("here.toml");
        let machine = |_: &mut dyn FnMut(&str)| {
            let (cpu, cores) = calibrate::machine();
            Ok(Calibration { cpu, cores, ..Calibration::defaults() })
        };
        let told = std::cell::RefCell::new(Vec::new());
        let request = |dry_run| {
            let request =
                CalibrationRequest { out: &out, study: Some(&file), script: None, dry_run, quick: true };
            let note = |line: &str| told.borrow_mut().push(line.to_owned());
            let done = request.execute(&registries, &machine, &note).unwrap();
            (done.study.unwrap(), std::mem::take(&mut *told.borrow_mut()).join("\n"))
        };
        let (planned, words) = request(true);
        assert_eq!((planned.known, planned.missing.len(), out.exists()), (0, 8, false), "{words}");
        assert!(words.contains("is not there: this machine would be measured first"), "{words}");
        assert!(words.contains("\n  to measure  net.toml on 8×8×1, a batch of 4, 2 threads\n"), "{words}");

        let (first, words) = request(false);
        assert_eq!((first.known, first.added.len()), (0, 8));
        assert!(words.contains("8 to measure in about ") && words.contains("pass 8 of 8: "), "{words}");
        let written = Calibration::load(&out).unwrap();
        assert_eq!(written.pass.len(), 8);
        for pass in &written.pass {
            assert!(pass.data_s.is_some(), "the dataset's own samples were read");
            assert!(pass.sharing.iter().all(|sharing| sharing.in_step.is_some()), "{:?}", pass.sharing);
        }
        assert!(passes(&file, &registries).missing(&written).is_empty());

        let text = std::fs::read_to_string(&out).unwrap();
        let (again, words) = request(false);
        assert_eq!((again.known, again.added.len()), (8, 0));
        assert!(words.contains("8 passes") && words.contains("stays as it is"), "{words}");
        assert_eq!(std::fs::read_to_string(&out).unwrap(), text);

        // Another network under the same name, and nothing else, has to be measured.
        let wider = NETWORK.replace("\n\n", "\n\n[[layer]]\nkind = \"dense\"\noutputs = 32\n\n");
        std::fs::write(folder.path().join("net.toml"), wider).unwrap();
        let (planned, words) = request(true);
        assert_eq!((planned.known, planned.missing.len()), (4, 4), "{words}");

        // What another machine takes is no business of this one.
        let elsewhere = Calibration { cores: written.cores + 1, ..written };
        elsewhere.save(&out).unwrap();
        let request =
            CalibrationRequest { out: &out, study: Some(&file), script: None, dry_run: false, quick: true };
        let refused = request.execute(&registries, &machine, &|_| {}).err().unwrap().to_string();
        assert!(refused.contains("here.toml was measured on another machine"), "{refused}");
    }

    #[test]
    fn scripts_are_left_to_recorded_runs_and_other_programs_are_refused_with_their_line() {
        let registries = AllRegistries::default();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.py"), "").unwrap();
        let write = |workload: &str, axes: &str, metric: &str| {
            let text = format!(
                "sampler = \"grid\"\n{workload}\n[axes]\n{axes}\n[[objectives]]\nmetric = \"{metric}\"\ngoal = \
                 \"minimize\"\n[control]\nevery = 0\n"
            );
            let file = folder.path().join("s.toml");
            std::fs::write(&file, text).unwrap();
            file
        };
        let out = folder.path().join("here.toml");
        Calibration::defaults().save(&out).unwrap();
        let file = write("[workload]\nscript = \"train.py\"\nsteps = 4", "workers = [1, 2]", "seconds.train");
        let told = std::cell::RefCell::new(String::new());
        let request =
            CalibrationRequest { out: &out, study: Some(&file), script: None, dry_run: false, quick: true };
        let nothing = |_: &mut dyn FnMut(&str)| unreachable!("the file is there");
        request.execute(&registries, &nothing, &|line| *told.borrow_mut() += line).unwrap();
        assert!(told.borrow().contains("s is a script: what it takes is not measured here"), "{told:?}");
        assert!(told.borrow().contains("has no passes to measure"), "{told:?}");

        write("[command]\nrun = [\"true\", \"{x}\"]\nmetrics = \"json\"", "x = [1, 2]", "wall_s");
        let refused = request.execute(&registries, &nothing, &|_| {}).err().unwrap().to_string();
        assert!(refused.contains("s.toml:2: command: only runs of paceline train"), "{refused}");
    }
}
