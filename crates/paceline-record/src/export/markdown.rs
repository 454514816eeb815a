//! Markdown: the summary to read, or to put into a report.

use std::io::Write;

use super::{ExportError, Exported, RunSummary};

pub fn write(exported: &Exported<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let summary = RunSummary::of(exported)?;
    writeln!(out, "# Run {}\n", summary.run)?;
    for line in summary.lines() {
        writeln!(out, "- {line}")?;
    }
    if let Some(command) = summary.command() {
        writeln!(out, "\n```sh\n{command}\n```")?;
    }
    for (title, head, rows) in summary.sections() {
        writeln!(out, "\n## {title}\n\n| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()))?;
        for row in rows {
            writeln!(out, "| {} |", row.join(" | "))?;
        }
    }
    Ok(())
}
