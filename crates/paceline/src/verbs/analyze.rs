//! `paceline analyze`: what runs say about the factors that varied between them.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use paceline_analyze::table::{self, ColumnRoles, Response, RowSample};
use paceline_analyze::{
    Analysis, AnalysisRequest, ComparisonRequest, StudyTable, StudyTableError, importance,
};
use paceline_plan::{Goal, TableError};
use paceline_study::{StudyState, find_or_fail};
use serde_json::json;

use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Bar, Show};
use paceline_record::FailureKind;

/// Flags of `paceline analyze`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A study's name or file; of several, each is a workload [default: all recorded runs]
    #[arg(value_name = "STUDY", conflicts_with = "table")]
    studies: Vec<String>,
    #[command(flatten)]
    asked: AnalysisQuery,
    #[command(flatten)]
    store: Where,
}

/// Which runs are looked at, and what is asked of them.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct AnalysisQuery {
    /// Runs in a file of comma-separated values with a header, also gzipped; repeat the flag for several files, each a
    /// workload [default: the recorded runs]
    #[arg(long, value_name = "FILE.csv")]
    table: Vec<PathBuf>,
    /// A column that varied on purpose; repeat the flag for each. Of recorded runs: a setting of their plans
    /// [default there: all that differ]
    #[arg(long = "factor", value_name = "COLUMN")]
    factors: Vec<String>,
    /// What is explained: a column, or `log(COLUMN)` for effects in percent; further ones for the Pareto front
    /// [default for recorded runs: log(samples_per_s) and final_accuracy]
    #[arg(long = "response", value_name = "COLUMN", value_parser = Response::parse)]
    responses: Vec<Response>,
    /// A response of which more is better (less is, otherwise); one that is not a --response joins the front
    #[arg(long, value_name = "COLUMN", requires = "table")]
    maximize: Vec<String>,
    /// The factor whose levels are workloads: what is best on each, how configurations rank, and what borrowing one
    /// costs. Its own effect is taken out first
    #[arg(long, value_name = "FACTOR")]
    workload: Option<String>,
    /// Compare the levels of a factor, each at its own best setting of --tune, over repeats
    /// [default: strategy, where lr varied too]
    #[arg(long, value_name = "FACTOR")]
    compare: Option<String>,
    /// A factor that each level of --compare chooses for itself; repeat the flag for each [default: lr]
    #[arg(long, value_name = "FACTOR", requires = "compare")]
    tune: Vec<String>,
    /// The factor that counts workers: speed-up, efficiency and the laws of Amdahl and Gunther
    #[arg(long, value_name = "FACTOR")]
    workers: Option<String>,
    /// A column that names the runs
    #[arg(long, value_name = "COLUMN", requires = "table")]
    id: Option<String>,
    /// A column that tells when runs were made [default: the order of the rows]
    #[arg(long, value_name = "COLUMN", requires = "table")]
    order: Option<String>,
    /// A column of what runs were made together with (a day, a machine): its differences are taken out
    #[arg(long, value_name = "COLUMN", requires = "table")]
    block: Option<String>,
    /// A column that marks controls (1, true, yes, control): they tell noise and drift, nothing else
    #[arg(long, value_name = "COLUMN", requires = "table")]
    control: Option<String>,
    /// Analyse so many rows, drawn by the seed; needed for tables of more than 100000 rows
    #[arg(long, value_name = "ROWS", requires = "table")]
    sample: Option<NonZeroUsize>,
    /// Seed of the draws behind the intervals of shares, and of --sample
    #[arg(long, default_value_t = importance::SEED)]
    seed: u64,
}

const HELP: &str = "\
Effects are averages over the levels of all other factors, each level counting alike; intervals
are of 95%. The model has every factor and, where enough runs are left to tell the noise, every
pair. A factor of more than 8 numbers is taken as a slope. What the runs cannot tell is said.
Tables of more than 100000 rows are analysed by a sample: --sample says how many rows.
Several studies or tables are analysed as one, with the factor `workload`; their first objectives
must be the same.

Examples:
  paceline analyze
  paceline analyze my-study
  paceline analyze my-study --compare strategy --tune lr
  paceline analyze digits-study mnist-study
  paceline analyze --table runs.csv --factor workers --factor sync --response 'log(step_s)'
  paceline analyze --table runs.csv --factor model --factor servers --response step_s \\
      --maximize accuracy --workload model --json";

impl AnalysisQuery {
    /// What is asked of a study where nobody gives flags.
    pub fn of_study() -> Self {
        Self { seed: importance::SEED, ..Self::default() }
    }

    /// Whether runs of a file are looked at.
    pub fn of_file(&self) -> bool {
        !self.table.is_empty()
    }

    /// Reads the tables, the studies' runs, or all recorded ones.
    pub fn table(&self, store: &Where, studies: &[String]) -> Result<StudyTable, Failure> {
        let mut tables = match (studies, &self.table[..]) {
            ([], []) => {
                let (runs, figures) = (store.open()?.runs()?, &registries().figures);
                vec![table::recorded("recorded runs", &runs, &self.factors, &self.responses, figures)?]
            }
            ([], files) => files.iter().map(|file| self.file(file)).collect::<Result<_, _>>()?,
            (names, _) => names.iter().map(|name| self.study(store, name)).collect::<Result<Vec<_>, _>>()?,
        };
        let mut table = if tables.len() > 1 { table::joined(&tables)? } else { tables.remove(0) };
        if let Some(name) = &self.workload {
            table.workload = table.factor(name);
        }
        Ok(table)
    }

    fn study(&self, store: &Where, name: &str) -> Result<StudyTable, Failure> {
        for (flag, named) in
            [("--factor", !self.factors.is_empty()), ("--response", !self.responses.is_empty())]
        {
            if named {
                return Err(Failure::ask(flag, "", "a study's axes and objectives are what is analysed"));
            }
        }
        let table = paceline_study::table(&StudyState::peek(&store.folder(), name, registries())?);
        if table.measured(0).is_empty() {
            let hint = format!("`paceline status {name}` shows how far it is");
            let problem = format!("no run of the study {name} has ended well yet");
            return Err(Failure::new(FailureKind::Other, problem, hint));
        }
        Ok(table)
    }

    fn file(&self, path: &Path) -> Result<StudyTable, Failure> {
        let figures = &registries().figures;
        for (flag, missing) in
            [("--factor", self.factors.is_empty()), ("--response", self.responses.is_empty())]
        {
            if missing {
                return Err(Failure::ask(flag, "", "name at least one column of the table"));
            }
        }
        let of = |r: &Response| Response::figure(figures, &r.name, r.log).wanted(r.goal);
        let mut responses: Vec<Response> = self.responses.iter().map(of).collect();
        for name in &self.maximize {
            match responses.iter_mut().find(|r| r.is(name)) {
                Some(response) => response.goal = Goal::Maximize,
                None => {
                    let response = Response::parse(name).map_err(|e| Failure::ask("--maximize", name, &e))?;
                    responses.push(of(&response).wanted(Goal::Maximize));
                }
            }
        }
        let columns = ColumnRoles {
            factors: self.factors.clone(),
            responses,
            id: self.id.clone(),
            order: self.order.clone(),
            block: self.block.clone(),
            control: self.control.clone(),
        };
        let sample = self.sample.map(|rows| RowSample { rows: rows.get(), seed: self.seed });
        Ok(table::read(path, &columns, sample)?)
    }

    /// Reads the table and analyses it; a line on a terminal says what is under way.
    pub fn analysis(
        &self,
        store: &Where,
        studies: impl IntoIterator<Item = impl Into<String>>,
        show: Show,
    ) -> Result<(StudyTable, AnalysisRequest, Analysis), Failure> {
        let bar = Bar::new(show, "{spinner} {msg}  {elapsed}");
        bar.message("reading the runs");
        let table = self.table(store, &studies.into_iter().map(Into::into).collect::<Vec<String>>())?;
        let (ask, comparison) = (self.ask(&table)?, self.comparison(&table)?);
        let stage = |what: &str| bar.message(&format!("{} runs: {what}", table.runs.len()));
        let mut analysis = Analysis::followed(&table, ask, &stage);
        if let Some(asked) = comparison {
            analysis.compare(&asked);
            if analysis.comparisons.is_empty() {
                let problem = "fewer than two of its levels were run at the same levels of the other factors";
                return Err(Failure::ask("--compare", &table.factors[asked.factor].name, problem));
            }
        }
        bar.clear();
        Ok((table, ask, analysis))
    }

    /// The levels that are compared, if that is asked for.
    fn comparison(&self, table: &StudyTable) -> Result<Option<ComparisonRequest>, Failure> {
        let Some(name) = &self.compare else { return Ok(None) };
        let factor = factor(table, "--compare", name)?;
        let tuned = if self.tune.is_empty() {
            table.factor("lr").into_iter().collect()
        } else {
            self.tune.iter().map(|name| self::factor(table, "--tune", name)).collect::<Result<Vec<_>, _>>()?
        };
        if tuned.contains(&factor) {
            return Err(Failure::ask("--tune", name, "it is what --compare compares; name another factor"));
        }
        Ok(Some(ComparisonRequest { factor, tuned }))
    }

    /// What else is known about the factors.
    fn ask(&self, table: &StudyTable) -> Result<AnalysisRequest, Failure> {
        let find = |flag: &str, name: &Option<String>| {
            name.as_ref().map(|name| factor(table, flag, name)).transpose()
        };
        // Of recorded runs and studies it is known what the settings mean; of several tables, which is the workload.
        let known = (self.table.len() != 1).then(|| AnalysisRequest::of_settings(table));
        let workers = find("--workers", &self.workers)?.or(known.and_then(|known| known.workers));
        if let Some(factor) = workers.map(|f| &table.factors[f]).filter(|f| f.numbers().is_none()) {
            return Err(Failure::ask("--workers", &factor.name, "its levels are not numbers"));
        }
        let workload = find("--workload", &self.workload)?.or(known.and_then(|known| known.workload));
        Ok(AnalysisRequest { workload, workers, seed: self.seed })
    }
}

fn factor(table: &StudyTable, flag: &str, name: &str) -> Result<usize, Failure> {
    table.factor(name).ok_or_else(|| {
        let names: Vec<&str> = table.factors.iter().map(|f| f.name.as_str()).collect();
        Failure::ask(flag, name, &format!("it is no --factor; factors: {}", names.join(", ")))
    })
}

impl Failure {
    pub(super) fn ask(flag: &str, value: &str, problem: &str) -> Self {
        Self::new(
            FailureKind::Usage,
            // A flag that was not given has no value.
            format!("{}: {problem}", format!("{flag} {value}").trim_end()),
            "`paceline analyze --help` lists every flag",
        )
    }
}

impl From<StudyTableError> for Failure {
    fn from(error: StudyTableError) -> Self {
        match error {
            StudyTableError::Table(TableError::File { .. }) => {
                let hint = "a line with the columns' names, then one line per run, is expected";
                Self::new(FailureKind::Storage, error.to_string(), hint)
            }
            StudyTableError::Large { .. } => {
                let hint =
                    "--sample 50000 analyses that many rows, drawn by --seed; a greater number takes longer";
                Self::new(FailureKind::Usage, error.to_string(), hint)
            }
            StudyTableError::Apart { .. } => {
                let hint = "`paceline analyze NAME` analyses each by itself";
                Self::new(FailureKind::Usage, error.to_string(), hint)
            }
            StudyTableError::Table(TableError::Ask { flag, value, problem }) => {
                Self::ask(flag, &value, &problem)
            }
        }
    }
}

/// `paceline analyze`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let find = |text: &String| find_or_fail(&args.store.folder(), text, registries());
    let studies = args.studies.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let (_, _, analysis) = args.asked.analysis(&args.store, studies, show)?;
    if show.json {
        let mut document = json!(analysis);
        document["type"] = "result".into();
        return Ok(output::json(&document)?);
    }
    Ok(output::text(&analysis.text())?)
}
