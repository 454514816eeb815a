//! The figures of a run that can be wanted: what objectives and conditions of studies may name.

/// One figure.
#[derive(Clone, Copy, Debug)]
pub struct RunFigure {
    /// Its name; a dot leads into a part of the result.
    pub name: &'static str,
    /// Its unit; empty for a plain number.
    pub unit: &'static str,
    /// What it is.
    pub about: &'static str,
}

const fn figure(name: &'static str, unit: &'static str, about: &'static str) -> RunFigure {
    RunFigure { name, unit, about }
}

/// Figures of a run of `paceline train`.
pub static FIGURES: &[RunFigure] = &[
    figure("time_to_accuracy_s", "s", "the training clock when the target accuracy was reached"),
    figure("final_accuracy", "", "accuracy over the test split, 0 to 1"),
    figure("final_loss", "", "loss over the test split"),
    figure("train_loss", "", "loss of the last step"),
    figure("samples_per_s", "samples/s", "samples per second of the training clock"),
    figure("convergence_s", "s", "the training clock when accuracy came within 1% of its end"),
    figure("seconds.train", "s", "the training clock"),
    figure("seconds.startup", "s", "process start to first step"),
    figure("seconds.total", "s", "process start to result"),
    figure("wall_s", "s", "the whole process, as seen from outside"),
    figure("cpu_s", "s", "CPU time of all ranks"),
    figure("sent_bytes", "bytes", "sent by all ranks"),
    figure("received_bytes", "bytes", "received by all ranks"),
    figure("rss_peak_bytes", "bytes", "peak memory of the largest rank"),
    figure("staleness.mean", "versions", "mean age of parameters"),
    figure("staleness.p95", "versions", "95th percentile of the age of parameters"),
    figure("staleness.max", "versions", "greatest age of parameters"),
    figure("steps", "", "steps done"),
    figure("samples", "", "samples done"),
    figure(
        "infer.p50_ms",
        "ms",
        "median latency of the trained network's answer, by `paceline infer` after the run",
    ),
    figure("infer.p95_ms", "ms", "95th percentile of that latency"),
    figure("infer.p99_ms", "ms", "99th percentile of that latency"),
    figure("infer.samples_per_s", "samples/s", "samples that the network answers per second"),
    figure(COST, "", "what the run costs by the study's [prices]"),
];

/// Figures of any other program; beside those that it prints.
pub static OF_COMMANDS: &[RunFigure] = &[
    figure("wall_s", "s", "the whole program"),
    figure("cpu_s", "s", "CPU time of the program and all that it started and waited for"),
    figure(
        "rss_peak_bytes",
        "bytes",
        "most memory of the process tree at a moment, sampled five times a second",
    ),
    figure("processes", "", "most processes of the tree at a moment, sampled"),
    figure("read_bytes", "bytes", "read from storage by the process tree, sampled"),
    figure("written_bytes", "bytes", "written to storage by the process tree, sampled"),
    figure(COST, "", "what the run costs by the study's [prices]"),
];

/// The figure that needs prices.
pub const COST: &str = "cost";

/// Begins the figures that `paceline infer` measures after a run.
pub const INFER: &str = "infer.";
