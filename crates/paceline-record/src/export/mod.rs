//! Exports of a run for other tools, one file per format.

mod csv;
mod json;
mod markdown;
mod node;
mod parquet;
mod prometheus;
mod summary;
mod tensorboard;
mod trace;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::store::{RecordError, RunRow, Store, TableRows};
use crate::table::tables;

pub use node::NodeSummary;
pub use parquet::parquet;
pub use summary::{EvaluationSummary, LinkSummary, RankSummary, RunSummary};

/// An export that failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ExportError {
    /// The store said no.
    #[error(transparent)]
    Store(#[from] RecordError),
    /// A file could not be written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// What a document is written to does not take it.
    #[error("writing: {0}")]
    Document(#[from] io::Error),
}

/// How a format is written.
pub enum Target {
    /// As one document.
    Document(fn(&Exported<'_>, &mut dyn Write) -> Result<(), ExportError>),
    /// As one file per table, in a folder; how one is written. The files end in the format's name.
    Tables(fn(&TableRows) -> Vec<u8>),
    /// As other files in a folder.
    Folder(fn(&Exported<'_>, &Path) -> Result<(), ExportError>),
}

/// A format.
pub struct Format {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// How it is written.
    pub target: Target,
}

/// Every format.
pub static FORMATS: &[Format] = &[
    Format { name: "csv", about: "one CSV file per table, in a folder", target: Target::Tables(csv::bytes) },
    Format { name: "json", about: "every table in one document", target: Target::Document(json::write) },
    Format {
        name: "parquet",
        about: "one Parquet file per table, in a folder",
        target: Target::Tables(parquet::bytes),
    },
    Format {
        name: "tensorboard",
        about: "TensorBoard event files, in a folder",
        target: Target::Folder(tensorboard::write),
    },
    Format {
        name: "trace",
        about: "Chrome/Perfetto trace of all ranks on one clock (arrows with `train --trace`)",
        target: Target::Document(trace::write),
    },
    Format {
        name: "prometheus",
        about: "the last figures as Prometheus text",
        target: Target::Document(prometheus::write),
    },
    Format { name: "markdown", about: "a summary to read", target: Target::Document(markdown::write) },
];

/// A run to be exported.
#[derive(Clone, Copy)]
pub struct Exported<'a> {
    /// Where it is recorded.
    pub store: &'a Store,
    /// The run.
    pub run: &'a RunRow,
}

impl Exported<'_> {
    /// Reads the rows of one table.
    pub fn table(&self, name: &str) -> Result<TableRows, RecordError> {
        self.store.rows(name, self.run)
    }

    /// The names of all tables.
    pub fn names(&self) -> Vec<&'static str> {
        tables(&self.store.metrics).iter().map(|table| table.name).collect()
    }

    /// Writes a file per table into a folder, as `write` makes them.
    pub fn write_tables(
        &self,
        extension: &str,
        write: fn(&TableRows) -> Vec<u8>,
        out: &Path,
    ) -> Result<(), ExportError> {
        folder(out)?;
        for rows in self.tables() {
            let rows = rows?;
            file(&out.join(format!("{}.{extension}", rows.table.name)), &write(&rows))?;
        }
        Ok(())
    }

    /// Reads table after table: one at a time is in memory.
    fn tables(&self) -> impl Iterator<Item = Result<TableRows, RecordError>> {
        tables(&self.store.metrics).into_iter().map(|table| self.table(table.name))
    }
}

fn folder(path: &Path) -> Result<(), ExportError> {
    std::fs::create_dir_all(path).map_err(|source| ExportError::File { path: path.to_owned(), source })
}

fn file(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    std::fs::write(path, bytes).map_err(|source| ExportError::File { path: path.to_owned(), source })
}

/// Appends a number as LEB128, the variable-length form of Thrift and Protocol Buffers.
fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::event::Event;
    use crate::row::{Batch, RankSample, StepRow, TraceKind, TraceRow};

    /// A small recorded run of two ranks.
    pub fn recorded(folder: &Path) -> (Store, RunRow) {
        let mut record = crate::store::tests::begun(folder, "r1");
        let begin = crate::process::monotonic_ns();
        for rank in 0..2u64 {
            let steps = (1..=3).map(|step| StepRow {
                step,
                begin_ns: begin + step * 1000,
                data_ns: 100,
                forward_ns: 200,
                backward_ns: 300,
                overlap_ns: 10,
                send_ns: 50,
                wait_ns: 40,
                wait_for: Some(1 - rank),
                apply_ns: 30,
                samples: 16,
                loss: 1.0 / step as f64,
                staleness: None,
                codec_ns: 5,
                core_wait_ns: Some(7),
                stage: None,
            });
            let message = |kind, at_ns| TraceRow {
                kind,
                at_ns,
                peer: 1 - rank,
                n: 0,
                step: 1,
                bytes: 64,
                ..TraceRow::default()
            };
            let batch = Batch {
                site: Some(Box::new(crate::site::RunEnvironment::own())),
                steps: steps.collect(),
                samples: vec![RankSample {
                    at_ns: begin + 500,
                    process: vec![Some(0.5)],
                    ..RankSample::default()
                }],
                trace: vec![
                    message(TraceKind::Send, begin + 1350),
                    message(TraceKind::Receive, begin + 1400),
                ],
                dropped: 0,
            };
            record.event(&Event::Batch { rank: rank as usize, batch: &batch });
        }
        record.event(&Event::Evaluation { step: 3, samples: 96, train_s: 0.5, loss: 0.25, accuracy: 0.75 });
        record.fail("a \"quoted\", failure", 1).unwrap();
        let store = Store::open(folder).unwrap();
        let run = store.find("last").unwrap();
        (store, run)
    }

    #[test]
    fn every_format_writes_something_and_names_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let (store, run) = recorded(folder.path());
        let exported = Exported { store: &store, run: &run };
        for format in FORMATS {
            match format.target {
                Target::Document(write) => {
                    let mut bytes = Vec::new();
                    write(&exported, &mut bytes).unwrap();
                    assert!(String::from_utf8(bytes).unwrap().contains("r1"), "{}", format.name);
                }
                Target::Tables(write) => {
                    let out = folder.path().join(format.name);
                    exported.write_tables(format.name, write, &out).unwrap();
                    assert_eq!(std::fs::read_dir(out).unwrap().count(), exported.names().len());
                }
                Target::Folder(write) => {
                    let out = folder.path().join(format.name);
                    write(&exported, &out).unwrap();
                    assert!(std::fs::read_dir(out).unwrap().count() > 0, "{}", format.name);
                }
            }
        }
    }
}
