//! The page of the record: tables, metrics, exports.

use paceline_record::event::SCHEMA;
use paceline_record::metric::{About, Metrics};
use paceline_record::{Column, Table, VIEWS, tables};

use super::markdown::{Page, code};

/// The store's tables and what is sampled into them.
pub fn page() -> String {
    let mut page = Page::new("The record of a run");
    page.text(&format!(
        "Every run is recorded in one SQLite database, `paceline.db`, in the store (`--store DIR`, else \
         `PACELINE_STORE`, else `.paceline`). Any SQLite tool opens it, also while runs write. This is version \
         {SCHEMA} of the schema (`runs.schema`, `PRAGMA user_version`). `paceline runs`, `paceline status`, \
         `paceline show RUN` and `paceline export RUN` read it."
    ));
    page.items(
        [
            "**A run's state is truthful.** It is `running` from its first moment, `ok` in the transaction that \
             stores its result, `failed` with the error, or `lost`: its process (`pid`, `pid_started`, `boot_id`) \
             died without a word. Every paceline verb that reads the store looks after those that still say \
             `running`.",
            "**Only what others can read is said to be recorded.** A run that ends well is read back from the store. \
             Where the database was deleted, replaced or damaged meanwhile, or the disk is full, the run prints its \
             result, says that it is not recorded, and ends with code 5. A damaged database is refused before a run \
             starts: up to 16 MiB it is checked whole, beyond that the table `runs` (`PRAGMA quick_check`). Some \
             space is set aside while a run is under way, so that `failed` can be written to a full disk.",
            "**Recording never holds up training.** Rows wait in bounded buffers; what there is no room for is \
             dropped and counted (`dropped_rows` in the result, `runs` and `ranks`).",
            "**One clock.** Times `t_ns` count from the start of the run on the launcher's `CLOCK_MONOTONIC`; ranks \
             on other machines are shifted by the difference of the calendars (`hosts.clock_shift_ns`).",
            "**Counters count from the start**, so a difference of two rows is what happened between them, however \
             many samples are missing; the views turn them into percentages and rates.",
            "Ranks are sampled 10 times per second (`--sample-hz HZ`, 0 for none); `--trace` adds single messages and \
             waits; `--no-record` leaves no record at all. Ranks that are threads of one process \
             (`--transport inproc`) are sampled as one, under rank 0.",
            "**Scripts tell what only they know**, as `events`: `attached` (framework, names and lengths of the tensors), \
             `reported` (what rank 0's script reported, with step and training clock), `staging` (seconds that a \
             worker's script spent on copying gradients, and when each tensor was final after the start of backward, in \
             the last step that it told of), `devices` (GPUs of the launcher's machine: name, UUID, memory, the workers that they \
             were given to, and whether NVIDIA's multi-process service was `started`, `running` before, `absent` or \
             `not-needed`), `script` (a line that it wrote), `script-wait` (that it is waited for). \
             Where the script's own framework averages (`ddp-gloo`, `ddp-nccl`), links and waits are not observed: `links` and \
             `waits` are empty, and `backward_ns` holds the exchange.",
        ]
        .map(str::to_owned),
    );
    page.heading("Metrics");
    page.text(
        "What is sampled, out of the registries in `crates/paceline-record/src/metric/`: adding one is one line \
         there, and a store of before gets the column.",
    );
    let rows: Vec<Vec<String>> = Metrics::default()
        .tables()
        .into_iter()
        .flat_map(|(table, metrics)| metrics.into_iter().map(move |m| row(table, &m)))
        .collect();
    page.table(&["metric", "unit", "kind", "what it is", "where it comes from"], &rows);
    page.heading("Tables");
    for table in tables(&Metrics::default()) {
        describe(&mut page, &table);
    }
    page.heading("Views");
    let views: Vec<Vec<String>> =
        VIEWS.iter().map(|(name, about, _)| vec![code(name), (*about).into()]).collect();
    page.table(&["view", "a row is"], &views);
    page.done()
}

fn row(table: &str, metric: &About) -> Vec<String> {
    let About { name, unit, kind, about, source } = metric;
    vec![
        code(&format!("{table}.{name}")),
        (*unit).into(),
        kind.name().into(),
        (*about).into(),
        (*source).into(),
    ]
}

fn describe(page: &mut Page, table: &Table) {
    page.text(&format!("`{}`: {}; one row per {}.", table.name, table.about, table.key.join(", ")));
    let sampled = Metrics::default().tables().iter().any(|(name, _)| *name == table.name);
    let shown = |c: &&Column| !sampled || table.key.contains(&c.name);
    let mut rows: Vec<Vec<String>> = table
        .columns
        .iter()
        .filter(shown)
        .map(|c| vec![code(c.name), c.kind.sql().into(), c.unit.into(), c.about.into()])
        .collect();
    if sampled {
        rows.push(vec![
            "…".into(),
            "REAL".into(),
            "".into(),
            format!("a column per metric `{}.…` above", table.name),
        ]);
    }
    page.table(&["column", "type", "unit", "what it says"], &rows);
}
